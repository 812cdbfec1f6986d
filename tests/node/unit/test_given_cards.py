"""Where a device plugin picks the cards, use, health and shares are of the cards that it gave, whatever a
placement says."""

import json
from pathlib import Path

import pytest

from sidecar.node.agent import Agent, AgentPorts
from sidecar.node.kube.api import ApiAnswer
from sidecar.node.nvml.cards import NVIDIA
from sidecar.node.run import NodeChanged, PodsChanged, _handle
from sidecar.node.settings import read
from sidecar.node.state import node_patch
from sidecar.node.state.api_objects import DESCRIPTIONS, NodePods, read_node
from sidecar.node.state.overuse import AgentEvent
from sidecar.node.usage_tasks import UsageTasks
from sidecar.node.values import CardFailed, CardLoad, DeviceReading, GPUProcess, PodState
from tests.node.worlds import MEMORY_MIB, card, look, node
from timekeeper.core.dialects import DIALECTS

BOOT = "boot-1"
STEP_MS = 5_000
A, B, C = card("GPU-a"), card("GPU-b", index=1), card("GPU-c", index=2)
MIG = card("MIG-1", index=3, memory_mib=9_856, mig="1g.10gb")
GPU = "nvidia.com/gpu"


def uid(name: str) -> str:
    return f"{ord(name[0]):08}-0000-4000-8000-000000000000"


def pod(name: str, *cards: str, containers: tuple[tuple[str, tuple[str, ...]], ...] = ()) -> PodState:
    """A pod with a placement on these cards, or on those of its containers."""
    placed = containers or ((("main", cards),) if cards else ())
    uuids = tuple(uuid for _, those in placed for uuid in those)
    return PodState(uid(name), "team-a", name, uuids, False, placed)


class Posted:
    """What happens about pods."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def post(self, event: AgentEvent) -> None:
        self.events.append(event)


class World:
    """A node of NVIDIA's device plugin, and its agent. The process ``pid`` runs in the pod of each name."""

    def __init__(self, folder: Path, *pods: PodState, socket: str = "") -> None:
        flags = [f"--proc={folder}/proc", f"--cgroups={folder}/cgroup", "--api-url=https://127.0.0.1:1"]
        self._settings = read(["--node-name=n1", f"--pod-resources={socket or folder / 'none'}", *flags], {})
        self._folder, self._now_ms, self._pods = folder, 1_000_000, pods
        self.pids = {each.name: number for number, each in enumerate(pods, 11)}
        for name, pid in self.pids.items():
            self._runs(name, pid)

    def starts(
        self, told: dict[str, list[str]] | None = None, resource: str = GPU, is_described: bool = False
    ) -> "World":
        """An agent starts, on a node with what another one told of its holders, by the names of pods."""
        holders = {"version": 1, "boot": BOOT, "known": True, "closed": ""}
        holders["pods"] = {uid(name): cards for name, cards in (told or {}).items()}
        self.posted = Posted()
        ports = AgentPorts(lambda _: ApiAnswer(200, {}, ""), self.posted.post, lambda *_, **__: None)
        self.agent = Agent(ports, BOOT, STEP_MS, self._now_ms, vendor=NVIDIA)
        self.tasks = UsageTasks(self._settings, self.agent, None, self.posted, BOOT)  # type: ignore[arg-type]
        shares = tuple((each.uid, tuple((uuid, MEMORY_MIB) for uuid in each.cards)) for each in self._pods)
        self._hears(PodsChanged(NodePods(self._pods, shares)))
        self._hears(
            NodeChanged(
                node(
                    holders=None if told is None else json.dumps(holders),
                    capacity={resource: "2"},
                    is_described=is_described,
                )
            )
        )
        return self

    def looks(self, *busy: tuple[str, str]) -> dict[str, list[tuple[str, int | None]]]:
        """After a look at processes of pods on cards: the cards of each pod with figures, in per cent."""
        self.reads(
            look(
                *(A, B, C, MIG),
                processes=tuple(GPUProcess(self.pids[name], uuid, 100, 95) for name, uuid in busy),
                loads=tuple(CardLoad(each.uuid, 0, 0) for each in (A, B, C, MIG)),
            )
        )
        names = {uid(name): name for name in self.pids}
        return {
            names[each.uid]: [(load.uuid, load.utilisation) for load in each.cards]
            for each in self.tasks._usage.pods
        }

    def reads(self, reading: DeviceReading) -> None:
        self._now_ms += STEP_MS
        self.agent.on_reading(reading, self._now_ms)
        self.tasks.on_reading(reading, self._now_ms)
        self.agent.tick(self._now_ms)

    def breaks(self, *uuids: str) -> list[tuple[str, str]]:
        """Names and notes of the pods that are told of these broken cards."""
        self.agent.on_card_failed(CardFailed(uuids, "XID 79"), self._now_ms)
        return [(each.name, each.note) for each in self.posted.events if each.reason == "GPUUnhealthy"]

    def _hears(self, event: object) -> None:
        _handle(event, self.agent, self.tasks, None)

    def _runs(self, name: str, pid: int) -> None:
        place = self._folder / "cgroup" / "kubepods" / f"pod{uid(name)}" / ("c" * 64)
        place.mkdir(parents=True)
        (place / "cgroup.procs").write_text(f"{pid}\n")
        (self._folder / "proc" / str(pid)).mkdir(parents=True)
        (self._folder / "proc" / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid(name)}/{'c' * 64}\n")


