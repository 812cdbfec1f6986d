"""Pods of HAMi on nodes as its plugin describes them: a real kube-scheduler and API server with the policies,
and the extender with its own account's rights and the lock of nodes."""

import contextlib
import datetime
import json
import re
from collections.abc import Iterator

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.scheduler_ext.clusters import PODS, World, extender_with
from tests.scheduler_ext.processes import ROOT, Process
from tests.support.control_plane import MERGE, apply_files
from tests.support.waiting import eventually
from tests.worlds import Json
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.accounts.session import open_session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.request.inventory import read_cards

pytestmark = pytest.mark.make_test("reads the words of other systems")

LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"
TO_ALLOCATE, ALLOCATED = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated"


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our roles, the policies and the right to lock nodes."""
    manifests = ROOT / "deploy" / "manifests"
    files = ("00-namespace.yaml", "rbac.yaml", "admission-policies.yaml", "../samples/node-locks.yaml")
    apply_files(control_plane, [manifests / each for each in files])
    return control_plane


extender = extender_with(
    "--lock-nodes=hami,volcano,volcano-memory,volcano-number", account="bursar-scheduler"
)


@pytest.fixture
def hami(plane: ControlPlane, extender: Process) -> Iterator["HamiWorld"]:
    """An empty cluster before and after."""
    world = HamiWorld(plane, extender)
    yield world
    world.clear()


class HamiWorld(World):
    """A cluster with nodes of HAMi."""

    def hami_node(self, name: str, *uuids: str, annotations: Json | None = None) -> None:
        """A node as HAMi's plugin describes it, with cards of 16000 MiB."""
        cards = [
            {"id": uuid, "index": at, "count": 10, "devmem": 16000, "devcore": 100, "type": "NVIDIA-T4"}
            | {"mode": "hami-core", "health": True}
            for at, uuid in enumerate(uuids)
        ]
        raw = kwok_node(name, capacity={"nvidia.com/gpu": str(10 * len(uuids))})
        raw["metadata"]["annotations"] |= {
            "hami.io/node-nvidia-register": json.dumps(cards),
            **(annotations or {}),
        }
        self.plane.api.call("POST", "/api/v1/nodes", raw)
        eventually(lambda: self.extender.known(name))

    def lock(self, node: str, name: str = LOCK) -> str:
        """The node's lock, "" without one."""
        found: Json = self.plane.api.call("GET", f"/api/v1/nodes/{node}")
        return str(found["metadata"]["annotations"].get(name, ""))

    def annotate(self, path: str, annotations: Json) -> None:
        """A merge patch of annotations, as node plugins send it."""
        self.plane.api.call("PATCH", path, {"metadata": {"annotations": annotations}}, MERGE)

    def refuses(self, path: str, annotations: Json) -> bool:
        """Whether such a patch is refused; the API server knows a policy a moment after it was made."""
        try:
            self.annotate(path, annotations)
        except ApiError:
            return True
        return False

    def annotations(self, name: str) -> Json:
        """Those of a pod."""
        found: Json = self.get(name)["metadata"]["annotations"]
        return found

    def release(self, node: str, held: str, name: str = LOCK) -> None:
        """Remove this lock; the next pod may have the node's lock already."""
        place = f"/metadata/annotations/{name.replace('/', '~1')}"
        own = [{"op": "test", "path": place, "value": held}, {"op": "remove", "path": place}]
        with contextlib.suppress(ApiError):
            self.plane.api.call("PATCH", f"/api/v1/nodes/{node}", own, "application/json-patch+json")

    def plugin_serves(self, node: str) -> str:
        """What HAMi's plugin does when the kubelet asks for the devices of each container of the pod that the
        lock names; the pod's name."""
        lock = self.lock(node)
        _, _, name = lock.split(",")
        left = self.annotations(name)[TO_ALLOCATE].split(";")
        for at in [at for at, devices in enumerate(left) if devices]:
            left[at] = ""
            self.annotate(f"{PODS}/{name}", {TO_ALLOCATE: ";".join(left)})
        self.annotate(f"{PODS}/{name}", {PHASE: "success"})
        self.release(node, lock)
        return name


NINE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000", "nvidia.com/gpucores": "30"}


