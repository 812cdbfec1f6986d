"""Pods of namespaces that are not enforced: charged from their Binding to their end by their spec alone,
whatever scheduler bound them and whatever their metadata says of Bursar."""

import json
from typing import Any

import pytest

from tests.timekeeper.ledger.test_ends import report
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, node
from timekeeper.accounts.pods import charged_pods
from timekeeper.core.names import Mode
from timekeeper.core.request.metered import charged_request
from timekeeper.metrics import UNCLASSIFIED

ONE_DATABASE = "what is read of pods and nodes; the histories of test_machine.py meter on both databases"

Json = dict[str, Any]
FORGED = {
    "bursar.dev/standing": "UNLIMITED",
    "bursar.dev/held": "budget",
    "bursar.dev/declared": "9",
    "bursar.dev/host": '{"version":1}',
    "bursar.dev/gpu-models": "K80",
    "bursar.dev/policy": "no such policy",
    "bursar.dev/idle-until": "2030-01-01T00:00:00Z",
    "bursar.dev/devices": '{"version":1,"containers":{"main":[{"uuid":"GPU-1","index":1,"share_milli":1000,'
    '"memory_mib":16000}]}}',
}
GPU = "nvidia.com/gpu"


def labelled(name: str, capacity: Json, **labels: str) -> Json:
    """A node as the GPU Operator leaves it: ``gpu_product`` for the label nvidia.com/gpu.product."""
    named = {f"nvidia.com/{key.replace('_', '.')}": text for key, text in labels.items()}
    return {"metadata": {"name": name, "labels": named}, "status": {"capacity": capacity}}


A100 = {"gpu_product": "NVIDIA-A100-SXM4-40GB", "gpu_count": "2", "gpu_memory": "40960"}
WHOLE = labelled("whole", {GPU: "2"}, **A100)
SHARED = labelled("shared", {GPU: "8"}, **A100 | {"gpu_product": "Tesla-T4-SHARED", "gpu_replicas": "4"})
RENAMED = labelled("renamed", {f"{GPU}.shared": "8"}, **A100 | {"gpu_replicas": "4"})
INSTANCE = {
    "gpu_product": "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb",
    "mig_strategy": "single",
    "gpu_slices_gi": "2",
}
SINGLE = labelled("single", {GPU: "6"}, **A100 | INSTANCE | {"gpu_count": "6"})
MIXED_MIG = labelled("mixed-mig", {GPU: "2"}, **A100 | INSTANCE | {"mig_strategy": "mixed"})
PLAIN = labelled("plain", {GPU: "2"})
AMD = labelled("amd", {"amd.com/gpu": "8"})
HAMI = labelled("hami", {GPU: "20", "nvidia.com/gpumem": "65536"})
HAMI["metadata"]["annotations"] = {
    "hami.io/node-nvidia-register": "GPU-a,10,32768,100,NVIDIA-Tesla V100,0,true:"
    "GPU-b,10,32768,100,NVIDIA-Tesla V100,0,true:"
}
MIXED = node("mixed", 2)
MIXED["metadata"]["annotations"]["bursar.dev/inventory"] = MIXED["metadata"]["annotations"][
    "bursar.dev/inventory"
].replace("A100", "H100", 1)
CONTRADICTED = labelled("contradicted", {GPU: "2"}, **A100 | {"gpu_count": "8"})
CONTRADICTED["metadata"]["annotations"] = node("n", 2)["metadata"]["annotations"]
RTX = {"gpu_product": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "gpu_count": "2", "gpu_memory": "97887"}
BESIDE = labelled(
    "beside", {GPU: "1", f"{GPU}.shared": "4", "nvidia.com/mig-1g.24gb": "4"}, **RTX | {"gpu_replicas": "4"}
)
LEFT_OVER = labelled("left-over", {GPU: "2", f"{GPU}.shared": "8"}, **A100)
LEFT_OVER["status"]["allocatable"] = {GPU: "2", f"{GPU}.shared": "0"}
OF_AGENT = node("of-agent", 2)
OF_AGENT["status"] = {"capacity": {GPU: "1", f"{GPU}.shared": "4"}}
PLACES = {"instances": "NVIDIA A30 MIG 1g.6gb", "divided": "A100"}
INSTANCES, DIVIDED = (node(name, 4) for name in PLACES)
INSTANCES["metadata"]["annotations"]["bursar.dev/inventory"] = INSTANCES["metadata"]["annotations"][
    "bursar.dev/inventory"
].replace("A100", PLACES["instances"])
DIVIDED["metadata"]["labels"] = {"nvidia.com/gpu.replicas": "4"}
for at in (INSTANCES, DIVIDED):
    at["status"] = {"capacity": {GPU: "16"}}
