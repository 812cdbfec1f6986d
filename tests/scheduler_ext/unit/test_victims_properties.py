"""The choice of victims against an oracle that tries every set of pods and every layout, on plain numbers."""

import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.preemption.lower_bound import NEVER, ClassHoldings, LowerBound
from scheduler_ext.preemption.precedence import outranks
from scheduler_ext.preemption.victim_search import SearchLimits, fewest
from scheduler_ext.preemption.victims import Choice, PreemptionContext, candidates, choose
from scheduler_ext.snapshot.host_left import host_lack
from scheduler_ext.snapshot.node_info import without_pods
from tests.scheduler_ext.preemption_worlds import IN, OVER, UNLIMITED, budget, of, pdbs, standing
from tests.scheduler_ext.preemption_worlds import at as moment_of
from tests.scheduler_ext.worlds import asking, bound, node, read, rebuilt
from tests.worlds import Json, card, container, pod

CARD = (1000, 16_000)  # thousandths and MiB of each card
SINCE_S = 3_600


class Holdings(NamedTuple):
    """A pod on cards: the same of each. ``group``: the disruption budget over it, -1 for none."""

    on: tuple[int, ...]
    share: int
    memory: int
    priority: int
    debtor: bool
    group: int
    started_s: int
    cpu: int = 0  # cores
    ram: int = 0  # GiB of the node's memory


class ExtenderArgs(NamedTuple):
    """A container's wish: so many cards, and of each so much; whole cards untouched."""

    devices: int
    share: int
    memory: int


class World(NamedTuple):
    """Cards, who is on them, how many may be disrupted of each group, and who waits for what. ``host``: the
    node's cores, its GiB and how many pods it takes; of these a pod without cards has ``beside``, which no
    choice can take, and the waiting pod wants ``wanted``."""

    cards: int
    held: tuple[Holdings, ...]
    allowed: tuple[int, int]
    asked: tuple[ExtenderArgs, ...]
    priority: int
    host: tuple[int, int, int] = (0, 0, 110)
    beside: tuple[int, int] = (0, 0)
    wanted: tuple[int, int] = (0, 0)


# the oracle: nothing below here, up to its end, knows of our code


def oracle(world: World) -> tuple[tuple[int, ...], int] | None:
    """The victims by their place, and how many leave against a disruption budget; None where no set does."""
    eligible = [at for at, each in enumerate(world.held) if each.debtor or each.priority < world.priority]
    for size in range(len(eligible) + 1):
        sets = [each for each in combinations(eligible, size) if has_room(world, set(each))]
        if sets:
            least = min(sets, key=lambda each: what_it_costs(world, each))
            return least, broken(world, least)
    return None


def has_room(world: World, leaving: set[int]) -> bool:
    return has_what_is_beside(world, leaving) and have_cards(world, leaving)


def has_what_is_beside(world: World, leaving: set[int]) -> bool:
    """Of what is not wanted, any amount may be taken."""
    staying = [each for at, each in enumerate(world.held) if at not in leaving]
    cores = world.host[0] - world.beside[0] - sum(each.cpu for each in staying)
    gibs = world.host[1] - world.beside[1] - sum(each.ram for each in staying)
    cpu, ram = world.wanted
    return len(staying) + 2 <= world.host[2] and (not cpu or cpu <= cores) and (not ram or ram <= gibs)


def have_cards(world: World, leaving: set[int]) -> bool:
    free = [list(CARD) for _ in range(world.cards)]
    for at, each in enumerate(world.held):
        if at not in leaving:
            for card in each.on:
                free[card][0] -= each.share
                free[card][1] -= each.memory
    return can_lay_out(list(world.asked), free)


def can_lay_out(asked: list[ExtenderArgs], free: list[list[int]]) -> bool:
    if not asked:
        return True
    first, rest = asked[0], asked[1:]
    for chosen in combinations(range(len(free)), first.devices):
        if all(free[card][0] >= first.share and free[card][1] >= first.memory for card in chosen):
            after = [
                [share - first.share * (card in chosen), memory - first.memory * (card in chosen)]
                for card, (share, memory) in enumerate(free)
            ]
            if can_lay_out(rest, after):
                return True
    return False


def what_it_costs(world: World, leaving: Sequence[int]) -> tuple[Any, ...]:
    who = [world.held[each] for each in leaving]
    return (
        sum(not each.debtor for each in who),
        sorted([(not each.debtor, each.priority) for each in who], reverse=True),
        broken(world, leaving),
        sorted([SINCE_S - each.started_s for each in who], reverse=True),
        sorted(f"uid-p{each}" for each in leaving),
    )


