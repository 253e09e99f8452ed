{{- /* Who may reach the API and the gateways, as peers of a NetworkPolicy. None is everybody. */ -}}
{{- define "dormouse.users" -}}
{{- $peers := list -}}
{{- range .Values.networkPolicies.users.cidrs -}}
{{- $peers = append $peers (dict "ipBlock" (dict "cidr" .)) -}}
{{- end -}}
{{- range .Values.networkPolicies.users.namespaces -}}
{{- $peers = append $peers (dict "namespaceSelector" (dict "matchLabels" .)) -}}
{{- end -}}
{{- toJson $peers -}}
{{- end -}}