GKE: Json = {"metadata": {"name": "gke"}, "status": {"capacity": {GPU: "4"}}}
GKE["metadata"]["labels"] = {
    "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
    "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
    "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
}
CPX = labelled("cpx", {"amd.com/gpu": "64", "amd.com/dpx_nps2": "2"})
CPX["metadata"]["labels"] = {
    "amd.com/compute-memory-partition": "cpx_nps4",
    "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
}
VGPU, SLICE = "nvidia.com/NVIDIA_A10-24Q", "nvidia.com/gpu-10gb"
SGPU, SGPU_MEMORY = "mthreads.com/sgpu-core", "mthreads.com/sgpu-memory"
UNSAID = labelled(
    "unsaid",
    {"nvidia.com/mig-1g.24gb": "4", "amd.com/cpx_nps4": "8", "hygon.com/dcu-share-16c-8g": "4", VGPU: "2"}
    | {SLICE: "4", SGPU: "16", SGPU_MEMORY: "96"},
)
NODES = [WHOLE, SHARED, RENAMED, SINGLE, MIXED_MIG, PLAIN, AMD, HAMI, MIXED, CONTRADICTED]
NODES += [BESIDE, LEFT_OVER, OF_AGENT, INSTANCES, DIVIDED, GKE, CPX, UNSAID]


