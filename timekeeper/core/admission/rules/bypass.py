"""What the policies inside the API server refuse beside the rules, for checks of pods without an API server.

`docs/bypass.md` gives the reasons; a table of test cases compares the policies with this module.
"""

from collections.abc import Iterator

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.pods import added_ephemeral, sequence_of, variables_of
from timekeeper.core.admission.rules.denylist import CUDA_VERSION, RUNTIME_CLASSES
from timekeeper.core.admission.rules.isolation import isolation_violations, node_paths
from timekeeper.core.dialects import GPU_RESOURCE_PATTERN
from timekeeper.core.dialects.others import claims
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.request.device_classes import NO_CLASSES, ClassParameters
from timekeeper.core.request.devices import DIALECT as DEVICE
from timekeeper.core.request.request import ParsedRequest, containers
from timekeeper.core.violation import Violation, shown

_AS_WITH_A_REQUEST = ("device-annotation", "device-mount", "host-path", "host-pid")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_A_REQUEST = f'{names.GPU_PERCENT}: "50"'


def bypass_violations(
    pod: Json, parsed: ParsedRequest, classes: ClassParameters = NO_CLASSES
) -> tuple[Violation, ...]:
    """How the pod reaches a GPU without requesting one. For a pod with a request, valid or not, overhead,
    anti-affinity and device classes only: the rules cover the rest. ``classes``: the cluster's device
    classes."""
    always = (*_overhead(pod["spec"]), *_anti_affinity(pod), *_device_classes(pod, classes))
    if _leaves_to_webhook(parsed):
        return always
    return (*_reaching(pod), *_runtime_class(pod["spec"]), *always)


def suspect_violations(pod: Json, parsed: ParsedRequest) -> tuple[Violation, ...]:
    """What policy `bursar-node-access` finds, whose binding only warns by default: nothing for a pod with a
    request, valid or not, because the rules cover it."""
    if _leaves_to_webhook(parsed):
        return ()
    return (*node_paths(pod["spec"]), *_old_images(pod))


def _leaves_to_webhook(parsed: ParsedRequest) -> bool:
    """Whether the policies on ways around leave the pod to the webhook: not where it requests accelerators
    that no dialect reads, for `_settings` may pass them, nor claims."""
    is_of_cards = parsed.request is not None and parsed.request.dialect not in (DEVICE, claims.NAME)
    return bool(parsed.violations) or is_of_cards


def _old_images(pod: Json) -> Iterator[Violation]:
    listed = [(each.path, each.raw) for each in containers(pod)]
    listed += [
        (f"spec.ephemeralContainers[{index}]", container) for index, container in added_ephemeral(pod, {})
    ]
    for path, container in listed:
        given = variables_of(container)
        if CUDA_VERSION in given and VISIBLE_DEVICES not in given:
            yield Violation(
                "cuda-version",
                f"{path}.env[{CUDA_VERSION}]",
                "",
                f"without {VISIBLE_DEVICES} beside it, NVIDIA's runtime makes every GPU visible",
                f"leaving it out, or {VISIBLE_DEVICES} beside it",
                f'{VISIBLE_DEVICES}: "void"',
            )


def _reaching(pod: Json) -> Iterator[Violation]:
    """The rules for a pod with a request; a privileged container counts only beside a host path of
    devices."""
    opens_devices = any(map(_is_of_devices, sequence_of(pod["spec"].get("volumes"))))
    for violation in isolation_violations(pod, None):
        if violation.rule in _AS_WITH_A_REQUEST or (opens_devices and violation.rule == "privileged"):
            yield violation


def _is_of_devices(volume: Json) -> bool:
    path = mapping(volume.get("hostPath")).get("path")
    steps = [step for step in path.split("/") if step not in ("", ".")] if isinstance(path, str) else ["none"]
    return not steps or steps[0] == "dev"


def _runtime_class(spec: Json) -> Iterator[Violation]:
    if spec.get("runtimeClassName") in RUNTIME_CLASSES:
        yield Violation(
            "runtime-class",
            "spec.runtimeClassName",
            shown(spec["runtimeClassName"]),
            "under this runtime class the NVIDIA_VISIBLE_DEVICES of an image makes cards visible",
            "leaving it out, or a GPU request in resources.limits",
            _A_REQUEST,
        )


def _overhead(spec: Json) -> Iterator[Violation]:
    for name, amount in mapping(spec.get("overhead")).items():
        if integral(amount) == 0:
            continue
        if GPU_RESOURCE_PATTERN.match(name) or accelerator_of(name) is not None:
            yield Violation(
                "overhead",
                f"spec.overhead[{name}]",
                "",
                "the overhead of the pod's RuntimeClass takes GPUs that no container gets",
                "a RuntimeClass without GPU resources in overhead.podFixed",
                "overhead: {podFixed: {memory: 120Mi}}",
            )


def _anti_affinity(pod: Json) -> Iterator[Violation]:
    """Required terms about pods of other namespaces, which kube-scheduler keeps off the nodes of this pod. In
    a manifest without a namespace a single name counts as that of its own."""
    affinity = mapping(mapping(pod["spec"].get("affinity")).get("podAntiAffinity"))
    own = mapping(pod.get("metadata")).get("namespace")

    def is_of_others(term: Json) -> bool:
        named = term.get("namespaces") or ()
        return term.get("namespaceSelector") is not None or list(named) != [own or each for each in named[:1]]

    if any(map(is_of_others, sequence_of(affinity.get(_REQUIRED)))):
        yield Violation(
            "anti-affinity",
            f"spec.affinity.podAntiAffinity.{_REQUIRED}",
            "",
            "it keeps pods of other namespaces off the nodes of this pod",
            "terms about pods of the own namespace, without namespaceSelector, at most 1000",
            "a term of preferredDuringSchedulingIgnoredDuringExecution",
        )


def _device_classes(pod: Json, classes: ClassParameters) -> Iterator[Violation]:
    for container in containers(pod):
        for name in mapping(mapping(container.raw.get("resources")).get("limits")):
            if name in classes.refused:
                yield Violation(
                    "device-claim",
                    f"{container.path}.resources.limits[{name}]",
                    "",
                    "a device class that is, or may be, of GPUs serves it, and Bursar sees no such pods",
                    "a claim on the class, or a limit deviceclass.resource.kubernetes.io/CLASS",
                    _A_REQUEST,
                )
