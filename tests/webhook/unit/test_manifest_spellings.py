"""How spellings in a manifest are read: as kubectl's library (sigs.k8s.io/yaml) does, or as mistakes."""

import math
from typing import Any

import pytest

from webhook.dryrun.judge.manifests import read

SCALARS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
    **dict.fromkeys(("1", "+1", "1_", "1.", "1e0"), 1),
    **dict.fromkeys(("0", "00", "-0", "-0.0"), 0),
    **dict.fromkeys(
        ("17", "1_7", "1__7", "0x11", "0X11", "0x_11", "0b10001", "0B10001", "021", "0o21", "0O21"), 17
    ),
    **{"-1": -1, "-0x1f": -31, "-017": -15, "08": 8, "09": 9, "0o7_7": 63},
    **dict.fromkeys(("1e3", "1E3", "1e+3", "1.0e3", "1_000"), 1000),
    **{"1e-3": 0.001, "1.5": 1.5, ".5": 0.5, "-.5": -0.5, "+.5": 0.5, "1_0.5": 10.5},
    **{"1e20": 10**20, "1e21": 1e21, "123456789012345678901234567890": 1.2345678901234568e29},
    # as far as 64 bits go; beyond them a float
    **{"9223372036854775808": 2**63, "18446744073709551615": 2**64 - 1, "0xffffffffffffffff": 2**64 - 1},
    **{"18446744073709551616": 2**64, "-9223372036854775808": -(2**63), "-9223372036854775809": -(2**63)},
    **{'"1"': "1", "'017'": "017", '"yes"': "yes", '"~"': "~", '""': "", '"\\u00e9\\x41"': "éA"},
    **{"!!str 1": "1", "!!str yes": "yes", "! 1": "1", '!!int "017"': 15, '!!null ""': None},
    **{"!!float 1": 1, "!!bool 'no'": False, "!!int x": "x"},
    "9" * 5000: "9" * 5000,
}
TEXTS = (
    *("tRUE", "nULL", "none", "_1", "0o8", "0xg", "0b2", "1e", ".", "+", "--", "=", "<<", "\u0665", "1,000"),
    *(
        "5Gi",
        "500m",
        "190:20:30",
        "1:30",
        "-1:30",
        "2026-01-01",
        "2026-01-01 10:00:00",
        "1e400",
        "inf",
        "nan",
    ),
    *(
        "2001-12-14t21:59:43.10-05:00",
        "-1e400",
        "0x" + "f" * 40,
        "0x10000000000000000",
        "b#c",
        "b:c",
        "v1.2.3",
        "0.0.0.0/0",
    ),
)
NO_NUMBERS = (".inf", "-.inf", "+.inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN")


@pytest.mark.parametrize(
    ("spelling", "value"), [*SCALARS.items(), *zip(TEXTS, TEXTS, strict=True)], ids=lambda one: str(one)[:40]
)
def test_a_scalar_is_read_as_kubectl_reads_it(spelling: str, value: Any) -> None:
    (document,), problem = read(f"a: {spelling}")

    assert (document.problem, problem) == (None, None)
    found = document.value["a"]
    assert (found, type(found)) == (value, type(value))
    assert not isinstance(found, float) or math.isfinite(found)


@pytest.mark.parametrize("spelling", NO_NUMBERS)
def test_no_number_of_json_is_a_mistake(spelling: str) -> None:
    (document,), problem = read(f"a: {spelling}")

    assert (document.value, problem) == ({"a": spelling}, None)
    assert document.problem is not None
    assert document.problem.sentence == f"{spelling} is not a number in Kubernetes"


