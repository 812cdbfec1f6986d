"""The check of growth, on a few files."""

import pytest

from tests.growth import (
    BY_POSITION,
    LINES,
    LOOPS,
    PROMISES,
    WORDS,
    Files,
    Grants,
    grants,
    held,
    promised,
    report,
)

FIELDS = "    a: int\n    b: int\n    c: int\n    d: int\n    e: int\n"
BEFORE = {
    "webhook/a.py": 'Column("granted", "Granted")\n\n',
    "tests/a.py": "for pod in pods:\n    pass\n",
    "docs/a.md": "three words here\n",
}


def faults(now: Files, granted: Grants | None = None, used_up: Grants | None = None) -> list[str]:
    """What the check says of these files beside `BEFORE`."""
    return report(held(now), held(BEFORE), granted or {}, used_up or {})[1]


def test_what_has_not_grown_passes_and_rooms_may_trade() -> None:
    moved = {"scheduler_ext/b.py": BEFORE["webhook/a.py"], "docs/b.md": "as many words\n"}

    assert faults(BEFORE) == faults(moved) == []


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"webhook/b.py": "\n"}, LINES),
        ({"docs/b.md": "more\n"}, WORDS),
        ({"README.md": "more\n"}, WORDS),
        ({"tests/b.py": "for it in pods:\n    pass\n"}, LOOPS),
        ({"tests/b.py": f"@dataclass\nclass Pod:\n{FIELDS}    f: int\n"}, BY_POSITION),
        ({"deploy/chart/values.yaml": "images:\n"}, PROMISES),
    ],
)
def test_each_figure_that_grows_fails_unless_it_is_granted(more: Files, kind: str) -> None:
    (fault,) = faults({**BEFORE, **more})

    assert fault.startswith(f"{kind}: 1 more than the landed commit and the grants have")
    assert faults({**BEFORE, **more}, {"an answer": {kind: 1}}) == []


def test_lines_of_tests_and_words_of_the_changelog_may_grow() -> None:
    assert faults({**BEFORE, "tests/b.py": "\n\n", "CHANGELOG.md": "more\n"}) == []


def test_promises_that_came_and_went_are_named() -> None:
    now = {**BEFORE, "webhook/a.py": 'Column("used", "Used"); Rule("bare")'}

    (fault,) = faults(now)

    assert "+ column used Used, + rule bare, - column granted Granted. Remove" in fault


def test_a_grant_that_has_landed_fails_until_it_is_removed() -> None:
    granted = {"an answer": {LINES: 5}}

    assert faults(BEFORE, granted) == []
    (fault,) = faults(BEFORE, granted, granted)
    assert fault == "[tool.bursar.granted] 'an answer': it has landed; remove it from pyproject.toml"


def test_a_grant_of_something_unknown_fails() -> None:
    (fault,) = faults(BEFORE, {"an answer": {"columns": 5}})

    assert "no figure is 'columns'; allowed: promises, lines of the product" in fault


def test_grants_are_read_from_the_settings() -> None:
    settings = '[tool.bursar.granted]\n"what a group leaves" = {promises = 4, "words of docs" = 9}\n'

    assert grants({"pyproject.toml": settings}) == {"what a group leaves": {PROMISES: 4, WORDS: 9}}
    assert grants({}) == {}


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("webhook/a.py", 'Counter("bursar_a_total")', [("metric", "bursar_a_total")]),
        ("webhook/a.py", "Counter(pods)", []),
        ("timekeeper/a.py", 'log("started")', [("log event", "started")]),
        ("timekeeper/a.py", 'ApiRoute("GET", "/v1/a")', [("route", "GET /v1/a")]),
        ("timekeeper/a.py", "option(*NAMESPACE)", [("option", "")]),
        ("timekeeper/a.py", 'FindingKind("error", "no-lease")', [("finding", "error no-lease")]),
        ("timekeeper/cli/a.py", 'option("--month")', [("option", "--month")]),
        ("timekeeper/a.py", 'parser.add("--port")', [("flag", "--port")]),
        ("webhook/settings.py", 'flag("port", int)', [("flag", "port int")]),
        ("tests/a.py", 'Column("a")', []),
        ("deploy/a.py", 'Column("a")', []),
        (
            "deploy/chart/values.yaml",
            "# a\nimages:\n  tag: x\n",
            [("chart value", "images"), ("chart value", "tag")],
        ),
        ("docs/budget-settings.md", "| setting |\n| `split` | a |\n", [("setting", "split")]),
        ("docs/a.md", "| `split` | a |\n", []),
    ],
)
def test_what_users_name_is_a_promise(path: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert list(promised(path, text)) == expected


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
    assert held({"webhook/a.py": code}).figures[LOOPS] == expected


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
    assert held({"webhook/a.py": code}).figures[BY_POSITION] == expected
