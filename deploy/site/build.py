"""Builds the site from a folder that is laid out as the repository, so that relative links lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from deploy.site.lists import for_python_markdown

SETTINGS = Path(__file__).parent / "mkdocs.yml"
# files beside docs/ that pages link to
_BESIDE = (
    "README.md",
    "CHANGELOG.md",
    "deploy/samples/*.yaml",
    "deploy/manifests/*.yaml",
    "tests/README.md",
    "tests/bench/openb/README.md",
    "tests/bench/venus/README.md",
)
_FIRST: list[Any] = [{"Bursar": "README.md"}, {"All pages": "docs/README.md"}]
_LAST: list[Any] = [{"Changes": "CHANGELOG.md"}]
_ROW = re.compile(r"^\| \[[^\]]+\]\(([^)]+)\) \|")


def build(root: Path, out: Path) -> None:
    """Write the site of a checkout into a folder. Raises CalledProcessError where a page, a link or an anchor
    is wrong; mkdocs has then said which."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        _copy(root, pages)
        settings = Path(folder) / "mkdocs.yml"
        index = (root / "docs" / "README.md").read_text()
        own: dict[str, Any] = {
            "INHERIT": str(SETTINGS),
            "docs_dir": str(pages),
            "site_dir": str(out.absolute()),
            "nav": [*_FIRST, *navigation(index), *_LAST],
        }
        settings.write_text(yaml.safe_dump(own, sort_keys=False))
        mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(settings)]
        subprocess.run(mkdocs, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})


def navigation(index: str) -> list[Any]:
    """The sections of the index with their pages, as mkdocs wants them; subsections below their section."""
    sections: list[Any] = []
    section: list[Any] = []
    pages: list[Any] = []
    for line in index.splitlines():
        level, _, title = line.partition(" ")
        if level == "##":
            section = pages = []
            sections.append({title: section})
        elif level == "###":
            pages = []
            section.append({title: pages})
        elif row := _ROW.match(line):
            pages.append(f"docs/{_page(row[1])}")
    return sections


def _copy(root: Path, pages: Path) -> None:
    """The files of the site, in the places that they have in the repository."""
    files = [each for pattern in _BESIDE for each in root.glob(pattern)]
    for file in [*files, *(each for each in (root / "docs").rglob("*") if each.is_file())]:
        copy = pages / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            copy.write_text(_for_the_site(file.read_text()))
        else:
            shutil.copyfile(file, copy)
    decisions = sorted((pages / "docs" / "decisions").glob("*.md"))
    if decisions:
        (decisions[0].parent / "README.md").write_text(_list_of(decisions))


def _for_the_site(text: str) -> str:
    linked = re.sub(r"(?<=\]\()([^)\s#]*decisions)(?=\))", lambda found: _page(found[1]), text)
    return for_python_markdown(linked)


def _page(target: str) -> str:
    """A link's target; the folder of the decisions has a page that lists them."""
    return f"{target}/README.md" if target.endswith("decisions") else target


def _list_of(decisions: list[Path]) -> str:
    heads = [each.read_text().splitlines()[0].removeprefix("# ") for each in decisions]
    rows = [f"- [{head}]({each.name})" for head, each in zip(heads, decisions, strict=True)]
    return "\n".join(["# Decisions", "", *rows, ""])
