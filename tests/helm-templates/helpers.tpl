{{- define "app.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- define "app.labels" }}
app: {{ include "app.name" . }}
release: {{ .Release.Name | quote }}
{{- end }}
{{- define "plain" }}[{{ . }}]{{ end -}}
{{- define "fails" }}{{ fail "no way" }}{{ end -}}
{{- define "missing" }}{{ .x.y }}{{ end -}}
{{- define "loop" }}{{ include "loop" . }}{{ end -}}
{{- define "sets" }}{{ $_ := set .d "k" "v" }}{{ end -}}
