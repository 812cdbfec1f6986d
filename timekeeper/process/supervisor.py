"""``bursar-timekeeper serve``: preflight, then settler and serving workers as children, until SIGTERM.

The children are forks of this process, which has imported what they need: none of them imports it again, a
settler that ends is there again at once, and all share the memory of what was imported. This process itself
opens no connection, and its one thread waits for signals.
"""

import ctypes
import gc
import multiprocessing
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path
from threading import Event

from timekeeper.edge.log import configure
from timekeeper.edge.reflector import ExpiredError, UnreachableError
from timekeeper.log import log
from timekeeper.runtime import metrics_folder, parent_death
from timekeeper.runtime.end_signals import END_SIGNALS, event_of_end_signals
from timekeeper.runtime.http.server import CannotListenError, listening_socket
from timekeeper.settings import TimekeeperSettings, UnusableError, exit_code

_LOOK_INTERVAL_S = 0.1
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0  # a settler that ran this long has recovered
_END_WITHIN_S = 8.0
_FORK = multiprocessing.get_context("fork")
_SET_NAME = 15  # prctl(2)


def serve(settings: TimekeeperSettings) -> int:
    """Run until SIGTERM, then shut down in order; returns the exit code.

    Raises UnusableError with a sentence if the settings cannot be used.
    """
    stop = event_of_end_signals()
    for flag, path in (("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key)):
        if not (settings.only_meter or Path(path).is_file()):
            raise UnusableError(f"{flag}: there is no file {path}; it must be a file in PEM")
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listen("--listen", *settings.listen))]
        if settings.aggregated_listen is not None:
            beside = _listen("--aggregated-listen", *settings.aggregated_listen)
            sockets.append(stack.enter_context(beside))
        folder = stack.enter_context(metrics_folder.metrics_folder("bursar-timekeeper-"))
        os.environ[metrics_folder.VARIABLE] = str(folder)
        _import_roles()
        family = _Family(settings)
        stack.callback(family.end)
        code = family.prepare(stop)
        if code or stop.is_set():
            return code
        family.serve(sockets)
        host, port = sockets[0].getsockname()[:2]
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
    """The child processes. They end when this process is gone, for whatever reason."""

    def __init__(self, settings: TimekeeperSettings) -> None:
        self._settings = settings
        # One name for all settlers of this process: the next one does not wait for the last one's Lease.
        self._holder = settings.new_holder()
        self._leash = os.pipe()
        self._children: dict[str, ForkProcess] = {}
        self._settler_since = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def prepare(self, stop: Event) -> int:
        """Check the settings and migrate the database; returns the exit code, 0 also if ``stop`` was set
        meanwhile."""
        running = self._start("prepare", partial(prepare, self._settings))
        while running.exitcode is None:
            if stop.wait(_LOOK_INTERVAL_S):
                return 0
        return running.exitcode

    def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Start the workers on these sockets, and the settler."""
        from timekeeper.serving.gunicorn_app import serve as serve_workers

        numbers = [listener.fileno() for listener in sockets]
        self._start("workers", partial(serve_workers, self._settings, numbers, self._leash[0]))
        self._start_settler()

    def watch(self, stop: Event) -> int:
        """Until ``stop``, restart the settler whenever it ends. Returns 1 if the workers end, 2 if the
        settler cannot use its settings."""
        while not stop.wait(_LOOK_INTERVAL_S):
            code = self._children["workers"].exitcode
            if code is not None:
                log("workers-ended", level="error", code=code)
                return 1
            if self._keep_settler():
                return 2
        return 0

    def end(self) -> None:
        """Stop the children in order; kill those that do not stop in time."""
        for child in self._children.values():
            child.terminate()
        until = time.monotonic() + _END_WITHIN_S
        for name in tuple(self._children):
            self._children[name].join(max(0.0, until - time.monotonic()))
            if self._children[name].is_alive():
                log("child-killed", level="warning", child=name, reason="it did not end in time")
                self._children[name].kill()
            self._bury(name)
        for end in self._leash:
            os.close(end)

    def _keep_settler(self) -> bool:
        """Restart it after a pause that grows while it keeps ending; meanwhile /readyz fails. True: it cannot
        use its settings."""
        now = time.monotonic()
        settler = self._children.get("settle")
        if settler is None:
            if now - self._settler_since >= self._pause_s:
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                self._start_settler()
        elif (code := settler.exitcode) is not None:
            if now - self._settler_since >= _STEADY_S:
                self._pause_s = _FIRST_PAUSE_S
            log("settler-ended", level="error", code=code, again_in_s=self._pause_s)
            self._bury("settle")
            self._settler_since = now
            return code == 2
        return False

    def _start_settler(self) -> None:
        from timekeeper.settler.process import settle

        self._start("settle", partial(settle, self._settings, self._holder))
        self._settler_since = time.monotonic()

    def _start(self, name: str, run: Callable[[], int | None]) -> ForkProcess:
        child = _FORK.Process(target=_be_child, args=(name, run, self._settings, self._leash), daemon=True)
        # A signal that comes before the child has its own handlers waits for these.
        signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        try:
            child.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        self._children[name] = child
        return child

    def _bury(self, name: str) -> None:
        child = self._children.pop(name)
        child.join()
        child.close()


def _be_child(
    name: str, run: Callable[[], int | None], settings: TimekeeperSettings, leash: tuple[int, int]
) -> None:
    """In the child, which ends with the exit code that ``run`` returns."""
    signal.set_wakeup_fd(-1)
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)
    os.close(leash[1])
    parent_death.hold(leash[0], metrics_folder.remove_ours)
    configure("settler" if name == "settle" else "timekeeper", settings.log_format, settings.logs_problems)
    sys.exit(exit_code(run))


def _import_roles() -> None:
    """Import what the children need, after the environment names the folder of metrics."""
    import timekeeper.operations.migrate
    import timekeeper.serving.gunicorn_app
    import timekeeper.settler.process  # noqa: F401

    gc.freeze()  # no child's collector looks at it, and so copies it


def _listen(flag: str, host: str, port: int) -> socket.socket:
    """A socket of the workers, opened first, so that a port in use is found before anything else starts."""
    try:
        return listening_socket(host, port)
    except CannotListenError as error:
        raise UnusableError(f"{flag}: {error}") from error


def prepare(settings: TimekeeperSettings) -> None:
    """Raises UnusableError with a sentence for the operator."""
    from timekeeper.operations.migrate import migrate
    from timekeeper.runtime.auth.local_gate import write_token
    from timekeeper.runtime.connect import connect
    from timekeeper.serving.tls import check_files, check_oidc_files
    from timekeeper.settler.process import claim_ledger
    from timekeeper.store.engine.engine import open_store

    api = connect(settings.kubeconfig)
    if settings.is_local:
        _write("--database", settings.local_token, lambda: write_token(settings.local_token))
    elif settings.only_meter:
        _own_certificate(settings)
    if not settings.is_local:
        check_files(settings.tls_cert, settings.tls_key, settings.ca)
    check_oidc_files(settings.oidc)
    migrate(settings)
    with closing(open_store(settings.database)) as store, suppress(UnreachableError, ExpiredError):
        claim_ledger(settings, store, api)


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
