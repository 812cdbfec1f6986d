"""When a waiting pod may start at the earliest, beside times that are computed by hand."""

from typing import Any

from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.reports.earliest import EarliestStarts
from scheduler_ext.snapshot.drains import Drain
from scheduler_ext.snapshot.snapshot import Snapshot, drain
from tests.scheduler_ext.reserving import NOW_MS, held, stamp
from tests.scheduler_ext.worlds import Json, asking, in_namespace, node, on, percent, read, rebuilt
from tests.worlds import card, container

HOUR_S = 3_600
NO_END = "no end is known: of the pods that hold these cards too few have declared time"


def runs(name: str, where: str, *uuids: str, share: int = 100, since_s: int = 0, time_s: int = 0) -> Json:
    """A pod on these cards, started so long ago, that declares so much time; 0: none."""
    declared: Json = {"activeDeadlineSeconds": time_s} if time_s else {}
    containers = [container(f"c{at}", gpu_percent=str(share)) for at, _ in enumerate(uuids)]
    raw = on(asking(*containers, name=name, **declared), where, *uuids)
    raw["status"]["startTime"] = stamp(NOW_MS - 1_000 * since_s)
    return in_namespace("team-b", raw)


def when(
    pod: Json, nodes: list[Json], pods: list[Json], together: int = 1, drained: Drain | None = None
) -> str:
    snapshot = rebuilt(nodes, [pod, *(other for other in pods if name_of(other) != name_of(pod))], NOW_MS)
    snapshot = drain(snapshot, drained) if drained else snapshot
    starts = EarliestStarts()
    starts.begin(snapshot, UNHEARD, NOW_MS)
    return starts.of(read(pod), [name for name, _ in snapshot.nodes.items()], together)


def name_of(raw: Json) -> str:
    return str(raw["metadata"]["name"])


def said(hours: float, where: str = "") -> str:
    at = stamp(int(NOW_MS + hours * HOUR_S * 1_000))
    first = f"; first those on {where} end" if where else ""
    return (
        f"not before {at}, unless pods end early: the pods that hold these cards have declared time until"
        f" then{first}"
    )


def two(name: str) -> Json:
    return node(name, card(0), card(1))


def whole(count: int = 1, **fields: Any) -> Json:
    return asking(*(container(f"c{at}", gpu_percent="100") for at in range(count)), name="w", **fields)


def test_the_node_whose_pods_end_first_decides() -> None:
    pods = [
        runs("a", "m", "m-GPU-0", time_s=3 * HOUR_S),
        runs("b", "m", "m-GPU-1", time_s=5 * HOUR_S, since_s=HOUR_S),
        runs("c", "n2", "n2-GPU-0", time_s=2 * HOUR_S),
        runs("d", "n2", "n2-GPU-1", time_s=6 * HOUR_S),
    ]

    assert when(whole(1), [two("m"), two("n2")], pods) == said(2, "n2")
    assert when(whole(2), [two("m"), two("n2")], pods) == said(4, "m")
    assert when(whole(3), [two("m"), two("n2")], pods) == ""  # no node takes it, as another sentence says


def test_a_card_that_is_free_and_one_whose_pod_declares_nothing_allow_no_time() -> None:
    held = [runs("a", "m", "m-GPU-0", time_s=HOUR_S), runs("b", "m", "m-GPU-1")]

    assert when(whole(1), [two("m")], held) == NO_END
    assert when(whole(2), [two("m")], held) == said(1, "m")
    assert when(whole(1), [two("m")], held[:1]) == ""
    late = [runs("a", "m", "m-GPU-0", time_s=HOUR_S, since_s=2 * HOUR_S), held[1]]
    assert when(whole(2), [two("m")], late) == NO_END


def test_of_a_shared_card_as_many_pods_end_as_must() -> None:
    shares = [
        runs("a", "m", "m-GPU-0", share=50, time_s=HOUR_S),
        runs("b", "m", "m-GPU-0", share=25, time_s=2 * HOUR_S),
        runs("c", "m", "m-GPU-0", share=25, time_s=3 * HOUR_S),
    ]

    found = [when(percent(share, "w"), [node("m", card(0))], shares) for share in (25, 50, 75, 100)]

    assert found == [said(1, "m"), said(1, "m"), said(2, "m"), said(3, "m")]


