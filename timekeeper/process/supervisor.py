"""``bursar-timekeeper serve``: preflight, then settler and serving workers as children, until SIGTERM."""

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event

from timekeeper.runtime.end_signals import event_of_end_signals
from timekeeper.runtime.http.server import CannotListenError, listening_socket
from timekeeper.runtime.log import log
from timekeeper.runtime.metrics_folder import VARIABLE, metrics_folder
from timekeeper.settings import TimekeeperSettings, UnusableError

_LOOK_INTERVAL_S = 0.1
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0  # a settler that ran this long has recovered
_END_WITHIN_S = 8.0


def serve(settings: TimekeeperSettings, arguments: Sequence[str]) -> int:
    """Run until SIGTERM, then shut down in order; returns the exit code.

    Raises UnusableError with a sentence if the settings cannot be used.
    """
    stop = event_of_end_signals()
    for flag, path in (("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key)):
        if not (settings.only_meter or Path(path).is_file()):
            raise UnusableError(f"{flag}: there is no file {path}; it must be a file in PEM")
    with ExitStack() as stack:
        sockets = {"--socket-fd": stack.enter_context(_listen("--listen", *settings.listen))}
        if settings.aggregated_listen is not None:
            beside = _listen("--aggregated-listen", *settings.aggregated_listen)
            sockets["--aggregated-fd"] = stack.enter_context(beside)
        folder = stack.enter_context(metrics_folder("bursar-timekeeper-"))
        family = _Family(arguments, {**os.environ, VARIABLE: str(folder)}, settings.new_holder())
        stack.callback(family.end)
        code = family.prepare(stop)
        if code or stop.is_set():
            return code
        family.serve(sockets)
        host, port = sockets["--socket-fd"].getsockname()[:2]
        log("serving", address=f"{host}:{port}", workers=settings.workers)
        if settings.is_local:
            print(_greeting(f"http://{host}:{port}", settings.local_token), flush=True)
        return family.watch(stop)


def _greeting(url: str, token: Path) -> str:
    """How to see the ledger on this machine: in a browser, or by `kubectl bursar` in another terminal."""
    return (
        f"Open {url}/ and log in with the token in {token}\n"
        "For kubectl bursar, in another terminal:\n"
        f"export BURSAR_SERVER={url}\n"
        f"export BURSAR_TOKEN_FILE={shlex.quote(str(token.resolve()))}"
    )


class _Family:
    """The child processes. They end when this process is gone, for whatever reason. This process does not
    import what they need."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str], holder: str) -> None:
        """``holder``: the name of all settlers of this process, so that the next one does not wait for the
        last one's Lease."""
        self._arguments = [*arguments, f"--holder={holder}"]
        self._environment = environment
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._settler_since = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def prepare(self, stop: Event) -> int:
        """Check the settings and migrate the database; returns the exit code, 0 also if ``stop`` was set
        meanwhile."""
        running = self._start("prepare")
        while running.poll() is None:
            if stop.wait(_LOOK_INTERVAL_S):
                return 0
        return running.returncode

    def serve(self, sockets: Mapping[str, socket.socket]) -> None:
        """Start the workers on these sockets, by the flags that name them, and the settler."""
        numbers = {flag: each.fileno() for flag, each in sockets.items()}
        words = (word for flag, number in numbers.items() for word in (flag, str(number)))
        self._start("workers", *words, fds=tuple(numbers.values()))
        self._start_settler()

    def watch(self, stop: Event) -> int:
        """Until ``stop``, restart the settler whenever it ends. Returns 1 if the workers end."""
        while not stop.wait(_LOOK_INTERVAL_S):
            code = self._children["workers"].poll()
            if code is not None:
                log("workers-ended", level="error", code=code)
                return 1
            self._keep_settler()
        return 0

    def end(self) -> None:
        """Stop the children in order; kill those that do not stop in time."""
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        until = time.monotonic() + _END_WITHIN_S
        for name in tuple(self._children):
            try:
                self._children[name].wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                log("child-killed", level="warning", child=name, reason="it did not end in time")
                self._children[name].kill()
            self._bury(name)

    def _keep_settler(self) -> None:
        """Restart it after a pause that grows while it keeps ending; meanwhile /readyz fails."""
        now = time.monotonic()
        settler = self._children.get("settle")
        if settler is None:
            if now - self._settler_since >= self._pause_s:
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                self._start_settler()
        elif settler.poll() is not None:
            if now - self._settler_since >= _STEADY_S:
                self._pause_s = _FIRST_PAUSE_S
            log("settler-ended", level="error", code=settler.returncode, again_in_s=self._pause_s)
            self._bury("settle")
            self._settler_since = now

    def _start_settler(self) -> None:
        self._start("settle")
        self._settler_since = time.monotonic()

    def _start(self, command: str, *more: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "timekeeper", *self._arguments, "--as", command, "--leash", *more]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, env=self._environment, pass_fds=fds)
        self._children[command] = child
        return child

    def _bury(self, name: str) -> None:
        child = self._children.pop(name)
        child.wait()
        if child.stdin:
            child.stdin.close()


def _listen(flag: str, host: str, port: int) -> socket.socket:
    """A socket of the workers, opened first, so that a port in use is found before anything else starts."""
    try:
        return listening_socket(host, port)
    except CannotListenError as error:
        raise UnusableError(f"{flag}: {error}") from error


def prepare(settings: TimekeeperSettings) -> None:
    """Raises UnusableError with a sentence for the operator."""
    # The supervisor itself needs none of this: it would keep 30 MiB, and import for half a second.
    from timekeeper.operations.migrate import migrate
    from timekeeper.runtime.auth.local_gate import write_token
    from timekeeper.runtime.connect import connect
    from timekeeper.serving.tls import check_files, check_oidc_files

    connect(settings.kubeconfig)
    if settings.is_local:
        _write(
            "--database", settings.local_token, lambda: write_token(settings.local_token, settings.audience)
        )
    elif settings.only_meter:
        _own_certificate(settings)
    if not settings.is_local:
        check_files(settings.tls_cert, settings.tls_key, settings.ca)
    check_oidc_files(settings.oidc)
    migrate(settings)


def _own_certificate(settings: TimekeeperSettings) -> None:
    """Nothing else makes one where the timekeeper runs alone."""
    from timekeeper.process.own_certificate import ensure

    service = f"bursar-timekeeper.{settings.namespace}"
    names = (f"{service}.svc", f"{service}.svc.cluster.local", service, "bursar-timekeeper")
    files = Path(settings.tls_cert), Path(settings.tls_key), Path(settings.ca)
    _write("--tls-cert", files[0], lambda: ensure(*files, names))


def _write(flag: str, file: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise UnusableError(f"{flag}: {file} cannot be written ({error.strerror})") from error
