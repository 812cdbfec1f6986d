{{/* Refuses an upgrade that takes Bursar's scheduler away while pods wait for it, and one to `meter`, where nobody opens the gate
bursar.dev/budget, while pods wait behind it: they would wait for ever. The release before has a scheduler if its account is
there, and opens gates if the policies' parameters are. Without a cluster, as for `helm template`, `lookup` finds nothing. */}}
{{- define "bursar.nobodyWaits" }}
{{- $meter := eq .Values.mode "meter" }}
{{- $scheduler := default "bursar-scheduler" (get .Values.settings "schedulerName") }}
{{- $names := list }}
{{- if and .Release.IsUpgrade (or $meter (eq (include "bursar.placement" .) "off")) }}
{{- $had_scheduler := lookup "v1" "ServiceAccount" "bursar-system" "bursar-scheduler" }}
{{- $opened_gates := and $meter (lookup "v1" "ConfigMap" "bursar-system" "bursar-modes") }}
{{- $pods := dict }}
{{- if or $had_scheduler $opened_gates }}{{ $pods = lookup "v1" "Pod" "" "" }}{{ end }}
{{- range $pods.items }}
  {{- $waits := and $had_scheduler (eq (default "" .spec.schedulerName) $scheduler) }}
  {{- range .spec.schedulingGates }}
    {{- if and $opened_gates (eq .name "bursar.dev/budget") }}{{ $waits = true }}{{ end }}
  {{- end }}
  {{- $is_over := or .spec.nodeName .metadata.deletionTimestamp (has (default "" .status.phase) (list "Succeeded" "Failed")) }}
  {{- if and $waits (not $is_over) }}{{ $names = append $names (printf "%s/%s" .metadata.namespace .metadata.name) }}{{ end }}
{{- end }}
{{- end }}
{{- if $names }}
{{- $most := 10 }}
{{- $shown := join ", " (slice $names 0 (min $most (len $names) | int)) }}
{{- $more := ternary (printf ", and %d more" (sub (len $names) $most)) "" (gt (len $names) $most) }}
{{- $many := ternary "1 pod waits" (printf "%d pods wait" (len $names)) (eq (len $names) 1) }}
{{- $value := ternary "mode: meter" "placement: off" $meter }}
{{- $gate := ternary " or behind the gate bursar.dev/budget" "" $meter }}
{{- $first := ternary "; after an upgrade to mode=observe no pod joins them, and Bursar opens its gates" "" $meter }}
{{- fail (printf "%s: %s for %s%s, and would wait for ever: %s%s. Delete them, or wait until each has a node, and upgrade again%s" $value $many $scheduler $gate $shown $more $first) }}
{{- end }}
{{- end }}
