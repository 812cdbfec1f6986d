"""Who gets which alert: the examples of docs/alerts.md, and the label that they route by."""

import re
from pathlib import Path

import yaml

from tests.docs.monitoring import RULES

PAGE = Path(__file__).parents[3] / "docs" / "alerts.md"


def test_an_alert_on_an_account_has_the_label_namespace_by_which_the_page_routes() -> None:
    ours = [rule for rule in RULES if "bursar_account_" in rule["expr"]]
    alertmanager, operator = map(
        yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    )

    assert {rule["alert"] for rule in ours} == {
        *("BursarBudgetNearlySpent", "BursarBudgetExhausted", "BursarBudgetExhaustsSoon")
    }
    for rule in ours:  # nothing takes the label away
        assert not re.search(r"\b(by|without|sum|max|min|count|absent|on|ignoring)\b", rule["expr"]), rule
        assert "$labels.namespace" in rule["annotations"]["summary"]
    route, receivers = alertmanager["route"], {each["name"] for each in alertmanager["receivers"]}
    (of_team,) = route["routes"]
    assert of_team["matchers"] == ['namespace="team-a"']
    assert {route["receiver"], of_team["receiver"]} == receivers
    assert (operator["apiVersion"], operator["kind"]) == (
        "monitoring.coreos.com/v1alpha1",
        "AlertmanagerConfig",
    )
    assert operator["metadata"]["namespace"] == "team-a"  # which the operator adds as the route's matcher
    assert operator["spec"]["route"].keys() == {"receiver"}
    assert [each["name"] for each in operator["spec"]["receivers"]] == [operator["spec"]["route"]["receiver"]]
