"""The figures for Prometheus, read back by its own client."""

from prometheus_client.parser import text_string_to_metric_families

from sidecar.node.state.exporter import MIB, of_cards, of_containers, of_pods, of_reports
from sidecar.node.state.overuse import CardOveruse, OveruseEpisode
from sidecar.node.state.reports import UsagePorts, UsageReports
from sidecar.node.state.use import ContainerLoad, PodLoad, UsageReading
from sidecar.node.values import CardLoad, NodeCard, PodState
from timekeeper.edge.saved_outbox import OutboxPorts

WHOLE = NodeCard("GPU-0", 0, 'NVIDIA "A100"\\n', 40_960, True, "", 0, (), None, ())
PART = NodeCard("MIG-1", 100, "NVIDIA A100", 4_864, True, "", 0, (), "1g.5gb", ())
POD = PodState("u", "team", "p", ("GPU-0",), False, (("main", ("GPU-0",)),))
SEEN = UsageReading(
    (PodLoad("u", (CardLoad("GPU-0", 30, 9_000),)),),
    (CardLoad("GPU-0", 40, 10_000), CardLoad("MIG-1", None, 64)),
)

Found = dict[str, list[tuple[dict[str, str], float]]]


def read(text: str) -> Found:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_cards_have_the_names_units_and_labels_of_dcgm_exporter() -> None:
    found = read(of_cards((WHOLE, PART), SEEN, "n1"))

    whole = {
        "gpu": "0",
        "UUID": "GPU-0",
        "device": "nvidia0",
        "modelName": 'NVIDIA "A100"\\n',
        "Hostname": "n1",
    }
    part = {
        "gpu": "100",
        "UUID": "MIG-1",
        "device": "nvidia100",
        "modelName": "NVIDIA A100",
        "Hostname": "n1",
        "GPU_I_PROFILE": "1g.5gb",
    }
    assert found == {
        "DCGM_FI_DEV_GPU_UTIL": [(whole, 40)],
        "DCGM_FI_DEV_FB_USED": [(whole, 10_000), (part, 64)],
        "DCGM_FI_DEV_FB_FREE": [(whole, 30_960), (part, 4_800)],
    }


def test_pods_are_reported_by_namespace_name_uid_and_card() -> None:
    episodes = {"u": OveruseEpisode(1, None, (CardOveruse("GPU-0", 9_000, 8_000),))}

    found = read(of_pods((POD,), SEEN, {"u": {"GPU-0": 8_000}}, episodes))

    labels = {"namespace": "team", "pod": "p", "uid": "u", "uuid": "GPU-0"}
    assert found == {
        "bursar_pod_gpu_utilization_ratio": [(labels, 0.3)],
        "bursar_pod_gpu_memory_used_bytes": [(labels, 9_000 * MIB)],
        "bursar_pod_gpu_memory_share_bytes": [(labels, 8_000 * MIB)],
        "bursar_pod_gpu_memory_over_bytes": [(labels, 1_000 * MIB)],
    }


def test_containers_are_reported_by_name_and_by_the_runtimes_id() -> None:
    loads = (
        ContainerLoad("u", "main", "c1", (CardLoad("GPU-0", 20, 7_000),)),
        ContainerLoad("u", "", "c2", (CardLoad("GPU-0", None, 2_000),)),
        ContainerLoad("gone", "main", "c3", (CardLoad("GPU-0", 1, 1),)),
    )

    found = read(of_containers((POD,), loads))

    labels = {"namespace": "team", "pod": "p", "uid": "u", "uuid": "GPU-0"}
    named = labels | {"container": "main", "container_id": "c1"}
    unnamed = labels | {"container": "", "container_id": "c2"}
    assert found == {
        "bursar_container_gpu_utilization_ratio": [(named, 0.2)],
        "bursar_container_gpu_memory_used_bytes": [(named, 7_000 * MIB), (unnamed, 2_000 * MIB)],
    }


def test_an_unreported_figure_has_no_sample() -> None:
    untold = UsageReading((PodLoad("u", (CardLoad("GPU-0", None, None),)),), (CardLoad("GPU-0", None, None),))

    assert of_cards((WHOLE,), untold, "n1") == of_pods((POD,), untold, {}, {}) == ""


def test_a_pod_or_card_that_is_gone_has_no_sample() -> None:
    assert of_cards((), SEEN, "n1") == of_pods((), SEEN, {}, {}) == ""


def _say_nothing(event: str, **pairs: object) -> None:
    """No log."""


def test_the_state_of_the_reports_is_a_metric() -> None:
    world = UsageReports(
        UsagePorts(OutboxPorts(lambda _: None, lambda *_: True), lambda: 0.5, _say_nothing), "run", 0
    )
    world.add(SEEN)
    world.tick(20_000)

    assert read(of_reports(world)) == {
        "bursar_node_reports": [({"outcome": "delivered"}, 0), ({"outcome": "failed"}, 0)],
        "bursar_node_intervals_waiting": [({}, 1)],
        "bursar_node_intervals_lost": [({}, 0)],
    }
