{{/* Registry and repository of the images. */}}
{{- define "bursar.prefix" -}}
{{ required "images.prefix: no public registry has Bursar's images. Build and push your own (docs/install.md), then add --set images.prefix=registry.example.com/bursar" .Values.images.prefix }}
{{- end }}

{{/* The image of a role: (list . "webhook") */}}
{{- define "bursar.image" -}}
{{- $ := index . 0 -}}
{{- $target := index . 1 -}}
{{ include "bursar.prefix" $ }}/{{ $target }}:{{ default $.Chart.AppVersion $.Values.images.tag }}
{{- with index (default dict $.Values.images.digests) $target }}@{{ . }}{{ end }}
{{- end }}

{{/* The fields of metadata, Bursar's own labels first: (list COMPONENT LABELS ANNOTATIONS) */}}
{{- define "bursar.marks" -}}
{{- $own := ternary dict (dict "app.kubernetes.io/name" "bursar" "app.kubernetes.io/component" (first .)) (empty (first .)) }}
{{- $labels := merge (dict "app.kubernetes.io/part-of" "bursar") $own (index . 1) }}
labels: {{- if eq (len $labels) 1 }} {app.kubernetes.io/part-of: bursar}{{ else }}{{ toYaml $labels | nindent 2 }}{{ end }}
{{- with last . }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels and annotations of an object beside those of all objects: (list . COMPONENT LABELS ANNOTATIONS), or fewer */}}
{{- define "bursar.metadata" -}}
{{- $ := first . }}
{{- $of := concat . (list "" "" "") }}
{{- $labels := merge dict (default dict (index $of 2)) $.Values.commonLabels }}
{{- include "bursar.marks" (list (index $of 1) $labels (merge dict (default dict (index $of 3)) $.Values.commonAnnotations)) | trim }}
{{- end }}

{{/* Labels and annotations of a component's pods: (list . "webhook") */}}
{{- define "bursar.podMetadata" -}}
{{- $ := first . }}
{{- include "bursar.marks" (list (last .) (merge dict $.Values.podLabels $.Values.commonLabels) $.Values.podAnnotations) | trim }}
{{- end }}

{{/* How often a probe asks, and what it bears with. */}}
{{- define "bursar.timing" }}
{{- range $field, $value := . }}{{ printf "\n%s: %v" $field $value }}{{ end }}
{{- end }}

{{/* The paths of nodes, a line each, that the policies guard beside those of their lists: of values, and of a kubelet's root of its own. */}}
{{- define "bursar.guarded" -}}
{{- range .Values.policies.guardedPaths }}{{ println . }}{{ end }}
{{- if ne .Values.kubeletDir "/var/lib/kubelet" }}
{{- range list "config.yaml" "device-plugins" "dra_manager_state" "kubeconfig" "pki" "plugins" "plugins_registry" "pod-resources" }}{{ printf "%s/%s\n" $.Values.kubeletDir . }}{{ end }}
{{- end }}
{{- end }}

{{/* What decides on which nodes pods run, and the Secrets with which images are pulled. */}}
{{- define "bursar.placing" }}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How a component's replicas keep apart: (list . "webhook") */}}
{{- define "bursar.spread" }}
{{- $component := index . 1 }}
{{- $spread := (index . 0).Values.spread }}
topologySpreadConstraints:
  {{- range $key, $value := dict "kubernetes.io/hostname" $spread.nodes "topology.kubernetes.io/zone" $spread.zones }}
  {{- if ne $value "off" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (eq $value "required") }}
    labelSelector:
      matchLabels:
        app.kubernetes.io/name: bursar
        app.kubernetes.io/component: {{ $component }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* What a policy does with what it finds: (list . "bursar-ways-around") */}}
{{- define "bursar.actions" -}}
{{- $values := (index . 0).Values -}}
{{- if has (index . 1) $values.policies.warn -}}
[Warn, Audit]
{{- else -}}
[Deny]
{{- end -}}
{{- end }}