def broken(world: World, leaving: Sequence[int]) -> int:
    groups = [world.held[each].group for each in leaving]
    return sum(max(0, groups.count(group) - world.allowed[group]) for group in (0, 1))


# its end

AMOUNTS = [
    (300, 4800),
    (500, 8000),
    (600, 9600),
    (200, 3200),
    (0, 5000),
    (0, 12_000),
    (400, 1000),
    (100, 1600),
]
WHOLE = (1000, 16_000)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A node of few cards that is not overcommitted."""
    count = draw(st.integers(1, 3))
    free = [list(CARD) for _ in range(count)]
    held = []
    for _ in range(draw(st.integers(0, 7))):
        on = tuple(sorted(draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2))))
        share, memory = draw(st.sampled_from([*AMOUNTS, WHOLE]))
        if all(free[card][0] >= share and free[card][1] >= memory for card in on):
            for card in on:
                free[card][0] -= share
                free[card][1] -= memory
            held.append(
                Holdings(
                    on,
                    share,
                    memory,
                    draw(st.integers(0, 3)),
                    draw(st.booleans()),
                    draw(st.integers(-1, 1)),
                    draw(st.integers(0, 3)),
                    draw(st.sampled_from((0, 1, 2, 5))),
                    draw(st.sampled_from((0, 1, 3))),
                )
            )
    asked = draw(st.lists(st.sampled_from([*AMOUNTS, WHOLE]), min_size=1, max_size=3))
    return World(
        count,
        tuple(held),
        (draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        tuple(ExtenderArgs(draw(st.integers(1, min(2, count))), *each) for each in asked),
        draw(st.integers(0, 4)),
        host=(
            sum(each.cpu for each in held) + draw(st.integers(0, 3)),
            sum(each.ram for each in held) + draw(st.integers(0, 3)),
            len(held) + draw(st.integers(1, 3)),
        ),
        beside=(draw(st.integers(0, 2)), draw(st.integers(0, 1))),
        wanted=(draw(st.sampled_from((0, 1, 4))), draw(st.sampled_from((0, 2)))),
    )


def wish(name: str, devices: int, share: int, memory: int) -> Json:
    """A container that asks so much of each of so many cards."""
    if share == CARD[0]:
        return container(name, gpu_count=str(devices))
    limits: dict[str, Any] = {"gpu_count": str(devices), "gpu_memory": str(devices * memory)}
    if share:
        limits["gpu_percent"] = str(devices * share // 10)
    return container(name, **limits)


def pod_on(at: int, each: Holdings) -> Json:
    """The pod as the API server would give it."""
    name = f"p{at}"
    raw = asking(wish("main", len(each.on), each.share, each.memory), name=name, priority=each.priority)
    requests(raw, each.cpu, each.ram)
    slices = [
        {"uuid": f"GPU-{card}", "index": card, "share_milli": each.share, "memory_mib": each.memory}
        for card in each.on
    ]
    raw = bound(raw, "n", json.dumps({"version": 1, "containers": {"main": slices}}))
    labels = {"group": str(each.group), "bursar.dev/governed": "true"}
    return of(raw, "debts" if each.debtor else "pays", labels=labels, started=f"00:00:0{each.started_s}")


def requests(raw: Json, cpu: int, ram: int) -> None:
    """The pod's first container requests so many cores and GiB too."""
    amounts = {"cpu": cpu, "memory": f"{ram}Gi"}
    raw["spec"]["containers"][0]["resources"]["requests"] = {
        name: str(amount) for name, amount in amounts.items() if amount not in (0, "0Gi")
    }


def beside(world: World) -> Json:
    """The pod without cards."""
    raw = pod({"name": "main", "image": "x", "resources": {}}, priority=-9)
    raw["metadata"] |= {"name": "beside", "uid": "uid-beside"}
    requests(raw, *world.beside)
    return raw | {"spec": raw["spec"] | {"nodeName": "n"}, "status": {"phase": "Running"}}


