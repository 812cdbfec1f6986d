"""Calls of kubectl, which has the user's cluster, identity and plugins for logging in."""

import json
import os
import re
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from timekeeper.cli.output import CommandError
from timekeeper.edge.mended_json import mended

_CALL_S = 30.0
_FORWARD_S = 20.0


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``kubeconfig``, ``context``: as kubectl's flags of these names; "": its defaults."""

    kubeconfig: str = ""
    context: str = ""

    def run(self, *arguments: str, within_s: float = _CALL_S) -> str:
        """Standard output. Raises CommandError with what kubectl said."""
        command = self._command(*arguments)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"kubectl {arguments[0]} gave no answer within {within_s:g} s") from error
        if done.returncode:
            raise CommandError(f"kubectl {arguments[0]}: {_said(done.stderr)}")
        return done.stdout

    def write(self, out: BinaryIO, *arguments: str) -> None:
        """Writes standard output into a file, however long it takes. Raises CommandError with what kubectl
        said."""
        command = self._command(*arguments)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, check=False
        )
        if done.returncode:
            raise CommandError(f"kubectl {arguments[0]}: {_said(done.stderr.decode(errors='replace'))}")

    def get(self, *arguments: str) -> Any:
        """The JSON of ``kubectl get``; None for an object that does not exist. Raises CommandError."""
        text = self.run("get", *arguments, "--ignore-not-found", "-o", "json")
        return json.loads(mended(text.encode())) if text.strip() else None

    def namespace(self) -> str:
        """The namespace of the context, or ``default``."""
        found = self.run("config", "view", "--minify", "-o", "jsonpath={..namespace}").strip()
        return found.split()[0] if found else "default"

    @contextmanager
    def forwarded(self, namespace: str, target: str, port: int) -> Iterator[int]:
        """A port of this machine that leads to ``port`` of the pod or Service while the context lasts. Raises
        CommandError."""
        command = self._command("port-forward", "--address", "127.0.0.1", "-n", namespace, target, f":{port}")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield _forwarded_port(process, target)
            finally:
                process.terminate()

    @contextmanager
    def proxied(self, prefix: str) -> Iterator[Path]:
        """A Unix socket of this user alone, on which kubectl proxy passes requests for paths below ``prefix``
        to the API server with the user's identity, while the context lasts. Raises CommandError."""
        with tempfile.TemporaryDirectory(prefix="kubectl-bursar-") as folder:
            path = Path(folder) / "proxy"
            allowed = f"--accept-paths=^{re.escape(prefix)}/"
            command = self._command("proxy", f"--unix-socket={path}", allowed)
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                try:
                    _first_line(process, "proxy")
                    yield path
                finally:
                    process.terminate()

    def _command(self, *arguments: str) -> list[str]:
        program = shutil.which("kubectl")
        if program is None:
            raise CommandError(
                "kubectl was not found on the PATH; install it, or use --server and --token-file"
            )
        flags = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        flags += [f"--context={self.context}"] if self.context else []
        return [program, *flags, *arguments]


def _forwarded_port(process: "subprocess.Popen[str]", target: str) -> int:
    """The port in kubectl's first line, `Forwarding from 127.0.0.1:PORT -> ...`."""
    line = _first_line(process, f"port-forward to {target}")
    return int(line.partition(" -> ")[0].rpartition(":")[2])


def _first_line(process: "subprocess.Popen[str]", what: str) -> str:
    """What kubectl says once it serves. Raises CommandError."""
    output, errors = cast(IO[str], process.stdout), cast(IO[str], process.stderr)  # both are pipes
    with selectors.DefaultSelector() as waiting:
        waiting.register(output, selectors.EVENT_READ)
        if not waiting.select(_FORWARD_S):
            raise CommandError(f"kubectl {what} gave no answer within {_FORWARD_S:g} s")
    line = output.readline()
    if not line:
        raise CommandError(f"kubectl {what.partition(' ')[0]}: {_said(errors.read())}")
    return line


def _said(text: str) -> str:
    """The last line of an error, which says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        lines[-1].removeprefix("error: ")
        if lines
        else f"it failed and said nothing (PATH: {os.environ.get('PATH', '')})"
    )
