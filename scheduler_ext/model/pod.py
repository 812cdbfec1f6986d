"""What the extender keeps of a pod: one small value, read from the pod's JSON.

It is a Struct, as its allocation is: a changed copy costs a tenth of a dataclass's, and the garbage
collector leaves it out, for nothing in it leads back to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from sys import intern
from typing import NamedTuple

import orjson
from msgspec import Struct

from scheduler_ext.model.cpu import requested_milli
from scheduler_ext.model.labels import Packed, labels_of
from scheduler_ext.model.other_resources import Others, requested_others
from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.dialects import BY_NAME, GPU_RESOURCE_PATTERN, Container
from timekeeper.core.dialects.moments import peak
from timekeeper.core.dialects.others import claims
from timekeeper.core.gangs import Gang, group_of, has_started, held_gang, needs_said
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.kube.node_constraints import (
    NO_CONSTRAINTS,
    NodeConstraints,
    has_unread_constraints,
    read_node_constraints,
)
from timekeeper.core.kube.node_lock import waits_for_a_plugin
from timekeeper.core.kube.pod_rules import NO_RULES, PodRules, rules_of
from timekeeper.core.kube.static_pods import static_uid
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.ledger.reservation import (
    NOBODY_DISPLACED,
    Displaced,
    Reservation,
    read_displaced,
    read_reservation,
)
from timekeeper.core.object_names import TERMINAL, controller_of, controller_reference, owner_of
from timekeeper.core.quantity import integral
from timekeeper.core.request.cards import decode_placement
from timekeeper.core.request.claims import MAX_CLAIMS
from timekeeper.core.request.foreign import NamedCards, named_cards
from timekeeper.core.request.host import host_part
from timekeeper.core.request.request import containers, parse, parse_stored, request_part
from timekeeper.core.values import GPURequest, Placement, UndecodableError

MAX_GRACE_MS = 600_000
MAX_DECLARED_S = 2**31 - 1  # of activeDeadlineSeconds
MAX_MESSAGE = 1_000  # characters kept of kube-scheduler's message
MAX_REJECTED = 300  # of the kubelet's
_LONGEST_GROUP = 1_000  # characters of a group's key
_LONGEST_PART = 2_048  # bytes of a pod whose request is kept
_PREEMPTED = "DisruptionTarget", "PreemptionByScheduler"  # the condition of a victim of kube-scheduler
_READ_CONDITIONS = ("PodScheduled", "DisruptionTarget")

Amounts = tuple[tuple[str, int], ...]


class Pod(Struct, frozen=True, gc=False):
    """A pod that requests GPUs."""

    uid: str
    namespace: str
    name: str
    version: str  # resourceVersion
    scheduler: str  # its schedulerName
    node: str  # where it is bound, or empty
    priority: int
    asked_ms: int  # when it was created
    request: GPURequest | None  # None if malformed
    malformed: str  # the webhook's sentence about an invalid request, or empty
    placement: Placement | None  # of its annotation; None without one or if it is undecodable
    undecodable: str  # why the placement annotation cannot be read, or empty
    hold: PodHold  # what its object says of its cards; its grace is at most the cluster's largest
    terminal: bool  # its phase is Succeeded or Failed
    gates: tuple[str, ...]  # names of its scheduling gates
    deleting: bool
    governed: bool
    containers: tuple[str, ...]  # names of the ordinary containers
    init_containers: tuple[str, ...]  # names of the others, native sidecars among them
    amounts: Amounts  # what kube-scheduler counts, by resource
    cpu_milli: int  # what kube-scheduler counts of CPU, in thousandths of a core
    reserved: Reservation | None = None  # the cards held for it while it waits
    started_ms: int = 0  # when its kubelet started it, 0 before
    preempts: bool = True  # False: its priority class forbids preemption for it
    owner: str = ""  # UID of its controller, or empty
    controller: str = ""  # the same as ``Kind/name``; a Deployment in place of its ReplicaSet
    reference: tuple[str, ...] = ()  # of a member of a gang: its apiVersion, kind, name and UID
    labels: Packed = ""
    unschedulable: bool = False  # kube-scheduler has tried it without success
    # kube-scheduler's message, cut; also where it has found a node, and its plugin for claims fails
    unschedulable_because: str = ""
    # its status has the condition PodScheduled: kube-scheduler has tried it, or it was created with a gate
    has_condition: bool = False
    nominated: str = ""  # the node where kube-scheduler evicts for it, or empty
    node_constraints: NodeConstraints = NO_CONSTRAINTS  # which nodes it accepts, while it waits
    constrained: bool = False  # it has constraints that `node_constraints` does not describe, while it waits
    others: Others = ()  # what kube-scheduler counts of memory and other resources
    leaves_ms: int = 0  # its deletionTimestamp, 0 without one
    named: NamedCards = ()  # the cards that another scheduler's annotations name, once it is bound
    is_idle: bool = False  # the timekeeper has let other pods take its cards, because it does not use them
    spec_grace_ms: int = 30_000  # the grace period that an eviction gives it
    preempted: bool = False  # kube-scheduler makes it leave for a pod of higher priority
    gang: Gang | None = None  # the pods that it starts together with
    is_marked: bool = False  # of a member with a node: it says that its gang has started
    marked_ms: int = 0  # when it started, of a member that says so
    is_pending: bool = False  # of a member with a node: its containers have not run yet
    has_ended_well: bool = False  # of a member: its phase is Succeeded
    needs_said: int | None = None  # of a member: `gangs.needs_said`
    rules: PodRules = NO_RULES  # what it asks of other pods; all of it while it is a member that waits
    by_claim: bool = False  # bound, and kube-scheduler made a claim for its extended resources
    declared_ms: int = 0  # how long it declares to run, with its grace period; 0: it does not
    rejected: str = ""  # its kubelet refused it for reasons of devices: in its words; "": it did not
    boot: str = ""  # of its node when its end became `hold.unconfirmed`; "": not known
    waits_for_plugin: bool = False  # a plugin that locks nodes has still to hand out its devices
    is_static: bool = False  # its kubelet runs it from a file of its node, and again whatever is done to it
    displaced: Displaced = NOBODY_DISPLACED  # of a member: who has left so that its gang has cards
    shared_claims: tuple[str, ...] = ()  # claims that other pods may use as well, by name
    standing: str = ""  # of its namespace at its creation, and at its Binding (`names.OVER_AT_BINDING`)

    @property
    def full_name(self) -> str:
        """Namespace and name, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_saved_up(self) -> bool:
        """Whether it was created in budget, and got its cards when its namespace was over it."""
        return self.governed and self.standing.endswith(names.OVER_AT_BINDING)

    @property
    def gated(self) -> bool:
        """Whether kube-scheduler does not try it yet."""
        return bool(self.gates)

    @property
    def waits(self) -> bool:
        """Whether it has no node yet and may get one."""
        return not (self.node or self.deleting or self.terminal)

    @property
    def waits_for_devices(self) -> bool:
        """Whether kube-scheduler has to allocate devices to its claims, also to one for its limits: no card
        of the extender's can help it."""
        said = self.unschedulable_because
        is_by_claims = self.request is not None and self.request.dialect == claims.NAME
        return is_by_claims or claims.SHORT_OF_DEVICES in said or claims.PLUGIN in said

    @property
    def holding(self) -> bool:
        """True while its cards may not be given away: bound, and its end is not reported."""
        return self.node != "" and not self.hold.over

    @property
    def grace_ms(self) -> int:
        """How long the kubelet may run it after its object was removed."""
        return self.hold.grace_ms


