"""Building the missing binaries, with a stand-in for Go that writes scripts instead of programs."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.local.build import (
    MEANWHILE,
    NO_TABLES,
    Part,
    binaries,
    compiling,
    fetching,
    go_mod,
    required,
    staged_siblings,
)
from deploy.local.errors import LocalError
from deploy.local.golang import known_failure, run_logged
from deploy.local.limits import LONGEST_S
from deploy.local.tools import ETCD, KUBERNETES, NODE_TOOLS, TOOLS, Tool, cached_path
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]
NAMES = [tool.name for tool in TOOLS]

pytestmark = pytest.mark.soak  # a machine without a cache builds the real ones

# It notes each of its calls, with what matters of its surroundings, and obeys the files `fail`, `hang` and
# `says` beside it.
FAKE_GO = r"""#!{python}
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
if arguments == ["env", "GOVERSION"]:
    print((here / "version").read_text())
    sys.exit()
noted = ("HOME", "GOFLAGS", "GOPROXY", "GOOS", "GOMODCACHE", "CGO_ENABLED")
call = {{"arguments": arguments, "mod": pathlib.Path("go.mod").read_text()}}
with (here / "calls").open("a") as calls:
    print(json.dumps(call | {{name: os.environ.get(name) for name in noted}}), file=calls)
if (here / "fail").exists():
    print("go: downloading example.com/x v1.0.0", (here / "fail").read_text(), sep="\n")
    sys.exit(1)
