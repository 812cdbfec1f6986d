"""The budget ConfigMaps, when they are written."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.clusters import MANIFESTS
from tests.webhook.servers import ROOT
from tests.worlds import Json
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.wire import StandingWord
from webhook.admission import budgets
from webhook.admission.budgets import EXAMPLES, MAX_CHARACTERS, example_of
from webhook.wire.object_review import ObjectReview, read
from webhook.wire.pod_review import AdmissionAnswer

GOOD = "gpuHours: 10\nonExhausted: deprioritize\n"
BAD = "gpuHours: 10\nperiod: fortnight\n"

SENTENCE = (
    'data[team-a], line 2, period: "fortnight" is not a valid value; allowed: hour, day, week, month, '
    "quarter, year, once; for example period: month"
)
VALID = AdmissionAnswer("valid")
LATER = "What a ConfigMap that is gone says counts for two minutes more."
WRITES = """\
request.name in ['bursar-mode', 'bursar-settings', 'bursar-budgets']
|| [object, oldObject].exists(written, written != null && (
  written.metadata.?name.orValue('').matches('^bursar-(mode|settings|budgets)-')
  || written.metadata.?labels['bursar.dev/budgets'].orValue('') == 'true'))
"""


def config_map(data: Json, name: str = "bursar-budgets", **metadata: Any) -> Json:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "bursar-system", **metadata},
        "data": data,
    }


def asked(written: Json | None, old: Json | None = None, **request: Any) -> ObjectReview:
    """The review of a ConfigMap's creation, or with an old one of its update."""
    body = {
        "uid": "uid-1",
        "operation": "UPDATE" if old else "CREATE",
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "namespace": "bursar-system",
        "name": "" if "name" in request else (written or old or {})["metadata"].get("name"),
        "object": written,
        "oldObject": old,
    } | request
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}
    return read(orjson.dumps(whole))


def judge(review: ObjectReview, **standings: StandingWord) -> AdmissionAnswer:
    """``standings``: by namespace, and as ``default`` of those without an entry; else unknown."""
    return budgets.judge(
        review, lambda namespace: standings.get(namespace or "default", "UNKNOWN"), lambda _: ["batch"]
    )


def test_who_keeps_classes_that_preempt_is_warned_when_the_entry_is_written() -> None:
    said = "team-a: priorityClasses: over budget kube-scheduler preempts by batch, too; not by a class with"

    answer = judge(asked(config_map({"team-a": GOOD + "priorityClasses: keep"})))
    assert (answer.verdict, *answer.warnings) == ("valid", f"{said} preemptionPolicy: Never.")
    assert judge(asked(config_map({"team-a": GOOD}))).warnings == ()


def test_a_mistake_is_refused_with_its_key_line_and_field() -> None:
    answer = judge(asked(config_map({"team-a": BAD, "team-b": GOOD})))

    assert answer == AdmissionAnswer("refused", refusal=SENTENCE, rules=(("budget-entry", "enforce"),))


def test_the_example_beside_a_field_of_other_entries_does_not_repeat_it() -> None:
    answer = judge(asked(config_map({"team-a": GOOD + "currency: EUR"})))

    assert "currency: no such field; it is a field of _settings; allowed: gpuHours, " in answer.refusal
    assert answer.refusal.endswith('; for example team-a: "gpuHours: 120"')


def test_every_entry_with_a_mistake_is_named() -> None:
    answer = judge(asked(config_map({"team-a": BAD, "Team_B": GOOD, "_settings": "idle: half"})))

    assert answer.refusal.startswith(f"3 problems:\n  1. {SENTENCE}\n  2. data[Team_B], line 1: no such key")
    assert (
        '  3. data[_settings], line 1, idle: "half" is not a valid value; allowed: off, reclaim, evict'
        in answer.refusal
    )


def test_good_budgets_pass() -> None:
    assert judge(asked(config_map({"team-a": GOOD, "_defaults": GOOD, "_settings": ""}))) == VALID