def holding(
    limits: Json, node: str = "whole", name: str = "p", scheduler: str = "", **annotations: str
) -> Json:
    """A pod that another scheduler bound at T0, and that runs."""
    raw = gpu_pod(name, node=node, started_ms=T0)
    raw["metadata"] |= {"annotations": annotations, "labels": {}}
    raw["spec"]["schedulerName"] = scheduler or "default-scheduler"
    raw["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits} if limits else {}
    return raw


@pytest.mark.parametrize("mode", ["enforce", "observe", "meter"])
def test_whoever_asks_what_is_charged_reads_as_the_ledger_does(town: Town, mode: Mode) -> None:
    """`audit` of the cluster, which has no ledger."""
    asked = {
        "whole": {GPU: "1"},
        "half": {"bursar.dev/gpu-percent": "50"},
        "broken": {"bursar.dev/gpu-percent": "150"},
        "amd": {"amd.com/gpu": "1"},
        "none": {"cpu": "1"},
        "unknown": {"example.com/thing": "1"},
    }
    pods = {name: holding(limits, name=name) for name, limits in asked.items()}
    town.begin(("nodes", WHOLE), ("configmaps", budgets(_settings=f"mode: {mode}")))
    for pod in pods.values():
        town.hear("pods", pod)
    town.advance(MINUTE)

    charged = {session["pod"] for session in town.get("/v1/sessions?state=all").get_json()["sessions"]}

    assert charged == {name for name, pod in pods.items() if charged_request(pod, mode, {}) is not None}
    assert charged == {"whole", "half"} | ({"broken", "amd"} if mode != "enforce" else set())


def settings(town: Town, *lines: str) -> None:
    """`_settings` with these lines."""
    town.hear("configmaps", budgets(_settings="\n".join(lines)))


def opened(town: Town, *pods: Json, mode: str = "meter", more: str = "lookahead: 10m") -> Json:
    """Name -> rate, models and doubt of each session after the first tick."""
    town.list_all()
    settings(town, f"mode: {mode}", more)
    for raw in NODES:
        town.hear("nodes", raw)
    for raw in pods:
        town.hear("pods", raw)
    town.tick()
    return {each.name: (each.rate_milli, each.models) for each in town.settler.ledger.sessions.values()}


MODEL = "NVIDIA-A100-SXM4-40GB"
TKE = "tke.cloud.tencent.com/qgpu-"
FRACTION, CARDS = "nvidia.com/container.main.gpu-memory.", "nvidia.com/container.main.gpus.devices"
BOUND = {"gpu-fraction": "0.5", f"{FRACTION}request": "20Gi", CARDS: "GPU-1"}  # by KAI in mode NvFractions


@pytest.mark.parametrize(
    ("pod", "rate", "models"),
    [
        (holding({GPU: "2"}), 5_000, "NVIDIA-A100-SXM4-40GB"),
        (holding({GPU: "1"}, "shared"), 250, "Tesla-T4"),
        (holding({GPU: "2"}, "shared"), 500, "Tesla-T4"),
        (holding({f"{GPU}.shared": "1"}, "renamed"), 625, "NVIDIA-A100-SXM4-40GB"),
        (holding({GPU: "1"}, "single"), 715, "NVIDIA-A100-SXM4-40GB"),
        (holding({GPU: "1"}, "mixed-mig"), 2_500, "NVIDIA-A100-SXM4-40GB"),
        (holding({GPU: "1"}, "plain"), 1_000, ""),
        (holding({GPU: "1"}, "mixed"), 3_000, ""),
        (holding({GPU: "1"}, "contradicted"), 2_500, "A100"),
        (holding({"amd.com/gpu": "4"}, "amd"), 4_000, "amd.com/gpu"),
        (holding({"acme.example/npu": "3", "rdma/hca": "1"}, "amd"), 6_000, "ACME NPU 2"),
        (holding({GPU: "1", "rdma/hca": "1"}), 2_500, "NVIDIA-A100-SXM4-40GB"),
        (holding({"nvidia.com/a100": "2", "acme.example/npu-memory": "9"}, "amd"), 5_000, "nvidia.com/a100"),
        (holding({"nvidia.com/GA102GL_A10": "1"}, "plain"), 1_000, "nvidia.com/GA102GL_A10"),
        (holding({"npu.intel.com/accel": "1", "acme.example/nic": "4"}), 1_000, "npu.intel.com/accel"),
        (holding({f"{TKE}core": "30", f"{TKE}memory": "8"}), 750, "NVIDIA-A100-SXM4-40GB"),
        (holding({GPU: "1", "nvidia.com/gpumem": "8192"}, "hami"), 250, "NVIDIA-Tesla V100"),
        (holding({}, scheduler="kai-scheduler", **{"gpu-fraction": "0.5"}), 1_250, "NVIDIA-A100-SXM4-40GB"),
        (
            holding({}, **{"nvidia.com/container.main.gpu-memory.request": "10Gi"}),
            625,
            "NVIDIA-A100-SXM4-40GB",
        ),
        (holding({}, **{f"{FRACTION}request": "10Gi", f"{FRACTION}limit": "40Gi"}), 625, MODEL),
        (holding({}, **{f"{FRACTION}limit": "10Gi"}), 625, MODEL),
        (holding({}, **{f"{FRACTION}request": "10Gi", "gpu-fraction-num-devices": "2"}), 1_250, MODEL),
        (holding({}, **{f"{FRACTION}request": "10Gi", CARDS: "GPU-1,GPU-2"}), 1_250, MODEL),
        (holding({}, scheduler="kai-scheduler", **(BOUND | {"gpu-fraction.limit": "0.9"})), 1_250, MODEL),
        (holding({"nvidia.com/gpu-of-ours": "2"}), 2_000, "nvidia.com/gpu-of-ours"),
        (holding({"koordinator.sh/gpu-core": "50"}), 2_500, "NVIDIA-A100-SXM4-40GB"),
        # whole cards beside replicas and instances, and what is left over of them
        (holding({GPU: "1"}, "beside"), 4_000, RTX["gpu_product"]),
        (holding({f"{GPU}.shared": "1"}, "beside"), 1_000, RTX["gpu_product"]),
        (holding({"nvidia.com/mig-1g.24gb": "1"}, "beside"), 1_000, RTX["gpu_product"]),
        (holding({GPU: "1"}, "left-over"), 2_500, MODEL),
        (holding({GPU: "1"}, "of-agent"), 2_500, "A100"),
        # parts that the inventory of the agent, or other labels, say
        (holding({GPU: "1"}, "instances"), 250, "NVIDIA A30"),
        (holding({GPU: "1"}, "divided"), 625, "A100"),
        (holding({GPU: "1"}, "gke"), 250, "nvidia-tesla-t4"),
        (holding({"amd.com/gpu": "1"}, "cpx"), 125, "amd.com/gpu"),
        (holding({"amd.com/dpx_nps2": "1"}, "cpx"), 500, "amd.com/dpx_nps2"),
        (holding({"amd.com/cpx_nps4": "8"}, "unsaid"), 1_000, "amd.com/cpx_nps4"),
    ],
)
def test_a_metered_pod_is_charged_by_what_its_own_system_says(
    town: Town, pod: Json, rate: int, models: str
) -> None:
    named = "acme.example/npu: ACME NPU 2, acme.example/npu-memory: GB, acme.example/nic: none"
    more = f"weights: {{A100: 2.5, H100: 3, RTX PRO 6000: 4, ACME NPU: 2}}\ndevices: {{{named}}}"

    assert opened(town, pod, more=more) == {"p": (rate, models)}


@pytest.mark.parametrize(
    ("setting", "limits", "rate"),
    [
        ("weights: {cpx_nps4: 0.2}", {"amd.com/cpx_nps4": "1"}, 200),
        ("weights: {dcu-share-16c-8g: 0.3}", {"hygon.com/dcu-share-16c-8g": "1"}, 300),
        ("unitCosts: {nvidia.com/mig-1g.24gb: 0.25}", {"nvidia.com/mig-1g.24gb": "1"}, 250),
    ],
)
def test_a_setting_states_what_a_part_costs_that_nothing_else_does(
    town: Town, setting: str, limits: Json, rate: int
) -> None:
    assert [charged for charged, _ in opened(town, holding(limits, "unsaid"), more=setting).values()] == [
        rate
    ]
    assert [session.doubt for session in town.settler.ledger.sessions.values()] == [None]


def test_what_a_plugin_counts_costs_the_same_by_a_placement_and_by_the_spec(town: Town) -> None:
    """A placement names a card of the agent's inventory, of which the plugin gives out a part."""
    part = {"uuid": "", "index": 0, "share_milli": 1000, "memory_mib": 16_000}
    pods = []
    for name in PLACES:
        uuid = json.loads(
            dict(zip(PLACES, (INSTANCES, DIVIDED), strict=True))[name]["metadata"]["annotations"][
                "bursar.dev/inventory"
            ]
        )["cards"][0]["uuid"]
        devices = json.dumps({"version": 1, "containers": {"main": [part | {"uuid": uuid}]}})
        placed = holding({GPU: "1"}, name, f"placed-{name}", **{"bursar.dev/devices": devices})
        pods += [placed, holding({GPU: "1"}, name, f"spec-{name}")]

    found = opened(town, *pods, mode="enforce")

    assert {name: rate for name, (rate, _) in found.items()} == {
        "placed-instances": 250,
        "spec-instances": 250,
        "placed-divided": 250,
        "spec-divided": 250,
    }


def test_a_governed_pod_is_charged_for_the_accelerators_that_the_settings_named_at_its_creation(
    town: Town,
) -> None:
    limits = {"acme.example/npu": "3", "acme.example/nic": "1"}
    governed = holding(limits, "amd", **{"bursar.dev/standing": "IN_BUDGET"})
    governed["metadata"]["annotations"]["bursar.dev/accelerators"] = "acme.example/npu"
    governed["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    more = "weights: {ACME NPU: 2}\ndevices: {acme.example/npu: ACME NPU 2, acme.example/nic: NIC}"

    found = opened(town, governed, holding(limits, "amd", "before"), mode="enforce", more=more)

    assert found == {"p": (6_000, "ACME NPU 2")}


def test_a_metric_says_on_how_many_nodes_a_resource_is_that_nothing_classifies(town: Town) -> None:
    def says() -> dict[str, float]:
        town.clock.turn(SECOND)
        town.tick()
        samples = next(iter(UNCLASSIFIED.collect())).samples
        return {sample.labels["resource"]: sample.value for sample in samples if sample.value}

    UNCLASSIFIED.clear()  # of other tests' nodes
    for name, nics in (("a", "8"), ("b", "8"), ("c", "0")):
        capacity = {"cpu": "8", GPU: "1", "amd.com/gpu": "1", "rdma/hca": nics, "acme.example/npu": "1"}
        town.hear("nodes", {"metadata": {"name": name}, "status": {"capacity": capacity}})
    town.list_all()

    assert says() == {"rdma/hca": 2, "acme.example/npu": 3}
    settings(town, "devices: {acme.example/npu: NPU, rdma/hca: none}")
    assert says() == {}


def test_a_pod_is_charged_whatever_its_scheduler_is_called(town: Town) -> None:
    """A fraction counts where a binder of KAI has labelled the pod; annotations alone hold nothing."""
    fraction = {"gpu-fraction": "0.5"}
    renamed = holding({}, name="renamed", scheduler="our-kai", **fraction)
    renamed["metadata"]["labels"] = {"runai-gpu-group": "a-group"}
    said = holding({}, name="said", scheduler="our-kai", **fraction)
    rates = opened(town, holding({GPU: "1"}, scheduler="nobody-knows"), renamed, said)

    assert rates == {"p": (1_000, "NVIDIA-A100-SXM4-40GB"), "renamed": (500, "NVIDIA-A100-SXM4-40GB")}
    doubts = {each.name: each.doubt for each in town.settler.ledger.sessions.values() if each.doubt}
    assert doubts == {"renamed": "its scheduler our-kai is not known: its annotations are read as KAI's"}


@pytest.mark.parametrize(
    ("pod", "doubt"),
    [
        (holding({GPU: "1"}), ""),
        (holding({GPU: "1"}, "shared"), ""),
        (holding({"amd.com/gpu": "1"}, "amd"), ""),
        (holding({GPU: "1"}, "plain"), "nothing describes its node's cards"),
        (holding({GPU: "1"}, "mixed"), "cards of several models: A100, H100"),
        (holding({GPU: "1"}, "contradicted"), "its inventory has 2 x A100, its labels say 8 x"),
        (holding({"nvidia.com/gpus": "2"}), "unsupported GPU resource nvidia.com/gpus"),
        (holding({GPU: "1"}, "beside"), ""),
        (holding({GPU: "1"}, "left-over"), ""),
        (holding({GPU: "1"}, "gke"), ""),
        (holding({"amd.com/gpu": "1"}, "cpx"), ""),
        (
            holding({"nvidia.com/mig-1g.24gb": "1"}, "unsaid"),
            "1g.24gb of a card of no known product counts as 1/7",
        ),
        (holding({"amd.com/cpx_nps4": "1"}, "unsaid"), "amd.com/cpx_nps4 counts as 1/8 of a device"),
        (holding({"hygon.com/dcu-share-16c-8g": "1"}, "unsaid"), "counts as a whole device"),
        (holding({VGPU: "1"}, "unsaid"), f"{VGPU} counts as a whole device"),
        (holding({SLICE: "1"}, "unsaid"), f"{SLICE} counts as a whole device"),
        (holding({"nvidia.com/gpu-h100-80gb-hbm3": "1"}, "unsaid"), ""),
        (holding({SGPU: "8", SGPU_MEMORY: "32"}, "unsaid"), ""),
        (holding({SGPU_MEMORY: "32"}, "unsaid"), f"{SGPU_MEMORY} counts as a whole device"),
        (holding({}, "gke", scheduler="kai-scheduler", **{"gpu-memory": "2000"}), "how much memory"),
    ],
)
def test_what_is_not_certain_has_its_doubt(
    town: Town, pod: Json, doubt: str, capfd: pytest.CaptureFixture[str]
) -> None:
    opened(town, pod)

    said = capfd.readouterr()
    line = next(each for each in (said.out + said.err).splitlines() if "event=session-opened" in each)
    assert doubt in line
    assert ("by_request_because" in line) == bool(doubt)


@pytest.mark.parametrize("mode", ["meter", "observe"])
def test_nothing_that_an_editor_writes_changes_a_charge(town: Town, mode: str) -> None:
    honest, forger = holding({GPU: "1"}, "mixed", "honest"), holding({GPU: "1"}, "mixed", "forger", **FORGED)
    forger["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    forger["status"]["conditions"].append(
        {"type": "bursar.dev/CardsHeld", "status": "True", "reason": "Held", "message": "{}"}
    )

    found = opened(town, honest, forger, mode=mode)

    assert found["honest"] == found["forger"]
    assert [each.reserves_until_ms for each in town.settler.ledger.sessions.values()] == [None, None]
    assert len({each.admitted_in_budget for each in town.settler.ledger.sessions.values()}) == 1


@pytest.mark.parametrize("mode", ["meter", "observe"])
def test_nothing_is_said_of_the_admission_of_a_pod_that_is_metered_alone(town: Town, mode: str) -> None:
    opened(town, holding({GPU: "1"}), mode=mode)

    (found,) = town.get("/v1/sessions").get_json()["sessions"]

    assert found["admittedInBudget"] is None
    town.clock.turn(SECOND)
    settings(town, "mode: enforce")
    town.tick()
    (found,) = town.get("/v1/sessions").get_json()["sessions"]
    assert found["admittedInBudget"] is None


def test_observe_charges_as_meter_does(town: Town) -> None:
    pods = [holding({GPU: "1"}, each["metadata"]["name"], each["metadata"]["name"]) for each in NODES]
    observed = opened(town, *pods, mode="observe")
    for raw in pods:
        town.hear("pods", raw, deleted=True)
    town.tick()
    for raw in pods:
        raw["metadata"]["uid"] += "-again"

    assert opened(town, *pods, mode="meter") == observed


def test_a_pod_that_ran_before_the_install_is_charged_from_the_install(town: Town) -> None:
    town.clock.turn(HOUR)
    opened(town, holding({GPU: "1"}))
    town.advance(HOUR, heard=False)
    town.node_heard("whole")
    town.tick()

    assert [each.bound_ms for each in town.settler.ledger.sessions.values()] == [T0 + HOUR]
    assert town.charged() == 1_000 * HOUR


def test_a_pod_bound_while_the_timekeeper_was_away_is_charged_from_its_binding(town: Town) -> None:
    opened(town)
    town.clock.turn(HOUR)
    town.objects["pods"]["p"] = holding({GPU: "1"})

    town.resume()

    assert [each.bound_ms for each in town.settler.ledger.sessions.values()] == [T0]


def test_a_pod_of_an_enforcing_namespace_with_unknown_devices_is_charged_once_it_is_metered(
    town: Town,
) -> None:
    pods = (
        holding({"amd.com/gpu": "1"}, "amd", "amd"),
        holding({"nvidia.com/gpu-of-ours": "1"}, "whole", "odd"),
    )
    assert opened(town, *pods, mode="enforce") == {}

    settings(town, "mode: meter")
    town.tick()

    assert {each.name for each in town.settler.ledger.sessions.values()} == {"amd", "odd"}


def test_a_metered_pod_is_charged_to_its_end_when_its_namespace_is_enforced_meanwhile(town: Town) -> None:
    pod = holding({"amd.com/gpu": "1"}, "amd")
    opened(town, pod)
    settings(town, "mode: enforce")
    town.tick()
    town.clock.turn(HOUR)

    town.change("pods", gpu_pod("p", node="amd", started_ms=T0, ended_ms=T0 + HOUR) | {"spec": pod["spec"]})

    assert town.postings() == [(T0, T0 + HOUR, 1_000, "settled")]


def test_a_namespace_is_metered_by_its_own_entry(town: Town) -> None:
    opened(town, mode="enforce")
    town.hear("configmaps", budgets("bursar-budgets", team_a="gpuHours: 1\nmode: meter"))
    town.hear("pods", holding({"amd.com/gpu": "1"}, "amd"))
    other = holding({"amd.com/gpu": "1"}, "amd", "other")
    other["metadata"]["namespace"] = "team-b"
    town.hear("pods", other)
    town.tick()

    assert [each.name for each in town.settler.ledger.sessions.values()] == ["p"]


def test_pods_with_claims_alone_are_counted_as_not_charged(town: Town) -> None:
    def after(*updates: tuple[str, Json], deleted: bool = False) -> Any:
        for source, raw in updates:
            town.hear(source, raw, deleted)
        town.advance(MINUTE)
        return town.get("/v1/doubts").get_json()["claims"]

    claiming, waiting, over = holding({}), holding({}, "", "waiting"), holding({}, "whole", "over")
    for raw in (claiming, waiting, over):
        raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "one"}]
    over["status"] = {"phase": "Succeeded"}
    enforce, observe = (budgets(_settings=f"mode: {mode}") for mode in ("enforce", "observe"))
    one = [{"namespace": "team-a", "pods": 1}]

    assert opened(town, claiming, waiting, over) == {}
    assert after() == one
    assert after(("configmaps", enforce)) == []  # admission judges claims there
    assert after(("configmaps", observe)) == one
    assert after(("pods", claiming | {"status": over["status"]})) == []
    assert after(("pods", claiming)) == one
    assert after(("pods", claiming), deleted=True) == []


