"""Genius: what its labels mean, which cards they allow, and what governing puts on its pods."""

from typing import Any

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import ModelNames, read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.snapshot.node_info import node_info_of
from scheduler_ext.waiting.order import queue_key
from tests.webhook.worlds import POLICY, governed, violations_of
from tests.worlds import card, inventory, of_resources, pod
from timekeeper.core.admission.mutation.govern import govern
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, ContainerAsk, GPURequest

Json = dict[str, Any]
NUMBER, EACH, TOTAL = "genius/gpu-number", "genius/gpu-memory-each", "genius/gpu-memory-total"


def genius(*containers: Json, **labels: str) -> Json:
    """A pod with these labels, `gpu_number` for `genius/gpu-number`."""
    raw = pod(*(containers or (of_resources({}),)))
    names = {f"genius/{name.replace('_', '-')}": text for name, text in labels.items()}
    return {**raw, "metadata": {**raw["metadata"], "labels": names}}


def request_of(raw: Json) -> GPURequest:
    parsed = parse(raw)
    assert parsed.request is not None, parsed.violations
    return parsed.request


@pytest.mark.parametrize(
    ("labels", "devices", "least_mib", "pattern"),
    [
        ({"gpu_number": "2"}, 2, 0, ""),
        ({"gpu_memory_each": "8000"}, 1, 8001, ""),
        ({"gpu_number": "2", "gpu_memory_total": "32001"}, 2, 16001, ""),
        ({"gpu_number": "2", "gpu_memory_each": "20000", "gpu_memory_total": "32000"}, 2, 20001, ""),
        ({"gpu_model": "GeForce.RTX"}, 1, 0, "geforce.rtx"),
        ({"model": "A100"}, 1, 0, "a100"),
    ],
)
def test_its_labels_are_whole_cards_with_memory_and_model(
    labels: Json, devices: int, least_mib: int, pattern: str
) -> None:
    request = request_of(genius(**labels))

    assert request.asks == (ContainerAsk("main", False, Ask(devices, 1000, 0)),)
    assert (request.min_memory_mib, request.model_pattern) == (least_mib, pattern)


@pytest.mark.parametrize("label", [NUMBER, EACH, TOTAL])
@pytest.mark.parametrize("value", ["0", "-1", "0.5", "NaN", "nine", "9" * 30, "9" * 15, ""])
def test_an_amount_that_it_cannot_count_is_refused_with_the_label(label: str, value: str) -> None:
    raw = genius()
    raw["metadata"]["labels"] = {label: value}

    (violation,) = parse(raw).violations

    assert (violation.rule, violation.path) == ("amount", f"metadata.labels[{label}]")


def test_a_request_in_labels_and_one_in_limits_are_two_dialects() -> None:
    (violation,) = parse(genius(of_resources({"bursar.dev/gpu-percent": "50"}), gpu_number="1")).violations

    assert violation.rule == "several-dialects"
    assert violation.got == "bursar in container main, genius in metadata.labels[genius/gpu-number]"


def on(labels: Json, *cards: Json, model_names: ModelNames = (), **fields: Any) -> set[int] | str:
    """The indexes of the cards that the pod gets on a node with these cards, or the refusal. ``fields``: of
    its metadata."""
    metadata = {"name": "n", "annotations": {"bursar.dev/inventory": inventory(*cards)}}
    pod = genius(**labels)
    pod["metadata"] |= fields
    node = read_node({"metadata": metadata}, (), model_names)
    placed = fit(request_of(pod), node_info_of("n", node, {}))
    if isinstance(placed, Refusal):
        return placed.sentence
    return {each.index for _, slices in placed.containers for each in slices}


TWO = (card(0, 16000, "GeForce GTX 1080 Ti"), card(1, 24000, "GeForce RTX 3090"))


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({"gpu_number": "1"}, {0}),
        ({"gpu_number": "2"}, {0, 1}),
        ({"gpu_number": "3"}, "not enough free GPUs (3 needed)"),
        ({"gpu_memory_each": "16000"}, {1}),
        ({"gpu_memory_each": "15999"}, {0}),
        ({"gpu_memory_each": "24000"}, "no card with 24001 MiB of memory here"),
        ({"gpu_memory_total": "24000"}, {1}),
        ({"gpu_model": "1080.ti"}, {0}),
        ({"gpu_model": "rtx"}, {1}),
        ({"gpu_model": "A100"}, 'no card like "a100" here'),
        ({"gpu_model": "1080-Ti"}, 'no card like "1080-ti" here'),
    ],
)
def test_its_pods_get_what_the_labels_say_on_a_node_with_two_cards(labels: Json, found: object) -> None:
    assert on(labels, *TWO) == found


NAMES = (("gaming", "1080"), ("big-24", "rtx.3090"), ("geforce", "1080"))


@pytest.mark.parametrize(
    ("labels", "annotations", "found"),
    [
        ({"gpu_model": "Big-24"}, {}, {1}),
        ({"gpu_model": "gaming"}, {}, {0}),
        ({"gpu_model": "3090"}, {}, {1}),
        ({"gpu_model": "big-80"}, {}, 'no card like "big-80" here'),
        ({"gpu_number": "1"}, {"bursar.dev/gpu-models": "big-24"}, {1}),
        ({"gpu_number": "1"}, {"bursar.dev/exclude-gpu-models": "gaming"}, {1}),
    ],
)
def test_a_model_has_the_names_that_the_extender_is_given(
    labels: Json, annotations: Json, found: object
) -> None:
    assert on(labels, *TWO, model_names=NAMES, annotations=annotations) == found


def test_a_governed_pod_has_the_resource_for_which_kube_scheduler_calls_the_extender_once() -> None:
    raw = genius(of_resources({"cpu": "1"}), of_resources({}, "other"), gpu_number="1")
    raw["spec"]["schedulerName"] = "genius-scheduler"

    after = governed(raw)

    assert violations_of(raw, POLICY) == ()
    main, other, *_ = after["spec"]["containers"]
    placement = {"bursar.dev/gpu-placement": "1"}
    assert main["resources"] == {"limits": {"cpu": "1", **placement}, "requests": placement}
    assert "resources" not in other or not other["resources"].get("limits")
    assert after["spec"]["schedulerName"] == POLICY.scheduler_name
    assert govern(after, request_of(after), "IN_BUDGET", POLICY) == []


def test_the_container_with_that_resource_has_the_cards_wherever_others_are_inserted() -> None:
    after = governed(genius(of_resources({}), gpu_number="1"))
    after["spec"]["containers"].insert(0, of_resources({}, "proxy"))

    assert [each.container for each in request_of(after).asks] == ["main"]


def test_that_resource_alone_is_no_request() -> None:
    (violation,) = parse(pod(of_resources({"bursar.dev/gpu-placement": "1"}))).violations

    assert violation.rule == "dialect-not-spoken"


def test_its_priority_decides_among_waiting_pods_of_equal_standing_and_class() -> None:
    def key(**labels: str) -> object:
        pod = read_pod(genius(gpu_number="1", **labels))
        assert pod is not None
        return queue_key(pod, "n", UNHEARD)

    assert key(priority="10") < key(priority="9") < key() == key(priority="0")  # type: ignore[operator]
    (violation,) = parse(genius(gpu_number="1", priority="high")).violations
    assert violation.path == "metadata.labels[genius/priority]"
