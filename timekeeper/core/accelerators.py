"""The resources under which device plugins give out accelerators that no dialect reads: one table, from the
vendors' documents, and from the names that sites give to the cards of NVIDIA's plugin.

The webhooks' match condition, the rule that refuses such a pod, the reader of metered ones, the findings of
``audit`` and ``doctor``, and a table of the documentation follow from it. Whatever else a vendor advertises
under its domain, such as network devices, or amounts of memory and cores beside a device, is none of them.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

# What `_settings` says of pods that request one: they are refused, charged by whole devices, or left alone.
UnknownAccelerators = Literal["refuse", "meter", "pass"]
UNKNOWN_ACCELERATORS: tuple[UnknownAccelerators, ...] = ("refuse", "meter", "pass")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The names of one vendor's devices under one domain. ``names``: a regular expression, of RE2 and of
    Python, which the whole name after ``domain/`` matches; ``device``: what one unit is; ``source``: the
    document or the repository, and the path in it, that has the names; ``cores``: how many cores a device has
    where an amount of them, with one of memory, is a whole request; else 0."""

    vendor: str
    domain: str
    names: str
    device: str
    source: str
    _: KW_ONLY
    cores: int = 0


# The products of NVIDIA, as `resources.gpus` of its device plugin names them at many sites: a series, the
# product, and what tells its kinds apart. BlueField (`bf3`), ConnectX (`cx7`) and virtual functions are none.
_SERIES = r"(gpu[-_.]?)?((nvidia|tesla|quadro|geforce|titan|rtx|gtx)[-_.]?){0,3}"
_PRODUCTS = (
    r"(a(2|10g?|16|30x?|40|100x?|800)|b[1-3]00|gb[1-3]00|gb10|gh200|h(20|[128]00)|k([124]0|80)"
    r"|l(2|4|20|40[gs]?)|m(4|6|10|40|60)|p(4|6|40|100)|t(4g?|[46]00|1000|2000)|v100s?|orin|thor|xavier"
    r"|(pro[-_.]?)?a?[2-8][05]00|[1-5]0[5-9]0|16[3-6]0|(?:titan[-_.]?)(xp?|v|rtx))"
)
_KINDS = (
    r"([-_.]?([0-9]{1,3}g(i?b)?|sxm[0-9]?|pcie|nvl|hbm[0-9]e?|ti|super|ada|blackwell|laptop|max-?q|sff|[bdesx]"
    r"|gpu|full|whole|shared|vgpu)){0,5}"
)
_RENAMED = f"{_SERIES}{_PRODUCTS}{_KINDS}"
# a pool of cards, or slices by their memory, as nos names them: what does not begin as `gpu-memory` or
# `gpu-cores`, which are amounts
_POOLS = r"gpu([-_]([abd-ln-z0-9]|m[a-df-z0-9]|c[a-np-z0-9])|\.[0-9])[-a-z0-9_.]*"

