"""What a GPU pod may not hold at admission. Pure: a pod and the terms in, every violation out.

The request itself is the core's to judge; here stands what only an admission can: names that belong to
Bursar, ways past the scheduler, and limits that the operator has set.
"""

from collections.abc import Iterator

from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.request import Json, Parsed, annotations_of, mapping, parse
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown
from webhook import govern, injected, visible
from webhook.review import CONTAINER_LISTS, sequence_of
from webhook.terms import WORDS, Terms

OURS = (f"{names.DOMAIN}/", names.VISIBLE)
OWNED = tuple(owned for dialect in DIALECTS for owned in dialect.owned)


def violations(pod: Json, terms: Terms) -> tuple[Violation, ...]:
    """Everything wrong with the pod, in the order of its fields; empty for a pod that may pass.

    Of a pod that asks for no GPU only what would let it reach one, or pass for a governed one, is judged.
    """
    return judged(pod, parse(pod), terms)


def judged(pod: Json, parsed: Parsed, terms: Terms) -> tuple[Violation, ...]:
    """`violations`, for who has parsed the pod already."""
    found = (*parsed.violations, *_forged(pod, parsed.request))
    if parsed.request is None and not parsed.violations:
        return (*found, *_sees_cards_without_asking(pod))
    return (*found, *_placed_by_hand(pod), *_named_as_ours(pod), *_grace_period(pod, terms))


def ephemeral_violations(pod: Json, old: Json) -> tuple[Violation, ...]:
    """Of the ephemeral containers that an update adds: those that would show themselves a card. What was
    there before passes."""
    before = {each["name"] for each in sequence_of(old["spec"].get("ephemeralContainers"))} if old else set()
    return tuple(
        Violation(
            "ephemeral-sees-cards",
            f"spec.ephemeralContainers[{index}].env[{visible.VISIBLE_DEVICES}]",
            _got(variable),
            "an ephemeral container holds no cards, and none is charged for it",
            "void, or leaving it out",
            f'{visible.VISIBLE_DEVICES}: "void"',
        )
        for index, container in enumerate(sequence_of(pod["spec"].get("ephemeralContainers")))
        if container["name"] not in before
        for variable in sequence_of(container.get("env"))
        if variable["name"] == visible.VISIBLE_DEVICES and visible.sees(variable)
    )


def is_owned(annotation: str) -> bool:
    """True for an annotation that a dialect's node plugin reads as the scheduler's word."""
    return any(annotation.startswith(owned) if owned[-1] in "-/" else annotation == owned for owned in OWNED)


def _forged(pod: Json, request: GPURequest | None) -> Iterator[Violation]:
    for name, value in annotations_of(pod).items():
        if _forged_annotation(name, value, request):
            yield _only_bursar_writes("forged-annotation", f"metadata.annotations[{name}]", value)
    for name, value in mapping(mapping(pod.get("metadata")).get("labels")).items():
        if name.startswith(OURS) and (request is None or govern.LABELS.get(name) != value):
            yield _only_bursar_writes("forged-label", f"metadata.labels[{name}]", value)
    for index, gate in enumerate(sequence_of(pod["spec"].get("schedulingGates"))):
        if gate["name"].startswith(OURS):
            yield _only_bursar_writes("forged-gate", f"spec.schedulingGates[{index}]", gate["name"])


def _forged_annotation(name: str, value: str, request: GPURequest | None) -> bool:
    if name in names.USER_ANNOTATIONS or not (name.startswith(OURS) or is_owned(name)):
        return False
    if request is None:
        return True
    if name == names.STANDING:
        return value not in WORDS  # govern writes it anew, whichever it is
    return govern.annotations(request, "UNKNOWN").get(name) != value


def _only_bursar_writes(rule: str, path: str, value: str) -> Violation:
    problem = "only Bursar and the nodes' plugins write this"
    return Violation(rule, path, shown(value), problem, "the pod without it", "removing it")


def _sees_cards_without_asking(pod: Json) -> Iterator[Violation]:
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(pod["spec"].get(field))):
            for place, variable in enumerate(sequence_of(container.get("env"))):
                if variable["name"] == visible.VISIBLE_DEVICES and visible.sees(variable):
                    yield Violation(
                        "sees-cards-without-asking",
                        f"spec.{field}[{index}].env[{place}]",
                        f"{visible.VISIBLE_DEVICES}={_got(variable)}",
                        "the pod asks for no GPU, so it may see none",
                        "void, or a GPU request in resources.limits",
                        f'{names.GPU_PERCENT}: "50"',
                    )


def _placed_by_hand(pod: Json) -> Iterator[Violation]:
    node = pod["spec"].get("nodeName")
    if node:
        yield Violation(
            "node-name",
            "spec.nodeName",
            shown(node),
            "a GPU pod that names its node passes by the scheduler that gives out cards",
            "spec.nodeSelector or affinity",
            "spec.nodeSelector: {kubernetes.io/hostname: node-a}",
        )


def _named_as_ours(pod: Json) -> Iterator[Violation]:
    spec = pod["spec"]
    seen = 0
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(spec.get(field))):
            if container["name"] != names.SIDECAR:
                continue
            seen += 1
            if seen > 1 or not injected.is_ours(container, native=field == "initContainers"):
                yield _reserved("sidecar-name", f"spec.{field}[{index}].name", names.SIDECAR, "container")
    ours = {each["name"]: each for each in injected.VOLUMES}
    for index, volume in enumerate(sequence_of(spec.get("volumes"))):
        wanted = ours.get(volume["name"])
        if wanted is not None and not injected.holds(volume, wanted):
            yield _reserved("sidecar-volume", f"spec.volumes[{index}].name", volume["name"], "volume")


def _reserved(rule: str, path: str, name: str, kind: str) -> Violation:
    return Violation(
        rule,
        path,
        shown(name),
        f"this name is kept for the {kind} that Bursar adds",
        "another name",
        f"name: my-{kind}",
    )


def _grace_period(pod: Json, terms: Terms) -> Iterator[Violation]:
    seconds = pod["spec"].get("terminationGracePeriodSeconds")
    if seconds is not None and seconds > terms.max_grace_s:
        yield Violation(
            "grace-period",
            "spec.terminationGracePeriodSeconds",
            shown(str(seconds)),
            "a GPU pod holds its cards for its whole grace period, and this is too long",
            f"at most {terms.max_grace_s} seconds",
            "terminationGracePeriodSeconds: 30",
        )


def _got(variable: visible.Variable) -> str:
    return shown(variable.get("value") or "a value from elsewhere")
