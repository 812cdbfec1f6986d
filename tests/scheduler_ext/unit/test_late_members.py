"""Cards for members that a gang's controller creates later: planned with the others, kept, and taken."""

from dataclasses import replace

import pytest

from scheduler_ext.model.node import Node, read_node
from scheduler_ext.snapshot.late_cards import LateCards
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.unit.test_gangs import Extender
from tests.scheduler_ext.unit.test_late_cards import Kept, first, with_gpu, without_gpu, worker
from tests.scheduler_ext.worlds import node, on, percent, read
from tests.worlds import Json, card
from timekeeper.runtime.clock import now_ms

LATE = 360_000


def driver(*late: tuple[int, Json]) -> Json:
    return first("driver", *(late or [(2, with_gpu())]))


def late_of(extender: Extender) -> list[LateCards]:
    return [each for _, each in extender.cache.snapshot.late.items()]


def test_a_gang_starts_only_where_those_that_follow_have_cards_too() -> None:
    extender = Extender(driver(), cards=2)

    answer = extender.ask("driver", late=LATE)
    assert (answer["reserved"], answer["missing"], answer["members"], answer["cards"]) == (0, 1, 3, 1)
    assert (extender.free(), extender.written, late_of(extender)) == ([1000, 1000], {}, [])

    extender.cache.node_updated(read_node_with(3))
    answer = extender.ask("driver", late=LATE)
    assert (answer["reserved"], extender.free()) == (1, [0, 0, 0])
    assert "cards are kept for 2 that come later, until 1970-01-01T00:06:00Z" in answer["where"]
    assert list(extender.written) == ["driver"]


def read_node_with(cards: int) -> Node:
    return read_node(node("n", *(card(at) for at in range(cards))))


def test_where_the_first_ones_are_is_said_of_these_alone() -> None:
    """One of those that follow has a card of the other node."""
    extender = Extender(driver(), nodes=[node("m", card(0), card(1)), node("x", card(0))])

    assert extender.ask("driver", late=LATE)["where"] == (
        "on 1 node; cards are kept for 2 that come later, until 1970-01-01T00:06:00Z"
    )


def test_without_a_time_they_are_planned_and_not_kept() -> None:
    assert Extender(driver(), cards=2).ask("driver")["reserved"] == 0
    extender = Extender(driver(), cards=3)

    assert extender.ask("driver")["reserved"] == 1
    assert sorted(extender.free()) == [0, 1000, 1000]


def test_a_launcher_that_comes_later_needs_its_cpu_in_the_plan() -> None:
    roomy = node("n", card(0))
    roomy["status"]["allocatable"] = roomy["status"]["allocatable"] | {"cpu": "4"}
    raw = driver((1, without_gpu("4")))
    raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}

    answer = Extender(raw, nodes=[roomy]).ask("driver", late=LATE)
    assert answer["why"] == (
        "no node has the CPU and memory of train-late, of this gang, beside the members with cards"
    )
    roomy["status"]["allocatable"]["cpu"] = "5"
    assert Extender(raw, nodes=[roomy]).ask("driver", late=LATE)["reserved"] == 1


def test_more_than_the_minimum_leaves_those_that_follow_their_cards() -> None:
    """Three may start, one suffices, and one follows: with two cards one starts."""
    raws = [first(name, (1, with_gpu())) for name in ("a", "b", "c")]
    extender = Extender(*raws, cards=2)

    assert extender.ask("a", "b", "c", needed=1, late=LATE)["reserved"] == 1
    assert extender.ask("a", "b", "c", needed=2, late=LATE)["missing"] == 1


def test_a_gang_that_starts_again_keeps_cards_once() -> None:
    extender = Extender(driver(), cards=3)
    extender.ask("driver", late=LATE)

    assert extender.ask("driver", epoch=8, late=LATE)["reserved"] == 1
    assert extender.free() == [0, 0, 0]
    extender.refuses = {"driver"}
    assert extender.ask("driver", epoch=9, late=LATE)["reserved"] == 0
    assert (extender.free(), late_of(extender)) == ([0, 1000, 1000], [])


