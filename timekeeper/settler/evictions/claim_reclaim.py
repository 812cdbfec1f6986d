"""Reclaims the devices of claims: evicts pods over budget, or idle ones, for a waiting pod whose claim gets
no device, and keeps the device for that claim meanwhile. Runs in the settler's thread for evictions.

A device is on its way to one heir in two steps. First its taint is written, where the cluster serves
DeviceTaintRules; a second later all that was decided is decided again, and the pods are evicted. The taint
goes once the claim is allocated, its pod is gone, or time is up. It is the record of what is under way: the
next settler reads it and goes on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from timekeeper import metrics
from timekeeper.accounts.claims.consumers import ClaimPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.reclaim.choice import (
    FAR_MS,
    FreeableDevice,
    HeldClaim,
    ReclaimStandings,
    devices_of,
    freeable,
    heirs,
    key_of,
    leaving,
)
from timekeeper.accounts.reclaim.cooldown import ReclaimHistory
from timekeeper.core.claims.devices import PublishedDevice
from timekeeper.core.claims.drivers import rules_of
from timekeeper.core.claims.heirs import (
    DeviceKey,
    Heir,
    TaintRule,
    WantedDevice,
    selectors_by_request,
    wanted_device,
)
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.kube.eviction import EVICTION_RESULTS
from timekeeper.core.kube.node_constraints import has_unread_but_claims
from timekeeper.core.kube.node_room import why_not_on
from timekeeper.runtime.log import log
from timekeeper.settler.evictions import reasons
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.disruptions import items
from timekeeper.settler.evictions.evictor import LEAVING, evict_together, refused, tell
from timekeeper.settler.evictions.taint_rules import TaintRules
from timekeeper.store import fencing

STEP_S = 1.0
STALE_MS = 10_000  # accounts that were computed longer ago are no reason for an eviction
MOST = 8  # devices on their way at one time
KEEP_MS = 30_000  # a device is kept for its heir for so long beyond the grace period of the pods that leave
SETTLE_MS = 500  # kube-scheduler sees a taint within this time
FREED_MS = 2_000  # kube-scheduler gives out a device that came free within this time
REST_MS = 10_000  # a pod for which there is no device now is looked at again, once all others were, too
LOOKS = 16  # pods without a device in one step; each costs calls, and no other pod is evicted meanwhile
SWEEP_MS = 60_000  # between two looks for taints that are not needed
_TRIED = 5  # devices for one pod in one step
RESULTS = ("allocated", "elsewhere", "gone", "in vain", "withdrawn")


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A device on its way to its heir. ``device_class``: "" of what an earlier settler began; ``rule``: the
    name of its taint's rule, "": it has none; times are of a monotonic clock."""

    heir: LedgerPod
    claim: str
    device_class: str
    device: DeviceKey
    node: str
    rule: str
    due_ms: int  # before that no pod is evicted
    until_ms: int
    victims: frozenset[str] = frozenset()  # UIDs of the pods that are to leave
    has_evicted: bool = False


