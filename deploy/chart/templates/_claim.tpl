{{/* Refuses an upgrade that the API server would refuse half done: a StatefulSet keeps the template of its claims. Without a
cluster, as for `helm template`, `lookup` finds nothing. */}}
{{- define "bursar.sameClaim" }}
{{- $storage := .Values.timekeeper.storage }}
{{- range dig "spec" "volumeClaimTemplates" list (lookup "apps/v1" "StatefulSet" "bursar-system" "bursar-timekeeper") }}
{{- $size := .spec.resources.requests.storage }}
{{- $labels := omit (default dict .metadata.labels) "app.kubernetes.io/part-of" }}
{{- $stored := dict "size" $size "className" (default "" .spec.storageClassName) "accessModes" .spec.accessModes "labels" $labels "annotations" (default dict .metadata.annotations) }}
{{- if eq (include "bursar.bytes" $size) (include "bursar.bytes" $storage.size) }}{{ $_ := set $stored "size" $storage.size }}{{ end }}
{{- range $name, $value := $stored }}
{{- if ne (toJson $value) (get $storage $name | toJson) }}{{ fail (printf "timekeeper.storage.%s: the StatefulSet bursar-timekeeper has %s, which no upgrade can change to %s. Nothing was changed. Delete it first, without its pod: docs/databases.md#a-larger-volume" $name (toJson $value) (get $storage $name | toJson)) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A size as a number. */}}
{{- define "bursar.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mulf (regexFind "^[0-9.]+" .) (get $units (regexFind "[A-Za-z]*$" .)) | printf "%.0f" }}
{{- end }}