ACCELERATORS = (
    Accelerator(
        "AMD",
        "amd.com",
        r"gpu|(spx|dpx|tpx|qpx|cpx)_nps[1248]|(?i:(instinct[-_.]?)?mi[0-9]{2,3}[acpx]?)",
        "a GPU, or a partition of one",
        "ROCm/k8s-device-plugin, `resource_naming_strategy`; ROCm/gpu-operator, `tests/e2e`; sites' names",
    ),
    Accelerator("Alibaba Cloud", "aliyun.com", r"gpu", "a GPU", "ACK: topology-aware GPU scheduling"),
    Accelerator(
        "Amazon",
        "aws.amazon.com",
        r"neuron(core|device)?",
        "a Neuron device, or a core of one",
        "AWS Neuron documentation, Kubernetes: Neuron device plugin",
    ),
    Accelerator("Amazon", "k8s.amazonaws.com", r"vgpu", "a share of a GPU", "aws-virtual-gpu-device-plugin"),
    Accelerator("Baidu", "baidu.com", r"([0-9a-z]+_)*cgpu", "a GPU, or a share of one", "Baidu, CCE: cGPU"),
    Accelerator(
        "Biren",
        "birentech.com",
        r"gpu|1-[24]-gpu",
        "a GPU, or a half or a quarter of one",
        "Biren's k8s-device-plugin, as HAMi reads it: Project-HAMi/HAMi, `pkg/device/biren`",
    ),
    Accelerator(
        "Cambricon",
        "cambricon.com",
        r"mlunum|(v?mlu|mlu[0-9]{2,4})(\.share|\.mim-[0-9]+m\.[0-9]+gb|\.smlu\.v(core|memory))?",
        "an MLU, or a part of one",
        "Cambricon/cambricon-k8s-device-plugin, `README.md`; Project-HAMi/HAMi, `pkg/device/cambricon`",
        cores=100,
    ),
    Accelerator(
        "Enflame",
        "enflame.com",
        r"gcu|dtu|vgcu|drs-gcu|shared-gcu|gcu-(core|memory)",
        "a GCU, or a share of one",
        "EnflameTechnology/gcushare, `gcushare-device-plugin`; Project-HAMi/HAMi, `pkg/device/enflame`",
        cores=100,
    ),
    Accelerator(
        "FuriosaAI",
        "furiosa.ai",
        r"rngd(-[0-9]core\.[0-9]{1,3}gb)?",
        "an NPU, or a partition of one",
        "FuriosaAI Developer Center, Cloud Native Toolkit: Furiosa Device Plugin",
    ),
    Accelerator(
        "FuriosaAI",
        "beta.furiosa.ai",
        r"npu",
        "an NPU",
        "FuriosaAI Developer Center 2024.1, Furiosa Device Plugin: strategy `legacy`",
    ),
    Accelerator("Google", "google.com", r"tpu", "a TPU chip", "Google Kubernetes Engine, TPUs in GKE"),
    Accelerator(
        "Google",
        "cloud-tpus.google.com",
        r"(preemptible-)?v[23]",
        "a TPU core",
        "Google Kubernetes Engine, Cloud TPU in GKE (2018); kubeflow/pipelines, `use_tpu`",
    ),
    Accelerator(
        "Graphcore",
        "c600.graphcore.ai",
        r"ipu",
        "an IPU",
        "Graphcore, Kubernetes IPU Device Plugin User Guide: Creating a pod",
    ),
    Accelerator(
        "Huawei",
        "huawei.com",
        r"npu(-core)?|Ascend[0-9]{3}[A-Z]?[0-9]?(-1)?(-[0-9]{1,2}c(\.[0-9a-z.]+)?)?",
        "an Ascend NPU, a virtual one, or a core",
        "Ascend/mind-cluster, Ascend Device Plugin; its plugin of Volcano, `scheduler-strategy/vnpu`; "
        "Project-HAMi/ascend-device-plugin, `ascend-device-configmap.yaml`",
    ),
    Accelerator(
        "Hygon",
        "hygon.com",
        r"dcu|[dh]cunum|dcu-share-[0-9]+c-[0-9]+g|dcu-mig-[0-9]+g-[0-9]+gb",
        "a DCU, or a part of one",
        "Hygon's DCU device plugin, `README`; Project-HAMi/HAMi, `pkg/device/hygon`",
    ),
    Accelerator(
        "IBM",
        "ibm.com",
        r"(spyre|aiu)_(tier[0-9]|(pf|vf)(_tier[0-9]|_[0-9a-f]{4}_[0-9a-f]{2}_[0-9a-f]{2}\.[0-9a-f])?)",
        "a Spyre accelerator",
        "IBM Spyre Operator, resource names of physical and virtual functions, tiers and PCI addresses",
    ),
    Accelerator(
        "Iluvatar",
        "iluvatar.ai",
        r"v?gpu|[A-Z]{2}-V[0-9]{2,3}-vgpu|vcuda-(core|memory)",
        "a GPU, or a share of one",
        "Iluvatar's exporter and device plugin; Project-HAMi/HAMi, `pkg/device/iluvatar`",
        cores=100,
    ),
    Accelerator("Iluvatar", "iluvatar.com", r"gpu", "a GPU", "Deep-Spark/ix-device-plugin"),
    Accelerator(
        "Intel",
        "habana.ai",
        r"gaudi|goya|greco",
        "a Gaudi, Goya or Greco accelerator",
        "Intel Gaudi documentation, Kubernetes: Device Plugin",
    ),
    Accelerator("Intel", "npu.intel.com", r"accel", "an NPU", "intel-device-plugins, `npu_plugin`"),
    Accelerator(
        "Kunlunxin",
        "kunlunxin.com",
        r"v?xpu",
        "an XPU, or a share of one",
        "Project-HAMi/HAMi, `pkg/device/kunlun`",
    ),
    Accelerator(
        "MetaX",
        "metax-tech.com",
        r"(s|vfio-)?gpu",
        "a GPU, or a share of one",
        "MetaX's gpu-device plugin; Project-HAMi/HAMi, `pkg/device/metax`",
    ),
    Accelerator(
        "Microsoft",
        "directx.microsoft.com",
        r"compute|display",
        "a GPU of a Windows node",
        "tensorworks/directx-device-plugins, `README.md`",
    ),
    Accelerator(
        "Moore Threads",
        "mthreads.com",
        r"v?gpu|sgpu-(core|memory)",
        "a GPU, or a share of one",
        "Moore Threads, KUAE Cloud Native Toolkits; Project-HAMi/HAMi, `pkg/device/mthreads`",
        cores=16,
    ),
    Accelerator(
        "NVIDIA",
        "nvidia.com",
        # KubeVirt's plugins: `pgpu`, `GA102GL_A10`, `NVIDIA_A10-24Q`
        rf"pgpu|(GRID|NVIDIA)_.+|[A-Z]{{1,2}}[0-9]{{2,3}}[A-Z]*(_.+)?|(?i:{_RENAMED}|{_POOLS})",
        "a GPU, or a share of one",
        "NVIDIA/k8s-device-plugin, `resources.gpus`, sites' names; NVIDIA/kubevirt-gpu-device-plugin",
    ),
    Accelerator(
        "Qualcomm",
        "qualcomm.com",
        r"qaic",
        "a Cloud AI 100 device",
        "Qualcomm Cloud AI, Kubernetes device plugin; NRP Nautilus documentation, QAIC",
    ),
    Accelerator(
        "Rebellions",
        "rebellions.ai",
        r"ATOM|REBEL|npu",
        "an NPU",
        "RBLN-SW/k8s-device-plugin, `README.md`",
    ),
    Accelerator(
        "T-Head",
        "alibabacloud.com",
        r"ppu",
        "a PPU",
        "Alibaba Cloud, Container Service: PPU; gpustack, `docs/settings.md`",
    ),
    Accelerator(
        "Tenstorrent",
        "tenstorrent.com",
        r"n150|n300|blackhole|grayskull",
        "a card",
        "Tenstorrent's Kubernetes device plugins, `README.md`: supported devices",
    ),
    Accelerator(
        "Vastai",
        "vastaitech.com",
        r"va",
        "a card, or a die of one",
        "Project-HAMi/HAMi, `pkg/device/vastai`",
    ),
    Accelerator(
        "Volcengine",
        "vke.volcengine.com",
        r"mgpu-(core|memory)",
        "a share of a GPU",
        "Volcengine, VKE: mGPU; volcano-sh/volcano, `docs/design`: multiple mGPUs",
        cores=100,
    ),
)