# text -> of each document its line, its value, the line of each field, and what is wrong with it
DOCUMENTS: dict[str, list[tuple[int, Any, dict[str, int], str]]] = {
    # keys are texts, as JSON writes their values
    "yes: 1": [(1, {"true": 1}, {"true": 1}, "")],
    "017: 1": [(1, {"15": 1}, {"15": 1}, "")],
    "1e3: 1": [(1, {"1000": 1}, {"1000": 1}, "")],
    "1.5: 1": [(1, {"1.5": 1}, {"1.5": 1}, "")],
    "~: 1": [(1, {"null": 1}, {"null": 1}, "")],
    '"": 1': [(1, {"": 1}, {"": 1}, "")],
    "!!str 1: a": [(1, {"1": "a"}, {"1": 1}, "")],
    ".inf: 1": [(1, {".inf": 1}, {".inf": 1}, ".inf is not a number in Kubernetes")],
    "{a, b: 1}": [(1, {"a": None, "b": 1}, {"a": 1, "b": 1}, "")],
    "a: [b: 1]": [(1, {"a": [{"b": 1}]}, {"a": 1, "a.0": 1, "a.0.b": 1}, "")],
    # a repeated key
    "a: 1\na: 2": [(1, {"a": 2}, {"a": 2}, "the key a is duplicate")],
    'a: 1\n"a": 2': [(1, {"a": 2}, {"a": 2}, "the key a is duplicate")],
    "yes: 1\ntrue: 2": [(1, {"true": 2}, {"true": 2}, "the key true is duplicate")],
    "a: {b: 1, b: 2}": [(1, {"a": {"b": 2}}, {"a": 1, "a.b": 1}, "the key b is duplicate")],
    # anchors and aliases
    "a: &x 1\nb: *x": [(1, {"a": 1, "b": 1}, {"a": 1, "b": 2}, "")],
    "&x a: 1\nb: *x": [(1, {"a": 1, "b": "a"}, {"a": 1, "b": 2}, "")],
    "a: &x {b: 1}\nc: *x": [(1, {"a": {"b": 1}, "c": {"b": 1}}, {"a": 1, "a.b": 1, "c": 2}, "")],
    "a: &x 1\nb: &x 2\nc: *x": [(1, {"a": 1, "b": 2, "c": 2}, {"a": 1, "b": 2, "c": 3}, "")],
    "- &x a\n- *x": [(1, ["a", "a"], {"0": 1, "1": 2}, "")],
    "a: &x [*x]": [(1, {"a": [None]}, {"a": 1, "a.0": 1}, "the alias *x contains itself")],
    "a: *x": [(1, {"a": None}, {"a": 1}, "the alias *x has no anchor")],
    "a: &x 1\n---\nb: *x": [
        (1, {"a": 1}, {"a": 1}, ""),
        (3, {"b": None}, {"b": 3}, "the alias *x has no anchor"),
    ],
    # merged mappings
    "b: &b {u: 1, v: 2}\na: {<<: *b, v: 3}": [
        (
            1,
            {"b": {"u": 1, "v": 2}, "a": {"u": 1, "v": 3}},
            {"b": 1, "b.u": 1, "b.v": 1, "a": 2, "a.v": 2},
            "",
        ),
    ],
    "a: {v: 3, <<: {v: 1, w: 2}}": [
        (1, {"a": {"v": 1, "w": 2}}, {"a": 1, "a.v": 1, "a.<<.v": 1, "a.<<.w": 1}, "")
    ],
    "<<: [{u: 1}, {u: 2, v: 2}]": [
        (1, {"u": 1, "v": 2}, {"<<.0.u": 1, "<<.1.u": 1, "<<.1.v": 1, "<<.0": 1, "<<.1": 1}, "")
    ],
    "<<: {u: 1, v: 1}\n<<: {v: 2}": [(1, {"u": 1, "v": 2}, {"<<.u": 1, "<<.v": 2}, "")],
    '"<<": {u: 1}': [(1, {"<<": {"u": 1}}, {"<<": 1, "<<.u": 1}, "")],  # quoted it is a key
    "<<: []": [(1, {}, {}, "")],
    "<<: 5": [(1, {}, {}, "<< requires mappings")],
    "<<: ~": [(1, {}, {}, "<< requires mappings")],
    "<<: [1]": [(1, {}, {"<<.0": 1}, "<< requires mappings")],
    # tags
    "a: !!map {b: 1}": [(1, {"a": {"b": 1}}, {"a": 1, "a.b": 1}, "")],
    "a: !!seq [1]": [(1, {"a": [1]}, {"a": 1, "a.0": 1}, "")],
    "a: !x 1": [(1, {"a": "1"}, {"a": 1}, "the tag !x is not supported")],
    "a: !x {b: 1}": [(1, {"a": {"b": 1}}, {"a": 1, "a.b": 1}, "the tag !x is not supported")],
    "a: !!binary aGk=": [(1, {"a": "aGk="}, {"a": 1}, "the tag tag:yaml.org,2002:binary is not supported")],
    "a: !!set {b}": [
        (1, {"a": {"b": None}}, {"a": 1, "a.b": 1}, "the tag tag:yaml.org,2002:set is not supported")
    ],
    "a: !!timestamp 2026-01-01": [
        (1, {"a": "2026-01-01"}, {"a": 1}, "the tag tag:yaml.org,2002:timestamp is not supported")
    ],
    # several documents
    "a: 1\n---\nb: 2": [(1, {"a": 1}, {"a": 1}, ""), (3, {"b": 2}, {"b": 3}, "")],
    "---\na: 1\n...\n---\nb: 2": [(2, {"a": 1}, {"a": 2}, ""), (5, {"b": 2}, {"b": 5}, "")],
    "---\n---\na: 1\n---\n": [(3, {"a": 1}, {"a": 3}, "")],
    **{text: [] for text in ("", "---", "~", "# a comment\n")},
    "text": [(1, "text", {}, "")],
    "%YAML 1.2\n---\na: yes": [(3, {"a": True}, {"a": 3}, "")],
    # a byte order mark, tabs
    "\ufeffa: 1": [(1, {"a": 1}, {"a": 1}, "")],
    "a: 1\n---\n\ufeffb: 1": [(1, {"a": 1}, {"a": 1}, ""), (3, {"b": 1}, {"b": 3}, "")],
    "a:\t1\t# x": [(1, {"a": 1}, {"a": 1}, "")],
    "a: 1\r\nb: |\r\n  x\r\n  y\r\nc: yes\r\n": [
        (1, {"a": 1, "b": "x\ny\n", "c": True}, {"a": 1, "b": 3, "c": 5}, "")
    ],
    "a: [1,\t'x\ty']": [(1, {"a": [1, "x\ty"]}, {"a": 1, "a.0": 1, "a.1": 1}, "")],
    # texts of several lines
    "a: |\n  x\n  y\n": [(1, {"a": "x\ny\n"}, {"a": 2}, "")],
    "a: >-\n  x\n  y\n": [(1, {"a": "x y"}, {"a": 2}, "")],
    "a:\n  'x\n  y'": [(1, {"a": "x y"}, {"a": 2}, "")],
    "a:\n  b:\n    5": [(1, {"a": {"b": 5}}, {"a": 1, "a.b": 2}, "")],
    # JSON, also one object after the other
    '{"a": 1} {"b": [1e3]}': [(1, {"a": 1}, {}, ""), (1, {"b": [1000.0]}, {}, "")],
    '{"a": 1}\n---\n{"b": 017}': [(1, {"a": 1}, {"a": 1}, ""), (3, {"b": 15}, {"b": 3}, "")],
}


