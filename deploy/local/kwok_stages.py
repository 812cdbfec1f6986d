"""The Stages with which kwok simulates the kubelet. A Stage changes objects of one state into another.

Annotations of a pod control its simulation (a value of another form is ignored):

- `local.bursar.dev/run-for: 5s` (or `m`, `h`; whole numbers): its containers end this long after their start.
If the restart policy requires it, they start again at once, as after a crash. - `local.bursar.dev/exit-code:
"1"` (0 to 255): their exit code then; 0 by default.

Every patch is a strategic merge patch of the status: conditions merge by type, so PodScheduled and conditions
of other writers stay, while lists of container statuses are replaced as a whole. The API server cuts times to
whole seconds.
"""

from textwrap import indent
from typing import Any

RUN_FOR = "local.bursar.dev/run-for"
EXIT_CODE = "local.bursar.dev/exit-code"
# kwok manages nodes with this annotation; a real kubelet's nodes can exist beside them.
FAKE_NODE = "local.bursar.dev/node=fake"
SIDECAR = "bursar-sidecar"
# annotations of HAMi and Volcano, with what their plugins change when they hand out a pod's devices
UNSERVED = {f"{domain}/bind-phase": "allocating" for domain in ("hami.io", "volcano.sh")}
UNSERVED["volcano.sh/gpu-assigned"] = "false"

_ONE_TO_255 = "[1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5]"

# Queries in jq's language.
_HAS_RUN_FOR = f'.metadata.annotations["{RUN_FOR}"] // "" | test("^[0-9]{{1,6}}[smh]$")'
_IS_RESTARTED = (
    '.spec.restartPolicy == "Always" or (.spec.restartPolicy == "OnFailure" and '
    f'(.metadata.annotations["{EXIT_CODE}"] // "0" | test("^({_ONE_TO_255})$")))'
)
# A point in time, not a duration: kwok computes the delay again after any change of the pod.
_TIME_OF_END = (
    f'(.metadata.annotations["{RUN_FOR}"] | (.[:-1] | tonumber) * {{"s": 1, "m": 60, "h": 3600}}[.[-1:]])'
    " as $span | ([.status.containerStatuses[].state.running.startedAt] | max | fromdateiso8601) + $span"
    " | todateiso8601"
)
_NODE_IS_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'

# Go templates that produce YAML. JSON is YAML too, and needs no indentation.
_START = """
{{ $now := Now }}
{{ $host := NodeIPWith .spec.nodeName }}
{{ $meta := .metadata }}
{{ $pod := PodIPWith .spec.nodeName (or .spec.hostNetwork false) $meta.uid $meta.name $meta.namespace }}
{{ $running := dict "running" (dict "startedAt" $now) }}
{{ $through := dict "terminated" (dict
     "exitCode" 0 "reason" "Completed" "startedAt" $now "finishedAt" $now) }}
phase: Running
startTime: {{ $now | Quote }}
hostIP: {{ $host }}
hostIPs: [{ip: {{ $host }}}]
podIP: {{ $pod }}
podIPs: [{ip: {{ $pod }}}]
conditions:
{{ range list "PodReadyToStartContainers" "Initialized" "ContainersReady" "Ready" }}
- {type: {{ . }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- {{ dict "name" .name "image" .image "imageID" .image "containerID" (printf "kwok://%s" uuidv4)
          "restartCount" 0 "ready" true "started" true "state" $running | toJson }}
{{ end }}
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
{{ $stays := eq (or .restartPolicy "") "Always" }}
- {{ dict "name" .name "image" .image "imageID" .image "containerID" (printf "kwok://%s" uuidv4)
          "restartCount" 0 "ready" true "started" $stays
          "state" (ternary $running $through $stays) | toJson }}
{{ end }}
{{ end }}
"""

_CODE_SAID = f"""
{{{{ $now := Now }}}}
{{{{ $said := index (or .metadata.annotations dict) "{EXIT_CODE}" | default "0" }}}}
{{{{ $code := ternary (atoi $said) 0 (regexMatch "^(0|{_ONE_TO_255})$" $said) }}}}
"""

# The exit code after SIGTERM.
_CODE_KILLED = """
{{ $now := Now }}
{{ $code := 143 }}
"""

# A pod that has ended, successfully or not.
_IS_OVER = """
phase: {{ ternary "Succeeded" "Failed" $good }}
conditions:
{{ range list "ContainersReady" "Ready" }}
- type: {{ . }}
  status: "False"
  reason: {{ ternary "PodCompleted" "PodFailed" $good }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
"""

# Running containers become terminated and keep their start time; a native sidecar ends with 0; ended
# containers stay as they are.
_END = (
    "{{ $good := eq $code 0 }}"
    + _IS_OVER
    + """
containerStatuses:
{{ range .status.containerStatuses }}
{{ if .state.running }}
{{ $end := dict "exitCode" $code "reason" (ternary "Completed" "Error" $good) "finishedAt" $now }}
{{ $_ := set . "state" (dict "terminated" (set $end "startedAt" .state.running.startedAt)) }}
{{ end }}
- {{ set (set . "ready" false) "started" false | toJson }}
{{ end }}
{{ with .status.initContainerStatuses }}
initContainerStatuses:
{{ range . }}
{{ if .state.running }}
{{ $end := dict "exitCode" 0 "reason" "Completed" "finishedAt" $now }}
{{ $_ := set . "state" (dict "terminated" (set $end "startedAt" .state.running.startedAt)) }}
{{ $_ := set . "ready" false }}
{{ end }}
- {{ set . "started" false | toJson }}
{{ end }}
{{ end }}
"""
)

