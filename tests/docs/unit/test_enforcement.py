"""The page on enforcement names what the code writes, and is found from the pages that people begin with."""

from pathlib import Path

from timekeeper.core import names
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.mutation import mps
from timekeeper.core.admission.rules.device_annotations import DEVICE_WORDS, shown_as
from webhook.settings.serve import read

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "enforcement.md").read_text()


def test_every_annotation_and_variable_of_cards_and_limits_is_documented() -> None:
    for name in (*mps.NAMES, VISIBLE_DEVICES):
        assert f"`{name}`" in PAGE
    for prefix in (names.MPS_MEMORY, names.MPS_THREADS):
        assert f"`{prefix}CONTAINER`" in PAGE
    for word in DEVICE_WORDS:
        assert f"`{shown_as(word)}`" in PAGE


def test_the_folder_of_the_pipes_is_nvidias_and_the_default() -> None:
    pipes = read(["--mps", "on"], {}).policy.mps_pipes

    assert f"`{pipes}`, NVIDIA's default" in " ".join(PAGE.split())
    assert f"| `--mps-pipe-directory` | `{pipes}` |" in (ROOT / "docs" / "settings.md").read_text()


def test_it_is_found_from_the_readme_and_from_the_page_on_ways_around() -> None:
    assert "(docs/enforcement.md)" in (ROOT / "README.md").read_text()
    for page in ("bypass", "governed-pods", "settings"):
        assert "(enforcement.md" in (ROOT / "docs" / f"{page}.md").read_text()