class CPUMember(Struct, frozen=True, gc=False):
    """A pod that asks for no GPU and waits for a node, of a group that may be a gang: it needs CPU and memory
    beside the others. ``gang``: the key of its group (`group_of_key`); ``gated``: it has the gang's gate."""

    uid: str
    namespace: str
    name: str
    gang: str
    cpu_milli: int
    others: Others
    node_constraints: NodeConstraints = NO_CONSTRAINTS
    gated: bool = False


class NonGPUPod(Struct, frozen=True, gc=False):
    """A pod that asks for no GPU, as far as it matters: what it takes of the node it is bound to; nothing
    before it is bound and after it has ended."""

    uid: str
    node: str
    cpu_milli: int
    others: Others = ()  # memory and other resources
    leaves_ms: int = 0  # its deletionTimestamp, 0 without one
    namespace: str = ""
    member: CPUMember | None = None  # what it needs while it waits, where it has the mark of a group
    labels: Packed = ""
    rules: PodRules = NO_RULES  # what keeps other pods off nodes

    @property
    def takes(self) -> bool:
        """True if it takes anything of its node."""
        return bool(self.cpu_milli or self.others)


def read_any(raw: Json, most_grace_ms: int = MAX_GRACE_MS) -> Pod | NonGPUPod:
    """The pod's value, whether it asks for GPUs or not. Never raises on what an API server can hold."""
    template = _template(raw)
    return _gpu_pod(raw, template, most_grace_ms) if template.asks_for_gpus else _non_gpu_pod(raw, template)


