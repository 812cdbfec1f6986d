"""The Events of the timekeeper on pods and ConfigMaps are on the pages, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SETTLER = ROOT / "timekeeper" / "settler"


def test_the_events_on_pods_about_budgets_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = page.partition("| reason | type | when |")[2].partition("\n\n")[0]
    code = (SETTLER / "pod_notices.py").read_text()

    written = set(re.findall(r'(?:return |pod, )"([A-Z]\w+)", [^\n]*"(Normal|Warning)"', code))

    assert set(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE)) == written


def test_the_events_on_claims_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    table = page.partition("| Event on a claim | when |")[2].partition("\n\n")[0]
    code = (SETTLER / "claim_notices.py").read_text()

    of_budgets = {"OverBudget", "BudgetNearlyUsed", "BackInBudget"}
    written = set(re.findall(r'"(Claim[A-Z]\w+)"', code))
    assert set(re.findall(r"`([A-Z]\w+)`", "\n".join(re.findall(r"^\| [^|]*", table, re.MULTILINE)))) == (
        written | of_budgets
    )


def test_the_events_on_config_maps_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "budget-settings.md").read_text()
    table = page.partition("| Event on a ConfigMap | when |")[2].partition("\n\n")[0]
    code = (SETTLER / "budget_entries.py").read_text()

    written = set(re.findall(r'"([A-Z][a-z]+[A-Z]\w+)"', code))

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == written
