{{- define "peer.labels" -}}
app.kubernetes.io/name: cesar-peer
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
