"""What each name of `names` means in an object of Kubernetes; its reference page is made from this."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Literal

from timekeeper.core import names
from timekeeper.core.json_values import Json, decoded, mapping, sequence

Writer = Literal["user", "administrator", "webhook", "Binding", "extender", "timekeeper", "node agent"]


@dataclass(frozen=True, slots=True)
class ObjectName:
    """``kind``: what it is in the object, such as ``annotation``. ``by``: what writes it."""

    kind: str
    by: Writer
    meaning: str


# Kubernetes' own words
TERMINAL = ("Succeeded", "Failed")  # phases
KEEPS_OFF = ("NoSchedule", "NoExecute")  # effects of taints
MIRROR = "kubernetes.io/config.mirror"  # annotation of a static pod, which runs whether admitted or not

_BY_CONTAINER = "annotation, a container's name follows"

OBJECT_NAMES: Mapping[str, ObjectName] = {
    names.GPU_PERCENT: ObjectName("resource", "user", "compute of one card, or whole cards"),
    names.GPU_MEMORY: ObjectName("resource", "user", "MiB of a card"),
    names.GPU_COUNT: ObjectName("resource", "user", "number of cards to which the two apply together"),
    names.POLICY: ObjectName("annotation", "user", "placement policy"),
    names.MODELS: ObjectName("annotation", "user", "only cards of these models"),
    names.EXCLUDE_MODELS: ObjectName("annotation", "user", "no cards of these models"),
    names.UUIDS: ObjectName("annotation", "user", "only these cards"),
    names.TOPOLOGY: ObjectName("annotation", "user", "how the cards are connected"),
    names.SAME_GPU: ObjectName("annotation", "user", "containers that share cards"),
    names.MIN_GPU_MEMORY: ObjectName("annotation", "user", "only cards with at least this memory"),
    names.GANG: ObjectName("annotation", "user", "the pods with this value start together"),
    names.GANG_SIZE: ObjectName("annotation", "user", "how many they are"),
    names.GANG_MINIMUM: ObjectName("annotation", "user", "how many of them start at least"),
    names.GANG_TOPOLOGY: ObjectName(
        "annotation", "user", "a label of nodes: all of them go to nodes with one value of it"
    ),
    names.GANG_TOPOLOGY_PREFERRED: ObjectName(
        "annotation", "user", "a label of nodes: they go to nodes with as few values of it as possible"
    ),
    names.GANG_LATE: ObjectName(
        "annotation", "user", "`true` on a pod without GPUs: it starts once the gang of its name has"
    ),
    names.IDLE: ObjectName(
        "annotation of a pod's owner", "user", "`scale`: while its pods are idle it may be scaled to zero"
    ),
    names.WANTS_SIDECAR: ObjectName(
        "annotation", "user", "`off`: no sidecar, unless the namespace's entry says `sidecar: on`"
    ),
    names.BUDGETS_LABEL: ObjectName("label of a ConfigMap", "administrator", "it has budget entries"),
    names.CORDONED_CARDS: ObjectName(
        "annotation of a node", "administrator", "UUIDs of cards that must not be given out"
    ),
    names.NODE_CHANGE: ObjectName(
        "annotation of a node", "administrator", "what the cordoned node becomes: `fractions` or `whole`"
    ),
    names.MODE_LABEL: ObjectName(
        "label of a namespace", "administrator", "its mode, unless its budget entry names one"
    ),
    names.COUNTED: ObjectName(
        "annotation of a pod's owner", "webhook", "it wrote the sizes in the templates, and keeps them right"
    ),
    names.GOVERNED: ObjectName("label", "webhook", "Bursar governs the pod"),
    names.REQUEST: ObjectName("annotation", "webhook", "its request in canonical form"),
    names.STANDING: ObjectName(
        "annotation",
        "webhook",
        "the standing of its namespace at its creation; the extender adds ` OVER_BUDGET` at the Binding if "
        "that was over budget by then, and new pods got the lower class",
    ),
    names.HELD: ObjectName(
        "annotation",
        "webhook",
        "why it was created with the scheduling gate; it stays when the gate is removed",
    ),
    names.DECLARED: ObjectName("annotation", "webhook", "seconds that the pod means to run"),
    names.CLAIMS: ObjectName(
        "annotation",
        "webhook",
        "how many GPUs its device claims may be allocated at most; `unknown`: not known at its creation. The"
        " timekeeper writes the number when it releases such a pod",
    ),
    names.ACCELERATORS: ObjectName(
        "annotation", "webhook", "its resources that `devices` in `_settings` makes accelerators"
    ),
    names.GPU_PLACEMENT: ObjectName(
        "resource",
        "webhook",
        "makes kube-scheduler call the extender for a request in annotations or labels",
    ),
    names.CARD_MILLIONTHS: ObjectName(
        "resource",
        "webhook",
        "memory that it takes, in millionths of a card, for who calls no extender",
    ),
    names.GANG_KEY: ObjectName("annotation", "webhook", "what tells its gang from others of the namespace"),
    names.GANG_STARTED: ObjectName(
        "annotation", "Binding", "when enough pods of its gang had a node; one of them has it at least"
    ),
    names.GANG_FORGIVEN: ObjectName(
        "annotation and finalizer",
        "extender",
        "nothing any more; the release before wrote both, and the timekeeper removes the finalizer",
    ),
    names.GANG_NEEDS: ObjectName(
        "annotation",
        "extender",
        "with how many living pods its gang starts: by its PodGroup, or by its Jobs where some are missing",
    ),
    names.DEVICES: ObjectName("annotation", "Binding", "the cards of each container"),
    names.VISIBLE: ObjectName(_BY_CONTAINER, "Binding", "the value of `NVIDIA_VISIBLE_DEVICES`"),
    names.MPS_MEMORY: ObjectName(_BY_CONTAINER, "Binding", "MPS's limit of memory"),
    names.MPS_THREADS: ObjectName(_BY_CONTAINER, "Binding", "MPS's limit of threads"),
    names.WAKE_CONDITION: ObjectName("condition", "extender", "kube-scheduler tries the pod again"),
    names.HELD_CONDITION: ObjectName("condition", "extender", "cards are held for the waiting pod"),
    names.LEADS_CONDITION: ObjectName(
        "condition of its own pod", "extender", "this replica takes over from others"
    ),
    names.EVICT_AFTER: ObjectName("annotation", "timekeeper", "the pod is not evicted before this time"),
    names.DELETE_AFTER: ObjectName(
        "annotation", "timekeeper", "its PodDisruptionBudget is respected until then"
    ),
    names.IDLE_UNTIL: ObjectName("annotation", "timekeeper", "it uses no card, and is left alone until then"),
    names.RECLAIMABLE: ObjectName(
        "annotation",
        "timekeeper",
        "`idle`: waiting pods of namespaces in budget may take its cards",
    ),
    names.HEIR_KEYS: ObjectName(
        "toleration of a ResourceClaim, its namespace follows",
        "webhook",
        "the claim's own: a device that is kept for it has a taint of this key and value",
    ),
    names.HEIR: ObjectName(
        "label and annotation of a DeviceTaintRule",
        "timekeeper",
        "the pod, by its UID, and its claim for which a reclaimed device is kept",
    ),
    names.HEIR_UNTIL: ObjectName(
        "annotation of a DeviceTaintRule", "timekeeper", "until when the device is kept at most"
    ),
    names.INVENTORY: ObjectName("annotation", "node agent", "the cards and their health"),
    names.HOLDERS: ObjectName("annotation", "node agent", "which pods use them, and why the node is closed"),
}
# apart from these, for an annotation may have the same name
GATE_NAMES: Mapping[str, ObjectName] = {
    names.BUDGET_GATE: ObjectName(
        "scheduling gate", "webhook", "it waits for its budget or its turn; the timekeeper removes it"
    ),
    names.GANG_GATE: ObjectName(
        "scheduling gate", "webhook", "its gang waits for cards; the extender removes it"
    ),
}


# the forms of every kind in Kubernetes, and of every name of a controller
KIND = "[A-Za-z][A-Za-z0-9]{0,62}"
NAME = r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"
OWNER = rf"{KIND}/{NAME}"
NAMESPACE = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
SUBJECT = rf"(_group\.)?{NAMESPACE}"  # whose budget it is: a namespace, or ``_group.NAME``

MAX_OWNERS = 4  # of an object, under which it is recorded: any user may name many
# written by vCluster's syncer (v0.35) on the pods of all virtual namespaces, which lie in one of ours
_VIRTUAL_NAMESPACE = "vcluster.loft.sh/object-namespace"
_VIRTUAL_OWNERS = "vcluster.loft.sh/owner-references"
_VIRTUAL_CLUSTER = "vcluster.loft.sh/managed-by"  # a label
_VIRTUAL = re.compile(r"[a-z0-9][-.a-z0-9]{0,126}", re.ASCII)

_OWNER = re.compile(OWNER, re.ASCII)
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def owner_of(metadata: Json) -> str:
    """The controller as ``Kind/name``; "" if there is none. A Deployment names its ReplicaSets after itself
    plus the hash in the pods' label: then the Deployment is the owner.

    The API server accepts any text in a reference, of any length, also a formula, a path, or a NUL, which
    PostgreSQL does not store. A reference that no object can have counts as none.
    """
    reference = controller_reference(metadata)
    if reference is None:
        return ""
    kind, name = str(reference.get("kind", "")), str(reference.get("name", ""))
    deployment = name.removesuffix(f"-{mapping(metadata.get('labels')).get('pod-template-hash')}")
    is_deployments = kind == "ReplicaSet" and deployment != name
    owner = f"Deployment/{deployment}" if is_deployments else f"{kind}/{name}"
    return owner if _OWNER.fullmatch(owner) else ""


def owners_of(metadata: Json) -> tuple[str, ...]:
    """The first owners that it names, each as `owner_of` has its controller."""
    references = map(mapping, sequence(metadata.get("ownerReferences"))[:MAX_OWNERS])
    alone = ({**metadata, "ownerReferences": [{**each, "controller": True}]} for each in references)
    return tuple(dict.fromkeys(filter(None, map(owner_of, alone))))


def controller_of(metadata: Json) -> tuple[str, ...]:
    """The controller's apiVersion, kind, name and UID; empty if there is none, or none that can exist."""
    reference = controller_reference(metadata)
    if reference is None:
        return ()
    found = tuple(str(reference.get(key) or "") for key in ("apiVersion", "kind", "name", "uid"))
    return found if all(found) and _OWNER.fullmatch(f"{found[1]}/{found[2]}") else ()