def test_an_entry_that_was_wrong_before_and_is_unchanged_is_only_reported() -> None:
    answer = judge(asked(config_map({"team-a": BAD, "team-b": GOOD}), config_map({"team-a": BAD})))

    assert (answer.verdict, answer.refusal) == ("valid", "")
    assert answer.warnings == (
        "Wrong before and unchanged; the last valid entry stays in force: team-a, line 2, period: "
        '"fortnight" is not a valid value; allowed: hour, day, week, month, quarter, year, once',
    )


def test_an_entry_that_was_wrong_and_is_changed_must_be_right() -> None:
    old = config_map({"team-a": "period: fortnight"})

    assert judge(asked(config_map({"team-a": BAD}), old)).refusal == SENTENCE
    assert judge(asked(config_map({"team-a": GOOD}), old)) == VALID
    assert judge(asked(config_map({}), old)).verdict == "valid"


def test_a_config_map_that_gets_the_label_is_reviewed_from_then_on() -> None:
    plain, labelled, disowned = (
        config_map({"team-a": BAD}, "more", labels=labels)
        for labels in ({}, {"bursar.dev/budgets": "true"}, {"bursar.dev/budgets": "no"})
    )

    assert judge(asked(plain)) == AdmissionAnswer("passed")
    assert judge(asked(labelled)).refusal == SENTENCE
    assert judge(asked(labelled, plain)).refusal == SENTENCE
    assert judge(asked(disowned)) == AdmissionAnswer("passed")
    assert judge(asked(plain, labelled)).verdict == "valid"


@pytest.mark.parametrize(
    "review",
    [
        asked(config_map({"team-a": BAD}, deletionTimestamp="2026-01-01T00:00:00Z")),
        asked(config_map({"team-a": BAD}), subResource="status"),
        asked(config_map({"team-a": BAD}), kind={"group": "x.example", "kind": "ConfigMap"}),
    ],
    ids=["finalizers", "subresource", "another kind"],
)
def test_what_finalizers_write_and_what_is_no_budget_pass(review: ObjectReview) -> None:
    assert judge(review) == AdmissionAnswer("passed")


def test_budgets_in_binary_data_are_refused_as_unread() -> None:
    hidden = config_map({}) | {"binaryData": {"team-a": "Z3B1SG91cnM6IDE="}}

    answer = judge(asked(hidden))

    assert answer.refusal == (
        "binaryData[team-a]: budgets are not read from binaryData; allowed: an entry in data; "
        'for example team-a: "gpuHours: 120"'
    )
    assert judge(asked(hidden, hidden)) == VALID


def test_what_is_not_built_yet_is_reported_once_for_all_keys_that_are_new() -> None:
    kept = "gpuHours: 1\nevictRate: 4\n"
    new = {f"team-{i}": kept for i in range(5)} | {"old": kept}

    answer = judge(asked(config_map(new), config_map({"old": kept})))

    assert answer.warnings == (
        "team-0, team-1, team-2 and 2 more: evictRate: it has no effect without onExhausted: evict",
    )


def test_every_mistake_of_a_write_is_in_its_refusal() -> None:
    answer = judge(asked(config_map({"team-a": "gpuhours: 1\nperiod: fortnight", "team-b": BAD})))

    assert answer.refusal is not None
    places = (
        "data[team-a], line 1, gpuhours",
        "data[team-a], line 2, period",
        "data[team-b], line 2, period",
    )
    assert [place in answer.refusal for place in places] == [True] * 3
    assert "did you mean gpuHours?" in answer.refusal


