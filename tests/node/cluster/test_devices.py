"""Cards of another vendor, by a reader that another package ships, on a real API server."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.cluster.test_on_api_server import Agent, World, world
from tests.sidecar.worlds import ROOT
from tests.support.waiting import eventually

__all__ = ["world"]

# Reads the cards of the file named by ACME_CARDS: UUID -> [fault, utilisation, MiB used].
MODULE = """
import json, os, pathlib
from sidecar.node.values import CardLoad, DeviceReading, NodeCard

class Reader:
    waits = False

    def __init__(self, clock):
        self.file = pathlib.Path(os.environ["ACME_CARDS"])

    def look(self):
        cards, loads = [], []
        for index, (uuid, (fault, percent, used)) in enumerate(json.loads(self.file.read_text()).items()):
            cards.append(NodeCard(uuid, index, "Acme X1", 32768, not fault, fault, 0, None, None, ()))
            loads.append(CardLoad(uuid, percent, used))
        at_rest = tuple(card.uuid for card in cards if card.healthy)
        return DeviceReading(tuple(cards), (), (), at_rest, (), tuple(loads), (), "")

    def wait(self, most_ms):
        return None
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with an installed package."""
    folder = tmp_path / "installed"
    described = folder / "acme_cards-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / "acme_cards.py").write_text(MODULE)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-cards\nVersion: 1.0\n")
    points = "[bursar.devices]\nacme = acme_cards:Reader\nbroken = acme_cards:Absent\n"
    (described / "entry_points.txt").write_text(points)
    return folder


def test_cards_of_another_vendor_are_advertised_with_health_and_use(
    world: World, package: Path, tmp_path: Path
) -> None:
    world.make_node("acme")
    cards = tmp_path / "cards.json"
    cards.write_text(json.dumps({"A-0": ["", 70, 1000], "A-1": ["", 0, 0]}))
    agent = Agent(world, tmp_path, "acme", "", devices="acme")
    agent.environ |= {"PYTHONPATH": str(package), "ACME_CARDS": str(cards)}
    agent.start()
    try:
        eventually(lambda: agent.healthy() == {"A-0": True, "A-1": True})
        assert agent.capacity() == {"bursar.dev/gpu-percent": "200", "bursar.dev/gpu-memory": "65536"}
        used = re.compile(r'^DCGM_FI_DEV_GPU_UTIL\{gpu="0",UUID="A-0",.*\} 70$', re.MULTILINE)
        eventually(lambda: used.search(agent.metrics()))

        cards.write_text(json.dumps({"A-0": ["it is hot", 0, 0], "A-1": ["", 0, 0]}))
        eventually(lambda: agent.healthy() == {"A-0": False, "A-1": True})
        cards.write_text("no JSON")
        eventually(lambda: agent.healthy() == {"A-0": False, "A-1": False})
        assert "JSONDecodeError" in agent.log.read_text()
        cards.write_text(json.dumps({"A-0": ["", 0, 0], "A-1": ["", 0, 0]}))
        eventually(lambda: agent.healthy() == {"A-0": True, "A-1": True})
        assert agent.stop() == 0
    finally:
        if agent.process:
            agent.process.kill()
            agent.process.wait()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("amd", "--devices is 'amd', but must be one of acme, broken, nvml."),
        ("broken", "--devices broken: entry point bursar.devices failed: AttributeError: "),
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
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode == 2
    assert done.stderr.startswith(f"bursar-node: {said}")
    assert done.stderr.count("\n") == 1
