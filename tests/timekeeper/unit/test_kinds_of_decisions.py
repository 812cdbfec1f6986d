"""What the page of decisions says of their reasons."""

import pytest

from timekeeper.accounts.decisions.sentences import sentence
from timekeeper.core.decisions import EVICTED, KINDS, RELEASED, WAITING, WARNED, Decision, Figure
from timekeeper.settler import releaser
from timekeeper.settler.evictions import reasons


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WARNED, reasons.NOTICE),
        (WARNED, reasons.OVERTIME_WARNING),
        (EVICTED, reasons.SPENT),
        (EVICTED, reasons.OVERUSED),
        (EVICTED, reasons.OVERTIME),
        (RELEASED, releaser.RELEASED),
        *((kind, reason) for reason, kind in reasons.IDLE_REASONS.values()),
    ],
)
def test_each_reason_for_which_the_timekeeper_acts_on_a_pod_is_explained(kind: str, reason: str) -> None:
    assert f"`{reason}`" in KINDS[kind].reasons


NEEDS: dict[str, Figure] = {"cardsNeeded": 2, "podsAhead": 1}
ON_NODES: dict[str, Figure] = {
    "reasons": "5 nodes: not enough free GPUs (2 needed); 90 nodes: no GPU cards here"
}
SCHEDULER: dict[str, Figure] = {"scheduler": "0/95 nodes are available: 95 Insufficient cpu."}
BESIDE: dict[str, Figure] = {"freeCardsNode": "n", "lacksBesideCards": "CPU"}
SAID_BY_SCHEDULER = "kube-scheduler finds no node for it: 0/95 nodes are available: 95 Insufficient cpu"
MORE = "needs 2 cards on one node; no card is free; 1 waiting pod is ahead"


@pytest.mark.parametrize(
    ("reason", "figures", "said"),
    [
        ("TooLittleFree", {**NEEDS, **ON_NODES}, f"No node takes it: {ON_NODES['reasons']}; {MORE}."),
        (
            "TooLittleFree",
            {**NEEDS, **ON_NODES, "obstacle": "no node has so many cards"},
            f"No node has so many cards; no node takes it: {ON_NODES['reasons']}.",
        ),
        ("Unschedulable", {**NEEDS, **SCHEDULER}, f"{SAID_BY_SCHEDULER}; {MORE}."),
        (
            "Unschedulable",
            {**NEEDS, **SCHEDULER, "heldCards": 12, "heldNodes": 3},
            "All 12 cards of the 3 nodes that it may use are held; 1 waiting pod is ahead;"
            f" {SAID_BY_SCHEDULER}.",
        ),
        (
            "Unschedulable",
            {**NEEDS, **SCHEDULER, **BESIDE},
            f"Node n has the cards, and lacks CPU; {SAID_BY_SCHEDULER}; {MORE}.",
        ),
        (
            "Unschedulable",
            {**SCHEDULER, **BESIDE, "obstacle": "no node matches its selector"},
            f"No node matches its selector; {SAID_BY_SCHEDULER}.",
        ),
    ],
)
def test_a_pod_that_waits_is_told_first_what_decides(
    reason: str, figures: dict[str, Figure], said: str
) -> None:
    decision = Decision(at_ms=0, kind=WAITING, reason=reason, namespace="a", figures=figures)

    assert sentence(decision) == said


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        (
            {"shareMilli": 500, "memoryMib": 8000},
            "Placed on node n: compute of 0.5 cards and 8000 MiB, on n/0.",
        ),
        ({"shareMilli": 0, "memoryMib": 8000}, "Placed on node n: 8000 MiB, on n/0."),
        ({"shareMilli": 0, "memoryMib": 0}, "Placed on node n: n/0."),
    ],
)
def test_a_placement_says_what_it_has_and_nothing_of_what_it_has_not(
    amounts: dict[str, Figure], said: str
) -> None:
    figures: dict[str, Figure] = {"node": "n", "cards": "GPU-0", "cardIndexes": "0", **amounts}

    assert sentence(Decision(at_ms=0, kind="placed", reason="Placed", namespace="a", figures=figures)) == said
