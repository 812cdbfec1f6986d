{{/* The image of a role: (list . "webhook") */}}
{{- define "bursar.image" -}}
{{- $ := index . 0 -}}
{{- $target := index . 1 -}}
{{ $.Values.images.prefix }}/{{ $target }}:{{ default $.Chart.AppVersion $.Values.images.tag }}
{{- with index (default dict $.Values.images.digests) $target }}@{{ . }}{{ end }}
{{- end }}

{{/* The pull policy of a container; Kubernetes' own without a value. */}}
{{- define "bursar.pull" }}
{{- with .Values.images.pullPolicy }}
imagePullPolicy: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The labels and annotations that pods get beside their own. */}}
{{- define "bursar.marks" }}
{{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
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
