"""The files of a small placement experiment."""

import json
from pathlib import Path

import pytest

from tests.bench.unit.test_placement import NODES, PODS, REPLAY


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A small experiment's files."""
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "replay.json").write_text(json.dumps(REPLAY))
    return tmp_path
