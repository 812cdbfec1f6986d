"""What a simulator or an autoscaler is told of nodes that need not exist."""

import json
import re
from pathlib import Path

import pytest

from scheduler_ext.fit.refusal import NOT_DESCRIBED
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import GIB, asking, node, on, percent
from tests.worlds import Json, card, container, limits_of

TWO_OF_OURS = {"bursar.dev/gpu-percent": "200", "bursar.dev/gpu-memory": "32768"}


def template(name: str, capacity: Json, labels: Json | None = None, annotations: Json | None = None) -> Json:
    """A node that no API server has."""
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "status": {"capacity": capacity, "allocatable": capacity}}


def dry(world: Stepped, pod: Json, *templates: Json, names: list[str] | None = None) -> Json:
    """The answer to a dry run over these templates, or over nodes by name."""
    body = {"Pod": pod, "NodeNames": names, "Nodes": {"items": list(templates)} if templates else None}
    answer = world.client.post("/dryrun", json=body)
    assert answer.status_code == 200
    found: Json = answer.get_json()
    return found


def test_a_template_is_answered_by_its_inventory(running: Stepped) -> None:
    small, large = node("small"), node("large", card(0), card(1))

    answer = dry(running, percent(200), small, large)

    assert answer == {
        "NodeNames": ["large"],
        "Nodes": {"items": [large]},
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"small": "not enough free GPUs (2 needed)"},
        "Error": "",
        "Assumed": {},
    }


def test_a_template_without_an_inventory_is_answered_by_its_capacity_and_says_so(running: Stepped) -> None:
    raw = template("t", TWO_OF_OURS)

    answer = dry(running, asking(container(gpu_memory=str(16 * GIB))), raw)

    assert answer["NodeNames"] == ["t"]
    assert answer["Assumed"] == {
        "t": "no inventory: 2 equal cards of 16384 MiB assumed, model not known, links and NUMA nodes not "
        "known, no pods on them"
    }
    more = dry(running, asking(container(gpu_memory=str(16 * GIB + 1))), raw)
    assert more["FailedAndUnresolvableNodes"] == {"t": f"no card has {16 * GIB + 1} MiB free"}


