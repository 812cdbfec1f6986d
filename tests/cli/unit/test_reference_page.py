"""docs/cli-reference.md is what the code says."""

from tests.cli.reference_page import PAGE, generated


def test_the_page_is_written_from_the_commands() -> None:
    assert PAGE.read_text() == generated(), "write it anew: python -m tests.cli.reference_page"
