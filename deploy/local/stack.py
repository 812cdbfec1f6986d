"""All of Bursar on a local control plane: applies the manifests and runs each role as a process with the
token of its own service account."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import orjson
import yaml

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.ending import undisturbed
from deploy.local.errors import LocalError
from deploy.local.golang import last_lines
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from deploy.local.scheduler import GPU_PROFILE

MANIFESTS = Path(__file__).parent.parent / "manifests"
NAMESPACE = "bursar-system"

_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")

# The kinds of manifests that work without a kubelet; the workloads run as processes instead.
_APPLIED = (
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    *_WEBHOOKS,
)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, which takes a tenth of the time
_LOOK_EVERY_S = 0.05
_LOOK_AT_LEAST_EVERY_S = 1.0
_TOKEN_LIFE_S = 86_400


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of tests and the demo that differ from the roles' defaults."""

    heartbeat_interval: str = "1s"
    webhook_workers: int = 2
    timekeeper_workers: int = 1
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()  # further flags by role
    timekeeper_address: str = "127.0.0.1"  # with real pods, the bridge's


class Stack:
    """A context manager: webhook, timekeeper, extender and both schedulers, ready, on a running control
    plane.

    ``timekeeper_url``, ``webhook_url``, ``extender_url``, ``read_url`` (the extender's read-only port): on
    loopback. ``ca_file``: the CA of their
    certificates. ``folder``: certificates, tokens, logs and the database, inside the control plane's folder.
    """

    def __init__(self, control_plane: ControlPlane, tuning: Tuning | None = None) -> None:
        self.cp = control_plane
        self.tuning = tuning or Tuning()
        self.folder = control_plane.folder / "bursar"
        self._stack = ExitStack()
        self._arguments: dict[str, list[str]] = {}
        # interpreters of roles (and of the sidecars) that are of another installation, at their next start
        self.pythons: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Stack":
        with ExitStack() as stack:
            self.folder.mkdir()
            self._launcher = stack.enter_context(Launcher())
            self._lay_out()
            self._apply()
            self.certify()
            self._start_roles()
            self.cp.start_scheduler()
            self.cp.start_scheduler("gpu-scheduler", profiles=(GPU_PROFILE,), extender_url=self.extender_url)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with undisturbed():
            self._stack.close()

    def _lay_out(self) -> None:
        self._ports = {role: free_port() for role in ("webhook", "timekeeper", "extender", "read-only")}
        self.webhook_url = f"https://127.0.0.1:{self._ports['webhook']}"
        self.timekeeper_at = f"{self.tuning.timekeeper_address}:{self._ports['timekeeper']}"
        self.timekeeper_url = f"https://{self.timekeeper_at}"
        self.extender_url = f"http://127.0.0.1:{self._ports['extender']}"
        self.read_url = f"https://127.0.0.1:{self._ports['read-only']}"
        self.tls = self.folder / "tls"
        self.ca_file = self.tls / "timekeeper" / "ca.crt"

    def _apply(self) -> None:
        documents = [document for document in manifests() if document["kind"] in _APPLIED]
        variant = manifests(MANIFESTS.parent / "postgresql")  # its rights to a Lease do no harm on SQLite
        documents += [document for document in variant if document["kind"].startswith("Role")]
        documents.sort(key=lambda document: _APPLIED.index(document["kind"]))
        for document in documents:
            if document["kind"] in _WEBHOOKS:
                _by_url(document, self.webhook_url)
        text = "\n---\n".join(map(json.dumps, documents))  # JSON is YAML, and takes a tenth of the time
        self._must("apply", "--server-side", "-f", "-", input=text)

    def certify(self) -> None:
        """Run the certificate process once: it writes missing certificates, and the CA everywhere."""
        self._run_once("certificates", [*self._certificate_flags(), "--once"])

    def renew(self, *flags: str, program: Sequence[str] = ("webhook", "certificates")) -> None:
        """Let the certificate process run, with these flags too, as an installation does."""
        self._start("certificates", [*self._certificate_flags(program), *flags])

    def _certificate_flags(self, program: Sequence[str] = ("webhook", "certificates")) -> list[str]:
        names = dict.fromkeys(("127.0.0.1", "localhost", self.tuning.timekeeper_address))
        return [
            *("-m", *program, "--write", str(self.tls)),
            *(flag for name in names for flag in ("--extra-name", name)),
            *("--kubeconfig", str(self._kubeconfig("bursar-certificates"))),
        ]

    def _start_roles(self) -> None:
        # The servers' certificates are in the folder of `--write`.
        self._start("timekeeper", self._timekeeper_flags())
        self._start("extender", self._extender_flags())
        self._start("webhook", self._webhook_flags())
        for role, url in (
            ("timekeeper", self.timekeeper_url),
            ("extender", self.extender_url),
            ("webhook", self.webhook_url),
        ):
            self.wait(f"{role} to be ready", lambda url=url: self.is_ready(url), role)  # type: ignore[misc]

    def _timekeeper_flags(self) -> list[str]:
        token = self.folder / "timekeeper.token"
        token.write_text(self.token(NAMESPACE, "bursar-timekeeper", audience="bursar"))
        return [
            *("-m", "timekeeper", "--listen", self.timekeeper_at),
            *self._tls_flags("timekeeper"),
            *("--database", f"sqlite:///{self.folder}/bursar.db"),
            *("--workers", str(self.tuning.timekeeper_workers)),
            *("--heartbeat-interval", self.tuning.heartbeat_interval),
            *("--webhook-url", self.webhook_url, "--extender-url", self.read_url),
            *("--token-file", str(token)),
            *("--kubeconfig", str(self._kubeconfig("bursar-timekeeper"))),
        ]

    def _extender_flags(self) -> list[str]:
        token = self.folder / "extender.token"
        token.write_text(self.token(NAMESPACE, "bursar-scheduler", audience="bursar"))
        return [
            *("-m", "scheduler_ext", "--listen", f"127.0.0.1:{self._ports['extender']}"),
            *("--kubeconfig", str(self._kubeconfig("bursar-scheduler"))),
            *("--timekeeper-url", self.timekeeper_url, "--timekeeper-ca", str(self.ca_file)),
            *("--token-file", str(token)),
            *("--read-listen", f"127.0.0.1:{self._ports['read-only']}"),
            *("--read-tls-cert", f"{self.tls}/scheduler/tls.crt"),
            *("--read-tls-key", f"{self.tls}/scheduler/tls.key"),
        ]

    def _webhook_flags(self) -> list[str]:
        token = self.folder / "webhook.token"
        token.write_text(self.token(NAMESPACE, "bursar-webhook", audience="bursar"))
        return [
            *("-m", "webhook", "--listen", f"127.0.0.1:{self._ports['webhook']}"),
            *self._tls_flags("webhook"),
            *("--workers", str(self.tuning.webhook_workers)),
            *("--timekeeper-url", self.timekeeper_url, "--token-file", str(token)),
            *("--kubeconfig", str(self._kubeconfig("bursar-webhook"))),
        ]

    def _tls_flags(self, role: str) -> list[str]:
        files = self.tls / role
        return ["--tls-cert", f"{files}/tls.crt", "--tls-key", f"{files}/tls.key", "--ca", f"{files}/ca.crt"]

    def _start(self, role: str, arguments: list[str]) -> None:
        self._arguments[role] = [*arguments, *dict(self.tuning.flags).get(role, ())]
        self.start(role)

    def start(self, role: str, *more: str) -> None:
        """Start a stopped or killed role again with the same flags, and with these until its next start."""
        command = [*self.python(role), *self._arguments[role], *more]
        with self.log_file(role).open("ab") as log:
            self.processes[role] = self._launcher.start(command, log, env=self.environment(traced=False))

    def python(self, role: str) -> list[str]:
        """How a role's interpreter is started: this one, or another that does not see this folder's
        packages."""
        other = self.pythons.get(role)
        return [str(other), "-P"] if other else [sys.executable]

    def stop(self, role: str, signal_number: int = signal.SIGTERM) -> int:
        """Send a role a signal, wait for its end, and return its exit code."""
        process = self.processes.pop(role)
        process.send_signal(signal_number)
        return process.wait(timeout=LONGEST_S)

    def environment(self, traced: bool = True) -> dict[str, str]:
        """Of the caller's only PATH and, if ``traced``, coverage's variables. Roles are killed at the end and
        leave coverage no data."""
        kept = {name: value for name, value in os.environ.items() if traced and name.startswith("COVERAGE_")}
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            **kept,
        }

    def _run_once(self, name: str, arguments: list[str]) -> None:
        with self.log_file(name).open("ab") as log:
            process = self._launcher.start(
                [sys.executable, *arguments], log, env=self.environment(traced=False)
            )
        if process.wait(timeout=LONGEST_S):
            raise LocalError(f"{name} failed:\n{last_lines(self.log(name))}")

    def _kubeconfig(self, account: str) -> Path:
        return self.cp.kubeconfig(self.token(NAMESPACE, account), account)

    def token(
        self, namespace: str, account: str, audience: str | None = None, pod: dict[str, Any] | None = None
    ) -> str:
        """A service account's token from TokenRequest. With ``pod`` (its JSON) it is bound to that pod, as
        the kubelet's are."""
        spec: dict[str, Any] = {"expirationSeconds": 3600 if pod else _TOKEN_LIFE_S}
        if audience:
            spec["audiences"] = [audience]
        if pod:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.cp.api.call("POST", path, {"spec": spec})["status"]["token"])

    def reader_token(self) -> str:
        """A token of an account with the ClusterRoles for reading budgets, reports and metrics."""
        if not self.exists(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/reader"):
            self._must("create", "serviceaccount", "reader", "-n", NAMESPACE)
            for role in ("bursar-viewer", "bursar-metrics"):
                self._must(
                    *("create", "clusterrolebinding", f"{role}-local"),
                    *("--clusterrole", role, "--serviceaccount", f"{NAMESPACE}:reader"),
                )
        return self.token(NAMESPACE, "reader", audience="bursar")

    def get(self, path: str, token: str, url: str = "") -> Any:
        """A GET of the timekeeper's REST API, or of the one at ``url``: decoded JSON, or text for other
        types. Raises urllib's HTTPError."""
        request = urllib.request.Request(
            (url or self.timekeeper_url) + path, headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=LONGEST_S, context=self.tls_context()) as answer:
            body = answer.read()
            is_json = "json" in (answer.headers.get("Content-Type") or "")
        return orjson.loads(body) if is_json else body.decode()

    def tls_context(self) -> ssl.SSLContext:
        """A context that trusts this stack's CA only."""
        return ssl.create_default_context(cafile=str(self.ca_file))

    def wait(
        self, what: str, is_so: Callable[[], object], role: str | None = None, within_s: float = LONGEST_S
    ) -> None:
        """Wait until ``is_so()``. Raises LocalError if time runs out or a role has ended. A look may start a
        process: after one that took long the pause is longer too."""
        begun = looked = time.monotonic()
        while not is_so():
            self.check()
            now = time.monotonic()
            if now - begun > within_s:
                log = f":\n{last_lines(self.log(role))}" if role else ""
                raise LocalError(f"waited {within_s:.0f} s for {what}; it did not happen{log}")
            time.sleep(max(_LOOK_EVERY_S, min(_LOOK_AT_LEAST_EVERY_S, 2 * (now - looked))))
            looked = time.monotonic()

    def check(self) -> None:
        """Raises LocalError, with the end of the log, if a role or a part of the control plane has ended."""
        self.cp.check()
        for role, process in self.processes.items():
            if process.poll() is not None:
                raise LocalError(
                    f"{role} ended with exit code {process.returncode}:\n{last_lines(self.log(role))}"
                )

    def is_ready(self, url: str) -> bool:
        """Whether the role at this URL reports that it is ready."""
        target = urlsplit(url)
        host, port = target.hostname or "", target.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=LONGEST_S, context=self.tls_context())
            if target.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=LONGEST_S)
        )
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (http.client.HTTPException, OSError):
            return False
        finally:
            connection.close()

    def log_file(self, role: str) -> Path:
        """The file of a role's log."""
        return self.folder / f"{role}.log"

    def log(self, role: str) -> str:
        """The log of a role."""
        return self.log_file(role).read_text(errors="replace")

    def _must(self, *arguments: str, input: str | None = None) -> None:
        done = self.cp.kubectl(*arguments, input=input)
        if done.returncode:
            raise LocalError(f"kubectl {' '.join(arguments[:3])} failed: {done.stderr.strip()}")

    def exists(self, path: str) -> bool:
        """Whether the API server has an object at this path."""
        try:
            self.cp.api.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True


def manifests(folder: Path = MANIFESTS) -> Iterable[dict[str, Any]]:
    """Every document in deploy/manifests, or of another folder."""
    for file in sorted(folder.glob("*.yaml")):
        yield from (document for document in yaml.load_all(file.read_text(), _LOADER) if document)


def _by_url(configuration: dict[str, Any], url: str) -> None:
    """Rewrites a webhook configuration from our Service to a URL on this machine."""
    for webhook in configuration["webhooks"]:
        service = webhook["clientConfig"].pop("service")
        webhook["clientConfig"]["url"] = url + service["path"]
