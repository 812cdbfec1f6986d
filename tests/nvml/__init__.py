"""A fake NVML library: ``fake_nvml`` builds it and describes its cards, ``describe`` changes them."""

from tests.nvml.build import compile_library, describe, fake_nvml

__all__ = ["compile_library", "describe", "fake_nvml"]
