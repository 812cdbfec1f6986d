"""A pod as the ledger sees it, read once from the API server's JSON; the rest of the object is dropped."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from operator import attrgetter
from sys import intern
from typing import Literal

from timekeeper.core import names
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.dialect import no_cards
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.gangs import Gang, has_started, held_gang, needs_said
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.kube.eviction import leaves_for_another
from timekeeper.core.kube.static_pods import STATIC, static_uid
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.ledger.reservation import Reservation, read_reservation, withdrawn_ms
from timekeeper.core.object_names import own_labels, owner_of
from timekeeper.core.request.cards import decode_amounts
from timekeeper.core.request.claims import EXPLICIT
from timekeeper.core.request.metered import MeteredRequest, metered_request, of_devices
from timekeeper.core.request.request import claims_part, parse_stored
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from timekeeper.core.wire import HeldFor, binding_asks

GangKey = tuple[str, str]  # its namespace, and what tells it from others there
# by what a pod is charged: nothing; its cards, and what it asks for while it waits; its claims alone; what
# they ask for is not known yet
Charge = Literal["none", "cards", "claims", "unknown"]


@dataclass(frozen=True, slots=True)
class ClaimWait:
    """A pod that waits, because its claims get no devices. ``claims``: their names; ``since_ms``: since when
    kube-scheduler has found no node; ``limits``: in place of claims what its containers ask for by limits,
    each time a resource and an amount: kube-scheduler makes a claim for them once it has devices."""

    claims: tuple[str, ...]
    since_ms: int
    limits: tuple[tuple[str, int], ...] = ()

    def by_class(self, serves: Mapping[str, str]) -> Mapping[str, int]:
        """How many devices of each class the limits ask for. ``serves``: extended resource -> its class."""
        found = Counter[str]()
        for resource, amount in self.limits:
            explicit = resource.removeprefix(EXPLICIT)
            if name := explicit if explicit != resource else serves.get(resource, ""):
                found[name] += amount
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUse:
    """How a pod uses claims."""

    hold: PodHold | None = None  # as its object says it; None: it uses no claim, and waits for none
    served_by: str = ""  # the name of the claim that kube-scheduler made for its extended resources
    is_served: bool = False  # that claim is charged for these
    # without these resources, where a claim serves them; None: nothing is left
    rest: "LedgerPod | None" = None
    gone_ms: int | None = None  # when its object was seen to be removed; None: it exists
    # for devices of its claims; None: it does not, or others may not be evicted for it
    waits: ClaimWait | None = None
    # for how many GPUs its claims were judged, at its creation or its release; None: nothing says it
    judged: int | None = None
    claims: tuple[str, ...] = ()  # the names of all that exist, with the one that serves it
    is_holding: bool = False  # it is bound, and not over
    obstacle: str = ""  # why it has no node, if that is not ``waits``
    # of the object of a pod whose charge is unknown: by it that is read once it is known
    part: Json | None = None


NO_CLAIMS = ClaimUse()


@dataclass(frozen=True, slots=True)
class Membership:
    """What the object of a pod says of its gang."""

    is_marked: bool = False  # with a node it says that the gang has started
    has_ended_well: bool = False  # its phase is Succeeded
    needs_said: int | None = None  # `gangs.needs_said`
    leaves_for_another: bool = False  # it is being deleted so, as by preemption


NO_MEMBER = Membership()


@dataclass(frozen=True, slots=True)
class LedgerPod:
    """A pod that requests GPUs. Times in milliseconds since 1970."""

    uid: str
    namespace: str
    name: str
    owner: str  # controller as ``Kind/name``; "": none
    node: str  # "": not bound yet
    created_ms: int
    request: GPURequest
    # text of the annotation, "": absent; IN_BUDGET for a pod that waits, or waited, for its budget: it is
    # released only when it can be paid
    standing: str
    devices: str  # text of the placement annotation; "": absent
    started_ms: int | None  # start of the first GPU container
    hold: PodHold  # when it holds its cards
    others_ended: bool  # every container except our sidecar has ended for good
    labels: str = "{}"  # its own labels as canonical JSON, without those that repeat ``owner``
    reserved: Reservation | None = None  # the cards reserved for it while it waits
    let_go_ms: int | None = None  # when its reservation was withdrawn
    held: HeldFor = ""  # how it was held at its creation
    is_gated: bool = False  # our gate is in ``spec.schedulingGates``
    is_untried: bool = False  # it has no gate and no node, and no scheduler has tried yet to place it
    priority: int = 0
    scheduler: str = ""  # its schedulerName
    # the timekeeper's notice, by its annotations: not evicted before; protected by disruption budgets until
    evict_after_ms: int | None = None
    delete_after_ms: int | None = None
    idle_until_ms: int | None = None  # it was warned that it is idle, and is left alone until then
    is_reclaimable: bool = False
    is_governed: bool = False  # it has the label that admission gives where it enforces
    declared_ms: int = 0  # how long it means to run, if it reserves that; 0: it reserves the lookahead
    # what it holds where it is metered, if that is not ``request``
    metered: MeteredRequest | None = None
    is_metered: bool = False  # nothing that Bursar's names say of it counts: see `metered_view`
    # of a metered pod what of its request is an assumption, and why; of one that is not charged why it cannot
    # be read
    doubt: str = ""
    gang: Gang | None = None  # the pods that it starts together with
    membership: Membership = NO_MEMBER
    has_other_gate: bool = False  # a gate that is not ours is in ``spec.schedulingGates``
    is_queued: bool = False  # Kueue's is there: its Workload is not admitted
    # the number of GPUs of its claims that its release is to record; None: admission has recorded it
    late_devices: int | None = None

    is_saved_up: bool = False  # created in budget, it got its cards when its namespace was over it
    mirror_uid: str = ""  # of a static pod: the UID of its mirror
    runs_ms: int = 0  # how long its kubelet lets it run; 0: it declares no time
    sidecar_waits: str = ""  # why its sidecar keeps it from starting, in the words of its kubelet
    charge: Charge = "cards"
    uses: ClaimUse = field(default=NO_CLAIMS, compare=False)
    as_read: "LedgerPod | None" = field(default=None, compare=False)  # where it is charged otherwise

    @property
    def is_only_metered(self) -> bool:
        """Whether it is metered, and not charged where its namespace is enforced."""
        read = self.as_read
        is_uncharged = read is not None and read.charge != "cards" and not read.requests_nothing
        return self.is_metered and is_uncharged and not self.is_static

    @property
    def is_charged_nothing(self) -> bool:
        """Whether nothing of it is charged wherever it is: it may use claims, or cannot be read."""
        return self.charge in ("none", "claims") and self.metered is None

    @property
    def requests_nothing(self) -> bool:
        """Whether it was charged, and requests nothing any more."""
        return self.charge == "none" and self.metered is NOTHING_METERED

    @property
    def uses_claims(self) -> bool:
        """Whether it uses claims, or waits for one."""
        return self.uses.hold is not None

    @property
    def has_cards(self) -> bool:
        """Whether it requests cards of a plugin, though perhaps claims too: those must be of no GPUs."""
        return self.request.dialect != of_claims.NAME

    def judged(self, devices: int) -> "LedgerPod":
        """A pod whose charge was unknown, with this number of GPUs by claims."""
        own = replace(self.request, are_claims_known=True)
        request = own if self.has_cards else of_claims.request_of(devices)
        return replace(self, request=request, late_devices=devices, charge="cards")

    @property
    def claims_end_ms(self) -> int | None:
        """When it ceased to use its claims, or was removed; None: it uses them. A pod without a node never
        did."""
        mine, gone_ms = self.uses.hold, self.uses.gone_ms
        if not self.node or mine is None:
            return 0
        if mine.over:
            return hold.ends_ms(mine, 0)
        return gone_ms

    @property
    def is_static(self) -> bool:
        """Whether its kubelet runs it from a file of its node: `static_pods`."""
        return self.uid.startswith(STATIC)

    @property
    def gang_key(self) -> GangKey | None:
        """What tells its gang from all others; None without one."""
        return None if self.gang is None else (self.namespace, self.gang.key)

    def has_other_scheduler(self, ours: str) -> bool:
        """Whether another scheduler than ``ours`` places it; ours places no pod with claims of GPUs."""
        return self.scheduler not in ("", ours) or self.request.dialect == of_claims.NAME

    def is_charged_by_spec(self, ours: str) -> bool:
        """Whether Bursar gave it no cards: it is metered, the plugin of its node chose them, or admission
        left it to another scheduler. What is decided at its creation does not change with a setting."""
        if self.is_metered or self.devices:
            return self.is_metered
        speaks = BY_NAME.get(self.request.dialect)
        is_counted = speaks is not None and speaks.counted_cards is not no_cards
        return is_counted or (self.standing != "" and self.has_other_scheduler(ours))

    @property
    def length_ms(self) -> int:
        """What it reserves: its declared time and its grace period; 0: it declared none."""
        return self.declared_ms + self.hold.grace_ms if self.declared_ms else 0

    @property
    def ended_ms(self) -> int | None:
        """When its hold ended, by proof; 0: it is over without proof; None: it is not over."""
        return (self.hold.ended_ms or 0) if self.hold.over else None

    @property
    def is_charged(self) -> bool:
        """Whether it holds cards, and nothing has asked it to leave yet."""
        is_over = self.ended_ms is not None or self.others_ended or self.hold.deletion_ms is not None
        return self.node != "" and not is_over

    @property
    def is_staying(self) -> bool:
        """Whether it holds cards or waits for a node, and nothing has asked it to leave yet."""
        return self.is_charged or self.can_be_bound

    @property
    def can_be_bound(self) -> bool:
        """Whether it waits for a node. The API server binds no pod whose deletion was requested, however long
        a finalizer keeps it."""
        return not self.node and self.ended_ms is None and self.hold.deletion_ms is None


def charged_pod(pods: Mapping[str, LedgerPod], uid: str) -> LedgerPod | None:
    """The pod of this UID as it is charged by its cards, or waits for them; None: it is not."""
    pod = pods.get(uid)
    return pod if pod is not None and pod.charge == "cards" else None


def charged_pods(pods: Mapping[str, LedgerPod]) -> list[LedgerPod]:
    """All of them."""
    return [pod for pod in pods.values() if pod.charge == "cards"]


def claim_user(pods: Mapping[str, LedgerPod], uid: str) -> LedgerPod | None:
    """The pod of this UID as it was read, if it uses claims."""
    pod = pods.get(uid)
    return (pod.as_read or pod) if pod is not None and pod.uses_claims else None


def read_pod(raw: Json) -> LedgerPod | None:
    """The pod, or None if it requests no GPU. Never raises on JSON from an API server."""
    parsed, where = parse_stored(raw), _where(raw)
    metered = metered_request(raw, parsed)
    if parsed.request is None:
        # admission would have refused its GPU request, or would not have looked at its devices
        if metered is None and not parsed.violations and not of_claims.has_claims(mapping(raw.get("spec"))):
            return None
        problem = parsed.violations[0].sentence() if parsed.violations else ""
        return _uncharged(raw, where, "none", metered, problem)
    is_claims = parsed.request.dialect == of_claims.NAME
    if is_claims and mapping(raw.get("spec")).get("nodeName"):
        return _uncharged(raw, where, "claims", metered)  # until it was bound, it waited and reserved
    pod = _read(raw, where, parsed.request)
    if is_claims or metered is None or metered.doubt or metered.request != pod.request:
        pod = replace(pod, metered=metered or NOTHING_METERED)
    if pod.node or of_claims.is_known(pod.request):
        return pod
    return replace(pod, charge="unknown", uses=ClaimUse(part=claims_part(raw)))


def _uncharged(
    raw: Json, where: tuple[str, str, str], charge: Charge, metered: MeteredRequest | None, problem: str = ""
) -> LedgerPod:
    """It is charged where it is metered alone, by ``metered``; None: nowhere."""
    pod = _read(raw, where, metered.request if metered else NO_REQUEST)
    return replace(pod, request=NO_REQUEST, charge=charge, metered=metered, doubt=problem)


def read_user(raw: Json) -> LedgerPod:
    """A pod of which nothing but claims can be charged. Never raises on JSON from an API server."""
    return _uncharged(raw, _where(raw), "claims", None)


def read_charged_pod(raw: Json, is_charged: Callable[[str], bool]) -> LedgerPod | None:
    """As `read_pod`. A pod that is charged by now and requests nothing any more, because who may edit it has
    removed an annotation, goes on: its hold is read, and its charge is that of before.

    ``is_charged``: whether the ledger has a pod of this UID."""
    found = read_pod(raw)
    if found is not None and not (found.charge == "none" and found.metered is None):
        return found  # also one that waited, and of which the ledger has no session
    where = _where(raw)
    return _uncharged(raw, where, "none", NOTHING_METERED) if is_charged(where[0]) else found


NO_REQUEST = GPURequest(dialect="", asks=())
# of a pod whose request is in Bursar's own annotations alone
NOTHING_METERED = MeteredRequest(NO_REQUEST)


def metered_view(pod: LedgerPod, models: Mapping[str, str]) -> LedgerPod | None:
    """The pod as it is charged where it is metered: by its spec and its own scheduler's annotations, as if it
    had nothing of Bursar's; only a gate and a notice stay, which are withdrawn. ``models``: of devices that
    the settings name. None if it holds nothing."""
    if pod.is_charged_nothing:
        return None
    if is_bare(pod):
        return _metered(pod)
    metered = pod.metered or MeteredRequest(pod.request)
    request = of_devices(metered.request, models) if metered.request.asks else None
    if request is None:
        return None
    return replace(
        pod,
        request=_shared(request),
        standing="",
        devices="",
        reserved=None,
        let_go_ms=None,
        declared_ms=0,
        gang=None,
        is_metered=True,
        charge="cards",
        doubt=metered.doubt,
    )


_VALUES = attrgetter(*(each.name for each in fields(LedgerPod)))
_IS_METERED = [each.name for each in fields(LedgerPod)].index("is_metered")


def _metered(pod: LedgerPod) -> LedgerPod:
    """As `replace`, which takes a tenth of all that an event of the watch costs."""
    values = list(_VALUES(pod))
    values[_IS_METERED] = True
    return LedgerPod(*values)


def is_bare(pod: LedgerPod) -> bool:
    """Whether it has nothing of Bursar's, and requests no devices: metered, it is what it is."""
    ours = pod.standing or pod.devices or pod.declared_ms or pod.let_go_ms
    if pod.metered or ours or pod.reserved:
        return False
    return not any(each.ask.device for each in pod.request.asks)


