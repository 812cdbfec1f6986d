"""How long the preemptor looks for victims: not much longer once it has found some, however many nodes."""

from msgspec.structs import replace

from scheduler_ext.controllers.victim_chooser import BREATHES_EACH, ENOUGH_NODES, LOOK_FOR_S, VictimChooser
from scheduler_ext.model.standing import NamespaceStanding
from scheduler_ext.preemption.active import PreemptionCounts
from scheduler_ext.preemption.cooldown import NOTHING_DONE
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.preemption_queue import PreemptionQueue
from scheduler_ext.preemption.victims import Choice, PreemptionContext
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.waiting.order import WaitingPod
from tests.scheduler_ext.preemption_worlds import of, pdbs, standing
from tests.scheduler_ext.worlds import node, on, percent, read, rebuilt

NODES = ENOUGH_NODES + 400
LIMITS = PreemptionLimits(180_000, 600_000, 8, "bursar-scheduler", False)
STANDINGS = standing(
    team_a=NamespaceStanding("IN_BUDGET"),
    team_b=NamespaceStanding("OVER_BUDGET", "reclaim"),
)


class Search:
    """A full cluster of debtors' pods on nodes of one card. Looking at eight nodes takes 0.01 s."""

    def __init__(self) -> None:
        self.names = [f"n{at:03}" for at in range(NODES)]
        running = [on(of(percent(100, f"p-{name}"), "team-b"), name, f"{name}-GPU-0") for name in self.names]
        self.snapshot = rebuilt([node(name) for name in self.names], running)
        self.queue = PreemptionQueue(LIMITS)
        self.queue.follow(self.snapshot, 0.0)
        self.now_s, self.breaths = 0.0, 0
        self.chooser = VictimChooser(
            LIMITS, lambda: self.now_s, self._breathe, PreemptionCounts(), lambda *_, **__: None
        )

    def _breathe(self, _seconds: float) -> None:
        self.now_s += 0.01
        self.breaths += 1

    def choice(self, name: str, share: int = 100) -> Choice | None:
        """For a waiting pod of an account in budget."""
        self.now_s, self.breaths = 0.0, 0
        pod = read(of(percent(share, name, schedulerName="bursar-scheduler"), "team-a"))
        waiting = WaitingPod(replace(pod, unschedulable=True), BINPACK, frozenset(self.names))
        context = PreemptionContext(self.snapshot.pods, STANDINGS, 0, pdbs(), NOTHING_DONE)
        return self.chooser.choice(waiting, self.snapshot, context, self.queue)


def test_once_victims_are_found_the_search_ends_soon_and_pods_begin_at_different_nodes() -> None:
    search = Search()

    found = [search.choice(f"w{at}") for at in range(4)]

    assert all(each is not None and len(each.victims) == 1 for each in found)
    assert len({each.node for each in found if each is not None}) > 1
    assert search.breaths == ENOUGH_NODES / BREATHES_EACH


def test_without_victims_it_goes_on_until_its_time_is_up() -> None:
    search = Search()

    assert search.choice("two-cards", share=200) is None
    assert search.breaths >= min(LOOK_FOR_S / 0.01, NODES / BREATHES_EACH)
