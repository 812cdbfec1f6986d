"""What the page on Helm has people type who apply the manifests, against the manifests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_keeps_the_policy_on_holds_enforced_where_others_only_warn() -> None:
    page = (ROOT / "docs/helm.md").read_text()
    warned = re.search(r"sed -i 's/validationActions.*?\n(?=   kubectl)", page, re.DOTALL)
    assert warned is not None

    named = set(re.findall(r"deploy/manifests/(admission-\S+)", warned[0]))

    there = {path.name for path in (ROOT / "deploy/manifests").glob("admission-*.yaml")}
    warning = {"admission-node-access.yaml"}  # begins by warning
    assert named == there - {"admission-holds.yaml"} - warning
