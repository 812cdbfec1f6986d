"""The parts of the admission manifests that follow from the code: CEL expressions. Tests compare the
manifests with them.
"""

from collections.abc import Iterable
from textwrap import indent

from timekeeper.core import accelerators, names
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.rules.device_annotations import DEVICE_DOMAINS, DEVICE_STEMS
from timekeeper.core.admission.rules.forged import (
    LABEL_MARKS,
    MARKS,
    OURS,
    OWNED,
    OWNED_LABELS,
    PLACED,
    PLACED_LABELS,
    STEM_ENDS,
)
from timekeeper.core.admission.rules.size import MAX_ENTRIES, MAX_LETTERS, MAX_MEMBERS, MAX_MOUNT_LETTERS
from timekeeper.core.dialects import DIALECTS, GPU_RESOURCE
from timekeeper.core.dialects.others import kai
from timekeeper.core.kube.static_pods import KUBELET, KUBELETS
from timekeeper.core.object_names import MIRROR
from timekeeper.core.request.claims import EXPLICIT

EXEMPT = f"{names.DOMAIN}/exempt"  # on a namespace; a policy restricts who may set it


def small() -> str:
    """True for the pods whose lists, maps and names are short enough to be searched. Every expression that
    searches a pod asks for this first, because users choose the lengths and the API server pays for the
    search. The policy `bursar-sizes` refuses all other pods."""
    return f"""\
[dyn(object.metadata).?annotations, dyn(object.metadata).?labels, dyn(object.spec).?volumes, dyn(object.spec).?schedulingGates,
 dyn(object.spec).?containers, dyn(object.spec).?initContainers, dyn(object.spec).?ephemeralContainers]
  .all(each, size(each.orValue([])) <= {MAX_ENTRIES})
&& (dyn(object.spec).?containers.orValue([]) + dyn(object.spec).?initContainers.orValue([]) + dyn(object.spec).?ephemeralContainers.orValue([]))
  .map(c, size(c.?env.orValue([])) + size(c.?volumeMounts.orValue([]))
    + size(c.?resources.?limits.orValue({{}})) + size(c.?resources.?requests.orValue({{}}))).sum() <= {MAX_MEMBERS}
&& (dyn(object.metadata).?annotations.orValue({{}}).map(k, size(k) + 10) + dyn(object.metadata).?labels.orValue({{}}).map(k, size(k) + 10)
  + dyn(object.spec).?schedulingGates.orValue([]).map(g, size(g.?name.orValue('')) + 10)
  + dyn(object.spec).?volumes.orValue([]).filter(v, has(v.hostPath)).map(v, size(v.hostPath.?path.orValue('')) + 30)
  + (dyn(object.spec).?containers.orValue([]) + dyn(object.spec).?initContainers.orValue([]) + dyn(object.spec).?ephemeralContainers.orValue([]))
    .map(c, c.?resources.?limits.orValue({{}}).map(k, size(k) + 10).sum() + c.?resources.?requests.orValue({{}}).map(k, size(k) + 10).sum()))
  .sum() <= {MAX_LETTERS}
&& (dyn(object.spec).?containers.orValue([]) + dyn(object.spec).?initContainers.orValue([]) + dyn(object.spec).?ephemeralContainers.orValue([]))
  .map(c, c.?volumeMounts.orValue([]).map(m, size(m.?mountPath.orValue(''))).sum()).sum() <= {MAX_MOUNT_LETTERS}
"""  # noqa: E501


def gpu_pods() -> str:
    """True for the pods that the webhooks review: those that request a GPU in any dialect or another
    accelerator, or have claims of devices, an annotation, label or gate of ours or of a node plugin, have an
    annotation from which a container runtime reads devices, or set NVIDIA_VISIBLE_DEVICES to another value
    than `void`, which deploy/samples/void-for-everyone.yaml writes into all; and those that are not `small`.

    Our own label comes first, because evaluation ends there on all calls but the first."""
    return f"""\
object != null && has(object.spec) && (
  (has(object.metadata.labels) && '{names.GOVERNED}' in object.metadata.labels)
  || has(object.spec.resourceClaims)
  || !(
{indent(small(), "    ")}  )
  || (
    (has(object.spec.containers) ? object.spec.containers : [])
    + (has(object.spec.initContainers) ? object.spec.initContainers : [])
    + (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])
  ).exists(c,
    (has(c.resources) && (
      (has(c.resources.limits) && c.resources.limits.exists(k, {asks_for_devices()}))
      || (has(c.resources.requests) && c.resources.requests.exists(k, {asks_for_devices()}))
    ))
    || (has(c.env) && c.env.exists(e, e.name == '{VISIBLE_DEVICES}' && !(has(e.value) && e.value == 'void')))
  )
  || (has(object.metadata.annotations)
    && object.metadata.annotations.exists(k, k.matches(r'{reviewed_annotations()}')
      || {device_annotations()}))
  || (has(object.metadata.labels) && object.metadata.labels.exists(k, k.matches(r'{reviewed_labels()}')))
  || (has(object.spec.schedulingGates)
    && object.spec.schedulingGates.exists(g, g.name.matches(r'{written_labels()}')))
)
"""


