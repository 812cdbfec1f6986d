"""Cards of another vendor, by a reader that another package ships, on a real API server."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from tests.deploy.reading import AGENTS
from tests.node.cluster.test_on_api_server import CAPACITY, Agent, World, world
from tests.node.podresources_server import serving
from tests.sidecar.worlds import ROOT
from tests.support.waiting import eventually

__all__ = ["world"]

# Reads the file named by ACME: cards, UUID -> [fault, utilisation, MiB used]; processes, [PID, UUID, MiB, %].
# The cards in the file beside it fail at once, without a look.
MODULE = """
import json, os, pathlib, time
from sidecar.node.values import CardFailed, CardLoad, DeviceReading, GPUProcess, NodeCard, Vendor

class Reader:
    vendor = Vendor(("acme.example/card",), frozenset({"acme-daemon"}))
    waits = True

    def __init__(self, clock):
        self.file = pathlib.Path(os.environ["ACME"])
        self.failed, self.burnt = self.file.with_name("failed"), ()

    def look(self):
        said = json.loads(self.file.read_text())
        cards, loads = [], []
        for index, (uuid, (fault, percent, used)) in enumerate(said["cards"].items()):
            cards.append(NodeCard(uuid, index, "Acme X1", 32768, not fault, fault, 0, None, None, ()))
            loads.append(CardLoad(uuid, percent, used))
        at_rest = tuple(card.uuid for card in cards if card.healthy and card.uuid not in self.burnt)
        processes = tuple(GPUProcess(*each) for each in said.get("processes", []))
        return DeviceReading(tuple(cards), (), (), at_rest, processes, tuple(loads), (), "")

    def wait(self, most_ms):
        until = time.monotonic() + most_ms / 1000
        while time.monotonic() < until:
            if self.failed.exists():
                self.burnt = tuple(self.failed.read_text().split())
                self.failed.unlink()
                return CardFailed(self.burnt, "it burns")
            time.sleep(0.05)

class Plain:
    waits = False

    def __init__(self, clock):
        self.look, self.wait = Reader(clock).look, None

class Odd(Plain):
    vendor = "acme"
"""
ID = "c8b38413c88eefe063b8cd3f01c16be5e3bda9693a19a68a88807baca9feb937"
PODS = f"/api/v1/namespaces/{AGENTS}/pods"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with an installed package."""
    folder = tmp_path / "installed"
    described = folder / "acme_cards-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / "acme_cards.py").write_text(MODULE)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-cards\nVersion: 1.0\n")
    points = {"acme": "Reader", "plain": "Plain", "odd": "Odd", "broken": "Absent"}
    lines = [f"{name} = acme_cards:{each}" for name, each in points.items()]
    (described / "entry_points.txt").write_text("\n".join(["[bursar.devices]", *lines]))
    return folder


