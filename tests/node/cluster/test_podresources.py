"""The kubelet's answer on which pod has which device, from a real gRPC server."""

from collections.abc import Iterator

import pytest

from sidecar.node.kubelet import grpc, podresources
from sidecar.node.state.device_slices import ClaimedDevice, ClaimingPod
from sidecar.node.state.plugin_devices import PluginDevices
from tests.node.podresources_server import Kubelet, claimed, pod_json, serving
from tests.node.unit.test_podresources import GPU


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with serving(tmp_path_factory.mktemp("kubelet")) as running:
        yield running


def test_the_kubelet_shows_which_pod_has_which_device(kubelet: Kubelet) -> None:
    kubelet.has(
        ("team-a", "train-0", {GPU: ["GPU-1", "GPU-2"], "rdma/hca": ["mlx5_0"]}),
        ("team-b", "web", {}),
        ("team-b", "ünï", {GPU: ["GPU-3::1"]}),
    )

    assert podresources.listed(kubelet.socket) == (
        PluginDevices("team-a", "train-0", ((GPU, "GPU-1"), (GPU, "GPU-2"), ("rdma/hca", "mlx5_0"))),
        PluginDevices("team-b", "ünï", ((GPU, "GPU-3::1"),)),
    )


def test_the_kubelet_shows_which_pod_has_which_device_by_a_claim(kubelet: Kubelet) -> None:
    pod = pod_json("team-a", "train-0", {})
    pod["containers"] += [{"name": "other", "dynamicResources": [claimed("gpu-0"), claimed("gpu-1")]}] * 2
    kubelet.answer({"podResources": [pod, pod_json("team-b", "web", {})]})

    both = tuple(ClaimedDevice("gpu.nvidia.com", "n1", name) for name in ("gpu-0", "gpu-1"))
    assert podresources.claims(kubelet.socket) == (ClaimingPod("team-a", "train-0", both),)
    assert podresources.listed(kubelet.socket) == ()


def test_a_node_without_pods_has_an_empty_answer(kubelet: Kubelet) -> None:
    kubelet.has()

    assert podresources.listed(kubelet.socket) == ()


def test_devices_of_several_containers_and_groups_are_all_reported_once(kubelet: Kubelet) -> None:
    pod = pod_json("team-a", "train-0", {GPU: ["GPU-1"]})
    group = {"resourceName": GPU, "deviceIds": ["GPU-2"]}
    pod["containers"].append({"name": "other", "devices": [group, group]})
    kubelet.answer({"podResources": [pod]})

    assert podresources.listed(kubelet.socket) == (
        PluginDevices("team-a", "train-0", ((GPU, "GPU-1"), (GPU, "GPU-2"))),
    )


def test_an_answer_of_many_frames_is_read_whole(kubelet: Kubelet) -> None:
    kubelet.has(*(("team-a", f"pod-{number}", {GPU: [f"GPU-{number}"]}) for number in range(5_000)))

    found = podresources.listed(kubelet.socket)

    assert found == tuple(PluginDevices("team-a", f"pod-{n}", ((GPU, f"GPU-{n}"),)) for n in range(5_000))


def test_an_answer_beyond_the_bound_is_refused(kubelet: Kubelet) -> None:
    kubelet.has(("team-a", "train-0", {GPU: ["x" * grpc.MAX_MESSAGE]}))

    with pytest.raises(grpc.CallFailed, match="longer than 4194304 bytes"):
        podresources.listed(kubelet.socket)


@pytest.mark.parametrize(("code", "said"), [(8, "rate limited: rate limit exceeded"), (12, "x"), (16, "")])
def test_a_refusal_is_reported_with_the_kubelets_own_words(kubelet: Kubelet, code: int, said: str) -> None:
    kubelet.answer({"fail": code, "message": said})

    with pytest.raises(grpc.CallFailed, match=said or f"gRPC status {code}") as failed:
        podresources.listed(kubelet.socket)

    assert failed.value.status == code


def test_a_method_that_the_kubelet_does_not_know_is_reported(kubelet: Kubelet) -> None:
    with pytest.raises(grpc.CallFailed, match="unknown method") as failed:
        grpc.call(kubelet.socket, "/v1.PodResourcesLister/Nothing")

    assert failed.value.status == 12


def test_a_kubelet_that_hangs_is_left_after_the_time(kubelet: Kubelet) -> None:
    kubelet.answer({"hang": True})

    with pytest.raises(grpc.CallFailed, match=r"no answer within 0\.3 s"):
        podresources.listed(kubelet.socket, timeout_s=0.3)
