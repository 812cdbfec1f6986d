"""The supported ways of writing a GPU request, one module each, with one interface.

``DIALECTS`` is the table behind the parser, the webhooks' match conditions, the resources that kube-scheduler
sends to the extender, and the annotations that users may not write. Installed packages may ship further ones
(`shipped`). ``GPU_RESOURCE`` is written by hand beside it. Imports the vocabulary only.
"""

import re
from functools import cache

from timekeeper.core.accelerators import is_amount, is_extended
from timekeeper.core.dialects import (
    gas,
    genius,
    gpushare,
    hami,
    kubegpu,
    nano,
    native,
    nvidia,
    nvidia_parts,
    tencent,
    volcano,
)
from timekeeper.core.dialects.amounts import Container, ContainerLimits, NodeFacts, PodFacts
from timekeeper.core.dialects.dialect import Dialect
from timekeeper.core.dialects.others import claims, device, kai, koordinator, tke, vgpu_manager
from timekeeper.core.dialects.shipped import shipped

BUILT_IN: tuple[Dialect, ...] = (
    native.DIALECT,
    tencent.DIALECT,
    nvidia.DIALECT,
    *nvidia_parts.DIALECTS,
    *nano.DIALECTS,
    gpushare.DIALECT,
    genius.DIALECT,
    hami.DIALECT,
    gas.DIALECT,
    *kubegpu.DIALECTS,
    *volcano.DIALECTS,
    kai.DIALECT,
    koordinator.DIALECT,
    vgpu_manager.DIALECT,
    tke.DIALECT,
)
# of NVIDIA's device plugin, whose cards it picks itself
OF_NVIDIA = tuple(each.name for each in (nvidia.DIALECT, *nvidia_parts.DIALECTS))
DIALECTS = (*BUILT_IN, *shipped((*BUILT_IN, device.DIALECT, claims.DIALECT)))

# by annotation and by label, for pods whose request is not in limits
BY_ANNOTATION = {name: dialect for dialect in DIALECTS for name in dialect.annotations}
BY_LABEL = {name: dialect for dialect in DIALECTS for name in dialect.labels}

# each stands for all resources whose names begin so
PREFIXES = tuple(dialect.prefix for dialect in DIALECTS if dialect.prefix)

# also what no table of resources names: metered devices, and devices by claims
BY_NAME = {dialect.name: dialect for dialect in (*DIALECTS, device.DIALECT, claims.DIALECT)}

# Every known GPU resource name, of supported and unsupported systems. A name of no dialect is refused: a pod
# that uses it would bypass every budget. `sidecar.node.state.node_patch` has a copy. Devices that no dialect
# reads are in `timekeeper.core.accelerators`: `_settings` says what becomes of their pods.
GPU_RESOURCE = (
    r"^((cards\.)?bursar\.dev/"
    r"|nvidia\.com/(gpu($|s$|\.shared$|[a-z]{2}|[-_.](mem|core))|mig-|vgpu|priority$)"
    r"|(tencent\.com/vcuda|tke\.cloud\.tencent\.com/qgpu)-"
    r"|elasticgpu\.(io|com)/|nano-gpu(\.io)?/|gpu\.intel\.com/|aliyun\.com/gpu-"
    r"|volcano\.sh/(vgpu-|gpu-)|koordinator\.sh/gpu)"
)
_named = (name for each in DIALECTS for name in (*each.resources, *each.node_resources))
_others = [f"{re.escape(name)}$" for name in _named if not re.match(GPU_RESOURCE, name)]
_others += [re.escape(prefix) for prefix in PREFIXES if not re.match(GPU_RESOURCE, prefix)]
if _others:  # of other packages
    GPU_RESOURCE = f"{GPU_RESOURCE[:-1]}|{'|'.join(_others)})"
GPU_RESOURCE_PATTERN = re.compile(GPU_RESOURCE)


def may_be_device(resource: str) -> bool:
    """Whether it may be a device of no dialect: an extended resource, and no amount of memory or cores. What
    a dialect reads, also one of another package, is a card."""
    return is_extended(resource) and not (GPU_RESOURCE_PATTERN.match(resource) or is_amount(resource))


def serves(family: str, dialect: str) -> bool:
    """True if nodes of the dialect ``family`` serve pods of ``dialect``."""
    if family == dialect:
        return True
    return family in BY_NAME and (dialect in BY_NAME[family].serves or family in BY_NAME[dialect].on_nodes_of)


@cache
def replaced_schedulers(dialect: str) -> tuple[str, ...]:
    """The schedulerNames that pods of this dialect may have, because Bursar replaces those schedulers."""
    return tuple(
        name for each in DIALECTS if each.name == dialect or dialect in each.serves for name in each.replaces
    )


__all__ = [
    "BY_ANNOTATION",
    "BY_LABEL",
    "BY_NAME",
    "DIALECTS",
    "GPU_RESOURCE",
    "GPU_RESOURCE_PATTERN",
    "PREFIXES",
    "Container",
    "ContainerLimits",
    "Dialect",
    "NodeFacts",
    "PodFacts",
    "may_be_device",
    "replaced_schedulers",
    "serves",
]
