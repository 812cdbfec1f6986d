"""``python -m tests.reference`` writes the generated blocks anew; ``--check`` writes nothing, names the pages
that differ, and exits with 1 if there are any."""

import argparse
import sys

from tests.reference.pages import DOCS, PAGES, generated


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    is_check = parser.parse_args().check
    texts = {page: generated(page) for page in PAGES}
    differing = [page for page, text in texts.items() if (DOCS / page).read_text() != text]
    for page in differing:
        if not is_check:
            (DOCS / page).write_text(texts[page])
        print(f"{'differs' if is_check else 'written'}: docs/{page}")
    return 1 if is_check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
