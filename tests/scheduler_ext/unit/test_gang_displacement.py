"""Who leaves so that a gang starts: compared with all sets of victims and all ways to place the members, by
an oracle that imports nothing of ours."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.displacement import Displacement, displaced
from scheduler_ext.model.pdb import PDBs
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.scheduler_ext.preemption_worlds import IN, NOW_MS, OVER, budget, of, pdbs, standing
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.worlds import node, on, percent, rebuilt
from tests.worlds import Json, card

LIMITS = PreemptionLimits(180_000, 600_000, 8, "bursar-scheduler", False)
STANDINGS = standing(team_a=IN, team_b=OVER, team_c=IN)
OLD_MS = NOW_MS - 3_600_000


def member(name: str, share: int = 100, gang: str = "g", size: int = 2, **fields: Any) -> Json:
    """A waiting member of a gang of team-a, which has its cards' gate."""
    marks = {"bursar.dev/held": "turn", "bursar.dev/gang": gang, "bursar.dev/gang-size": str(size)}
    marks |= {"bursar.dev/gang-key": f"bursar/{gang}"}
    raw = of(percent(share, name, annotations=marks, **fields), "team-a")
    raw["spec"]["schedulingGates"] = [{"name": "bursar.dev/gang"}]
    return raw


def runs(
    name: str, where: str, place: int, share: int = 100, namespace: str = "team-b", **fields: Any
) -> Json:
    """A pod that has a part of a card."""
    uuid = f"{where}-GPU-{place}"
    return of(on(percent(share, name, **fields), where, uuid), namespace)


def of_gang(
    raw: Json, gang: str, size: int, minimum: int = 0, started_ms: int = OLD_MS, **marks: str
) -> Json:
    """The pod as a member of a gang that has started then."""
    written = {"bursar.dev/held": "turn", "bursar.dev/gang": gang, "bursar.dev/gang-size": str(size)}
    written |= {"bursar.dev/gang-key": f"bursar/{gang}", "bursar.dev/gang-started": stamp(started_ms)}
    written |= {"bursar.dev/gang-minimum": str(minimum)} if minimum else {}
    metadata = raw["metadata"]
    return {**raw, "metadata": {**metadata, "annotations": {**metadata["annotations"], **written, **marks}}}


def nodes(cards: Sequence[int]) -> list[Json]:
    """ "n0" and so on, of so many cards."""
    return [node(f"n{at}", *map(card, range(count))) for at, count in enumerate(cards)]


def chosen(
    cards: Sequence[int],
    pods: Sequence[Json],
    members: Sequence[Json],
    covers: PDBs | None = None,
    **more: Any,
) -> Displacement | None:
    """Who leaves for these members."""
    snapshot = rebuilt(nodes(cards), [*pods, *members], NOW_MS)
    return found_in(snapshot, [pod["metadata"]["uid"] for pod in members], covers, **more)


def found_in(
    snapshot: Snapshot, uids: Sequence[str], covers: PDBs | None = None, **more: Any
) -> Displacement | None:
    context = PreemptionContext(snapshot.pods, STANDINGS, NOW_MS, covers or pdbs())
    given = PlanInput(snapshot, STANDINGS, lambda _: BINPACK)
    waiting = [pod for uid in uids if (pod := snapshot.pods.get(uid)) is not None]
    return displaced(waiting, given, context, LIMITS, **more)


def names(found: Displacement | None) -> list[str] | None:
    """The victims, in order; None: there is no such set."""
    return None if found is None else sorted(pod.name for pod in found.victims)


# the oracle


