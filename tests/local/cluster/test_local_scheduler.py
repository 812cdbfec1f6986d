"""The real kube-scheduler with a small extender."""

from collections import Counter
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.errors import LocalError
from deploy.local.kwok_nodes import kwok_node
from tests.local.worlds import NODES, get, namespace, pod, server
from tests.support.waiting import eventually


def test_gpu_pods_go_through_the_extender_and_others_do_not(control_plane: ControlPlane) -> None:
    asked: list[tuple[str, str]] = []

    def answer(path: str, body: Any) -> Any:
        asked.append((path, body["PodName"] if path == "/bind" else body["Pod"]["metadata"]["name"]))
        if path == "/filter":
            return {"NodeNames": body["NodeNames"]}
        if path == "/prioritize":
            return [{"Host": name, "Score": 10 if name == "wanted" else 0} for name in body["NodeNames"]]
        assert path == "/bind"
        target = {"apiVersion": "v1", "kind": "Node", "name": body["Node"]}
        binding = {"metadata": {"name": body["PodName"], "uid": body["PodUID"]}, "target": target}
        control_plane.api.call("POST", f"{pods}/{body['PodName']}/binding", binding)
        return {"Error": ""}

    def node_of(name: str) -> Any:
        return get(control_plane.api, f"{pods}/{name}")["spec"].get("nodeName")

    for name in ("wanted", "unwanted"):
        control_plane.api.call("POST", NODES, kwok_node(name, cards=1, labels={"for": "extender"}))
    with namespace(control_plane.api, "extended") as pods, server(answer) as port:
        control_plane.start_scheduler(
            "gpu-scheduler", profiles=("bursar-scheduler",), extender_url=f"http://127.0.0.1:{port}"
        )
        half = {"bursar.dev/gpu-percent": "50"}
        here = {"for": "extender"}
        for each in (
            pod("gpu", limits=half, schedulerName="bursar-scheduler", nodeSelector=here),
            pod("plain", schedulerName="bursar-scheduler", nodeSelector=here),
            pod("other", nodeSelector=here),
        ):
            control_plane.api.call("POST", pods, each)

        assert eventually(lambda: node_of("gpu")) == "wanted"
        eventually(lambda: node_of("plain"))
        eventually(lambda: node_of("other"))
        assert Counter(asked) == {("/filter", "gpu"): 1, ("/prioritize", "gpu"): 1, ("/bind", "gpu"): 1}
        assert {"kube-scheduler", "gpu-scheduler"} <= control_plane.processes.keys()
        control_plane.stop_scheduler("gpu-scheduler")
        assert "gpu-scheduler" not in control_plane.processes


def test_a_scheduler_that_cannot_start_is_reported_by_name_and_log(control_plane: ControlPlane) -> None:
    with pytest.raises(LocalError, match=r"(?s)^broken-scheduler ended with exit code 1:.*invalid duration"):
        control_plane.start_scheduler(
            "broken-scheduler", extender_url="http://127.0.0.1:1", http_timeout="soon"
        )

    assert "broken-scheduler" not in control_plane.processes
    control_plane.check()
