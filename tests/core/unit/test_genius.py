"""Genius: what governing puts on its pods, and their order; its rows are in `tests/core/dialects`."""

from scheduler_ext.model.pod import read_pod
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.waiting.order import queue_key
from tests.scheduler_ext.worlds import request_of
from tests.webhook.worlds import POLICY, governed, operations, violations_of
from tests.worlds import Json, of_resources, pod


def genius(*containers: Json, **labels: str) -> Json:
    """A pod with these labels, `gpu_number` for `genius/gpu-number`."""
    raw = pod(*(containers or (of_resources({}),)))
    names = {f"genius/{name.replace('_', '-')}": text for name, text in labels.items()}
    return {**raw, "metadata": {**raw["metadata"], "labels": names}}


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
    assert operations(after) == []


def test_the_container_with_that_resource_has_the_cards_wherever_others_are_inserted() -> None:
    after = governed(genius(of_resources({}), gpu_number="1"))
    after["spec"]["containers"].insert(0, of_resources({}, "proxy"))

    assert [each.container for each in request_of(after).asks] == ["main"]


def test_its_priority_decides_among_waiting_pods_of_equal_standing_and_class() -> None:
    def key(**labels: str) -> object:
        pod = read_pod(genius(gpu_number="1", **labels))
        assert pod is not None
        return queue_key(pod, "n", UNHEARD)

    assert key(priority="10") < key(priority="9") < key() == key(priority="0")  # type: ignore[operator]