def read_non_gpu_pod(raw: Json) -> NonGPUPod:
    """The value of a pod that asks for no GPU. Never raises on what an API server can hold."""
    return _non_gpu_pod(raw, _template(raw))


def _non_gpu_pod(raw: Json, template: "_Template") -> NonGPUPod:
    node = intern(_text(mapping(raw.get("spec")), "nodeName"))
    metadata = mapping(raw.get("metadata"))
    uid = _text(metadata, "uid")
    if mapping(raw.get("status")).get("phase") in TERMINAL:
        return NonGPUPod(uid, node, 0)
    if not node:
        return NonGPUPod(uid, node, 0, member=_cpu_member(raw, template))
    leaves_ms = hold.millis(metadata.get("deletionTimestamp")) or 0
    namespace = intern(_text(metadata, "namespace"))
    return NonGPUPod(
        uid,
        node,
        template.cpu_milli,
        template.others,
        leaves_ms,
        namespace,
        labels=labels_of(raw),
        rules=rules_of(raw, is_placed_here=False),
    )


def _cpu_member(raw: Json, template: "_Template") -> CPUMember | None:
    metadata = mapping(raw.get("metadata"))
    gang = group_of(raw)
    if not gang or len(gang) > _LONGEST_GROUP or "deletionTimestamp" in metadata:
        return None
    gates = map(mapping, sequence(mapping(raw.get("spec")).get("schedulingGates")))
    is_gated = any(gate.get("name") == names.GANG_GATE for gate in gates)
    where = _text(metadata, "uid"), _text(metadata, "namespace"), _text(metadata, "name"), gang
    return CPUMember(*where, template.cpu_milli, template.others, read_node_constraints(raw), is_gated)


def read_pod(raw: Json, most_grace_ms: int = MAX_GRACE_MS) -> Pod | None:
    """The pod's value; None for a pod that asks for no GPU. Never raises on what an API server can hold."""
    template = _template(raw)
    return _gpu_pod(raw, template, most_grace_ms) if template.asks_for_gpus else None


def _gpu_pod(raw: Json, template: "_Template", most_grace_ms: int) -> Pod:
    metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
    status = mapping(raw.get("status"))
    node = _text(spec, "nodeName")
    placement, undecodable = _placement(raw)
    request, conditions = template.request, _conditions(status)
    refusal = None if node else _schedulers_refusal(conditions)
    gang, annotations = held_gang(raw), annotations_of(raw)
    constraints = NO_CONSTRAINTS if node else read_node_constraints(raw)
    return Pod(
        uid=_text(metadata, "uid"),
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        version=_text(metadata, "resourceVersion"),
        scheduler=_text(spec, "schedulerName"),
        node=node,
        priority=_whole(spec.get("priority")),
        asked_ms=hold.millis(metadata.get("creationTimestamp")) or 0,
        request=request,
        malformed=template.malformed,
        placement=placement,
        undecodable=undecodable,
        hold=_hold(raw, most_grace_ms),
        terminal=status.get("phase") in TERMINAL,
        gates=tuple([intern(_text(mapping(each), "name")) for each in sequence(spec.get("schedulingGates"))]),
        deleting="deletionTimestamp" in metadata,
        governed=mapping(metadata.get("labels")).get(names.GOVERNED) == "true",
        containers=template.containers,
        init_containers=template.init_containers,
        amounts=template.amounts,
        cpu_milli=template.cpu_milli,
        reserved=None if node or "deletionTimestamp" in metadata else _reserved(raw, status),
        started_ms=hold.millis(status.get("startTime")) or 0,
        preempts=spec.get("preemptionPolicy") != "Never",
        owner=_owner(metadata),
        controller=intern(owner_of(metadata)),
        reference=controller_of(metadata) if gang is not None else (),
        labels=labels_of(raw),
        unschedulable=refusal is not None,
        unschedulable_because=refusal or _claims_error(conditions),
        has_condition=_has_condition(conditions),
        nominated="" if node else _text(status, "nominatedNodeName"),
        node_constraints=constraints,
        constrained=not node and (has_unread_constraints(raw) or not constraints.is_read),
        others=template.others,
        named=named_cards(raw, request, template.listed) if node and placement is None and request else (),
        leaves_ms=hold.millis(metadata.get("deletionTimestamp")) or 0,
        is_idle=names.RECLAIMABLE in annotations,
        spec_grace_ms=hold.grace_ms({"spec": spec}, most_grace_ms),
        preempted=node != "" and _condition(conditions, *_PREEMPTED) is not None,
        gang=gang,
        is_marked=gang is not None and node != "" and has_started(raw),
        marked_ms=hold.millis(annotations.get(names.GANG_STARTED)) or 0,
        is_pending=gang is not None and node != "" and status.get("phase") == "Pending",
        has_ended_well=gang is not None and status.get("phase") == "Succeeded",
        needs_said=needs_said(raw) if gang is not None else None,
        rules=rules_of(raw, gang is not None and not node),
        by_claim=bool(node and mapping(status.get("extendedResourceClaimStatus")).get("resourceClaimName")),
        declared_ms=_declared_ms(spec, most_grace_ms),
        rejected=_rejected(status) if node else "",
        waits_for_plugin=bool(node) and status.get("phase") == "Pending" and waits_for_a_plugin(raw, node),
        is_static=bool(static_uid(raw)),
        displaced=read_displaced(raw) if gang is not None else NOBODY_DISPLACED,
        shared_claims=_shared_claims(spec),
        standing=intern(str(annotations.get(names.STANDING, ""))),
    )


