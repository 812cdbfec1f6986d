"""What the operators change, and what names the mutants have."""

import ast

import pytest

from tests.mutants.operators import mutants, mutated, shown

FILE = "product/file.py"


def changes(body: str, signature: str = "(a, b)") -> dict[str, str]:
    """By operator and ordinal, what a function of these lines then is."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = f"def f{signature}:\n{lines}\n"
    rest = len(ast.unparse(ast.parse(f"def f{signature}: pass").body[0]).splitlines()[0])
    return {
        mutant.name.removeprefix(f"{FILE}:f:"): ast.unparse(mutated(mutant, source))[rest:].strip()
        for mutant in mutants(FILE, source)
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b", {"comparison:1": "return a >= b", "boundary:1": "return a <= b"}),
        ("return a is b", {"comparison:1": "return a is not b"}),
        (
            "return a and b",
            {"logic:1": "return a or b", "operand:1": "return b", "operand:2": "return a"},
        ),
        (
            "g(a or b or c)",
            {
                "drop:1": "pass",
                "logic:1": "g(a and b and c)",
                "operand:1": "g(b or c)",
                "operand:2": "g(a or c)",
                "operand:3": "g(a or b)",
            },
        ),
        ("return max(a, b)", {"extreme:1": "return min(a, b)"}),
        ("return g(a, b)", {"swap:1": "return g(b, a)"}),
        ("return g(*a, b)", {}),
        ("return not a", {"not:1": "return not not a"}),
        (
            "return a if b else 'b'",
            {
                "not:1": "return a if not b else 'b'",
                "always:1": "return a if True else 'b'",
                "never:1": "return a if False else 'b'",
            },
        ),
        (
            "return [c for c in a if c]",
            {"always:1": "return [c for c in a if True]", "never:1": "return [c for c in a if False]"},
        ),
        ("return a + 7", {"plus:1": "return a + 8", "minus:1": "return a + 6"}),
        ("return True, '1', a", {}),
        ("a.append(b)", {"drop:1": "pass"}),
        ("a[b] = b", {"drop:1": "pass"}),
        ("raise AssertionError", {}),
        ("def g(c=1): return c", {}),
    ],
)
def test_an_expression_is_changed_in_each_way(line: str, expected: dict[str, str]) -> None:
    assert changes(line) == expected


def test_a_guard_may_go_or_hold_always() -> None:
    guard = changes("if a:\n    return b\nreturn a")

    assert {name: change.split("\n")[0].strip() for name, change in guard.items()} == {
        "drop:1": "pass",
        "not:1": "if not a:",
        "always:1": "if True:",
    }


def test_a_branch_is_taken_always_or_never() -> None:
    branch = changes("if a:\n    b = a\nreturn b")

    assert [branch[name].split("\n")[0] for name in ("always:1", "never:1")] == ["if True:", "if False:"]


def test_no_loop_is_made_endless() -> None:
    assert changes("while a:\n    a = b")["never:1"].split("\n")[0] == "while False:"
    assert changes("while a:\n    a = b").keys() == {"never:1"}
    assert changes("while True:\n    a = b") == {}


def test_a_function_of_a_truth_tells_it_at_once() -> None:
    assert changes("return a", "(a) -> bool") == {
        "return False:1": "return False\n    return a",
        "return True:1": "return True\n    return a",
    }


def test_no_default_decorator_or_type_is_changed() -> None:
    assert changes("c: g(1, 2) = a\nreturn c", "(a=1, *, b=2)") == {}


def test_constants_and_methods_have_names_of_their_own() -> None:
    source = "LIMIT = 60 * 2\n\nclass C:\n    def f(self):\n        return 1\n"

    assert [mutant.name for mutant in mutants(FILE, source)] == [
        f"{FILE}:<constants>:LIMIT + 1:1",
        f"{FILE}:C.f:plus:1",
        f"{FILE}:C.f:minus:1",
    ]
    assert shown(mutants(FILE, source)[0], source) == ["- LIMIT = 60 * 2", "+ LIMIT = 61 * 2"]


def test_a_name_and_its_digest_outlast_a_change_elsewhere() -> None:
    before = mutants(FILE, "def f(a):\n    return a < 1\n")
    after = mutants(FILE, "LIMIT = 'x'\n\ndef g(a):\n    pass\n\n\ndef f(a):  # why\n    return a<1\n")

    told = [(mutant.name, mutant.digest, mutant.line, mutant.rank) for mutant in before]
    assert [(mutant.name, mutant.digest, mutant.line, mutant.rank) for mutant in after] == told
    assert before[0].digest != mutants(FILE, "def f(a):\n    return a < 2\n")[0].digest


def test_a_mutant_that_is_gone_is_told() -> None:
    mutant = mutants(FILE, "def f(a):\n    return a < 1\n")[0]

    with pytest.raises(LookupError, match="is gone"):
        mutated(mutant, "def f(a):\n    return a\n")
