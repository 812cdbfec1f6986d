"""The check of budgets, on a few files."""

import tomllib
from pathlib import Path

import pytest

from tests.budgets import ROOMS, ROOT, BudgetError, held, lowered, report

LOOPS = "loop variables named each, found, it or one"
DATACLASSES = "dataclasses of more than five fields without kw_only"
FIELDS = "    a: int\n    b: int\n    c: int\n    d: int\n    e: int\n"
FILES = {
    "webhook/long.py": "# a comment\n\nanswer = 1\n",
    "webhook/short.py": "answer = 1\n",
    "webhook/wire/empty.py": "",
    "webhook/wire/middle.py": "answer = 1\n\n",
}


def faults(files: dict[str, str], budgets: dict[str, int]) -> list[str]:
    """What the check says of these files, with room for what the budgets do not name."""
    parts = held(files)
    return report(parts, {name: 0 for name in (LOOPS, DATACLASSES) if name in parts} | budgets)[1]


def test_a_room_within_its_budget_is_shown_beside_it() -> None:
    lines, found_faults = report({"webhook": {"webhook/a.py": 1_200}}, {"webhook": 1_300})

    assert (lines, found_faults) == (["    1,200 of     1,300  webhook"], [])


def test_a_room_above_its_budget_fails_with_its_three_largest_files() -> None:
    assert faults(FILES, {"webhook": 6}) == []
    (fault,) = faults(FILES, {"webhook": 5})

    assert fault == (
        "webhook: 6, above its budget of 5. Its largest files: webhook/long.py (3), webhook/wire/middle.py "
        "(2), webhook/short.py (1). Who needs more says in the commit which lines leave, and takes them from "
        "another budget."
    )


def test_a_file_in_no_room_is_named() -> None:
    with pytest.raises(BudgetError, match=r"^edge/client\.py belongs to no room"):
        held({"edge/client.py": ""})


def test_a_room_without_files_and_a_part_without_a_budget_fail() -> None:
    assert faults(FILES, {"webhook": 6, "sidecar": 100}) == [
        "sidecar: no file belongs to it; remove its budget from pyproject.toml"
    ]
    assert faults(FILES, {}) == ["webhook: it has no budget in pyproject.toml"]


def test_a_file_belongs_to_the_innermost_room_and_a_test_to_its_role() -> None:
    paths = (
        "sidecar/run.py",
        "sidecar/node/run.py",
        "deploy/local/a.py",
        "tests/run.py",
        "tests/cli/unit/a.py",
    )

    rooms = [room for room in held(dict.fromkeys(paths, "")) if room not in (LOOPS, DATACLASSES)]

    assert rooms == ["sidecar", "node agent", "deploy/local", "tests", "tests/cli"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("for each in pods:\n    pass\n", 1),
        ("for name, (one, it) in pods:\n    pass\n", 2),
        ("names = {each: [found for found in each] for each in pods}\n", 2),
        ("for pod in pods:\n    each = pod\n", 0),
    ],
)
def test_pronouns_are_counted_where_a_loop_or_a_comprehension_binds_them(code: str, expected: int) -> None:
    assert sum(held({"webhook/a.py": code})[LOOPS].values()) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"@dataclass(frozen=True, slots=True)\nclass Pod:\n{FIELDS}    f: int\n", 1),
        (f"@dataclass\nclass Pod:\n{FIELDS}    f: int = 1\n", 1),
        (f"@dataclass\nclass Pod:\n{FIELDS}", 0),
        (f"@dataclass(kw_only=True)\nclass Pod:\n{FIELDS}    f: int\n", 0),
        (f"@dataclass\nclass Pod:\n{FIELDS}    _: KW_ONLY\n    f: int\n", 0),
        (f"@dataclass\nclass Pod:\n{FIELDS}    f: ClassVar[int] = 1\n", 0),
        (f"@dataclass\nclass Pod:\n{FIELDS}    f: int = field(init=False)\n", 0),
        (f"class Pod:\n{FIELDS}    f: int\n", 0),
    ],
)
def test_a_dataclass_that_takes_more_than_five_fields_by_position_is_counted(
    code: str, expected: int
) -> None:
    assert sum(held({"webhook/a.py": code})[DATACLASSES].values()) == expected


def test_lowering_never_raises_a_budget() -> None:
    settings = '[tool.bursar.budgets]\n"webhook" = 9\n"sidecar" = 1\n'
    budgets = {"webhook": 9, "sidecar": 1}
    parts = {"webhook": {"webhook/a.py": 7}, "sidecar": {"sidecar/a.py": 2}}

    assert lowered(settings, parts, budgets) == '[tool.bursar.budgets]\n"webhook" = 7\n"sidecar" = 1\n'


def test_each_room_has_a_budget_in_the_settings() -> None:
    settings = tomllib.loads(Path(ROOT / "pyproject.toml").read_text())

    assert ROOMS.keys() <= settings["tool"]["bursar"]["budgets"].keys()