@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ({"mode": "observe"}, {"mode": "enforce"}, "_mode/bursar-mode"),
        ({"_defaults": f"{GOOD}mode: observe"}, {"_defaults": GOOD}, "_defaults"),
    ],
)
def test_a_write_that_ends_observing_warns_its_author(before: Json, now: Json, key: str) -> None:
    name = "bursar-mode" if "mode" in before else "bursar-budgets"
    there = config_map(before, name)

    (said,) = judge(asked(config_map(now, name), there)).warnings
    deletion = judge(asked(None, there, operation="DELETE")).warnings

    assert said.startswith(f"{key}: this write ends mode: observe.")
    assert deletion[-2:] == (said, LATER)
    assert f"has it: {key}." in deletion[-3]
    assert judge(asked(there, there)) == VALID


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"mode": "half"}, 'data[mode]: "half" is not a valid value; allowed: enforce, observe, meter; '),
        (
            {"mode": "observe", "modes": "x"},
            "data[modes]: no such field; did you mean mode?; allowed: mode, p",
        ),
        ({"placement": "off"}, "data[mode]: missing; allowed: enforce, observe, meter; for example mode: en"),
        ({"mode": "observe\nidle: evict"}, "data[idle]: no such field; it is a field of "),
    ],
)
def test_a_mistake_in_the_modes_object_is_refused(data: Json, said: str) -> None:
    answer = judge(asked(config_map(data, "bursar-mode")))

    assert answer.refusal.startswith(said)
    assert judge(asked(config_map({"mode": "meter", "placement": "off"}, "bursar-mode"))) == VALID


@pytest.mark.parametrize("name", ["bursar-budgets-7h2k", "bursar-settings-9m4f7b2c5k", "bursar-mode-7h2k"])
def test_a_generated_name_that_nobody_reads_is_warned_of(name: str) -> None:
    written = config_map({"team-a": GOOD}, name)
    said = (
        f"ConfigMap {name} is not read: give it the label bursar.dev/budgets=true, or a name without"
        " ending (bursar-mode, bursar-settings, bursar-budgets)"
    )

    for review in (asked(written), asked(written, written)):
        assert judge(review) == AdmissionAnswer("valid", warnings=(said,))
    assert judge(asked(None, written, operation="DELETE")).verdict == "passed"
    labelled = config_map({"team-a": GOOD}, name, labels={"bursar.dev/budgets": "true"})
    assert judge(asked(labelled)) == VALID
    for other in ("bursar-modes", "budgets-7h2k"):
        assert judge(asked(config_map({"team-a": GOOD}, other))).verdict == "passed"


def test_evicting_for_overuse_is_built_for_a_namespace_and_for_all() -> None:
    data = {"_settings": "overuse: evict\n", "team-a": "gpuHours: 1\noveruse: evict\noveruseGrace: 1m\n"}

    assert judge(asked(config_map(data), None)).warnings == ()


def test_no_write_keeps_a_worker_for_long() -> None:
    entry = GOOD + "# " + "x" * 8_000
    many = {f"team-{i}": entry for i in range(20)}

    answer = judge(asked(config_map(many)))

    read_at_most = MAX_CHARACTERS // len(entry)
    assert answer.warnings == (
        f"{20 - read_at_most} entries were not reviewed: the entries are too long together.",
    )
    late = many | {"zz": BAD}
    assert judge(asked(config_map(late), config_map(many))).verdict == "refused"


# the fields that the page lists: of an entry of a budget, and of `_settings`
PAGE = (ROOT / "docs/budget-settings.md").read_text()
BUDGET_ROWS = PAGE.partition("Fields of a budget:")[2].partition("## ")[0]
SETTING_ROWS = PAGE.partition("Fields of `_settings`:")[2].partition("\nDurations are")[0]


def fields_of(rows: str) -> list[str]:
    """The fields in the first cells of a table's rows."""
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", rows, re.MULTILINE)
    return [field for cell in cells for field in re.findall(r"\w+", cell)]


def test_the_tables_of_the_page_are_read() -> None:
    assert len(fields_of(BUDGET_ROWS)) > 20
    assert len(fields_of(SETTING_ROWS)) > 20


