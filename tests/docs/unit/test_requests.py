"""The page on requests quotes the sentences that the extender answers with."""

from pathlib import Path

import pytest

from scheduler_ext.fit import refusal
from tests.worlds import pod
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Card, CardSet, GPURequest

PAGE = (Path(__file__).parents[3] / "docs" / "requests.md").read_text()


def request(limits: list[dict[str, str]], **annotations: str) -> GPURequest:
    """A pod's request: one container for each limits, and annotations without their prefix."""
    containers = ({"name": f"c{i}", "resources": {"limits": each}} for i, each in enumerate(limits))
    found = parse(
        pod(*containers, annotations={f"bursar.dev/{k.replace('_', '-')}": v for k, v in annotations.items()})
    )
    assert found.request is not None, found.violations
    return found.request


TWO = {"bursar.dev/gpu-count": "2"}
PART = {"bursar.dev/gpu-percent": "30"}
PARTS = {"bursar.dev/gpu-percent": "30", "bursar.dev/gpu-memory": "8192"}

REASONS = (
    refusal.not_enough_free(request([PARTS])),
    refusal.not_enough_free(request([TWO])),
    refusal.not_enough_free(request([PART, PART, {"bursar.dev/gpu-count": "1"}])),
    refusal.not_allowed(request([PART], gpu_models="H100")),
    refusal.not_allowed(request([PART], exclude_gpu_models="T4")),
    refusal.not_allowed(request([PART], gpu_uuids="GPU-1")),
    refusal.never_near("pair", 2),
    refusal.never_near("numa", 2),
    refusal.not_known("pair"),
    refusal.not_known("numa"),
    refusal.no_such_sets(Ask(4, 1000, 0, sets=(CardSet(4, pair=1),)), [Card("GPU-0", 0, "T4", 16)]),
    refusal.no_such_sets(Ask(3, 1000, 0, sets=(CardSet(3, 8),)), [Card("GPU-0", 0, "T4", 16)]),
    refusal.no_such_sets(Ask(1, 1000, 0, sets=(CardSet(1, 40_000),)), [Card("GPU-0", 0, "T4", 16)]),
    refusal.NO_CARDS,
    refusal.NOT_DESCRIBED,
    refusal.NO_HEALTHY_CARD,
    refusal.CORDONED,
    refusal.NOT_BY_CHOICE,
    refusal.UNKNOWN_NODE,
    refusal.GIVEN_UP,
    refusal.NOT_TRIED,
)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.sentence)
def test_a_reason_is_quoted_as_it_is(reason: refusal.Refusal) -> None:
    assert f"`{reason.sentence}`" in PAGE
