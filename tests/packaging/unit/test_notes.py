"""The release notes, which are sections of the changelog."""

import pytest

from deploy.release.archives import ROOT, ReleaseError
from deploy.release.notes import notes
from timekeeper.core import __version__

BEFORE = "# Changelog\n\nAbout it.\n\n"
UNRELEASED = "## Unreleased\n\n- new\n"
SECOND = "## 0.2.0 (2026-11-22)\n\n### Budgets\n\n- second\n"
FIRST = "## 0.1.0 (2026-10-01)\n\n- first\n"


@pytest.mark.parametrize(
    ("changelog", "version", "told"),
    [
        (f"{BEFORE}{SECOND}\n{FIRST}", "0.2.0", SECOND),
        (f"{BEFORE}{UNRELEASED}\n{SECOND}\n{FIRST}", "0.2.0", f"{UNRELEASED}\n{SECOND}"),
        (f"{BEFORE}{FIRST}", "0.1.0", FIRST),
    ],
    ids=["a release", "before the next one", "the last section"],
)
def test_notes_are_the_section_of_the_version_and_what_is_above_it(
    changelog: str, version: str, told: str
) -> None:
    assert notes(changelog, version) == told


def test_a_version_whose_section_is_not_the_newest_has_no_notes() -> None:
    with pytest.raises(ReleaseError, match=r"has no section of 0\.1\.0 below Unreleased: give"):
        notes(f"{BEFORE}{SECOND}\n{FIRST}", "0.1.0")


def test_the_changelog_has_notes_of_this_version() -> None:
    assert f"## {__version__} (" in notes((ROOT / "CHANGELOG.md").read_text(), __version__)
