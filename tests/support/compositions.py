"""What `make test` and `make all` consist of.

A test on a cluster belongs to `make all` alone, unless its file is marked `make_test`. Any other belongs to
both, unless it is marked `make_all`; so is what runs on PostgreSQL (tests/timekeeper/conftest.py).
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# for pytest's -m
TEST = "not soak and not make_all and (not cluster or make_test)"
ALL = "not soak"
REST = f"not soak and not ({TEST})"  # what `make all` adds

_MODULE_MARKS = re.compile(r"^pytestmark = (\[.*?^\]|.*?$)", re.MULTILINE | re.DOTALL)
_ON_DATABASES = "tests/timekeeper/"


def ignored(marks: str) -> list[str]:
    """The options that keep pytest from importing files of which no test has these marks: a third of what it
    takes to begin."""
    return [f"--ignore={file.relative_to(ROOT)}" for file in sorted(_without(marks))]


def _without(marks: str) -> Iterator[Path]:
    if marks not in (TEST, REST):
        return
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text()
        named = "".join(_MODULE_MARKS.findall(text))
        is_cluster = file.parent.name == "cluster"
        of_test = "make_test(" in named if is_cluster else "make_all(" not in named
        of_rest = not of_test or (not is_cluster and ("make_all(" in text or _ON_DATABASES in str(file)))
        if not (of_test if marks == TEST else of_rest):
            yield file
