"""Accelerators that no dialect reads: exact names, and what a pod requests of them."""

import re

import pytest

from tests.worlds import Json, container, of_resources, pod
from timekeeper.core.accelerators import ACCELERATORS, RESOURCE, UnknownAccelerators, accelerator_of
from timekeeper.core.dialects.others.device import record
from timekeeper.core.request.devices import unclassified
from timekeeper.core.request.request import (
    NO_REQUEST,
    canonical,
    parse,
    parse_new,
    parse_stored,
    request_part,
)
from timekeeper.core.values import Ask, ContainerAsk, GPURequest

# by the vendors' documents
KNOWN = re.findall(
    r"\S+",
    """
    amd.com/gpu amd.com/cpx_nps4 amd.com/spx_nps1 amd.com/dpx_nps2 amd.com/qpx_nps1
    aws.amazon.com/neuron aws.amazon.com/neuroncore aws.amazon.com/neurondevice birentech.com/gpu
    birentech.com/1-2-gpu birentech.com/1-4-gpu cambricon.com/mlu cambricon.com/vmlu
    cambricon.com/mlunum cambricon.com/mlu370 cambricon.com/mlu370.share
    cambricon.com/mlu370.mim-2m.8gb enflame.com/gcu enflame.com/vgcu enflame.com/drs-gcu
    enflame.com/shared-gcu furiosa.ai/rngd furiosa.ai/rngd-2core.12gb beta.furiosa.ai/npu
    google.com/tpu cloud-tpus.google.com/v3 ibm.com/spyre_vf_tier1
    c600.graphcore.ai/ipu huawei.com/Ascend310 huawei.com/Ascend310P
    huawei.com/Ascend310P-1c huawei.com/Ascend310P-4c.3cpu.ndvpp huawei.com/Ascend910
    huawei.com/Ascend910-16c huawei.com/Ascend910-12c.3cpu.32g huawei.com/Ascend910A
    huawei.com/Ascend910B3 huawei.com/Ascend910B4-1 huawei.com/Ascend910C huawei.com/npu
    huawei.com/npu-core hygon.com/dcu hygon.com/dcunum hygon.com/hcunum hygon.com/dcu-share-4c-16g
    hygon.com/dcu-mig-4g-31gb ibm.com/spyre_pf ibm.com/spyre_vf iluvatar.ai/gpu iluvatar.ai/vgpu
    iluvatar.ai/BI-V150-vgpu iluvatar.com/gpu habana.ai/gaudi habana.ai/goya habana.ai/greco
    kunlunxin.com/xpu kunlunxin.com/vxpu metax-tech.com/gpu metax-tech.com/sgpu mthreads.com/gpu
    mthreads.com/vgpu qualcomm.com/qaic rebellions.ai/ATOM rebellions.ai/REBEL rebellions.ai/npu
    alibabacloud.com/ppu tenstorrent.com/n150 tenstorrent.com/n300 tenstorrent.com/blackhole
    vastaitech.com/va npu.intel.com/accel k8s.amazonaws.com/vgpu baidu.com/cgpu
    baidu.com/h800_80g_cgpu amd.com/mi300x amd.com/MI250 amd.com/mi210
    nvidia.com/pgpu nvidia.com/GA102GL_A10 nvidia.com/GH100_H100_PCIE nvidia.com/GH100
    nvidia.com/TU102_TITAN_RTX nvidia.com/GRID_T4-16Q nvidia.com/NVIDIA_A10-24Q nvidia.com/H100_94GB
    nvidia.com/a100 nvidia.com/A100 nvidia.com/a100-80gb nvidia.com/a100_sxm4_40gb nvidia.com/v100.shared
    nvidia.com/h100 nvidia.com/H200 nvidia.com/b200 nvidia.com/gb200 nvidia.com/gh200 nvidia.com/l40s
    nvidia.com/l4 nvidia.com/t4 nvidia.com/tesla-t4 nvidia.com/Tesla_P40 nvidia.com/a10g nvidia.com/a2
    nvidia.com/rtxa6000 nvidia.com/rtx8000 nvidia.com/rtx-4090 nvidia.com/rtx-pro-6000 nvidia.com/3090
    nvidia.com/1080ti nvidia.com/geforce-rtx-3090-ti nvidia.com/titan-xp nvidia.com/quadro-rtx-6000
    nvidia.com/rtx-4000-sff-ada nvidia.com/orin nvidia.com/gpu-h100-80gb-hbm3 nvidia.com/gpu-10gb
    nvidia.com/gpu_a100 nvidia.com/gpu.a100-40gb nvidia.com/gpu.10gb nvidia.com/gpuh100 nvidia.com/gpu-shared
    nvidia.com/GPU-L40S nvidia.com/gpu-m60 nvidia.com/gpu-large ibm.com/aiu_pf ibm.com/aiu_pf_tier0
    metax-tech.com/vfio-gpu mthreads.com/sgpu-core mthreads.com/sgpu-memory vke.volcengine.com/mgpu-core
    vke.volcengine.com/mgpu-memory enflame.com/gcu-core enflame.com/gcu-memory iluvatar.ai/vcuda-core
    iluvatar.ai/vcuda-memory cambricon.com/mlu370.smlu.vcore cambricon.com/mlu.smlu.vmemory
    """,
)
# companions, network devices, names of dialects, and names that only begin or end alike
OTHERS = re.findall(
    r"\S+",
    """
    amd.com/gpumem amd.com/gpucores amd.com/nic amd.com/gpu-x amd.com/cpx amd.com/cpx_nps3
    xamd.com/gpu amd.com.x/gpu aws.amazon.com/neurons vpc.amazonaws.com/efa
    cambricon.com/mlu.smlu.memory cambricon.com/smlu.vcore enflame.com/gcu-cores
    enflame.com/vgcu-percentage google.com/tpus cloud.google.com/tpu huawei.com/Ascend910-memory
    huawei.com/Ascend910B4-1-memory huawei.com/Ascend910B3-core huawei.com/roce hygon.com/dcumem
    hygon.com/dcucores iluvatar.ai/BI-V150.vMem kunlunxin.com/vxpu-memory metax-tech.com/vcore
    metax-tech.com/vmemory mthreads.com/sgpu mthreads.com/sgpu-cores nvidia.com/gpu
    nvidia.com/hostdev nvidia.com/bf3 nvidia.com/bf3-p0-vfs nvidia.com/cx7_sriov nvidia.com/p0_sriov
    nvidia.com/rdma_shared_device_a nvidia.com/mlnxnics nvidia.com/ibs0f0 nvidia.com/resibp24s0
    nvidia.com/a100-memory nvidia.com/a100-nic nvidia.com/gpu.shared nvidia.com/mig-1g.5gb nvidia.com/gpumem
    nvidia.com/gpus nvidia.com/gpu-memory nvidia.com/gpu-cores nvidia.com/gpu.memory vke.volcengine.com/eni-ip
    nvidia.com/vgpu-number npu.intel.com/accels baidu.com/cgpu_core baidu.com/a10_cgpu_memory
    amd.com/mi300x_nic tke.cloud.tencent.com/qgpu-core tke.cloud.tencent.com/eni-ip
    devices.kubevirt.io/kvm smarter-devices/fuse rdma/hca vpc.amazonaws.com/efa intel.com/sriov_netdevice
    gpu.intel.com/i915 intel.com/sriov qat.intel.com/generic
    bursar.dev/gpu-percent cpu memory ephemeral-storage hugepages-2Mi
    """,
)
DIFFERS = "request-differs-from-limit"
TWO = {"amd.com/cpx_nps4": "2"}


