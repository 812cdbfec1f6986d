"""A drain as the starts of gangs begin and end it, and the verbs obey it: cards kept empty for one gang, for
a bounded time."""

import pytest

from tests.scheduler_ext.gang_worlds import START_MS, GangWorld, members
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.worlds import node, on, percent
from tests.worlds import Json, card

MINUTE = 60
DRAINS = 2 * MINUTE * 1000, 15 * MINUTE * 1000  # after, for


def draining(*raws: Json) -> GangWorld:
    """A gang of two on a node of two cards, of which one is in use; it has waited for a minute."""
    raws = raws or (*members("ab"), on(percent(100, "x"), "n", "GPU-0"))
    return GangWorld({"n": 2}, raws, DRAINS)


def free(world: GangWorld) -> list[int]:
    """What is free of each card for pods outside of the gang."""
    return [each.share_milli for each in world.cache.snapshot.node("n").free_by_card if each]


def test_a_gang_that_has_waited_for_cards_has_them_kept_for_a_time() -> None:
    world = draining()
    world.steps(59)
    assert free(world) == [0, 1000]

    world.steps(2)
    assert free(world) == [0, 0]
    assert "; 2 cards on 1 node are kept for it at most until 2027-01-15T08:16:" in world.says("a")
    world.steps(15 * MINUTE, 10)
    assert free(world) == [0, 1000]
    world.steps(14 * MINUTE, 10)
    assert free(world) == [0, 1000]
    world.steps(2 * MINUTE, 10)
    assert free(world) == [0, 0]
    assert world.starts.drains == {"fit": 0, "over": 1, "none": 0, "gone": 0}


def test_once_the_gang_fits_it_starts_and_the_drain_is_over() -> None:
    world = draining()
    world.steps(61)
    world.end("x")
    assert free(world) == [0, 0]  # the freed card is kept, too

    assert set(world.step().planned) == {"a", "b"}
    assert (world.cache.snapshot.drain, world.starts.drains["fit"]) == (None, 1)


def test_an_older_pod_that_the_drain_refuses_leaves_the_gang_the_kept_cards() -> None:
    world = draining()
    world.put(percent(100, "s"))
    world.steps(61)
    world.ahead = ["s"]
    world.end("x")

    assert set(world.step().planned) == {"a", "b"}


def test_a_drain_that_begins_after_a_plan_keeps_no_card_from_its_members() -> None:
    others = (on(percent(100, name), "n", f"GPU-{at}") for at, name in enumerate("xyz"))
    world = GangWorld({"n": 5}, [*members("abc"), *others], DRAINS)
    world.steps(59)
    world.put(*members("st", gang="small", created_s=59))
    world.steps(5)
    assert (sorted(world.planned), world.cache.snapshot.drain is not None) == (["s", "t"], True)

    assert world.bind("st") == ["", world.now]


def test_a_drain_ends_with_its_gang_and_with_its_extender() -> None:
    world = draining()
    world.steps(61)
    world.begin()
    assert free(world) == [0, 1000]

    world.steps(1)
    assert free(world) == [0, 0]
    world.delete("a", "b")
    world.steps(1)
    assert (free(world), world.starts.drains["gone"]) == ([0, 1000], 1)


def test_a_drain_whose_node_is_gone_is_chosen_anew() -> None:
    world = draining()
    world.steps(61)
    world.put_node("m", 2)
    world.put(on(percent(100, "y"), "m", "m-GPU-0"))
    world.cache.node_deleted("n")
    world.step()

    drain = world.cache.snapshot.drain
    assert drain is not None
    assert [name for name, _ in drain.cards] == ["m"]


def test_for_a_gang_that_no_card_helps_nothing_is_kept() -> None:
    world = draining(*members("abc"), on(percent(100, "x"), "n", "GPU-0"))
    world.steps(61)

    assert free(world) == [0, 1000]
    assert world.starts.drains["none"] == 1


@pytest.fixture
def drained(start: Start) -> Stepped:
    """A real extender that drains a node of two cards, of which one is in use for five more minutes."""
    running = start("--gang-drain-after=0s")
    running.put_node(node("n", card(0), card(1)))
    ends = percent(100, "x", activeDeadlineSeconds=300, terminationGracePeriodSeconds=0)
    there = on(ends, "n", "GPU-0")
    there["status"]["startTime"] = stamp(running.now_ms // 1000 * 1000)
    running.put_pod(there)
    for raw in members("ab", created_s=(running.now_ms - START_MS) // 1000 - 60):
        running.put_pod(raw)
    running.extender.gangs.step()
    (reason, _) = (pod["reason"] for pod in running.extender.waiting_pods()["pods"])
    assert "2 cards on 1 node are kept for it until about " in reason
    return running


def single(name: str, seconds: int = 0, namespace: str = "team-a") -> Json:
    """A pod with a whole card; ``seconds``: that it declares."""
    fields: Json = {"activeDeadlineSeconds": seconds} if seconds else {}
    raw = percent(100, name, terminationGracePeriodSeconds=0, **fields)
    raw["metadata"]["namespace"] = namespace
    return raw


def test_a_single_pod_is_refused_and_told_why(drained: Stepped) -> None:
    asked = drained.put_pod(single("s"))
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
