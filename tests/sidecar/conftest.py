"""The authority and the timekeeper that each test of the sidecar starts from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.identity import LocalAuthority, new_authority
from tests.sidecar.worlds import Timekeeper


@pytest.fixture(scope="session")
def authority() -> LocalAuthority:
    """The authority that the sidecars are told to trust."""
    return new_authority("bursar")


@pytest.fixture
def timekeeper(tmp_path: Path, authority: LocalAuthority) -> Iterator[Timekeeper]:
    """A timekeeper that is there and well."""
    keeper = Timekeeper(tmp_path, authority)
    keeper.start()
    yield keeper
    keeper.stop()
