"""Two replicas on a real control plane: the leader is killed, or stopped and continued, in the middle of a
burst of binds. No card may be overcommitted, none lost, and binding goes on."""

import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.identity import new_authority
from deploy.local.scheduler import ExtenderTLS
from tests.scheduler_ext.processes import ROOT
from tests.scheduler_ext.replicas import HOME, PROFILE, Replica, Service, World, beside_a_scheduler, said
from tests.support.control_plane import apply_files
from tests.support.waiting import eventually

pytestmark = pytest.mark.traced

FITTING = 96  # of 30% each, on 32 cards


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our roles, and the manifests' account of the extender."""
    manifests = ROOT / "deploy" / "manifests"
    apply_files(control_plane, [manifests / "00-namespace.yaml", manifests / "rbac.yaml"])
    lease = ("role", "extender", "--verb=get,create,update", "--resource=leases.coordination.k8s.io")
    to = ("--role=extender", "--user=system:kube-scheduler", f"--serviceaccount={HOME}:bursar-scheduler")
    for words in (lease, ("rolebinding", "extender", *to)):
        assert control_plane.kubectl("create", *words, "-n", HOME).returncode == 0
    return control_plane


@pytest.fixture
def world(plane: ControlPlane) -> Iterator[World]:
    """Two nodes of 16 cards."""
    world = World(plane)
    world.nodes("n1", "n2", cards=16)
    yield world
    world.clear()


def kubeconfig(plane: ControlPlane) -> str:
    token = plane.kubectl("create", "token", "bursar-scheduler", "-n", HOME, "--duration=1h").stdout.strip()
    return f"--kubeconfig={plane.kubeconfig(token, 'extender')}"


@pytest.fixture
def beside(plane: ControlPlane, world: World, tmp_path: Path) -> Iterator[list[Replica]]:
    """Each beside a kube-scheduler on loopback; these elect."""
    flags = [kubeconfig(plane), "--leader-election=scheduler"]
    replicas = [Replica(plane, tmp_path, f"beside-{at}", flags) for at in range(2)]
    for each in replicas:
        beside_a_scheduler(each, plane, tmp_path)
    yield from running(plane, replicas)


@pytest.fixture
def behind(plane: ControlPlane, world: World, tmp_path: Path) -> Iterator[list[Replica]]:
    """Behind a Service with mutual TLS, before one kube-scheduler; a Lease of theirs elects."""
    authority = new_authority("extender")
    for name, client in (("tls", False), ("client", True)):
        certificate, key = authority.leaf(["127.0.0.1"], client=client)
        (tmp_path / f"{name}.crt").write_bytes(certificate)
        (tmp_path / f"{name}.key").write_bytes(key)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    files = [
        f"--{flag}={tmp_path / name}" for flag, name in (("tls-cert", "tls.crt"), ("tls-key", "tls.key"))
    ]
    elected = ["--leader-election=lease", "--lease-duration=15s"]
    flags = [kubeconfig(plane), *elected, *files, f"--client-ca={tmp_path / 'ca.crt'}"]
    caller = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    caller.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    replicas = [Replica(plane, tmp_path, f"behind-{at}", flags, caller) for at in range(2)]
    service = Service(replicas)
    tls = ExtenderTLS(*(str(tmp_path / name) for name in ("ca.crt", "client.crt", "client.key")))
    name = f"scheduler-{service.port}"
    plane.start_scheduler(
        name, profiles=(PROFILE,), extender_url=f"https://127.0.0.1:{service.port}", tls=tls
    )
    yield from running(plane, replicas)
    plane.stop_scheduler(name)
    service.end()


def running(plane: ControlPlane, replicas: list[Replica]) -> Iterator[list[Replica]]:
    """Started, one after the other, and ended with what they made."""
    for each in replicas:
        each.start()
    yield replicas
    for each in replicas:
        each.end()
        plane.api.call("DELETE", f"/api/v1/namespaces/{HOME}/pods/{each.name}")
    for lease in ("bursar-scheduler", "bursar-extender"):
        plane.kubectl("delete", "lease", lease, "-n", HOME)


@pytest.fixture
def replicas(request: pytest.FixtureRequest) -> list[Replica]:
    """The form that a test names."""
    found: list[Replica] = request.getfixturevalue(request.param)
    return found


def in_soak(form: str) -> Any:
    """This form belongs to `make soak`: each form and each kind of outage has one case in `make test`."""
    return pytest.param(form, marks=pytest.mark.soak)


def leader_of(replicas: list[Replica]) -> Replica:
    """The one that leads, once one does."""
    return eventually(lambda: next((each for each in replicas if each.leads()), None))


@pytest.mark.parametrize("replicas", ["beside", in_soak("behind")], indirect=True)
def test_leaders_killed_in_a_burst_are_followed_and_no_card_is_overcommitted_or_lost(
    world: World, replicas: list[Replica]
) -> None:
    unfinished = 0
    for asked in (40, 80, 120):
        leader = leader_of(replicas)
        before = len(world.bound())
        burst = threading.Thread(target=world.pods, args=(40,), kwargs={"percent": 30})
        burst.start()  # beside the kill: a fast machine would have bound all before
        eventually(lambda before=before: len(world.bound()) > before)  # type: ignore[misc]
        leader.signal(signal.SIGKILL)
        burst.join()
        unfinished += len(world.bound()) < min(asked, FITTING)
        leader.end()
        leader.start()
    eventually(lambda: len(world.bound()) == FITTING)

    assert unfinished > 0, "no kill fell into the burst"
    assert sum(len(said(each.extender.log)) for each in replicas) > 2


@pytest.mark.parametrize("replicas", [in_soak("beside"), "behind"], indirect=True)
def test_a_leader_stopped_and_continued_does_no_harm_and_binding_goes_on_meanwhile(
    world: World, replicas: list[Replica]
) -> None:
    world.pods(60, percent=30)
    eventually(lambda: len(world.bound()) >= 4)
    leader = leader_of(replicas)
    (other,) = (each for each in replicas if each is not leader)

    leader.signal(signal.SIGSTOP)
    eventually(other.leads)
    world.pods(20, percent=30)
    eventually(lambda: len(world.bound()) >= 70)
    leader.signal(signal.SIGCONT)
    world.pods(40, percent=30)
    eventually(lambda: len(world.bound()) == FITTING)

    eventually(lambda: sum(each.leads() for each in replicas) == 1)