def not_a_mirror() -> str:
    """False for the mirror that a kubelet makes of a static pod of its own (`static_pods.is_own_mirror`)."""
    return f"""\
!('{KUBELETS}' in request.userInfo.?groups.orValue([])
  && request.userInfo.username == '{KUBELET}' + object.spec.?nodeName.orValue('')
  && '{MIRROR}' in object.metadata.?annotations.orValue({{}}))
"""


def asks_for_devices() -> str:
    """The CEL condition on ``k``, the name of a resource, that it is one of GPUs in any dialect, names
    a DeviceClass, or is of accelerators that no dialect reads. Their long expression is compared with names
    of their domains only, because the API server pays by its length."""
    domains = _quoted(accelerators.DOMAINS)
    return (
        f"k.matches(r'{GPU_RESOURCE}')"
        f" || k.startsWith('{EXPLICIT}')"
        f" || (k.split('/')[0] in {domains} && k.matches(r'{accelerators.RESOURCE}'))"
    )


def zero_counts() -> str:
    """For each dialect whose number of cards may be zero, which makes what stands beside it ask for nothing:
    the resources that count them, and what the names of its resources begin with."""
    return _list(
        _list((_quoted(each.counts), _quoted((each.prefix,) if each.prefix else each.resources)))
        for each in DIALECTS
        if each.counts and (each.resources or each.prefix)
    )


def others_fields() -> str:
    """What only certain accounts write on pods that another system's scheduler places, for the policy
    `bursar-placed-by-others`: for each system the accounts, names of annotations and labels, and prefixes of
    labels; and the requests of the pods of its schedulers, which must not change."""
    found = [each for each in DIALECTS if each.placed_by_others]
    systems = [
        _system(each.name, each.accounts, (), each.placement_annotations, each.placement_labels)
        for each in found
    ]
    settled = [
        _system("", (), each.schedulers, (*each.annotations, *each.settled_annotations), each.labels)
        for each in found
        if each.annotations or each.settled_annotations or each.labels
    ]
    return _lines([*systems, *settled])


def is_of_kais_webhook() -> str:
    """The CEL condition on ``k``, the name of a pod's annotation: `kai.is_of_its_webhook`."""
    own = "object.metadata.annotations"
    return (
        f"object.spec.?schedulerName.orValue('') in {_quoted(kai.DIALECT.schedulers)}"
        f" && k.startsWith('{kai.FOR_RUNTIME}') && k.endsWith('{kai.REQUEST}')"
        f" && {own}[?'{kai.MEMORY}'].orValue('').matches(r'^[0-9]{{1,18}}$')"
        f" && isQuantity({own}[k])"
        f" && quantity({own}[k]).compareTo(quantity({own}['{kai.MEMORY}'] + 'Mi')) == 0"
    )


def for_runtime() -> str:
    """For each other system that writes annotations for a plugin of the container runtime, for the policy
    `bursar-written-once`: the accounts that do, the schedulers of its pods, and what the names begin with."""
    return _lines(
        f"{{'accounts': {_quoted(each.accounts)}, 'schedulers': {_quoted(each.schedulers)}, "
        f"'prefixes': {_quoted(each.for_runtime)}}}"
        for each in DIALECTS
        if each.for_runtime
    )


def _system(
    name: str,
    accounts: Iterable[str],
    schedulers: Iterable[str],
    annotations: Iterable[str],
    labels: Iterable[str],
) -> str:
    them = tuple(labels)
    lists = {
        "accounts": accounts,
        "schedulers": schedulers,
        "annotations": annotations,
        "labels": [each for each in them if each[-1] not in STEM_ENDS],
        "prefixes": [each for each in them if each[-1] in STEM_ENDS],
    }
    texts = {key: _quoted(words) for key, words in lists.items()}
    members = ", ".join(f"'{key}': dyn({text})" for key, text in texts.items())
    return f"{{'name': dyn('{name}'), {members}}}"


