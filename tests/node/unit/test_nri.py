"""The plugin's answers to the runtime: which cards a container gets, and what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.node.nri import placement, plugin
from sidecar.node.nri.connection import Failed
from sidecar.node.nri.messages import message, parsed
from sidecar.node.nri.placement import DeviceNode, NodeDevices, given, strange
from sidecar.node.nri.plugin import SILENT_MS, Plugin
from sidecar.node.nri_tasks import NriTasks
from sidecar.node.settings import read
from sidecar.node.state.api_objects import read_pod
from sidecar.node.values import NO_VENDOR, NriState
from tests.node.worlds import card, node
from tests.worlds import Json
from timekeeper.core import names
from timekeeper.core.request import runtime_plugins
from timekeeper.edge.reflector import UnreachableError

A, B, MIG = "GPU-a", "GPU-b", "MIG-c"
CTL = DeviceNode("/dev/nvidiactl", 195, 255)
NODES = ((A, DeviceNode("/dev/nvidia0", 195, 0)), (B, DeviceNode("/dev/nvidia3", 195, 3)))
BARE = NodeDevices((), NODES, (CTL,), "", frozenset({A, B, MIG}), "")
CDI = NodeDevices(
    ((A, "nvidia.com/gpu=GPU-a"), (B, "nvidia.com/gpu=1")), NODES, (CTL,), "", BARE.inventory, ""
)


def pod(uid: str = "u1", **cards: list[str]) -> Json:
    """A pod's metadata: container -> UUIDs."""
    placed = {name: [{"uuid": uuid} for uuid in uuids] for name, uuids in cards.items()}
    text = str({"version": 1, "containers": placed}).replace("'", '"')
    return {
        "metadata": {
            "uid": uid,
            "namespace": "team",
            "name": "p",
            "annotations": {"bursar.dev/devices": text},
        }
    }


class World:
    """A plugin on a node, and the API server's pods."""

    def __init__(self, devices: NodeDevices | None = BARE) -> None:
        self.api: dict[str, Json] | None = {}  # by name; None: it does not answer
        self.asked: list[tuple[str, str, float]] = []
        self.plugin = Plugin(self._find, frozenset({"kube-system"}))
        self.plugin.devices = devices

    def _find(self, namespace: str, name: str, within_s: float) -> Mapping[str, Any] | None:
        self.asked.append((namespace, name, within_s))
        if self.api is None:
            raise UnreachableError("no answer in time")
        return self.api.get(name)

    def watches(self, raw: Json, **annotations: str) -> None:
        """The watch has told of the pod."""
        self.plugin.pods = {raw["metadata"]["uid"]: (read_pod(raw), annotations)}

    def creates(
        self, container: str = "main", uid: str = "u1", claims: bool = True, handler: str = ""
    ) -> Any:
        """The adjustment for a container; ``claims``: its sandbox names a placement."""
        asked = message(
            "CreateContainer",
            pod=sandbox(uid, claims, handler),
            container=message("Container", name=container),
        )
        answer = self.plugin.methods()["CreateContainer"](asked.SerializeToString())
        return parsed("ContainerCreated", answer).adjust

    def validates(
        self,
        namespace: str = "team",
        cdi: tuple[str, ...] = (),
        paths: tuple[str, ...] = (),
        plugins: tuple[str, ...] = ("bursar",),
    ) -> str:
        """Why the collected adjustment is refused; empty: it is not."""
        adjust = message("Adjustment")
        for name in cdi:
            adjust.cdi_devices.add(name=name)
        for path in paths:
            adjust.linux.devices.add(path=path)
        asked = message(
            "Validate",
            pod=sandbox("u1", True, "", namespace),
            container=message("Container", name="main"),
            adjust=adjust,
        )
        for name in plugins:
            asked.plugins.add(name=name)
        answer = parsed(
            "Validated", self.plugin.methods()["ValidateContainerAdjustment"](asked.SerializeToString())
        )
        assert answer.reject == bool(answer.reason)
        return str(answer.reason)


def sandbox(uid: str, claims: bool, handler: str, namespace: str = "team") -> Any:
    """The sandbox of the pod `p`."""
    made = message("Sandbox", name="p", uid=uid, namespace=namespace, runtime_handler=handler)
    if claims:
        made.annotations.add(
            key="bursar.dev/devices", value='{"version":1,"containers":{"main":[{"uuid":"GPU-b"}]}}'
        )
    return made


