"""Scenarios from the tests, documents and user reports of earlier systems: a node and a request in, the
expected decision out. Their numbers are those of the collection that they were taken from."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.scheduler_ext.worlds import GIB, Json, asking, mib, node, on, percent
from tests.worlds import card, container, of_resources

# Which of the collection's numbers say something about one pod on one node (the table below), which tell a
# story of several steps or nodes (named tests), and which do not concern the placement of this system.
TOLD_AS_STORIES = {
    "S6": "test_policies_prefer_one_node_to_another",
    "S16": "test_a_pod_goes_where_its_number_of_cards_is_linked_and_else_to_one_numa_node",
    "S19": "test_three_pods_of_five_gigabytes_do_not_fit_on_two_cards_of_eight",
    "S36": "test_small_pods_pack_on_one_card_and_leave_the_other_whole",
    "S43": "test_a_plain_sidecar_changes_no_cards_free_amounts",
    "S44": "test_two_equal_pods_that_were_filtered_together_get_different_bookings",
    "S45": "test_a_failed_bind_leaves_nothing_behind_and_another_node_is_taken",
    "S46": "test_a_force_deleted_pod_keeps_its_cards_for_its_grace_period_and_no_longer",
    "S47": "test_a_restart_counts_those_that_hold_cards_and_no_others",
    "S48": "test_late_events_of_a_pod_do_not_touch_its_successor_of_the_same_name",
    "S49": "test_capacity_that_shrinks_under_use_leaves_nothing_and_never_less",
}
TOLD_OF_GAS = {  # in tests/scheduler_ext/unit/test_gas.py
    "S29": "test_a_pod_gets_the_cards_of_the_scenario",
    "S31": "test_the_labels_number_the_cards",
    "S33": "test_a_pod_is_marked_while_its_card_or_tile_is_to_be_left",
}
NOT_OURS = {
    "S32": "the arithmetic of a running ledger: there is none here, what is free is summed anew each time",
}
NUMBERS = (
    *(f"S{number}" for number in (*range(1, 14), 15, 16, 18, 19, 21, 22, 23)),
    "S16b",
    *(f"S{number}" for number in (*range(29, 37), *range(38, 50))),
)


@dataclass(frozen=True)
class Scenario:
    """``asked`` on the node ``n`` that has these cards with these pods on them. ``cards``: container ->
    indexes; empty for a refusal, which is then ``reason`` (or begins with it)."""

    number: str
    words: str
    asked: Json
    cards: dict[str, list[int]]
    nodes: tuple[Json, ...] = (node("n", card(0)),)
    pods: tuple[Json, ...] = ()
    reason: str = ""
    policies: tuple[str, ...] = ("binpack", "spread")

    def pod(self, policy: str) -> Json:
        """The pod that asks, by this policy."""
        metadata = {**self.asked["metadata"]}
        metadata["annotations"] = {**metadata.get("annotations", {}), "bursar.dev/policy": policy}
        return {**self.asked, "metadata": metadata}


def equal(cards: int, memory_mib: int = 16000, annotations: Json | None = None) -> Json:
    """A node of equal cards."""
    return node("n", *(card(at, memory_mib) for at in range(cards)), annotations=annotations)


def free(*percents: int) -> tuple[Json, ...]:
    """Pods that leave so much of each card."""
    return tuple(
        on(percent(100 - left, f"user-{at}"), "n", f"GPU-{at}")
        for at, left in enumerate(percents)
        if left < 100
    )


def used(*memory: int) -> tuple[Json, ...]:
    """Pods that take so many MiB of each card."""
    return tuple(
        on(mib(amount, f"user-{at}"), "n", f"GPU-{at}") for at, amount in enumerate(memory) if amount
    )


def shares(*percents: int, annotations: Json | None = None) -> Json:
    """A pod of containers a, b, c... that ask for these percents; 0 asks for nothing."""
    named = zip("abcdefgh", percents, strict=False)
    made = [container(name, gpu_percent=str(share)) if share else container(name) for name, share in named]
    return asking(*made, annotations=annotations)


def memories(*mebibytes: int, init: int = 0) -> Json:
    """A pod of containers a, b, c... that ask for so much memory, and perhaps an init container i."""
    made = [container(name, gpu_memory=str(each)) for name, each in zip("abcdefgh", mebibytes, strict=False)]
    return asking(*made, init=[container("i", gpu_memory=str(init))] if init else None)


def cores_and_memories(*asked: tuple[int, int]) -> Json:
    """A pod of containers a, b, c... that ask for (percent, MiB)."""
    return asking(
        *(
            container(name, gpu_percent=str(core), gpu_memory=str(memory))
            for name, (core, memory) in zip("abc", asked, strict=False)
        )
    )


def wired() -> Json:
    """Eight cards: 0-3 on one socket, 4-7 on the other, linked in pairs."""
    return node("n", *(card(at, numa=at // 4, links=[f"GPU-{at ^ 1}"]) for at in range(8)))


def three_pairs(*taken: int) -> tuple[Json, tuple[Json, ...]]:
    """gpu-manager's board: 0-3 on one socket, 4 and 5 on the other, linked in pairs; some cards taken."""
    board = node("n", *(card(at, numa=at // 4, links=[f"GPU-{at ^ 1}"]) for at in range(6)))
    return board, tuple(on(percent(100, f"user-{at}"), "n", f"GPU-{at}") for at in taken)


def gpushare(*units: int, init: int = 0) -> Json:
    """A pod of containers a, b, c... that ask for so many of gpushare's units, and perhaps an init container
    i."""
    made = [
        of_resources({"aliyun.com/gpu-mem": str(each)}, name)
        for name, each in zip("abc", units, strict=False)
    ]
    return asking(*made, init=[of_resources({"aliyun.com/gpu-mem": str(init)}, "i")] if init else None)


def gpushare_node(cards: int) -> Json:
    """A node as gpushare's plugin describes it, with three units on each card."""
    capacity = {"aliyun.com/gpu-mem": str(3 * cards), "aliyun.com/gpu-count": str(cards)}
    return {"metadata": {"name": "n"}, "status": {"capacity": capacity, "allocatable": capacity}}


def cards_asked(name: str, count: int) -> Json:
    """A container that asks for whole cards."""
    return container(name, gpu_count=str(count))


def at_least(memory_mib: int, *containers: Json, init: list[Json] | None = None) -> Json:
    """A pod that only uses cards of so much memory."""
    return asking(*containers, init=init, annotations={"bursar.dev/min-gpu-memory": str(memory_mib)})


def kube(init: Json | None = None, **running: Json) -> Json:
    """A pod of KubeDevice with what each container requests in its annotation."""
    told = {"runningcontainer": {name: {"requests": each} for name, each in running.items()}}
    told |= {"initcontainer": {"i": {"requests": init}}} if init else {}
    annotations = {"KubeDevice/DeviceInfo": json.dumps(told)}
    before = [container("i")] if init else None
    return asking(*map(container, running), init=before, annotations=annotations)


def named_cards(group: str, *least_mib: int) -> Json:
    """Cards of one group, each with its least memory; 0 for any."""
    names = [f"resource/group/{group}gpu/c{at}" for at in range(len(least_mib))]
    found = {f"{name}/cards": 1 for name in names}
    return found | {
        f"{name}/memory": least * 2**20 for name, least in zip(names, least_mib, strict=True) if least
    }


def near(topology: str, *containers: Json) -> Json:
    """A pod whose containers' cards must be near each other."""
    return asking(*containers, annotations={"bursar.dev/topology": topology})


def nano_gpu() -> Iterator[Scenario]:
    """v0.3, v0.1 and HEAD of nano-gpu-scheduler."""
    two, one = (equal(2),), (equal(1),)
    for number, words, left, asked, binpack, spread in (
        ("S1", "two empty cards", (100, 100), (20, 40), [0, 0], [0, 1]),
        ("S2", "one just fits", (20, 100), (20, 40), [0, 1], [1, 1]),
        ("S3", "one is too small", (10, 100), (20, 40), [1, 1], [1, 1]),
        ("S42", "a fit that greed misses", (60, 50), (30, 30, 25, 25), [0, 0, 1, 1], [0, 0, 1, 1]),
    ):
        for policy, chosen in (("binpack", binpack), ("spread", spread)):
            expected = {name: [at] for name, at in zip("abcd", chosen, strict=False)}
            yield Scenario(number, words, shares(*asked), expected, two, free(*left), policies=(policy,))
    packed, spread_out = {"b": [0], "c": [0]}, {"b": [0], "c": [1]}
    nothing = shares(0, 40, 40)
    yield Scenario("S4", "one asks for nothing", nothing, packed, two, policies=("binpack",))
    yield Scenario("S4", "one asks for nothing", nothing, spread_out, two, policies=("spread",))
    yield Scenario(
        "S5",
        "no fit together",
        shares(20, 40),
        {},
        two,
        free(10, 50),
        "not enough free for 20 percent + 40 percent",
    )
    yield Scenario(
        "S7", "110 on one card", shares(50, 60), {}, one, reason="not enough free for 50 percent + 60 percent"
    )
    yield Scenario("S7", "one card full", shares(50, 50), {"a": [0], "b": [0]}, one)
    yield Scenario("S7", "whole and share apart", shares(100, 10), {"a": [0], "b": [1]}, two)
    yield from _core_and_memory()
    yield Scenario(
        "S10", "memory alone; of equals the first", mib(4 * GIB), {"main": [0]}, (equal(4, 12 * GIB),)
    )
    yield Scenario(
        "S11", "one and a half cards", percent(150), {}, (equal(3),), reason="malformed GPU request: "
    )


def _core_and_memory() -> Iterator[Scenario]:
    seven_nine = cores_and_memories((50, 7 * GIB), (50, 9 * GIB))
    typical = "not enough free for 50 percent and 7168 MiB + 50 percent and 9216 MiB"
    yield Scenario("S8", "one card of 15", seven_nine, {}, (equal(1, 15 * GIB),), reason=typical)
    seven_eight = cores_and_memories((50, 7 * GIB), (50, 8 * GIB))
    yield Scenario("S8", "just fits", seven_eight, {"a": [0], "b": [0]}, (equal(1, 15 * GIB),))
    yield Scenario("S8", "two cards of 15", seven_nine, {"a": [0], "b": [1]}, (equal(2, 15 * GIB),))
    yield Scenario("S8", "two cards of 7", seven_nine, {}, (equal(2, 7 * GIB),), reason=typical)
    size = 15 * GIB + 64
    user = on(cores_and_memories((90, 64)), "n", "GPU-0")
    user["metadata"] |= {"name": "user", "uid": "uid-user"}
    whole, small = (
        container("a", gpu_percent="100"),
        container("b", gpu_percent="10", gpu_memory=str(15 * GIB)),
    )
    for order in ((whole, small), (small, whole)):
        yield Scenario(
            "S9", "order does not matter", asking(*order), {"a": [1], "b": [0]}, (equal(2, size),), (user,)
        )


def kube_gpu() -> Iterator[Scenario]:
    """KubeGPU: memory of each card, groups of linked cards. Its bits that a card must have are refused here
    (decision 52), so they are left out. With them its first container of S12 got card 2 in place of 1, and
    so the init container of the variant reused card 2 there."""
    sizes = (100_000, 256_000, 257_000, 192_000, 178_000)
    mixed = (node("n", *(card(at, memory) for at, memory in enumerate(sizes))),)
    binpack = ("binpack",)
    three = {"a": [1], "b": [4], "c": [3]}
    yield Scenario(
        "S12",
        "the init container reuses a card of the pod's own",
        memories(256_000, 178_000, 190_000, init=100_000),
        {**three, "i": [4]},
        mixed,
        policies=binpack,
    )
    yield Scenario(
        "S12",
        "but where none is large enough, another",
        memories(256_000, 178_000, 190_000, init=257_000),
        {**three, "i": [2]},
        mixed,
        policies=binpack,
    )
    for least, card_of_it in ((256_000, 1), (178_000, 4), (190_000, 3), (100_000, 0), (257_000, 2)):
        pod = at_least(least, cards_asked("a", 1))
        words = f"a card of at least {least} MiB, of those the smallest"
        yield Scenario("S12", words, pod, {"a": [card_of_it]}, mixed, policies=binpack)
    yield Scenario(
        "S12",
        "one least memory for all containers of a pod",
        at_least(178_000, cards_asked("a", 2), cards_asked("b", 1), init=[cards_asked("i", 1)]),
        {"a": [4, 3], "b": [1], "i": [4]},
        mixed,
        policies=binpack,
    )
    yield Scenario(
        "S12",
        "no card is so large",
        at_least(257_001, cards_asked("a", 1)),
        {},
        mixed,
        reason="no card with 257001 MiB of memory here",
    )
    runs = {"a": named_cards("", 256_000, 178_000), "b": named_cards("", 190_000)}
    for least, card_of_it in ((100_000, 4), (257_000, 2)):
        yield Scenario(
            "S12",
            f"a least memory for each card of each container, and {least} for the init container",
            kube(named_cards("", least), **runs),
            {"a": [1, 4], "b": [3], "i": [card_of_it]},
            mixed,
            policies=binpack,
        )
    yield Scenario(
        "S12",
        "no two cards are so large",
        kube(a=named_cards("", 257_000, 257_000)),
        {},
        mixed,
        reason="fewer than 2 cards with the memory requested here",
    )
    counts = asking(cards_asked("a", 2), cards_asked("b", 1), init=[cards_asked("i", 1)])
    yield Scenario("S13", "counts alone", counts, {"a": [0, 4], "b": [3], "i": [0]}, mixed, policies=binpack)
    yield Scenario("S15", "two in one pair", near("pair", cards_asked("a", 2)), {"a": [0, 1]}, (wired(),))
    yield Scenario(
        "S15",
        "four on one socket, two on another",
        near("numa", cards_asked("a", 4), cards_asked("b", 2)),
        {"a": [0, 1, 2, 3], "b": [4, 5]},
        (wired(),),
    )
    yield Scenario(
        "S15",
        "four on one socket and a pair elsewhere, in one container",
        kube(a=named_cards("gpugrp0/B/", 0, 0) | named_cards("gpugrp1/A/", 0, 0, 0, 0)),
        {"a": [0, 1, 4, 5, 6, 7]},
        (wired(),),
    )
    yield Scenario(
        "S15",
        "in two containers",
        kube(a=named_cards("gpugrp1/A/", 0, 0, 0, 0), b=named_cards("gpugrp0/B/", 0, 0)),
        {"a": [0, 1, 2, 3], "b": [4, 5]},
        (wired(),),
    )
    four = tuple(on(percent(100, f"user-{at}"), "n", f"GPU-{at}") for at in (4, 5, 6, 7))
    yield Scenario(
        "S15",
        "a pair beside a pod with four",
        near("pair", cards_asked("a", 2)),
        {"a": [0, 1]},
        (wired(),),
        four,
    )
    yield Scenario(
        "S15",
        "four beside a pod with a pair",
        near("numa", cards_asked("a", 4)),
        {"a": [0, 1, 2, 3]},
        (wired(),),
        four[2:],
    )
    yield Scenario(
        "S16b",
        "where the topology is not known, every card stands for itself",
        near("pair", cards_asked("a", 2)),
        {},
        (equal(8),),
        reason="the inventory here does not say which cards are linked",
    )
    yield Scenario(
        "S16b", "which is no matter to one card", near("pair", cards_asked("a", 1)), {"a": [0]}, (equal(8),)
    )
    yield Scenario(
        "S16b",
        "no three cards are linked where pairs are",
        near("pair", cards_asked("a", 3)),
        {},
        (wired(),),
        reason="no 3 cards linked with each other here",
    )


def gpu_manager() -> Iterator[Scenario]:
    """tkestack's gpu-manager."""
    board, _ = three_pairs()
    yield Scenario(
        "S18", "three on one socket", near("numa", cards_asked("a", 3)), {"a": [0, 1, 2]}, (board,)
    )
    _, taken = three_pairs(2)
    yield Scenario(
        "S18",
        "a pair where another is broken",
        near("pair", cards_asked("a", 2)),
        {"a": [0, 1]},
        (board,),
        taken,
    )
    yield Scenario(
        "S18", "two where the group is smallest", near("numa", cards_asked("a", 2)), {"a": [4, 5]}, (board,)
    )
    _, taken = three_pairs(4)
    yield Scenario(
        "S18",
        "one card: the half of a broken pair",
        near("pair", cards_asked("a", 1)),
        {"a": [5]},
        (board,),
        taken,
    )
    yield Scenario("S18", "half a card", percent(50), {"main": [0]}, (board,))
    yield Scenario("S18", "more than is left of it", percent(60), {"main": [1]}, (board,), free(50))


def gpu_aware() -> Iterator[Scenario]:
    """Intel's GPU Aware Scheduling. Where it prefers a card by a label, a pod here names the cards it may
    have; where it disables one, the node's annotation does."""
    three = (equal(3, 4000),)
    chosen = {"bursar.dev/gpu-uuids": "GPU-2"}
    yield Scenario("S21", "no preference", percent(10), {"main": [0]}, three)
    yield Scenario("S21", "card 2", percent(10, annotations=chosen), {"main": [2]}, three)
    yield Scenario("S22", "balanced", mib(1000), {"main": [2]}, three, used(1000, 2000), policies=("spread",))
    this, other = {"bursar.dev/gpu-uuids": "GPU-0"}, {"bursar.dev/gpu-uuids": "GPU-1"}
    none = "none of the cards that the pod names is here"
    yield Scenario("S23", "allowed", percent(10, annotations=this), {"main": [0]})
    yield Scenario("S23", "another allowed", percent(10, annotations=other), {}, reason=none)
    apart, itself = {"bursar.dev/exclude-gpu-models": "T4"}, {"bursar.dev/exclude-gpu-models": "A100"}
    yield Scenario("S23", "another denied", percent(10, annotations=apart), {"main": [0]})
    yield Scenario(
        "S23",
        "denied",
        percent(10, annotations=itself),
        {},
        reason="all cards here are of excluded models (A100)",
    )
    cordoned = {"bursar.dev/cordoned-cards": "GPU-0"}
    every = "every healthy GPU card here is cordoned"
    yield Scenario("S23", "disabled", percent(10), {}, (equal(1, annotations=cordoned),), reason=every)
    yield Scenario("S23", "the other is not", percent(10), {"main": [1]}, (equal(2, annotations=cordoned),))
    for named, words in (("a", "one alone"), ("", "none"), ("a,a", "twice"), ("a,x", "unknown")):
        pod = shares(10, 10, annotations={"bursar.dev/same-gpu": named})
        yield Scenario("S30", words, pod, {}, reason="malformed GPU request: metadata.annotations[bursar.dev")
    two_cards = asking(
        cards_asked("a", 2), container("b", gpu_percent="10"), annotations={"bursar.dev/same-gpu": "a,b"}
    )
    conflict = "malformed GPU request: metadata.annotations[bursar.dev/same-gpu]: one of them requests more"
    yield Scenario("S30", "two cards in the group", two_cards, {}, (equal(2),), reason=conflict)
    together = shares(30, 30, annotations={"bursar.dev/same-gpu": "a,b"})
    yield Scenario("S30", "one card for both", together, {"a": [1], "b": [1]}, (equal(2),), free(50))
    yield Scenario(
        "S30",
        "though each would fit on a card of its own",
        together,
        {},
        (equal(2),),
        free(50, 50),
        "not enough free for 2 x 30 percent, 2 of them on one card",
    )


def aliyun() -> Iterator[Scenario]:
    """gpushare: its design, its guide, and issues 10, 40, 114 and 143."""
    node_of_two, asked, none = (equal(2, 16276),), mib(8138), "no card has 8138 MiB free"
    yield Scenario("S34", "too little in all", asked, {}, node_of_two, used(16276, 12207), none)
    yield Scenario("S34", "enough in all, on no card", asked, {}, node_of_two, used(12207, 12207), none)
    yield Scenario("S34", "on one card", asked, {"main": [0]}, node_of_two, used(8138, 12207))
    tightest = used(4069, 8138, 12207)
    yield Scenario(
        "S35", "the tightest", asked, {"main": [1]}, (equal(4, 16276),), tightest, policies=("binpack",)
    )
    yield Scenario(
        "S38", "two containers, one card", memories(GIB, 2 * GIB), {"a": [0], "b": [0]}, (equal(1),)
    )
    one, two = gpushare_node(1), gpushare_node(2)
    for words, pod, there, cards in (
        ("the same in its words", gpushare(1, 2), one, {"a": [0], "b": [0]}),
        ("its plugin starts none of these where there are two cards", gpushare(1, 2), two, {}),
        ("nor an init container", gpushare(1, init=1), two, {}),
        ("which a node with one card starts", gpushare(1, init=1), one, {"a": [0], "i": [0]}),
        ("one container may be anywhere", gpushare(3), two, {"a": [0]}),
    ):
        reason = (
            ""
            if cards
            else "requests in several containers, or in an init container, need a node with one card"
        )
        yield Scenario("S38", words, pod, cards, (there,), reason=reason)
    seven = (equal(1, 7 * GIB),)
    full = (on(mib(GIB, "one"), "n", "GPU-0"), on(mib(6 * GIB, "six"), "n", "GPU-0"))
    whole = "not enough free GPUs (1 needed)"
    yield Scenario("S39", "a whole card of a full one", percent(100), {}, seven, full, whole)
    yield Scenario("S39", "of one barely touched", percent(100), {}, seven, used(64), whole)
    untouchable = (on(percent(100, "whole"), "n", "GPU-0"),)
    yield Scenario(
        "S39", "beside a whole card", mib(64), {}, pods=untouchable, reason="no card has 64 MiB free"
    )
    yield Scenario(
        "S39", "of it one per cent", percent(1), {}, pods=untouchable, reason="no card has 1 percent free"
    )
    mixed = (node("n", card(0, 8 * GIB), card(1, 16 * GIB)),)
    for amount, index in ((9 * GIB, 1), (16 * GIB, 1)):
        yield Scenario("S40", f"{amount} MiB", mib(amount), {"main": [index]}, mixed)
    yield Scenario("S40", "8 GiB", mib(8 * GIB), {"main": [0]}, mixed, policies=("binpack",))
    yield Scenario("S40", "17 GiB", mib(17 * GIB), {}, mixed, reason="no card has 17408 MiB free")
    far = (node("n", card(0, 15 * GIB), card(1, 45 * GIB)),)
    for amount, index in ((15 * GIB, 0), (16 * GIB, 1), (30 * GIB, 1), (45 * GIB, 1)):
        yield Scenario(
            "S40", f"{amount} of 15 and 45 GiB", mib(amount), {"main": [index]}, far, policies=("binpack",)
        )
    yield Scenario("S40", "46 GiB of 15 and 45", mib(46 * GIB), {}, far, reason="no card has 47104 MiB free")


def genius() -> Iterator[Scenario]:
    """Genius: a node with two cards."""
    for count, chosen in ((1, [0]), (2, [0, 1])):
        yield Scenario("S41", f"{count} cards", asking(cards_asked("a", count)), {"a": chosen}, (equal(2),))
    yield Scenario(
        "S41",
        "3 cards",
        asking(cards_asked("a", 3)),
        {},
        (equal(2),),
        reason="not enough free GPUs (3 needed)",
    )


TABLE = (*nano_gpu(), *kube_gpu(), *gpu_manager(), *gpu_aware(), *aliyun(), *genius())
CASES = [(scenario, policy) for scenario in TABLE for policy in scenario.policies]
IDS = [f"{scenario.number}: {scenario.words} ({policy})" for scenario, policy in CASES]
