"""The laws of pods that wait: behind the gate, beside free cards, beside debtors, behind equals."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.story.balances import GROUP, Room, fits
from tests.story.card_laws import take
from tests.story.law import Law
from tests.story.leaving_laws import LATEST_MS
from tests.story.pause_laws import PauseLaws
from tests.story.people import most_milli, needs_of
from tests.story.pods import SimPod
from tests.story.simulation import LOOKAHEAD_MS, PDB_GRACE_MS, STEP_MS
from tests.timekeeper.worlds import HOUR, MINUTE

# The stated delay: PodDisruptionBudgets of debtors are respected for `pdbGrace`; replacements are spared for
# a minute, and a pod for which cards were held without use rests for one. It begins anew when a pod of the
# namespace has left for another's, which it cannot make leave for 5 minutes.
DELAY_MS = PDB_GRACE_MS + 2 * MINUTE
BACK_MS = 5 * MINUTE


@dataclass
class WaitingLaws(Law):
    """Of the reasons for which the extender refuses pods, and of the gate."""

    pauses: PauseLaws = field(kw_only=True)
    _asked: int = 0  # calls that were looked at
    # UID of a held pod -> for how long releases had paused when it could be paid
    _paused_ms: dict[str, int] = field(default_factory=dict)
    _left_ms: dict[str, int] = field(default_factory=dict)  # namespace -> when a pod was last made to leave

    def stepped(self) -> None:
        """A step of all has ended."""
        self._what_can_be_paid_is_not_held()
        self._nothing_waits_for_free_cards()
        self._only_spent_budgets_refuse()
        self._older_equals_go_first()
        if self.simulation.turns % 3 == 0:
            self._pods_in_budget_get_the_cards_of_debtors()

    def _what_can_be_paid_is_not_held(self) -> None:
        """A held pod whose accounts have budget for all that waits is released within some steps, but for
        `maxWaiting`, the bounded rate, the pauses that decision 53 allows, and failing calls. Without a
        group, budget for itself is enough for the first one of a namespace."""
        it = self.simulation
        made = it.timekeeper.held_view.statements
        self.pauses.is_due = False
        if made is None:
            return  # a settler has just started
        gated = [each for each in it.server.pods.values() if each.gated and not each.is_leaving]
        waiting, declared, unpaid = Counter[str](), Counter[str](), Counter[str]()
        if not gated:
            return
        for pod in it.server.pods.values():
            cost = most_milli(pod.work.limits, it.sizes) * (pod.length_ms or LOOKAHEAD_MS)
            for subject in (pod.namespace, GROUP + it.in_force[pod.namespace].group):
                waiting[subject] += cost if not pod.node and pod.ended_ms is None else 0
                declared[subject] += cost if pod.length_ms and pod.ended_ms is None else 0
                unpaid[subject] += cost if pod.length_ms and pod.gated else 0
        firsts = {pod.namespace: pod for pod in sorted(gated, key=_turn, reverse=True)}
        for pod in gated:
            facts, mine = it.in_force[pod.namespace], made.namespaces.get(pod.namespace)
            assert pod.bound_ms is None, "it is bound behind its gate"
            both = [(pod.namespace, mine), (GROUP + facts.group, mine.group if mine else None)]
            own = most_milli(pod.work.limits, it.sizes) * (pod.length_ms or LOOKAHEAD_MS)
            is_first = not facts.group and firsts[pod.namespace] is pod
            rooms = [
                each.balance.remaining > (own if is_first else waiting[subject])
                for subject, each in both
                if each is not None and each.balance.remaining is not None
            ]
            # a later period must be able to pay its part, and that of the pods that may go before it, by its
            # regular amount alone
            pays = [
                (h := it.in_force[each].hours) is None
                or h * HOUR > declared[each] - (unpaid[each] - own if is_first else 0)
                for each, its in both
                if its is not None and (pod.length_ms or (unpaid[each] and not is_first))
            ]
            is_so = all(rooms) and all(pays) and facts.waiting is None and not it.faults.last(it.clock())
            lasts_ms = self.lasts("held", pod.uid, is_so)
            if not lasts_ms:
                self._paused_ms[pod.uid] = self.pauses.paused_ms
            paused_ms = self.pauses.paused_ms - self._paused_ms[pod.uid]
            within_ms = 40_000 + STEP_MS * (len(gated) // 25)
            self.pauses.is_due |= lasts_ms > within_ms
            assert lasts_ms <= within_ms + paused_ms
        self.kinds["held"] += 1

    def _nothing_waits_for_free_cards(self) -> None:
        """Idle cards go to whoever waits, over budget or not: a pod that no budget and no cap refuses does
        not wait while it fits on free cards that are not held for another."""
        it, would_fit = self.simulation, self._fits(lambda _other: False)
        for uid, why in it.extender.reasons.items():
            pod = it.server.pods.get(uid)
            if pod is None or pod.is_leaving or pod.bound_ms is not None:
                continue
            self.kinds["waits over budget"] += pod.standing == "OVER_BUDGET"
            is_so = why not in ("budget", "cap") and would_fit(pod)
            lasts_ms = self.lasts("idle", uid, is_so and it.clock() >= it.faults.api_ms)
            assert lasts_ms <= 2 * STEP_MS, f"{pod.name} waits ({why}) beside free cards"

    def _pods_in_budget_get_the_cards_of_debtors(self) -> None:
        """A pod in budget does not wait longer than the stated delay while pods of a namespace over budget in
        `reclaim`, or idle ones, hold cards that it would fit on; nor longer than evictions last while pods of
        a namespace that has spent its budget hold them in `evict`."""
        it = self.simulation
        standings = it.extender.standings()

        def owes(pod: SimPod) -> bool:
            its = standings.of(pod.namespace)
            return pod.is_reclaimable or (its.over and its.on_exhausted == "reclaim")

        def leaves(pod: SimPod) -> bool:
            its = standings.of(pod.namespace)
            return owes(pod) or (its.over and its.spent and its.on_exhausted == "evict")

        waiting, would_fit, will_fit = len(it.extender.reasons), self._fits(owes), self._fits(leaves)
        number = it.size.pods * max(STEP_MS // it.size.sub_steps, 60_000 // it.size.rate)
        latest = {"debtors": DELAY_MS + waiting * STEP_MS, "leaving": LATEST_MS + DELAY_MS + number}
        for left, _ in it.server.asked[self._asked :]:
            self._left_ms[left.namespace] = it.clock()
        self._asked = len(it.server.asked)
        for uid, why in it.extender.reasons.items():
            pod = it.server.pods.get(uid)
            if pod is None or pod.is_leaving or pod.bound_ms is not None:
                continue
            is_in = standings.of(pod.namespace).status == "IN_BUDGET"
            rests = it.clock() - self._left_ms.get(pod.namespace, 0) < BACK_MS or it.faults.last(it.clock())
            is_in &= why == "room" and pod.template.extender.preempts and not rests
            is_so = is_in and would_fit(pod)
            self.kinds["waits for debtors"] += is_so
            for law, holds in (("debtors", is_so), ("leaving", is_in and (is_so or will_fit(pod)))):
                lasts_ms = self.lasts(law, uid, holds)
                assert lasts_ms <= latest[law], f"{pod.name} waits, though debtors have its cards ({law})"

    def _fits(self, leaves: Callable[[SimPod], bool]) -> Callable[[SimPod], bool]:
        """Whether a pod would fit on some node now, by the oracle, without the pods that ``leaves`` names."""
        known: dict[object, bool] = {}

        def would_fit(pod: SimPod) -> bool:
            key = pod.work.limits, pod.uid if pod.reserved is not None else ""
            if key not in known:
                used, needs = self._used(pod, leaves), needs_of(pod.work.limits)
                known[key] = any(
                    fits(needs, [used.get((name, uuid)) or Room(mib) for uuid, mib in cards.items()])
                    for name, cards in self.simulation.mib.items()
                )
            return known[key]

        return would_fit

    def _used(self, pod: SimPod, leaves: Callable[[SimPod], bool]) -> dict[tuple[str, str], Room]:
        """What the others hold of each card, by node and UUID."""
        it, found = self.simulation, dict[tuple[str, str], Room]()
        for other in it.server.pods.values():
            if other is pod or other.ended_ms is not None:
                continue
            if other.node and other.placement is not None:
                if not leaves(other):
                    take(found, it.mib[other.node], other.node, other.placement)
            elif other.reserved is not None and not other.is_leaving:
                its = other.reserved
                take(found, it.mib[its.node], its.node, its.placement)
        return found

    def _only_spent_budgets_refuse(self) -> None:
        """The extender refuses a pod for its budget only where that is spent, and denies, holds or evicts."""
        it = self.simulation
        for uid, why in it.extender.reasons.items():
            pod = it.server.pods.get(uid)
            if why == "budget" and pod is not None:
                facts = it.known[pod.namespace]
                modes = facts.mode, it.known[GROUP + facts.group].mode if facts.group else ""
                assert not facts.observes
                assert {"deny", "evict", "hold"} & {*modes}, (
                    f"{pod.name} is refused, though its budget allows it"
                )
                self.kinds["refused by the extender"] += 1

    def _older_equals_go_first(self) -> None:
        """No pod is bound while an older one waits that is equal to it, unless its cards were held for it."""
        it = self.simulation
        left = {
            _kind(pod): pod
            for uid, why in it.extender.reasons.items()
            if why == "room" and (pod := it.server.pods.get(uid)) is not None and pod.reserved is None
        }
        for each in it.bindings:
            other = left.get(_kind(each.pod))
            if other is not None and not each.was_reserved:
                self.kinds["equals"] += 1
                assert (each.pod.created_ms, each.pod.uid) < (other.created_ms, other.uid)


def _kind(pod: SimPod) -> tuple[object, ...]:
    """Pods that are equal in this are equals."""
    return pod.namespace, pod.priority, pod.work.limits


def _turn(pod: SimPod) -> tuple[int, int, str]:
    """The place of a held pod among those of its namespace: the least is released first."""
    return -pod.priority, pod.created_ms, pod.uid