@pytest.mark.parametrize("field", fields_of(BUDGET_ROWS))
def test_each_field_of_a_budget_has_an_example_that_is_taken(field: str) -> None:
    amount = "" if field == "gpuHours" else "gpuHours: 100\n"

    assert EXAMPLES[field].startswith(f"{field}: ")
    assert not isinstance(
        read_entry("_group.a" if field in ("split", "leads") else "team-a", amount + EXAMPLES[field]),
        EntryError,
    )


@pytest.mark.parametrize("field", fields_of(SETTING_ROWS))
def test_each_field_of_the_settings_has_an_example_that_is_taken(field: str) -> None:
    example = example_of("_settings", field)

    assert example.startswith(f"{field}: ")
    assert not isinstance(read_entry("_settings", example), EntryError)


lines = st.sampled_from(
    [
        "gpuHours: 1",
        "gpuHours: x",
        "period: month",
        "rules: {a: b",
        "? ",
        "- a",
        "\t",
        "weights:",
        "  H100: 2",
    ]
)
texts = st.text(max_size=40) | st.lists(lines | st.text(max_size=12), max_size=6).map("\n".join)
keys = st.sampled_from(
    ["team-a", "_defaults", "_settings", "_group.x", "_group.", "Not A Key", ""]
) | st.text(max_size=8)


@given(keys, texts)
def test_an_error_names_its_key_and_a_line_of_the_text(key: str, text: str) -> None:
    value = read_entry(key, text)

    if isinstance(value, EntryError):
        assert value.key == key
        # PyYAML counts every line break of YAML 1.1, and an end of text may be the line after the last
        assert 1 <= value.line <= len(text.splitlines()) + 1
        assert value.problem
        assert value.allowed


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, texts | anything, max_size=4) | anything, anything, anything)
def test_no_config_map_whatever_it_holds_makes_the_webhook_fail(data: Any, labels: Any, binary: Any) -> None:
    written = {"metadata": {"name": "bursar-budgets", "labels": labels}, "data": data, "binaryData": binary}

    for review in (asked(written), asked(written, written), asked({"metadata": labels}, written, name="x")):
        assert judge(review).verdict in ("valid", "refused", "passed")
    assert not judge(asked(written, written)).refusal


def test_the_manifest_is_what_the_code_generates() -> None:
    documents = yaml.safe_load_all((MANIFESTS / "webhook-configurations.yaml").read_text())
    (found,) = (
        each
        for document in documents
        for each in document["webhooks"]
        if each["name"] == "budgets.bursar.dev"
    )

    assert found["matchConditions"] == [{"name": "budgets", "expression": WRITES}]
    assert found["namespaceSelector"] == {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["bursar-system"]}
        ]
    }
    (rule,) = found["rules"]
    assert (rule["resources"], rule["operations"]) == (["configmaps"], ["CREATE", "UPDATE", "DELETE"])
    assert (found["failurePolicy"], found["sideEffects"]) == ("Ignore", "None")
    assert found["clientConfig"]["service"]["path"] == "/budgets"


def deleted(data: Json, **metadata: Any) -> AdmissionAnswer:
    """The answer to the deletion of a ConfigMap."""
    return judge(asked(None, config_map(data, **metadata), operation="DELETE"))