def test_a_container_gets_the_cards_of_the_placement_that_the_api_server_has() -> None:
    world = World()
    world.watches(pod(main=[A], other=[B]))

    found = world.creates()
    assert [(each.path, each.type, each.major, each.minor) for each in found.linux.devices] == [
        ("/dev/nvidia0", "c", 195, 0),
        ("/dev/nvidiactl", "c", 195, 255),
    ]
    assert not world.creates("without").linux.devices
    assert [each.path for each in world.creates("bursar-sidecar").linux.devices] == [
        "/dev/nvidia0",
        "/dev/nvidia3",
        "/dev/nvidiactl",
    ]
    assert world.asked == []
    assert world.plugin.results == {"given": 2, "none": 1, "left": 0, "refused": 0}


def test_cdi_is_used_where_a_specification_names_each_card() -> None:
    assert given(CDI, (A, B)).cdi == ("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=1")
    assert given(CDI, (A, B)).nodes == ()
    world = World(CDI)
    world.watches(pod(main=[A, B]))
    assert [each.name for each in world.creates().cdi_devices] == ["nvidia.com/gpu=GPU-a", "nvidia.com/gpu=1"]
    half = NodeDevices(CDI.cdi[:1], NODES, (CTL,), "/opt/driver", BARE.inventory, "")
    assert given(half, (A, B)).cdi == ()
    assert [each.path for each in given(half, (A, B)).nodes] == [
        "/dev/nvidia0",
        "/dev/nvidia3",
        "/dev/nvidiactl",
    ]
    assert given(half, (A, B)).libraries == "/opt/driver"
    assert given(half, (A,)).libraries == ""
    with pytest.raises(placement.Refused, match="card MIG-c has no CDI specification and no device node"):
        given(CDI, (A, MIG))


def test_the_drivers_libraries_are_mounted_and_found_first() -> None:
    world = World(NodeDevices((), NODES, (CTL,), "/opt/driver", BARE.inventory, ""))
    world.watches(pod(main=[A]))
    asked = message(
        "CreateContainer",
        pod=sandbox("u1", True, ""),
        container=message(
            "Container", name="main", env=["X=1", "LD_LIBRARY_PATH=/mine:/usr/local/nvidia/lib64"]
        ),
    )

    found = parsed(
        "ContainerCreated", world.plugin.methods()["CreateContainer"](asked.SerializeToString())
    ).adjust

    ((mount,), (variable,)) = found.mounts, found.env
    assert (mount.source, mount.destination, "ro" in mount.options) == (
        "/opt/driver",
        "/usr/local/nvidia",
        True,
    )
    assert (variable.key, variable.value) == ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64:/mine")


def test_a_pod_that_the_watch_has_not_told_of_costs_one_call() -> None:
    world = World()
    world.api = {"p": pod(main=[A])}

    assert world.creates().linux.devices[0].path == "/dev/nvidia0"
    assert world.asked == [("team", "p", 1.0)]
    assert not world.creates(claims=False).linux.devices
    assert world.validates(paths=("/dev/nvidia0",)) == ""
    assert len(world.asked) == 1, "nor the other container of its making, nor a sandbox without a placement"


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        ({}, "the API server has no such pod"),
        ({"p": pod("another", main=[A])}, "the API server has no such pod"),
        (None, "the API server does not answer: no answer in time"),
    ],
)
def test_a_placement_that_the_api_server_does_not_confirm_is_refused(
    api: dict[str, Json] | None, reason: str
) -> None:
    world = World()
    world.api = api

    with pytest.raises(Failed, match=reason):
        world.creates()
    assert world.plugin.results["refused"] == 1


def test_before_the_cards_were_read_and_after_a_defect_containers_are_refused() -> None:
    world = World(None)
    world.watches(pod(main=[A]))
    with pytest.raises(Failed, match="were not read yet"):
        world.creates()

    world.plugin.pods = None  # type: ignore[assignment]  # a defect
    with pytest.raises(Failed, match="node agent failed: AttributeError"):
        world.creates()


