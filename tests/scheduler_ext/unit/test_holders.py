"""Who is really there, by the node's agent: vanished pods, pods that nobody told of, nodes that it closes,
and cards that a plugin picked."""

from typing import Any

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import CLOSED, read_node
from scheduler_ext.reports.closed_nodes import Closure, closures
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import is_emptier
from scheduler_ext.snapshot.snapshot import (
    Snapshot,
    expire,
    node_deleted,
    node_updated,
    orphan,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import (
    Json,
    asking,
    bound,
    cards_of,
    holders,
    node,
    on,
    percent,
    read,
    rebuilt,
    request_of,
)
from tests.worlds import card, limits_of

P = on(percent(40), "n", "GPU-0")
GRACE_MS = 30_000
LONGEST_MS = 600_000


def told(text: str | None = None, *cards: Json, boot: str = "", **fields: Any) -> Json:
    """Node n, whose agent has written that."""
    annotations = {} if text is None else {"bursar.dev/holders": text}
    raw = node("n", *cards, annotations=annotations, **fields)
    raw["status"]["nodeInfo"] = {"bootID": boot}
    return raw


def tell(snapshot: Snapshot, text: str | None, boot: str = "") -> Snapshot:
    """The agent writes."""
    return node_updated(snapshot, read_node(told(text, boot=boot)))


def forced(text: str | None, boot: str = "") -> Snapshot:
    """Pod p was deleted by force at 0, while the agent had written that."""
    return pod_deleted(rebuilt([told(text, boot=boot)], [P]), read(P), 0)


def free(snapshot: Snapshot) -> list[int | None]:
    """Thousandths free on each card of n; None for a card of a closed node."""
    there = snapshot.node("n")
    return [None if there.closed or room is None else room.share_milli for room in there.free_by_card]


THERE, NOT_THERE = holders({"uid-p": []}), holders()


def test_a_pod_deleted_by_force_releases_its_cards_when_its_node_lists_it_no_longer() -> None:
    snapshot = forced(THERE)
    assert free(snapshot) == [600]

    assert free(tell(snapshot, NOT_THERE)) == [1000]


def test_it_keeps_its_cards_beyond_its_grace_period_while_its_node_lists_it() -> None:
    snapshot = expire(forced(THERE), 100 * GRACE_MS)
    assert free(snapshot) == [600]

    assert free(tell(snapshot, NOT_THERE)) == [1000]


def test_it_may_be_listed_only_after_it_was_orphaned() -> None:
    snapshot = tell(forced(NOT_THERE), THERE)

    assert free(expire(snapshot, GRACE_MS)) == [600]
    assert free(tell(snapshot, NOT_THERE)) == [1000]


@pytest.mark.parametrize("text", [None, NOT_THERE], ids=["no agent", "not listed"])
def test_of_a_pod_that_was_never_listed_silence_proves_nothing(text: str | None) -> None:
    snapshot = tell(forced(text), holders({"uid-other": ["GPU-0"]} if text else {}))
    snapshot = tell(snapshot, text)

    assert free(expire(snapshot, GRACE_MS - 1)) == [600]
    assert free(expire(snapshot, GRACE_MS)) == [1000]


def test_an_agent_that_does_not_know_yet_releases_no_pod() -> None:
    snapshot = tell(forced(THERE), holders(known=False))

    assert free(expire(snapshot, 10 * GRACE_MS)) == [600]
    assert free(tell(snapshot, NOT_THERE)) == [1000]


def test_unreadable_words_release_no_pod() -> None:
    snapshot = expire(tell(forced(THERE), "{"), 10 * GRACE_MS)

    assert snapshot.node("n").closed == "holders"
    assert free(tell(snapshot, THERE)) == [600]


@pytest.mark.parametrize("gone", ["annotation", "node"])
def test_without_further_reports_the_grace_period_counts(gone: str) -> None:
    snapshot = forced(THERE)
    snapshot = tell(snapshot, None) if gone == "annotation" else node_deleted(snapshot, "n")

    assert snapshot.allocation("uid-p") is not None
    assert expire(snapshot, GRACE_MS - 1).allocation("uid-p") is not None
    assert expire(snapshot, GRACE_MS).allocation("uid-p") is None


def test_a_reboot_ends_what_the_agent_said_before() -> None:
    snapshot = forced(THERE, boot="b1")
    rebooted = tell(snapshot, THERE, boot="b2")

    assert free(rebooted) == [600]
    assert free(expire(rebooted, GRACE_MS)) == [1000]


@pytest.mark.parametrize("before", [NOT_THERE, None], ids=["never listed", "no agent"])
def test_a_report_after_a_reboot_releases_a_pod_that_was_never_listed(before: str | None) -> None:
    snapshot = forced(before, boot="b1")

    assert free(tell(snapshot, holders(boot="b2", known=False), boot="b2")) == [600]
    assert free(tell(snapshot, holders({"uid-p": []}, boot="b2"), boot="b2")) == [600]
    assert free(tell(snapshot, holders(boot="b2"), boot="b2")) == [1000]


def test_a_kubelet_that_reports_no_boot_is_no_reboot() -> None:
    snapshot = forced(holders(boot=""), boot="")

    assert free(tell(snapshot, holders(boot="b1"))) == [600]


def test_what_the_agent_says_of_a_pod_with_an_object_changes_nothing() -> None:
    quiet, loud = (rebuilt([told(text)], [P]) for text in (NOT_THERE, THERE))

    assert free(quiet) == free(loud) == [600]
    assert quiet.unsure == loud.unsure == frozenset()


def test_a_pod_that_ended_is_gone_though_its_node_lists_it_a_little_longer() -> None:
    ended = {**P, "status": {"phase": "Succeeded"}}
    snapshot = pod_updated(rebuilt([told(THERE)], [P]), read(ended))
    assert free(snapshot) == [1000]

    gone = pod_deleted(snapshot, read(ended), 0)
    late = tell(tell(gone, NOT_THERE), THERE)

    assert free(gone) == free(late) == free(expire(late, 10**9)) == [1000]
    forgotten = expire(tell(late, NOT_THERE), 60_000)
    assert len(late.ended) == 1
    assert len(forgotten.ended) == 0


# after a restart


def test_a_pod_that_only_its_node_reports_closes_it_until_it_is_gone() -> None:
    snapshot = rebuilt([told(holders({"uid-x": []}))], [P])
    assert snapshot.node("n").closed == "lingering"
    assert snapshot.unsure == {"uid-x"}

    assert free(expire(snapshot, LONGEST_MS - 1)) == [None]
    assert free(tell(snapshot, THERE)) == [600]
    assert free(expire(tell(snapshot, None), 0)) == [600]


def test_a_pod_that_only_its_node_reports_releases_its_cards_after_the_longest_grace_period() -> None:
    early = rebuilt([told(holders({"uid-x": []}))], [P], 7)

    assert free(expire(early, 7 + LONGEST_MS - 1)) == [None]
    late = expire(early, 7 + LONGEST_MS)
    assert (free(late), late.unsure) == ([600], frozenset())
    again = expire(tell(expire(late, 10**9), holders({"uid-x": [], "uid-p": []})), 2 * 10**9)
    assert free(again) == [600]  # the dead agent's word is heard once more with every change of the node
    other = tell(tell(late, THERE), holders({"uid-y": []}))
    assert free(other) == [None]


def test_a_pod_that_this_extender_saw_deleted_stays_while_it_is_listed() -> None:
    snapshot = expire(expire(forced(THERE), GRACE_MS), 10**9)

    assert free(expire(snapshot, 2 * 10**9)) == [600]


def test_it_holds_the_cards_that_its_node_names_and_no_others() -> None:
    cards = card(0), card(1)
    snapshot = rebuilt([told(holders({"uid-x": ["GPU-1"]}), *cards)], [P])

    assert free(snapshot) == [600, 0]
    unknown = rebuilt([told(holders({"uid-x": ["GPU-1", "GPU-9"]}), *cards)], [P])
    assert unknown.node("n").closed == "lingering"


def test_no_pod_counts_as_deleted_before_the_pods_are_listed() -> None:
    early = node_updated(Snapshot(), read_node(told(THERE)))
    assert early.unsure == frozenset()

    assert pods_listed(early, [read(P)], 0) == rebuilt([told(THERE)], [P])
    assert pods_listed(early, [], 0) == rebuilt([told(THERE)], [])
    assert pods_listed(early, [], 0).unsure == {"uid-p"}


def test_a_pod_whose_object_comes_after_all_is_by_its_object() -> None:
    snapshot = rebuilt([told(THERE)], [])
    waiting = percent(40)

    assert pod_updated(snapshot, read(waiting)) == rebuilt([told(THERE)], [waiting])
    assert pod_updated(snapshot, read(P)) == rebuilt([told(THERE)], [P])


def test_a_released_allocation_returns_if_the_agent_lists_the_pod_again() -> None:
    snapshot = tell(tell(forced(THERE), NOT_THERE), THERE)

    assert snapshot.node("n").closed == "lingering"
    assert free(tell(snapshot, NOT_THERE)) == [1000]


def test_an_assumed_pod_that_is_orphaned_is_listed_or_not_as_any_other() -> None:
    snapshot = rebuilt([told(THERE)], [])
    snapshot = orphan(pod_updated(snapshot, read(P)), "uid-p", 0)

    assert free(tell(snapshot, NOT_THERE)) == [1000]


# a pod whose machine is gone, and whose object stays


def lost(main: Json | None = None, **containers: Json) -> Json:
    """Pod p as PodGC leaves it where a finalizer keeps it: failed, and still running by its status."""
    deleted = {"deletionTimestamp": "2026-11-20T10:00:00Z", "finalizers": ["example.com/keep"]}
    statuses = {"main": main or {"running": {}}, **containers}
    listed = [{"name": name, "state": state} for name, state in statuses.items()]
    status = {"phase": "Failed", "reason": "NodeLost", "containerStatuses": listed}
    return {**P, "metadata": P["metadata"] | deleted, "status": status}


def seen(*steps: Json | str) -> Snapshot:
    """Pod p runs in boot b1; then these are seen: versions of the pod, versions of the node, ``gone`` for its
    deletion, and ``list`` for lists of what is there, by a new process."""
    pod_now, node_now = P, told(boot="b1")
    snapshot = rebuilt([node_now], [pod_now])
    for step in steps:
        if step == "gone":
            node_now, snapshot = {}, node_deleted(snapshot, "n")
        elif isinstance(step, str):
            snapshot = rebuilt([node_now] if node_now else [], [pod_now])
        elif "spec" in step:
            pod_now, snapshot = step, pod_updated(snapshot, read(step))
        else:
            node_now, snapshot = step, node_updated(snapshot, read_node(step))
    return snapshot


NEW, SAME, NO_BOOT = (told(boot=boot) for boot in ("b2", "b1", ""))
OTHER_CARDS = told(None, card(5), boot="b1")
ANEW = lost(main={"running": {"startedAt": "2026-11-20T10:00:00Z"}})
ITS_SIDECAR = lost({"terminated": {}}, sidecar={"running": {}})


@pytest.mark.parametrize(
    ("steps", "is_held"),
    [
        (["gone", lost(), NEW], False),
        (["gone", lost(), SAME, NEW], False),
        (["gone", ITS_SIDECAR, NEW], False),
        ([lost(), NEW], False),  # a taint said that the machine is off, and the Node stayed
        (["gone", lost(), NO_BOOT, NEW, told(boot="b3")], False),
        (["gone", lost(), NEW, ANEW], False),  # later versions of the object change nothing
        (["gone", lost(), told(None, card(5), boot="b2")], False),
        (["gone", lost(), told(holders(boot="b2"), boot="b2")], False),
        (["gone", lost(), told(holders({"uid-p": []}, boot="b2"), boot="b2")], True),  # it is there
        (
            [
                lost(),
                told(holders({"uid-p": []}, boot="b2"), boot="b2"),
                told(holders(boot="b2"), boot="b2"),
            ],
            False,
        ),
        (["gone", lost(), NO_BOOT], True),
        (["gone", lost(), SAME], True),  # the machine went on, and only its Node was deleted
        (["gone", lost(), OTHER_CARDS], True),
        ([NEW], True),  # a pod that runs survives a reboot
        ([NEW, P, lost(), NEW], True),
        ([NEW, lost(), told(boot="b3")], False),
        (["gone", lost()], True),
        (["gone", lost(), "list", NEW], True),  # a new process does not know in which boot it ran
        ([lost(), "list", NEW, told(boot="b3")], False),
        ([lost(), P, NEW, lost(), NEW], True),  # the phase was taken back
    ],
)
def test_a_failed_pod_that_runs_by_its_status_holds_its_cards_until_its_node_boots_anew(
    steps: list[Json | str], is_held: bool
) -> None:
    snapshot = seen(*steps)

    assert (snapshot.allocation("uid-p") is not None) == is_held
    if not is_held:
        assert snapshot.node("n").closed == ""
        assert snapshot.held.get("team-a") is None
        assert pod_deleted(snapshot, read(lost()), 0).allocation("uid-p") is None


# closed nodes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"boot":"b","known":true,"pods":{},"closed":""}',
        '{"version":1,"boot":1,"known":true,"pods":{},"closed":""}',
        '{"version":1,"boot":"b","known":"yes","pods":{},"closed":""}',
        '{"version":1,"boot":"b","known":true,"pods":[],"closed":""}',
        '{"version":1,"boot":"b","known":true,"pods":{"u":"GPU-0"},"closed":""}',
        '{"version":1,"boot":"b","known":true,"pods":{"u":[0]},"closed":""}',
        '{"version":1,"boot":"b","known":true,"pods":{"":[]},"closed":""}',
        '{"version":1,"boot":"b","known":true,"pods":{},"closed":null}',
        "[" * 100_000,
    ],
)
def test_a_node_whose_agent_cannot_be_understood_is_closed(text: str) -> None:
    assert rebuilt([told(text)], []).node("n").closed == "holders"