def test_use_is_of_the_card_that_the_plugin_gave(tmp_path: Path) -> None:
    world = World(tmp_path, pod("train", "GPU-a"), pod("rest", "GPU-b")).starts(
        {"train": ["GPU-b"], "rest": ["GPU-a"]}
    )

    assert world.looks(("train", "GPU-b")) == {"train": [("GPU-b", 95)], "rest": [("GPU-a", 0)]}
    labels = f'namespace="team-a",pod="train",uid="{uid("train")}",uuid="GPU-b"'
    assert f"bursar_pod_gpu_utilization_ratio{{{labels}}} 0.95" in world.tasks.page()
    assert f"bursar_pod_gpu_memory_share_bytes{{{labels}}} {MEMORY_MIB << 20}" in world.tasks.page()


def test_a_pod_whose_card_is_not_known_has_no_figures(tmp_path: Path) -> None:
    """Its kubelet does not answer; what it uses is no use of the placement's card."""
    pods = pod("train", "GPU-a"), pod("known", "GPU-b")
    world = World(tmp_path, *pods).starts({"known": ["GPU-c"]})

    assert world.looks(("train", "GPU-b")) == {"known": [("GPU-c", 0)]}
    assert world.starts(None).looks(("train", "GPU-b")) == {}


def test_before_the_node_is_seen_no_card_is_known(tmp_path: Path) -> None:
    world = World(tmp_path, pod("train", "GPU-a")).starts({"train": ["GPU-b"]})
    world.agent.node = None

    assert world.looks(("train", "GPU-b")) == {}


def test_a_pod_without_a_placement_is_in_the_cards_figures_alone(tmp_path: Path) -> None:
    world = World(tmp_path, pod("train", "GPU-a"), pod("metered")).starts(
        {"train": ["GPU-a"], "metered": ["GPU-b"]}
    )

    assert world.looks(("metered", "GPU-b")) == {"train": [("GPU-a", 0)]}


def test_the_pod_on_a_broken_card_is_warned_and_the_one_placed_there_is_not(tmp_path: Path) -> None:
    pods = pod("train", "GPU-a"), pod("rest", "GPU-b"), pod("metered"), pod("unknown", "GPU-b")
    world = World(tmp_path, *pods).starts({"train": ["GPU-b"], "rest": ["GPU-a"], "metered": ["GPU-b"]})
    world.looks()

    note = "card GPU-b of this pod is not healthy: XID 79"
    assert world.breaks("GPU-b") == [("train", note), ("metered", note)]


def test_before_the_cards_are_known_nobody_is_warned(tmp_path: Path) -> None:
    world = World(tmp_path, pod("train", "GPU-a")).starts(None)
    ill = card("GPU-a", healthy=False, fault="XID 79")
    world.reads(look(ill, B))

    assert world.posted.events == []


