"""KubeGPU and KubeDevice: the dialects of two versions of one system (`dialects`), and the JSON of its
annotation (`device_info`)."""

from timekeeper.core.dialects.kubegpu.dialects import DIALECTS

__all__ = ["DIALECTS"]
