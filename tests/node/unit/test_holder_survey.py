"""Who really holds what, on a node made of folders: its /proc, its cgroups, its kubelet's socket."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sidecar.node.holder_survey import RUNTIME_AGAIN_MS, HolderSurvey, SurveyPaths
from sidecar.node.host import cgroups
from sidecar.node.kube.api import ApiAnswer
from sidecar.node.nvml.cards import NVIDIA
from sidecar.node.state.overuse import AgentEvent
from sidecar.node.values import DeviceReading, GPUProcess, NodeState, PodState, Vendor

BOOT = "5f1c7f0e-7f86-4b1e-9d57-1d6a3f0a8a11"
TRAIN, WEB = "5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8", "b4e8e0dc-caf3-4a43-bf50-f84ef5ef7a8f"
ID = "c8b38413c88eefe063b8cd3f01c16be5e3bda9693a19a68a88807baca9feb937"
CARDS = frozenset({"GPU-1", "GPU-2"})
GPU = "nvidia.com/gpu"
CONTAINERD = """
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'nvidia'
"""


@dataclass
class World:
    """A node with two pods, train (which has GPU-1) and web, and its agent."""

    folder: Path
    resources: tuple[tuple[str, str], ...] = ()
    socket: str = ""
    closes: bool = True
    is_described: bool = False
    vendor: Vendor = NVIDIA
    slices: Callable[[], ApiAnswer] | None = None
    pods: tuple[PodState, ...] | None = None
    processes: tuple[GPUProcess, ...] = ()
    error: str = ""
    said: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.pods = (pod(TRAIN, "train", "GPU-1"), pod(WEB, "web"))
        for number, uid in enumerate((TRAIN, WEB), 1):
            self.runs(uid, number)
        self.agent = self.starts(None)

    def runs(self, uid: str, pid: int) -> None:
        """The process runs in the pod; 0: none does."""
        place = self.folder / "cgroup" / "cpu" / "kubepods" / f"pod{uid}" / ID
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text(f"{pid}\n" if pid else "")
        self._process(pid, f"0::/kubepods/pod{uid}/{ID}\n", "python3")

    def runs_beside(self, pid: int, program: str) -> None:
        """The process runs in no pod."""
        self._process(pid, "0::/system.slice/ssh.service\n", program)

    def starts(self, annotation: str | None, boot: str = BOOT) -> HolderSurvey:
        """The agent starts, with this annotation on the node."""
        places = SurveyPaths(
            str(self.folder / "proc"),
            str(self.folder / "cgroup"),
            self.socket,
            (str(self.folder / "config.toml"),),
            self.closes,
            frozenset({"kube-system"}),
            self.vendor,
        )
        self.agent = HolderSurvey(
            places, boot, lambda event, **pairs: self.said.append((event, pairs)), self.tell, self.slices
        )
        resources = self.resources
        self.agent.on_node(
            NodeState("n", "1", boot, None, annotation, resources, resources, None, self.is_described)
        )
        return self.agent

    def tell(self, notice: AgentEvent) -> None:
        self.events.append(notice)

    def look(self, after_ms: int = 5_000) -> dict[str, Any]:
        """What is told after the next look."""
        self.now_ms += after_ms
        seats = cgroups.owners(self.folder / "proc", [each.pid for each in self.processes])
        look = DeviceReading((), (), (), (), self.processes, (), (), self.error)
        told: dict[str, Any] = json.loads(
            self.agent.survey(look, seats, self.pods, CARDS, self.now_ms) or "null"
        )
        return told

    def _process(self, pid: int, cgroup: str, program: str) -> None:
        if pid:
            place = self.folder / "proc" / str(pid)
            place.mkdir(parents=True, exist_ok=True)
            (place / "cgroup").write_text(cgroup)
            (place / "comm").write_text(f"{program}\n")


def pod(uid: str, name: str, *cards: str) -> PodState:
    return PodState(uid, "team-a", name, cards, False, (("main", cards),) if cards else ())


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "config.toml").write_text("version = 3\n")
    return World(tmp_path)


def test_the_pods_on_the_cards_are_reported(world: World) -> None:
    assert world.look() == {
        "version": 1,
        "boot": BOOT,
        "known": True,
        "pods": {TRAIN: ["GPU-1"]},
        "closed": "",
    }
    assert world.said == []


def test_nothing_is_reported_before_the_node_was_seen(world: World) -> None:
    places = SurveyPaths("", "", "", (), True, frozenset(), NVIDIA)
    agent = HolderSurvey(places, BOOT, lambda event, **pairs: None, world.tell)

    assert agent.survey(DeviceReading((), (), (), (), (), (), (), ""), {}, (), CARDS, 0) is None
    assert "bursar_node_holders_known 0" in agent.page()


def test_a_pod_deleted_by_force_is_reported_until_its_last_process_has_ended(world: World) -> None:
    world.look()
    world.pods = (pod(WEB, "web"),)
    forced = world.look()
    world.starts(json.dumps(forced))
    after_a_restart = world.look()
    world.runs(TRAIN, 0)

    assert forced["pods"] == after_a_restart["pods"] == {TRAIN: ["GPU-1"]}
    assert world.look()["pods"] == {}


def test_unreadable_cgroups_are_logged_once_and_remove_no_holder(world: World) -> None:
    world.look()
    (world.folder / "cgroup").rename(world.folder / "away")
    told = [world.look(), world.look()]
    (world.folder / "away").rename(world.folder / "cgroup")
    world.look()

    assert [each["pods"] for each in told] == [{TRAIN: ["GPU-1"]}] * 2
    assert [(event, pairs["what"]) for event, pairs in world.said] == [
        ("not-seen", "cgroups"),
        ("seen-again", "cgroups"),
    ]


def test_a_stranger_closes_the_node_gets_an_event_and_is_counted(world: World) -> None:
    world.processes = (GPUProcess(1, "GPU-1", 100, 5), GPUProcess(2, "GPU-1", 100, 5))
    first, second, third = world.look(), world.look(), world.look()

    why = "pod team-a/web uses card GPU-1, which is not allocated to it"
    assert [each["closed"] for each in (first, second, third)] == ["", why, why]
    assert world.events == [AgentEvent(WEB, "team-a", "web", "Warning", "GPUStranger", why)]
    assert [event for event, _ in world.said] == ["stranger"]
    labels = f'uuid="GPU-1",namespace="team-a",pod="web",uid="{WEB}"'
    assert f"bursar_node_stranger{{{labels}}} 1" in world.agent.page()
    assert "bursar_node_closed 1" in world.agent.page()


def test_the_node_opens_a_minute_after_the_stranger_was_seen_last(world: World) -> None:
    world.runs_beside(9, "python3")
    world.processes = (GPUProcess(9, "GPU-2", 100, 5),)
    world.look()
    closed = world.look()
    world.processes = ()

    assert closed["closed"] == "a process outside of pods (python3) uses card GPU-2"
    assert world.look(after_ms=59_999)["closed"]
    assert world.look(after_ms=1)["closed"] == ""


def test_where_strangers_do_not_close_the_node_they_are_reported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONTAINERD)
    world = World(tmp_path, closes=False)
    world.processes = (GPUProcess(2, "GPU-1", 100, 5),)
    world.look()

    assert world.look()["closed"] == ""
    assert [notice.reason for notice in world.events] == ["GPURuntimeOpen", "GPUStranger"]
    assert "bursar_node_closed 0" in world.agent.page()


def test_while_nvml_is_silent_no_pod_is_judged_and_the_node_stays_as_it_is(world: World) -> None:
    world.processes = (GPUProcess(2, "GPU-1", 100, 5),)
    world.look()
    closed = world.look()["closed"]
    world.error = "the driver is gone"
    world.processes = ()

    assert world.look(after_ms=3_600_000)["closed"] == closed != ""


def test_processes_whose_names_cannot_be_read_are_not_judged(world: World) -> None:
    world.runs_beside(9, "python3")
    (world.folder / "proc" / "9" / "comm").unlink()
    (world.folder / "proc" / "9" / "comm").mkdir()
    world.processes = (GPUProcess(9, "GPU-2", 100, 5),)
    world.look()

    assert world.look()["closed"] == ""
    assert world.said == [
        (
            "not-seen",
            {"level": "warning", "what": "processes", "reason": f"{world.folder}/proc: Is a directory"},
        )
    ]


def test_an_agent_that_starts_anew_opens_no_node_that_has_a_stranger(world: World) -> None:
    world.processes = (GPUProcess(2, "GPU-1", 100, 5),)
    world.look()
    closed = world.look()
    world.error = "NVML starts"
    world.starts(json.dumps(closed))
    blind = world.look()
    world.error = ""

    assert blind["closed"] == closed["closed"]
    assert world.look()["closed"] == closed["closed"]


def test_an_agent_that_starts_anew_opens_a_node_whose_stranger_has_gone(world: World) -> None:
    world.starts(json.dumps({"version": 1, "boot": BOOT, "known": True, "pods": {}, "closed": "someone"}))

    assert world.look()["closed"] == ""


def test_a_runtime_that_hands_out_all_cards_closes_the_node_until_it_is_mended(world: World) -> None:
    (world.folder / "config.toml").write_text(CONTAINERD)
    closed = world.look()["closed"]
    world.look(after_ms=RUNTIME_AGAIN_MS)
    (world.folder / "config.toml").write_text("version = 3\n")
    still = world.look(after_ms=RUNTIME_AGAIN_MS - 1)["closed"]

    assert closed == still
    assert "containerd (nvidia)" in closed
    assert world.look(after_ms=1)["closed"] == ""
    assert world.events == [AgentEvent("", "", "", "Warning", "GPURuntimeOpen", closed)]


def test_a_configuration_that_cannot_be_read_is_reported(world: World) -> None:
    (world.folder / "config.toml").unlink()
    world.look()

    assert world.said[0][1]["what"] == "runtime-configs"
    assert world.look()["closed"] == ""


def test_programs_of_the_cards_vendor_are_no_strangers_and_those_of_others_are(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    world = World(tmp_path, vendor=Vendor((), frozenset({"acme-daemon"})))
    world.runs_beside(7, "acme-daemon")
    world.runs_beside(8, "nvidia-cuda-mps")
    world.processes = GPUProcess(7, "GPU-1", 100, 5), GPUProcess(8, "GPU-2", 100, 5)
    world.look()

    assert world.look()["closed"] == "a process outside of pods (nvidia-cuda-mps) uses card GPU-2"


def test_only_the_plugin_of_the_cards_vendor_picks_them(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    acme = Vendor(("acme.example/card",), frozenset())

    other, own = (
        World(tmp_path, ((resource, "2"),), str(tmp_path / "absent.sock"), vendor=acme)
        for resource in (GPU, "acme.example/card.shared")
    )

    assert (other.look()["pods"], own.look()["pods"]) == ({TRAIN: ["GPU-1"]}, {})