{{/* off: pods keep their scheduler. YAML 1.1 also writes on and off as true and false. */}}
{{- define "bursar.placement" -}}
{{- if has (toString .Values.placement) (list "off" "false") }}off{{ else }}on{{ end }}
{{- end }}

{{/* Not empty if a scheduler of the chart places GPU pods. */}}
{{- define "bursar.scheduler" -}}
{{- if and .Values.scheduler.enabled (eq (include "bursar.placement" .) "on") }}true{{ end }}
{{- end }}

{{/* A test of the name k of a resource for those that values make accelerators. */}}
{{- define "bursar.devices" -}}
{{- $names := .Values.accelerators }}
{{- range $name, $model := dig "devices" dict .Values.settings }}
{{- if ne (toString $model) "none" }}{{ $names = append $names $name }}{{ end }}
{{- end }}
{{- with $names }} || k in ['{{ join "', '" . }}']{{ end }}
{{- end }}

{{/* The namespaces that admission leaves out by name, separated by commas. */}}
{{- define "bursar.exempt" -}}
kube-system, gpu-operator, bursar-system, bursar-node
{{- range .Values.exemptNamespaces }}, {{ . | quote }}{{ end }}
{{- end }}

{{/* What both forms of the timekeeper have for the dashboard's login; what values add comes last, as extras.yaml expects. */}}
{{- define "bursar.timekeeper.arguments" -}}
{{- if .Values.dashboard.oidc.issuer }}
{{- if not .Values.dashboard.oidc.clientId }}{{ fail "dashboard.oidc.clientId: dashboard.oidc.issuer needs the dashboard's client ID at the provider" }}{{ end }}
{{- if not .Values.dashboard.url }}{{ fail "dashboard.url: dashboard.oidc.issuer needs the dashboard's address, such as https://bursar.example.com" }}{{ end }}
- {{ printf "--dashboard-url=%s" .Values.dashboard.url | quote }}
- {{ printf "--oidc-issuer=%s" .Values.dashboard.oidc.issuer | quote }}
- {{ printf "--oidc-client-id=%s" .Values.dashboard.oidc.clientId | quote }}
- {{ printf "--oidc-username-claim=%s" .Values.dashboard.oidc.usernameClaim | quote }}
- {{ printf "--oidc-username-prefix=%s" .Values.dashboard.oidc.usernamePrefix | quote }}
- {{ printf "--oidc-groups-claim=%s" .Values.dashboard.oidc.groupsClaim | quote }}
- {{ printf "--oidc-groups-prefix=%s" .Values.dashboard.oidc.groupsPrefix | quote }}
- {{ printf "--oidc-scopes=%s" .Values.dashboard.oidc.scopes | quote }}
{{- if .Values.dashboard.oidc.secretName }}
- --oidc-client-secret-file=/etc/bursar/oidc/client-secret
{{- end }}
{{- if .Values.dashboard.oidc.caConfigMapName }}
- --oidc-ca-file=/etc/bursar/oidc-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- define "bursar.timekeeper.mounts" -}}
{{- if .Values.dashboard.oidc.issuer }}
{{- if .Values.dashboard.oidc.secretName }}
- {name: oidc, mountPath: /etc/bursar/oidc, readOnly: true}
{{- end }}
{{- if .Values.dashboard.oidc.caConfigMapName }}
- {name: oidc-ca, mountPath: /etc/bursar/oidc-ca, readOnly: true}
{{- end }}
{{- end }}
{{- with .Values.timekeeper.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "bursar.timekeeper.volumes" -}}
{{- if .Values.dashboard.oidc.issuer }}
{{- with .Values.dashboard.oidc.secretName }}
- name: oidc
  secret: {secretName: {{ . | quote }}, defaultMode: 0440, items: [{key: client-secret, path: client-secret}]}
{{- end }}
{{- with .Values.dashboard.oidc.caConfigMapName }}
- name: oidc-ca
  configMap: {name: {{ . | quote }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end }}
{{- with .Values.timekeeper.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