def test_what_something_else_gives_is_left_to_it() -> None:
    world = World()
    world.watches(pod(main=[A]))
    assert not world.creates(handler="nvidia-cdi").linux.devices
    world.watches(pod(main=[A]), **{"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=GPU-a"})
    assert not world.creates().linux.devices
    world.watches(pod(main=[A]))
    world.plugin.devices = NodeDevices((), NODES, (CTL,), "", BARE.inventory, "a device plugin")
    assert not world.creates().linux.devices
    assert world.plugin.results["left"] == 3


def test_a_card_that_another_plugin_gives_is_refused_unless_the_placement_names_it() -> None:
    world = World(CDI)
    world.watches(pod(main=[A]))

    assert (
        world.validates(cdi=("nvidia.com/gpu=GPU-a",), paths=("/dev/nvidia0", "/dev/nvidiactl", "/dev/fuse"))
        == ""
    )
    for cdi, paths in (
        (("nvidia.com/gpu=1",), ()),
        (("k8s.device-plugin.nvidia.com/gpu=GPU-b",), ()),
        ((), ("/dev/nvidia3",)),
    ):
        assert "card GPU-b, which its placement does not name" in world.validates(cdi=cdi, paths=paths)
    assert world.validates("kube-system", cdi=("nvidia.com/gpu=1",)) == ""
    assert strange(CDI, (A,), ("nvidia.com/gpu=all",), ()) == B, "all is every card"
    world.plugin.devices = NodeDevices(CDI.cdi, NODES, (CTL,), "", BARE.inventory, "a device plugin")
    assert world.validates(cdi=("nvidia.com/gpu=1",)) == "", "it is the plugin's to say"


def test_the_inventory_names_the_plugins_that_a_container_needs_and_whether_the_runtime_enforces_it() -> None:
    world = World()
    world.watches(pod(main=[A]))
    before = NriState(("bursar", "gpu-fractioning"), True)
    assert world.plugin.state(None, 7) == NriState((), False), "not connected"
    assert world.plugin.state(before, 6 + SILENT_MS) == before, "a new agent waits as long as one that was"
    assert world.plugin.state(before, 7 + SILENT_MS) == NriState((), False)

    world.plugin.connected = True
    assert world.plugin.state(NriState((), False), 1) == NriState(("bursar",), False)
    assert world.plugin.state(None, 1) == NriState(("bursar",), False)
    assert world.plugin.state(before, 1) == before, "until the runtime has told of its plugins"
    world.validates(plugins=("default-validator", "bursar", "gpu-fractioning", "other"))
    assert world.plugin.state(None, 1) == before
    world.validates(plugins=("bursar",))
    assert world.plugin.state(before, 1) == NriState(("bursar",), False)

    world.plugin.connected = False
    assert world.plugin.state(before, SILENT_MS) == before
    assert world.plugin.state(before, SILENT_MS + 1) == NriState((), False)


def test_the_names_are_those_that_the_core_knows() -> None:
    assert (plugin.NAME, placement.FRACTIONING) == (runtime_plugins.OURS, runtime_plugins.KAIS)
    assert placement.NVIDIAS_PLUGINS == runtime_plugins.NVIDIAS
    assert (placement.OF_NVIDIAS_PLUGIN, placement.SIDECAR) == (runtime_plugins.CDI, names.SIDECAR)


def test_a_specification_that_cannot_be_read_is_named_once_and_the_others_count(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text("kind: [")
    device = {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    (tmp_path / "b.json").write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": [device]}))
    settings = read(["--node-name=n1", f"--cdi={tmp_path}", "--api-url=https://127.0.0.1:1"], {})
    reader: Any = SimpleNamespace(paths={A: "/dev/nvidia0"})
    tasks = NriTasks(settings, None, reader)  # type: ignore[arg-type]
    agent: Any = SimpleNamespace(node=node(), cards=(card(A),), vendor=NO_VENDOR)

    tasks.on_reading(agent, "")
    tasks.on_reading(agent, "")

    assert capfd.readouterr().err.count(f'event=cdi-unreadable reason="{tmp_path}/a.yaml: ParserError"') == 1
    found = tasks._plugin.devices
    assert found is not None
    assert found.cdi == ((A, "nvidia.com/gpu=0"),)
