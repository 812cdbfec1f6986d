"""Another kubelet or container runtime that runs on this machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.local import cleanup
from tests.support.waiting import eventually


@pytest.mark.parametrize("name", ["kubelet", "containerd", "dockerd"])
def test_a_kubelet_or_a_runtime_of_the_machines_own_is_seen(tmp_path: Path, name: str) -> None:
    shutil.copy(shutil.which("sleep") or "", tmp_path / name)
    process = subprocess.Popen([tmp_path / name, "600"])
    try:
        eventually(cleanup.has_other_runtime)
        eventually(lambda: cleanup.has_other_kubelet() or name != "kubelet")
    finally:
        process.kill()
        process.wait()