@pytest.mark.parametrize("text", DOCUMENTS)
def test_a_text_is_read_with_the_lines_of_its_fields(text: str) -> None:
    documents, problem = read(text)

    assert problem is None
    assert [
        (
            document.line,
            document.value,
            {".".join(map(str, path)): line for path, line in document.lines.items()},
            document.problem.sentence if document.problem else "",
        )
        for document in documents
    ] == DOCUMENTS[text]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\n\tb: 2", 2, "not YAML: found a tab character that violates indentation"),
        ("a:\n\t- 1", 2, "not YAML: found character that cannot start any token"),
        ("a: b: c", 1, "not YAML: mapping values are not allowed in this context"),
        ("a: @b", 1, "not YAML: found character that cannot start any token"),
        ("a: b\u2028c", 2, "not YAML: could not find expected ':'"),
        ("? [b]\n: c", 1, "a key must be a single value"),
        ("a: 1\n? {b: 1}\n: c", 2, "a key must be a single value"),
        ("a: &x 1\n*x : 2", 2, "a key must be a single value"),
        ('{"a": 1, "a": 2}', 1, "the key a is duplicate"),
    ],
)
def test_what_is_no_manifest_is_a_mistake_with_its_line(text: str, line: int, said: str) -> None:
    documents, problem = read(text)

    assert documents == ()
    assert problem is not None
    assert (problem.line, problem.sentence) == (line, said)
