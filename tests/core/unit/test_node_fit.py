"""Whether a node takes a pod once others have left it."""

from typing import Any

import pytest

from tests.worlds import Json
from timekeeper.core.kube.node_fit import why_not_on


def node(*taints: Json, **allocatable: str) -> Json:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "3"} | allocatable
    spec = {"taints": list(taints)}
    return {
        "metadata": {"name": "n", "labels": {"pool": "gpu"}},
        "spec": spec,
        "status": {"allocatable": amounts},
    }


def pod(uid: str, phase: str = "Running", spec: Any = None, **requests: Any) -> Json:
    containers = [{"name": "main", "resources": {"requests": requests}}]
    return {
        "metadata": {"uid": uid},
        "spec": {"containers": containers, **(spec or {})},
        "status": {"phase": phase},
    }


def test_what_pods_that_leave_or_have_ended_requested_is_free() -> None:
    there = [pod("a", cpu="3"), pod("b", phase="Succeeded", cpu="4"), pod("c", cpu="1")]

    assert why_not_on(node(), pod("p", cpu="3"), there, {"a"}) == ""
    assert why_not_on(node(), pod("p", cpu="3"), there, {"c"}) == "the node has too little cpu"
    assert why_not_on(node(), pod("p", cpu="3001m"), there, {"a"}) == "the node has too little cpu"


@pytest.mark.parametrize("resource", ["memory", "example.com/card", "hugepages-2Mi"])
def test_each_resource_that_the_pod_requests_counts(resource: str) -> None:
    asked = pod("p", **{resource: "2"})

    assert why_not_on(node(**{resource: "3"}), asked, [pod("a", **{resource: "1"})], ()) == ""
    assert why_not_on(node(**{resource: "2"}), asked, [pod("a", **{resource: "1"})], ())
    assert why_not_on(node(**{resource: "1"}), asked, [], ())


def test_a_node_takes_no_more_pods_than_it_says() -> None:
    there: list[Json] = [pod(uid) for uid in "abc"]

    assert why_not_on(node(), pod("p"), there, {"a"}) == ""
    assert why_not_on(node(), pod("p"), there, ()) == "the node takes no further pod"
    assert why_not_on(node(pods=""), pod("p"), [], ()) == "the node takes no further pod"


def test_taints_and_selectors_of_nodes_keep_pods_off() -> None:
    broken = node({"key": "broken", "effect": "NoSchedule"})

    assert why_not_on(broken, pod("p"), [], ())
    assert why_not_on(broken, pod("p", spec={"tolerations": [{"operator": "Exists"}]}), [], ()) == ""
    assert why_not_on(node(), pod("p", spec={"nodeSelector": {"pool": "cpu"}}), [], ())


def test_what_sidecars_and_the_overhead_request_counts() -> None:
    beside: Json = {
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"limits": {"cpu": "3"}}}]
    }

    assert why_not_on(node(), pod("p", spec=beside, cpu="1"), [], ()) == ""
    assert why_not_on(node(), pod("p", spec=beside | {"overhead": {"cpu": "1m"}}, cpu="1"), [], ())
