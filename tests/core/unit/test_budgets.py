"""Budget entries: every field is read exactly, and every mistake is reported with its key, line and field."""

import json
from dataclasses import replace
from datetime import date

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.core.budgets import yaml_nodes
from timekeeper.core.budgets.mistakes import BadEntryError, EntryError
from timekeeper.core.budgets.policy import GPU_HOUR, MODE, Budget, BudgetSettings, ineffective_fields
from timekeeper.core.budgets.reader import ended_fields, read, read_entry
from timekeeper.core.budgets.rule_ids import FIXED, SETTABLE

WHOLE = """\
gpuHours: 120
period: week
carryOver: 0.25
onExhausted: deprioritize
warnAt: 0.8
group: research
policy: binpack
mode: observe
rules: {grace-period: warn, host-pid: "off", amount: enforce}
exempt: ["system:serviceaccount:ci:runner", ci-bot]
maxGPUs: 8
maxGPUsPerPod: 1.5
price: 2.50
overuse: evict
overuseGrace: 0s
evictGrace: 5m
evictRate: 600
idle: off
"""

SETTINGS = """\
timeZone: Europe/Berlin
weights: {H100: 2.5, T4: 0.35}
unitCosts: {gpu.intel.com/tiles: 0.5, gpu.intel.com/memory.max: 0.000000000001}
priorityClasses: {inBudget: high, overBudget: low}
rules: {privileged: off}
exempt: [admins]
schedulerName: gpu-scheduler
sidecar: off
chargeBy: mean
lookahead: 0s
maxGracePeriod: 90s
settleAfter: 2d
pdbGrace: 500ms
overuse: evict
overuseGrace: 30s
evictGrace: 0s
evictRate: 1
idle: evict
idleBelow: 0.125
idleAfter: 2h
idleGrace: 0s
unknownStanding: overBudget
unknownAccelerators: pass
"""


def test_every_field_of_a_budget_is_read() -> None:
    assert read_entry("team-a", WHOLE) == Budget(
        amount=120 * GPU_HOUR,
        period="week",
        carry_over_milli=250,
        on_exhausted="deprioritize",
        warn_at_milli=800,
        group="research",
        policy="binpack",
        mode="observe",
        rules=(("grace-period", "warn"), ("host-pid", "off")),
        exempt=("system:serviceaccount:ci:runner", "ci-bot"),
        max_gpus_milli=8_000,
        max_gpus_per_pod_milli=1_500,
        price="2.50",
        overuse="evict",
        overuse_grace_ms=0,
        evict_grace_ms=300_000,
        evict_rate=600,
        idle="off",
    )


def test_every_setting_is_read() -> None:
    assert read_entry("_settings", SETTINGS) == BudgetSettings(
        time_zone="Europe/Berlin",
        weights=(("H100", 2500), ("T4", 350)),
        unit_costs=(("gpu.intel.com/tiles", 5 * 10**11), ("gpu.intel.com/memory.max", 1)),
        in_budget_class="high",
        over_budget_class="low",
        rules=(("privileged", "off"),),
        exempt=("admins",),
        scheduler_name="gpu-scheduler",
        sidecar="off",
        charge_by="mean",
        lookahead_ms=0,
        max_grace_period_ms=90_000,
        settle_after_ms=172_800_000,
        pdb_grace_ms=500,
        overuse="evict",
        overuse_grace_ms=30_000,
        evict_grace_ms=0,
        evict_rate=1,
        idle="evict",
        idle_below_milli=125,
        idle_after_ms=7_200_000,
        idle_grace_ms=0,
        unknown_standing="overBudget",
        unknown_accelerators="pass",
    )


