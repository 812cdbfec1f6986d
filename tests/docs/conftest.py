"""The running extender that its pages are compared with."""

from tests.scheduler_ext.conftest import api, running, start

__all__ = ["api", "running", "start"]
