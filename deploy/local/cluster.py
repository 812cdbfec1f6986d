"""A Kubernetes control plane on this machine: etcd, API server, controllers, kwok, and any number of
schedulers."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import yaml

from deploy.local import commands
from deploy.local.api import AdminApi, forget
from deploy.local.build import Say, binaries
from deploy.local.commands import Options
from deploy.local.ending import undisturbed
from deploy.local.errors import LocalError
from deploy.local.folder import OwnedFolder
from deploy.local.identity import (
    CLUSTER_NAMES,
    LocalAuthority,
    new_authority,
    new_private_key,
    new_tokens,
    write_kubeconfig,
    write_secret,
)
from deploy.local.kwok_stages import stages
from deploy.local.processes import Processes, apart
from deploy.local.scheduler import (
    PLAIN_PROFILE,
    ExtenderTLS,
    extender,
    scheduler_configuration,
)
from timekeeper.cli.doctor.extender_entry import MANAGED_RESOURCES

_NEEDED_BYTES = 256 << 20  # etcd's log alone takes 64 MiB at once


class ControlPlane:
    """A context manager; its attributes exist between enter and exit.

    Several can run at once. When this process ends, even by SIGKILL, all processes that it started end too;
    the folder is removed at exit, or at the next start of any control plane. Raises LocalError if it cannot
    start.
    """

    url: str  # of the API server, https
    folder: Path  # temporary, for all files
    ca_file: Path  # the CA of the API server's certificate
    admin_token: str  # of a member of system:masters
    admin_kubeconfig: Path
    kubectl_path: Path  # of the same version
    api: AdminApi  # with the admin's token
    front_proxy: LocalAuthority  # of the certificate that the API server shows to APIServices
    clients: LocalAuthority  # of users' certificates

    def __init__(
        self,
        options: Options | None = None,
        *,
        tools: Mapping[str, Path] | None = None,
        say: Say | None = None,
    ) -> None:
        self._options = options or Options()
        self._tools = tools or {}
        self._say: Say = say or _to_stderr
        self._schedulers: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> "ControlPlane":
        if sys.platform != "linux":
            raise LocalError(f"a local control plane needs Linux, and this is {sys.platform}")
        self._tools = self._tools or binaries(self._say)
        self.kubectl_path = self._tools["kubectl"]
        with ExitStack() as stack:
            port = stack.enter_context(_reserved_port(self._options)).getsockname()[1]
            self.folder = stack.enter_context(OwnedFolder())
            check_space(self.folder, _NEEDED_BYTES)
            try:
                self._processes = stack.enter_context(Processes(self.folder))
                self._write_files(port)
                self._start(port)
            except OSError as error:
                raise LocalError(f"cannot set up a control plane in {self.folder}: {error}") from error
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all processes and remove the folder. A second call does nothing."""
        self._schedulers.clear()
        with undisturbed():
            self._stack.close()
        forget(getattr(self, "url", ""))

    def _write_files(self, port: int) -> None:
        host = self._options.called
        self.url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        authority = new_authority("bursar-local")
        names = dict.fromkeys(
            [*CLUSTER_NAMES, "127.0.0.1", host, commands.SERVICE_RANGE_FIRST, *self._options.names]
        )
        certificate, key = authority.leaf(names)
        self.ca_file = self.folder / "ca.crt"
        self.ca_file.write_bytes(authority.pem)
        (self.folder / "apiserver.crt").write_bytes(certificate)
        write_secret(self.folder / "apiserver.key", key)
        certificate, key = authority.leaf(["apiserver"], client=True)
        (self.folder / "kubelet-client.crt").write_bytes(certificate)
        write_secret(self.folder / "kubelet-client.key", key)
        self._write_authorities()
        write_secret(self.folder / "service-accounts.key", new_private_key())
        tokens = new_tokens(self._options.nodes)
        write_secret(self.folder / "tokens.csv", tokens.as_csv().encode())
        self.admin_token = tokens.admin
        self.admin_kubeconfig = self.kubeconfig(tokens.admin, "admin")
        self.kubeconfig(tokens.controllers, "controllers")
        self.kubeconfig(tokens.scheduler, "scheduler")
        for name, token in tokens.nodes.items():
            self.kubeconfig(token, f"node-{name}")
        (self.folder / "stages.yaml").write_text(yaml.safe_dump_all(stages()))
        self.api = AdminApi(self.url, self.ca_file, tokens.admin)

    def _write_authorities(self) -> None:
        """The CAs of users' certificates and of the certificate that the API server shows to APIServices."""
        self.front_proxy, self.clients = new_authority("front-proxy"), new_authority("clients")
        (self.folder / "front-proxy-ca.crt").write_bytes(self.front_proxy.pem)
        (self.folder / "clients-ca.crt").write_bytes(self.clients.pem)
        certificate, key = self.front_proxy.leaf([commands.FRONT_PROXY], client=True)
        (self.folder / f"{commands.FRONT_PROXY}.crt").write_bytes(certificate)
        write_secret(self.folder / f"{commands.FRONT_PROXY}.key", key)

    def _start(self, port: int) -> None:
        self._run("etcd", commands.etcd())
        self._run("kube-apiserver", commands.kube_apiserver(self._options, port))
        self._processes.wait("kube-apiserver", lambda: self.api.answers("/readyz"))
        self._run("kube-controller-manager", commands.kube_controller_manager(self._options))
        self._run("kwok", commands.kwok(self._options))
        # Pods need the namespace's service account, and the CA that is mounted with its token.
        self._processes.wait("kube-controller-manager", self._default_namespace_is_complete)

    def _default_namespace_is_complete(self) -> bool:
        namespace = "/api/v1/namespaces/default"
        return self.api.answers(f"{namespace}/serviceaccounts/default") and self.api.answers(
            f"{namespace}/configmaps/kube-root-ca.crt"
        )

    def _run(self, tool: str, arguments: Sequence[str], name: str | None = None) -> None:
        self._processes.start(name or tool, self._tools[tool], arguments)

    def start_scheduler(
        self,
        name: str = "kube-scheduler",
        *,
        profiles: Sequence[str] = (PLAIN_PROFILE,),
        extender_url: str | None = None,
        managed: Sequence[str] = MANAGED_RESOURCES,
        http_timeout: str = "2s",
        tls: ExtenderTLS | None = None,
    ) -> None:
        """Start a kube-scheduler process with these profiles, and with our extender if its URL is given.

        An extender serves all profiles of its process. So start one plain process, and under another name one
        with the profile `bursar-scheduler` and the extender. Two processes must not share a profile.
        """
        extenders = [extender(extender_url, managed, http_timeout, tls)] if extender_url else []
        configuration = scheduler_configuration(
            str(self.folder / "scheduler.kubeconfig"), profiles, extenders
        )
        file = f"{name}.yaml"
        (self.folder / file).write_text(yaml.safe_dump(configuration))
        self._run("kube-scheduler", commands.kube_scheduler(self._options, file), name)
        self._schedulers.add(name)
        try:
            self._processes.wait(name, lambda: self._processes.has_said(name, _SCHEDULER_RUNS))
        except LocalError:
            self.stop_scheduler(name)
            raise

    def start_controllers(self, name: str, controllers: Sequence[str]) -> None:
        """Start a further kube-controller-manager, which runs these controllers; `stop_process` ends it."""
        self._run(
            "kube-controller-manager", commands.kube_controller_manager(self._options, controllers), name
        )

    def stop_scheduler(self, name: str | None = None) -> None:
        """Kill the scheduler of this name, or all of them."""
        for each in {name} if name else self._schedulers & self._processes.running.keys():
            self._processes.stop(each)

    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """The running processes by name."""
        return dict(self._processes.running)

    def stop_process(self, name: str) -> None:
        """Kill one process, to test how the others cope."""
        self._processes.stop(name)

    def restart_process(self, name: str, *more: str) -> None:
        """Start it again with the same command line and data, and with these flags until its next start,
        without waiting for it."""
        self._processes.restart(name, *more)

    def check(self) -> None:
        """Raise LocalError, with the end of its log, if a process has ended that was not stopped."""
        self._processes.check()

    def logs(self, name: str) -> str:
        """The log of the process of this name."""
        return self._processes.log(name)

    def kubeconfig(self, user_token: str, name: str) -> Path:
        """Write `<name>.kubeconfig` with this bearer token into the folder; return its path."""
        path = self.folder / f"{name}.kubeconfig"
        write_kubeconfig(path, self.url, self.ca_file, user_token)
        return path

    def node_kubeconfig(self, name: str) -> Path:
        """The kubeconfig of a real node's kubelet, one of `Options.nodes`."""
        return self.folder / f"node-{name}.kubeconfig"

    def kubectl(
        self, *args: str, input: str | None = None, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as admin if no kubeconfig is given. The caller checks the exit code."""
        return subprocess.run(
            [self.kubectl_path, f"--kubeconfig={kubeconfig or self.admin_kubeconfig}", *args],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            env=apart(self.folder),
        )


_SCHEDULER_RUNS = "Starting Kubernetes Scheduler"


def _reserved_port(options: Options) -> socket.socket:
    """A socket on the port that the API server will share. It reserves the port, and since it does not
    listen, it gets no connections.
    """
    family = socket.AF_INET6 if ":" in options.listen else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        if options.port:
            # First an exclusive bind: with sharing, another control plane of this user could have the port
            # too.
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((options.listen, options.port))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((options.listen, options.port))
    except OSError as error:
        reserved.close()
        raise LocalError(
            f"cannot listen on {options.listen} port {options.port}: {error.strerror}"
        ) from error
    return reserved


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise LocalError if the disk is too full: etcd's own messages about a full disk do not name the
    cause."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise LocalError(
            f"the disk is too full: {folder.parent} has {free >> 20} MiB free, and a control plane needs"
            f" {needed_bytes >> 20}; name another place with TMPDIR"
        )


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
