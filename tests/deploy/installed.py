"""The pods of an installed chart as processes, with their arguments and accounts, on a cluster without a
kubelet."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deploy import rendered
from deploy.local.cluster import ControlPlane
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.deploy.reading import NAMESPACE, ROOT, loaded
from tests.support.control_plane import apply
from tests.support.waiting import eventually
from tests.worlds import Json

# where a pod's service account is; the processes replace the folder before they import anything else
_KUBELETS = "/var/run/secrets/kubernetes.io/serviceaccount"
_MOVED = """
from pathlib import Path
import timekeeper.runtime.connect as pod
assert str(pod.SERVICE_ACCOUNT) == "{KUBELETS}"
pod.SERVICE_ACCOUNT = Path("{folder}")
"""
# of each role: workload and account, module
ROLES = {
    "timekeeper": ("statefulsets/bursar-timekeeper", "timekeeper"),
    "webhook": ("deployments/bursar-webhook", "webhook"),
    "extender": ("deployments/bursar-scheduler", "scheduler_ext"),
    "certificates": ("deployments/bursar-certificates", "webhook"),
}


class InstalledPods:
    """All roles of a mode of the chart, until the stack is closed; ``folder`` has a folder for each.
    ``documents``: the objects of the chart as they were applied."""

    def __init__(self, cp: ControlPlane, mode: str, folder: Path, stack: ExitStack) -> None:
        self._cp, self._mode, self._folder = cp, mode, folder
        self._launcher = stack.enter_context(Launcher())
        self._ports = {role: free_port() for role in (*ROLES, "read-only")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self._end)
        self.documents = self.rendered(mode)
        apply(self._cp, *self.documents)
        if mode == "meter":
            self.ca_file = folder / "timekeeper" / "tls" / "ca.crt"
            self._start("timekeeper", *self._state())
        else:
            self.ca_file = folder / "tls" / "timekeeper" / "ca.crt"
            self._certify()
            self._start("timekeeper", *self._state(), *self._tls("timekeeper"))
            self._start("extender", *self._of_extender())
            self._start("webhook", *self._tls("webhook"), *self._caller("webhook"))
        eventually(self._is_ready, lambda: self.log("timekeeper"))
        if mode != "meter":
            eventually(lambda: "event=leads" in self.log("extender"), lambda: self.log("extender"))

    def url(self, role: str) -> str:
        """On the loopback."""
        return f"https://127.0.0.1:{self._ports[role]}"

    def read(self, path: str, token: str, role: str = "timekeeper") -> Any:
        """The answer to a GET, as the token's account reads it."""
        request = urllib.request.Request(
            f"{self.url(role)}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.check_hostname = False  # a certificate of its own does not name this address
        with urllib.request.urlopen(request, timeout=LONGEST_S, context=context) as answer:
            body = answer.read()
        return json.loads(body) if body[:1] == b"{" else body.decode()

    def check(self) -> None:
        """Fails, with its log, where a process has ended."""
        for role, process in self._processes.items():
            assert process.poll() is None, self.log(role)

    def log(self, role: str) -> str:
        """What the role has written."""
        return (self._folder / role / "log").read_text(errors="replace")

    def rendered(self, mode: str) -> list[Json]:
        """The objects of the chart in this mode. The API server reaches the webhook by URL, for no Service
        leads to this machine."""
        texts = rendered.rendered(rendered.helm(), f"--set=mode={mode}")
        documents = [each for name in sorted(texts) for each in loaded(texts[name])]
        for document in documents:
            for hook in document.get("webhooks", ()):
                path = hook["clientConfig"].pop("service")["path"]
                hook["clientConfig"]["url"] = f"{self.url('webhook')}{path}"
        return documents

    def _certify(self) -> None:
        command, variables = self._in_pod("certificates")
        command += ["--once", f"--write={self._folder}/tls", "--extra-name=127.0.0.1"]
        done = subprocess.run(command, env=variables, cwd=self._folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def _start(self, role: str, *flags: str) -> None:
        command, variables = self._in_pod(role)
        log = self._folder / role / "log"
        with log.open("wb") as output:
            self._processes[role] = self._launcher.start(
                [*command, *flags], output, env=variables, folder=log.parent
            )

    def _in_pod(self, role: str) -> tuple[list[str], dict[str, str]]:
        """The command and the environment of the role's container."""
        workload, module = ROLES[role]
        there = self._cp.api.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/{workload}")
        pod = there["spec"]["template"]["spec"]
        (container,) = (each for each in pod["containers"] if each["name"] == role)
        folder = self._folder / role
        folder.mkdir()
        (folder / "bursar-token").write_text(account_token(self._cp, pod["serviceAccountName"], "bursar"))
        variables = as_in_pod(self._cp, pod["serviceAccountName"], container, folder)
        return [sys.executable, "-m", module, *container["args"]], variables

    def _state(self) -> list[str]:
        """Flags that come later take precedence."""
        at = self._folder / "timekeeper"
        listen = f"--listen=127.0.0.1:{self._ports['timekeeper']}"
        own = [f"--tls-cert={at}/tls/tls.crt", f"--tls-key={at}/tls/tls.key", f"--ca={at}/tls/ca.crt"]
        others = [f"--webhook-url={self.url('webhook')}", f"--extender-url={self.url('read-only')}"]
        token = f"--token-file={at}/bursar-token"
        more = own if self._mode == "meter" else [*others, token]
        return [listen, f"--database=sqlite:///{at}/bursar.db", *more]

    def _tls(self, role: str) -> list[str]:
        files = self._folder / "tls" / role
        return [f"--tls-cert={files}/tls.crt", f"--tls-key={files}/tls.key", f"--ca={files}/ca.crt"]

    def _caller(self, role: str) -> list[str]:
        token = f"--token-file={self._folder}/{role}/bursar-token"
        return [
            f"--listen=127.0.0.1:{self._ports[role]}",
            f"--timekeeper-url={self.url('timekeeper')}",
            token,
        ]

    def _of_extender(self) -> list[str]:
        files = self._folder / "tls" / "scheduler"
        return [
            *self._caller("extender"),
            f"--timekeeper-ca={self.ca_file}",
            f"--read-listen=127.0.0.1:{self._ports['read-only']}",
            *(f"--read-tls-cert={files}/tls.crt", f"--read-tls-key={files}/tls.key"),
            "--leader-election=none",  # it leads, without the kube-scheduler beside it
        ]

    def _is_ready(self) -> bool:
        self.check()
        roles = ["timekeeper"] if self._mode == "meter" else ["timekeeper", "webhook", "read-only"]
        try:
            return all("ok" in self.read("/readyz", "", role) for role in roles)
        except OSError:
            return False

    def _end(self) -> None:
        self.check()
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        codes = {role: process.wait(timeout=LONGEST_S) for role, process in self._processes.items()}
        assert codes == dict.fromkeys(codes, 0), codes


def as_in_pod(cp: ControlPlane, account: str, container: Json, folder: Path) -> dict[str, str]:
    """The environment of this container's process outside of a pod. The folder gets what a kubelet puts into
    the pod: the account's token and the CA of the API server."""
    (folder / "token").write_text(account_token(cp, account))
    (folder / "ca.crt").write_bytes(cp.ca_file.read_bytes())
    (folder / "sitecustomize.py").write_text(_MOVED.format(KUBELETS=_KUBELETS, folder=folder))
    address = urlsplit(cp.url)
    return {
        "PATH": os.defpath,
        "PYTHONPATH": f"{folder}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
        **{
            each["name"]: each.get("value", "of-the-pod") for each in container.get("env", [])
        },  # or a fieldRef
    }


def account_token(cp: ControlPlane, account: str, audience: str = "", namespace: str = NAMESPACE) -> str:
    """A token of the account, for the API server or for an audience."""
    spec = {"expirationSeconds": 7200} | ({"audiences": [audience]} if audience else {})
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(cp.api.call("POST", path, {"spec": spec})["status"]["token"])
