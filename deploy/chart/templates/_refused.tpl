{{/* The DaemonSets whose next pods the policies refuse for a path of the host or `hostPID`, as an install or an upgrade finds
them: a line for each. The paths are those of timekeeper/core/admission/rules/denylist.py, and a test compares them. Without
a cluster, as for `helm template`, `lookup` finds nothing. */}}
{{- define "bursar.refusedNext" }}
{{- $of_cards := "^/(dev/(accel|char|dri|dxg|kfd|nvgpu|nvmap)|etc/(cdi|containerd|containers/oci|crio|docker|gpu-manager|kubernetes|nri|nvidia-container-runtime|rancher|vgpu-manager)|opt/nri|proc|system/run|usr/(local/(nvidia|vgpu)|share/containers/oci)|var/(lib/(k0s|kubelet/(config\\.yaml|device-plugins|dra_manager_state|kubeconfig|pki|plugins|plugins_registry|pod-resources)|rancher/(k3s/(agent|server)|rke2/(agent|server)))|snap/microk8s)|tmp/nvidia-mps|(var/)?run/(cdi|containerd|containers/oci|cri-dockerd\\.sock|crio|docker|docker\\.sock|dockershim\\.sock|host-containerd|isulad\\.sock|k0s|k3s|koord-runtimeproxy|nri|podman))(/|$)|^/(dev/(elastic-gpu|nv(host|idia))|(var/)?run/nvidia)" }}
{{- $above := "^/(dev|etc|etc/containers|opt|run|run/containers|system|usr|usr/local|usr/share|usr/share/containers|var|var/lib|var/lib/kubelet|var/lib/rancher|var/lib/rancher/k3s|var/lib/rancher/rke2|var/run|var/run/containers|var/snap)?$" }}
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
