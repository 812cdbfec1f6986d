"""The supported ways of writing a GPU request, one module each, with one interface.

``DIALECTS`` is the table that everything else is made from: the parser, the webhooks' match conditions, the
resources that kube-scheduler hands to the extender, and the annotations that users may not write.

Imports the vocabulary only. Never here: another place that knows a dialect by name.
"""

import re

from timekeeper.core.dialects import native, nvidia, tencent
from timekeeper.core.dialects.dialect import ContainerLimits, Dialect

DIALECTS: tuple[Dialect, ...] = (native.DIALECT, tencent.DIALECT, nvidia.DIALECT)

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}

# GPU resources of unsupported systems. They are refused, because a pod that uses them would bypass every
# budget.
GPU_RESOURCE = (
    r"^(bursar\.dev/|nvidia\.com/(gpu|mig-|vgpu)|tencent\.com/vcuda-|elasticgpu\.(io|com)/|nano-gpu(\.io)?/|gpu\.intel\.com/"
    r"|aliyun\.com/gpu-|volcano\.sh/(vgpu-|gpu-)|koordinator\.sh/gpu|amd\.com/gpu)"
)
GPU_RESOURCE_PATTERN = re.compile(GPU_RESOURCE)

__all__ = ["BY_NAME", "DIALECTS", "GPU_RESOURCE", "GPU_RESOURCE_PATTERN", "ContainerLimits", "Dialect"]
