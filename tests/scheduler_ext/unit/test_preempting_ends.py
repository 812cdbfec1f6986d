"""Pods that drive each other out, and are made anew by their controllers at once, come to rest: by rank
alone, without any cool-down. Others loop there, or evict without success (volcano#2739, #3186, #3329)."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.precedence import rank_of
from scheduler_ext.preemption.victims import Choice, best, choose
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot, pod_deleted, pod_updated
from tests.scheduler_ext.preemption_worlds import DEMOTED, IN, NOW_MS, OVER, UNLIMITED, at, standing
from tests.scheduler_ext.worlds import node, percent, read, rebuilt
from tests.support.profile import examples
from tests.worlds import card
from timekeeper.core.values import Placement

NAMESPACES = ("pays", "owes", "demoted", "free", "unheard")
STANDINGS = standing(pays=IN, owes=OVER, demoted=DEMOTED, free=UNLIMITED)

PODS = st.lists(
    st.tuples(st.sampled_from(NAMESPACES), st.integers(0, 3), st.sampled_from((30, 50, 60, 100))),
    min_size=1,
    max_size=9,
)


class World:
    """Two nodes of two cards. Who is evicted waits again, as another pod of the same controller."""

    def __init__(self, node_constraints: list[tuple[str, int, int]]) -> None:
        self.snapshot: Snapshot = rebuilt([node(name, card(0), card(1)) for name in ("a", "b")], [])
        self.waiting: list[Pod] = []
        self.made = 0
        for namespace, priority, share in node_constraints:
            self.make(structs.replace(read(percent(share, priority=priority)), namespace=namespace))

    def make(self, like: Pod) -> None:
        """Another pod of the same kind waits."""
        self.made += 1
        name = f"p{self.made}"
        self.waiting.append(structs.replace(like, uid=f"uid-{name}", name=name, node="", placement=None))

    def bind(self, pod: Pod, where: str, placement: Placement) -> None:
        """The pod holds its cards."""
        self.waiting.remove(pod)
        self.snapshot = pod_updated(self.snapshot, structs.replace(pod, node=where, placement=placement))

    def evict(self, victim: Pod) -> None:
        """The pod has ended and its controller has made another."""
        ended = structs.replace(victim, hold=replace(victim.hold, over=True), terminal=True)
        self.snapshot = pod_deleted(pod_updated(self.snapshot, ended), ended, NOW_MS)
        self.make(victim)

    def nodes(self) -> list[NodeInfo]:
        """Both."""
        return [self.snapshot.node(name) for name in ("a", "b")]

    def ranks(self) -> list[tuple[int, int, int]]:
        """Of all who run, highest first."""
        return sorted((rank_of(pod, STANDINGS) for pod in self.snapshot.pods.values()), reverse=True)


def choice_for(world: World, pod: Pod) -> Choice | None:
    """As the preemptor chooses."""
    context = at(world.snapshot, STANDINGS)
    choices = [choose(pod, each, context) for each in world.nodes()]
    return best([each for each in choices if each is not None], context)


def step(world: World, pod: Pod) -> bool:
    """Bind the pod if it can be, also by the leaving of others; False where it must go on waiting."""
    assert pod.request is not None
    for each in world.nodes():
        placement = fit(pod.request, each)
        if not isinstance(placement, Refusal):
            world.bind(pod, each.name, placement)
            return True
    choice = choice_for(world, pod)
    if choice is None:
        return False
    before = world.ranks()
    for victim in choice.victims:
        world.evict(victim)
    found = fit(pod.request, world.snapshot.node(choice.node))
    assert not isinstance(found, Refusal), "somebody has left without success"
    world.bind(pod, choice.node, found)
    assert world.ranks() > before, "those who run rank no higher than before: this may go round and round"
    return True


@given(PODS)
@settings(max_examples=examples(60))
def test_every_eviction_succeeds_and_at_last_there_is_none(
    node_constraints: list[tuple[str, int, int]],
) -> None:
    world = World(node_constraints)

    rounds = 0
    while any(step(world, pod) for pod in list(world.waiting) if pod in world.waiting):
        rounds += 1
        assert rounds < 300

    assert all(choice_for(world, pod) is None for pod in world.waiting)
    over = [pod for pod in world.waiting if STANDINGS.of(pod.namespace).status == "IN_BUDGET"]
    assert not (over and any(_would_do(world, pod) for pod in over)), "a debtor runs where a payer would fit"


def _would_do(world: World, payer: Pod) -> bool:
    """Whether the payer would fit somewhere if no debtor ran."""
    snapshot = world.snapshot
    for pod in list(snapshot.pods.values()):
        if pod.namespace == "owes":
            ended = structs.replace(pod, hold=replace(pod.hold, over=True), terminal=True)
            snapshot = pod_deleted(pod_updated(snapshot, ended), ended, NOW_MS)
    assert payer.request is not None
    return any(not isinstance(fit(payer.request, snapshot.node(name)), Refusal) for name in ("a", "b"))
