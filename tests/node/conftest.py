"""The played timekeeper of the sidecar's tests, which the node agent's tests use too."""

from tests.sidecar.conftest import authority, timekeeper

__all__ = ["authority", "timekeeper"]
