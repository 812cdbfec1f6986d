"""Which pod fits on which node: dialects, inventories, constraints, and the sentence of each refusal."""

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import NOT_DESCRIBED, Refusal
from tests.scheduler_ext.snapshots import Json, why
from tests.scheduler_ext.worlds import (
    asking,
    bound,
    cards_of,
    holders,
    mib,
    node,
    on,
    percent,
    rebuilt,
    request_of,
)
from tests.worlds import card, container, limits_of, of_resources
from timekeeper.core.values import Placement

NVIDIA = {"nvidia.com/gpu": "2"}
TENCENT = {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "125"}


def whole(count: int = 1, name: str = "p") -> Json:
    """A pod of whole cards as NVIDIA's users write it."""
    return asking(limits_of("main", nvidia_com__gpu=str(count)), name=name)


@pytest.mark.parametrize(
    ("capacity", "raw", "sentence"),
    [
        (NVIDIA, percent(50), "only whole cards here, requested as nvidia.com/gpu"),
        (NVIDIA, percent(100), "cards here are requested as nvidia.com/gpu"),
        (TENCENT, percent(50), "cards here are requested as tencent.com/vcuda-core"),
        (None, whole(), "cards here are requested as bursar.dev/gpu-percent"),
        (
            {**TENCENT, **NVIDIA},
            percent(50),
            "node is closed for sharing: more than one GPU plugin serves it",
        ),
        (
            {"bursar.dev/gpu-percent": "200", **NVIDIA},
            whole(),
            "node is closed for sharing: more than one GPU plugin serves it",
        ),
        (
            {"amd.com/gpu": "32"},
            percent(50),
            "node is closed for sharing: its GPU plugin is not supported",
        ),
    ],
)
def test_a_request_is_placed_only_on_a_node_of_its_dialects_family(
    capacity: Json | None, raw: Json, sentence: str
) -> None:
    assert why(rebuilt([node("n", card(0), card(1), capacity=capacity)], []), raw) == sentence


def test_a_plugin_that_advertises_nothing_any_more_makes_no_second_family() -> None:
    capacity = {"bursar.dev/gpu-percent": "100", "nvidia.com/gpu": "0"}

    assert cards_of(fit(request_of(percent(50)), rebuilt([node("n", capacity=capacity)], []).node("n")))