class Acme:
    """A node with two cards of Acme's, its pods' processes, and its agent."""

    def __init__(self, world: World, package: Path, name: str, **flags: str) -> None:
        self.world, self.name, self.folder = world, name, package.parent
        self.file = self.folder / "cards.json"
        self.processes: list[list[object]] = []
        self.cards("", "")
        flags = {"devices": "acme", "proc": str(self.folder / "proc"), **flags}
        self.agent = Agent(world, self.folder, name, "", **flags)
        self.agent.environ |= {"PYTHONPATH": str(package), "ACME": str(self.file)}

    def __enter__(self) -> "Acme":
        self.agent.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.agent.kill()

    def cards(self, *faults: str) -> None:
        """The cards A-0, A-1 ... with these faults; the first one is used."""
        them = {f"A-{at}": [fault, 0 if at else 70, 0 if at else 1000] for at, fault in enumerate(faults)}
        self._tell({"cards": them, "processes": self.processes})

    def runs(self, pid: int, card: str, pod: str, program: str = "python3") -> None:
        """The process is in the pod of this UID, or in none, and uses 600 MiB and 40 % of the card."""
        self.processes.append([pid, card, 600, 40])
        path = f"kubepods/pod{pod}/{ID}" if pod else "system.slice/x.service"
        there = self.folder / "proc" / str(pid)
        there.mkdir(parents=True)
        (there / "cgroup").write_text(f"0::/{path}\n")
        (there / "comm").write_text(program[:15])
        if pod:
            self.has_processes(pod, str(pid))
        self.cards("", "")

    def has_processes(self, pod: str, pids: str) -> None:
        """What the kernel says of a pod's cgroup."""
        place = self.folder / "cgroup" / "kubepods" / f"pod{pod}" / ID
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text(pids)

    def pod(self, name: str, *cards: str, namespace: str = AGENTS) -> str:
        """A pod on the node, with these cards by a Binding; its UID."""
        slices = [{"uuid": card, "index": 0, "share_milli": 500, "memory_mib": 500} for card in cards]
        devices = json.dumps({"version": 1, "containers": {"main": slices}})
        metadata = {"name": name, "annotations": {"bursar.dev/devices": devices} if cards else {}}
        spec = {"nodeName": self.name, "containers": [{"name": "main", "image": "example"}]}
        path = f"/api/v1/namespaces/{namespace}/pods"
        made = self.world.call("POST", path, {"metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def holders(self) -> dict[str, Any]:
        """The annotation."""
        text = self.world.node(self.name)["metadata"]["annotations"].get("bursar.dev/holders", "{}")
        return dict(json.loads(text))

    def _tell(self, whole: dict[str, Any]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(whole))
        new.replace(self.file)


def test_cards_of_another_vendor_are_advertised_with_health_and_use(world: World, package: Path) -> None:
    world.make_node("acme")
    with Acme(world, package, "acme") as acme:
        agent = acme.agent
        eventually(lambda: agent.healthy() == {"A-0": True, "A-1": True})
        assert agent.capacity() == CAPACITY | {"bursar.dev/gpu-memory": "65536"}
        used = re.compile(r'^DCGM_FI_DEV_GPU_UTIL\{gpu="0",UUID="A-0",.*\} 70$', re.MULTILINE)
        eventually(lambda: used.search(agent.metrics()))

        acme.cards("it is hot", "")
        eventually(lambda: agent.healthy() == {"A-0": False, "A-1": True})
        acme.file.write_text("no JSON")
        eventually(lambda: agent.healthy() == {"A-0": False, "A-1": False})
        assert "JSONDecodeError" in agent.log.read_text()
        acme.cards("", "")
        eventually(lambda: agent.healthy() == {"A-0": True, "A-1": True})
        assert agent.stop() == 0


def test_an_event_of_the_reader_reaches_the_inventory_before_the_next_look(
    world: World, package: Path
) -> None:
    world.make_node("acme-event")
    with Acme(world, package, "acme-event", look_every="10s") as acme:
        eventually(lambda: acme.agent.healthy() == {"A-0": True, "A-1": True})

        (acme.folder / "burning").write_text("A-1")
        (acme.folder / "burning").rename(acme.folder / "failed")

        eventually(lambda: acme.agent.healthy() == {"A-0": True, "A-1": False})
        assert 'reason="it burns"' in acme.agent.log.read_text()


def test_processes_of_the_reader_are_the_use_of_pods_and_show_cards_that_a_pod_was_not_given(
    world: World, package: Path
) -> None:
    world.make_node("acme-pods")
    with Acme(world, package, "acme-pods") as acme:
        train, web = acme.pod("train", "A-0"), acme.pod("acme-web", namespace="default")
        acme.runs(11, "A-0", train)
        acme.runs(12, "A-1", "", program="acme-daemon")

        eventually(lambda: acme.holders().get("pods") == {train: ["A-0"]})
        used = re.compile(r'^bursar_pod_gpu_memory_used_bytes\{.*pod="train".*\} 629145600$', re.MULTILINE)
        eventually(lambda: used.search(acme.agent.metrics()))
        assert (acme.holders()["known"], acme.holders()["closed"]) == (True, "")

        acme.runs(13, "A-1", web)
        closed = "pod default/acme-web uses card A-1, which is not allocated to it"
        eventually(lambda: acme.holders()["closed"] == closed)
        world.call("DELETE", f"{PODS}/train?gracePeriodSeconds=0")
        acme.has_processes(train, "11\n")
        assert acme.holders()["pods"] == {train: ["A-0"]}, "its process runs on"
        acme.has_processes(train, "")
        eventually(lambda: acme.holders()["pods"] == {})


def test_where_the_vendors_plugin_picks_the_cards_the_kubelet_tells_the_holders(
    world: World, package: Path
) -> None:
    world.make_node("acme-plugin", capacity={"acme.example/card": "2", "acme.example/cable": "9"})
    with (
        serving(package.parent) as kubelet,
        Acme(world, package, "acme-plugin", pod_resources=kubelet.socket) as acme,
    ):
        pod = acme.pod("picked", "A-0")
        acme.has_processes(pod, "11\n")
        kubelet.has((AGENTS, "picked", {"acme.example/card": ["A-1"], "acme.example/cable": ["A-9"]}))

        eventually(lambda: acme.holders().get("pods") == {pod: ["A-1"]})
        assert acme.holders()["known"]
        assert acme.agent.healthy() == {"A-0": True, "A-1": True}
        assert acme.agent.capacity() == {}
        assert "not in the inventory" not in acme.agent.log.read_text()
        kubelet.has((AGENTS, "picked", {"acme.example/card": ["A-7"]}))
        said = f"not in the inventory: {AGENTS}/picked has A-7"
        eventually(lambda: said in acme.agent.log.read_text())


def test_a_reader_without_names_of_its_vendor_is_read_all_the_same(world: World, package: Path) -> None:
    world.make_node("acme-plain", capacity={"acme.example/card": "2"})
    with Acme(world, package, "acme-plain", devices="plain") as acme:
        eventually(lambda: acme.agent.healthy() == {"A-0": True, "A-1": True})
        assert acme.agent.capacity() == CAPACITY | {"bursar.dev/gpu-memory": "65536"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("amd", "--devices is 'amd', but must be one of acme, broken, nvml, odd, plain."),
        ("broken", "--devices broken: entry point bursar.devices failed: AttributeError: "),
        (
            "odd",
            "--devices odd: entry point bursar.devices failed: TypeError: vendor is 'acme', but ",
        ),
    ],
)
def test_a_reader_that_cannot_be_used_is_one_sentence(package: Path, name: str, said: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sidecar.node",
            "--node-name=n1",
            "--api-url=https://127.0.0.1:1",
            f"--devices={name}",
        ],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package), "ACME": "cards.json"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )

    assert done.returncode == 2
    assert done.stderr.startswith(f"bursar-node: {said}")
    assert done.stderr.count("\n") == 1