@pytest.mark.parametrize("raw", [percent(10), percent(100)], ids=["a share", "a whole card"])
def test_a_node_that_its_agent_closes_gives_out_no_share_and_no_whole_card(raw: Json) -> None:
    snapshot = rebuilt([told(holders(closed="process 4711 is on GPU-0, and of no pod"))], [])

    refused = fit(request_of(raw), snapshot.node("n"))

    assert refused == Refusal(f"node is closed for sharing: {CLOSED['strangers']}", "closed")
    assert free(tell(snapshot, NOT_THERE)) == [1000]
    assert is_emptier(tell(snapshot, NOT_THERE).node("n"), snapshot.node("n"))


def test_a_node_that_its_agent_closed_stays_closed_over_a_reboot_until_the_agent_has_looked() -> None:
    snapshot = rebuilt([told(holders(boot="b1", closed="all cards are open"), boot="b2")], [])

    assert snapshot.node("n").closed == "strangers"
    assert free(tell(snapshot, holders(boot="b2"), boot="b2")) == [1000]


def test_the_page_shows_what_the_agent_found() -> None:
    closed = rebuilt([told(holders(closed="process 4711 is on GPU-0, and of no pod"))], []).nodes

    (said,) = closures(closed, Map())

    assert said == Closure("n", "strangers")
    assert said.sentence() == (
        f"No GPU pods are placed on the node: {CLOSED['strangers']}: process 4711 is on GPU-0, and of no pod."
    )