def test_a_container_is_named_where_it_alone_was_placed(tmp_path: Path) -> None:
    two = pod("two", containers=(("main", ("GPU-b",)), ("aux", ("GPU-c",))))
    world = World(tmp_path, pod("one", "GPU-b"), two).starts({"one": ["GPU-a"], "two": ["GPU-b", "GPU-c"]})
    world.looks(("one", "GPU-a"), ("two", "GPU-b"))

    named = [line for line in world.tasks.page().splitlines() if line.startswith("bursar_container_gpu_util")]
    assert [(line.count('pod="one"'), line.count('container="main"')) for line in named] == [(1, 1), (0, 0)]


def test_an_instance_has_a_share_of_its_own_size_and_no_overuse_within_it(tmp_path: Path) -> None:
    world = World(tmp_path, pod("train", "GPU-a")).starts({"train": ["MIG-1"]}, "nvidia.com/mig-1g.10gb")
    world.looks(("train", "MIG-1"))

    assert f'uuid="MIG-1"}} {9_856 << 20}' in world.tasks.page()
    assert "bursar_pod_gpu_memory_over_bytes" not in world.tasks.page()


def test_pods_on_replicas_of_one_card_have_each_their_own_use_and_are_warned_together(tmp_path: Path) -> None:
    world = World(tmp_path, pod("one", "GPU-a"), pod("two", "GPU-c")).starts(
        {"one": ["GPU-b"], "two": ["GPU-b"]}, "nvidia.com/gpu.shared"
    )

    assert world.looks(("one", "GPU-b")) == {"one": [("GPU-b", 95)], "two": [("GPU-b", 0)]}
    assert [name for name, _ in world.breaks("GPU-b")] == ["one", "two"]


def test_a_missing_card_stays_while_a_pod_may_have_it(tmp_path: Path) -> None:
    """After MIG was divided anew: instances that nobody has leave the inventory."""

    def left(told: dict[str, list[str]] | None, folder: str) -> list[str]:
        (tmp_path / folder).mkdir()
        world = World(tmp_path / folder, pod("train", "GPU-a"), pod("metered")).starts(told)
        world.reads(look(A, B, MIG))
        world.reads(look(A, B))
        return [each.uuid for each in world.agent.cards if each.mig]

    assert left({"train": ["GPU-b"]}, "1") == []
    assert (
        left({"train": ["MIG-1"]}, "2") == left({"train": ["GPU-b"], "metered": ["MIG-1"]}, "3") == ["MIG-1"]
    )
    assert left({}, "4") == left(None, "5") == ["MIG-1"], "it may be on any"

    ports = AgentPorts(lambda _: ApiAnswer(200, {}, ""), lambda _: None, lambda *_, **__: None)
    anew = Agent(ports, BOOT, STEP_MS, 0, vendor=NVIDIA)
    anew.on_node(node(node_patch.inventory((A, MIG)), capacity={GPU: "1"}), 0)
    anew.pods = (pod("metered"),)
    anew.on_reading(look(A), 1)
    assert [each.uuid for each in anew.cards] == ["GPU-a", "MIG-1"], "nobody has asked the kubelet yet"


@pytest.mark.parametrize("described", [False, True])
def test_where_no_plugin_picks_the_placement_counts(tmp_path: Path, described: bool) -> None:
    """HAMi's plugin gives the cards of a pod's annotation, whatever the kubelet lists."""
    world = World(tmp_path, pod("train", "GPU-a")).starts(
        None, GPU if described else "bursar.dev/gpu-percent", described
    )

    assert world.looks(("train", "GPU-a")) == {"train": [("GPU-a", 95)]}
    assert world.breaks("GPU-a") == [("train", "card GPU-a of this pod is not healthy: XID 79")]


def test_a_node_is_described_by_the_annotations_of_plugins_that_offer_nvidias_resource() -> None:
    assert set(DESCRIPTIONS) == {
        each.node_annotation for each in DIALECTS if each.node_annotation and GPU in each.shared
    }
    raw = {"metadata": {"uid": "n", "resourceVersion": "1", "name": "n1"}}
    described = {**raw, "metadata": {**raw["metadata"], "annotations": {DESCRIPTIONS[0]: ""}}}
    assert (read_node(raw).is_described, read_node(described).is_described) == (False, True)