class ReclaimRound:
    """Used by one thread for as long as the epoch lasts."""

    def __init__(self, context: EvictorContext) -> None:
        self._context = context
        self._rules = TaintRules(context.api, context.steady)
        self._history = ReclaimHistory()
        self._under_way: list[UnderWay] = []
        self._is_adopted = False
        self._sweep_ms = 0
        self._resting: dict[str, int] = {}  # UID of a waiting pod -> until when
        self._held: dict[DeviceKey, str] | None = None  # the class of each held device, as of the last step
        self._freed: list[tuple[str, int]] = []  # class and time of those that came free lately
        for result in RESULTS:
            metrics.CLAIM_RECLAIMS.labels(result)
        for each in EVICTION_RESULTS:
            metrics.CLAIM_RECLAIM_EVICTIONS.labels(each)

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        self.step()
        return STEP_S

    def step(self) -> None:
        """Go on with what is under way, and begin for the pods that wait.

        Raises EpochOverError if another settler has started, UnavailableError or ConflictError if the
        database cannot be read.
        """
        standings = self._standings()
        if standings is None:
            return
        if not self._is_adopted:
            self._adopt(standings.now_ms)
        for each in self._under_way:  # an error at one leaves the others as they are by then
            self._replace(each, self._followed(each, standings))
        self._sweep()
        self._begin_for_all(standings)
        metrics.KEPT_DEVICES.set(sum(bool(each.rule) for each in self._under_way))

    def _standings(self) -> ReclaimStandings | None:
        stated, now_ms = self._context.view.statements(), self._context.clock()
        if stated is None or abs(now_ms - stated[1]) > STALE_MS:
            return None
        history = self._context.view.history()
        return ReclaimStandings(stated[0], history, max(now_ms, history.newest_ms()))

    def _confirm(self) -> None:
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)

    # what is under way

    def _adopt(self, now_ms: int) -> None:
        """Go on with what an earlier settler began: its pods have left or are leaving. All else is begun
        anew."""
        rules = self._rules.all()
        if rules is None:
            return
        self._confirm()
        self._is_adopted = True
        at_ms = self._context.steady()
        staying = {
            key_of(device)
            for each in self._context.view.held()
            if any(pod.is_staying for pod in each.pods)
            for device in devices_of(each.claim)
        }
        for rule in rules:
            pod = self._context.view.claim_pod(rule.heir.pod_uid) if rule.heir else None
            if rule.heir is None or pod is None or rule.selected in staying:
                continue  # the sweep removes it, if it is ours
            left_ms = min(rule.heir.until_ms - now_ms, FAR_MS + KEEP_MS)
            published = self._context.view.published(rule.selected)
            self._under_way.append(
                UnderWay(
                    pod.pod,
                    rule.heir.claim,
                    "",
                    rule.selected,
                    published.node if published else "",
                    rule.name,
                    at_ms,
                    at_ms + left_ms,
                    has_evicted=True,
                )
            )

    def _followed(self, one: UnderWay, standings: ReclaimStandings) -> UnderWay | None:
        """What is under way, one step later; None once it has ended."""
        result = self._result(one)
        if not result and not one.has_evicted and self._context.steady() >= one.due_ms:
            one = self._evicted(one, standings)
            result = "" if one.has_evicted else "withdrawn"
        if not result:
            return one
        self._end(one, result)
        return None

    def _replace(self, one: UnderWay, after: UnderWay | None) -> None:
        every = [after if each is one else each for each in self._under_way]
        self._under_way = [each for each in every if each is not None]

    def _result(self, one: UnderWay) -> str:
        """How it ended; "": it has not."""
        held = self._context.view.allocated(one.heir.namespace, one.claim)
        if held:
            return "allocated" if one.device in map(key_of, held) else "elsewhere"
        heir = self._context.view.claim_pod(one.heir.uid)
        if heir is None or not heir.pod.can_be_bound:
            return "gone"
        if self._context.steady() >= one.until_ms:
            return "in vain" if one.has_evicted else "withdrawn"
        return ""

    def _end(self, one: UnderWay, result: str) -> None:
        metrics.CLAIM_RECLAIMS.labels(result).inc()
        log(
            "claim-reclaim-ended",
            result=result,
            namespace=one.heir.namespace,
            pod=one.heir.name,
            claim=one.claim,
            device="/".join(one.device),
        )
        if one.has_evicted and result != "allocated":
            self._history = self._history.after_vain(
                one.heir.namespace, one.device_class, self._context.steady()
            )
            self._freed.append((one.device_class, self._context.steady()))
        if result == "in vain":
            tell(self._context, one.heir, reasons.room_not_used(one.heir, one.node), "Normal")
        if one.rule and not self._rules.remove(one.rule):
            self._sweep_ms = self._context.steady()  # at once again

    def _sweep(self) -> None:
        """Remove the taints that are not needed, such as those of a settler that was killed."""
        at_ms = self._context.steady()
        if not self._is_adopted or at_ms < self._sweep_ms:
            return
        rules = self._rules.all()
        if rules is None:
            return
        self._sweep_ms = at_ms + SWEEP_MS
        needed = {each.rule for each in self._under_way}
        left = [each for each in rules if each.heir is not None and each.name not in needed]
        if left:
            self._confirm()
        for each in left:
            if not self._rules.remove(each.name):
                self._sweep_ms = at_ms

    def _evicted(self, one: UnderWay, standings: ReclaimStandings) -> UnderWay:
        """The same after the evictions, if all that was decided is so still."""
        self._confirm()
        self._history = self._history.after_trying(one.device, self._context.steady())
        heir = self._context.view.claim_pod(one.heir.uid)
        found = self._freeable(one.device_class, standings)
        device = next((each for each in found if each.key == one.device), None)
        if heir is None or device is None or not heirs([heir], standings):
            return one
        if {pod.uid for pod in device.pods} != one.victims or self._is_spared(device, heir.pod):
            return one
        if self._why_not(heir, device):
            return one
        whys = [(pod, reasons.reclaimed(pod, heir.pod, one.node)) for pod in device.pods]
        left = [pod for pod, result in evict_together(self._context, whys) if result in LEAVING]
        if not left:
            return one
        at_ms, on_ms = self._context.steady(), self._context.clock()
        for pod in left:
            self._history = self._history.after_eviction(pod, heir.pod, at_ms, on_ms)
        said = reasons.room_is_made(heir.pod, left[0], one.node, bool(one.rule))
        tell(self._context, heir.pod, said, "Normal")
        return replace(one, has_evicted=True, until_ms=at_ms + _grace_ms(device.pods) + KEEP_MS)

    # what begins

    def _begin_for_all(self, standings: ReclaimStandings) -> None:
        at_ms, view = self._context.steady(), self._context.view
        self._resting = {uid: until for uid, until in self._resting.items() if until > at_ms}
        waiting = heirs(view.waiting(), standings)
        held = view.held() if waiting else ()
        is_any_idle = any(pod.is_reclaimable for each in held for pod in each.pods)
        if not waiting or not (standings.has_debtors or is_any_idle):
            self._held, self._freed = None, []
            return
        is_first = self._held is None
        self._note_freed(held, at_ms)
        if is_first or not self._is_adopted:
            return  # it is not known what came free a moment ago
        several = len({each.pod.namespace for each in waiting}) > 1
        coming: dict[str, int] = {}  # class -> devices that come free anyway, and are for no heir yet
        rests_ms, looks = max(REST_MS, (len(waiting) // LOOKS + 2) * 1000), 0
        for each in waiting:
            mine = sum(one.heir.namespace == each.pod.namespace for one in self._under_way)
            if len(self._under_way) >= MOST or (several and mine >= MOST // 2):
                continue
            if each.uid in self._resting or self._is_served(each):
                continue
            if self._is_in_vain(each, held, coming, standings):
                self._resting[each.uid] = at_ms + rests_ms
                looks += 1
            if looks >= LOOKS:
                return

    def _is_served(self, heir: ClaimPod) -> bool:
        """Whether a device is on its way to the claim, for this pod or another that shares it."""
        claim = heir.waits.claim if heir.waits else ""
        return (heir.pod.namespace, claim) in {(each.heir.namespace, each.claim) for each in self._under_way}

    def _is_in_vain(
        self, heir: ClaimPod, held: Sequence[HeldClaim], coming: dict[str, int], standings: ReclaimStandings
    ) -> bool:
        """Begin for the pod. Whether there is no device for it now."""
        wanted, at_ms = self._wanted(heir), self._context.steady()
        if wanted is None or self._history.refuses(heir.pod.namespace, wanted.device_class, at_ms):
            return True
        name = wanted.device_class
        coming.setdefault(name, self._coming(held, name, standings.now_ms))
        coming[name] -= 1
        if coming[name] >= 0:
            return False  # kube-scheduler may give it one of these
        found = self._chosen(heir, wanted, standings)
        return found is None or not self._start(heir, wanted, found, standings.now_ms)

    def _coming(self, held: Iterable[HeldClaim], device_class: str, now_ms: int) -> int:
        """How many devices of the class come free, or came free a moment ago, without an heir of theirs."""
        taken = {each.device for each in self._under_way}
        going = [each for each in leaving(held, device_class, now_ms) if each not in taken]
        return len(going) + sum(each == device_class for each, _ in self._freed)

    def _note_freed(self, held: Sequence[HeldClaim], at_ms: int) -> None:
        now = {key_of(each): each.device_class for one in held for each in devices_of(one.claim)}
        taken = {each.device for each in self._under_way}
        gone = [name for key, name in (self._held or {}).items() if key not in now and key not in taken]
        kept = [each for each in self._freed if at_ms - each[1] < FREED_MS]
        self._held, self._freed = now, [*kept, *((name, at_ms) for name in gone)]

    def _chosen(
        self, heir: ClaimPod, wanted: WantedDevice, standings: ReclaimStandings
    ) -> FreeableDevice | None:
        at_ms, taken = self._context.steady(), {each.device for each in self._under_way}
        found = [
            each
            for each in self._freeable(wanted.device_class, standings)
            if each.key not in taken
            and not self._history.rests(each.key, at_ms)
            and not self._is_spared(each, heir.pod)
        ]
        rules = self._rules.all() if found else ()
        if rules is None:
            return None
        for each in found[:_TRIED]:
            why = self._why_unfit(heir, wanted, each, rules)
            if not why:
                return each
            self._history = self._history.after_trying(each.key, at_ms)
            log("claim-reclaim-spared", device="/".join(each.key), pod=heir.pod.name, reason=why)
        return None

    def _why_unfit(
        self, heir: ClaimPod, wanted: WantedDevice, device: FreeableDevice, rules: Iterable[TaintRule]
    ) -> str:
        """Why the device would not go to the heir, or its pods may not be evicted; "" if neither."""
        if any(each.covers(device.key) for each in rules):
            return "a taint keeps claims off the device"
        claim = device.held.claim
        raw = self._one(f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims", claim.name)
        met = selectors_by_request(raw).get(device.device.request, ()) if raw else ()
        if not set(wanted.selectors) <= set(met):
            return "the device was allocated on other terms"
        whys = [(pod, reasons.reclaimed(pod, heir.pod, device.node)) for pod in device.pods]
        over = refused(self._context, whys)
        return self._why_not(heir, device) or ("" if over is None else f"{over[0][0].name}: {over[2]}")

    def _start(self, heir: ClaimPod, wanted: WantedDevice, device: FreeableDevice, now_ms: int) -> bool:
        """Write the taint. False: it could not be written."""
        self._confirm()
        claim = heir.waits.claim if heir.waits else ""
        at_ms, lasts_ms = self._context.steady(), _grace_ms(device.pods) + KEEP_MS
        rule: str | None = ""
        if wanted.token and self._rules.version():
            record = Heir(heir.pod.namespace, claim, heir.uid, now_ms + lasts_ms)
            rule = self._rules.keep(device.key, record, wanted.token)
        if rule is None:
            return False
        begun = UnderWay(
            heir.pod,
            claim,
            wanted.device_class,
            device.key,
            device.node,
            rule,
            at_ms + SETTLE_MS,
            at_ms + KEEP_MS,
            frozenset(pod.uid for pod in device.pods),
        )
        self._under_way.append(begun)
        return True

    # what is known

    def _freeable(self, device_class: str, standings: ReclaimStandings) -> list[FreeableDevice]:
        view = self._context.view

        def is_debtor(pod: LedgerPod) -> bool:
            owes = standings.owes(pod.namespace) or pod.is_reclaimable
            return owes and not view.is_protected(pod) and standings.history.was_enforced(pod)

        rules = rules_of(standings.history.settings(standings.now_ms).drivers)

        def published_gpu(device: DeviceKey) -> PublishedDevice | None:
            found, rule = view.published(device), rules.get(device[0])
            return found if rule is not None and rule.is_gpu(found) else None

        at_ms = self._context.steady()
        units = view.units(self._history.left(at_ms))
        return freeable(view.held(), device_class, published_gpu, is_debtor, units.least)

    def _is_spared(self, device: FreeableDevice, heir: LedgerPod) -> bool:
        at_ms = self._context.steady()
        return any(self._history.spares(pod, heir, at_ms) for pod in device.pods)

    def _wanted(self, heir: ClaimPod) -> WantedDevice | None:
        if heir.waits is None:
            return None
        path = f"/apis/resource.k8s.io/v1/namespaces/{heir.pod.namespace}/resourceclaims"
        raw = self._one(path, heir.waits.claim)
        if raw is None or mapping(raw.get("status")).get("allocation"):
            return None
        return wanted_device(raw)

    def _why_not(self, heir: ClaimPod, device: FreeableDevice) -> str:
        """Why the node would not take the heir once the pods have left; "" if it would."""
        raw = self._one(f"/api/v1/namespaces/{heir.pod.namespace}/pods", heir.pod.name)
        node = self._one("/api/v1/nodes", device.node)
        on_node = urlencode({"fieldSelector": f"spec.nodeName={device.node}"})
        pods = items(self._context.api, f"/api/v1/pods?{on_node}")
        if raw is None or node is None or isinstance(pods, str):
            return "the API server does not say what is on the node"
        if mapping(raw.get("metadata")).get("uid") != heir.uid or has_unread_but_claims(raw):
            return "it is not known whether the pod fits on the node"
        return why_not_on(node, raw, pods, {pod.uid for pod in device.pods})

    def _one(self, path: str, name: str) -> Json | None:
        """The object of this name; None: there is none, or it is not known."""
        found = items(self._context.api, f"{path}?{urlencode({'fieldSelector': f'metadata.name={name}'})}")
        return found[0] if found and not isinstance(found, str) else None


def _grace_ms(pods: Iterable[LedgerPod]) -> int:
    return max((pod.hold.grace_ms for pod in pods), default=0)
