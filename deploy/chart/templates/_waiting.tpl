{{/* Refuses an upgrade that takes Bursar's scheduler away while pods wait for it, and one to `meter`, where nobody opens the gate
bursar.dev/budget, while pods wait behind it: they would wait for ever. A release without the scheduler takes none away. Where there is
no cluster, as for `helm template`, `lookup` finds nothing. */}}
{{- define "bursar.nobodyWaits" }}
{{- $meter := eq .Values.mode "meter" }}
{{- $scheduler := default "bursar-scheduler" .Values.settings.schedulerName }}
{{- $names := list }}
{{- if and .Release.IsUpgrade (or $meter (eq (include "bursar.placement" .) "off")) }}
{{- if or (lookup "apps/v1" "Deployment" "bursar-system" "bursar-scheduler") (lookup "apps/v1" "Deployment" "bursar-system" "bursar-extender") }}
{{- range (lookup "v1" "Pod" "" "").items }}
  {{- $waits := eq (default "" .spec.schedulerName) $scheduler }}
  {{- range .spec.schedulingGates }}
    {{- if and $meter (eq .name "bursar.dev/budget") }}{{ $waits = true }}{{ end }}
  {{- end }}
  {{- $is_over := or .spec.nodeName .metadata.deletionTimestamp (has (default "" .status.phase) (list "Succeeded" "Failed")) }}
  {{- if and $waits (not $is_over) }}{{ $names = append $names (printf "%s/%s" .metadata.namespace .metadata.name) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- if $names }}
{{- $most := 10 }}
{{- $shown := join ", " (slice $names 0 (min $most (len $names) | int)) }}
{{- $more := ternary (printf ", and %d more" (sub (len $names) $most)) "" (gt (len $names) $most) }}
{{- $pods := ternary "1 pod waits" (printf "%d pods wait" (len $names)) (eq (len $names) 1) }}
{{- $value := ternary "mode: meter takes" "placement: off takes" $meter }}
{{- $gate := ternary " or behind the gate bursar.dev/budget" "" $meter }}
{{- $first := ternary "; after an upgrade to mode=observe no pod joins them, and Bursar opens its gates" "" $meter }}
{{- fail (printf "%s %s away, and %s for it%s: %s%s. Delete them, or wait until each has a node, and upgrade again%s" $value $scheduler $pods $gate $shown $more $first) }}
{{- end }}
{{- end }}
