{{- define "stallscope.name" -}}
{{ .Values.nameOverride | default "stallscope-exporter" }}
{{- end }}

{{- define "stallscope.fullname" -}}
{{ .Values.fullnameOverride | default (include "stallscope.name" .) }}
{{- end }}

{{- define "stallscope.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "stallscope.fullname" .) "default") }}
{{- end }}

{{- define "stallscope.selector" -}}
app.kubernetes.io/name: {{ include "stallscope.name" . | quote }}
{{- end }}

{{- /* The chart's own labels take precedence over commonLabels: selectors depend on them. */}}
{{- define "stallscope.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "stallscope.name" .)
  "app.kubernetes.io/component" "exporter"
  "app.kubernetes.io/part-of" "stallscope"
  "app.kubernetes.io/version" .Chart.AppVersion }}
{{- merge $own .Values.commonLabels | toYaml }}
{{- end }}

{{- define "stallscope.objectLabels" -}}
{{ include "stallscope.labels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- /* A probe of the chart with the fields of a value. A handler of the value replaces the chart's. */}}
{{- define "stallscope.probe" -}}
{{- $handler := dict "httpGet" (dict "path" .path "port" "http") }}
{{- if .root.Values.webConfigSecret }}
{{- $handler = dict "tcpSocket" (dict "port" "http") }}
{{- end }}
{{- range list "httpGet" "tcpSocket" "exec" "grpc" }}
{{- if hasKey $.value . }}{{ $handler = dict }}{{ end }}
{{- end }}
{{- mergeOverwrite $handler .default .value | toYaml }}
{{- end }}
