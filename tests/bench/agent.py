"""What the node agent costs its node, and how soon a card that fails is used no more.

``python -m tests.bench.agent [--seconds S] [--rounds N] [--json FILE]``. A control plane, a real
``python -m sidecar.node`` with its own account's token on 8 cards of the C stand-in for NVML with 64
processes, and a real ``python -m scheduler_ext``. ``rss_mib`` and ``pss_mib`` of the agent, and the part of a
core that it takes at its default interval (``core``, percent; with what the stand-in takes for reading its
file at each call), over S seconds. ``lost_s`` and ``xid_s``: from a card that is lost, or an XID, to the
extender telling that the card is not used; the median and the longest of N rounds.
"""

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deploy.local.cluster import ControlPlane
from tests.bench.command import arguments, write
from tests.bench.sidecar import cpu_s, memory_mib
from tests.deploy.reading import MANIFESTS
from tests.node.cluster.test_on_api_server import Agent, World
from tests.scheduler_ext.processes import Process
from tests.support.shape import installed, shape_of

Json = dict[str, Any]

CARDS, PROCESSES = 8, 64
NODE = "n1"
WITHIN_S = 60.0


def described(*more: str) -> str:
    """The cards and their processes in the stand-in's words, and what is wrong with them."""
    cards = [f"card GPU-{at} 37 1200 81920" for at in range(CARDS)]
    used = [f"process GPU-{at % CARDS} {4_000_000 + at} 512 5" for at in range(PROCESSES)]
    return "\n".join([*cards, *used, *more, ""])


class Bench:
    """The agent of one node, and an extender that follows it."""

    def __init__(self, cp: ControlPlane, folder: Path) -> None:
        done = cp.kubectl("apply", "--server-side", "-f", str(MANIFESTS))
        if done.returncode:
            raise SystemExit(done.stderr)
        world = World(cp)
        world.make_node(NODE)
        self.agent = Agent(world, folder, NODE, described())
        self.agent.command = [each for each in self.agent.command if "look-every" not in each]
        (files := folder / "extender").mkdir()
        self._kubeconfig = f"--kubeconfig={cp.admin_kubeconfig}"
        self._folder, self._seen = files, (folder, cp.folder)

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        """Both as installed, until every card is used; the agent's process."""
        with (
            installed(shape_of("agent"), self.agent.files, *self._seen) as agents,
            installed(shape_of("extender"), self._folder, *self._seen) as extenders,
        ):
            self.agent.command = [*agents.prefix, *self.agent.command]
            self.extender = Process(self._folder, self._kubeconfig, prefix=extenders.prefix)
            self.agent.start()
            self.extender.start()
            try:
                self.extender.ready()
                _until(lambda: self.healthy() == CARDS)
                process = self.agent.process
                assert process is not None
                yield process.pid
            finally:
                self.agent.stop()
                self.extender.kill()

    def healthy(self) -> int:
        """How many cards the extender uses."""
        return int(self.extender.metric("bursar_extender_cards"))

    def seconds(self, faults: str, healthy: int) -> float:
        """Until the extender uses so many cards, from when these faults are there."""
        began_s = time.monotonic()
        self.agent.cards(described(faults))
        _until(lambda: self.healthy() == healthy)
        return time.monotonic() - began_s


def measured(bench: Bench, pid: int, seconds: float, rounds: int) -> Json:
    """All figures."""
    before_s = cpu_s(pid)
    time.sleep(seconds)
    core = 100 * (cpu_s(pid) - before_s) / seconds
    lost, xids = list[float](), list[float]()
    for _ in range(rounds):
        lost.append(bench.seconds("fail nvmlDeviceGetMemoryInfo_v2 GPU_IS_LOST GPU-3", CARDS - 1))
        bench.seconds("", CARDS)
    for at in range(rounds):  # a card stays out after an XID until the driver has been reset
        xids.append(bench.seconds(f"event {at + 1} GPU-{at} 8 79", CARDS - 1 - at))
    memory = memory_mib(pid)
    return {
        "rss_mib": memory["Rss"],
        "pss_mib": memory["Pss"],
        "core": round(core, 2),
        "lost_s": {"median": round(statistics.median(lost), 2), "longest": round(max(lost), 2)},
        "xid_s": {"median": round(statistics.median(xids), 2), "longest": round(max(xids), 2)},
    }


def _until(true: Callable[[], bool]) -> None:
    last = time.monotonic() + WITHIN_S
    while not true():
        if time.monotonic() > last:
            raise SystemExit(f"the card's state did not reach the extender within {WITHIN_S:.0f} s")
        time.sleep(0.02)


def main() -> None:
    """Measure, print, and write what was asked for."""
    given = arguments(__doc__, seconds=(30.0, "at rest"), rounds=(5, "of faults, at most 8"))
    if not 1 <= given.rounds <= CARDS:
        raise SystemExit(f"--rounds must be from 1 to {CARDS}")
    with tempfile.TemporaryDirectory() as folder, ControlPlane() as cp:
        bench = Bench(cp, Path(folder))
        with bench.running() as pid:
            found = measured(bench, pid, given.seconds, given.rounds)
    print(json.dumps(found))
    write(given.json, found)


if __name__ == "__main__":
    main()
