"""KubeGPU and KubeDevice."""

from timekeeper.core.dialects.kubegpu.dialects import DIALECTS

__all__ = ["DIALECTS"]
