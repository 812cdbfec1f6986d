"""`kubectl bursar` as people use it: its own connection through API server, kubelet and containerd, a token
that kubectl creates, and the CA that Bursar publishes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from deploy.local.limits import LONGEST_S
from tests.deploy.reading import ROOT
from tests.kubelet.worlds import Json, World, container, gpu_pod, status_of

PODS = "/api/v1/namespaces/bursar-system/pods"
POD = f"{PODS}/bursar-timekeeper-0"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# The timekeeper is a process beside the cluster here; its pod passes on what it gets on its port.
RELAY = """
import socket, threading
def passes(of, to):
    while data := of.recv(65536):
        to.sendall(data)
    to.shutdown(socket.SHUT_WR)
with socket.create_server(("127.0.0.1", 8444)) as listening:
    print("begun")
    while True:
        near, far = listening.accept()[0], socket.create_connection(("HOST", PORT))
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=passes, args=(one, other), daemon=True).start()
"""


def test_the_command_finds_its_own_way_to_the_timekeeper(world: World, tmp_path: Path) -> None:
    cp = world.stack.cp
    cp.kubectl("apply", "-f", str(ROOT / "deploy" / "samples" / "administrator.yaml"))
    host, _, port = world.stack.timekeeper_at.rpartition(":")
    relay = container("main", RELAY.replace("HOST", host).replace("PORT", port))
    pod = gpu_pod("bursar-timekeeper-0", {**relay, "securityContext": RESTRICTED}, nodeName=world.node.name)
    (tmp_path / "kubectl").write_text(f'#!/bin/sh\nexec {cp.kubectl_path} "$@"\n')
    (tmp_path / "kubectl").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(cp.admin_kubeconfig)}
    command = [sys.executable, "-m", "timekeeper.cli.main", "grants", "-A", "-o", "json"]

    def state() -> Json:
        found: Json = status_of(cp.api.call("GET", POD), "main").get("state", {})
        return found

    cp.api.call("POST", PODS, pod)
    try:
        world.until("the relay", lambda: "running" in state())
        world.said(cp.api.call("GET", POD), "main", "begun")
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONGEST_S)
    finally:
        cp.api.call("DELETE", POD, {"gracePeriodSeconds": 0})

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"items": []}
