"""Scenarios from the tests, documents and user reports of earlier systems: nodes and a request in, the
expected decision out. Each is named after the system it comes from."""

import pytest

from scheduler_ext.answers import Answers, question
from scheduler_ext.facts import read_node
from scheduler_ext.fit import fit
from scheduler_ext.policy import BINPACK, SPREAD, Policy
from scheduler_ext.rank import ranks
from scheduler_ext.refusal import Refusal
from scheduler_ext.rooms import Room
from scheduler_ext.snapshot import Snapshot, assume, expire, forget, node_seen, pod_gone, pod_seen
from tests.scheduler_ext.worlds import (
    GIB,
    asking,
    bound,
    cards_of,
    mib,
    node,
    on,
    percent,
    place,
    read,
    rebuilt,
    request_of,
    with_used,
)
from tests.worlds import card, container, limits_of
from timekeeper.core.request import parse

POLICIES = [BINPACK, SPREAD]


def shares(*percents: int) -> dict[str, int]:
    """Container name -> percent; 0 asks for nothing."""
    return {chr(ord("a") + at): share for at, share in enumerate(percents)}


def placed(free: list[int], asked: dict[str, int], policy: Policy) -> dict[str, list[int]]:
    """The cards of each container of one pod on a node with these percents free."""
    containers = [
        container(name, gpu_percent=str(share)) if share else container(name) for name, share in asked.items()
    ]
    return cards_of(fit(request_of(asking(*containers)), with_used(n=free).node("n"), policy))


@pytest.mark.parametrize(
    ("free", "asked", "binpack", "spread"),
    [
        pytest.param([100, 100], (20, 40), [0, 0], [0, 1], id="nano-gpu: two empty cards"),
        pytest.param([20, 100], (20, 40), [0, 1], [1, 1], id="nano-gpu: one just fits"),
        pytest.param([10, 100], (20, 40), [1, 1], [1, 1], id="nano-gpu: one too small"),
        pytest.param([10, 50], (20, 40), None, None, id="nano-gpu: no fit together"),
        pytest.param([100], (50, 60), None, None, id="nano-gpu: 110 on one card"),
        pytest.param([100], (50, 50), [0, 0], [0, 0], id="nano-gpu: one card full"),
        pytest.param([100, 100], (100, 10), [0, 1], [0, 1], id="nano-gpu: whole and share apart"),
        pytest.param([60, 50], (30, 30, 25, 25), [0, 0, 1, 1], [0, 0, 1, 1], id="a fit that greed misses"),
    ],
)
def test_containers_are_put_on_cards_as_the_policy_says(
    free: list[int], asked: tuple[int, ...], binpack: list[int] | None, spread: list[int] | None
) -> None:
    for policy, expected in ((BINPACK, binpack), (SPREAD, spread)):
        names = shares(*asked)
        wanted = {name: [at] for name, at in zip(names, expected, strict=True)} if expected else {}
        assert placed(free, names, policy) == wanted


def test_a_container_that_asks_for_nothing_gets_nothing() -> None:
    """nano-gpu: 0, 40, 40."""
    assert placed([100, 100], shares(0, 40, 40), BINPACK) == {"b": [0], "c": [0]}
    assert placed([100, 100], shares(0, 40, 40), SPREAD) == {"b": [0], "c": [1]}


def better(policy: Policy, one: list[int], other: list[int]) -> bool:
    """True where the policy prefers the node with these percents free for a pod of 10 %."""
    pod = read(percent(10))
    assert pod.request is not None
    nodes = with_used(one=one, other=other).nodes
    scores = Answers().scores(question(pod.request, policy, pod.amounts), nodes, ["one", "other"])
    first, second = ranks([score for score in scores if score is not None])
    return first > second


def test_binpack_prefers_the_fuller_node() -> None:
    """nano-gpu."""
    assert better(BINPACK, [20, 40], [30, 50])


@pytest.mark.parametrize(
    ("one", "other"), [([30, 50], [20, 40]), ([90], [50, 40]), ([100], [50, 50]), ([100, 50], [100])]
)
def test_spread_prefers_the_freer_card_and_then_the_freer_node(one: list[int], other: list[int]) -> None:
    """nano-gpu."""
    assert better(SPREAD, one, other)


