"""The command ``webhook review``, which its tests of each tier run in this process."""

from pathlib import Path

import pytest

from tests.webhook.unit.test_review_command import Review


@pytest.fixture
def review(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Review:
    """The command."""
    return Review(tmp_path, capsys)