if arguments[:2] == ["mod", "download"]:
    (here / "go.mod.of.kubernetes").write_text(
        "require example.com/net v0.49.0\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    )
    print("go: downloading k8s.io/kubernetes v1.37.2")
    print(json.dumps({{"GoMod": str(here / "go.mod.of.kubernetes")}}))
elif arguments[0] == "list":
    print("fmt", "example.com/a", sep="\n")
elif arguments[0] == "build":
    target = pathlib.Path(arguments[arguments.index("-o") + 1])
    packages = arguments[arguments.index("-o") + 2:]
    files = [target / package.rpartition("/")[2] for package in packages] if target.is_dir() else [target]
    if (here / "hang").exists():
        files[0].write_text("half a program")
        (here / "hanging").touch()
        while (here / "hang").exists():
            time.sleep(0.05)
    others = {{"etcd": "etcd Version: 3.7.0", "kwok": "kwok version v0.8.0", "runc": "runc version 1.5.2"}}
    others |= {{name: f"CNI {{name}} plugin v1.9.1" for name in ("bridge", "host-local", "loopback")}}
    others |= {{name: f"{{name}} module v2.4.2" for name in ("containerd", "ctr")}}
    others["containerd-shim-runc-v2"] = "  Version:  v2.4.2"
    kubernetes = "Kubernetes v1.37.2\nClient Version: v1.37.2"
    for file in files:
        says = others.get(file.name, kubernetes)
        if (here / "says").exists():
            says = (here / "says").read_text()
        file.write_text(f"#!/bin/sh\necho '{{says}}'\n")
        file.chmod(0o755)
"""


class World:
    """An empty HOME and a PATH with nothing but the stand-in for Go."""

    def __init__(self, folder: Path) -> None:
        self.go = folder / "go"
        self.go.mkdir()
        self.cache = folder / "home" / ".cache" / "bursar"
        self.environ = {"HOME": str(folder / "home"), "PATH": str(self.go)}
        self.said: list[str] = []
        self.pauses_s: tuple[float, ...] = ()
        program = self.go / "go"
        program.write_text(FAKE_GO.format(python=sys.executable))
        program.chmod(0o755)
        (self.go / "version").write_text("go1.26.0")

    def build(self, tools: tuple[Tool, ...] = TOOLS) -> dict[str, Path]:
        return binaries(self.said.append, tools, self.environ, needed_bytes=0, pauses_s=self.pauses_s)

    def calls(self, verb: str) -> list[dict[str, Any]]:
        notes = self.go / "calls"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [note for note in map(json.loads, lines) if note["arguments"][0] == verb]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_missing_is_built_once_and_found_afterwards_and_nothing_is_left_beside(world: World) -> None:
    built = world.build()

    assert built == world.build() == {tool.name: cached_path(tool, world.cache) for tool in TOOLS}
    assert len(world.calls("build")) == 3, "one build for each of Kubernetes, etcd and kwok"
    home = Path(world.environ["HOME"])
    files = {str(path.relative_to(world.cache)) for path in home.rglob("*") if not path.is_dir()}
    assert files == {"build.lock", *(str(cached_path(tool, Path())) for tool in TOOLS)}
    built["kube-scheduler"].unlink()

    world.build()

    last = world.calls("build")[-1]["arguments"]
    assert len(world.calls("build")) == 4, "only what was missing"
    assert last[-1] == "k8s.io/kubernetes/cmd/kube-scheduler"
    assert last[-2].endswith("/kube-scheduler")


def test_go_works_in_our_folders_with_our_flags_and_the_users_proxy(world: World) -> None:
    world.environ |= {"GOPROXY": "https://proxy.example.com", "GOFLAGS": "-mod=vendor", "GOOS": "plan9"}

    world.build()

    (etcd, *_) = world.calls("build")
    assert etcd["GOPROXY"] == "https://proxy.example.com"
    assert etcd["GOFLAGS"] == "-modcacherw -buildvcs=false -mod=mod"
    assert etcd["GOOS"] is None
    assert etcd["CGO_ENABLED"] == "0"
    assert Path(etcd["HOME"]).is_relative_to(world.cache)
    assert Path(etcd["GOMODCACHE"]).is_relative_to(world.cache)


def test_a_real_nodes_tools_are_built_where_that_is_requested_the_kubelet_beside_the_control_plane(
    world: World,
) -> None:
    built = world.build((*TOOLS, *NODE_TOOLS))

    assert built == {tool.name: cached_path(tool, world.cache) for tool in (*TOOLS, *NODE_TOOLS)}
    calls = {
        tuple(call["arguments"][call["arguments"].index("-o") + 2 :]): call for call in world.calls("build")
    }
    kubernetes = next(call for packages, call in calls.items() if "k8s.io/kubernetes/cmd/kubectl" in packages)
    assert {"k8s.io/kubernetes/cmd/kubelet", NO_TABLES} <= set(kubernetes["arguments"])
    stamps = kubernetes["arguments"][kubernetes["arguments"].index("-ldflags") + 1]
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in stamps
    assert "-X k8s.io/client-go/pkg/version.gitVersion=v1.37.2" in stamps
    runc = calls[("github.com/opencontainers/runc",)]
    assert runc["CGO_ENABLED"] == "1"
    assert runc["arguments"][runc["arguments"].index("-tags") + 1] == "seccomp"
    assert {call["CGO_ENABLED"] for call in calls.values() if call is not runc} == {"0"}
    kwok = calls[("sigs.k8s.io/kwok/cmd/kwok",)]
    replaces = [line for line in kwok["mod"].splitlines() if line.startswith("replace")]
    assert replaces == [  # as Kubernetes is built, so that nothing of it is compiled twice
        "replace k8s.io/api => k8s.io/api v0.37.2",
        "replace example.com/net => example.com/net v0.49.0",
    ]


def test_progress_shows_what_is_built_and_how_many_are_to_come(world: World) -> None:
    world.build()

    assert world.said[0].startswith("building etcd, kube-apiserver, ")
    assert world.said[1] == MEANWHILE
    assert [line.partition(":")[0] for line in world.said[2:]] == [
        "[1/3] etcd v3.7.0",
        "[2/3] kubernetes v1.37.2",
        "[3/3] kwok v0.8.0",
    ]


def test_a_long_run_prints_its_output_so_far(tmp_path: Path) -> None:
    told = []

    def tell(output: str, seconds: float) -> None:
        told.append((output, seconds > 0))
        (tmp_path / "heard").touch()

    # It ends only when it has been heard.
    program = "echo compiling; until [ -e heard ]; do /bin/sleep 0.05; done; echo done"
    code, output = run_logged(["/bin/sh", "-c", program], {}, tmp_path, tell, report_each_s=0.1)

    assert (code, output) == (0, "compiling\ndone\n")
    assert told[0] == ("compiling\n", True)


def test_progress_is_counted_from_what_go_prints() -> None:
    fetched = "go: downloading a v1.0.0\ngo: downloading b v1.0.0\n"

    assert fetching(fetched) == "downloading modules (2 so far)"
    assert compiling(fetched + "fmt\nexample.com/a\n", 7) == "compiled 2 of 7 packages"
    assert compiling("a\nb\n", 2) == "all 2 packages compiled, linking"


def test_staged_siblings_are_those_that_a_go_mod_maps_to_its_own_tree() -> None:
    text = """
module k8s.io/kubernetes
require k8s.io/api v0.0.0
replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/apimachinery => ./staging/src/k8s.io/apimachinery
	example.com/fork => example.com/other v1.2.3
)
"""
    assert staged_siblings(text) == ["k8s.io/api", "k8s.io/apimachinery"]
    assert "replace k8s.io/api => k8s.io/api v0.37.2\n" in go_mod(KUBERNETES, {"k8s.io/api": "v0.37.2"})
    assert "replace" not in go_mod(ETCD, {})


def test_the_requirements_of_a_go_mod_have_versions_but_for_its_siblings() -> None:
    text = """