def core_and_memory(*asked: tuple[int, int]) -> list[dict[str, object]]:
    return [
        container(f"c{at}", gpu_percent=str(core), gpu_memory=str(memory * GIB))
        for at, (core, memory) in enumerate(asked)
    ]


@pytest.mark.parametrize(
    ("cards", "asked", "fits"),
    [
        (1, ((50, 7), (50, 9)), False),
        (1, ((50, 7), (50, 8)), True),
        (2, ((50, 7), (50, 9)), True),
    ],
)
def test_compute_and_memory_must_fit_together(
    cards: int, asked: tuple[tuple[int, int], ...], fits: bool
) -> None:
    """nano-gpu: cards of 15 GiB."""
    raw = asking(*core_and_memory(*asked))
    snapshot = rebuilt([node("n", *(card(at, 15 * GIB) for at in range(cards)))], [])

    assert (place(snapshot, raw, "n") is not None) is fits


def test_memory_beyond_every_card_fits_nowhere() -> None:
    """nano-gpu: two cards of 7 GiB."""
    snapshot = rebuilt([node("n", card(0, 7 * GIB), card(1, 7 * GIB))], [])

    assert place(snapshot, asking(*core_and_memory((50, 7), (50, 9))), "n") is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_small_container_leaves_the_untouched_card_to_the_whole_one(order: tuple[int, ...]) -> None:
    """nano-gpu: order must not matter."""
    user = on(percent(90, "user") | {}, "n", "GPU-0")
    user["metadata"]["annotations"]["bursar.dev/devices"] = user["metadata"]["annotations"][
        "bursar.dev/devices"
    ]
    containers = [container("whole", gpu_percent="100"), container("small", gpu_percent="10")]
    raw = asking(*(containers[at] for at in order))

    for policy in POLICIES:
        answer = fit(request_of(raw), rebuilt([node("n", card(0), card(1))], [user]).node("n"), policy)
        assert cards_of(answer) == {"whole": [1], "small": [0]}


def test_memory_alone_goes_to_the_first_of_equal_cards() -> None:
    """nano-gpu, but for the tie: there the last card."""
    snapshot = rebuilt([node("n", *(card(at, 12 * GIB) for at in range(4)))], [])

    assert cards_of(fit(request_of(mib(4 * GIB)), snapshot.node("n"))) == {"main": [0]}


def test_one_and_a_half_cards_are_no_request() -> None:
    """nano-gpu, issue 18: 150 booked one card and gave two."""
    raw = percent(150)

    assert parse(raw).request is None
    assert "150" in read(raw).malformed


def test_three_pods_of_five_gigabytes_do_not_fit_on_two_cards_of_eight() -> None:
    """GPU Aware Scheduling: though 6 GB remain on the node."""
    snapshot = rebuilt([node("n", card(0, 8000), card(1, 8000))], [])
    for name in ("first", "second"):
        taken = place(snapshot, mib(5000, name), "n")
        assert taken is not None
        snapshot = pod_seen(snapshot, read(taken))

    assert fit(request_of(mib(5000, "third")), snapshot.node("n")) == Refusal(
        "no card has 5000 MiB free", room=True
    )


def aliyun(*used: int, size: int = 16276) -> Snapshot:
    """A node of equal cards with so much memory used on each."""
    pods = [on(mib(amount, f"user-{at}"), "n", f"GPU-{at}") for at, amount in enumerate(used) if amount]
    return rebuilt([node("n", *(card(at, size) for at in range(len(used))))], pods)


def test_a_node_with_room_in_sum_but_on_no_card_is_refused() -> None:
    """Aliyun: 8138 asked of 4069 + 4069, and of 8138 on one."""
    asked = request_of(mib(8138))

    assert isinstance(fit(asked, aliyun(16276, 12207).node("n")), Refusal)
    assert isinstance(fit(asked, aliyun(12207, 12207).node("n")), Refusal)
    assert cards_of(fit(asked, aliyun(8138, 12207).node("n"))) == {"main": [0]}