def _where(raw: Json) -> tuple[str, str, str]:
    """UID, namespace and name. A static pod has the same UID in each of its mirrors."""
    metadata = mapping(raw.get("metadata"))
    namespace = intern(str(metadata.get("namespace", "")))
    uid = static_uid(raw) or str(metadata.get("uid", ""))
    return uid, namespace, str(metadata.get("name", ""))


def _read(raw: Json, where: tuple[str, str, str], request: GPURequest) -> LedgerPod:
    metadata, annotations, spec = mapping(raw.get("metadata")), annotations_of(raw), mapping(raw.get("spec"))
    recorded_hold = annotations.get(names.HELD)
    held: HeldFor = "budget" if recorded_hold == "budget" else "turn" if recorded_hold == "turn" else ""
    gang, priority = held_gang(raw) if held else None, spec.get("priority")
    gates = [mapping(gate).get("name") for gate in sequence(spec.get("schedulingGates"))]
    created_ms, says = hold.millis(metadata.get("creationTimestamp")) or 0, hold.pod_hold(raw)
    if where[0].startswith(STATIC):  # what its kubelet says of the time before its mirror is no evidence
        says = replace(says, bound_ms=created_ms)
    written = str(annotations.get(names.STANDING, ""))
    recorded = "IN_BUDGET" if held == "budget" else written.removesuffix(names.OVER_AT_BINDING)
    return LedgerPod(
        *where,
        owner=intern(owner_of(metadata)),
        node=intern(str(spec.get("nodeName") or "")),
        created_ms=created_ms,
        request=_shared(request),
        standing=intern(recorded),
        devices=str(annotations.get(names.DEVICES, "")),
        started_ms=hold.started_ms(raw, request),
        hold=says,
        others_ended=_others_ended(raw),
        labels=json.dumps(own_labels(metadata), separators=(",", ":")),
        reserved=read_reservation(raw),
        let_go_ms=withdrawn_ms(raw),
        held=held,
        is_gated=names.BUDGET_GATE in gates,
        is_untried=_is_untried(raw, spec),
        priority=priority if isinstance(priority, int) else 0,
        scheduler=intern(str(spec.get("schedulerName") or "")),
        evict_after_ms=hold.millis(annotations.get(names.EVICT_AFTER)),
        delete_after_ms=hold.millis(annotations.get(names.DELETE_AFTER)),
        idle_until_ms=hold.millis(annotations.get(names.IDLE_UNTIL)),
        is_reclaimable=names.RECLAIMABLE in annotations,
        is_governed=mapping(metadata.get("labels")).get(names.GOVERNED) == "true",
        declared_ms=_declared_ms(annotations.get(names.DECLARED)) if held == "budget" else 0,
        gang=gang,
        is_saved_up=written.endswith(names.OVER_AT_BINDING),
        membership=NO_MEMBER if gang is None else _membership(raw),
        has_other_gate=any(gate not in names.GATES for gate in gates),
        is_queued=names.KUEUE_GATE in gates,
        mirror_uid=str(metadata.get("uid", "")) if where[0].startswith(STATIC) else "",
        runs_ms=_declared_ms(spec.get("activeDeadlineSeconds")),
        sidecar_waits=_waits_for_sidecar(mapping(raw.get("status"))),
    )


