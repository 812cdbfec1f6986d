"""When new pods need not be checked again: who comes last, asked about what, and for how long."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from tests.webhook.injector import RULE
from tests.webhook.servers import ROOT
from tests.worlds import Json
from webhook.controller.checks import LASTS, NAME, condition, obstacle, renewed, spared_until
from webhook.settings.settings import CONFIGURATION

NOW = datetime(2026, 11, 21, 2, 30, tzinfo=UTC)


def ours() -> tuple[Json, Json]:
    """Our mutating configuration, and the webhook that checks, as the manifests have them."""
    file = ROOT / "deploy" / "manifests" / "webhook-configurations.yaml"
    mutating, validating = yaml.safe_load_all(file.read_text())
    return mutating, validating["webhooks"][0]


def another(name: str, *webhooks: Json) -> Json:
    """Another's configuration of mutating webhooks."""
    return {"metadata": {"name": name}, "webhooks": list(webhooks)}


def webhook(**rule: Any) -> Json:
    """A webhook that may change new pods, but for what the rule says otherwise."""
    return {"name": "other.example.com", "clientConfig": {"url": "https://other"}, "rules": [RULE | rule]}


def why(*others: Json, check: Json | None = None) -> str:
    """What is in the way, with these configurations beside ours."""
    mutating, ours_checking = ours()
    return obstacle([*others, mutating], CONFIGURATION, check or ours_checking, [])


def test_as_installed_nothing_is_in_the_way() -> None:
    assert why() == ""


@pytest.mark.parametrize("name", ["a", "bursar", "z", "zz", "zz-bursaa", "vault", "zz-burs"])
def test_who_is_called_before_us_is_not_in_the_way(name: str) -> None:
    assert why(another(name, webhook())) == ""


@pytest.mark.parametrize("name", ["zz-bursar-2", "zz-bursar.x", "zz-c", "zzz", "zz.a"])
def test_who_is_called_after_us_is(name: str) -> None:
    assert why(another(name, webhook())) == (
        f"other.example.com of {name} is called after govern.bursar.dev, or without it"
    )


@pytest.mark.parametrize("name", ["a", "zz-bursaa"])
def test_who_asks_for_a_second_call_may_bring_a_pod_to_which_we_were_not_called_once(name: str) -> None:
    """An API server begins with nobody in its second round: who was passed by in the first stays so."""
    again = webhook() | {"reinvocationPolicy": "IfNeeded"}

    assert why(another("a", webhook()), another(name, webhook(), again)) == (
        f"other.example.com of {name} may be called again where govern.bursar.dev was not called once"
    )
    assert why(another(name, webhook() | {"reinvocationPolicy": "Never"})) == ""
    assert why(another(name, again | {"rules": [RULE | {"resources": ["nodes"]}]})) == ""