@pytest.mark.parametrize(
    ("hours", "amount"),
    [
        ("0.1", 360_000_000),
        ("0.00000001", 36),
        ("0", 0),
        ("999999999", 999999999 * GPU_HOUR),
        ("unlimited", None),
    ],
)
def test_hours_are_exact_to_eight_decimals(hours: str, amount: int | None) -> None:
    entry = read_entry("n", f"gpuHours: {hours}")

    assert isinstance(entry, Budget)
    assert entry.amount == amount


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("gpuHours: -1", 1, "gpuHours"),
        ("gpuHours: 0.000000001", 1, "gpuHours"),
        ("gpuHours: 1e3", 1, "gpuHours"),
        ("gpuHours: ٣", 1, "gpuHours"),
        ("gpuHours: .nan", 1, "gpuHours"),
        ("gpuHours: [1]", 1, "gpuHours"),
        ("period: month", 1, "gpuHours"),
        ("", 1, "gpuHours"),
        ("gpuHours: 1\nperiod: fortnight", 2, "period"),
        ("gpuHours: 1\n\ncarryOver: 1.5", 3, "carryOver"),
        ("gpuHours: 1\nwarnAt: 0.1234", 2, "warnAt"),
        ("gpuHours: 1\nonExhausted: explode", 2, "onExhausted"),
        ("gpuHours: 1\ngpuhours: 2", 2, "gpuhours"),
        ("gpuHours: 1\ngpuHours: 2", 2, "gpuHours"),
        ("gpuHours: 1\nrules: {x: sometimes}", 2, "rules.x"),
        ("gpuHours: 1\nrules: {host-pid: sometimes}", 2, "rules.host-pid"),
        ("gpuHours: 1\nrules:\n  host-pid: off\n  amount: warn", 4, "rules.amount"),
        ('gpuHours: 1\nrules:\n  host-pid: off\n  forged-label: "off"', 4, "rules.forged-label"),
        ("gpuHours: 1\nrules: [host-pid]", 2, "rules"),
        ("gpuHours: 1\nexempt: bot", 2, "exempt"),
        ("gpuHours: 1\nexempt:\n  - bot\n  - ' '", 4, "exempt[1]"),
        ("gpuHours: 1\nexempt: [[bot]]", 2, "exempt[0]"),
        ("gpuHours: 1\nmode: dry-run", 2, "mode"),
        ("- a", 1, ""),
        ("just words", 1, ""),
        ("gpuHours: 1\nperiod: {", 2, ""),
        ("gpuHours: &a 1\nmaxGPUs: *a", 1, ""),
        ("a: 1\n---\nb: 2", 2, ""),
        ("gpuHours: 1\nmaxGPUs: 1_0", 2, "maxGPUs"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_field(text: str, line: int, field: str) -> None:
    error = read_entry("team-a", text)

    assert isinstance(error, EntryError)
    assert (error.key, error.line, error.field) == ("team-a", line, field)
    assert "; allowed: " in error.sentence()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("timeZone: Mars/Olympus", "timeZone"),
        ("timeZone: ../../etc/passwd", "timeZone"),
        ("weights: {H100: 0}", "weights.H100"),
        ("weights: {H100: 2.0001}", "weights.H100"),
        ("unitCosts: {tiles: 1000.1}", "unitCosts.tiles"),
        ("unitCosts: {tiles: -1}", "unitCosts.tiles"),
        ("unitCosts: [tiles]", "unitCosts"),
        ("lookahead: 10", "lookahead"),
        ("lookahead: -5s", "lookahead"),
        ("priorityClasses: {middle: x}", "priorityClasses.middle"),
        ("sidecar: maybe", "sidecar"),
        ("mode: dry-run", "mode"),
        ("rules: {x: warn}", "rules.x"),
        ("rules: {node-name: warn}", "rules.node-name"),
        ("exempt: ci-bot", "exempt"),
    ],
)
def test_a_mistaken_setting_is_reported_with_its_field(text: str, field: str) -> None:
    error = read_entry("_settings", text)

    assert isinstance(error, EntryError)
    assert error.field == field


@pytest.mark.parametrize("key", ["Team-A", "_team", "_group.", "a_b", "-a", "x" * 64])
def test_a_key_must_be_a_namespace_or_one_of_ours(key: str) -> None:
    assert isinstance(read_entry(key, "gpuHours: 1"), EntryError)