def _waits_for_sidecar(status: Json) -> str:
    if status.get("phase") != "Pending":
        return ""
    states = (mapping(each) for each in sequence(status.get("initContainerStatuses")))
    ours = next((mapping(each.get("state")) for each in states if each.get("name") == names.SIDECAR), {})
    waiting = mapping(ours.get("waiting"))
    if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
        return ""
    return intern(": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key)))


def _membership(raw: Json) -> Membership:
    has_ended_well = mapping(raw.get("status")).get("phase") == "Succeeded"
    return Membership(has_started(raw), has_ended_well, needs_said(raw), leaves_for_another(raw))


def _declared_ms(recorded: object) -> int:
    """0 for anything but a number of seconds that the API server allows."""
    text = str(recorded)
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_SECONDS))
    return 1000 * min(int(text), _MAX_SECONDS) if is_number else 0


def _is_untried(raw: Json, spec: Json) -> bool:
    """The API server writes the condition of a gated pod, and a scheduler that of a pod that it has tried."""
    if spec.get("nodeName") or spec.get("schedulingGates"):
        return False
    conditions = map(mapping, sequence(mapping(raw.get("status")).get("conditions")))
    found = [each.get("reason") for each in conditions if each.get("type") == "PodScheduled"]
    return not found or found == ["SchedulingGated"]