def bare(capacity: Json, **labels: str) -> Json:
    """A node without an inventory."""
    return {
        "metadata": {"name": "n", "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def fits(nodes: list[Json], pods: list[Json], raw: Json) -> bool:
    return not isinstance(fit(request_of(raw), rebuilt(nodes, pods).node("n")), Refusal)


def test_a_node_without_an_inventory_says_how_the_cards_that_it_advertises_are_requested() -> None:
    koordinators = bare({"koordinator.sh/gpu-core": "800"})

    assert (
        why(rebuilt([bare(NVIDIA)], []), percent(50)) == "only whole cards here, requested as nvidia.com/gpu"
    )
    assert why(rebuilt([koordinators], []), whole()) == "cards here are requested as koordinator.sh/gpu"
    assert why(rebuilt([bare({"cpu": "8"})], []), whole()) == "no GPU cards here"


LABELLED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "6"}


@pytest.mark.parametrize(
    ("capacity", "labels", "limits", "refusal"),
    [
        ({"nvidia.com/gpu": "32"}, {"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": "1"}, ""),
        ({"nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "14"}, LABELLED, {"nvidia.com/gpu": "4"}, ""),
        (
            {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "14"},
            LABELLED,
            {"nvidia.com/mig-1g.5gb": "1"},
            "",
        ),
        ({"nvidia.com/gpu": "2", "amd.com/gpu": "0"}, {}, {"nvidia.com/gpu": "1"}, ""),
        (
            {"gpu.intel.com/i915": "2", "gpu.intel.com/i915_monitoring": "1"},
            {},
            {"gpu.intel.com/i915": "1"},
            "",
        ),
        ({"nano-gpu/gpu-percent": "200"}, {}, {"nano-gpu/gpu-percent": "50"}, ""),
        ({"elasticgpu.io/gpu-core": "200"}, {}, {"elasticgpu.io/gpu-core": "100"}, ""),
        ({"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}, {}, {"aliyun.com/gpu-mem": "3"}, ""),
        ({"volcano.sh/gpu-number": "2"}, {}, {"volcano.sh/gpu-number": "1"}, ""),
        # their plugin comes later
        ({}, {}, {"nvidia.com/gpu": "1"}, "no GPU cards here"),
        ({"nvidia.com/gpu": "0"}, {}, {"nvidia.com/gpu": "1"}, "no GPU cards here"),
        # nothing but an inventory describes them
        ({"volcano.sh/vgpu-number": "20"}, {}, {"volcano.sh/vgpu-number": "1"}, NOT_DESCRIBED.sentence),
        ({"tencent.com/vcuda-core": "200"}, {}, {"tencent.com/vcuda-core": "100"}, NOT_DESCRIBED.sentence),
    ],
)
def test_a_plugins_node_without_an_inventory_takes_its_pods_or_says_what_it_lacks(
    capacity: Json, labels: Json, limits: Json, refusal: str
) -> None:
    there, asked = [bare({"cpu": "64", **capacity}, **labels)], asking(of_resources(limits))

    assert fits(there, [], asked) == (not refusal)
    assert not refusal or why(rebuilt(there, []), asked) == refusal
    assert why(rebuilt([], []), percent(50), "elsewhere") == "node is not known to the extender yet"


@pytest.mark.parametrize("plugin", ["nvidia.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"])
def test_whole_cards_that_only_a_plugin_knows_are_given_out_as_long_as_some_are_left(plugin: str) -> None:
    def pod(count: int, name: str = "p") -> Json:
        return asking(
            limits_of("main", **{plugin.replace(".", "_").replace("/", "__"): str(count)}), name=name
        )

    there = [bare({plugin: "8"})]
    others = [bound(pod(5, "five"), "n", None), bound(pod(1, "ended"), "n", None, "Succeeded")]

    assert fits(there, others, pod(3))
    assert not fits(there, others, pod(4))
    assert not fits(there, [*others, bound(pod(3, "three"), "n", None)], pod(1))


def test_cards_that_only_a_plugin_knows_are_those_that_are_healthy_and_have_the_model_of_the_label() -> None:
    raw = bare({"nvidia.com/gpu": "8"}, **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    raw["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    asked = {"metadata": {"annotations": {"bursar.dev/gpu-models": "T4"}}}
    other = {**whole(), "metadata": {**whole()["metadata"], **asked["metadata"]}}

    assert fits([raw], [], whole(2))
    assert not fits([raw], [], whole(3))
    assert why(rebuilt([raw], []), other) == "no T4 here"


def test_a_share_that_another_scheduler_gave_of_a_plugins_card_does_not_close_its_node() -> None:
    reserving = bound(whole(1, "reserves-for-kai"), "n", None)
    sharing = {**asking(container(), name="shares"), "metadata": {"name": "shares", "uid": "uid-shares"}}
    sharing["metadata"] |= {"namespace": "team-a", "annotations": {"gpu-fraction": "0.5"}}
    sharing["spec"] = {**sharing["spec"], "schedulerName": "kai-scheduler"}
    there = [bare(NVIDIA)]

    assert fits(there, [reserving, bound(sharing, "n", None)], whole(1))
    assert not fits(there, [reserving, bound(sharing, "n", None)], whole(2))


def test_a_card_that_a_second_system_may_give_out_is_not_given_out() -> None:
    both = bare({**NVIDIA, "koordinator.sh/gpu-core": "200"})

    assert (
        why(rebuilt([both], []), whole()) == "node is closed for sharing: more than one GPU plugin serves it"
    )


def test_pods_from_before_the_inventory_and_after_it_count_as_many_cards_as_they_request() -> None:
    described = node("n", *(card(at) for at in range(4)), capacity={"nvidia.com/gpu": "4"})
    before = bound(whole(3, "before"), "n", None)
    named = on(whole(1, "named"), "n", "GPU-7")  # of an inventory that is gone

    assert fits([described], [before], whole(1))
    assert not fits([described], [before], whole(2))
    assert fits([bare({"nvidia.com/gpu": "4"})], [named], whole(3))
    assert not fits([bare({"nvidia.com/gpu": "4"})], [named], whole(4))


def test_an_inventory_that_cannot_be_read_closes_its_node() -> None:
    raw = node("n", annotations={"bursar.dev/inventory": "{"})

    assert (
        why(rebuilt([raw], []), percent(50))
        == "node is closed for sharing: its card inventory cannot be read"
    )


@pytest.mark.parametrize("annotations", [{}, {"bursar.dev/holders": holders()}], ids=["no agent", "an agent"])
def test_whole_cards_are_given_where_the_plugin_picks_them_counting_unnamed_ones(
    annotations: Json,
) -> None:
    others, cards = bound(whole(2, "other"), "n", None), [card(at) for at in range(4)]
    there = node("n", *cards, capacity={"nvidia.com/gpu": "4"}, annotations=annotations)
    snapshot = rebuilt([there], [others])

    assert len(cards_of(fit(request_of(whole(2)), snapshot.node("n")))["main"]) == 2
    assert why(snapshot, whole(3)) == "not enough free GPUs (3 needed)"


def started(**cards: int) -> list[Json]:
    """Init containers of whole cards; those whose names begin with ``side`` are native sidecars."""
    of_cards = [limits_of(name, nvidia_com__gpu=str(count)) for name, count in cards.items()]
    return [
        each | ({"restartPolicy": "Always"} if each["name"].startswith("side") else {}) for each in of_cards
    ]


@pytest.mark.parametrize(
    ("init", "unnamed"),
    [
        (started(first=2), 2),
        (started(first=1, side=1, last=2), 3),
        (started(first=3, side=1), 3),
        (started(side=1), 2),
    ],
)
def test_init_containers_of_an_unplaced_pod_reuse_its_cards(init: list[Json], unnamed: int) -> None:
    others = asking(limits_of("main", nvidia_com__gpu="1"), init=init, name="other")
    cards = [card(at) for at in range(4)]
    snapshot = rebuilt([node("n", *cards, capacity={"nvidia.com/gpu": "4"})], [bound(others, "n", None)])

    assert snapshot.node("n").unnamed == unnamed
    assert snapshot.held.get("team-a") == 1_000 * unnamed


def test_a_choice_of_cards_cannot_be_kept_where_the_plugin_picks_them() -> None:
    mixed = node("n", card(0, model="A100"), card(1, model="T4"), capacity=NVIDIA)
    choosy = {
        **whole(),
        "metadata": {**whole()["metadata"], "annotations": {"bursar.dev/gpu-models": "A100"}},
    }

    assert why(rebuilt([mixed], []), choosy) == "cards here cannot be chosen by model, UUID or topology"
    same = node("n", card(0, model="A100"), card(1, model="A100"), capacity=NVIDIA)
    assert cards_of(fit(request_of(choosy), rebuilt([same], []).node("n")))


@pytest.mark.parametrize(("nodes", "fits"), [((0, 0, 0), True), ((0, 0, 1), False), ((0, 0, None), False)])
def test_cards_near_each_other_are_had_where_the_plugin_picks_them_if_all_are(
    nodes: tuple[int | None, ...], fits: bool
) -> None:
    capacity = {"nvidia.com/gpu": "3"}
    there = node("n", *(card(at, numa=numa) for at, numa in enumerate(nodes)), capacity=capacity)
    two = whole(2)
    two["metadata"]["annotations"] = {"bursar.dev/topology": "numa"}

    answer = fit(request_of(two), rebuilt([there], []).node("n"))

    assert isinstance(answer, Placement) == fits
    assert fits or answer == Refusal("cards here cannot be chosen by model, UUID or topology", "constraint")


@pytest.mark.parametrize(
    ("annotations", "indexes", "sentence"),
    [
        ({"bursar.dev/gpu-models": "T4"}, [1], ""),
        ({"bursar.dev/gpu-models": "H100,V100"}, None, "no H100 or V100 here"),
        ({"bursar.dev/exclude-gpu-models": "A100"}, [1], ""),
        (
            {"bursar.dev/exclude-gpu-models": "A100,T4"},
            None,
            "all cards here are of excluded models (A100 or T4)",
        ),
        ({"bursar.dev/gpu-uuids": "GPU-1"}, [1], ""),
        ({"bursar.dev/gpu-uuids": "GPU-7"}, None, "none of the cards that the pod names is here"),
    ],
)
def test_constraints_choose_among_the_cards(
    annotations: Json, indexes: list[int] | None, sentence: str
) -> None:
    snapshot = rebuilt([node("n", card(0, model="A100"), card(1, model="T4"))], [])
    raw = percent(10, annotations=annotations)

    if indexes is None:
        assert why(snapshot, raw) == sentence
    else:
        assert cards_of(fit(request_of(raw), snapshot.node("n"))) == {"main": indexes}


def test_an_unhealthy_card_is_never_given() -> None:
    one = rebuilt([node("n", card(0, healthy=False), card(1))], [])
    none = rebuilt([node("n", card(0, healthy=False))], [])

    assert cards_of(fit(request_of(percent(10)), one.node("n"))) == {"main": [1]}
    assert why(none, percent(10)) == "no healthy GPU card here"
    assert why(one, asking(container(gpu_count="2"))) == "not enough free GPUs (2 needed)"


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (percent(50), "no card has 50 percent free"),
        (mib(5000), "no card has 5000 MiB free"),
        (asking(container(gpu_percent="50", gpu_memory="8192")), "no card has 50 percent and 8192 MiB free"),
        (percent(100), "not enough free GPUs (1 needed)"),
        (asking(container(gpu_count="2")), "not enough free GPUs (2 needed)"),
        (
            asking(container(gpu_count="2", gpu_percent="100")),
            "not enough GPUs with 50 percent free (2 needed)",
        ),
        (
            asking(
                container("a", gpu_percent="30"),
                container("b", gpu_percent="30"),
                container("c", gpu_count="1"),
            ),
            "not enough free for 2 x 30 percent + 1 whole card",
        ),
    ],
)
def test_a_shortage_names_the_need_and_no_varying_figure(raw: Json, sentence: str) -> None:
    for free in (60, 40, 10):
        user = on(percent(100 - free // 10, "user"), "n", "GPU-0")
        assert why(rebuilt([node("n")], [user]), raw) == sentence


def test_a_link_counts_whichever_of_the_two_cards_shows_it() -> None:
    one_told = node("n", card(0, links=[]), card(1, links=["GPU-0"]))
    two = asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "pair"})

    assert cards_of(fit(request_of(two), rebuilt([one_told], []).node("n"))) == {"main": [0, 1]}


def test_cards_of_unknown_numa_nodes_are_not_on_one_together() -> None:
    one_known = node("n", card(0, numa=0), card(1), card(2))
    two = asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "numa"})

    assert why(rebuilt([one_known], []), two) == "no 2 cards on one NUMA node here"


def test_a_choice_of_linked_cards_that_takes_too_long_is_given_up_too() -> None:
    """Forty cards in five parts, each linked to all but its own part: no six are linked with each other."""
    parts = [[f"GPU-{at}" for at in range(40) if at % 5 != part] for part in range(5)]
    there = node("n", *(card(at, links=parts[at % 5]) for at in range(40)))
    asked = {"bursar.dev/topology": "pair"}

    five = asking(container(gpu_count="5"), annotations=asked)
    six = asking(container(gpu_count="6"), annotations=asked)

    assert cards_of(fit(request_of(five), rebuilt([there], []).node("n")))
    assert why(rebuilt([there], []), six) == "no layout of its containers was found in time"


def test_a_search_that_is_given_up_says_so() -> None:
    sizes = [331 + 7 * at % 13 for at in range(23)]
    containers = [container(f"c{at}", gpu_memory=str(10 * size)) for at, size in enumerate(sizes)]
    snapshot = rebuilt([node("n", *(card(at, 10_000) for at in range(8)))], [])

    assert why(snapshot, asking(*containers)) == "no layout of its containers was found in time"


@pytest.mark.parametrize(
    ("cards", "offered", "labels", "taken"),
    [
        (1, 4, {}, 4),  # the plugin alone says that it slices its card's time
        (1, 4, {"nvidia.com/gpu.replicas": "4"}, 4),
        (2, 5, {"nvidia.com/gpu.replicas": "4"}, 5),  # of one of its cards
        (1, 2, {"cloud.google.com/gke-max-shared-clients-per-gpu": "2"}, 2),
        (7, 8, {}, 7),  # its agent lacks a card
        (4, 8, {"nvidia.com/gpu.replicas": "1"}, 4),
        (2, 2, {"nvidia.com/gpu.replicas": "4"}, 2),
    ],
)
def test_each_time_slice_of_a_described_card_takes_a_pod(
    cards: int, offered: int, labels: Json, taken: int
) -> None:
    """As many pods run as without the inventory, beside one that had a whole card before it was read so."""
    capacity = {"nvidia.com/gpu": str(offered)}
    agents = {"bursar.dev/holders": holders()}
    there = node("n", *(card(at) for at in range(cards)), capacity=capacity, annotations=agents)
    there["metadata"]["labels"] = labels
    others = [bound(whole(1, f"p{at}"), "n", None) for at in range(taken - 1)]
    named = [on(whole(1, "p0"), "n", "GPU-0"), *others[1:]] if others else []

    assert fits([there], others, whole(1))
    assert fits([there], named, whole(1))
    assert not fits([there], [*others, bound(whole(1, "last"), "n", None)], whole(1))
