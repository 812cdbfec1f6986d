"""A namespace goes from meter to enforce and back while its pods are created, run and end: each pod has all
of a mode's treatment or nothing of it, and is charged for exactly what it held."""

import random
from collections import Counter

import pytest

from deploy.local.stack import Stack
from tests.story.flips import (
    MORE,
    SPENT,
    TREATMENT,
    Flips,
    has_ended,
    held_ms,
    is_bound,
    rate_milli,
    seen_in,
    treatment,
)
from tests.support import profile
from tests.support.waiting import eventually
from tests.timekeeper.cluster.test_metering import Lived, Recorder

pytestmark = pytest.mark.make_test("changes its modes in a city that lives")


@pytest.mark.parametrize(
    ("by_label", "rounds", "pods"),
    [
        (False, 5, 40),
        pytest.param(False, 50, 500, marks=pytest.mark.soak),
        pytest.param(True, 50, 500, marks=pytest.mark.soak),
    ],
)
def test_no_pod_has_half_of_a_modes_treatment(
    stack: Stack, reader: str, by_label: bool, rounds: int, pods: int
) -> None:
    seed = profile.seed()
    print(f"seed {seed}")
    name = f"flips-{'label' if by_label else 'entry'}-{rounds}"
    flips = Flips(stack, name, by_label, random.Random(seed))
    flips.begin()
    with Recorder(stack.cp, flips.path) as recorder:
        play(flips, rounds, pods)
        eventually(lambda: all(map(has_ended, seen_in(recorder).values())), lambda: unfinished(recorder))
        lived = seen_in(recorder)
        charged = settled(stack, reader, name, {pod for pod, each in lived.items() if held_ms(each)[0]})

    assert flips.made == len(lived) == pods
    assert flips.did["enforce"] == rounds
    assert flips.did["meter"] == rounds + 1
    kinds = Counter(kind_of(each) for each in lived.values())
    print(dict(kinds), dict(flips.did), dict(flips.refusals))
    assert min(kinds["governed"], kinds["left alone"]) > pods // 4
    assert charged_wrongly(lived, charged) == {}


def play(flips: Flips, rounds: int, pods: int) -> None:
    """So many rounds of enforcement and of metering after it; the budget is spent in half of them, mostly
    beyond the step back."""
    each = pods // (2 * rounds)
    for number in range(rounds):
        spent = SPENT[number // 2 % len(SPENT)] if number % 2 else ""
        flips.half_round("enforce", spent, each)
        delete = flips.rival() if spent == "reclaim" else None
        flips.half_round("meter", spent if number % 3 else "", each)
        if delete is not None:
            delete()


def settled(stack: Stack, reader: str, namespace: str, held: set[str]) -> dict[str, int]:
    """What each pod is charged, once these are and no session is open. (That nothing is pending says less:
    where nodes are silent for `settleAfter`, all is posted up to then.)"""
    charged: dict[str, int] = {}

    def is_settled() -> bool:
        is_open = stack.get(f"/v1/sessions?namespace={namespace}&state=open", reader)["sessions"]
        rows = stack.get(f"/v1/usage?namespace={namespace}&group=pod", reader)["rows"]
        charged.update({row["pod"]: row["posted"] for row in rows})
        return not is_open and held <= charged.keys()

    stack.wait("every session to be settled", is_settled, "timekeeper")
    return charged


def unfinished(recorder: Recorder) -> list[tuple[object, ...]]:
    """What is known of each pod that has not ended."""
    return [
        (name, each.raw["status"], sorted(treatment(each.raw)), each.raw["spec"].get("nodeName"))
        for name, each in seen_in(recorder).items()
        if not has_ended(each)
    ]


def kind_of(lived: Lived) -> str:
    """Whether the pod was governed; fails where its objects show half of a treatment."""
    first, last = lived.states[0], lived.raw
    assert "gate" not in treatment(last), last
    if "mark" in treatment(first):
        assert treatment(last) - MORE == TREATMENT - ({"cards"} if not is_bound(last) else set()), last
        return "governed"
    for raw in lived.states:
        assert treatment(raw) == set(), raw
        assert "deletionTimestamp" not in raw["metadata"], raw
        assert not any(each["type"] == "DisruptionTarget" for each in raw["status"].get("conditions", [])), (
            raw
        )
    assert last["status"]["phase"] == "Succeeded", last
    return "left alone"


def charged_wrongly(lived: dict[str, Lived], charged: dict[str, int]) -> dict[str, tuple[int, int, int]]:
    """The pods whose charge is not what they held: with the charge, and the least and most that are right."""
    wrong = {}
    for name, each in lived.items():
        least, most = (rate_milli(each.raw) * ms for ms in held_ms(each))
        if not least <= charged.get(name, 0) <= most:
            wrong[name] = charged.get(name, 0), least, most
    return wrong