def test_policies_that_act_again_are_in_the_way_like_webhooks() -> None:
    mutating, check = ours()

    def why_with(**spec: Any) -> str:
        policy = {"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [RULE]}} | spec}
        return obstacle([mutating], CONFIGURATION, check, [policy])

    assert why_with(reinvocationPolicy="Never") == ""
    assert why_with(reinvocationPolicy="IfNeeded", matchConstraints={}) == ""
    assert why_with(reinvocationPolicy="IfNeeded") == (
        "the policy p may act again where govern.bursar.dev was not called once"
    )


@pytest.mark.parametrize(
    "rule",
    [
        {"operations": ["*"]},
        {"operations": ["UPDATE", "CREATE"]},
        {"apiGroups": ["*"]},
        {"apiGroups": ["apps", ""]},
        {"resources": ["*"]},
        {"resources": ["*/*"]},
        {"resources": ["pods/*"]},
        {"resources": ["configmaps", "pods"]},
        {"apiVersions": ["*"]},
    ],
)
def test_by_whatever_rule_it_is_told_of_pods(rule: Json) -> None:
    assert "is called after" in why(another("zzz", webhook(**rule)))


@pytest.mark.parametrize(
    "rule",
    [
        {"operations": ["UPDATE", "DELETE", "CONNECT"]},
        {"apiGroups": ["apps", "batch"]},
        {"resources": ["pods/status", "*/scale", "configmaps", "configmaps/*"]},
    ],
)
def test_who_is_never_told_of_a_new_pod_is_not_in_the_way(rule: Json) -> None:
    assert why(another("zzz", webhook(**rule))) == ""
    assert "is called after" in why(another("zzz", webhook(**rule), webhook()))


def test_what_a_later_webhook_leaves_out_today_it_may_take_in_tomorrow() -> None:
    selecting = webhook() | {"objectSelector": {"matchLabels": {"never": "there"}}}

    assert "is called after" in why(another("zzz", selecting))


def test_one_that_was_added_to_our_own_configuration_is_in_the_way() -> None:
    mutating, check = ours()
    mutating["webhooks"].append(webhook())

    assert "other.example.com of zz-bursar is called after" in obstacle([mutating], CONFIGURATION, check, [])


def test_without_our_configurations_nothing_is_spared() -> None:
    mutating, check = ours()

    assert obstacle([], CONFIGURATION, check, []) == "there is no webhook govern.bursar.dev"
    assert "other.example.com of a is called" in obstacle([another("a", webhook())], CONFIGURATION, check, [])
    assert obstacle([mutating], CONFIGURATION, None, []) == "there is no webhook check.bursar.dev"
    assert "or without it" in obstacle([mutating], "zzz-bursar", check, []), "of another name it is another's"


ASKED_LESS: dict[str, Json] = {
    "failurePolicy": {"failurePolicy": "Ignore"},
    "reinvocationPolicy": {"reinvocationPolicy": "Never"},
    "rules": {"rules": [RULE]},
    "namespaceSelector": {"namespaceSelector": {}},
    "objectSelector": {"objectSelector": {"matchLabels": {"a": "b"}}},
    "matchPolicy": {"matchPolicy": "Exact"},
    "matchConditions": {"matchConditions": [{"name": "gpu-pods", "expression": "false"}]},
    "clientConfig": {"clientConfig": {"url": "https://elsewhere/mutate"}},
}


@pytest.mark.parametrize("field", ASKED_LESS)
def test_a_webhook_that_governs_less_than_is_checked_spares_nothing(field: str) -> None:
    mutating, check = ours()
    mutating["webhooks"][0] |= ASKED_LESS[field]

    assert obstacle([mutating], CONFIGURATION, check, []) == (
        f"govern.bursar.dev and check.bursar.dev are not asked alike: {field} differ"
    )


def test_who_governs_and_who_checks_must_be_the_same_server() -> None:
    mutating, check = ours()
    for each, path in ((mutating["webhooks"][0], "mutate"), (check, "validate")):
        each["clientConfig"] = {"url": f"https://10.0.0.1:8443/{path}", "caBundle": path}
    assert obstacle([mutating], CONFIGURATION, check, []) == ""

    check["clientConfig"]["url"] = "https://10.0.0.2:8443/validate"
    assert "clientConfig differ" in obstacle([mutating], CONFIGURATION, check, [])
    mutating["webhooks"][0]["clientConfig"] = ours()[0]["webhooks"][0]["clientConfig"]
    assert "clientConfig differ" in obstacle([mutating], CONFIGURATION, check, [])
    swapped = copy.deepcopy(ours())
    swapped[0]["webhooks"][0]["clientConfig"]["service"]["path"] = "/validate"
    assert "clientConfig differ" in obstacle([swapped[0]], CONFIGURATION, swapped[1], [])


def test_our_own_condition_is_not_in_the_way_of_the_next() -> None:
    mutating, check = ours()
    check["matchConditions"].append(condition(NOW))

    assert why(check=check) == ""
    mutating["webhooks"][0]["matchConditions"].append(condition(NOW))
    assert "matchConditions differ" in obstacle([mutating], CONFIGURATION, check, []), (
        "who governs must be asked"
    )


def leased(until: datetime) -> Json:
    """The webhook that checks, spared until then."""
    _, check = ours()
    check["matchConditions"].insert(0, condition(until))
    return check


def test_until_when_it_is_spared_is_read_from_the_condition() -> None:
    assert spared_until(ours()[1]) is None
    assert spared_until({}) is None
    assert spared_until(leased(NOW)) == NOW
    elsewhere = NOW.astimezone(tz=datetime.strptime("+0530", "%z").tzinfo)
    assert spared_until(leased(elsewhere)) == NOW


@pytest.mark.parametrize(
    ("left", "is_renewed"),
    [
        (LASTS, False),
        (LASTS / 2 + timedelta(seconds=1), False),
        (LASTS / 2, True),
        (timedelta(0), True),
        (-LASTS, True),
        (LASTS + timedelta(seconds=1), True),
        (timedelta(days=900), True),
    ],
)
def test_a_lease_is_renewed_when_half_of_it_is_over_or_a_clock_made_it_too_long(
    left: timedelta, is_renewed: bool
) -> None:
    assert renewed(leased(NOW + left), NOW) == (NOW + LASTS if is_renewed else None)


@pytest.mark.parametrize("expression", ["true", "timestamp('soon')", "timestamp('2026-99-99T00:00:00Z')"])
def test_a_condition_that_somebody_has_rewritten_is_written_anew(expression: str) -> None:
    check = {"matchConditions": [{"name": NAME, "expression": expression}]}

    assert spared_until(check) is not None, "it is there, and taken away where it must not be"
    assert renewed(check, NOW) == NOW + LASTS


def test_one_who_is_not_spared_yet_is_leased_at_once() -> None:
    assert renewed(ours()[1], NOW) == NOW + LASTS
