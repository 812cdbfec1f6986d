"""Which worker of pytest-xdist runs which file of tests.

A file's tests run in one worker, for they share fixtures. Files of one lane share what is dear: the machine's
one real node, a cluster with all of Bursar, or a bare control plane. One worker runs a lane, file after file,
so that each of these is there once. The files of the last lane share nothing: they compute, and every worker
whose lane is done takes them.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.touched import NAME, Touched

STORIES, STACK, PLANE, NODE, COMPUTE = "stories", "stack", "plane", "node", "compute"
LANES = (STORIES, STACK, PLANE, NODE, COMPUTE)  # the longest first

# A machine has room for one node, and beside a program with a kubelet's name no node starts. A node changes
# the machine's network, and Chromium drops what it loads at each change: no browser runs beside one.
_NODE_OR_BROWSER = (
    "tests/kubelet/",
    "tests/local/process/test_local_node.py",
    "tests/cli/cluster/test_cli.py",
    *(f"tests/timekeeper/process/test_dashboard_{name}.py" for name in ("browser", "login_browser", "pages")),
)
# All of Bursar is there twice: stories wait most of the time, and one worker would be the last by minutes.
_STORIES = "tests/story/cluster/"
_SHARED_STACK = (
    "tests/cli/cluster/",
    *(f"tests/docs/cluster/test_{page}.py" for page in ("access", "coming_from", "from_device_plugin")),
    *(f"tests/docs/cluster/test_{page}.py" for page in ("monitoring", "nodes", "tutorial")),
    "tests/webhook/cluster/test_calls.py",
)
_OWN_STACK = "tests/story/cluster/test_demo.py"
_ONE_RELEASE = "tests/packaging/process/"  # one worker makes it

_LEAST_NICENESS = 5  # of what computes: what waits for a cluster goes first


def file_of(nodeid: str) -> str:
    """The file of a test."""
    return nodeid.partition("::")[0]


def lane_of(file: str) -> str:
    """The lane of a file of tests."""
    if file.startswith(_NODE_OR_BROWSER):
        return NODE
    if file.startswith(_SHARED_STACK):
        return STACK
    if file.startswith(_STORIES) and file != _OWN_STACK:
        return STORIES
    return PLANE if "/cluster/" in file else COMPUTE


def unit_of(nodeid: str) -> str:
    """What one worker runs without a break, of which this test is a part."""
    return _ONE_RELEASE if nodeid.startswith(_ONE_RELEASE) else file_of(nodeid)


def next_unit(waiting: Iterable[str], lanes: Mapping[Any, str], worker: Any) -> tuple[str, str] | None:
    """The unit that a worker takes of those that wait, and the lane in which it is from then on; None:
    another worker runs the lane of each. ``lanes``: in which lane each worker is. It stays in its lane while
    that has units; then it takes the first lane that no worker is in; else it computes, or helps with bare
    control planes, of which a machine has room for more than one."""
    first = {lane_of(unit): unit for unit in reversed(list(waiting))}
    taken = {lane for other, lane in lanes.items() if other is not worker}
    own = lanes.get(worker, COMPUTE)
    wished = (
        *([] if own == COMPUTE else [own]),
        *(lane for lane in LANES if lane not in taken),
        COMPUTE,
        PLANE,
    )
    return next(((first[lane], lane) for lane in wished if lane in first), None)


class Lanes(LoadScopeScheduling):
    """Gives each worker units of its lane."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._lanes: dict[WorkerController, str] = {}
        self._places: dict[WorkerController, dict[str, int]] = {}
        self._touched: Touched | None = config.pluginmanager.get_plugin(NAME)

    def remove_node(self, node: WorkerController) -> str | None:
        """Its lane is free again."""
        self._lanes.pop(node, None)
        return super().remove_node(node)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._touched is not None and self._touched.is_over():
            self._touched.left += self.workqueue
            self.workqueue.clear()
        chosen = next_unit(self.workqueue, self._lanes, node)
        if chosen is None:
            node.shutdown()
            return
        unit, self._lanes[node] = chosen
        tests = self.assigned_work.setdefault(node, {})[unit] = self.workqueue.pop(unit)
        places = self._places.setdefault(
            node, {nodeid: place for place, nodeid in enumerate(self.registered_collections[node])}
        )
        node.send_runtest_some([places[nodeid] for nodeid, is_done in tests.items() if not is_done])


def give_way(nodeid: str) -> None:
    """A worker that begins to compute leaves the processors to those that wait for a cluster."""
    if "PYTEST_XDIST_WORKER" in os.environ and lane_of(file_of(nodeid)) == COMPUTE:
        os.nice(max(0, _LEAST_NICENESS - os.nice(0)))
