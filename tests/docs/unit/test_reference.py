"""The generated blocks of the pages are what the code has."""

from difflib import unified_diff

import pytest

from tests.reference.blocks import begin, table, written
from tests.reference.pages import DOCS, PAGES, generated


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_has(page: str) -> None:
    stands, made = (DOCS / page).read_text(), generated(page)
    differing = "\n".join(
        unified_diff(stands.splitlines(), made.splitlines(), page, "the code", "", "", 0, "")
    )

    assert stands == made, f"write it anew: python -m tests.reference\n{differing}"


def test_what_stands_around_a_block_stays() -> None:
    page = "before\n\n" + begin("a") + "\n\nold\n\n<!-- end of what is generated -->\n\nafter\n"

    assert written(page, {"a": "new\n"}) == page.replace("old", "new")


def test_a_page_without_its_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="the code writes"):
        written("nothing", {"a": "text"})


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(("x",), [("a|b",)]) == "| x |\n|---|\n| a\\|b |\n"