def test_binpack_takes_the_tightest_card() -> None:
    """Aliyun: free 12207, 8138, 4069, 16276; 8138 asked."""
    snapshot = aliyun(16276 - 12207, 16276 - 8138, 16276 - 4069, 0)

    assert cards_of(fit(request_of(mib(8138)), snapshot.node("n"))) == {"main": [1]}


def test_small_pods_pack_on_one_card_and_leave_the_other_whole() -> None:
    """Aliyun: three of 2 GiB, then one of a whole card's 16276 MiB."""
    snapshot = aliyun(0, 0)
    for name in "abc":
        taken = place(snapshot, mib(2 * GIB, name), "n")
        assert taken is not None
        snapshot = pod_seen(snapshot, read(taken))

    assert cards_of(fit(request_of(mib(16276)), snapshot.node("n"))) == {"main": [1]}
    assert isinstance(fit(request_of(mib(16276)), aliyun(2 * GIB).node("n")), Refusal)


def test_two_containers_of_one_pod_may_share_a_card() -> None:
    """Aliyun, issue 143."""
    raw = asking(container("a", gpu_memory=str(GIB)), container("b", gpu_memory=str(2 * GIB)))

    assert cards_of(fit(request_of(raw), aliyun(0).node("n"))) == {"a": [0], "b": [0]}


def test_a_whole_card_wants_it_untouched() -> None:
    """Aliyun, issue 10: memory 1 and 6 of 7 taken, then a whole card asked."""
    pods = [on(mib(1 * GIB, "a"), "n", "GPU-0"), on(mib(6 * GIB, "b"), "n", "GPU-0")]
    one = rebuilt([node("n", card(0, 7 * GIB))], pods)
    barely = rebuilt([node("n", card(0, 7 * GIB))], [on(mib(64, "a"), "n", "GPU-0")])

    assert fit(request_of(percent(100)), one.node("n")) == Refusal("1 whole card needed", room=True)
    assert fit(request_of(percent(100)), barely.node("n")) == Refusal("1 whole card needed", room=True)


def test_nothing_goes_onto_a_card_that_is_held_whole() -> None:
    snapshot = rebuilt([node("n", card(0))], [on(percent(100, "whole"), "n", "GPU-0")])

    assert isinstance(fit(request_of(mib(64)), snapshot.node("n")), Refusal)
    assert isinstance(fit(request_of(percent(1)), snapshot.node("n")), Refusal)


@pytest.mark.parametrize(("asked", "index"), [(8 * GIB, 0), (9 * GIB, 1), (16 * GIB, 1), (17 * GIB, None)])
def test_mixed_card_sizes_are_not_averaged(asked: int, index: int | None) -> None:
    """Aliyun, issues 40 and 114: 8 and 16 GiB."""
    snapshot = rebuilt([node("n", card(0, 8 * GIB), card(1, 16 * GIB))], [])
    expected = {} if index is None else {"main": [index]}

    assert cards_of(fit(request_of(mib(asked)), snapshot.node("n"))) == expected


@pytest.mark.parametrize(("count", "fits"), [("1", True), ("2", True), ("3", False)])
def test_a_number_of_cards_is_a_number_of_distinct_cards(count: str, fits: bool) -> None:
    """Genius: a node with two."""
    snapshot = rebuilt([node("n", card(0), card(1))], [])
    answer = fit(request_of(asking(container(gpu_count=count))), snapshot.node("n"))

    assert (not isinstance(answer, Refusal)) is fits
    assert fits or answer == Refusal("3 whole cards needed", room=True)


def test_a_plain_sidecar_changes_no_cards_free_amounts() -> None:
    alone = on(percent(50, "p"), "n", "GPU-0")
    beside = {
        **alone,
        "spec": {**alone["spec"], "containers": [*alone["spec"]["containers"], container("proxy")]},
    }

    assert rebuilt([node("n")], [alone]).node("n").rooms == rebuilt([node("n")], [beside]).node("n").rooms