def controller_reference(metadata: Json) -> Json | None:
    """The reference to the object's controller, of which the API server admits one; None without one. Of a
    pod of a virtual cluster it is the virtual controller's, by the syncer's annotation: its own owner is the
    cluster's Service, as of every pod there. A forged one says no more than ``ownerReferences`` may."""
    for reference in _virtual_owners(metadata) or sequence(metadata.get("ownerReferences")):
        if isinstance(reference, Mapping) and reference.get("controller") is True:
            return reference
    return None


def _virtual_owners(metadata: Json) -> list[object]:
    annotations = mapping(metadata.get("annotations"))
    if _VIRTUAL_NAMESPACE not in annotations:
        return []
    try:
        return sequence(decoded(str(annotations.get(_VIRTUAL_OWNERS))))
    except ValueError:
        return []


def virtual_namespace(metadata: Json) -> str:
    """The virtual namespace of a pod, with its virtual cluster; "" of a pod of none."""
    name = mapping(metadata.get("annotations")).get(_VIRTUAL_NAMESPACE)
    text = f"{name}.{mapping(metadata.get('labels')).get(_VIRTUAL_CLUSTER, '')}".removesuffix(".")
    return text if name and _VIRTUAL.fullmatch(text) else ""


# written by controllers for each of their pods, or by Bursar
_WRITTEN_LABELS = (
    "bursar.dev/",
    "pod-template-hash",
    "pod-template-generation",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/pod-index",
)
_MAX_LABELS = 32