def test_every_mistake_of_an_entry_is_reported_at_once_and_a_misspelt_field_with_the_one_it_resembles() -> (
    None
):
    text = "gpuhours: 10\nperiod: fortnight\nwarnAt: 2\nrules: {host-pid: never}\nnothing: 1\nnamespaces: [a]"

    reading = read({"bursar-budgets": {"team-a": text}})

    assert [(error.line, error.field, error.problem) for error in reading.errors] == [
        (1, "gpuhours", "no such field; did you mean gpuHours?"),
        (2, "period", '"fortnight" is not a valid value'),
        (3, "warnAt", '"2" is not a valid value'),
        (4, "rules.host-pid", '"never" is not a valid value'),
        (5, "nothing", "no such field"),
        (6, "namespaces", "no such field; a namespace joins a group by the field group in its own entry"),
    ]


def test_a_field_of_other_entries_is_named_with_these() -> None:
    (of_budget,) = read({"bursar-budgets": {"team-a": "gpuHours: 1\ncurrency: EUR"}}).errors
    (of_settings,) = read({"bursar-budgets": {"_settings": "onExhausted: deny"}}).errors

    assert of_budget.problem == "no such field; it is a field of _settings"
    assert of_settings.problem == "no such field; it is a field of budgets"


def test_an_entry_with_hours_alone_demotes_new_pods_and_evicts_none() -> None:
    entry = read_entry("team-a", "gpuHours: 10")

    assert isinstance(entry, Budget)
    assert entry.on_exhausted == "deprioritize"


def test_a_bad_entry_harms_no_other() -> None:
    reading = read(
        {"bursar-budgets": {"a": "gpuHours: 1", "b": "gpuHours: lots", "_settings": "idle: evict"}}
    )

    assert reading.budgets == {"a": Budget(amount=GPU_HOUR)}
    assert reading.settings == BudgetSettings(idle="evict")
    assert {error.key for error in reading.errors} == {"b"}


def test_a_key_in_two_config_maps_holds_where_it_came_first() -> None:
    reading = read({"aaa": {"team": "gpuHours: 2"}, "bursar-budgets": {"team": "gpuHours: 1"}})

    assert reading.budgets == {"team": Budget(amount=GPU_HOUR)}
    assert [error.problem for error in reading.errors] == [
        "also defined in ConfigMap bursar-budgets; the entry in aaa is ignored"
    ]


def test_what_is_not_built_yet_is_reported() -> None:
    entry = read_entry("team-a", WHOLE)

    assert isinstance(entry, Budget)
    assert ineffective_fields(entry) == (
        "evictGrace: it has no effect without onExhausted: evict",
        "evictRate: it has no effect without onExhausted: evict",
    )
    assert ineffective_fields(Budget(amount=1, on_exhausted="deprioritize")) == ()
    assert ineffective_fields(Budget(amount=1, on_exhausted="deny")) == ()


@pytest.mark.parametrize(
    ("key", "text", "field"),
    [
        ("team-a", "gpuHours: 1\nperiod: once\ncarryOver: 0.5", "carryOver"),
        ("_group.lab", "gpuHours: 1\ngroup: other", "group"),
        ("_group.lab", "gpuHours: 1\nmode: observe", "mode"),
        ("_group.lab", "gpuHours: 1\nrules: {host-pid: warn}", "rules"),
        ("_group.lab", "gpuHours: 1\nexempt: [a]", "exempt"),
        ("_group.lab", "gpuHours: 1\nprice: 2", "price"),
        ("_group.lab", "gpuHours: 1\npolicy: spread", "policy"),
        ("_group.lab", "gpuHours: 1\noveruse: observe", "overuse"),
        ("_group.lab", "gpuHours: 1\noveruseGrace: 1m", "overuseGrace"),
        ("_group.lab", "gpuHours: 1\nmaxWaiting: 2", "maxWaiting"),
        ("_group.lab", "gpuHours: 1\nidle: evict", "idle"),
    ],
)
def test_what_nothing_would_read_is_refused_unless_it_took_effect_before(
    key: str, text: str, field: str
) -> None:
    error = read_entry(key, text)

    assert isinstance(error, EntryError)
    assert (error.line, error.field, error.others) == (text.count("\n") + 1, field, ())
    assert isinstance(read_entry(key, text, lenient=True), Budget)