def of(name: str, amounts: Json, **more: str) -> Json:
    """A container with these limits and requests."""
    made = of_resources(amounts, name)
    return made | {"resources": made["resources"] | {"requests": more}} if more else made


def labelled(*containers: Json, init: list[Json] | None = None) -> Json:
    """A pod that admission has governed."""
    made = pod(*containers, init=init)
    made["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    return made


def wrong(raw: Json, setting: UnknownAccelerators = "meter") -> list[tuple[str, str]]:
    """The rules that a new pod breaks, each with its field."""
    return [(each.rule, each.path) for each in parse_new(raw, setting).violations]


def test_the_names_are_exact_in_python_and_in_the_policies() -> None:
    for name in KNOWN:
        assert accelerator_of(name), name
        assert re.search(RESOURCE, name), name
    for name in (*OTHERS, "amd.com/gpu\n"):
        assert accelerator_of(name) is None, name
        assert re.fullmatch(RESOURCE, name) is None, name
    assert len({each.domain for each in ACCELERATORS}) == len(ACCELERATORS)


def test_a_governed_pod_requests_whole_devices_of_the_resources_model() -> None:
    raw = labelled(of("a", TWO), of("b", {"cpu": "1"}), init=[of("first", {"google.com/tpu": "4"})])
    request = GPURequest(
        dialect="device",
        asks=(
            ContainerAsk("first", True, Ask(4, 1000, 0, device="google.com/tpu")),
            ContainerAsk("a", False, Ask(2, 1000, 0, device="amd.com/cpx_nps4")),
        ),
    )

    assert parse(raw).request == request
    assert parse_stored(raw).request == request
    assert parse(request_part(raw)).request == request
    assert '"device":"amd.com/cpx_nps4"' in canonical(request)


def test_what_the_setting_says_of_a_new_pod() -> None:
    raw = pod(of("main", TWO))

    assert parse(raw).request is None
    assert parse(raw).violations == ()
    assert parse_new(raw, "pass") == parse(raw)
    assert parse_new(raw, "meter").request == parse(labelled(of("main", TWO))).request
    (refused,) = parse_new(raw, "refuse").violations
    assert refused.sentence().startswith(
        "spec.containers[0].resources.limits[amd.com/cpx_nps4]: no dialect reads amd.com/cpx_nps4 (AMD: a"
        " GPU, or a partition of one), so it would be used outside every budget"
    )
    assert wrong(labelled(of("main", TWO)), "refuse") == [("dialect-not-spoken", refused.path)]


@pytest.mark.parametrize(
    ("made", "rule", "field"),
    [
        (of("c", {"google.com/tpu": "-1"}), "amount", "limits[google.com/tpu]"),
        (of("c", {"google.com/tpu": "1.5"}), "amount", "limits[google.com/tpu]"),
        (of("c", {"google.com/tpu": ["4"]}), "amount", "limits[google.com/tpu]"),
        (of("c", {"google.com/tpu": "1025"}), "amount", "limits[google.com/tpu]"),
        (of("c", {"mthreads.com/sgpu-core": "16385"}), "amount", "limits[mthreads.com/sgpu-core]"),
        (of("c", {"mthreads.com/sgpu-memory": "-1"}), "amount", "limits[mthreads.com/sgpu-memory]"),
        (of("c", TWO | {"amd.com/gpu": "1"}), "combination", "limits[amd.com/gpu]"),
        (
            of("c", TWO, **{"amd.com/cpx_nps4": "1"}),
            DIFFERS,
            "requests[amd.com/cpx_nps4]",
        ),
        (of("c", {}, **{"google.com/tpu": "4"}), DIFFERS, "requests[google.com/tpu]"),
    ],
)
def test_an_amount_that_contradicts_itself_is_refused_with_its_field(
    made: Json, rule: str, field: str
) -> None:
    assert wrong(pod(made)) == [(rule, f"spec.containers[0].resources.{field}")]


def test_devices_beside_cards_of_a_dialect_are_refused_or_no_part_of_the_request() -> None:
    raw = pod(container("a", gpu_percent="50"), of("b", TWO))
    cards = parse(pod(container("a", gpu_percent="50"))).request

    assert wrong(raw) == [("several-dialects", "spec.containers[1].resources.limits[amd.com/cpx_nps4]")]
    assert parse_new(raw, "pass").request == cards
    governed = raw | {"metadata": raw["metadata"] | {"labels": {"bursar.dev/governed": "true"}}}
    assert parse_stored(governed).request == cards, "as it was admitted"


def test_companions_of_a_device_are_no_devices() -> None:
    amounts = {"huawei.com/Ascend910": "1", "huawei.com/Ascend910-memory": "16384", "hygon.com/dcumem": "9"}

    request = parse(labelled(of("main", amounts))).request

    assert request is not None
    assert [(each.ask.devices, each.ask.device) for each in request.asks] == [(1, "huawei.com/Ascend910")]
    assert parse_new(pod(of("main", {"hygon.com/dcumem": "9"})), "refuse").violations == ()


NPU, NIC = "example.com/npu", "example.com/nic"


@pytest.mark.parametrize("unknown", ["refuse", "meter", "pass"])
def test_what_the_settings_name_counts_as_what_the_table_has(unknown: UnknownAccelerators) -> None:
    raw = pod(of("main", {NPU: "2", NIC: "1", f"{NPU}-memory": "9"}))

    parsed = parse_new(raw, unknown, named=(NPU, f"{NPU}-memory"))

    assert parse_new(raw, unknown) == parse(raw) == parse_new(raw, "pass")
    assert [violation.path for violation in parsed.violations] == (
        [f"spec.containers[0].resources.limits[{NPU}]"] if unknown == "refuse" else []
    )
    asks = (ContainerAsk("main", False, Ask(2, 1000, 0, device=NPU)),)
    assert parsed.request == (GPURequest(dialect="device", asks=asks) if unknown == "meter" else None)
    assert parse_new(pod(of("main", {NPU: "0"})), unknown, named=(NPU,)) == NO_REQUEST


def test_a_governed_pod_has_the_devices_that_admission_recorded() -> None:
    raw = labelled(of("main", {NPU: "2", NIC: "1"}))
    raw["metadata"]["annotations"] = {"bursar.dev/accelerators": NPU}
    request = parse(raw).request

    assert request is not None
    assert [(ask.ask.devices, ask.ask.device) for ask in request.asks] == [(2, NPU)]
    assert parse(request_part(raw)).request == parse_stored(raw).request == request
    assert record(request) == {"bursar.dev/accelerators": NPU}
    assert parse(labelled(of("main", {NPU: "2"}))).request is None
    of_table = parse(labelled(of("main", TWO))).request
    assert of_table is not None
    assert record(of_table) == {}


def test_what_no_table_and_no_setting_has_is_unclassified() -> None:
    named = {NPU: True, NIC: False}
    known = (
        "cpu",
        "hugepages-2Mi",
        "attachable-volumes-csi-x",
        "pod.kubernetes.io/x",
        "bursar.dev/gpu-percent",
    )

    assert unclassified((*KNOWN, *known, "hygon.com/dcumem", "nvidia.com/gpu", NPU, NIC), named) == ()
    assert unclassified((NPU, "rdma/hca", "new.example/cores"), ()) == (NPU, "rdma/hca", "new.example/cores")
    assert [name for name in OTHERS if accelerator_of(name)] == []