def test_a_gang_needs_cards_for_all_of_its_pods() -> None:
    pods = [
        runs(f"r{at}", f"m{at // 2}", f"m{at // 2}-GPU-{at % 2}", time_s=(at + 1) * HOUR_S) for at in range(4)
    ]
    mark = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "3", "bursar.dev/held": "turn"}
    gang = whole(1, annotations=mark)

    assert read(gang).gang is not None
    assert when(gang, [two("m0"), two("m1")], pods, together=3) == said(3)
    assert when(gang, [two("m0"), two("m1")], pods, together=1) == said(1, "m0")


def test_a_pod_that_may_be_evicted_for_it_or_leaves_is_waited_for_by_nobody() -> None:
    pods = [runs("a", "m", "m-GPU-0", time_s=HOUR_S), runs("b", "m", "m-GPU-1", time_s=HOUR_S)]
    leaving = {**pods[0], "metadata": {**pods[0]["metadata"], "deletionTimestamp": stamp(NOW_MS + 30_000)}}

    assert when(whole(1, priority=10), [two("m")], pods) == ""
    assert when(whole(1), [two("m")], [leaving, pods[1]]) == ""


def test_cards_that_are_promised_to_another_are_waited_for_until_that_one_ends() -> None:
    runner = runs("a", "m", "m-GPU-0", time_s=HOUR_S)
    long = held(percent(100, "r", activeDeadlineSeconds=2 * HOUR_S), "m", "m-GPU-0")
    endless = held(percent(100, "r"), "m", "m-GPU-0")
    one, other = [node("m", card(0))], runs("b", "n2", "n2-GPU-0", time_s=5 * HOUR_S)

    assert when(whole(1), one, [runner, long]) == said(3, "m")
    assert when(whole(1), one, [runner, endless]) == NO_END
    assert when(whole(1), [*one, node("n2", card(0))], [runner, endless, other]) == NO_END
    own = held(percent(100, "r"), "m", "m-GPU-0")
    assert when(own, one, [runner]) == said(1, "m")


def test_a_drain_is_passed_by_who_ends_before_it_and_waited_for_by_others() -> None:
    drained = Drain("team-b", "bursar/g", "g", NOW_MS + HOUR_S * 1_000, NOW_MS * 2, (("m", ("m-GPU-0",)),))
    runner = runs("a", "m", "m-GPU-0", share=50, time_s=HOUR_S // 2)

    short = percent(60, "w", activeDeadlineSeconds=HOUR_S // 4)
    assert when(short, [node("m", card(0))], [runner], drained=drained) == said(0.5, "m")
    assert when(percent(60, "w"), [node("m", card(0))], [runner], drained=drained) == NO_END


def test_an_answer_is_kept_for_a_while_and_a_call_looks_at_so_many_nodes() -> None:
    snapshot = rebuilt([two("m")], [runs("a", "m", "m-GPU-0"), runs("b", "m", "m-GPU-1")], NOW_MS)
    starts, empty = EarliestStarts(), rebuilt([two("m")], [], NOW_MS)

    def ask(pod: Json, now_ms: int, world: Snapshot, names: list[str]) -> str:
        starts.begin(world, UNHEARD, now_ms)
        return starts.of(read(pod), names, 1)

    assert ask(whole(1), NOW_MS, snapshot, ["m"]) == NO_END
    assert ask(whole(1), NOW_MS + 29_999, empty, ["m"]) == NO_END
    assert ask(whole(1), NOW_MS + 30_000, empty, ["m"]) == ""
    starts.begin(snapshot, UNHEARD, NOW_MS)
    starts.of(read(whole(2)), ["m"] * 2_500, 1)
    assert starts.of(read(percent(50)), ["m"], 1) == ""