READ = {"bursar.dev/budgets": "true"}
LABELLED: Json = {"name": "x", "labels": READ}
SIX = dict.fromkeys(("ads", "nlp", "speech", "tts", "vision", "z"), GOOD)
ENDINGS = {
    "an apply of two entries removes the others": (
        *(
            config_map(SIX | {"a": GOOD, "b": GOOD}, **LABELLED),
            config_map({"a": GOOD, "b": GOOD}, **LABELLED),
        ),
        {"nlp": "OVER_BUDGET", "ads": "IN_BUDGET", "default": "UNLIMITED"},
        "nlp (over budget), ads, speech and 3 more lose their entry: no limit applies, unless another"
        " ConfigMap has it",
    ),
    "one entry, and the defaults that stay": (
        *(config_map({"ads": GOOD, "_defaults": GOOD}), config_map({"_defaults": GOOD})),
        {"default": "UNKNOWN"},
        "ads loses its entry: that of _defaults applies, unless another ConfigMap has it",
    ),
    "the defaults of another ConfigMap": (
        *(config_map(SIX), config_map({})),
        {"default": "OVER_BUDGET"},
        "ads, nlp, speech and 3 more lose their entry: that of _defaults applies, unless another ConfigMap"
        " has it",
    ),
    "nothing is known": (
        *(config_map(SIX), config_map({})),
        {},
        "ads, nlp, speech and 3 more lose their entry: that of _defaults applies, else no limit, unless"
        " another ConfigMap has it",
    ),
    "the label is removed": (
        *(config_map(SIX, **LABELLED), config_map(SIX, "x")),
        {"default": "UNLIMITED", "ads": "UNLIMITED"},
        "ads, nlp, speech and 3 more lose their entry: no limit applies, unless another ConfigMap has it",
    ),
    "the label says no": (
        *(config_map({"z": GOOD}, **LABELLED), config_map(SIX, "x", labels={"bursar.dev/budgets": "false"})),
        {"default": "UNLIMITED", "z": "OVER_BUDGET"},
        "z (over budget) loses its entry: no limit applies, unless another ConfigMap has it",
    ),
    "a new entry beside": (
        *(config_map({"ads": GOOD}), config_map({"sda": GOOD})),
        {"default": "UNLIMITED"},
        "ads loses its entry: no limit applies, unless another ConfigMap has it",
    ),
}


@pytest.mark.parametrize(("old", "new", "standings", "said"), ENDINGS.values(), ids=ENDINGS)
def test_who_ends_entries_by_a_write_is_told_which_and_what_applies_then(
    old: Json, new: Json, standings: dict[str, StandingWord], said: str
) -> None:
    answer = judge(asked(new, old), **standings)

    is_read = new["metadata"]["name"] == "bursar-budgets" or new["metadata"].get("labels") == READ
    assert (answer.verdict, answer.warnings) == ("valid", (said,) if is_read else (said, LATER))
    assert len(said.encode()) <= 256


@pytest.mark.parametrize("name", ["bursar-budgets", "other"])
def test_a_write_that_ends_nothing_warns_of_nothing(name: str) -> None:
    labels = {"labels": {"bursar.dev/budgets": "true"}} if name == "other" else {}
    more = config_map(SIX | {"new": GOOD}, name, **labels)

    assert judge(asked(more, config_map(SIX, name, **labels)), default="UNLIMITED").warnings == ()
    assert judge(asked(more), default="UNLIMITED").warnings == ()
    assert judge(asked(config_map({}, "x"), config_map(SIX, "x"))).verdict == "passed"


def test_who_deletes_budgets_is_warned_which_namespaces_lose_their_entry() -> None:
    of_teams = {f"team-{number:02}": GOOD for number in range(12)}

    assert deleted(of_teams).warnings == (
        "team-00, team-01, team-02 and 9 more lose their entry: that of _defaults applies, else no limit,"
        " unless another ConfigMap has it",
        LATER,
    )
    assert deleted(of_teams | {"_defaults": GOOD}).warnings == (
        "team-00, team-01, team-02 and 9 more lose their entry: no limit applies, unless another ConfigMap"
        " has it",
        "No longer in force, unless another ConfigMap has it: _defaults.",
        LATER,
    )
    assert deleted({"_settings": "", "_defaults": GOOD}, name="bursar-settings").warnings == (
        "No longer in force, unless another ConfigMap has it: _defaults, _settings.",
        LATER,
    )
    assert len(deleted({"a": GOOD, "_group.x": GOOD}, **LABELLED).warnings) == 3
    assert deleted({"a": GOOD}, name="x").verdict == "passed"


