"""A pod that was deleted by force is charged no further than its node's agent lists it, and where
its node lists nothing, no further than its grace period."""

import json
import random
from typing import Any

import pytest

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.snapshot import EMPTY, expire, node_updated, pod_deleted, pod_updated, pods_listed
from tests.timekeeper.worlds import (
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
)
from timekeeper.store import sessions

START = T0 + 2 * SECOND
GRACE = 5 * MINUTE
POD = gpu_pod(started_ms=START, grace_s=GRACE // SECOND)


def told(
    *uids: str, boot: str = "b1", known: bool = True, kubelets: str = "", text: str | None = None
) -> Json:
    """The node, whose agent lists these pods."""
    raw = node()
    words: dict[str, Any] = {"version": 1, "boot": boot, "known": known, "closed": ""}
    words["pods"] = {uid: [] for uid in uids}
    raw["metadata"]["annotations"]["bursar.dev/holders"] = json.dumps(words) if text is None else text
    raw["status"] = {"nodeInfo": {"bootID": kubelets}}
    return raw


def began(town: Town, first: Json) -> None:
    """A whole card, running since two seconds after its binding."""
    entry = "gpuHours: 100\nperiod: month"
    town.begin(("nodes", first), ("leases", lease(T0)), ("configmaps", budgets(team_a=entry)))
    town.clock.turn(2 * SECOND)
    town.change("pods", POD)


def begun(town: Town, first: Json) -> Town:
    """As `began`, and the pod is deleted by force a minute later."""
    began(town, first)
    town.clock.turn(MINUTE)
    town.node_heard()
    town.change("pods", POD, deleted=True)
    return town


def charged_after(town: Town, *later: Json) -> int:
    """The seconds that are charged from the force deletion on: each version of the node comes ten seconds
    after the one before."""
    for each in later:
        town.clock.turn(10 * SECOND)
        town.change("nodes", each)
    town.advance(2 * HOUR, heard=False)
    ((start, end, rate, _),) = town.postings()
    assert (start, rate) == (START, GPU)
    return (end - START - MINUTE) // SECOND


THERE, GONE = told("uid-p"), told()


@pytest.mark.parametrize(
    ("first", "later", "seconds"),
    [
        (THERE, [GONE], 10),
        (THERE, [THERE, GONE, GONE], 20),
        (GONE, [THERE, GONE], 20),
        (THERE, [told(known=False), GONE], 20),
        (THERE, [told("uid-p", "uid-other"), told("uid-other")], 20),
        (THERE, [THERE], 300),
        (GONE, [GONE], 300),
        (node(), [GONE], 300),
        (THERE, [told(known=False)], 300),
        (THERE, [told(text="{"), node()], 300),
        (THERE, [node(), GONE], 300),
        (THERE, [told(kubelets="b2"), told(kubelets="b2")], 300),
        (GONE, [told(boot="b2", known=False), told(boot="b2")], 20),
        (GONE, [told("uid-p", boot="b2"), told("uid-p", boot="b2")], 300),
    ],
    ids=[
        "listed no longer",
        "a little later",
        "listed late",
        "the agent began anew",
        "others come and go",
        "listed for ever",
        "never listed",
        "no agent then",
        "the agent does not know",
        "words that cannot be read",
        "nobody told, so nothing follows",
        "words of an earlier boot",
        "after a reboot a pod that was never listed is charged until the agent has looked",
        "a pod that is there after a reboot is charged on",
    ],
)
def test_a_pod_deleted_by_force_is_charged_until_its_node_lists_it_no_longer(
    town: Town, first: Json, later: list[Json], seconds: int
) -> None:
    begun(town, first)

    assert charged_after(town, *later) == seconds


def test_a_pod_that_went_as_its_node_booted_anew_is_charged_until_the_agent_had_looked(
    town: Town,
) -> None:
    """All of it is heard before the next tick, as while the database is away."""
    began(town, GONE)
    town.clock.turn(MINUTE)
    town.node_heard()
    town.hear("pods", POD, deleted=True)
    for each in (told(boot="b2", known=False), told(boot="b2"), told(boot="b2")):
        town.clock.turn(10 * SECOND)
        town.hear("nodes", each)

    assert charged_after(town) == 20


def test_what_stays_beyond_its_grace_period_is_charged_until_its_node_lists_it_no_longer(town: Town) -> None:
    begun(town, THERE)
    town.clock.turn(GRACE + MINUTE)
    town.change("nodes", GONE)

    assert charged_after(town) == 360


def test_a_settler_that_was_killed_goes_on_from_what_is_listed_now(town: Town) -> None:
    begun(town, THERE)
    town.resume()

    assert charged_after(town, GONE) == 10


def test_what_a_node_said_before_its_pod_went_shortens_nothing(town: Town) -> None:
    began(town, THERE)
    town.hear("nodes", GONE)  # its container crashed, and comes up again
    town.clock.turn(MINUTE)
    town.node_heard()
    town.change("pods", POD, deleted=True)

    assert charged_after(town) == 300


def test_a_pod_with_an_object_is_charged_whatever_its_node_lists(town: Town) -> None:
    began(town, THERE)
    town.clock.turn(MINUTE)
    town.hear("nodes", GONE)
    town.advance()

    assert town.budget()["pending"] == GPU * MINUTE


def test_agents_that_write_make_no_work_for_what_rests_on_the_cards(town: Town) -> None:
    begun(town, THERE)
    before = town.settler.cluster.nodes.version
    town.hear("nodes", GONE)

    assert town.settler.cluster.nodes.version == before


# one definition of the moment


FIRST_BOOT = [
    THERE,
    GONE,
    told("uid-p", known=False),
    told(known=False),
    told("uid-p", kubelets="b1"),
    told(kubelets="b1"),
]
SECOND_BOOT = [
    told("uid-p", boot="b2", kubelets="b2"),
    told(boot="b2", kubelets="b2"),
    told(boot="b2", known=False, kubelets="b2"),
    told(kubelets="b2"),
]
NO_WORD = [told(text="{"), node()]
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8, 300))]


