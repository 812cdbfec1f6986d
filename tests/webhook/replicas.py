"""Webhook replicas behind one Service on a real API server, and creators that never stop.

The API server looks up the Service's endpoints itself (--enable-aggregator-routing), as kube-proxy would for
it: each new connection goes to one of those that are ready, and connections that are there stay. The webhook
configurations are those of the manifests, untouched.
"""

import base64
import fcntl
import http.client
import json
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.support.control_plane import apply_files
from tests.support.waiting import eventually
from tests.webhook.servers import ROOT, environment
from tests.webhook.worlds import half
from tests.worlds import Json
from timekeeper.runtime.api_server import APPLY
from timekeeper.runtime.connect import connect
from webhook.controller.cluster import CertificateStore
from webhook.controller.run import look
from webhook.settings.certificates import CONFIGURATION, read_certificates

MANIFESTS = ROOT / "deploy" / "manifests"
NAMESPACE = "bursar-system"
AGENTS_NAMESPACE = "bursar-node"
SERVICE = "bursar-webhook"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
BY_ENDPOINTS = Options(api_flags=("--enable-aggregator-routing=true",))
_SIOCGIFADDR = 0x8915  # netdevice(7): the address of an interface
PODS = "/api/v1/namespaces/team-a/pods"


def own_address() -> str:
    """An IPv4 address of this machine that is not loopback, for no EndpointSlice may hold such a one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, interface in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
            except OSError:
                continue  # it has none
            if answer[20] != 127:
                return socket.inet_ntoa(answer[20:24])
    pytest.skip("this machine has no address but loopback, and endpoints need one")


def prepared(cp: ControlPlane, *manifests: str) -> None:
    """Our namespaces, a user's, and these files of deploy/manifests."""
    for name in (NAMESPACE, AGENTS_NAMESPACE, "team-a"):
        cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    apply_files(cp, [MANIFESTS / f"{name}.yaml" for name in manifests])


def service(cp: ControlPlane) -> None:
    """The Service of the manifests, whose endpoints we write ourselves: there are no pods behind it."""
    spec = {"ports": [{"name": "https", "port": 443, "targetPort": 443}]}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE}, "spec": spec}
    cp.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/services", body)


class Certificates:
    """``python -m webhook certificates``, writing files into the folder ``tls``; killed at the end. As admin,
    where no other kubeconfig is given. ``program``: what ``python -m`` runs in its place."""

    def __init__(
        self,
        cp: ControlPlane,
        folder: Path,
        name: str,
        *flags: str,
        kubeconfig: Path | None = None,
        program: Sequence[str] = ("webhook", "certificates"),
    ) -> None:
        self.tls, self.log_file = folder / "tls", folder / f"certificates-{name}.log"
        self._command = [
            *(sys.executable, "-m", *program),
            *("--kubeconfig", str(kubeconfig or cp.admin_kubeconfig), "--write", str(self.tls), *flags),
        ]

    def __enter__(self) -> Self:
        with self.log_file.open("ab") as log:
            ends = "--once" in self._command  # by itself
            self.process = subprocess.Popen(self._command, stderr=log, cwd=ROOT, env=environment(traced=ends))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        """All that it has said."""
        return self.log_file.read_text(errors="replace")


def ca_bundles(cp: ControlPlane) -> list[bytes]:
    """The caBundle of each of our webhooks."""
    found = [cp.api.call("GET", f"{CONFIGURATIONS}/{kind}/{CONFIGURATION}") for kind in KINDS]
    texts = [each["clientConfig"].get("caBundle", "") for one in found for each in one["webhooks"]]
    return [base64.b64decode(text) for text in texts]


def certify(cp: ControlPlane, folder: Path, *flags: str) -> bool:
    """One look of the certificate process, in this one, writing files into the folder ``tls``; whether all
    is as it should be."""
    given = ("--kubeconfig", str(cp.admin_kubeconfig), "--write", str(folder / "tls"), "--once", *flags)
    settings = read_certificates(given, {})
    with closing(connect(settings.kubeconfig)) as api:
        return look(CertificateStore(api, settings.namespace), settings, lambda: datetime.now(UTC))


