{{/* The DaemonSets whose next pods the policies refuse for a path of the host or `hostPID`, as an install or an upgrade finds
them: a line for each. The paths are those of timekeeper/core/admission/rules/denylist.py, and a test compares them. Without
a cluster, as for `helm template`, `lookup` finds nothing. */}}
{{- define "bursar.refusedNext" }}
{{- $of_cards := "^/(proc|dev/(accel|char|dri|dxg|kfd|nvmap)|etc/(cdi|kubernetes|nvidia-container-runtime)|usr/local/nvidia|tmp/nvidia-mps|(var/)?run/(cdi|containerd|cri-dockerd\\.sock|crio|docker\\.sock|dockershim\\.sock|k3s|nri|podman)|var/lib/(k0s|kubelet/(device-plugins|plugins_registry|pod-resources)|rancher/(k3s|rke2)/agent)|var/snap/microk8s)(/|$)|^/(dev/nv(host|idia)|(var/)?run/nvidia)" }}
{{- $above := "^/(dev|etc|run|usr|usr/local|var|var/run|var/lib|var/lib/kubelet|var/lib/rancher|var/lib/rancher/(k3s|rke2)|var/snap)?$" }}
{{- $guarded := include "bursar.guarded" . | splitList "\n" | compact }}
{{- $exempt := include "bursar.exempt" . | replace "\"" "" | splitList ", " }}
{{- range (lookup "v1" "Namespace" "" "").items }}
  {{- if eq (dig "labels" "bursar.dev/exempt" "" .metadata) "true" }}{{ $exempt = append $exempt .metadata.name }}{{ end }}
{{- end }}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items }}
  {{- $spec := .spec.template.spec }}
  {{- $why := ternary "hostPID" "" (default false $spec.hostPID) }}
  {{- range $spec.volumes }}
    {{- $path := clean (dig "hostPath" "path" "" .) }}
    {{- if or (regexMatch $of_cards $path) (regexMatch $above $path) }}{{ $why = printf "hostPath %s" $path }}{{ end }}
    {{- range $guarded }}
      {{- if or (hasPrefix (printf "%s/" .) (printf "%s/" $path)) (hasPrefix (printf "%s/" $path) (printf "%s/" .)) }}{{ $why = printf "hostPath %s" $path }}{{ end }}
    {{- end }}
  {{- end }}
  {{- if and $why (not (has .metadata.namespace $exempt)) }}
  {{ .metadata.namespace }}/{{ .metadata.name }} ({{ $why }})
  {{- end }}
{{- end }}
{{- end }}
