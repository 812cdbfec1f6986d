"""The figure in the policies on grace periods, against `maxGracePeriod`."""

from pathlib import Path

import yaml

from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.json_values import Json
from timekeeper.settler.grace_policies import POLICIES, differences

MANIFEST = Path(__file__).parents[3] / "deploy" / "manifests" / "admission-grace.yaml"
LONGEST_S = BudgetSettings().max_grace_period_ms // 1000


def manifests() -> dict[str, Json | None]:
    """The policies as they are installed."""
    documents = yaml.safe_load_all(MANIFEST.read_text())
    return {each["metadata"]["name"]: each for each in documents if "variables" in each["spec"]}


def test_the_manifests_have_the_default_of_the_budgets() -> None:
    assert set(manifests()) == set(POLICIES)
    assert differences(manifests(), LONGEST_S) == ()


def test_another_figure_is_reported_for_each_policy_that_differs() -> None:
    policies: dict[str, Json | None] = {**manifests(), "bursar-eviction-grace": None}

    assert differences(policies, LONGEST_S) == (
        "policy bursar-eviction-grace does not exist, but maxGracePeriod is 600 seconds; "
        "set its variable longest to 600",
    )
    assert differences(manifests(), 1800)[0] == (
        "policy bursar-grace has '600', but maxGracePeriod is 1800 seconds; set its variable longest to 1800"
    )
    assert len(differences({each: {"spec": {"variables": "none"}} for each in POLICIES}, 600)) == 2
