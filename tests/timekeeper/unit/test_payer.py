"""Who pays where a claim serves a pod's extended resources."""

import pytest

from timekeeper.accounts.claims.payer import Payer, payer

CASES: dict[str, tuple[str, Payer]] = {
    "the claim holds devices": ("is_held", "claim"),
    "it holds them, and may change": ("is_held may_come", "claim"),
    "neither is known yet": ("may_come", "unknown"),
    "no claim has come": ("", "pod"),
    "the pod was bound before the claim came": ("was_pod is_held", "pod"),
    "it pays already, whatever comes": ("was_pod may_come", "pod"),
    "it pays already": ("was_pod", "pod"),
    "the claim paid, and is gone": ("was_claim", "claim"),
    "the claim paid, and may come back": ("was_claim may_come", "claim"),
    "what is left of the pod is charged beside it": ("was_claim was_pod is_held", "claim"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_payer_is_decided_once(case: str) -> None:
    facts, expected = CASES[case]
    names = ("was_claim", "was_pod", "is_held", "may_come")

    assert payer(**{name: name in facts.split() for name in names}) == expected