# A deleted pod that never started: the kubelet, too, ends it before it removes the object.
_NEVER_BEGAN = """
phase: Failed
containerStatuses:
{{ range .spec.containers }}
{{ $end := dict "exitCode" 137 "reason" "ContainerStatusUnknown" }}
- {{ dict "name" .name "image" .image "imageID" "" "restartCount" 0 "ready" false "started" false
          "state" (dict "terminated" $end) | toJson }}
{{ end }}
"""

_RESTART = """
containerStatuses:
{{ range .status.containerStatuses }}
{{ $reason := ternary "Completed" "Error" (eq $code 0) }}
{{ $end := dict "exitCode" $code "reason" $reason "finishedAt" $now }}
{{ $_ := set . "lastState" (dict "terminated" (set $end "startedAt" .state.running.startedAt)) }}
{{ $_ := set . "restartCount" (add .restartCount 1) }}
{{ $_ := set . "state" (dict "running" (dict "startedAt" $now)) }}
- {{ toJson . }}
{{ end }}
"""

_NODE_BEATS = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type }}
  status: {{ .status | Quote }}
  reason: {{ .reason }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
{{ end }}
"""
_NODE_BECOMES_READY = _NODE_BEATS.replace("  last", "  lastTransitionTime: {{ $now | Quote }}\n  last")


def stages() -> list[dict[str, Any]]:
    """All Stage objects, for kwok's configuration."""
    return [*_pod_stages(), *_node_stages()]


def _pod_stages() -> list[dict[str, Any]]:
    alive = _when(".metadata.deletionTimestamp", "DoesNotExist")
    dying = _when(".metadata.deletionTimestamp", "Exists")
    # A kubelet starts no container before the node's plugin has handed out its devices.
    served = [_when(f'.metadata.annotations["{name}"]', "NotIn", word) for name, word in UNSERVED.items()]
    running = _when(".status.phase", "In", "Running")
    pending = _when(".status.phase", "In", "Pending")
    ended = _when(".status.phase", "In", "Succeeded", "Failed")
    not_begun = _when(".status.startTime", "DoesNotExist")
    # The removal itself changes the pod; if it ran twice, it could remove a new pod of the same name.
    not_removed = _when(".metadata.deletionGracePeriodSeconds == 0", "In", "false")
    by_itself = [alive, running, _when(_HAS_RUN_FOR, "In", "true")]
    for_good = [*by_itself, _when(_IS_RESTARTED, "In", "false")]
    again = [*by_itself, _when(_IS_RESTARTED, "In", "true")]
    then = {"durationFrom": {"expressionFrom": _TIME_OF_END}}
    return [
        _stage("pod-start", "Pod", [alive, not_begun, *served], _status(_START)),
        _stage("pod-end", "Pod", for_good, _status(_CODE_SAID + _END), then),
        _stage("pod-restart", "Pod", again, _status(_CODE_SAID + _RESTART), then),
        # A deleted pod ends first, whether it runs or never started; then it is removed.
        _stage("pod-kill", "Pod", [dying, running], _status(_CODE_KILLED + _END)),
        _stage("pod-cancel", "Pod", [dying, pending], _status(_NEVER_BEGAN)),
        _stage("pod-remove", "Pod", [dying, ended, not_removed], {"delete": True}),
    ]


def _node_stages() -> list[dict[str, Any]]:
    unready = _when(_NODE_IS_READY, "NotIn", "True")
    ready = _when(_NODE_IS_READY, "In", "True")
    # As often as a kubelet repeats an unchanged status. The node's Lease shows that it is alive.
    each_five_minutes = {"durationMilliseconds": 300_000}
    return [
        _stage("node-ready", "Node", [unready], _status(_NODE_BECOMES_READY)),
        _stage("node-heartbeat", "Node", [ready], _status(_NODE_BEATS), each_five_minutes),
    ]


def _when(query: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": query, "operator": operator, **({"values": list(values)} if values else {})}


def _status(template: str) -> dict[str, Any]:
    """A patch of the status of the object that kwok saw: like the kubelet's it carries the UID, and the API
    server refuses it for another object that has the same name by now."""
    whole = f"metadata: {{uid: {{{{ .metadata.uid }}}}}}\nstatus:\n{indent(template, '  ')}"
    return {"patches": [{"subresource": "status", "type": "strategic", "template": whole}]}


def _stage(
    name: str,
    kind: str,
    when: list[dict[str, Any]],
    then: dict[str, Any],
    delay: dict[str, Any] | None = None,
) -> dict[str, Any]:
    spec = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": when},
        "next": then,
        **({"delay": delay} if delay else {}),
    }
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}
