{{- define "kvblend.labels" -}}
app.kubernetes.io/name: kvblend
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Of (list . "gateway"): what its pods are found by. */ -}}
{{- define "kvblend.selector" -}}
app.kubernetes.io/name: kvblend
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "kvblend.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "kvblend.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "kvblend.container" -}}
image: {{ include "kvblend.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* Of (list . "NAME" …): variables from the Secret. */ -}}
{{- define "kvblend.secrets" -}}
{{- $root := index . 0 -}}
{{- range $i, $name := rest . }}{{ if $i }}
{{ end -}}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $root.Values.secret }}, key: {{ $name }}}}
{{- end }}
{{- end }}

{{- /* Where Redis is, for NetworkPolicy: its pods, here or in another namespace. */ -}}
{{- define "kvblend.redis" -}}
- podSelector: {matchLabels: {{ toJson .Values.redis.podLabels }}}
  {{- with .Values.redis.namespace }}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . }}}}
  {{- end }}
{{- end }}