def test_before_pods_are_listed_their_claims_are_not_known(town: Town) -> None:
    town.tick()

    assert town.get("/v1/doubts").get_json()["claims"] is None


def test_a_pod_whose_request_is_taken_away_is_charged_to_its_deletion(town: Town) -> None:
    """An editor may take KAI's annotation from a running pod. Its last object holds nothing that is known."""
    pod = holding({}, scheduler="kai-scheduler", **{"gpu-fraction": "0.5"})
    pod["spec"]["resourceClaims"] = [{"name": "net", "resourceClaimName": "one"}]
    opened(town, pod)
    town.clock.turn(HOUR)
    town.node_heard("whole")
    edited = pod | {"metadata": pod["metadata"] | {"annotations": {}}}

    town.change("pods", edited)
    town.change("pods", edited, deleted=True)
    town.clock.turn(HOUR)
    town.node_heard("whole")
    town.tick()

    grace_ms = 30_000
    assert town.charged() == 500 * (HOUR + grace_ms)


def test_a_metered_namespace_has_its_budget_and_its_standing(town: Town) -> None:
    town.list_all()
    town.hear("configmaps", budgets(_settings="mode: meter", team_a="gpuHours: 0.5\nperiod: day"))
    town.hear("nodes", WHOLE)
    town.hear("pods", holding({GPU: "1"}))
    town.tick()
    town.clock.turn(31 * MINUTE)
    town.node_heard("whole")
    town.tick()

    assert town.standing() == "OVER_BUDGET"
    assert town.get("/v1/standings").get_json()["namespaces"]["team-a"]["mode"] == "meter"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_whose_request_its_editor_removes_is_charged_to_its_end(town: Town, restarts: bool) -> None:
    pod = holding({}, scheduler="kai-scheduler", **{"gpu-fraction": "0.5"})
    opened(town, pod)
    bare = holding({}, scheduler="kai-scheduler")

    town.change("pods", bare)
    if restarts:
        town.resume()
    town.clock.turn(HOUR)
    town.change(
        "pods", bare | {"status": gpu_pod("p", node="whole", started_ms=T0, ended_ms=T0 + HOUR)["status"]}
    )

    assert town.postings() == [(T0, T0 + HOUR, 500, "settled")]