@pytest.mark.parametrize(
    ("text", "milli"), [("0", 0), ("4", 4_000), ("2.5", 2_500), ("0.125", 125), ("999999.999", 999_999_999)]
)
def test_a_cap_is_a_number_of_cards_in_thousandths(text: str, milli: int) -> None:
    entry = read_entry("_group.lab", f"gpuHours: unlimited\nmaxGPUs: {text}\nmaxGPUsPerPod: {text}")

    assert entry == Budget(amount=None, max_gpus_milli=milli, max_gpus_per_pod_milli=milli)


@pytest.mark.parametrize("text", ["-1", "0.1234", "1000000", "1e3", "unlimited", "nan", "1_0", ".5"])
def test_any_other_cap_is_refused_with_what_is_allowed(text: str) -> None:
    error = read_entry("team-a", f"gpuHours: 1\nmaxGPUsPerPod: {text}")

    assert isinstance(error, EntryError)
    assert (error.line, error.field) == (2, "maxGPUsPerPod")
    assert error.allowed == "a number of cards from 0 to 999999 with at most 3 decimals"


def test_a_price_and_its_currency_may_stand_in_the_settings() -> None:
    assert read_entry("_settings", "price: 1.25\ncurrency: EUR") == BudgetSettings(
        price="1.25", currency="EUR"
    )
    assert read_entry("_settings", "") == BudgetSettings(price="", currency="USD")


@pytest.mark.parametrize("name", ["prod-eu", "Prod_1", "arn:aws:eks:eu-west-1:1:cluster/prod", "x" * 128])
def test_a_cluster_may_have_the_name_that_its_cloud_gives_it(name: str) -> None:
    assert read_entry("_settings", f"clusterName: {name}") == BudgetSettings(cluster_name=name)


@pytest.mark.parametrize("name", ["''", "-x", "a b", "'=1+1'", "x" * 129, "'a\"b'"])
def test_a_clusters_name_is_one_word(name: str) -> None:
    error = read_entry("_settings", f"clusterName: {name}")

    assert isinstance(error, EntryError)
    assert error.field == "clusterName"
    assert "such as prod-eu" in error.sentence()


@pytest.mark.parametrize("currency", ["eur", "EURO", "E1R", "€", "''", "[EUR]"])
def test_a_currency_has_three_capital_letters(currency: str) -> None:
    error = read_entry("_settings", f"currency: {currency}")

    assert isinstance(error, EntryError)
    assert error.field == "currency"


@pytest.mark.parametrize("price", ["-1", "1.1234567", "1e3", "ten"])
def test_a_price_is_a_decimal_of_at_most_six_places(price: str) -> None:
    for key, text in (("_settings", f"price: {price}"), ("team-a", f"gpuHours: 1\nprice: {price}")):
        error = read_entry(key, text)
        assert isinstance(error, EntryError)
        assert (error.field, "at most 6 decimals" in error.allowed) == ("price", True)


def test_later_prices_have_the_days_on_which_they_begin() -> None:
    text = "price: 2.50 then 3 from 2026-12-01  then 0.125 from 2027-01-01"
    later = ((date(2026, 12, 1), "3"), (date(2027, 1, 1), "0.125"))

    assert read_entry("_settings", text) == BudgetSettings(price="2.50", later_prices=later)
    assert read_entry("team-a", f"gpuHours: 1\n{text}") == Budget(GPU_HOUR, price="2.50", later_prices=later)


def test_a_later_price_begins_in_one_of_the_years_1970_to_9997() -> None:
    later = ((date(1970, 1, 1), "3"), (date(9997, 12, 31), "4"))

    read = read_entry("_settings", "price: 2 then 3 from 1970-01-01 then 4 from 9997-12-31")

    assert read == BudgetSettings(price="2", later_prices=later)