def freed_after(first: Json, later: list[Json]) -> int:
    """The seconds for which the extender keeps the pod's cards, told the same at the same moments."""
    pod = read_pod(POD)
    assert pod is not None
    snapshot = node_updated(pod_updated(pods_listed(EMPTY, [], 0), pod), read_node(first))
    snapshot = pod_deleted(snapshot, pod, 0)
    for number, each in enumerate(later, start=1):
        snapshot = expire(node_updated(snapshot, read_node(each)), 10_000 * number)
        if snapshot.allocation("uid-p") is None:
            return 10 * number
    return GRACE // SECOND


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pod_is_charged_for_as_long_as_the_extender_keeps_its_cards_within_its_grace(
    town: Town, seed: int
) -> None:
    rng = random.Random(seed)
    first, *later = rng.choices(FIRST_BOOT + NO_WORD, k=rng.randint(1, 5))
    later += rng.choices(SECOND_BOOT + NO_WORD, k=rng.randint(0, 4))

    assert charged_after(begun(town, first), *later) == freed_after(first, later)


def state(town: Town) -> str:
    """In which of the three lists the pod is; it is in one alone."""
    lists = ("held", "ended", "settled")
    (found,) = (name for name in lists if town.get(f"/v1/sessions?state={name}").get_json()["sessions"])
    is_open = bool(town.get("/v1/sessions?state=open").get_json()["sessions"])
    assert is_open is (found != "settled")
    return found


@pytest.mark.parametrize("first", [told(), node()], ids=["not listed", "no agent"])
def test_a_removed_pod_holds_cards_until_its_grace_is_over_and_then_awaits_its_settlement(
    town: Town, first: Json
) -> None:
    begun(town, first)
    states = []
    for ms in (GRACE - SECOND, 16 * SECOND, 30 * MINUTE, HOUR):
        town.advance(ms)
        with town.store.reading() as connection:
            states.append((state(town), sessions.nodes_of(connection, "team-a", town.clock())))

    assert states == [("held", {"n1"}), ("ended", set()), ("ended", set()), ("settled", set())]


def test_a_removed_pod_holds_cards_as_long_as_its_node_lists_it(town: Town) -> None:
    begun(town, THERE)
    states = []
    for _ in range(60):
        town.advance(10 * SECOND)
        states.append(state(town))
    town.change("nodes", GONE)
    town.advance(16 * SECOND)

    assert (set(states), state(town)) == ({"held"}, "ended")


def test_the_pods_of_a_deleted_node_hold_none_once_they_are_removed_and_their_grace_is_over(
    town: Town,
) -> None:
    began(town, node())
    town.change("nodes", node(), deleted=True)
    town.advance(MINUTE, heard=False)
    assert state(town) == "held"  # its object is there: it may run on
    town.change("pods", POD, deleted=True)
    town.advance(GRACE + 16 * SECOND, heard=False)

    assert state(town) == "ended"
