"""A Kubernetes control plane of one's own: etcd, API server, controllers, kwok, and schedulers as asked."""

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
from deploy.local.api import AdminApi
from deploy.local.build import Say, binaries
from deploy.local.commands import Options
from deploy.local.errors import LocalError
from deploy.local.folder import OwnedFolder
from deploy.local.identity import (
    CLUSTER_NAMES,
    new_authority,
    new_private_key,
    new_tokens,
    write_kubeconfig,
    write_secret,
)
from deploy.local.kwok_stages import stages
from deploy.local.processes import Processes, apart
from deploy.local.scheduler import (
    MANAGED_RESOURCES,
    PLAIN_PROFILE,
    ExtenderTLS,
    extender,
    scheduler_configuration,
)

_START_WITHIN_S = 60.0
_NEEDED_BYTES = 256 << 20  # etcd's log alone is made 64 MiB large at once


class ControlPlane:
    """A context manager; what is documented below is there between enter and exit.

    url: of the API server, https. ca_file: the CA that its clients trust.
    admin_token, admin_kubeconfig: of a member of system:masters. api: a small HTTP client that uses them.
    folder: the temporary folder of it all. kubectl_path: the kubectl of the same version.

    Several can run at once. Whatever ends this process, SIGKILL too, ends all that it started; the folder
    goes at exit, or at the next start of any control plane. Raises LocalError where it cannot start.
    """

    url: str
    folder: Path
    ca_file: Path
    admin_token: str
    admin_kubeconfig: Path
    kubectl_path: Path
    api: AdminApi

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
        """Kill what was started and remove the folder; a second time does nothing."""
        self._schedulers.clear()
        self._stack.close()

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

    def _start(self, port: int) -> None:
        self._run("etcd", commands.etcd())
        self._run("kube-apiserver", commands.kube_apiserver(self._options, port))
        self._processes.wait("kube-apiserver", lambda: self.api.answers("/readyz"), _START_WITHIN_S)
        self._run("kube-controller-manager", commands.kube_controller_manager(self._options))
        self._run("kwok", commands.kwok(self._options))
        # Pods cannot be made before the namespace has its service account and the CA that is mounted with it.
        self._processes.wait("kube-controller-manager", self._default_namespace_is_complete, _START_WITHIN_S)

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
        """Start a kube-scheduler process with these profiles, and our extender if its URL is given.

        A process's extender serves all of its profiles, so: one plain process, and beside it, under another
        name, one with the profile `bursar-scheduler` and the extender. No two processes may share a profile.
        """
        extenders = [extender(extender_url, managed, http_timeout, tls)] if extender_url else []
        configuration = scheduler_configuration(
            str(self.folder / "scheduler.kubeconfig"), profiles, extenders
        )
        file = f"{name}.yaml"
        (self.folder / file).write_text(yaml.safe_dump(configuration))
        self._run("kube-scheduler", commands.kube_scheduler(file), name)
        self._schedulers.add(name)
        try:
            self._processes.wait(
                name, lambda: self._processes.has_said(name, _SCHEDULER_RUNS), _START_WITHIN_S
            )
        except LocalError:
            self.stop_scheduler(name)
            raise

    def stop_scheduler(self, name: str | None = None) -> None:
        """Kill the scheduler of this name, or all of them."""
        for each in {name} if name else self._schedulers & self._processes.running.keys():
            self._processes.stop(each)

    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """What runs, by name."""
        return dict(self._processes.running)

    def stop_process(self, name: str) -> None:
        """Kill one process, to see how others bear it."""
        self._processes.stop(name)

    def restart_process(self, name: str) -> None:
        """Start it again with the same command line and data; it is not waited for."""
        self._processes.restart(name)

    def check(self) -> None:
        """Raise LocalError, with the end of its log, if a process has died that nobody stopped."""
        self._processes.check()

    def logs(self, name: str) -> str:
        """What the process of this name has written so far."""
        return self._processes.log(name)

    def kubeconfig(self, user_token: str, name: str) -> Path:
        """Write `<name>.kubeconfig` into the folder, for whoever has this bearer token; return its path."""
        path = self.folder / f"{name}.kubeconfig"
        write_kubeconfig(path, self.url, self.ca_file, user_token)
        return path

    def node_kubeconfig(self, name: str) -> Path:
        """The kubeconfig for the kubelet of a real node, one of `Options.nodes`."""
        return self.folder / f"node-{name}.kubeconfig"

    def kubectl(
        self, *args: str, input: str | None = None, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as admin if no kubeconfig is given; the caller looks at the exit code."""
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
    """A socket on the port that the API server is to share: nobody else gets the port, and since it does not
    listen it gets no connections.
    """
    family = socket.AF_INET6 if ":" in options.listen else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        if options.port:
            # An exclusive bind first: sharing would let us in beside another control plane of the same user.
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
    """Raise LocalError where the disk is too full to begin: etcd and its log say nothing that a person could
    read when it fills up."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise LocalError(
            f"the disk is too full: {folder.parent} has {free >> 20} MiB free, and a control plane needs"
            f" {needed_bytes >> 20}; name another place with TMPDIR"
        )


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