def _shared_claims(spec: Json) -> tuple[str, ...]:
    """Those that it names itself: one of a template is its own."""
    claimed = map(mapping, sequence(spec.get("resourceClaims"))[:MAX_CLAIMS])
    return tuple([intern(name) for claim in claimed if (name := _text(claim, "resourceClaimName"))])


def asks_for_gpus(template: Json) -> bool:
    """Whether pods of the template ask for GPUs, well or not."""
    return _template(template).asks_for_gpus


def _declared_ms(spec: Json, most_grace_ms: int) -> int:
    seconds = spec.get("activeDeadlineSeconds")
    if type(seconds) is not int or not 0 < seconds <= MAX_DECLARED_S:
        return 0
    return seconds * 1000 + hold.grace_ms({"spec": spec}, most_grace_ms)


class _Template(NamedTuple):
    """What pods of one template request; most fields are those of `Pod`."""

    cpu_milli: int
    others: Others
    asks_for_gpus: bool
    request: GPURequest | None = None
    malformed: str = ""
    containers: tuple[str, ...] = ()
    init_containers: tuple[str, ...] = ()
    amounts: Amounts = ()
    listed: tuple[Container, ...] = ()  # all containers


def _template(raw: Json) -> _Template:
    """Most pods are made from few templates, so what is read of the same part of a pod is kept."""
    asked, host = request_part(raw), host_part(raw)
    parts = asked, host, _text(mapping(raw.get("spec")), "nodeName") != ""
    try:
        text = orjson.dumps(parts)
    except TypeError:  # it is not of an API server
        return _read_template(*parts)
    return _known_template(text) if len(text) <= _LONGEST_PART else _read_template(*parts)


@lru_cache(maxsize=1024)
def _known_template(parts: bytes) -> _Template:
    return _read_template(*orjson.loads(parts))


def _read_template(asked: Json, host: Json, is_bound: bool) -> _Template:
    spec = {**asked["spec"], **host["spec"], "nodeName": is_bound}
    part = {"metadata": asked["metadata"], "spec": spec, "status": host["status"]}
    parsed = parse_stored(part) if part["spec"]["nodeName"] else parse(part)
    cpu_milli, more = requested_milli(part), requested_others(part)
    if parsed.request is None and not parsed.violations:
        return _Template(cpu_milli, more, asks_for_gpus=False)
    listed = containers(part)
    return _Template(
        cpu_milli,
        more,
        True,
        parsed.request,
        parsed.violations[0].sentence() if parsed.violations else "",
        _named(listed, "spec.containers"),
        _named(listed, "spec.initContainers"),
        _amounts(listed, parsed.request) if parsed.request else (),
        listed,
    )