class Replica:
    """``python -m webhook`` on the machine's own address, and its endpoint of the Service.

    Entered, it serves and is ready; ended by SIGTERM.
    """

    def __init__(self, cp: ControlPlane, folder: Path, name: str, tls: Path, *flags: str) -> None:
        self.name, self.host, self.tls, self.flags = name, own_address(), tls, flags
        self._cp, self.log_file = cp, folder / f"{name}.log"
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            self.port = int(probe.getsockname()[1])
        files = ("--tls-cert", f"{tls}/tls.crt", "--tls-key", f"{tls}/tls.key", "--ca", f"{tls}/ca.crt")
        self._command = [
            *(sys.executable, "-m", "webhook", "--listen", f"{self.host}:{self.port}", *files, *flags)
        ]

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills it where it runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def begin(self) -> None:
        """Starts it, and once it says that it is ready has the API server hear of it, as a kubelet does."""
        self.start()
        try:
            eventually(lambda: self.status("/readyz") == 200, f"{self.name} to be ready")
            self.announce(ready=True)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Starts it; it is not waited for."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, cwd=ROOT, env=environment())

    def announce(self, ready: bool) -> None:
        """Writes its EndpointSlice."""
        conditions = {"ready": ready, "serving": True, "terminating": not ready}
        metadata = {"name": self.name, "labels": {"kubernetes.io/service-name": SERVICE}}
        body: Json = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.host], "conditions": conditions}],
            "ports": [{"name": "https", "port": self.port, "protocol": "TCP"}],
        }
        path = f"{SLICES}/{self.name}?fieldManager=test&force=true"
        self._cp.api.call("PATCH", path, body, APPLY)

    def terminate(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=LONGEST_S)

    def status(self, path: str) -> int:
        """What a probe of the kubelet gets, which verifies nothing; 0 where there is no answer."""
        assert self.process.poll() is None, self.log()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=LONGEST_S, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def certificate(self) -> x509.Certificate:
        """The one that it serves at this moment. Raises OSError where it does not serve."""
        return served(self.host, self.port)

    def log(self) -> str:
        """All that it has said."""
        return self.log_file.read_text(errors="replace")

    def reviews(self) -> int:
        """How many reviews it has answered."""
        return self.log().count("event=review")


def served(host: str, port: int) -> x509.Certificate:
    """The certificate that a server shows in a handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=LONGEST_S) as raw,
        context.wrap_socket(raw, server_hostname=f"{SERVICE}.{NAMESPACE}.svc") as tls,
    ):
        return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")


@dataclass(slots=True)
class Created:
    """What became of the creators' pods: how many were stored governed, and every other answer."""

    governed: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Created") -> "Created":
        return Created(self.governed + other.governed, self.failures + other.failures)


class Creators:
    """A context manager: so many threads that create GPU pods, one after another, each on its own kept-alive
    connection to the API server, until exit; with a pause, to leave the machine to others."""

    def __init__(self, cp: ControlPlane, threads: int, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self._cp, self._ended, self._begin = cp, threading.Event(), secrets.token_hex(3)
        self._each = [Created() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._create, args=(number, result), daemon=True)
            for number, result in enumerate(self._each)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=LONGEST_S)

    def created(self) -> Created:
        """All of them together."""
        return sum(self._each, Created())

    def more(self, count: int) -> None:
        """Waits until so many more pods have been created, or something has failed."""
        until = self.created().governed + count
        eventually(
            lambda: self.created().governed >= until or bool(self.created().failures),
            f"{count} more pods",
        )

    def _create(self, number: int, result: Created) -> None:
        address = urlsplit(self._cp.url)
        context = ssl.create_default_context(cafile=str(self._cp.ca_file))
        connection = http.client.HTTPSConnection(
            str(address.hostname), address.port, timeout=LONGEST_S, context=context
        )
        headers = {"Authorization": f"Bearer {self._cp.admin_token}", "Content-Type": "application/json"}
        while not self._ended.wait(self._pause_s):
            name = f"pod-{self._begin}-{number}-{result.governed + result.failures.total()}"
            try:
                connection.request("POST", PODS, json.dumps(gpu_pod(name)), headers)
                with connection.getresponse() as answer:
                    _count(answer.status, json.loads(answer.read()), result)
            except (OSError, http.client.HTTPException, ValueError) as error:
                result.failures[f"{type(error).__name__}: {error}"] += 1
                connection.close()
        connection.close()


def _count(status: int, body: Any, result: Created) -> None:
    if status != 201:
        result.failures[f"{status} {body.get('message')}"] += 1
    elif "bursar.dev/governed" not in body["metadata"].get("labels", {}):
        result.failures["not governed"] += 1
    else:
        result.governed += 1


def asking_nobody(folder: Path) -> tuple[str, ...]:
    """Flags of a webhook without a timekeeper."""
    token = folder / "token"
    token.write_text("none")
    return "--timekeeper-url", f"https://127.0.0.1:{free_port()}", "--token-file", str(token)


def gpu_pod(name: str) -> Json:
    """A pod that asks for half a card."""
    spec = {"containers": [half()]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextmanager
def watching(look: Any, every_s: float = 0.1) -> Iterator[None]:
    """Has ``look()`` called again and again, in a thread, until exit; OSErrors are what may happen then."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(every_s):
            try:
                look()
            except OSError:
                continue

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=LONGEST_S)