@lru_cache(maxsize=10_000)
def _shared(request: GPURequest) -> GPURequest:
    """One shared value for all pods with equal requests: a hundred thousand pods make a few kinds of
    request."""
    return request


def _others_ended(raw: Json) -> bool:
    """True if every regular container except ours has ended for good, by the kubelet. Init containers,
    including native sidecars, do not keep a pod running."""
    spec = mapping(raw.get("spec"))
    is_leaving = bool(mapping(raw.get("metadata")).get("deletionTimestamp"))
    statuses = [mapping(each) for each in sequence(mapping(raw.get("status")).get("containerStatuses"))]
    ends = {str(each.get("name")): mapping(each.get("state")).get("terminated") for each in statuses}
    containers = [mapping(each) for each in sequence(spec.get("containers"))]
    others = [each for each in containers if each.get("name") != names.SIDECAR]
    return bool(others) and all(
        _ended_for_good(each, spec.get("restartPolicy"), ends.get(str(each.get("name"))), is_leaving)
        for each in others
    )


def _ended_for_good(container: Json, pods_policy: object, end: object, is_leaving: bool) -> bool:
    """Whether a container will not be restarted. Its own policy overrides the pod's. If it has restart rules,
    only the kubelet can tell before the pod is deleted."""
    if not isinstance(end, Mapping):
        return False
    if is_leaving:
        return True
    if container.get("restartPolicyRules"):
        return False
    policy = container.get("restartPolicy") or pods_policy
    return policy == "Never" or (policy == "OnFailure" and end.get("exitCode") == 0)


