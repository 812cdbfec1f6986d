"""What the rounds of evictions work with: their calls to the API server, which name a pod by UID, so that no
other pod of its name is affected; and `SettlerView`, what they may read of the settler."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.claims.claim_sessions import consumers_of
from timekeeper.accounts.claims.consumers import ClaimPod
from timekeeper.accounts.claims.excess import ClaimExcess, ClassKnowledge, excesses
from timekeeper.accounts.exhaustion.evictions import EvictionNotice, Pods
from timekeeper.accounts.exhaustion.units import LeavingUnits
from timekeeper.accounts.held.gangs import BrokenGang
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.reclaim.choice import HeldClaim, devices_of, key_of
from timekeeper.core import names, object_names
from timekeeper.core.claims.allocation import AllocatedDevice
from timekeeper.core.claims.devices import PublishedDevice
from timekeeper.core.claims.drivers import DriverRule, rules_of
from timekeeper.core.claims.heirs import DeviceKey
from timekeeper.core.decisions import Record, record_nothing
from timekeeper.core.kube.eviction import (
    EvictionResult,
    deletion,
    eviction,
    is_gone,
    is_protected,
    is_refused_for_good,
)
from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.events import EventRecorder
from timekeeper.log import log
from timekeeper.runtime.api_server import ANSWER_S, STRATEGIC_MERGE, Answered, Api, Reply
from timekeeper.settler.settler import Settler
from timekeeper.settler.vetoes import Vetoes
from timekeeper.store.engine.engine import Store
from timekeeper.store.fencing import Epoch

NO_EXCESSES: Mapping[str, ClaimExcess] = {}

Refusal = Literal["gone", "protected", "refused", "unclear"]


def evict(api: Api, pod: LedgerPod, dry_run: bool = False, grace_s: int | None = None) -> Reply:
    """Evict the pod. ``dry_run``: only ask whether that would be accepted; ``grace_s``: None: with its own
    grace period."""
    body = eviction(pod.namespace, pod.name, pod.uid, dry_run, grace_s)
    return api.call("POST", f"{_path(pod)}/eviction", body, timeout_s=ANSWER_S)


def delete(
    api: Api, pod: LedgerPod, condition: Mapping[str, Any], grace_s: int | None = None
) -> tuple[EvictionResult, str]:
    """Delete the pod, whatever its PodDisruptionBudget says; as `result_of`. ``grace_s``: as in `evict`.

    Before that it gets the condition, which says why it ends, also to a Job. Where that is refused for good,
    a line is logged and the pod is deleted all the same. After any other failure it is not deleted, and the
    result is never ``unclear``.
    """
    written = write_condition(api, pod, condition)
    if isinstance(written, Answered) and is_refused_for_good(written.status):
        log(
            "condition-refused",
            level="warning",
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            error=f"{written.status} {written.message}",
        )
    elif not isinstance(written, Answered) or written.status >= 300:
        result, error = result_of(written)
        return "refused" if result == "unclear" else result, error
    return result_of(api.call("DELETE", _path(pod), deletion(pod.uid, grace_s), timeout_s=ANSWER_S))


def write_notice(api: Api, pod: LedgerPod, notice: EvictionNotice, spared: Mapping[str, Any] | None) -> Reply:
    """Write the notice's annotations on the pod, by its status: the timekeeper may not change anything else.
    ``spared``: a condition to write with them."""
    annotations = {
        names.EVICT_AFTER: timestamp(notice.evict_after_ms),
        names.DELETE_AFTER: timestamp(notice.delete_after_ms),
    }
    return annotate(api, pod, annotations, spared)


def annotate(
    api: Api,
    pod: LedgerPod,
    annotations: Mapping[str, str | None],
    condition: Mapping[str, Any] | None = None,
) -> Reply:
    """Write annotations on the pod by its status, and remove those that are None."""
    patch: dict[str, Any] = {"metadata": {"uid": pod.uid, "annotations": annotations}}
    if condition is not None:
        patch["status"] = {"conditions": [condition]}
    return _patch(api, pod, patch)


def remove_finalizer(api: Api, pod: LedgerPod) -> Reply:
    """Take the finalizer of an older extender from the pod: nothing else of it changes."""
    patch = {"metadata": {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [names.GANG_FORGIVEN]}}
    return api.call("PATCH", _path(pod), patch, content_type=STRATEGIC_MERGE, timeout_s=ANSWER_S)


def write_condition(api: Api, pod: LedgerPod, condition: Mapping[str, Any]) -> Reply:
    """Write one condition of the pod's status, as `disruption` makes it."""
    return _patch(api, pod, {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}})