def has_request_of_others() -> str:
    """True for a pod whose request is in annotations that another system's scheduler reads. Of a quantity
    above zero some digit is; a number of cards that is absent is one."""
    conditions = []
    for dialect in DIALECTS:
        if dialect.placed_by_others and dialect.annotations:
            names_some = " || ".join(
                f"object.metadata.?annotations[?'{name}'].orValue('').matches('[1-9]')"
                for name in dialect.annotations
            )
            counts_some = "".join(
                f" && object.metadata.?annotations[?'{name}'].orValue('1').matches('[1-9]')"
                for name in dialect.counts
            )
            conditions.append(
                f"(object.spec.?schedulerName.orValue('') in {_quoted(dialect.schedulers)}\n"
                f"  && ({names_some}){counts_some})"
            )
    return "\n|| ".join(conditions)


def locks() -> str:
    """The annotations by which nodes are locked for their node plugins."""
    return _list(f"'{lock}'" for lock in dict.fromkeys(each.node_lock for each in DIALECTS) if lock)


def _list(words: Iterable[str]) -> str:
    return f"[{', '.join(words)}]"


def _quoted(words: Iterable[str]) -> str:
    return _list(f"'{word}'" for word in words)


def _lines(members: Iterable[str]) -> str:
    """A list with a line for each member."""
    return "[" + ",\n ".join(members) + "]"


def written_annotations() -> str:
    """The regular expression of the annotations that Bursar or a node plugin writes on a pod, and of those in
    which users write requests."""
    return _either([*OURS, *OWNED, *MARKS])


def reviewed_annotations() -> str:
    """The regular expression of `written_annotations`, and of those in which users write requests for pods
    that another system's scheduler places, and in which that system writes the placement."""
    theirs = (name for each in DIALECTS if each.placed_by_others for name in each.annotations)
    return _either([*OURS, *OWNED, *MARKS, *theirs, *PLACED])


def reviewed_labels() -> str:
    """The regular expression of `written_labels`, and of the labels in which another system's scheduler
    writes the placement."""
    return _either([*OURS, *OWNED_LABELS, *LABEL_MARKS, *PLACED_LABELS])


def written_labels() -> str:
    """The regular expression of the labels and gates that Bursar writes on a pod, and of the labels in which
    users write requests."""
    return _either([*OURS, *OWNED_LABELS, *LABEL_MARKS])


def immutable_annotations() -> str:
    """The CEL condition on ``k``, the name of an annotation, that it must not change on an existing pod.
    `plugin_annotations` are exceptions. Annotations that name devices must not change: kubelets and plugins
    pass theirs to the container runtime, not to pods."""
    devices = [f"{domain}{end}" for domain in DEVICE_DOMAINS for end in ("", "/")]
    return _begins("k", [*OURS, *OWNED, *MARKS, *devices, *DEVICE_STEMS])


def device_annotations() -> str:
    """The CEL condition on ``k``, the name of an annotation, that a container runtime or its plugin reads
    devices or limits from it."""
    stems = "".join(f" || k.startsWith('{stem}')" for stem in DEVICE_STEMS)
    return f"(k.split('/')[0] in {_quoted(DEVICE_DOMAINS)}{stems})"


def plugin_annotations() -> str:
    """For each dialect whose node plugin changes annotations of bound pods, a list of their names: first the
    one that it turns from ``false`` to ``true``, then those that it may change in the same update, or what
    their names begin with, with - at its end."""
    lists = dict.fromkeys(dialect.plugin_writes for dialect in DIALECTS if dialect.plugin_writes)
    return _list(_list(f"'{name}'" for name in names) for names in lists)


def erased_annotations() -> str:
    """For each dialect whose node plugin erases from a bound pod what it has handed out, a list of names:
    first its phase, then the annotation of which it erases, then others that it changes meanwhile."""
    found = [each.plugin_erases for each in DIALECTS if each.plugin_erases]
    return _list(_list(f"'{name}'" for name in names) for names in found)


def immutable_labels(name: str = "k") -> str:
    """The CEL condition on ``name`` that this label must not change, or that only the timekeeper may remove
    this gate."""
    return _begins(name, [*OURS, *OWNED_LABELS, *LABEL_MARKS])


def _begins(name: str, words: Iterable[str]) -> str:
    """As `_either`, but without a regular expression: its cost grows with the name's length, and a removal
    from a pod with thousands of long labels would exceed the API server's limit."""
    conditions = [
        f"{name}.startsWith('{word}')" if word[-1] in STEM_ENDS else f"{name} == '{word}'" for word in words
    ]
    return f"({' || '.join(conditions)})"


def _either(words: Iterable[str]) -> str:
    """Matches these names; a word that ends in -, / or _ matches all names that begin with it."""
    patterns = [word.replace(".", r"\.") + ("" if word[-1] in STEM_ENDS else "$") for word in words]
    return f"^({'|'.join(patterns)})"