def _named(listed: Sequence[Container], field: str) -> tuple[str, ...]:
    return tuple([each.name for each in listed if each.path.startswith(field)])


def _owner(metadata: Json) -> str:
    return intern(_text(mapping(controller_reference(metadata)), "uid"))


def _conditions(status: Json) -> list[Json]:
    """Those that are read."""
    said = map(mapping, sequence(status.get("conditions")))
    return [condition for condition in said if condition.get("type") in _READ_CONDITIONS]


def _schedulers_refusal(conditions: Iterable[Json]) -> str | None:
    """kube-scheduler's message where it has tried the pod without success, else None."""
    found = _condition(conditions, "PodScheduled", "Unschedulable")
    return None if found is None else intern(_text(found, "message")[:MAX_MESSAGE])


def _claims_error(conditions: Iterable[Json]) -> str:
    """Of kube-scheduler's plugin for claims, as where a quota refuses the claim for the pod's limits; "" if
    there is none."""
    message = _text(_condition(conditions, "PodScheduled", "SchedulerError") or {}, "message")
    return intern(message[:MAX_MESSAGE]) if claims.PLUGIN in message else ""


# a node's CPUs, memory and cards cannot be given to the pod so that they lie near each other
OF_ALIGNMENT = ("TopologyAffinityError", "SMTAlignmentError")


def _rejected(status: Json) -> str:
    """In the kubelet's words. Other reasons, such as SysctlForbidden, may be a tenant's own on any node, and
    so may those of `OF_ALIGNMENT`. Source: pkg/kubelet/lifecycle, `AdmissionFailureHandler` and
    ``predicateAdmitHandler``; pkg/kubelet/cm, ``topologymanager`` and ``cpumanager``."""
    if status.get("phase") != "Failed":
        return ""
    reason = _text(status, "reason")
    resource = reason.removeprefix("OutOf")
    is_gpu = resource != reason and (GPU_RESOURCE_PATTERN.match(resource) or accelerator_of(resource))
    is_known = is_gpu or reason == "UnexpectedAdmissionError" or reason in OF_ALIGNMENT
    return intern(f"{reason}: {_text(status, 'message')}"[:MAX_REJECTED]) if is_known else ""


def _has_condition(conditions: Iterable[Json]) -> bool:
    return any(condition.get("type") == "PodScheduled" for condition in conditions)


def _condition(conditions: Iterable[Json], kind: str, reason: str) -> Json | None:
    for condition in conditions:
        if (condition.get("type"), condition.get("reason")) == (kind, reason):
            return condition
    return None


def _reserved(raw: Json, status: Json) -> Reservation | None:
    """Only a pod that can still be bound has one, or a member that its gang's own gate alone keeps."""
    gates = sequence(mapping(raw.get("spec")).get("schedulingGates"))
    is_kept = any(mapping(gate).get("name") != names.GANG_GATE for gate in gates)
    return None if is_kept or status.get("phase") in TERMINAL else read_reservation(raw)


def _placement(raw: Json) -> tuple[Placement | None, str]:
    text = annotations_of(raw).get(names.DEVICES)
    if text is None:
        return None, ""
    try:
        return decode_placement(str(text)), ""
    except UndecodableError as error:
        return None, str(error)


def _hold(raw: Json, most_grace_ms: int) -> PodHold:
    says = hold.pod_hold(raw)
    return says if says.grace_ms <= most_grace_ms else replace(says, grace_ms=most_grace_ms)


def _amounts(listed: Sequence[Container], request: GPURequest) -> Amounts:
    """For each resource that kube-scheduler counts, its own sum: the greater of all containers and sidecars
    together, and of each init container with the sidecars started before it.

    Source: k8s.io/component-helpers/resource, ``PodRequests``.
    """
    dialect = BY_NAME[request.dialect]
    families = tuple(name for name in dialect.by_plugin if name.endswith("-"))
    of_families = {name: None for each in listed for name in each.limits if name.startswith(families)}
    resources = (*dialect.resources, *dialect.node_resources, *dialect.shared, *of_families)
    counted = [name for name in resources if name not in dialect.ignored_by_scheduler]
    amounts = {
        name: [(each.init, integral(each.limits.get(name)) or 0) for each in listed] for name in counted
    }
    return tuple((name, total) for name, parts in amounts.items() if (total := peak(parts)))


def _text(part: Json, key: str) -> str:
    value = part.get(key)
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