@pytest.mark.parametrize(
    ("capacity", "limits"),
    [
        (
            {"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "32"},
            {"tencent_com__vcuda_core": "100"},
        ),
        ({"nvidia.com/gpu": "1"}, {"nvidia_com__gpu": "1"}),
    ],
    ids=["tencent", "nvidia"],
)
def test_templates_of_other_families_are_answered_too(running: Stepped, capacity: Json, limits: Json) -> None:
    raw = template("t", capacity)

    assert dry(running, asking(limits_of("main", **limits)), raw)["NodeNames"] == ["t"]
    assert dry(running, percent(10), raw)["NodeNames"] == []


def test_labels_of_feature_discovery_show_model_and_memory(running: Stepped) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
    raw = template("t", {"bursar.dev/gpu-percent": "800"}, labels)
    wanted = asking(container(gpu_memory="81559"), annotations={"bursar.dev/gpu-models": "H100"})
    other = asking(container(gpu_memory="81559"), annotations={"bursar.dev/gpu-models": "A100"})

    assert dry(running, wanted, raw)["NodeNames"] == ["t"]
    assert dry(running, other, raw)["FailedAndUnresolvableNodes"] == {"t": "no A100 here"}
    assert "8 equal cards of 81559 MiB" in dry(running, wanted, raw)["Assumed"]["t"]


def test_a_template_of_unknown_memory_takes_shares_and_no_memory(running: Stepped) -> None:
    raw = template("t", {"bursar.dev/gpu-percent": "100"})

    assert dry(running, percent(30), raw)["NodeNames"] == ["t"]
    assert dry(running, asking(container(gpu_memory="64")), raw)["NodeNames"] == []
    assert "unknown memory" in dry(running, percent(30), raw)["Assumed"]["t"]


@pytest.mark.parametrize(
    ("capacity", "annotations", "reason"),
    [
        ({}, {}, "no GPU cards here"),
        ({"bursar.dev/gpu-percent": "99"}, {}, NOT_DESCRIBED.sentence),
        ({"bursar.dev/gpu-percent": "-100"}, {}, "no GPU cards here"),
        ({"bursar.dev/gpu-percent": {}}, {}, "no GPU cards here"),
        (
            TWO_OF_OURS,
            {"bursar.dev/inventory": "{"},
            "node is closed for sharing: its card inventory cannot be read",
        ),
        (
            {**TWO_OF_OURS, "nvidia.com/gpu": "2"},
            {},
            "node is closed for sharing: more than one GPU plugin serves it",
        ),
        (
            TWO_OF_OURS,
            {"bursar.dev/cordoned-cards": "GPU-template-0,GPU-template-1"},
            "every healthy GPU card here is cordoned",
        ),
    ],
)
def test_an_odd_template_gets_a_reason(
    running: Stepped, capacity: Json, annotations: Json, reason: str
) -> None:
    answer = dry(running, percent(10), template("t", capacity, annotations=annotations))

    assert answer["FailedAndUnresolvableNodes"] == {"t": reason}


def test_a_template_of_countless_cards_has_as_many_as_a_pod_can_request(running: Stepped) -> None:
    answer = dry(running, percent(6400), template("t", {"bursar.dev/gpu-percent": str(10**15)}))

    assert answer["NodeNames"] == ["t"]
    assert "64 equal cards" in answer["Assumed"]["t"]


def test_a_node_that_the_books_know_is_answered_as_they_know_it(running: Stepped) -> None:
    running.put_node(node("a"))
    running.put_pod(on(percent(50, "user"), "a", "a-GPU-0"))

    answer = dry(running, percent(60), node("a"), node("template"))

    assert answer["NodeNames"] == ["template"]
    assert answer["FailedNodes"] == {"a": "no card has 60 percent free"}
    assert answer["Assumed"] == {}
    assert dry(running, percent(40), names=["a", "nobody"])["FailedAndUnresolvableNodes"] == {
        "nobody": "node is not known to the extender yet"
    }


def test_a_pod_does_not_stand_in_its_own_way(running: Stepped) -> None:
    running.put_node(node("a"))
    holder = running.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))

    assert dry(running, holder, names=["a"])["NodeNames"] == ["a"]
    assert dry(running, percent(100), names=["a"])["NodeNames"] == []


def test_a_dry_run_leaves_no_trace(running: Stepped) -> None:
    running.put_node(node("a"))
    waiting = running.put_pod(percent(300, "waiter"))
    before, made = running.extender.cache.snapshot, running.api.calls.copy()

    for _ in range(3):
        assert dry(running, waiting, node("template"), names=None)["NodeNames"] == []
        assert dry(running, waiting, names=["a"])["NodeNames"] == []

    assert running.extender.cache.snapshot is before
    assert 'bursar_extender_pods_waiting{standing="UNKNOWN"} 0.0' in running.client.get("/metrics").text
    assert running.api.calls == made


def test_pods_with_no_or_a_malformed_request_are_answered_as_by_filter(running: Stepped) -> None:
    assert dry(running, asking(container()), node("t"))["NodeNames"] == ["t"]
    wrong = dry(running, percent(150), node("t"))
    assert "gpu-percent" in wrong["FailedAndUnresolvableNodes"]["t"]
    assert running.client.post("/dryrun", data=b"{").status_code == 400


def test_a_dry_run_answers_what_filter_answers_for_nodes_that_exist(running: Stepped) -> None:
    running.put_node(node("a", card(0), card(1)))
    running.put_node(node("b"))
    running.put_pod(on(percent(70, "user"), "a", "a-GPU-0"))

    for share in (20, 40, 100, 200):
        dried = dry(running, percent(share), names=["a", "b"])
        assert dried.pop("Assumed") == {}
        assert dried == running.filter(percent(share), "a", "b")


def test_the_example_of_the_documentation_is_answered_as_it_says(running: Stepped) -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    asked, said = re.findall(
        r"(?:-d '|```json\n)(\{.*?\})(?:'\n|\n)```", page.partition("/dryrun -H")[2], re.DOTALL
    )[:2]

    answer = running.client.post("/dryrun", data=asked).get_json()

    assert answer | {"Nodes": {"items": ["..."]}} == json.loads(said)