_MAX_SECONDS = 2**31 - 1  # of activeDeadlineSeconds


@dataclass(frozen=True, slots=True)
class ReportedBinding:
    """A pod that the extender bound. Times in milliseconds."""

    uid: str
    namespace: str
    name: str
    node: str
    bound_ms: int
    request: GPURequest  # what it asks for; constraints on cards have been applied and are left out
    devices: str  # text of the placement annotation
    grace_ms: int


def pod_of(binding: ReportedBinding) -> LedgerPod:
    """The pod as it was when it was bound. Its owner, labels and standing are not known; so it reserves
    nothing."""
    return LedgerPod(
        binding.uid,
        binding.namespace,
        binding.name,
        owner="",
        node=binding.node,
        created_ms=binding.bound_ms,
        request=binding.request,
        standing="",
        devices=binding.devices,
        started_ms=None,
        hold=PodHold(binding.bound_ms, grace_ms=binding.grace_ms),
        others_ended=False,
    )


def encode_request(request: GPURequest) -> str:
    """Dialect and asks as JSON, for the database."""
    wire = {"dialect": request.dialect, "asks": binding_asks(request)}
    return json.dumps(wire, separators=(",", ":"), sort_keys=True)


def decode_request(text: str) -> GPURequest:
    """The inverse of `encode_request`."""
    raw = json.loads(text)
    return GPURequest(
        dialect=raw["dialect"],
        asks=tuple(
            ContainerAsk(
                each["container"],
                each["init"],
                Ask(
                    each["devices"],
                    each["share_milli"],
                    each["memory_mib"],
                    decode_amounts(each.get("resources", {})),
                    each.get("memory_milli", 0),
                ),
            )
            for each in raw["asks"]
        ),
    )