@pytest.mark.parametrize(
    ("price", "allowed"),
    [
        ("2 then 3", "such as 2.5 then 3 from 2026-12-01"),
        ("2 then 3 from 1.12.2026", "such as 2.5 then 3 from 2026-12-01"),
        ("2 then 3 from 2026-02-30", "days that exist, and 2026-02-30 does not"),
        ("2 then 3 from 1969-12-31", "days of the years 1970 to 9997"),
        ("2 then 3 from 9999-12-31", "days of the years 1970 to 9997"),
        ("2 then 3 from 2026-12-01 then 4 from 2026-12-01", "in the order of their days, each day once"),
        ("2 then 3 from 2026-12-02 then 4 from 2026-12-01", "in the order of their days, each day once"),
        ("2" + "".join(f" then 3 from {2000 + at}-01-01" for at in range(101)), "at most 100"),
    ],
)
def test_later_prices_that_are_not_right_are_told_with_what_is_allowed(price: str, allowed: str) -> None:
    error = read_entry("team-a", f"gpuHours: 1\nprice: {price}")

    assert isinstance(error, EntryError)
    assert (error.line, error.field, allowed in error.allowed) == (2, "price", True)


def test_a_groups_split_has_a_part_for_each_namespace() -> None:
    entry = read_entry("_group.lab", "gpuHours: 50\nsplit: {b: 20.5, a: 29.5}")

    assert entry == Budget(50 * GPU_HOUR, split=(("a", 59 * GPU_HOUR // 2), ("b", 41 * GPU_HOUR // 2)))


@pytest.mark.parametrize(
    ("key", "text", "field", "problem"),
    [
        ("team-a", "gpuHours: 9\nsplit: {a: 1}", "split", "a group alone has a budget to split"),
        ("_defaults", "gpuHours: 9\nsplit: {a: 1}", "split", "a group alone has a budget to split"),
        ("_group.lab", "gpuHours: 9\nsplit: {a: 5, b: 4.1}", "split", "together more than gpuHours"),
        ("_group.lab", "gpuHours: unlimited\nsplit: {a: 5}", "split", "without a limit has nothing to split"),
        ("_group.lab", "gpuHours: 9\nsplit: {a: 0}", "split.a", '"0" is not a valid value'),
        ("_group.lab", "gpuHours: 9\nsplit: {a: unlimited}", "split.a", "is not a valid value"),
        ("_group.lab", "gpuHours: 9\nsplit: {A_b: 1}", "split", "is not a namespace's name"),
        ("_group.lab", "gpuHours: 9\nsplit: [a]", "split", "not a mapping"),
        ("_group.lab", "gpuHours: 9\nsplit: {a: {b: 1}}", "split.a", "not a single value"),
    ],
)
def test_a_split_that_is_not_right_is_told(key: str, text: str, field: str, problem: str) -> None:
    error = read_entry(key, text)

    assert isinstance(error, EntryError)
    assert (error.line, error.field, problem in error.problem) == (2, field, True)


@pytest.mark.parametrize(
    "name",
    [
        "Ada Lovelace",
        "ada.lovelace+gpu@example.com",
        "J. O'Brien-Smith",
        "\u00c9mile",
        "\u0928\u093f\u0936\u093e",
        "x" * 100,
    ],
)
def test_a_groups_leads_are_names_as_people_write_them(name: str) -> None:
    entry = read_entry("_group.lab", f'gpuHours: 1\nleads: ["{name}", grace_h]')

    assert entry == Budget(GPU_HOUR, leads=(name, "grace_h"))


@pytest.mark.parametrize(
    ("key", "leads", "field", "problem"),
    [
        ("team-a", "[Ada]", "leads", "a group alone has leads"),
        ("_defaults", "[Ada]", "leads", "a group alone has leads"),
        ("_group.lab", "Ada", "leads", "not a list"),
        ("_group.lab", f"[{', '.join(['Ada'] * 17)}]", "leads", "17 names"),
        ("_group.lab", '[Ada, ""]', "leads[1]", '"" is not a valid value'),
        *(
            ("_group.lab", f"[{json.dumps(name)}]", "leads[0]", "is not a valid value")
            for name in (
                "x" * 101, " Ada", "Ada ", "Ada  Lovelace", "<b>Ada</b>", "[Ada](http://x.example)", "`Ada`",
                "*Ada*", "_Ada_", "Ada _L_", "https://x.example", "www.x.example", "Ada WWW.x.example",
                "Ada\nLovelace", "=HYPERLINK(1)", "@channel", "+1", "Ada\u202elovelace", "Ada|L", "Ada: L",
                "$(id)", "Ada & Grace", 'Ada "L"', "Ada\\L", "\u200bAda", "Ada; rm",
            )
        ),
    ],
)  # fmt: skip
def test_a_lead_that_is_no_plain_name_is_refused_by_its_field(
    key: str, leads: str, field: str, problem: str
) -> None:
    error = read_entry(key, f"gpuHours: 9\nleads: {leads}")

    assert isinstance(error, EntryError)
    assert (error.line, error.field, problem in error.problem) == (2, field, True)


def test_a_group_is_in_no_group() -> None:
    error = read_entry("_group.lab", "gpuHours: 1\ngroup: other")

    assert isinstance(error, EntryError)
    assert (error.line, error.field, error.problem) == (2, "group", "a group cannot be in a group")
    assert read_entry("_group.lab", "gpuHours: 1\ngroup: other", lenient=True) == Budget(
        GPU_HOUR, group="other"
    )


def test_a_group_that_has_no_entry_is_a_warning_and_no_error() -> None:
    reading = read(
        {
            "bursar-budgets": {
                "team-a": "gpuHours: 1\ngroup: lab",
                "team-b": "gpuHours: 1\ngroup: there",
                "team-c": "gpuHours: 1\ngroup: broken",
                "_defaults": "gpuHours: unlimited\nperiod: day\ngroup: pool",
                "_group.broken": "gpuHours: many",
            },
            "others": {"_group.there": "gpuHours: 1"},
        }
    )

    assert [error.key for error in reading.errors] == ["_group.broken"]
    assert [(error.key, error.line, error.field) for error in reading.missing_groups(reading.budgets)] == [
        ("team-a", 2, "group"),
        ("_defaults", 3, "group"),
    ]
    assert (
        "_group.lab is not defined in any budget ConfigMap, so the group has no limit"
        in reading.missing_groups(reading.budgets)[0].sentence()
    )
    assert {"team-a", "_defaults"} <= reading.budgets.keys()


@pytest.mark.parametrize(
    ("text", "sidecar"),
    [("on", "on"), ("true", "on"), ("off", "off"), ('"false"', "off")],
)
def test_the_sidecar_is_on_or_off(text: str, sidecar: str) -> None:
    assert read_entry("_settings", f"sidecar: {text}") == BudgetSettings(sidecar=sidecar)


def test_a_rule_that_does_not_exist_is_reported_with_those_that_do() -> None:
    error = read_entry("team-a", "gpuHours: 1\nrules:\n  host-path: warn\n  hostpath: warn")

    assert isinstance(error, EntryError)
    assert error.sentence() == (
        "team-a, line 4, rules.hostpath: no such rule; allowed: " + ", ".join(SETTABLE)
    )


@pytest.mark.parametrize("rule", FIXED)
def test_a_rule_that_keeps_the_accounts_right_is_always_enforced(rule: str) -> None:
    error = read_entry("team-a", f"gpuHours: 1\nrules: {{{rule}: warn}}")

    assert isinstance(error, EntryError)
    assert error.sentence() == (
        f"team-a, line 2, rules.{rule}: this rule is always enforced; allowed: enforce, or omit the rule"
    )


def test_an_entry_that_took_effect_long_ago_is_read_whatever_rules_it_names() -> None:
    text = "gpuHours: 1\nrules: {gone-since: warn, share-range: warn, host-pid: warn}"

    assert read_entry("team-a", text, lenient=True) == Budget(amount=GPU_HOUR, rules=(("host-pid", "warn"),))
    assert isinstance(read_entry("team-a", text), EntryError)


@given(st.text(max_size=200))
def test_arbitrary_text_never_raises(text: str) -> None:
    read_entry("team-a", text)
    read_entry("_settings", text)


PIECES = (
    *(
        "gpuHours",
        "period: month",
        "onExhausted: deny\n",
        "rules: {amount: warn}",
        "exempt: [a, b]",
        "10",
        "a",
    ),
    *(
        ": ",
        ":",
        "\n",
        "\n  ",
        "\n- ",
        "\n  - ",
        "- ",
        "-",
        " ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        ",",
        '"',
        "'",
        "#",
    ),
    *(
        " # note",
        "~",
        "''",
        "'it''s'",
        '"x\ny"',
        "http://x:8/y?z=1",
        "::",
        "=",
        "<<",
        "x" * 1_023,
        "- a\n" * 40,
    ),
    *(
        "? ",
        "?",
        "|\n",
        ">-",
        "!",
        "!!str ",
        "&a ",
        "*a",
        "%",
        "---",
        "...",
        "\\",
        "\t",
        "\r\n",
        "\r",
        "`",
        "@",
    ),
    *("\x85", "\u2028", "\ufeff", "\xa0", "\x00", "\x7f", "\ud800", "\xfc", "\U0001f600"),
)


def lines_of(text: str) -> object:
    try:
        fields = yaml_nodes.fields_of(text)
    except BadEntryError as bad:
        return bad.line, bad.problem
    return {name: (yaml_nodes.line_of(node), yaml.serialize(node)) for name, node in fields.items()}


def said_of(text: str) -> object:
    """The value or the mistakes of a text, its fields' lines, and how they are written in a decision."""
    return *(read_entry(key, text) for key in ("team-a", "_group.a", "_settings")), lines_of(text)


def said_without_libyaml(text: str) -> object:
    with pytest.MonkeyPatch.context() as without:
        without.setattr(yaml_nodes, "_LIBYAML", None)
        return said_of(text)


@given(st.one_of(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.text(max_size=60)))
def test_libyaml_says_of_a_text_what_pyyamls_own_parser_says(text: str) -> None:
    assert said_of(text) == said_without_libyaml(text)


@pytest.mark.parametrize("text", [WHOLE, SETTINGS, "a: {b: \n }", "[" * 16_384, "[{" * 8_192, "{a: " * 4_096])
def test_libyaml_says_the_same_of_what_people_write_and_of_brackets(text: str) -> None:
    assert said_of(text) == said_without_libyaml(text)


def test_deep_nesting_and_long_text_are_errors() -> None:
    assert isinstance(read_entry("a", "gpuHours: " + "[" * 10_000), EntryError)
    assert isinstance(read_entry("a", "? " * 8_000), EntryError)
    assert isinstance(read_entry("a", "x" * 100_000), EntryError)


def test_the_modes_object_has_the_mode_and_whether_pods_are_placed() -> None:
    files = {"bursar-mode": {MODE: "mode: observe\nplacement: off"}, "x": {"_settings": "idle: evict"}}
    found = read(files)

    assert found.in_force == BudgetSettings(mode="observe", placement="off", idle="evict")
    assert found.errors == ()
    (error,) = read({"x": {"_mode": "mode: observe"}}).errors
    assert (error.key, error.problem) == ("_mode", "no such key")


ENDED = ("chargeFrom: bound", "startGrace: 90s", "sidecar: container", "chargeBy: dominant-host")


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("lenient", [False, True])
def test_a_field_that_has_ended_has_no_effect_and_says_what_it_did(ended: str, lenient: bool) -> None:
    """All else of the text counts: what happens to idle pods, the time zone, the price."""
    rest = "idle: evict\ntimeZone: Europe/Berlin\nprice: 2.50\n"

    then = read_entry("_settings", f"{rest}{ended}\n", lenient=lenient)

    assert isinstance(then, BudgetSettings)
    assert replace(then, ended=()) == read_entry("_settings", rest)
    (sentence,) = then.ended
    field = ended.partition(":")[0]
    assert sentence.startswith(f"{field}: ")
    assert "has ended" in sentence
    assert ineffective_fields(then) == (sentence,)
    (error,) = ended_fields("_settings", f"{rest}{ended}\n")
    assert (error.key, error.line, error.field, error.allowed) == ("_settings", 4, field, "omit the field")


@pytest.mark.parametrize("key", ["team-a", "_group.research", "_defaults"])
@pytest.mark.parametrize("lenient", [False, True])
def test_a_budget_is_read_without_the_fields_that_have_ended(key: str, lenient: bool) -> None:
    rest = "gpuHours: 120\nwarnAt: 0.5\n"
    text = f"{rest}notify: {{not: a URL}}\nnotifyFormat: slack\n"

    then = read_entry(key, text, lenient=lenient)

    assert isinstance(then, Budget)
    assert replace(then, ended=()) == read_entry(key, rest)
    said = "it has ended: Alertmanager sends alerts on budgets, by their label namespace"
    assert ineffective_fields(then) == then.ended == (f"notify: {said}", f"notifyFormat: {said}")
    assert [(error.key, error.line, error.field) for error in ended_fields(key, text)] == [
        (key, 3, "notify"),
        (key, 4, "notifyFormat"),
    ]
    assert isinstance(read_entry("_settings", "notify: https://hooks.example/"), EntryError)


def test_a_field_of_another_value_has_not_ended() -> None:
    assert ended_fields("_settings", "sidecar: off\nchargeBy: mean\n") == ()
    assert ended_fields("_settings", "chargeBy: [dominant-host]\n- no mapping") == ()
    assert isinstance(read_entry("_settings", "chargeBy: [dominant-host]"), EntryError)


@pytest.mark.parametrize(
    ("text", "share", "half_life_ms"),
    [
        ("{weight: 2.5, halfLife: 7d}", 2500, 7 * 86_400_000),
        ("{weight: 0}", 0, None),
        ("{halfLife: 90m}", None, 5_400_000),
        ("{halfLife: 365d}", None, 365 * 86_400_000),
        ("{}", None, None),
    ],
)
def test_a_fair_share_is_a_weight_and_a_half_life(
    text: str, share: int | None, half_life_ms: int | None
) -> None:
    for key in ("team-a", "_group.g", "_defaults"):
        found = read_entry(key, f"gpuHours: 1\nfairShare: {text}")
        assert isinstance(found, Budget)
        assert (found.share_milli, found.half_life_ms) == (share, half_life_ms)


LIFE = "a duration above 0s, of at most 365d, such as 14d or 12h"


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        *(
            (
                "team-a",
                f"{{halfLife: {life}}}",
                f'fairShare.halfLife: "{life}" is not a valid value; allowed: {LIFE}',
            )
            for life in ("0s", "0d", "-1d", "nan", "366d", "14", "1y")
        ),
        *(
            (
                "_group.g",
                f"{{weight: {weight}}}",
                f'fairShare.weight: "{weight}" is not a valid value; allowed: a number from 0 to 1000 with at'
                " most 3 decimals",
            )
            for weight in ("-1", "1001", "nan", "1e3", "0.0001")
        ),
        (
            "team-a",
            "{weigth: 1}",
            "fairShare.weigth: no such field; did you mean weight?; allowed: weight, halfLife",
        ),
        ("team-a", "on", "fairShare: not a mapping; allowed: fields as name: value"),
        ("_settings", "{weight: 1}", "fairShare: not a single value; allowed: one value"),
        ("_settings", "yes", 'fairShare: "yes" is not a valid value; allowed: on, off'),
    ],
)
def test_a_fair_share_that_means_nothing_is_refused_with_a_sentence(
    key: str, text: str, sentence: str
) -> None:
    amount = "" if key == "_settings" else "gpuHours: 1\n"

    found = read_entry(key, f"{amount}fairShare: {text}")

    assert isinstance(found, EntryError)
    assert found.sentence() == f"{key}, line {1 + bool(amount)}, {sentence}"


def test_a_share_where_shares_are_off_is_said_and_never_ignored_in_silence() -> None:
    """In Kueue it was off in silence where no half-life was set (kueue#11134)."""
    found = read_entry("team-a", "gpuHours: 1\nfairShare: {weight: 2}")
    assert isinstance(found, Budget)

    assert ineffective_fields(found, fair_share="off") == (
        "fairShare: it has no effect without fairShare: on in _settings",
    )
    assert ineffective_fields(found, fair_share="on") == ()
    settings = read_entry("_settings", "fairShare: on")
    assert isinstance(settings, BudgetSettings)
    assert settings.fair_share == "on"
    assert BudgetSettings().fair_share == "off"
