"""docs/README.md lists every page, and every link of every page resolves, heading included."""

import re
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT

DOCS = ROOT / "docs"
INDEX = (DOCS / "README.md").read_text()
PAGES_OF_USERS = sorted((*DOCS.glob("*.md"), *DOCS.glob("coming-from/*.md"), *DOCS.glob("platforms/*.md")))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def test_every_page_has_one_row_in_the_index() -> None:
    listed = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\) \| \S.*\|$", INDEX, re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in PAGES_OF_USERS} - {"README.md"}

    assert sorted(target for _, target in listed) == sorted(pages | {"decisions"})
    assert [name for name, target in listed if name != target] == []


def test_the_index_has_the_four_kinds_of_pages_and_no_page_outside_them() -> None:
    kinds = [line for line in INDEX.splitlines() if line.startswith("## ")]

    assert kinds == ["## Tutorial", "## How-to guides", "## Reference", "## Explanation"]
    assert "](" not in INDEX.partition("## ")[0].replace("[the README](../README.md)", "")


def test_the_readme_is_short_and_leads_to_the_index() -> None:
    readme = (ROOT / "README.md").read_text()

    assert len(readme.splitlines()) <= 150
    assert "](docs/README.md)" in readme


def test_the_page_on_enforcement_is_found_from_where_people_begin() -> None:
    assert "(docs/enforcement.md)" in (ROOT / "README.md").read_text()
    for page in ("bypass", "governed-pods", "settings"):
        assert "(enforcement.md" in (DOCS / f"{page}.md").read_text()


def test_a_decision_has_one_number_in_file_and_heading() -> None:
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    headings = [re.match(r"# (\d+)\. ", page.read_text()) for page in pages]
    numbers = [int(page.name[:4]) for page in pages]

    assert [int(heading[1]) for heading in headings if heading] == numbers
    assert len(set(numbers)) == len(numbers) > 50


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        target, _, anchor = link.partition("#")
        aim = (page.parent / target).resolve() if target else page
        if "://" not in link and (not aim.exists() or (anchor and anchor not in anchors(aim))):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("page", PAGES_OF_USERS, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    roles = "webhook|timekeeper|scheduler_ext|sidecar|tests|deploy|migrations"
    named = re.findall(rf"`((?:{roles})/[\w./-]+\.\w+)`", page.read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_heading_becomes_the_anchor_that_github_makes_of_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `overuse: evict`\n\n```sh\n# a comment\n```\n\n## Who's there, and why?\n")

    assert anchors(page) == {"overuse-evict", "whos-there-and-why"}
