"""`python -m deploy.local up`, started and ended as people do."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deploy.reading import ROOT
from tests.local.worlds import processes_with
from tests.support.tracing import environment
from tests.support.waiting import eventually

SET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "metadata": {"name": "many", "namespace": "team-a"},
    "spec": {
        "selector": {"matchLabels": {"app": "many"}},
        "template": {
            "metadata": {"labels": {"app": "many"}},
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "image": "example",
                        "resources": {"limits": {"bursar.dev/gpu-percent": "1"}},
                    }
                ]
            },
        },
    },
}


def has_a_device(kubectl: tuple[str, ...]) -> bool:
    """Whether the claim of the sample's pod is allocated, and the pod runs."""
    claims = (*kubectl, "get", "resourceclaims,pods", "-n", "team-a", "-o", "json")
    found = json.loads(subprocess.run(claims, capture_output=True, check=True).stdout)["items"]
    devices = [
        each["device"]
        for claim in found
        if claim["kind"] == "ResourceClaim"
        for each in claim["status"].get("allocation", {}).get("devices", {}).get("results", [])
    ]
    running = [each["metadata"]["name"] for each in found if each["status"].get("phase") == "Running"]
    return devices == ["gpu-0"] and "claimed-device" in running


@pytest.mark.parametrize(("pods", "running"), [(30, 3), pytest.param(200, 20, marks=pytest.mark.soak)])
def test_nothing_stays_after_a_ctrl_c_that_is_repeated_until_the_end(
    tmp_path: Path, pods: int, running: int
) -> None:
    """So many sidecars run when Ctrl-C comes; those of the other pods are being started meanwhile."""
    many = SET | {"spec": SET["spec"] | {"replicas": pods}}
    out, errors = tmp_path / "out", tmp_path / "errors"
    home = tmp_path / "home"  # where it makes its temporary folder
    home.mkdir()
    with out.open("w") as output, errors.open("w") as said:
        up = subprocess.Popen(
            [sys.executable, "-m", "deploy.local", "up"],
            cwd=ROOT,
            env=environment(traced=False) | {"TMPDIR": str(home)},
            stdout=output,
            stderr=said,
        )
    try:
        eventually(lambda: "Press Ctrl-C" in out.read_text() or up.poll(), errors.read_text)
        variables = dict(re.findall(r"export (\w+)=(\S+)", out.read_text()))
        kubeconfig, binaries = variables["KUBECONFIG"], variables["PATH"].partition(":")[0]
        server = yaml.safe_load(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
        kubectl = (f"{binaries}/kubectl", f"--kubeconfig={kubeconfig}")
        subprocess.run([*kubectl, "create", "-f", "-"], input=json.dumps(many), text=True, check=True)
        ca = (*kubectl, "-n", "bursar-system", "get", "secret", "bursar-ca", "-o", "name")
        subprocess.run([*kubectl, "-n", "bursar-system", "delete", "secret", "bursar-ca"], check=True)
        eventually(lambda: subprocess.run(ca).returncode == 0, "the next CA")
        eventually(lambda: re.search("^certificates .*event=trusted", out.read_text(), re.M), out.read_text)
        sample = str(ROOT / "deploy" / "samples" / "claimed-device.yaml")
        subprocess.run([*kubectl, "apply", "-f", sample], check=True)
        eventually(lambda: has_a_device(kubectl), errors.read_text)
        eventually(lambda: len(list(home.glob("*/bursar/sidecars/*/log"))) >= running, errors.read_text)
        assert len(processes_with(str(home))) > running

        def ended() -> bool:
            up.send_signal(signal.SIGINT)
            return up.poll() is not None

        eventually(ended, errors.read_text)
    finally:
        up.kill()
        up.wait()

    assert list(home.iterdir()) == []
    assert processes_with(str(home)) == []
    assert (up.returncode, "Traceback" in errors.read_text()) == (130, False), errors.read_text()
    for url in (server, variables["BURSAR_SERVER"]):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", urlsplit(url).port or 0)) != 0, url
