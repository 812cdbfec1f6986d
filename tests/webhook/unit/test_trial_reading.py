"""Manifests and amounts, read as kubectl and the API server read them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.dryrun.judge import manifests
from webhook.dryrun.judge.manifests import DEEPEST, ManifestDocument, ManifestProblem, line_of, read
from webhook.wire import defaulting


def only(text: str) -> ManifestDocument:
    """The one document of a text that can be read."""
    (document,), problem = read(text)
    assert (document.problem, problem) == (None, None)
    return document


@pytest.mark.parametrize("value", ["", "x", "5 ", "\u0665", "NaN", "1e", "1kk", None, True, [], {}])
def test_what_is_no_amount_stays_for_the_api_server_to_refuse(value: object) -> None:
    assert defaulting.quantity(value) == value


def test_a_pod_gets_the_defaults_that_rules_look_at_and_what_was_given_is_not_touched() -> None:
    limits = {"bursar.dev/gpu-memory": 8000}
    raw = {
        "metadata": None,
        "spec": {
            "containers": [{"name": "a", "env": None, "resources": {"limits": limits, "requests": None}}],
            "priorityClassName": None,
        },
    }

    assert defaulting.pod(raw) == {
        "metadata": {},
        "spec": {
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "a",
                    "resources": {
                        "limits": {"bursar.dev/gpu-memory": "8k"},
                        "requests": {"bursar.dev/gpu-memory": "8k"},
                    },
                }
            ],
        },
    }
    assert limits == {"bursar.dev/gpu-memory": 8000}


def test_each_documents_fields_know_their_lines() -> None:
    text = "# first\na: 1\nb:\n  - c: |\n      x\n      y\n    d: {e: 2}\n---\n\nf: 3\n"

    (first, second), problem = read(text)

    assert problem is None
    assert (first.line, second.line) == (2, 10)
    assert (line_of(first, "a"), line_of(first, "b[0].c"), line_of(first, "b[0].d.e")) == (2, 5, 7)
    assert line_of(second, "f") == 10


def test_a_field_that_is_not_there_has_the_line_of_what_is_around_it() -> None:
    document = only(
        "spec:\n  containers:\n    - name: a\n      resources:\n        limits:\n          x.y/z: 1\n"
    )

    assert line_of(document, "spec.containers[0].resources.limits[x.y/z]") == 6
    assert line_of(document, "spec.containers[0].env[0].value") == 3
    assert line_of(document, "metadata.annotations[a]") == 1


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a: [1", 1, "not YAML: did not find expected ',' or ']'"),
        ("a: 1\nb: \x07", 2, "the character U+0007 is not allowed in a manifest"),
        ("a:\n- " + "[" * DEEPEST, 2, f"nested too deeply: the limit is {DEEPEST} levels"),
        ("a:\n  ? [b]\n  : c", 2, "a key must be a single value"),
        ('{"a": 1}\n{"a": 1, "a": 2}', 2, "the key a is duplicate"),
        ('{"a": NaN}', 1, "NaN is not a JSON number"),
        (
            '{"a": ' + "[" * 5000 + "]" * 5000 + "}",
            1,
            f"nested too deeply: the limit is {DEEPEST} levels",
        ),
    ],
    ids=["syntax", "control", "deep", "key", "json twice", "nan", "deep json"],
)
def test_what_cannot_be_read_is_reported_with_its_line(text: str, line: int, sentence: str) -> None:
    assert read(text)[1] == ManifestProblem(line, sentence)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", 3, "the key a is duplicate"),
        ("a: &x [*x]", 1, "the alias *x contains itself"),
        ("a: 1\nb: *y", 2, "the alias *y has no anchor"),
        ("a: !!binary aGk=", 1, "the tag tag:yaml.org,2002:binary is not supported"),
        ("a: .nan", 1, ".nan is not a number in Kubernetes"),
        ("<<: 5", 1, "<< requires mappings"),
    ],
)
def test_what_is_wrong_in_one_document_spoils_no_other(text: str, line: int, sentence: str) -> None:
    (bad, good), problem = read(f"{text}\n---\nc: 1\n")

    assert (problem, bad.problem) == (None, ManifestProblem(line, sentence))
    assert (good.value, good.problem) == ({"c": 1}, None)


def test_documents_before_a_mistake_are_read() -> None:
    documents, problem = read("a: 1\n---\nb: [")

    assert [each.value for each in documents] == [{"a": 1}]
    assert problem is not None
    assert problem.line == 3


@pytest.mark.parametrize("form", ["flow", "block"])
def test_aliases_that_explode_are_refused_at_once(form: str) -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 30)]
    text = "\n".join(["l0: &l0 [x]", *levels])
    if form == "flow":
        text = "{" + ", ".join(text.splitlines()) + "}"

    documents, problem = read(text)

    read_after_all = len(documents)  # shown in full they would fill the memory
    assert read_after_all == 0
    assert problem is not None
    assert problem.sentence == f"too large: the limit is {manifests.MAX_VALUES} values, with those of aliases"


def test_a_text_that_is_too_long_is_refused_unread() -> None:
    assert read(" " * (manifests.MAX_CHARACTERS + 1))[1] == ManifestProblem(
        1, f"too long: the limit is {manifests.MAX_CHARACTERS} characters"
    )


@given(st.text() | st.lists(st.sampled_from(list("{}[]:,-?&*!|>'\"#%@`\n\t ab1~<.="))).map("".join))
def test_no_text_whatever_it_holds_makes_the_reader_fail(text: str) -> None:
    documents, problem = read(text)

    for document in documents:
        json.dumps(document.value)
        assert 1 <= document.line <= text.count("\n") + 2
    assert problem is None or problem.sentence


plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Co")), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc/.", min_size=1), inner, max_size=4)
    ),
)


@given(st.dictionaries(st.text("abcd", min_size=1), plain_json, min_size=1))
def test_what_is_written_as_json_or_yaml_is_read_as_it_was(value: Mapping[str, Any]) -> None:
    assert only(json.dumps(value)).value == value
    assert only("# as YAML\n" + json.dumps(value, ensure_ascii=False)).value == value
