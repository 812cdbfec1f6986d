"""Whether this machine may become a node for tests."""

import shutil
import subprocess
from pathlib import Path

from deploy.local import leftovers
from deploy.local.identity import new_tokens
from tests.local.worlds import eventually


def test_a_kubelet_of_the_machines_own_is_seen(tmp_path: Path) -> None:
    shutil.copy(shutil.which("sleep") or "", tmp_path / "kubelet")
    process = subprocess.Popen([tmp_path / "kubelet", "600"])
    try:
        eventually(leftovers.has_other_kubelet)
    finally:
        process.kill()
        process.wait()


def test_each_kubelet_has_a_token_of_its_own() -> None:
    tokens = new_tokens(["one", "two"])

    lines = [line.split(",", 3) for line in tokens.as_csv().splitlines()]
    users = {user: (token, groups) for token, user, _, groups in (line for line in lines if len(line) == 4)}
    assert users["system:node:one"] == (tokens.nodes["one"], '"system:nodes"')
    assert users["system:node:two"] == (tokens.nodes["two"], '"system:nodes"')
    assert len({line[0] for line in lines}) == 5
