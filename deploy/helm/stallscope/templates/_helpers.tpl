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

{{- define "stallscope.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* The nodes of the exporters. */}}
{{- define "stallscope.affinity" -}}
{{- $label := eq .Values.maker "nvidia" | ternary "nvidia.com/gpu.present" "feature.node.kubernetes.io/amd-gpu" }}
{{- $everyNode := list (dict "matchExpressions" (list (dict "key" $label "operator" "In" "values" (list "true")))) }}
{{- $terms := dict "nodeSelectorTerms" (.Values.nodeSelectorTerms | default $everyNode) }}
{{- $affinity := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $terms) }}
{{- mergeOverwrite $affinity .Values.affinity | toYaml }}
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

{{/* The text of a file, with links to the runbooks at another address if there is one. */}}
{{- define "stallscope.linked" -}}
{{- $text := index . 0 | toString }}
{{- with index . 1 }}
{{- $text = $text | replace "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks" (trimSuffix "/" .) }}
{{- end }}
{{- $text }}
{{- end }}