module k8s.io/kubernetes
go 1.26.0
require example.com/one v1.0.0
require (
	example.com/two/v2 v2.3.4-0.20260101000000-0123456789ab // indirect
	k8s.io/api v0.0.0
)
replace example.com/three => example.com/three v1.1.1
"""
    assert required(text) == {
        "example.com/one": "v1.0.0",
        "example.com/two/v2": "v2.3.4-0.20260101000000-0123456789ab",
    }


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (
            'go: example.com/x: Get "https://proxy": dial tcp: lookup proxy on 127.0.0.53:53: no such host',
            r"^\[1/3\] etcd v3\.7\.0: the network does not answer: go: example\.com/x: .*no such host$",
        ),
        ("write /x/y: no space left on device", r"^\[1/3\] etcd v3\.7\.0: the disk is full$"),
        (
            "x.go:1: syntax error",
            r"(?s)^\[1/3\] etcd v3\.7\.0: go build failed:\n.*x\.go:1: syntax error$",
        ),
    ],
)
def test_a_failed_build_is_reported_in_a_sentence(world: World, output: str, sentence: str) -> None:
    (world.go / "fail").write_text(output)

    with pytest.raises(LocalError, match=sentence):
        world.build()

    (world.go / "fail").unlink()
    assert set(world.build()) == set(NAMES), "the next attempt goes through"


def test_a_download_is_tried_again_while_the_network_does_not_answer(world: World) -> None:
    (world.go / "fail").write_text("read tcp: connection reset by peer")
    world.pauses_s = (0.01, 0.01)

    with pytest.raises(LocalError, match="the network does not answer"):
        world.build()

    assert len(world.calls("mod")) == 3
    (world.go / "fail").write_text("x.go:1: syntax error")

    with pytest.raises(LocalError, match="syntax error"):
        world.build()

    assert len(world.calls("mod")) == 4


def test_the_expected_end_follows_from_what_is_done_of_all() -> None:
    kubernetes = Part(begun_s=100.0, before=1 / 7, share=5 / 7)

    assert Part(100.0, 0.0, 1 / 7).left(0.3, 110.0) == ""
    assert kubernetes.left(0.0, 160.0) == "; about 6 min left in all"
    assert kubernetes.left(0.5, 250.0) == "; about 2 min left in all"
    assert kubernetes.left(1.0, 400.0) == "; about 1 min left in all"


def test_a_binary_that_prints_another_version_than_it_should_is_not_kept(world: World) -> None:
    (world.go / "says").write_text("etcd Version: 3.5.0")

    with pytest.raises(LocalError, match="the etcd that was built does not run, or reports another version"):
        world.build()

    assert not (world.cache / "bin").exists()


def test_a_cache_that_cannot_be_written_is_reported_in_a_sentence(world: World) -> None:
    world.environ["XDG_CACHE_HOME"] = "/proc/nowhere"

    with pytest.raises(
        LocalError, match=r"^cannot write the cache folder /proc/nowhere/bursar: No such file"
    ):
        world.build()


def test_a_disk_with_too_little_room_is_reported_in_a_sentence_before_anything_is_built(world: World) -> None:
    with pytest.raises(
        LocalError, match=r"^the disk is full: the build needs 1073741824\.0 GiB below .*bursar, and"
    ):
        binaries(world.said.append, environ=world.environ, needed_bytes=2**60)

    assert world.calls("list") == []


def test_without_go_and_without_a_network_one_sentence_says_both(world: World) -> None:
    (world.go / "version").write_text("go1.19.3")
    world.environ |= {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "1", "PIP_NO_INPUT": "1"}

    with pytest.raises(
        LocalError, match=r"^Go 1\.26 or newer is not on the PATH, and cannot be downloaded: the network"
    ):
        world.build()


def test_failures_that_have_other_causes_are_not_blamed_on_network_or_disk() -> None:
    assert known_failure("undefined: x") is None


BUILD_IN_ANOTHER_PROCESS = (
    "from deploy.local.build import binaries; binaries(lambda line: print(line, flush=True), needed_bytes=0)"
)


def start_build(world: World) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD_IN_ANOTHER_PROCESS],
        cwd=REPOSITORY,
        env={**world.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_at_once_build_once(world: World) -> None:
    (world.go / "hang").touch()
    with start_build(world) as first:
        eventually((world.go / "hanging").exists)
        with start_build(world) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waiting for another process that builds the same binaries\n"
            (world.go / "hang").unlink()

            assert (first.wait(LONGEST_S), second.wait(LONGEST_S)) == (0, 0)

    assert len(world.calls("build")) == 3


def test_a_killed_build_leaves_no_half_made_binary_and_no_go_behind(world: World) -> None:
    (world.go / "hang").touch()
    with start_build(world) as process:
        eventually((world.go / "hanging").exists)
        process.send_signal(signal.SIGKILL)

    eventually(lambda: not running(str(world.go / "go")))
    assert not (world.cache / "bin").exists()
    (world.go / "hang").unlink()
    assert set(world.build()) == set(NAMES)


def running(program: str) -> list[str]:
    """The processes that were started with this among their arguments."""
    everybody = Path("/proc").glob("[0-9]*")
    return [process.name for process in everybody if program in read_arguments(process)]


def read_arguments(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
