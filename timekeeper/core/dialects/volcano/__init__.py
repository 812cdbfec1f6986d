"""Volcano on NVIDIA's cards: its vGPU (`virtual`), and the GPU sharing before it (`sharing`)."""

from timekeeper.core.dialects.volcano import sharing, virtual

DIALECTS = (virtual.DIALECT, *sharing.DIALECTS)

__all__ = ["DIALECTS"]