# nodes whose plugin picks the cards

PLUGIN = {"nvidia.com/gpu": "3"}
THREE = tuple(card(at) for at in range(3))


def whole(name: str = "p", cards: str = "1") -> Json:
    """A pod that asks for whole cards of NVIDIA's plugin."""
    return asking(limits_of("main", nvidia_com__gpu=cards), name=name)


@pytest.mark.parametrize(
    "text", [holders(known=False), holders(boot="b0")], ids=["not all", "an earlier boot"]
)
def test_where_a_plugin_picks_no_pod_comes_before_the_agent_knows_who_is_there(text: str) -> None:
    snapshot = rebuilt([told(text, *THREE, boot="b1", capacity=PLUGIN)], [])

    assert snapshot.node("n").closed == "holders-unknown"
    assert cards_of(fit(request_of(whole()), snapshot.node("n"))) == {}


def test_where_a_plugin_picks_and_there_is_no_agent_pods_come_as_many_as_there_are_cards_for() -> None:
    bare, older, ours = (
        told(None, *THREE, boot="b1", capacity=PLUGIN),
        bound(whole("old"), "n", None),
        on(whole("mine"), "n", "GPU-0"),
    )
    snapshot = rebuilt([bare], [older, ours])

    assert (snapshot.node("n").closed, snapshot.node("n").unnamed) == ("", 2)
    assert len(cards_of(fit(request_of(whole()), snapshot.node("n")))["main"]) == 1
    assert cards_of(fit(request_of(whole(cards="2")), snapshot.node("n"))) == {}