def test_two_equal_pods_that_were_filtered_together_get_different_bookings() -> None:
    snapshot = rebuilt([node("n", card(0), card(1))], [])
    first, second = read(percent(60, "first")), read(percent(60, "second"))
    assert first.request is not None
    assert second.request is not None
    assert cards_of(fit(second.request, snapshot.node("n"))) == cards_of(
        fit(first.request, snapshot.node("n"))
    )

    one = fit(first.request, snapshot.node("n"))
    assert not isinstance(one, Refusal)
    snapshot = assume(snapshot, first, "n", one)
    two = fit(second.request, snapshot.node("n"))

    assert cards_of(one) == {"main": [0]}
    assert cards_of(two) == {"main": [1]}


def test_a_failed_bind_leaves_nothing_behind_and_another_node_is_taken() -> None:
    fresh = rebuilt([node("n1"), node("n2")], [percent(100, "p")])
    pod = read(percent(100, "p"))
    assert pod.request is not None
    placement = fit(pod.request, fresh.node("n1"))
    assert not isinstance(placement, Refusal)

    after = forget(assume(fresh, pod, "n1", placement), pod.uid)

    assert after == fresh
    assert not isinstance(fit(pod.request, after.node("n2")), Refusal)


def test_a_force_deleted_pod_keeps_its_cards_for_its_grace_period_and_no_longer() -> None:
    holder = on(percent(100, "p", terminationGracePeriodSeconds=45), "n", "GPU-0")
    snapshot = rebuilt([node("n")], [holder])

    snapshot = pod_gone(snapshot, read(holder), now_ms=1_000_000)
    assert isinstance(fit(request_of(percent(1)), expire(snapshot, 1_044_999).node("n")), Refusal)
    assert expire(snapshot, 1_045_000) == rebuilt([node("n")], [])


def test_a_restart_counts_those_that_hold_cards_and_no_others() -> None:
    done = bound(percent(100, "done"), "n", None, "Succeeded")
    leaving = on(percent(50, "leaving"), "n", "GPU-1")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"
    elsewhere = on(percent(50, "elsewhere"), "gone", "GPU-0")
    snapshot = rebuilt([node("n", card(0), card(1))], [done, leaving, elsewhere])

    rooms = snapshot.node("n").rooms
    assert [room and room.share_milli for room in rooms] == [1000, 500]
    assert snapshot.seat("uid-elsewhere") is not None
    assert isinstance(fit(request_of(percent(1)), snapshot.node("gone")), Refusal)
    back = node_seen(snapshot, read_node(node("gone")))
    assert back.node("gone").seats.keys() == {"uid-elsewhere"}


def test_late_events_of_a_pod_do_not_touch_its_successor_of_the_same_name() -> None:
    old = on(percent(40, "web-0"), "n", "GPU-0")
    new = on(percent(30, "web-0"), "n", "GPU-0")
    new["metadata"]["uid"] = "uid-successor"
    snapshot = rebuilt([node("n")], [new])

    late = pod_gone(snapshot, read({**old, "status": {"phase": "Succeeded"}}), 0)

    assert late == snapshot


def test_capacity_that_shrinks_under_use_leaves_nothing_and_never_less() -> None:
    holder = on(mib(12_000, "p"), "n", "GPU-0")
    snapshot = rebuilt([node("n", card(0, 16_000))], [holder])

    snapshot = node_seen(snapshot, read_node(node("n", card(0, 10_000))))

    assert snapshot.node("n").closed == ""
    assert snapshot.node("n").rooms == (Room(1000, 0, 10_000),)
    assert isinstance(fit(request_of(mib(64)), snapshot.node("n")), Refusal)


def test_a_tencent_share_needs_its_memory_on_one_card() -> None:
    capacity = {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "64"}
    snapshot = rebuilt([node("n", card(0, 8192), card(1, 8192), capacity=capacity)], [])
    raw = asking(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="33"))
    fitting = asking(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="32"))

    assert fit(request_of(raw), snapshot.node("n")) == Refusal("no card has 50% and 8448 MiB free", room=True)
    assert cards_of(fit(request_of(fitting), snapshot.node("n"))) == {"main": [0]}
