{{- define "stallscope.labels" -}}
app.kubernetes.io/name: stallscope-exporter
app.kubernetes.io/component: exporter
app.kubernetes.io/part-of: stallscope
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "stallscope.objectLabels" -}}
{{ include "stallscope.labels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}
