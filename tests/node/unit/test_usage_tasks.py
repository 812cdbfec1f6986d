"""What is done with a look, by what was heard of the node's pods."""

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.node.agent import Agent, AgentPorts
from sidecar.node.kube.api import ApiAnswer
from sidecar.node.run import NodeChanged, PodsChanged, PodsUnknown, _follow_pods, _handle
from sidecar.node.settings import read
from sidecar.node.state.api_objects import NodePods
from sidecar.node.usage_tasks import UsageTasks
from sidecar.node.values import GPUProcess
from tests.node.worlds import card, look, node
from timekeeper.edge.reflector import UnreachableError
from timekeeper.edge.source_health import SourceHealth

BOOT = "boot-1"
STEP_MS = 5_000
GPU = card("GPU-a")


class World:
    """A node of folders, whose agent looks every five seconds."""

    def __init__(self, folder: Path) -> None:
        flags = [f"--proc={folder}/proc", f"--cgroups={folder}/cgroup", "--api-url=https://127.0.0.1:1"]
        settings = read(["--node-name=n1", *flags], {})
        self.folder, self.now_ms = folder, 1_000_000
        (folder / "cgroup").mkdir()
        ports = AgentPorts(lambda _: ApiAnswer(200, {}, ""), lambda _: None, lambda *_, **__: None)
        self.agent = Agent(ports, BOOT, STEP_MS, self.now_ms)
        self.duties = UsageTasks(settings, self.agent, None, lambda _: None, BOOT)
        self.hears(NodeChanged(node(boot=BOOT)))

    def hears(self, event: object) -> None:
        _handle(event, self.agent, self.duties, None)

    def runs(self, uid: str, pid: int) -> None:
        """The process runs in the pod of this UID."""
        uid = f"{uid:0>8}-0000-4000-8000-000000000000"
        place = self.folder / "cgroup" / "kubepods" / f"pod{uid}" / ("c" * 64)
        place.mkdir(parents=True)
        (place / "cgroup.procs").write_text(f"{pid}\n")
        (self.folder / "proc" / str(pid)).mkdir(parents=True)
        (self.folder / "proc" / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/{'c' * 64}\n")

    def looks(self, *pids: int) -> dict[str, Any]:
        """What is told of holders after a look that shows these processes on the card."""
        self.now_ms += STEP_MS
        seen = look(GPU, processes=tuple(GPUProcess(pid, GPU.uuid, 100, 5) for pid in pids))
        self.agent.on_reading(seen, self.now_ms)
        self.duties.on_reading(seen, self.now_ms)
        told: dict[str, Any] = json.loads(self.agent.holders or "null")
        return told


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_while_pods_cannot_be_followed_a_pod_bound_since_is_no_stranger(world: World) -> None:
    world.runs("1", 11)
    world.hears(PodsChanged(NodePods((), ())))
    world.hears(PodsUnknown())
    blind = [world.looks(11)["closed"] for _ in range(3)]
    world.hears(PodsChanged(NodePods((), ())))
    seeing = [world.looks(11)["closed"] for _ in range(2)]

    assert blind == [""] * 3
    assert seeing[0] == ""
    assert "GPU-a" in seeing[1], "it is one where they are followed"


class Over(BaseException):
    """The server's script is at its end."""


class Away:
    """Cannot be reached once."""

    def __init__(self) -> None:
        self.asked = 0

    def stream(self, *_: object) -> ApiAnswer:
        self.asked += 1
        if self.asked > 1:
            raise Over
        raise UnreachableError("away")


class Heard:
    """What came into the inbox."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def put(self, event: object) -> None:
        self.events.append(event)


def test_a_list_that_fails_is_reported_to_the_judgement(capfd: pytest.CaptureFixture[str]) -> None:
    heard, health = Heard(), SourceHealth("pods", lambda *_, **__: None, lambda: 0)
    with pytest.raises(Over):
        _follow_pods(Away(), "n1", heard, None, health)  # type: ignore[arg-type]

    assert heard.events == [PodsUnknown()]
    assert "event=not-followed" in capfd.readouterr().err
