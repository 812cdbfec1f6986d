"""The mutants written by hand fit the files that are there."""

from pathlib import Path

import pytest

from tests.mutants.patches import all_patches

ROOT = Path(__file__).parents[3]
PATCHES = all_patches()


@pytest.mark.parametrize("name", PATCHES)
def test_its_text_and_its_tests_are_there(name: str) -> None:
    patch = PATCHES[name]

    assert any(patch.old in file.read_text() for file in ROOT.glob(patch.files))
    assert patch.old != patch.new
    assert [test for test in patch.tests if not (ROOT / test).is_file()] == []
