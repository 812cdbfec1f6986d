"""A dialect that another package ships: its pod is read, placed, and its annotations are written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S

REPOSITORY = Path(__file__).parents[3]

MODULE = """
from timekeeper.core.dialects import ContainerLimits
from timekeeper.core.dialects.amounts import amount
from timekeeper.core.dialects.dialect import Dialect, nothing_at_admission
from timekeeper.core.values import Ask, Card

TILES = "example.com/tiles"

def read(limits: ContainerLimits):
    found = amount(limits, TILES, 1, "1 to 4 tiles", "2")
    return Ask(1, 250 * found, 0) if isinstance(found, int) else (found,)

def cards(node):
    return tuple(Card(f"tile{at}", at, "Example", 1000) for at in range(node.capacity[TILES] // 4))

def at_binding(placed):
    return {f"example.com/{name}": ",".join(str(each.index) for each in slices)
            for name, slices in placed.placement.containers}

DIALECT = Dialect(
    name="example", resources=(TILES,), examples={TILES: "2"}, read=read, at_admission=nothing_at_admission,
    at_binding=at_binding, owned=("example.com/",), plugin_shows=True, cards=cards, replaces=("tiler",),
    prefix="example.com/by-",
)
"""

PLACES = """
import json
from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.node_info import node_info_of
from tests.webhook.worlds import POLICY, governed, violations_of
from tests.worlds import of_resources, pod
from timekeeper.core.dialects import GPU_RESOURCE, GPU_RESOURCE_PATTERN
from webhook.admission.cel import gpu_pods

raw = pod(of_resources({"example.com/tiles": "3"}, "main"))
raw["spec"]["schedulerName"] = "tiler"
node = read_node({"metadata": {"name": "n"}, "status": {"capacity": {"example.com/tiles": "8"}}})
read = read_pod(raw)
placement = fit(read.request, node_info_of("n", node, {}))
written = written_for(read, read.request, placement, "n", 7, node.cards, node.family)
forged = {**raw, "metadata": {**raw["metadata"], "annotations": {"example.com/main": "1"}}}
print(json.dumps({
    "family": node.family,
    "written": written.annotations,
    "violations": [each.rule for each in violations_of(raw, POLICY)],
    "forged": [each.rule for each in violations_of(forged, POLICY)],
    "reviewed": [name for name in ("example.com/tiles", "example.com/by-hour", "example.com/other")
                 if GPU_RESOURCE_PATTERN.match(name)],
    "in_policies": GPU_RESOURCE in gpu_pods(),
}))
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with an installed package."""
    (tmp_path / "tiles.py").write_text(MODULE)
    described = tmp_path / "bursar_tiles-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: bursar-tiles\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[bursar.dialects]\ntiles = tiles:DIALECT\n")
    return tmp_path


def python(installed: Path, program: str) -> subprocess.CompletedProcess[str]:
    """The program, where the package is installed."""
    path = {"PYTHONPATH": f"{installed}:{REPOSITORY}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=path,
        cwd=installed,
        text=True,
        capture_output=True,
        check=False,
        timeout=LONGEST_S,
    )


def test_a_pod_of_another_packages_dialect_is_read_placed_and_written(installed: Path) -> None:
    ran = python(installed, PLACES)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["family"] == "example"
    assert found["written"]["example.com/main"] == "0"
    assert json.loads(found["written"]["bursar.dev/devices"])["containers"]["main"][0]["share_milli"] == 750
    assert found["violations"] == []
    assert found["forged"] == ["forged-annotation"]
    assert (found["reviewed"], found["in_policies"]) == (["example.com/tiles", "example.com/by-hour"], True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("import Ask, Card", "import Nothing"), "it cannot be imported: ImportError: "),
        (("DIALECT = Dialect(", "DIALECT = dict("), "neither a Dialect nor a list of them, but dict"),
        (('name="example"', 'name="tencent"'), "there is another dialect tencent"),
        (('"example.com/tiles"', '"nvidia.com/gpu"'), "nvidia.com/gpu belongs to dialect nvidia"),
        (("resources=(TILES,)", "resources=()"), "neither resources nor annotations nor labels"),
        (('replaces=("tiler",)', 'labels=("example.com/n",)'), "labels without read_pod"),
        (('replaces=("tiler",)', "constrain=lambda request, pod: request"), "constrain without reads"),
    ],
)
def test_a_broken_one_ends_a_role_with_one_sentence(
    installed: Path, change: tuple[str, str], fault: str
) -> None:
    (installed / "tiles.py").write_text(MODULE.replace(*change))

    assert fault in said_at_the_end(installed, "scheduler_ext")


@pytest.mark.parametrize("role", ["webhook", "timekeeper.settler.process"])
def test_a_broken_one_ends_the_other_roles_too(installed: Path, role: str) -> None:
    (installed / "tiles.py").write_text(MODULE.replace("resources=(TILES,)", "resources=()"))

    assert "neither resources nor annotations nor labels" in said_at_the_end(installed, role)


def said_at_the_end(installed: Path, role: str) -> str:
    """The one line of a role that does not start."""
    ran = python(installed, f"import runpy; runpy.run_module('{role}', run_name='__main__')")

    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("bursar: entry point tiles (bursar.dialects) of bursar-tiles: ")
    return str(line)
