"""A drain through the extender's call and verbs: cards kept empty for one gang, for a bounded time."""

import json
from typing import Any

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.gangs.drains import LASTS_MS
from scheduler_ext.gangs.reserve import GangReservations
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_any
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.unit.test_gangs import member
from tests.scheduler_ext.worlds import node, on, percent, read
from tests.worlds import Json, card
from timekeeper.runtime.clock import now_ms
from timekeeper.runtime.http.problem_details import Problem

MINUTE = 60_000
UNTIL = 15 * MINUTE


class Draining:
    """A cache with a clock that is turned by hand, and the call. A node has two cards, one of them in use."""

    def __init__(self, *raws: Json) -> None:
        self.at_ms = 1_000
        self.cache = ClusterCache(lambda: self.at_ms, lambda _: None)
        self.cache.nodes_listed([read_node(node("n", card(0), card(1)))])
        raws = raws or (member("a"), member("b"), on(percent(100, "x"), "n", "GPU-0"))
        self.cache.pods_listed([read_any(raw) for raw in raws])
        self.reserve = GangReservations(
            self.cache,
            lambda snapshot: PlanInput(snapshot, UNHEARD, lambda _: BINPACK),
            lambda _pod, _reservation: "written",
            lambda _pod: None,
            lambda: True,
            lambda: self.at_ms,
            lambda *_, **__: None,
        )

    def ask(self, *names: str, epoch: int = 7, **fields: Any) -> Json:
        """The answer for these pods."""
        uids = [f"uid-{each}" for each in names]
        body = {"version": 1, "pods": uids, "needed": len(uids), "epoch": epoch, "until": self.at_ms + MINUTE}
        found: Json = json.loads(self.reserve(json.dumps(body | fields).encode()))
        return {"drain": "", **found}

    def free(self) -> list[int]:
        """What is free of each card for pods outside of the gang."""
        return [each.share_milli for each in self.cache.snapshot.node("n").free_by_card if each]


def test_cards_are_kept_only_where_the_call_wants_it() -> None:
    extender = Draining()

    assert extender.ask("a", "b")["drain"] == ""
    assert extender.free() == [0, 1000]
    kept = extender.ask("a", "b", drain=UNTIL)["drain"]
    assert kept == "2 cards on 1 node are kept for it at most until 1970-01-01T00:15:00Z"
    assert extender.free() == [0, 0]
    assert kept in extender.reserve.lack(read(member("a")))

    assert extender.ask("a", "b")["drain"] == ""  # its time is over
    assert extender.free() == [0, 1000]


def test_without_another_call_it_ends_by_itself() -> None:
    """As when the timekeeper is killed."""
    extender = Draining()
    extender.ask("a", "b", drain=UNTIL)
    extender.at_ms += LASTS_MS - 1
    extender.cache.expire()
    assert extender.free() == [0, 0]
    extender.ask("a", "b", drain=UNTIL)  # which renews it
    extender.at_ms += LASTS_MS - 1
    extender.cache.expire()
    assert extender.free() == [0, 0]

    extender.at_ms += 1
    extender.cache.expire()

    assert extender.free() == [0, 1000]


def test_no_call_keeps_cards_beyond_the_end_that_it_names() -> None:
    extender = Draining()
    extender.ask("a", "b", drain=6_000)

    extender.at_ms = 6_000
    extender.cache.expire()

    assert extender.free() == [0, 1000]


def test_once_the_gang_fits_its_cards_are_reserved_and_the_drain_is_over() -> None:
    extender = Draining()
    extender.ask("a", "b", drain=UNTIL)
    ended = on(percent(100, "x"), "n", "GPU-0")
    ended["status"]["phase"] = "Succeeded"
    extender.cache.pod_updated(read_any(ended))
    assert extender.free() == [0, 0]  # the freed card is kept, too

    assert extender.ask("a", "b", drain=UNTIL)["reserved"] == 2
    assert extender.cache.snapshot.drain is None
    assert extender.free() == [0, 0]


def test_one_gang_at_a_time_has_a_drain_and_no_other_gets_its_cards() -> None:
    small = member("s", size=1)
    small["metadata"]["annotations"]["bursar.dev/gang"] = "small"
    extender = Draining(member("a"), member("b"), small, on(percent(100, "x"), "n", "GPU-0"))
    extender.ask("a", "b", drain=UNTIL)

    assert extender.ask("s")["missing"] == 1
    drain = extender.cache.snapshot.drain
    assert drain is not None
    assert drain.name == "g"
    assert extender.ask("s", epoch=6, drain=UNTIL)["drain"] == ""  # a late call
    assert extender.cache.snapshot.drain is drain