def test_of_long_names_as_many_are_named_as_leave_what_applies_in_a_warning() -> None:
    long = {letter * 63: GOOD for letter in "abcd"}
    over: dict[str, StandingWord] = {"c" * 63: "OVER_BUDGET", "d" * 63: "OVER_BUDGET"}

    (said,) = judge(asked(config_map({}), config_map(long)), **over).warnings

    assert said == (
        f"{'c' * 63} (over budget) and 3 more lose their entry: that of _defaults applies, else no limit,"
        " unless another ConfigMap has it"
    )
    (said,) = judge(asked(config_map({}), config_map(long)), default="UNLIMITED").warnings
    assert said.startswith(f"{'a' * 63}, {'b' * 63} and 2 more lose their entry: no limit applies, ")
    assert len(said.encode()) <= 256


# on a real API server


def test_the_samples_pass() -> None:
    folder: Path = ROOT / "deploy" / "samples"
    (sample,) = yaml.safe_load_all((folder / "budgets.yaml").read_text())

    assert not judge(asked(sample)).refusal


@pytest.mark.parametrize("ended", ["mode: observe", "chargeFrom: bound", "sidecar: container"])
def test_a_field_that_has_ended_stays_where_it_was_and_is_written_nowhere_else(ended: str) -> None:
    """An edit of another field passes, with a warning that says what the field did."""
    field = ended.partition(":")[0]
    before, without = f"{ended}\nlookahead: 5m\n", "lookahead: 5m\n"

    def answer(now: str, then: str | None) -> AdmissionAnswer:
        old = None if then is None else config_map({"_settings": then})
        return judge(asked(config_map({"_settings": now}), old))

    edited = answer(f"{before}timeZone: Europe/Berlin\n", before)
    assert edited.refusal == ""
    assert [text for text in edited.warnings if text.startswith(f"_settings: {field}: ")]
    for then in (without, None):
        refused = answer(before, then)
        assert (refused.verdict, refused.rules) == ("refused", (("budget-entry", "enforce"),))
        assert refused.refusal.startswith(f"data[_settings], line 1, {field}: ")
        assert "; allowed: omit the field" in refused.refusal
    assert answer(without, before).refusal == ""


@pytest.mark.parametrize("key", ["team-a", "_group.x", "_defaults"])
def test_the_same_holds_for_a_field_that_budgets_had(key: str) -> None:
    without = "gpuHours: 9\n"
    before = f"{without}notify: https://hooks.example/\n"

    def answer(now: str, then: str | None) -> AdmissionAnswer:
        old = None if then is None else config_map({key: then, "team-z": GOOD})
        return judge(asked(config_map({key: now, "team-z": GOOD}), old))

    edited = answer(f"{before}period: week\n", before)
    assert edited.refusal == ""
    assert [text for text in edited.warnings if text.startswith(f"{key}: notify: it has ended")]
    for then in (without, None):
        refused = answer(before, then)
        assert (refused.verdict, refused.rules) == ("refused", (("budget-entry", "enforce"),))
        assert refused.refusal.startswith(f"data[{key}], line 2, notify: it has ended")
        assert "; allowed: omit the field" in refused.refusal
    assert answer(f"{before}notifyFormat: slack\n", before).refusal.startswith(
        f"data[{key}], line 3, notifyFormat"
    )
    assert answer(without, before).refusal == ""


def test_who_gives_namespaces_their_first_limit_is_told_that_what_was_used_counts() -> None:
    standings: dict[str, StandingWord] = {"team-a": "UNLIMITED", "team-b": "IN_BUDGET", "team-c": "UNLIMITED"}
    written = config_map({"team-a": GOOD, "team-b": GOOD, "team-c": "gpuHours: unlimited", "_defaults": GOOD})
    answer = judge(asked(written), **standings)

    said = "what was used since the running period began counts at once; the Event UsedBefore and kubectl"
    assert answer.warnings == (f"team-a: {said} bursar budget say how much.",)
    assert judge(asked(written), default="UNLIMITED").warnings == (
        f"_defaults: {said} bursar budget say how much.",
    )
    assert judge(asked(written)).warnings == ()  # nobody knows