def test_a_member_that_comes_back_takes_nothing_of_what_is_kept() -> None:
    extender = Extender(driver(), first("second", (2, with_gpu())), cards=4)
    extender.ask("driver", late=LATE)
    extender.cache.pod_updated(read(on(driver(), "n", "GPU-0")))
    kept = late_of(extender)

    assert extender.ask("second", bound=["uid-driver"], epoch=8, late=LATE)["reserved"] == 1
    assert (late_of(extender), extender.free()) == (kept, [0, 0, 0, 0])


def test_a_gang_without_its_pods_keeps_nothing_and_a_killed_extender_neither() -> None:
    extender = Extender(driver(), cards=3)
    extender.ask("driver", late=LATE)
    extender.cache.expire()
    assert len(late_of(extender)) == 1
    assert late_of(Extender(driver(), cards=3)) == []

    extender.cache.pod_deleted(read(driver()))
    extender.cache.expire()
    assert (extender.free(), late_of(extender)) == ([1000, 1000, 1000], [])


def test_after_cards_were_kept_the_next_gang_starts_without() -> None:
    """They are not charged. A minute is followed by ten without."""
    extender = Extender(driver(), cards=3)
    extender.ask("driver", late=LATE)
    extender.now_ms += 60_000
    extender.cache.pod_deleted(read(driver()))
    extender.cache.expire()

    for waits_ms, kept in ((0, 0), (599_000, 0), (1_000, 1)):
        extender.now_ms += waits_ms
        until_ms = extender.now_ms // 1000 * 1000 + 60_000
        extender.cache.pod_updated(read(driver()))
        answer = extender.ask("driver", until=until_ms, late=until_ms + LATE)
        assert (answer["reserved"], len(late_of(extender))) == (1, kept)
        extender.cache.pod_deleted(read(driver()))


def test_without_followers_nothing_else_is_said_or_kept() -> None:
    raw = first("driver")
    extender = Extender(raw, cards=1)

    assert extender.ask("driver", late=LATE)["where"] == "on 1 node"
    assert late_of(extender) == []


@pytest.fixture
def kept(running: Stepped) -> Stepped:
    """A driver runs on a card of a node of three, and the others are kept for its workers; another node has a
    card that is free."""
    running.put_node(node("n", *(card(at) for at in range(3))))
    running.put_node(node("m", card(0)))
    running.put_pod(on(driver(), "n", "GPU-0"))
    (cards,) = (each for _, each in Kept().snapshot.late.items())
    cards = replace(cards, until_ms=now_ms() + LATE)
    seen = running.extender.cache.snapshot
    assert running.extender.cache.reserve([], seen, cards)
    return running


def test_a_follower_gets_the_cards_that_are_kept_and_a_single_pod_does_not(kept: Stepped) -> None:
    single = kept.put_pod(percent(100, "single"))
    assert kept.filter(single, "n", "m")["NodeNames"] == ["m"]
    assert kept.bind(single, "n") != ""

    mine = kept.put_pod(worker("w0"))
    assert kept.filter(mine, "n", "m")["NodeNames"] == ["n"]
    assert kept.bind(mine, "n") == ""
    assert kept.free("n") == [0, 0, 0]
    assert kept.filter(single, "n")["NodeNames"] == []

    last = kept.put_pod(worker("w1"))
    assert kept.bind(last, "n") == ""
    more = kept.put_pod(worker("w2"))
    assert kept.filter(more, "n", "m")["NodeNames"] == ["m"]  # none is kept for it


def test_what_is_kept_is_counted(kept: Stepped) -> None:
    def late_gpus() -> float:
        text = kept.client.get("/metrics").get_data(as_text=True)
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return float(lines["bursar_extender_late_gpus"])

    assert late_gpus() == 2.0
    assert kept.bind(kept.put_pod(worker("w0")), "n") == ""
    assert late_gpus() == 1.0
