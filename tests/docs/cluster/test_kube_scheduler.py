"""docs/kube-scheduler.md, typed on what kubeadm writes for kube-scheduler: it binds GPU pods by the extender,
and others as before."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.build import binaries
from deploy.local.kwok_nodes import kwok_node
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from deploy.local.stack import Stack
from deploy.local.tools import KUBEADM_TOOLS, KUBERNETES_VERSION
from tests.deploy.reading import ROOT
from tests.docs.shell import console, run
from tests.local.worlds import pod
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from timekeeper.cli.doctor.cluster_checks import is_patched

PAGE = (ROOT / "docs" / "kube-scheduler.md").read_text()
KUBECONFIG = "/etc/kubernetes/scheduler.conf"
PODS = "/api/v1/namespaces/team-a/pods"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The manifest that kubeadm writes."""
    folder = tmp_path_factory.mktemp("kubeadm")
    phase = ["init", "phase", "control-plane", "scheduler", f"--kubernetes-version=v{KUBERNETES_VERSION}"]
    kubeadm = binaries(print, KUBEADM_TOOLS)["kubeadm"]
    environment = os.environ | {"KUBEADM_INIT_DRYRUN_DIR": str(folder)}
    subprocess.run([kubeadm, *phase, "--dry-run"], env=environment, check=True, timeout=LONGEST_S)
    return (folder / "kube-scheduler.yaml").read_text()


@pytest.fixture
def stack(lender: Lender) -> Iterator[Stack]:
    """Bursar without any kube-scheduler."""
    with lender.stack() as running:
        cp = running.cp
        schedulers = [name for name in cp.processes if name.endswith("-scheduler")]
        cp.stop_scheduler()
        cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})
        cp.api.call("POST", "/api/v1/nodes", kwok_node("gpu-1", cards=1, memory_mib=81_920))
        yield running
        for name in schedulers:
            cp.restart_process(name)


def test_the_patched_kube_scheduler_binds_gpu_pods_with_cards_and_other_pods_as_before(
    stack: Stack, written: str, tmp_path: Path
) -> None:
    certificates, configure, change, undo = console(PAGE)
    folder, manifests = tmp_path / "etc" / "bursar", tmp_path / "etc" / "manifests"
    manifests.mkdir(parents=True)
    own = written.replace(KUBECONFIG, str(stack.cp.folder / "scheduler.kubeconfig"))
    (manifests / "kube-scheduler.yaml").write_text(own)
    port = free_port()

    def typed(commands: str) -> None:
        there = commands.replace(KUBECONFIG, str(stack.cp.folder / "scheduler.kubeconfig"))
        there = re.sub(r"https://\$\(.*?\)", f"https://127.0.0.1:{port}", there)
        run(stack.cp, there.replace("/etc/kubernetes", str(tmp_path / "etc")), tmp_path)

    typed(certificates)
    (folder / "tls.crt").write_bytes((folder / "server.crt").read_bytes())
    (folder / "tls.key").write_bytes((folder / "server.key").read_bytes())
    typed(configure)
    typed(change)
    changed = (manifests / "kube-scheduler.yaml").read_text()
    typed(change)
    assert (manifests / "kube-scheduler.yaml").read_text() == changed
    command = yaml.safe_load(changed)["spec"]["containers"][0]["command"]
    assert changed.count("name: bursar-scheduler") == 2
    assert (is_patched(yaml.safe_load(own)), is_patched(yaml.safe_load(changed))) == (False, True)
    assert without(changed, folder) == without(own, folder)
    half = yaml.safe_load((ROOT / "deploy" / "samples" / "half-a-card.yaml").read_text())

    with Launcher() as launcher, (tmp_path / "log").open("wb") as output:
        launcher.start(extender_of_the_sample(stack, folder, port), output, folder=ROOT)
        eventually(lambda: probe(folder, port) == 0)
        kube_scheduler = [str(binaries(print)["kube-scheduler"]), *command[1:]]
        launcher.start([*kube_scheduler, f"--secure-port={free_port()}"], output, folder=tmp_path)
        for each in (half, pod("plain")):
            stack.cp.api.call("POST", PODS, each)
        half = eventually(lambda: bound(stack, "half-a-card"))
        plain = eventually(lambda: bound(stack, "plain"))

    assert "bursar.dev/devices" in half["metadata"]["annotations"]
    assert "bursar.dev/devices" not in plain["metadata"].get("annotations", {})
    typed(undo)
    assert (manifests / "kube-scheduler.yaml").read_text() == own


def without(manifest: str, folder: Path) -> dict[str, Any]:
    """The static pod without the flags, the mount and the volume of the configuration in this folder."""
    pod: dict[str, Any] = yaml.safe_load(manifest)
    (container,) = pod["spec"]["containers"]
    volume, mount = {"path": str(folder), "type": "Directory"}, {"mountPath": str(folder), "readOnly": True}
    added = [{"name": "bursar-scheduler", "hostPath": volume}, {"name": "bursar-scheduler", **mount}]
    flags = ("--config=", "--kubeconfig=")
    container["command"] = [word for word in container["command"] if not word.startswith(flags)]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount not in added]
    pod["spec"]["volumes"] = [volume for volume in pod["spec"]["volumes"] if volume not in added]
    return pod


def bound(stack: Stack, name: str) -> dict[str, Any] | None:
    """The pod once it has a node."""
    found: dict[str, Any] = stack.cp.api.call("GET", f"{PODS}/{name}")
    return found if "nodeName" in found["spec"] else None


def container() -> dict[str, Any]:
    """The extender's in the sample."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "samples" / "extender-alone.yaml").read_text())
    (deployment,) = [each for each in documents if each["kind"] == "Deployment"]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def extender_of_the_sample(stack: Stack, folder: Path, port: int) -> list[str]:
    """With the flags of the sample but for the timekeeper and the election, which need its pod."""
    there = [each.replace("/etc/bursar/extender", str(folder)) for each in container()["args"]]
    apart = ("--listen=", "--timekeeper-url=", "--leader-election=")
    flags = [each for each in there if not each.startswith(apart)]
    token = stack.token("bursar-system", "bursar-scheduler")
    reached = f"--kubeconfig={stack.cp.kubeconfig(token, 'extender-alone')}"
    return [sys.executable, "-m", "scheduler_ext", f"--listen=127.0.0.1:{port}", reached, *flags]


def probe(folder: Path, port: int) -> int:
    """The exit code of the sample's readiness probe."""
    words = [str(each) for each in container()["readinessProbe"]["exec"]["command"]]
    code = words[2].replace("/etc/bursar/extender", str(folder)).replace("8445", str(port))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=LONGEST_S).returncode