def refusal(answer: Answered) -> Refusal:
    """What an answer means that is no success."""
    if is_gone(answer.status, answer.message):
        return "gone"
    if is_protected(answer.status, answer.message, answer.body):
        return "protected"
    return "refused" if answer.status < 500 else "unclear"


def result_of(reply: Reply) -> tuple[EvictionResult, str]:
    """The result of an eviction or a deletion, and the API server's message unless it succeeded."""
    if not isinstance(reply, Answered):
        return "unclear", reply.message
    return ("evicted", "") if reply.status < 300 else (refusal(reply), f"{reply.status} {reply.message}")


def timestamp(at_ms: int | None) -> str | None:
    """As Kubernetes writes times; None without one."""
    return None if at_ms is None else object_names.timestamp(at_ms)


def _patch(api: Api, pod: LedgerPod, patch: Mapping[str, Any]) -> Reply:
    path = f"{_path(pod)}/status"
    return api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=ANSWER_S)


def _path(pod: LedgerPod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlerView:
    """What another thread may read from the settler; each is one immutable value that the settler replaces as
    a whole."""

    # the pod of a UID; None before the settler's first decision, because budgets may have changed while no
    # settler was running
    pod: Callable[[str], LedgerPod | None]
    history: Callable[[], History]  # the budgets
    pods: Callable[[], tuple[LedgerPod, ...]]  # all that exist
    # each listed namespace's account as of this time; None before the first decision
    statements: Callable[[], tuple[Mapping[str, Statement], int] | None]
    # whether the budget protects the pod; True also of one about which the ledger has not decided yet
    is_protected: Callable[[LedgerPod], bool] = lambda _: False
    # gangs of which a member was preempted, and that have too few left
    broken: Callable[[], Iterable[BrokenGang]] = lambda: ()
    # the pods that end a hold if they leave together, this pod among them: itself for its cards, and for each
    # of its claims on GPUs all pods that use it
    together: Callable[[LedgerPod], tuple[Pods, ...]] = lambda pod: ((pod,),)
    # the members of the pod's gang that hold cards
    mates: Callable[[LedgerPod], Pods] = lambda _: ()
    # the pods that wait for the device of their claim, and the claims that hold devices for pods alone
    waiting: Callable[[], tuple[ClaimPod, ...]] = lambda: ()
    held: Callable[[], tuple[HeldClaim, ...]] = lambda: ()
    # the pod with claims of a UID, if it exists
    claim_pod: Callable[[str], ClaimPod | None] = lambda _: None
    # what the claim of this namespace and name holds
    allocated: Callable[[str, str], tuple[AllocatedDevice, ...]] = lambda _namespace, _name: ()
    # the pods whose claims hold more GPUs than they were judged for, by UID, as of this time
    excesses: Callable[[int], Mapping[str, ClaimExcess]] = lambda _: NO_EXCESSES
    # extended resource -> the class that serves it
    served_resources: Callable[[], Mapping[str, str]] = dict
    # which devices of each driver are GPUs
    rules: Callable[[], Mapping[str, DriverRule]] = lambda: rules_of(())
    # a device as its driver publishes it; None: it does not, or it is not known now
    published: Callable[[DeviceKey], PublishedDevice | None] = lambda _: None
    # the devices that no claim holds; None: that is not known now
    unheld: Callable[[], Mapping[DeviceKey, PublishedDevice] | None] = lambda: None

    def units(self, left: Collection[str] = frozenset()) -> LeavingUnits:
        """Which pods leave together, for one look. ``left``: as in `LeavingUnits`."""
        return LeavingUnits(self.together, self.mates, left)


def view_of(settler: Settler) -> SettlerView:
    """The view of this settler, from its first decision on."""

    def there(uid: str) -> LedgerPod | None:
        using = settler.cluster.claims.pods.get(uid)
        user = None if using is None or using.gone_ms is not None else using.pod
        return settler.cluster.pods.get(uid) or user

    def pod(uid: str) -> LedgerPod | None:
        return there(uid) if settler.has_decided else None

    def pods() -> tuple[LedgerPod, ...]:
        found = settler.cluster.pods.copy()  # a copy is one step for other threads
        users = (uid for uid in settler.ledger.claim_users.copy() if uid not in found)
        return (*found.values(), *(each for uid in users if (each := there(uid)) is not None))

    def statements() -> tuple[Mapping[str, Statement], int] | None:
        cache = settler.ledger.statement_cache
        if not settler.has_decided or cache is None:
            return None
        return cache.statements.namespaces, settler.ledger.pulse.decided_ms

    def is_protected(pod: LedgerPod) -> bool:
        chosen = settler.ledger.protected.get(pod.namespace)
        is_known = pod.uid in settler.ledger.claim_users or settler.ledger.session(pod.uid) is not None
        return chosen is not None and (pod.uid in chosen.uids or not is_known)

    def together(pod: LedgerPod) -> tuple[Pods, ...]:
        uses = settler.ledger.claim_users.get(pod.uid)
        if uses is None:
            return ((pod,),)
        own = [(pod.uid,)] if settler.ledger.session(pod.uid) is not None else []
        sharing = [some for each in uses if pod.uid in (some := _sharing(settler, each))]
        found = dict.fromkeys((*own, *sharing))
        return tuple(tuple(each for uid in some if (each := there(uid)) is not None) for some in found)

    def mates(pod: LedgerPod) -> Pods:
        key = pod.gang_key
        every = (settler.cluster.gangs, settler.cluster.claims.gangs) if key is not None else ()
        # a copy is one step for other threads
        uids = {uid for each in every if key in each for uid in each.get(key, set()).copy()}
        found = (it for uid in sorted(uids) if (it := there(uid)) is not None)
        return tuple(each for each in found if each.gang_key == key and each.is_charged)

    def broken() -> Iterable[BrokenGang]:
        return settler.held.broken

    def claim_pod(uid: str) -> ClaimPod | None:
        found = settler.cluster.claims.pods.get(uid)
        return None if found is None or found.gone_ms is not None else found

    def waiting() -> tuple[ClaimPod, ...]:
        every = settler.cluster.claims.pods.copy().values()
        return tuple(each for each in every if each.waits is not None and each.gone_ms is None)

    def held() -> tuple[HeldClaim, ...]:
        every = settler.cluster.claims.allocated.copy().values()
        found = ((each, [there(uid) for uid in each.consumers]) for each in every if not each.other_consumers)
        known = ((each, [pod for pod in pods if pod is not None], len(pods)) for each, pods in found)
        return tuple(HeldClaim(each, tuple(pods)) for each, pods, number in known if len(pods) == number)

    def allocated(namespace: str, name: str) -> tuple[AllocatedDevice, ...]:
        claim = settler.cluster.claims.allocated_claim(namespace, name)
        return () if claim is None else devices_of(claim)

    def more_than_judged(now_ms: int) -> Mapping[str, ClaimExcess]:
        claims, judged = settler.cluster.claims.allocated.copy().values(), settler.cluster.unjudged
        history = settler.ledger.history
        said = judged.said or ((0, judged.settings),)
        known = ClassKnowledge(judged.classes, lambda at_ms: history.settings(at_ms).drivers, said)
        return excesses(claims, claim_pod, known, now_ms)

    def published(device: DeviceKey) -> PublishedDevice | None:
        try:
            return settler.cluster.claims.pools.published(*device)
        except (KeyError, RuntimeError):  # the settler is changing them
            return None

    def unheld() -> Mapping[DeviceKey, PublishedDevice] | None:
        try:
            there = settler.cluster.claims.pools.every()
        except (KeyError, RuntimeError):  # as above
            return None
        every = settler.cluster.claims.allocated.copy().values()
        held = {key_of(device) for each in every for device in devices_of(each) if not device.is_admin}
        return {key: each for key, each in there.items() if key not in held}

    return SettlerView(
        pod=pod,
        history=lambda: settler.ledger.history,
        pods=pods,
        statements=statements,
        is_protected=is_protected,
        broken=broken,
        together=together,
        mates=mates,
        waiting=waiting,
        held=held,
        claim_pod=claim_pod,
        allocated=allocated,
        excesses=more_than_judged,
        served_resources=lambda: settler.cluster.unjudged.served_resources,
        rules=lambda: settler.cluster.claims.rules,
        published=published,
        unheld=unheld,
    )


def _sharing(settler: Settler, session_uid: str) -> tuple[str, ...]:
    """The UIDs of the pods without which the claim of this session holds nothing; none if others than pods
    use it."""
    session = settler.ledger.session(session_uid)
    claim = settler.cluster.claims.allocated.get(session.owner_uid) if session else None
    if session is None or (claim is not None and claim.other_consumers):
        return ()
    return consumers_of(session)


@dataclass(frozen=True, slots=True)
class EvictorContext:
    """``clock``: the time in Unix milliseconds, which dates notices; ``steady``: a monotonic clock in
    milliseconds, which spaces and counts evictions; ``record``: keeps a decision."""

    store: Store
    epoch: Epoch
    api: Api
    events: EventRecorder[str]
    view: SettlerView
    clock: Callable[[], int]
    steady: Callable[[], int] = monotonic_ms
    record: Record = record_nothing
    vetoes: Vetoes = field(default_factory=dict)
