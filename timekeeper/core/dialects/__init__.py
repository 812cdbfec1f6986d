"""The supported ways of writing a GPU request, one module each, with one interface.

``DIALECTS`` is the table behind the parser, the webhooks' match conditions, the resources that kube-scheduler
sends to the extender, and the annotations that users may not write. ``GPU_RESOURCE`` is written by hand
beside it. Imports the vocabulary only.
"""

import re

from timekeeper.core.dialects import gpushare, nano, native, nvidia, tencent
from timekeeper.core.dialects.amounts import ContainerLimits, NodeFacts, PodFacts
from timekeeper.core.dialects.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (
    native.DIALECT,
    tencent.DIALECT,
    nvidia.DIALECT,
    *nano.DIALECTS,
    gpushare.DIALECT,
)

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}

# Every known GPU resource name, of supported and unsupported systems. A name of no dialect is refused: a pod
# that uses it would bypass every budget. `sidecar.node.state.node_patch` has a copy.
GPU_RESOURCE = (
    r"^(bursar\.dev/|nvidia\.com/(gpu|mig-|vgpu)|tencent\.com/vcuda-|elasticgpu\.(io|com)/|nano-gpu(\.io)?/|gpu\.intel\.com/"
    r"|aliyun\.com/gpu-|volcano\.sh/(vgpu-|gpu-)|koordinator\.sh/gpu|amd\.com/gpu)"
)
GPU_RESOURCE_PATTERN = re.compile(GPU_RESOURCE)


def serves(family: str, dialect: str) -> bool:
    """True if nodes of the dialect ``family`` serve pods of ``dialect``."""
    return family == dialect or (family in BY_NAME and dialect in BY_NAME[family].serves)


__all__ = [
    "BY_NAME",
    "DIALECTS",
    "GPU_RESOURCE",
    "GPU_RESOURCE_PATTERN",
    "ContainerLimits",
    "Dialect",
    "NodeFacts",
    "PodFacts",
    "serves",
]