def is_own_label(name: str) -> bool:
    """Whether a label of this name is the pod's own: no controller writes it, nor does Bursar."""
    return not name.startswith(_WRITTEN_LABELS)


def own_labels(metadata: Json) -> dict[str, object]:
    """The labels that the ledger keeps of a pod, which reports group by and budgets select by: of its own
    the first 32 by name."""
    labels = mapping(metadata.get("labels"))
    own = (name for name in sorted(labels) if is_own_label(name))
    return {name: labels[name] for name in islice(own, _MAX_LABELS)}


def timestamp(at_ms: int, to: Literal["seconds", "milliseconds", "microseconds"] = "seconds") -> str:
    """The time, without what is smaller than that part. ``at_ms``: milliseconds since 1970. Raises
    ValueError or OverflowError for a time after the year 9999."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000, tzinfo=None)
    return f"{at.isoformat(timespec=to)}Z"


def millis(written: object) -> int | None:
    """Milliseconds since 1970 of a Kubernetes timestamp. None if it is absent, unreadable, or the 1970 of a
    StartError."""
    return _millis(written) if isinstance(written, str) else None


@lru_cache(maxsize=1024)  # a pod says the same second several times
def _millis(written: str) -> int | None:
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        return None
    if at.tzinfo is None or at.year < 2000:
        return None
    return (at - _EPOCH) // _MILLISECOND