@dataclass
class Case:
    """``cards``: of each node; ``pods``: name, node, card, share, whether it is over budget, whether it may
    leave, and its gang ("": none); ``members``: their shares; ``spare``: how many pods each gang can lose;
    ``kept``: names of pods of which a PodDisruptionBudget lets one leave."""

    cards: list[int]
    pods: list[tuple[str, int, int, int, bool, bool, str]]
    members: list[int]
    spare: dict[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()


def fits(left: dict[tuple[int, int], int], members: Sequence[int]) -> bool:
    """Whether each member has a card with so much left, by all ways."""
    if not members:
        return True
    for place in sorted({room: place for place, room in left.items()}.values()):
        if left[place] >= members[0] and fits({**left, place: left[place] - members[0]}, members[1:]):
            return True
    return False


def starts(case: Case, gone: frozenset[str]) -> bool:
    left = {(at, place): 100 for at, count in enumerate(case.cards) for place in range(count)}
    for name, at, place, share, *_ in case.pods:
        if name not in gone:
            left[at, place] -= share
    return fits(left, sorted(case.members, reverse=True))


def sets(case: Case) -> Iterator[frozenset[str]]:
    """All sets of pods that may leave together."""
    for size in range(len(case.pods) + 1):
        for chosen_pods in combinations(case.pods, size):
            gone = frozenset(name for name, *_ in chosen_pods)
            of_gangs: dict[str, list[str]] = {}
            for name, *_, gang in case.pods:
                of_gangs.setdefault(gang, []).append(name)
            parts = [
                gang
                for gang, mates in of_gangs.items()
                if gang and case.spare[gang] < len(gone & {*mates}) < len(mates)
            ]
            if all(may for *_, may, _ in chosen_pods) and not parts and len(gone & case.kept) <= 1:
                yield gone


def best(case: Case) -> tuple[int, int] | None:
    """How many leave that are in budget, and how many in all, of the best set; None: there is none."""
    over = {name: is_over for name, _, _, _, is_over, _, _ in case.pods}
    prices = [(sum(not over[name] for name in gone), len(gone)) for gone in sets(case) if starts(case, gone)]
    return min(prices, default=None)


def case_of(chance: random.Random) -> Case:
    """At most 4 nodes and 12 pods."""
    cards = [chance.randint(1, 3) for _ in range(chance.randint(1, 4))]
    shapes = [100] if chance.random() < 0.5 else [50, 100]
    case = Case(cards, [], [chance.choice(shapes) for _ in range(chance.randint(1, min(4, sum(cards))))])
    places = [(at, place) for at, count in enumerate(cards) for place in range(count)]
    for at, place in places:
        for share in chance.choice([(100,), (50, 50), (40, 60), (70,), ()]):
            if len(case.pods) < 12:
                is_over, gang = chance.random() < 0.5, chance.choice(["", "", "", "x", "y"])
                may = is_over or chance.random() < 0.7
                case.pods.append((f"p{len(case.pods)}", at, place, share, is_over, may, gang))
    for gang in "xy":
        mates = sum(pod[-1] == gang for pod in case.pods)
        case.spare[gang] = chance.randint(0, max(0, mates - 1)) if chance.random() < 0.5 else 0
    in_budget = [pod for pod in case.pods if not pod[4] and not pod[6]]
    if chance.random() < 0.3:
        case.kept = frozenset(pod[0] for pod in chance.sample(in_budget, len(in_budget) // 2))
    return case


def objects(case: Case) -> tuple[list[Json], list[Json], PDBs]:
    pods = []
    for name, at, place, share, is_over, may, gang in case.pods:
        raw = runs(
            name,
            f"n{at}",
            place,
            share,
            "team-b" if is_over else "team-c",
            priority=0 if is_over or not may else -5,
        )
        # members of one gang are of one namespace: the gang is of pods over budget, or of others
        labels = {"bursar.dev/governed": "true"} | ({"kept": "yes"} if name in case.kept else {})
        raw["metadata"]["labels"] = labels
        if gang:
            mates = sum(pod[-1] == gang for pod in case.pods)
            raw = of_gang(raw, gang, mates, mates - case.spare[gang])
        pods.append(raw)
    members = [member(f"m{at}", share, size=len(case.members)) for at, share in enumerate(case.members)]
    covers = pdbs(budget("team-c", 1, {"matchLabels": {"kept": "yes"}}))
    return pods, members, covers


def with_gangs_of_one_kind(case: Case) -> Case:
    """A gang's pods are of one namespace, and so all over budget or none, and all may leave or none."""
    first: dict[str, tuple[bool, bool]] = {}
    pods = []
    for name, at, place, share, is_over, may, gang in case.pods:
        both = first.setdefault(gang, (is_over, may)) if gang else (is_over, may)
        pods.append((name, at, place, share, *both, gang))
    return Case(
        case.cards,
        pods,
        case.members,
        case.spare,
        frozenset(pod[0] for pod in pods if pod[0] in case.kept and not pod[4] and not pod[6]),
    )


SEEDS = [*range(40), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(40, 400))]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fewest_leave_and_those_over_budget_first(seed: int) -> None:
    case = with_gangs_of_one_kind(case_of(random.Random(seed)))
    pods, members, covers = objects(case)

    found = chosen(case.cards, pods, members, covers)

    over = {name: is_over for name, _, _, _, is_over, _, _ in case.pods}
    price = None
    if found is not None:
        gone = [pod.name for pod in found.victims]
        price = sum(not over[name] for name in gone), len(gone)
        assert frozenset(gone) in set(sets(case))
        assert starts(case, frozenset(gone))
    assert price == best(case), (case, names(found))


def large_case_of(chance: random.Random) -> Case:
    """More pods than all sets of which are tried."""
    case = case_of(chance)
    case.cards = [chance.randint(3, 5) for _ in range(chance.randint(4, 6))]
    case.pods, case.kept = [], frozenset()
    for at, count in enumerate(case.cards):
        for place in range(count):
            for share in chance.choice([(100,), (50, 50), (40, 60), (70,)]):
                is_over, gang = chance.random() < 0.5, chance.choice(["", "", "", "", "x", "y"])
                case.pods.append((f"p{len(case.pods)}", at, place, share, is_over, True, gang))
    case.spare = dict.fromkeys("xy", 0)
    return with_gangs_of_one_kind(case)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_many_pods_none_that_leaves_could_stay_and_those_over_budget_leave_first(seed: int) -> None:
    case = large_case_of(random.Random(seed))
    pods, members, covers = objects(case)

    found = chosen(case.cards, pods, members, covers)

    assert found is not None
    gone = frozenset(pod.name for pod in found.victims)
    assert starts(case, gone)
    gang_of = {name: gang or name for name, *_, gang in case.pods}
    for unit in {gang_of[name] for name in gone}:
        staying = {name for name in gone if gang_of[name] == unit}
        assert not starts(case, gone - staying), (unit, sorted(gone))
    over = frozenset(name for name, _, _, _, is_over, _, _ in case.pods if is_over)
    assert gone <= over or not starts(case, over)