def test_a_pod_is_charged_from_when_its_namespace_is_metered_also_by_a_later_settler(town: Town) -> None:
    assert opened(town, holding({"amd.com/gpu": "1"}, "amd"), mode="enforce") == {}
    town.clock.turn(10 * HOUR)
    town.resume()

    settings(town, "mode: meter")
    town.tick()

    (session,) = town.settler.ledger.sessions.values()
    assert T0 + 10 * HOUR <= session.bound_ms <= town.clock()


def test_what_the_settler_before_did_not_charge_is_not_charged_in_arrears(town: Town) -> None:
    opened(town)
    town.clock.turn(10 * HOUR)
    town.node_heard("amd")
    town.tick()
    town.objects["pods"]["p"] = holding({"amd.com/gpu": "1"}, "amd")  # as if that release had not known it

    town.resume()

    assert [each.bound_ms for each in town.settler.ledger.sessions.values()] == [T0 + 9 * HOUR]


def test_a_settler_whose_clock_is_behind_meters_as_the_one_before(town: Town) -> None:
    opened(town)
    town.clock.turn(-MINUTE)

    town.resume()

    assert town.settler.cluster.pods.metered.by_default


def test_a_pod_that_waits_while_its_namespace_is_enforced_waits_for_nothing_of_ours(town: Town) -> None:
    waiting = holding({"amd.com/gpu": "1"}, "")
    opened(town, waiting)
    (pod,) = charged_pods(town.settler.cluster.pods)
    assert pod.can_be_bound

    settings(town, "mode: enforce")
    town.tick()

    assert charged_pods(town.settler.cluster.pods) == []