def test_a_pod_of_others_is_on_the_cards_that_the_agent_names() -> None:
    older = bound(whole("old", "2"), "n", None)
    snapshot = rebuilt([told(holders({"uid-old": ["GPU-0", "GPU-2"]}), *THREE, capacity=PLUGIN)], [older])

    assert free(snapshot) == [0, 1000, 0]
    assert cards_of(fit(request_of(whole()), snapshot.node("n"))) == {"main": [1]}
    assert cards_of(fit(request_of(whole(cards="2")), snapshot.node("n"))) == {}


def test_a_pod_that_is_not_named_yet_has_as_many_cards_whichever_they_are() -> None:
    older, ours = bound(whole("old"), "n", None), on(whole("mine"), "n", "GPU-0")
    text = holders({"uid-old": ["GPU-0"]})
    snapshot = rebuilt([told(text, *THREE, capacity=PLUGIN)], [older, ours])

    assert (free(snapshot), snapshot.node("n").unnamed) == ([0, 1000, 1000], 1)
    assert cards_of(fit(request_of(whole(cards="2")), snapshot.node("n"))) == {}

    named = holders({"uid-old": ["GPU-0"], "uid-mine": ["GPU-2"]})
    later = rebuilt([told(named, *THREE, capacity=PLUGIN)], [older, ours])
    assert (free(later), later.node("n").unnamed) == ([0, 1000, 0], 0)
    assert not is_emptier(later.node("n"), snapshot.node("n"))
    gone = rebuilt([told(text, *THREE, capacity=PLUGIN)], [older]).node("n")
    assert is_emptier(gone, later.node("n"))
    assert is_emptier(gone, snapshot.node("n"))


