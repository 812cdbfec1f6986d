"""The kernel's own cgroups and a real process."""

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.node.host import cgroups
from sidecar.node.values import ProcessOwner
from tests.node.unit.test_cgroups import ID

# What this machine has: version 2, version 1, or version 1 with version 2 in its folder "unified".
ROOTS = [
    root
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    if (root / "cgroup.controllers").exists() or (root / "cpu").is_dir()
]


def test_the_kernels_own_cgroups_show_when_a_pods_last_process_has_ended(real_pod: tuple[Path, Path]) -> None:
    root, container = real_pod
    uid = container.parent.name.removeprefix("pod")
    process = subprocess.Popen(["sleep", "600"])
    try:
        (container / "cgroup.procs").write_text(str(process.pid))

        seats = cgroups.owners(Path("/proc"), [process.pid])
        while_it_runs = cgroups.populated(root)
    finally:
        process.kill()
        process.wait()

    assert seats == {process.pid: ProcessOwner(uid, container.name)}
    assert while_it_runs[uid]
    assert not cgroups.populated(root)[uid]


@pytest.fixture(params=ROOTS, ids=str)
def real_pod(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Path]]:
    """A root of this machine, and a container's empty cgroup in the kernel's own tree, below the folder of a
    pod that is ours alone."""
    root: Path = request.param
    top = root if (root / "cgroup.controllers").exists() else root / "cpu"
    container = top / f"bursar-test-{uuid.uuid4().hex[:8]}" / "kubepods" / f"pod{uuid.uuid4()}" / ID
    try:
        container.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"needs root and a writable /sys/fs/cgroup: {error.strerror}")
    yield root, container
    for folder in (container, *container.parents[:3]):
        folder.rmdir()