def test_a_drain_whose_node_is_gone_is_chosen_anew() -> None:
    extender = Draining()
    extender.ask("a", "b", drain=UNTIL)
    extender.cache.node_updated(read_node(node("m", card(0), card(1))))
    extender.cache.pod_updated(read_any(on(percent(100, "y"), "m", "m-GPU-0")))
    extender.cache.node_deleted("n")

    assert extender.ask("a", "b", drain=UNTIL)["drain"].startswith("2 cards on 1 node")
    drain = extender.cache.snapshot.drain
    assert drain is not None
    assert [name for name, _ in drain.cards] == ["m"]


def test_for_a_gang_that_no_card_helps_nothing_is_kept() -> None:
    extender = Draining(*(member(each, size=3) for each in "abc"), on(percent(100, "x"), "n", "GPU-0"))

    assert extender.ask("a", "b", "c", drain=UNTIL)["drain"] == ""
    assert extender.free() == [0, 1000]


def test_a_bad_end_is_named_by_its_field() -> None:
    with pytest.raises(Problem) as raised:
        Draining().ask("a", "b", drain="soon")

    assert (raised.value.status, raised.value.where) == (400, "drain")


@pytest.fixture
def drained(running: Stepped) -> Stepped:
    """A real extender that drains a node of two cards, of which one is in use for five more minutes."""
    running.put_node(node("n", card(0), card(1)))
    ends = percent(100, "x", activeDeadlineSeconds=300, terminationGracePeriodSeconds=0)
    there = on(ends, "n", "GPU-0")
    there["status"]["startTime"] = stamp(now_ms() // 1000 * 1000)
    running.put_pod(there)
    for name in "ab":
        running.put_pod(member(name))
    uids = ["uid-a", "uid-b"]
    body = {"version": 1, "pods": uids, "needed": 2, "epoch": 7, "until": now_ms() + MINUTE}
    answer = json.loads(running.extender.gangs(json.dumps(body | {"drain": now_ms() + UNTIL}).encode()))
    assert answer["drain"].startswith("2 cards on 1 node are kept for it until about ")
    return running


def single(name: str, seconds: int = 0, namespace: str = "team-a") -> Json:
    """A pod with a whole card; ``seconds``: that it declares."""
    fields: Json = {"activeDeadlineSeconds": seconds} if seconds else {}
    raw = percent(100, name, terminationGracePeriodSeconds=0, **fields)
    raw["metadata"]["namespace"] = namespace
    return raw


def test_a_single_pod_is_refused_and_told_why(drained: Stepped) -> None:
    asked = drained.put_pod(single("s", namespace=member("a")["metadata"]["namespace"]))
    elsewhere = drained.put_pod(single("other", namespace="elsewhere"))

    answer = drained.filter(asked, "n")
    assert answer["NodeNames"] == []
    why = (answer["FailedNodes"] or {}) | (answer["FailedAndUnresolvableNodes"] or {})
    assert "kept for gang " in why["n"]
    assert "/g until about " in why["n"]
    assert "a pod that declares to end before" in why["n"]
    assert drained.filter(asked, "n") == answer  # else kube-scheduler would try it again at once
    assert drained.bind(asked, "n") != ""
    other = drained.filter(elsewhere, "n")
    assert "another namespace's gang" in str(other)
    assert "/g until" not in str(other)


def test_a_pod_that_declares_to_end_in_time_gets_the_card_and_a_longer_one_does_not(drained: Stepped) -> None:
    short, long = drained.put_pod(single("short", 120)), drained.put_pod(single("long", 600))

    assert drained.filter(long, "n")["NodeNames"] == []
    assert drained.bind(long, "n") != ""
    assert drained.filter(short, "n")["NodeNames"] == ["n"]
    assert drained.bind(short, "n") == ""
    assert drained.filter(drained.put_pod(single("next", 60)), "n")["NodeNames"] == []  # the card has a pod


def test_a_dry_run_answers_as_filter_does(drained: Stepped) -> None:
    for at, seconds in enumerate((0, 120, 600)):
        asked = drained.put_pod(single(f"dry-{at}", seconds))
        body = {"Pod": asked, "NodeNames": ["n"]}

        dry = drained.client.post("/dryrun", json=body).get_json()

        found = drained.filter(asked, "n")
        answers = ("NodeNames", "FailedNodes", "FailedAndUnresolvableNodes")
        assert [dry[each] for each in answers] == [found[each] for each in answers]
        assert (dry["NodeNames"] == ["n"]) is (seconds == 120)


def test_what_a_drain_keeps_empty_is_counted(drained: Stepped) -> None:
    def lines() -> dict[str, str]:
        text = drained.client.get("/metrics").get_data(as_text=True)
        return dict(each.rsplit(" ", 1) for each in text.splitlines() if not each.startswith("#"))

    assert float(lines()["bursar_extender_drained_gpus"]) == 1.0
    assert float(lines()["bursar_extender_free_gpus"]) == 0.0
    drained.extender.cache.undrain()
    assert float(lines()["bursar_extender_drained_gpus"]) == 0.0
    assert float(lines()["bursar_extender_free_gpus"]) == 1.0