def met(world: World) -> tuple[Choice | None, PreemptionContext, Any, Any]:
    """Our choice, and what it was made of."""
    there = node("n", *(card(at) for at in range(world.cards)))
    cores, gibs, places = world.host
    host = {"cpu": str(cores), "memory": f"{gibs}Gi", "pods": str(places)}
    there["status"] |= {"allocatable": there["status"]["allocatable"] | host}
    running = [pod_on(at, each) for at, each in enumerate(world.held)]
    snapshot = rebuilt([there], [*running, beside(world)])
    wishes = [wish(f"c{at}", *each) for at, each in enumerate(world.asked)]
    raw = asking(*wishes, name="waiting", priority=world.priority)
    requests(raw, *world.wanted)
    waiting = read(raw)
    promised = pdbs(
        *(
            budget("debts" if debts else "pays", allowed, {"matchLabels": {"group": str(group)}}, f"b{group}")
            for group, allowed in enumerate(world.allowed)
            for debts in (True, False)
        )
    )
    context = moment_of(snapshot, standing(debts=OVER, pays=UNLIMITED, team_a=IN), promised)
    return choose(waiting, snapshot.node("n"), context), context, waiting, snapshot.node("n")


def one_namespace_to_a_group(world: World) -> World:
    """A disruption budget covers one namespace: debtors are under the first group's, the others under the
    second's."""
    held = tuple(
        each if each.group == -1 else each._replace(group=0 if each.debtor else 1) for each in world.held
    )
    return world._replace(held=held)


@given(worlds().map(one_namespace_to_a_group))
@example(World(1, (), (0, 0), (ExtenderArgs(1, 1000, 16_000),), 0))
@example(
    World(
        3,
        (
            Holdings((0,), 100, 1600, 0, True, -1, 0, cpu=62),
            Holdings((0,), 100, 1600, 0, True, -1, 1, cpu=1),
            Holdings((0,), 100, 1600, 0, False, -1, 1, cpu=62),
        ),
        (0, 0),
        (ExtenderArgs(2, 1000, 16_000),),
        0,
        host=(127, 0, 110),
        wanted=(8, 0),
    )
)
def test_exactly_the_set_is_chosen_that_an_exhaustive_search_finds_least(world: World) -> None:
    expected = oracle(world)

    choice, *_ = met(world)

    if expected is None:
        assert choice is None
        return
    assert choice is not None
    assert sorted(int(pod.name[1:]) for pod in choice.victims) == list(expected[0])
    assert choice.violations == expected[1]


@given(worlds())
def test_no_victim_has_equal_or_higher_rank_and_none_is_useless(world: World) -> None:
    choice, context, waiting, _ = met(world)

    if choice is None:
        return
    leaving = {int(pod.name[1:]) for pod in choice.victims}
    assert all(outranks(waiting, pod, context.standings) for pod in choice.victims)
    assert all(world.held[each].debtor or world.held[each].priority < world.priority for each in leaving)
    assert has_room(world, leaving)
    assert not any(has_room(world, leaving - {each}) for each in leaving)


@given(worlds(), st.integers(0, 12), st.integers(0, 2))
def test_beyond_its_bound_the_search_still_chooses_no_useless_victim(
    world: World, steps: int, looks: int
) -> None:
    _, context, waiting, node = met(world)
    lacks = host_lack(waiting, node)
    may_leave = candidates(waiting, node, context, [name for name, _ in lacks])

    def look(uids: Any) -> Any:
        left = without_pods(node, uids)
        answer = fit(waiting.request, left)
        return None if host_lack(waiting, left) or isinstance(answer, Refusal) else answer

    found = fewest(
        lambda held: LowerBound(waiting.request, node, held, lacks),
        may_leave,
        look,
        lambda victims: sorted(each.pod.uid for each in victims),
        SearchLimits(steps, looks),
    )

    assert (found is None) == (oracle(world) is None)
    if found is not None and not has_room(world, set()):
        leaving = {int(each.pod.name[1:]) for each in found[0]}
        assert has_room(world, leaving)
        assert not any(has_room(world, leaving - {each}) for each in leaving)


@given(worlds())
def test_the_cheap_bound_is_never_above_the_truth(world: World) -> None:
    _, context, waiting, node = met(world)
    lacks = host_lack(waiting, node)
    may_leave = candidates(waiting, node, context, [name for name, _ in lacks])
    held = [ClassHoldings(each.uses, 1, each.host) for each in may_leave]
    shortage = LowerBound(waiting.request, node, held, lacks)

    least = shortage.at_least(shortage.none, 0)

    expected = oracle(world)
    assert least <= (NEVER if expected is None else len(expected[0]))