def test_a_pod_without_an_object_counts_where_a_plugin_picks_too() -> None:
    snapshot = rebuilt([told(holders({"uid-x": ["GPU-1"]}), *THREE, capacity=PLUGIN)], [])

    assert free(snapshot) == [1000, 0, 1000]


# in the running extender


def test_the_running_extender_follows_the_agent(running: Stepped) -> None:
    running.put_node(told(THERE))
    running.put_pod(P)
    running.api.delete("pods", "p", "team-a")
    running.catches_up()
    assert running.extender.cache.snapshot.unsure == {"uid-p"}
    assert running.free("n") == [600]

    running.put_node(told(NOT_THERE))

    assert running.free("n") == [1000]
    assert 'held="orphaned"} 0' in running.client.get("/metrics").text


def test_a_container_that_closes_its_node_is_named(running: Stepped) -> None:
    running.put_node(told(holders({"uid-x": []}, closed="")))

    assert running.posted()["nodes"]["n"]["closed"] == CLOSED["lingering"]
    why = f"No GPU pods are placed on the node: {CLOSED['lingering']} (?/uid-x)."
    running.passes()
    assert f"closed node=n why={why}" in running.lines
    assert running.filter(percent(10), "n")["FailedAndUnresolvableNodes"] == {
        "n": f"node is closed for sharing: {CLOSED['lingering']}"
    }