def test_equal_pods_in_flight_are_handed_out_one_after_the_other_each_with_its_own_card(
    hami: HamiWorld,
) -> None:
    hami.node("ours", cards=2, memory_mib=16000)
    hami.hami_node("theirs", "GPU-a", "GPU-b", "GPU-c")
    for name in ("a", "b"):
        hami.pod(name, NINE)

    eventually(lambda: hami.bound())
    eventually(lambda: re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ,default,[ab]", hami.lock("theirs")))
    (one,) = hami.bound()
    first = one["metadata"]["name"]
    added = {TO_ALLOCATE: "GPU-c,NVIDIA,9000,30:;"}
    eventually(lambda: hami.refuses(f"{PODS}/{first}?dryRun=All", added))
    with pytest.raises(ApiError):  # nobody may add a card
        hami.annotate(f"{PODS}/{first}", added)
    assert hami.plugin_serves("theirs") == first
    eventually(lambda: len(hami.bound()) == 2)
    second = hami.plugin_serves("theirs")
    assert {first, second} == {"a", "b"}
    with pytest.raises(ApiError):  # nor start it again
        hami.annotate(f"{PODS}/{first}", {PHASE: "allocating"})
    hami.pod("whole", {"nvidia.com/gpu": "1"})
    eventually(lambda: hami.node_info_of("whole"))

    written = {name: hami.annotations(name) for name in ("a", "b", "whole")}
    cards = {name: hami.cards_of(name)[0] for name in written}
    assert sorted(cards.values()) == ["GPU-a", "GPU-b", "GPU-c"]
    assert written["whole"][TO_ALLOCATE] == f"{cards['whole']},NVIDIA,16000,100:;"
    for name in ("a", "b"):
        assert written[name][ALLOCATED] == f"{cards[name]},NVIDIA,9000,30:;"
        assert (written[name][TO_ALLOCATE], written[name][PHASE]) == (";", "success")
        assert written[name]["hami.io/vgpu-node"] == "theirs"
        assert hami.get(name)["metadata"]["labels"]["hami.io/vgpu-node"] == "theirs"
        assert written[name]["hami.io/vgpu-time"] == written[name]["hami.io/bind-time"]
        assert re.fullmatch(r"1\d{9}|[2-9]\d{9}", written[name]["hami.io/bind-time"])
    assert charged(hami, "a") == 563  # of the card's memory, 9000 of 16000 MiB
    assert charged(hami, "whole") == 1000


def charged(world: World, name: str) -> int:
    """Thousandths of a card by which the ledger charges the pod."""
    raw = world.get(name)
    node = world.plane.api.call("GET", f"/api/v1/nodes/{raw['spec']['nodeName']}")
    pod = read_pod(raw)
    assert isinstance(pod, LedgerPod)
    return open_session(pod, NodeCards(read_cards(node) or ()), BudgetSettings(), 0).rate_milli


def test_a_lock_is_respected_while_its_pod_waits_for_devices_and_taken_over_when_it_is_over(
    hami: HamiWorld,
) -> None:
    hami.hami_node("gone", "GPU-a", annotations={LOCK: f"{now()},default,nobody"})
    hami.hami_node("old", "GPU-b", annotations={LOCK: "2020-01-01T00:00:00Z,default,nobody"})
    hami.hami_node("held", "GPU-c", annotations={LOCK: now()})  # of an older HAMi: names no pod
    for name in ("gone", "old", "held"):
        hami.pod(name, NINE, nodeSelector={"kubernetes.io/hostname": name})

    eventually(lambda: hami.node_info_of("gone") and hami.node_info_of("old"))
    assert hami.lock("gone").endswith(",default,gone")
    assert hami.lock("old").endswith(",default,old")
    eventually(lambda: "node held is locked while its plugin hands out" in hami.extender.said())
    assert hami.node_info_of("held") == ""
    hami.annotate("/api/v1/nodes/held", {LOCK: None})
    eventually(lambda: hami.node_info_of("held"))

    # a pod that is bound and starts keeps the lock until it has its devices
    hami.pod(
        "next",
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"},
        nodeSelector={"kubernetes.io/hostname": "old"},
    )
    eventually(lambda: "node old is locked while its plugin hands out" in hami.extender.said())
    hami.delete("old", grace_s=0)
    eventually(lambda: hami.node_info_of("next"))


def test_equal_pods_of_volcano_are_handed_out_one_after_the_other(hami: HamiWorld) -> None:
    register = "".join(f"GPU-{each},10,16000,NVIDIA-T4,true,hami-core:" for each in "ab")
    raw = kwok_node("theirs", capacity={f"volcano.sh/vgpu-{each}": "20" for each in ("number", "cores")})
    raw["metadata"]["annotations"]["volcano.sh/node-vgpu-register"] = register
    hami.plane.api.call("POST", "/api/v1/nodes", raw)
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory-percentage": "75"}
    for name in ("a", "b"):
        hami.pod(name, limits)

    first, second = volcanos_plugin_serves(hami, "theirs"), volcanos_plugin_serves(hami, "theirs")

    assert {first, second} == {"a", "b"}
    cards = {name: hami.cards_of(name)[0] for name in ("a", "b")}
    assert sorted(cards.values()) == ["GPU-a", "GPU-b"]
    for name, card in cards.items():
        assert hami.annotations(name)["volcano.sh/vgpu-ids-new"] == f"{card},NVIDIA,12000,0:"
        assert hami.annotations(name)["volcano.sh/vgpu-node"] == "theirs"
        assert charged(hami, name) == 750


def volcanos_plugin_serves(world: HamiWorld, node: str) -> str:
    """What Volcano's plugin does when the kubelet asks for the devices of a container; the pod's name. No
    other pod waits for devices then, and the lock is on."""

    def waiting() -> list[str]:
        found = [each["metadata"] for each in world.bound()]
        return [
            each["name"] for each in found if each["annotations"]["volcano.sh/bind-phase"] == "allocating"
        ]

    eventually(waiting)
    (name,) = waiting()
    held = world.lock(node, "hamivgpu")
    assert held.endswith(f",default,{name}")
    world.annotate(f"{PODS}/{name}", {"volcano.sh/devices-to-allocate": ""})
    done = {"volcano.sh/bind-phase": "success", "volcano.sh/vgpu-time": str(2**64 - 1)}
    world.annotate(f"{PODS}/{name}", done)
    world.release(node, held, "hamivgpu")
    return name


def test_pods_of_volcanos_former_sharing_are_placed_and_charged(hami: HamiWorld) -> None:
    """Memory on the node whose plugin counts memory, a whole card on the one that counts cards alone."""
    memory, number = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
    nodes = {"shared": {memory: "32000", number: "2"}, "whole": {number: "2"}}
    for node, capacity in nodes.items():
        hami.plane.api.call("POST", "/api/v1/nodes", kwok_node(node, capacity=capacity))
    eventually(lambda: hami.extender.known(*nodes) == nodes.keys())
    served: dict[str, tuple[str, str]] = {}
    for name in ("a", "b"):
        hami.pod(name, {memory: "12000"})
    hami.pod("one", {number: "1"})

    def serve() -> bool:
        """As its plugin does for each pod that waits for devices; then no other is bound to the node."""
        for each in hami.bound():
            name, node = each["metadata"]["name"], each["spec"]["nodeName"]
            written = each["metadata"]["annotations"]
            if written["volcano.sh/gpu-assigned"] == "false":
                held = hami.lock(node, "gpu")
                assert held.endswith(f",default,{name}")
                hami.annotate(f"{PODS}/{name}", {"volcano.sh/gpu-assigned": "true"})
                hami.release(node, held, "gpu")
            served[name] = node, written["volcano.sh/gpu-index"]
        return len(served) == 3

    eventually(serve)
    assert served["one"] in {("whole", "0"), ("whole", "1")}
    assert {served["a"], served["b"]} == {("shared", "0"), ("shared", "1")}
    assert [charged(hami, name) for name in ("a", "b", "one")] == [750, 750, 1000]


def now() -> str:
    """As HAMi writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_the_extenders_account_may_change_the_lock_of_a_node_alone(hami: HamiWorld) -> None:
    hami.hami_node("n", "GPU-a")
    act = "--as=system:serviceaccount:bursar-system:bursar-scheduler"

    refused = [
        hami.plane.kubectl(act, *change, "node", "n", given)
        for change, given in (
            (("label",), "pool=mine"),
            (("annotate", "--overwrite"), "hami.io/node-nvidia-register=[]"),
            (("annotate",), "hami.io/node-nvidia-register-"),
            (("taint",), "a=b:NoSchedule"),
        )
    ]
    allowed = hami.plane.kubectl(act, "annotate", "node", "n", f"{LOCK}={now()}")

    assert all(each.returncode and "the lock of a node alone" in each.stderr for each in refused), refused
    assert allowed.returncode == 0, allowed.stderr