def test_an_end_that_an_extender_saw_moves_no_pods_beginning_before_the_ledgers(town: Town) -> None:
    """It corrects what the report of a Binding had dated by another clock, and nothing else."""
    pod = holding({GPU: "1"})
    pod["metadata"]["labels"] = {"app": "x"}
    town.clock.turn(10 * HOUR)
    opened(town, pod)
    begun = [each.bound_ms for each in town.settler.ledger.sessions.values()]
    town.objects["pods"].clear()
    town.clock.turn(MINUTE)
    town.resume()
    ended_ms = town.clock() - 30 * SECOND
    told = report(node="whole", bound_ms=T0, witnessed_ms=ended_ms, ended_ms=ended_ms)
    assert town.post("/v1/ends", {"version": 1, "ends": [told]}).status_code == 200
    town.clock.turn(2 * SECOND)
    town.tick()

    assert town.postings() == [(begun[0], ended_ms, 1_000, "settled")]


@pytest.mark.parametrize("relisted", [True, False])
def test_a_pod_that_went_before_its_session_opened_is_charged_by_the_mode_of_its_session(
    town: Town, relisted: bool
) -> None:
    opened(town, mode="observe")
    pod = gpu_pod("p", node="mixed", percent=50, started_ms=T0)
    town.hear("pods", pod)
    if relisted:
        town.objects["pods"].clear()
        town.hear_all("pods")
    else:
        town.hear("pods", pod, deleted=True)
    settings(town, "mode: enforce", "weights: {H100: 4}")
    town.tick()

    (session,) = town.settler.ledger.sessions.values()
    assert (session.devices != "", session.doubt) == (True, None)


def test_nothing_is_said_of_the_admission_of_a_pod_that_no_budget_limited(town: Town) -> None:
    """A pod from before Bursar was installed has no standing; of a namespace with a budget that says so."""
    old = gpu_pod("old", started_ms=T0, standing="")
    town.begin(
        ("configmaps", budgets(_defaults="gpuHours: unlimited")), ("nodes", node(cards=2)), ("pods", old)
    )
    town.tick()

    (found,) = town.get("/v1/sessions").get_json()["sessions"]

    assert found["admittedInBudget"] is None
    town.hear("configmaps", budgets(team_a="gpuHours: 1"))
    town.tick()
    town.clock.turn(SECOND)
    town.hear("pods", gpu_pod("new", started_ms=T0, standing="OVER_BUDGET", card=1))
    town.tick()
    held = {
        session["pod"]: session["admittedInBudget"]
        for session in town.get("/v1/sessions").get_json()["sessions"]
    }
    assert held == {"old": None, "new": False}