DOMAINS = tuple(each.domain for each in ACCELERATORS)  # each once


def _whole(each: Accelerator) -> str:
    return f"{re.escape(each.domain)}/({each.names})"


# what an amount of memory or cores is called, beside a device or alone
_AMOUNT = re.compile(r"(mem|memory|cores?|percent|percentage|ratio)$", re.IGNORECASE)


def is_extended(resource: str) -> bool:
    """Whether it has a domain that is not Kubernetes' own, as what device plugins advertise has."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def is_amount(resource: str) -> bool:
    """Whether it counts memory or cores, by its name: never a device, unless the table says so."""
    return _AMOUNT.search(resource) is not None and accelerator_of(resource) is None


# of a whole resource name, in CEL and in Python
RESOURCE = f"^({'|'.join(map(_whole, ACCELERATORS))})$"
BESIDE_CARDS = frozenset({"npu.intel.com"})  # whose devices are no card, nor a part of one, of their node
_BY_DOMAIN = {each.domain: (re.compile(each.names), each) for each in ACCELERATORS}


def accelerator_of(resource: str) -> Accelerator | None:
    """The row that has this resource; None if it is no accelerator's."""
    domain, _, name = resource.partition("/")
    found = _BY_DOMAIN.get(domain)
    return found[1] if found is not None and found[0].fullmatch(name) else None


