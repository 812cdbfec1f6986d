"""A town for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timekeeper.worlds import Town


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    built = Town(tmp_path)
    yield built
    built.close()
