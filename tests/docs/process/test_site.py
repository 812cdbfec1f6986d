"""The site: all pages of the index are in it, links are checked, and nothing comes from other hosts."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploy.site.build import build
from deploy.site.lists import for_python_markdown
from tests.packaging.checkout import ROOT

pytestmark = pytest.mark.make_all("it builds the documentation's site")

DOCS = ROOT / "docs"


class Page(HTMLParser):
    """What a page loads, and how deep its blocks of code are in lists."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.lists = self.items = 0
        self.code_in_items = 0
        self._open: list[str] = []
        self._in_article = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "link") and given.get("rel") != "canonical":
            self.loaded += [str(given[each]) for each in ("src", "href") if given.get(each)]
        self._in_article = self._in_article or tag == "article"
        if self._in_article and tag in ("ol", "li"):
            self._open.append(tag)
            self.lists += tag == "ol"
            self.items += tag == "li" and self._open[-2:-1] == ["ol"]
        self.code_in_items += self._in_article and tag == "pre" and "li" in self._open

    def handle_endtag(self, tag: str) -> None:
        self._in_article = self._in_article and tag != "article"
        if self._in_article and tag in ("ol", "li"):
            self._open.pop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(ROOT, folder)
    return folder


def test_every_page_of_the_index_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    made = {each.relative_to(site / "docs") for each in (site / "docs").rglob("*.html")}
    pages = {each.relative_to(DOCS).with_suffix(".html") for each in DOCS.rglob("*.md")}
    front = (site / "index.html").read_text()

    assert made - {Path("decisions/index.html"), Path("index.html")} == pages - {Path("README.html")}
    of_users = {each for each in pages if each.parts[0] != "decisions"} - {Path("README.html")}
    assert {each for each in of_users if f'href="docs/{each}"' not in front} == set()
    listed = (site / "docs" / "decisions" / "index.html").read_text()
    assert {each.name for each in pages if f'href="{each.name}"' in listed} >= {
        each.name for each in pages if each.parts[0] == "decisions"
    }


def test_the_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = {each: Page(each.read_text()) for each in site.rglob("*.html")}
    styles = [each.read_text() for each in site.rglob("*.css")]

    assert len(pages) > 50
    assert {address for page in pages.values() for address in page.loaded if "//" in address} == set()
    assert [each for each in styles if re.search(r"url\([\"']?(https?:)?//|@import", each)] == []
    # the theme fetches a script for these from another host
    assert [each for each in pages if 'class="mermaid' in each.read_text()] == []


def test_the_picture_of_the_architecture_is_in_the_site_for_both_colours_and_alone(site: Path) -> None:
    shown = [
        each
        for each in Page((site / "docs" / "architecture.html").read_text()).loaded
        if each.startswith("images/")
    ]
    picture = (site / "docs" / shown[0]).read_text()

    assert shown == ["images/architecture.svg"]
    assert "prefers-color-scheme: dark" in picture
    assert re.findall(r"href|@import|url\((?!#)|<(?:script|image|use|foreignObject)", picture) == []
    assert {each.tag.partition("}")[2] for each in ElementTree.fromstring(picture)} >= {"title", "desc"}  # noqa: S314
    assert [each for each in DOCS.rglob("*.md") if "```mermaid" in each.read_text()] == []


def test_steps_with_commands_stay_one_list(site: Path) -> None:
    page = Page((site / "docs" / "install.html").read_text())
    source = (DOCS / "install.md").read_text()

    assert page.items == len(re.findall(r"^\d+\. ", source, re.MULTILINE))
    assert page.lists == len(re.findall(r"^1\. ", source, re.MULTILINE))
    assert page.code_in_items == len(re.findall(r"^   ```\w", source, re.MULTILINE))


def test_a_list_keeps_its_words_and_gets_the_columns_of_python_markdown() -> None:
    text = "Why:\n- a\n  more\n  1. b\n\n     ```sh\n       c\n     ```\n\nend\n"

    assert for_python_markdown(text) == (
        "Why:\n\n- a\n    more\n\n    1. b\n\n        ```sh\n          c\n        ```\n\nend\n"
    )


def checkout(folder: Path, link: str) -> None:
    """A checkout with an index that has a link."""
    (folder / "docs").mkdir()
    (folder / "README.md").write_text("# Front\n")
    (folder / "CHANGELOG.md").write_text("# Changes\n")
    (folder / "docs" / "README.md").write_text(f"# Index\n\n{link}\n")


@pytest.mark.soak
@pytest.mark.parametrize(
    "link", ["[x](nothing.md)", "[x](README.md#nothing)", "[x](/absolute.md)", "![x](nothing.svg)"]
)
def test_a_broken_link_stops_the_build(tmp_path: Path, link: str) -> None:
    checkout(tmp_path, link)

    with pytest.raises(subprocess.CalledProcessError):
        build(tmp_path, tmp_path / "out")


@pytest.mark.soak
def test_the_same_build_without_a_broken_link_succeeds(tmp_path: Path) -> None:
    checkout(tmp_path, "[x](../README.md#front)")

    build(tmp_path, tmp_path / "out")

    assert (tmp_path / "out" / "docs" / "index.html").is_file()