def cores_of(resource: str) -> int | None:
    """Of an amount that may be a whole request: how many of it a device has, 0 of memory, of which nothing
    says it. None of devices, and of what is no accelerator's."""
    row = accelerator_of(resource)
    if row is None or not row.cores or _AMOUNT.search(resource) is None:
        return None
    return row.cores if resource.endswith("core") else 0


def without_amounts(resources: Iterable[str]) -> tuple[str, ...]:
    """Without the amounts beside a number of devices of their vendor, and without memory beside cores."""
    found = tuple(resources)
    devices = {name.partition("/")[0] for name in found if accelerator_of(name) and cores_of(name) is None}
    cores = {name.partition("/")[0] for name in found if cores_of(name)}
    beside = {True: devices, False: devices | cores}
    return tuple(
        name
        for name in found
        if cores_of(name) is None or name.partition("/")[0] not in beside[bool(cores_of(name))]
    )


_MODE_LABEL, PRODUCT_LABEL = "amd.com/compute-memory-partition", "amd.com/gpu.product-name"
_MODES = {"dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}  # of an AMD GPU: into how many parts each divides it
# names of what a vendor's plugin calls a part of a device
_PARTS = re.compile(
    r"core|memory$|share|/gpu[-_.][0-9]+gi?b?$|mim-|mig-|-[0-9]{1,2}c|-[0-9]{1,2}[ABCQ]$|/v(?!fio)[a-z]|[csv]gpu"
    r"|/1-[24]-"
)


def parts_of(resource: str, labels: Mapping[str, str]) -> tuple[int, str]:
    """Into how many of these a node with these labels divides a device, and what of that is an assumption.
    Source: ROCm/k8s-device-plugin, resource naming strategies and node labeller."""
    vendor, _, name = resource.partition("/")
    if vendor != "amd.com":
        is_part = accelerator_of(resource) is not None and _PARTS.search(resource) is not None
        return 1, "counts as a whole device" if is_part and not cores_of(resource) else ""
    mode = (labels.get(_MODE_LABEL, "") if name == "gpu" else name).partition("_")[0]
    product = labels.get(PRODUCT_LABEL, "")
    if mode == "cpx" and "MI300A" in product:
        return 6, ""
    number = _MODES.get(mode, 1)
    return number, f"counts as 1/{number} of a device" if mode == "cpx" and not product else ""


def accelerators_in(resources: Iterable[str], named: Collection[str] = ()) -> tuple[str, ...]:
    """Those of the resources that are accelerators, in their order: of the table, and those that the settings
    name."""
    return tuple(name for name in resources if accelerator_of(name) is not None or name in named)
