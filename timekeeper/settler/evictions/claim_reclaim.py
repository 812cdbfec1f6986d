"""Reclaims the devices of claims: evicts pods over budget, or idle ones, for a waiting pod whose claims get
no devices, and keeps each device for its claim meanwhile. Runs in the settler's thread for evictions.

The devices of one node are on their way to one heir in two steps. First their taints are written, where the
cluster serves DeviceTaintRules; a second later all that was decided is decided again, and the pods are
evicted. The taints go once the claims are allocated, their pod is gone, or time is up. They are the record of
what is under way: the next settler reads them and goes on.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex

from timekeeper import metrics
from timekeeper.accounts.claims.claim_sessions import user_uids
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.reclaim.choice import (
    HeldClaim,
    ReclaimStandings,
    devices_of,
    heirs,
    key_of,
    leaving,
)
from timekeeper.accounts.reclaim.cooldown import ReclaimHistory
from timekeeper.accounts.reclaim.plan import Need, ReclaimPlan, assigned, best_plan
from timekeeper.accounts.reclaim.under_way import KEEP_MS, KeptDevice, UnderWay, adopted
from timekeeper.core.claims.heirs import (
    DeviceKey,
    Heir,
    TaintRule,
    WantedDevice,
)
from timekeeper.core.kube.eviction import EVICTION_RESULTS
from timekeeper.log import log
from timekeeper.settler.evictions import reasons
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.evictor import LEAVING, evict_together, note_veto, refused, tell
from timekeeper.settler.evictions.known_devices import KnownDevices
from timekeeper.settler.evictions.taint_rules import TaintRules
from timekeeper.store import fencing

STEP_S = 1.0
STALE_MS = 10_000  # accounts that were computed longer ago are no reason for an eviction
MOST = 8  # devices on their way, with which nothing else begins
SETTLE_MS = 500  # kube-scheduler sees a taint within this time
FREED_MS = 2_000  # kube-scheduler gives out a device that came free within this time
REST_MS = 10_000  # a pod for which there is no device now is looked at again, once all others were, too
LOOKS = 16  # pods without a device in one step; each costs calls, and no other pod is evicted meanwhile
SWEEP_MS = 60_000  # between two looks for taints that are not needed
_TRIED = 5  # devices for one pod in one step
Assigned = Mapping[DeviceKey, WantedDevice]
RESULTS = ("allocated", "elsewhere", "gone", "expired", "withdrawn")


class ReclaimRound:
    """Used by one thread for as long as the epoch lasts."""

    def __init__(self, context: EvictorContext) -> None:
        self._context, self._view = context, context.view()
        self._rules = TaintRules(context.api, context.steady)
        self._known = KnownDevices(context)
        self._history = ReclaimHistory()
        self._under_way: list[UnderWay] = []
        self._used: dict[DeviceKey, str] = {}  # freed devices that removed pods may use -> their rules
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
        self._look()
        standings = self._standings()
        if standings is None:
            return
        if not self._is_adopted:
            self._adopt(standings.now_ms)
        for each in self._under_way:  # an error at one leaves the others as they are by then
            self._replace(each, self._followed(each, standings))
        self._keep_used(standings.now_ms)
        self._sweep()
        self._begin_for_all(standings)
        metrics.KEPT_DEVICES.set(sum(len(each.rules) for each in self._under_way))

    def _look(self) -> None:
        """Go on with what the last tick says."""
        self._view = self._context.view()
        self._known.look(self._view)

    def _standings(self) -> ReclaimStandings | None:
        view, now_ms = self._view, self._context.clock()
        if view.statements is None or abs(now_ms - view.decided_ms) > STALE_MS:
            return None
        in_force_ms = max(now_ms, view.history.newest_ms())
        return ReclaimStandings(view.statements.namespaces, view.history, in_force_ms)

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
        staying = {
            key_of(device)
            for each in self._view.held_claims()
            if any(pod.is_staying for pod in each.pods)
            for device in devices_of(each.claim)
        }
        ours: dict[str, list[TaintRule]] = {}
        for rule in rules:
            if rule.heir is not None:
                ours.setdefault(rule.heir.pod_uid, []).append(rule)
        for uid, mine in ours.items():
            pod = self._view.cluster.user(uid)
            if pod is None or not staying.isdisjoint(each.selected for each in mine):
                continue  # the sweep removes them
            published = self._view.published_device(mine[0].selected)
            node = published.node if published else ""
            self._under_way.append(adopted(pod, mine, node, now_ms, self._context.steady()))

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
        heir = self._view.cluster.user(one.heir.uid)
        names = [name or (heir.uses.served_by if heir else "") for name in one.claims]
        held = [self._view.allocated(one.heir.namespace, name) for name in names]
        if all(held):
            there = {key_of(device) for each in held for device in each}
            return "allocated" if one.keys <= there else "elsewhere"
        if heir is None or not heir.can_be_bound:
            return "gone"
        if self._context.steady() >= one.until_ms:
            return "expired" if one.has_evicted else "withdrawn"
        return ""

    def _end(self, one: UnderWay, result: str) -> None:
        metrics.CLAIM_RECLAIMS.labels(result).inc()
        log(
            "claim-reclaim-ended",
            result=result,
            namespace=one.heir.namespace,
            pod=one.heir.name,
            claims=sorted(one.claims),
            devices=["/".join(each.device) for each in one.kept],
        )
        at_ms = self._context.steady()
        for each in one.kept if one.has_evicted and result != "allocated" else ():
            self._history = self._history.after_unused(one.heir.namespace, each.device_class, at_ms)
            self._freed.append((each.device_class, at_ms))
        if result == "expired":
            said = reasons.evictions_unused(one.heir, one.node, len(one.kept))
            tell(self._context, one.heir, said, "Normal")
        self._remove(one.rules)

    def _remove(self, rules: Iterable[str]) -> None:
        for each in rules:
            if not self._rules.remove(each):
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
        needed = {rule for each in self._under_way for rule in each.rules} | {*self._used.values()}
        left = [each for each in rules if each.heir is not None and each.name not in needed]
        if left:
            self._confirm()
        for each in left:
            if not self._rules.remove(each.name):
                self._sweep_ms = at_ms

    def _keep_used(self, now_ms: int) -> None:
        """Keep free devices from all claims for as long as pods that were removed by force may use them."""
        freed, is_metered = self._view.freed.items(), self._view.cluster.metered.meters
        kept = {key: each for key, each in freed if now_ms < each.until_ms and not is_metered(each.namespace)}
        for key in self._used.keys() - kept.keys():
            self._remove([self._used.pop(key)])
        new = kept.keys() - self._used.keys()
        if not new or not self._is_adopted or not self._rules.version():
            return
        self._confirm()
        for key in new & self._view.unheld().keys():
            session = kept[key]
            record = Heir(session.namespace, session.name, user_uids(session)[0], session.until_ms)
            rule = self._rules.keep(key, record, token_hex(16))
            if rule is not None:
                self._used[key] = rule

    def _evicted(self, one: UnderWay, standings: ReclaimStandings) -> UnderWay:
        """The same after the evictions, if all that was decided is so still."""
        self._confirm()
        self._look()
        at_ms = self._context.steady()
        for each in one.kept:
            self._history = self._history.after_trying(each.device, at_ms)
        heir = self._view.cluster.user(one.heir.uid)
        classes = {each.device_class for each in one.kept}
        every = self._known.freeable(classes, standings, self._history.left(at_ms))
        found = [each for each in every if each.key in one.keys]
        if heir is None or not found or not heirs([heir], standings):
            return one
        plan = ReclaimPlan(tuple(found))
        if {pod.uid for pod in plan.pods} != one.victims or self._is_spared(plan.pods, heir):
            return one
        if not self._is_all_there_is(one, plan) or self._known.why_not(heir, plan):
            return one
        return self._evicted_all(one, plan)

    def _is_all_there_is(self, one: UnderWay, plan: ReclaimPlan) -> bool:
        """Whether the devices are those that were to come free, beside all that are free there."""
        others = one.keys - {*plan.keys}
        if len(one.kept) == 1:
            return not others
        rules = self._rules.all()
        if rules is None:
            return False
        free = self._known.free(plan.node, plan.devices, [it for it in rules if it.name not in one.rules])
        return free.keys() == others

    def _evicted_all(self, one: UnderWay, plan: ReclaimPlan) -> UnderWay:
        whys = [(pod, reasons.reclaimed(pod, one.heir, one.node)) for pod in plan.pods]
        left = [pod for pod, result in evict_together(self._context, whys) if result in LEAVING]
        if not left:
            return one
        at_ms, on_ms = self._context.steady(), self._context.clock()
        for pod in left:
            self._history = self._history.after_eviction(pod, one.heir, at_ms, on_ms)
        is_kept = len(one.rules) == len(one.kept)
        said = reasons.victims_evicted(one.heir, left[0], one.node, len(one.kept), is_kept)
        tell(self._context, one.heir, said, "Normal")
        return replace(one, has_evicted=True, until_ms=at_ms + _grace_ms(plan.pods) + KEEP_MS)

    # what begins

    def _begin_for_all(self, standings: ReclaimStandings) -> None:
        at_ms, view = self._context.steady(), self._view
        self._resting = {uid: until for uid, until in self._resting.items() if until > at_ms}
        waiting = heirs(view.waiting(), standings)
        held = view.held_claims() if waiting else ()
        is_any_idle = any(pod.is_reclaimable for each in held for pod in each.pods)
        if not waiting or not (standings.has_debtors or is_any_idle):
            self._held, self._freed = None, []
            return
        is_first = self._held is None
        self._note_freed(held, at_ms)
        if is_first or not self._is_adopted:
            return  # it is not known what came free a moment ago
        several = len({heir.namespace for heir in waiting}) > 1
        coming: dict[str, int] = {}  # class -> devices that come free anyway, and are for no heir yet
        rests_ms, looks = max(REST_MS, (len(waiting) // LOOKS + 2) * 1000), 0
        for each in waiting:
            every = sum(len(way.kept) for way in self._under_way)
            mine = sum(len(way.kept) for way in self._under_way if way.heir.namespace == each.namespace)
            if every >= MOST or (several and mine >= MOST // 2):
                continue
            if each.uid in self._resting or self._is_served(each):
                continue
            if self._is_fruitless(each, held, coming, standings):
                self._resting[each.uid] = at_ms + rests_ms
                looks += 1
            if looks >= LOOKS:
                return

    def _is_served(self, heir: LedgerPod) -> bool:
        """Whether a device is on its way to it, or to one of its claims for another that shares it."""
        claims = heir.uses.waits.claims if heir.uses.waits else ()
        same = (way for way in self._under_way if way.heir.namespace == heir.namespace)
        return any(each.heir.uid == heir.uid or not each.claims.isdisjoint(claims) for each in same)

    def _is_fruitless(
        self, heir: LedgerPod, held: Sequence[HeldClaim], coming: dict[str, int], standings: ReclaimStandings
    ) -> bool:
        """Begin for the pod. Whether there are no devices for it now."""
        wanted, at_ms = self._known.wanted(heir), self._context.steady()
        need = Counter(each.device_class for each in wanted)
        if not need or any(self._history.refuses(heir.namespace, device, at_ms) for device in need):
            return True
        for name in need:
            coming.setdefault(name, self._coming(held, name, standings.now_ms))
        if all(coming[name] >= number for name, number in need.items()):
            coming.update({name: coming[name] - number for name, number in need.items()})
            return False  # kube-scheduler may give it these
        plan = self._chosen(heir, wanted, need, standings)
        return plan is None or not self._start(heir, *plan, standings.now_ms)

    def _coming(self, held: Iterable[HeldClaim], device_class: str, now_ms: int) -> int:
        """How many devices of the class come free, or came free a moment ago, without an heir of theirs."""
        taken = self._taken()
        going = [each for each in leaving(held, device_class, now_ms) if each not in taken]
        return len(going) + sum(each == device_class for each, _ in self._freed)

    def _taken(self) -> set[DeviceKey]:
        """The devices that are on their way to an heir."""
        return {key for each in self._under_way for key in each.keys}

    def _note_freed(self, held: Sequence[HeldClaim], at_ms: int) -> None:
        now = {key_of(each): each.device_class for one in held for each in devices_of(one.claim)}
        taken = self._taken()
        gone = [name for key, name in (self._held or {}).items() if key not in now and key not in taken]
        kept = [each for each in self._freed if at_ms - each[1] < FREED_MS]
        self._held, self._freed = now, [*kept, *((name, at_ms) for name in gone)]

    def _chosen(
        self, heir: LedgerPod, wanted: Sequence[WantedDevice], need: Need, standings: ReclaimStandings
    ) -> tuple[ReclaimPlan, Assigned] | None:
        """The devices, and what each is for."""
        at_ms, taken = self._context.steady(), self._taken()
        found = [
            each
            for each in self._known.freeable(need, standings, self._history.left(at_ms))
            if each.key not in taken
            and not self._history.rests(each.key, at_ms)
            and not self._is_spared(each.pods, heir)
        ]
        rules = self._rules.all() if found else ()
        if rules is None:
            return None
        beside = self._known.beside(found, wanted, rules) if len(wanted) > 1 else None
        for _ in range(_TRIED):
            plan = best_plan(found, need, beside)
            if plan is None:
                return None
            assignment, why, unfit = self._judged(heir, wanted, plan, rules)
            if assignment is not None and not why:
                return plan, assignment
            for each in unfit:
                self._history = self._history.after_trying(each, at_ms)
                log("claim-reclaim-spared", device="/".join(each), pod=heir.name, reason=why)
            found = [each for each in found if each.key not in unfit]
        return None

    def _judged(
        self,
        heir: LedgerPod,
        wanted: Sequence[WantedDevice],
        plan: ReclaimPlan,
        rules: Iterable[TaintRule],
    ) -> tuple[Assigned | None, str, list[DeviceKey]]:
        """For what each device is; why they would not go to the heir, or their pods may not be evicted, "" if
        neither; and for which devices that is so."""
        covered = [key for key in plan.keys if any(each.covers(key) for each in rules)]
        if covered:
            return None, "a taint keeps claims off the device", covered
        met = {each.key: self._known.terms(each) for each in plan.devices}
        met |= {each.key: self._known.terms(each.like) for each in plan.free}
        assignment = assigned(plan, met, wanted)
        if assignment is None:
            return None, "the device was allocated on other terms", _on_other_terms(plan, met, wanted)
        whys = [(pod, reasons.reclaimed(pod, heir, plan.node)) for pod in plan.pods]
        over = refused(self._context, whys)
        if over is not None:
            (pod, _), result, error = over
            note_veto(self._context, pod, result, error)
            return None, f"{pod.name}: {error}", [device.key for device in plan.devices if pod in device.pods]
        return assignment, self._known.why_not(heir, plan), plan.keys

    def _start(self, heir: LedgerPod, plan: ReclaimPlan, assignment: Assigned, now_ms: int) -> bool:
        """Write the taints, those of held devices first: by one of these the next settler sees that no pod
        was evicted yet. False: one could not be written."""
        self._confirm()
        at_ms, until_ms = self._context.steady(), now_ms + _grace_ms(plan.pods) + KEEP_MS
        kept: list[KeptDevice] = []
        for key in plan.classes:
            wanted = assignment[key]
            rule: str | None = ""
            if wanted.token and self._rules.version():
                record = Heir(heir.namespace, wanted.claim, heir.uid, until_ms)
                rule = self._rules.keep(key, record, wanted.token)
            if rule is None:
                self._remove(each.rule for each in kept if each.rule)
                return False
            kept.append(KeptDevice(key, wanted.device_class, wanted.claim, rule))
        victims = frozenset(pod.uid for pod in plan.pods)
        begun = UnderWay(heir, tuple(kept), plan.node, at_ms + SETTLE_MS, at_ms + KEEP_MS, victims)
        self._under_way.append(begun)
        return True

    def _is_spared(self, pods: Iterable[LedgerPod], heir: LedgerPod) -> bool:
        at_ms, now_ms = self._context.steady(), self._context.clock()
        resting = {uid for uid, veto in self._context.vetoes.items() if veto.rests(now_ms)}
        return any(pod.uid in resting or self._history.spares(pod, heir, at_ms) for pod in pods)


def _on_other_terms(
    plan: ReclaimPlan, met: Mapping[DeviceKey, frozenset[str]], wanted: Iterable[WantedDevice]
) -> list[DeviceKey]:
    """The devices that meet nothing of what is wanted; all, if there are none."""
    terms = {(each.device_class, frozenset(each.selectors)) for each in wanted}
    unfit = [
        key
        for key, device_class in plan.classes.items()
        if not any(name == device_class and some <= met[key] for name, some in terms)
    ]
    return unfit or plan.keys


def _grace_ms(pods: Iterable[LedgerPod]) -> int:
    return max((pod.hold.grace_ms for pod in pods), default=0)
