"""The ways of writing a GPU request that people already know, one module each, behind one shape.

``DIALECTS`` is the table that everything else is made from: the parser, the webhooks' match conditions, the
resources that the scheduler hands to the extender, and the placement annotations that belong to no user.
"""

import re

from timekeeper.core.dialects import native, nvidia, tencent
from timekeeper.core.dialects.dialect import ContainerLimits, Dialect

DIALECTS: tuple[Dialect, ...] = (native.DIALECT, tencent.DIALECT, nvidia.DIALECT)

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}

# GPU resources of systems whose dialect is not spoken: refused with a sentence, for a pod that uses them
# would pass every budget by
GPU_RESOURCE = (
    r"^(bursar\.dev/|nvidia\.com/(gpu|mig-|vgpu)|tencent\.com/vcuda-|elasticgpu\.(io|com)/|nano-gpu(\.io)?/|gpu\.intel\.com/"
    r"|aliyun\.com/gpu-|volcano\.sh/(vgpu-|gpu-)|koordinator\.sh/gpu|amd\.com/gpu)"
)
UNSPOKEN = re.compile(GPU_RESOURCE)

__all__ = ["BY_NAME", "DIALECTS", "GPU_RESOURCE", "UNSPOKEN", "ContainerLimits", "Dialect"]
