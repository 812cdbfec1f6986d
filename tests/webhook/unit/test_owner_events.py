"""Which refusals become Events, and on which objects."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.webhook.worlds import admitted, half, mutated
from tests.worlds import container
from timekeeper.core.admission.policy import Standing
from webhook.server.owner_events import MAX_PER_NAMESPACE, OwnerEvents
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer, PodReview

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-job"}
REFUSED = AdmissionAnswer("refused", refusal="the budget is used", rules=(("budget-exhausted", "enforce"),))
SPAN_MS = 300_000


@dataclass
class Queue:
    """The Events that would be sent."""

    posted: list[tuple[dict[str, str], str, str, str]] = field(default_factory=list)
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.hear = OwnerEvents(lambda *event: self.posted.append(event), lambda: self.now_ms)


def review(**fields: Any) -> PodReview:
    pod = admitted(half())
    pod["metadata"]["ownerReferences"] = [{**OWNER, "uid": "other"}, {**OWNER, "controller": True}]
    return replace(
        PodReview(
            uid="1",
            operation="CREATE",
            subresource="",
            namespace="team-a",
            name="",
            dry_run=False,
            pod=pod,
            old={},
        ),
        **fields,
    )


def test_the_controller_of_a_pod_that_the_budget_refuses_gets_an_event_with_the_reason() -> None:
    queue = Queue()

    queue.hear(review(), REFUSED)

    assert queue.posted == [
        (
            OWNER | {"namespace": "team-a"},
            "OverBudget",
            "Its new pods are refused: the budget is used",
            "Warning",
        )
    ]


def test_what_the_namespace_has_used_meanwhile_and_the_pod_asks_for_makes_no_other_event() -> None:
    queue = Queue()
    spent = Standing("OVER_BUDGET", 1_000, 800, on_exhausted="deny")

    for remaining in (None, 0, -1_800_000, -7_200_000_000):
        for request in (half(), container(gpu_percent="12"), container(gpu_memory="1024")):
            answer = mutated(admitted(request), standing=replace(spent, remaining=remaining))
            queue.hear(review(), answer)

    assert len(queue.posted) == 12
    (text,) = {event[2] for event in queue.posted}
    assert text.endswith(
        "(onExhausted: deny). New GPU pods are refused until the budget is raised. Ask your "
        "budget administrator: kubectl bursar budget has names and a text."
    )


def test_all_owners_of_a_workload_that_is_refused_get_an_event_whatever_the_rule() -> None:
    queue = Queue()
    notebook = {"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "name": "nb", "uid": "uid-nb"}
    made = {"metadata": {"ownerReferences": [{**notebook, "controller": True}, OWNER, {"kind": "Job"}]}}
    asked = ObjectReview(
        uid="1", operation="CREATE", subresource="", group="apps", kind="StatefulSet", namespace="team-a",
        name="nb", dry_run=False, object=made, old={},
    )  # fmt: skip
    refused = AdmissionAnswer("refused", refusal="8 GPUs; allowed: 2", rules=(("above-cap", "enforce"),))

    queue.hear(asked, refused)
    queue.hear(replace(asked, dry_run=True), refused)
    queue.hear(asked, AdmissionAnswer("passed"))

    text = "Its StatefulSet is refused: 8 GPUs; allowed: 2"
    assert queue.posted == [
        ({**owner, "namespace": "team-a"}, "Refused", text, "Warning") for owner in (notebook, OWNER)
    ]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (review(dry_run=True), REFUSED),
        (review(pod=admitted(half())), REFUSED),
        (review(namespace="team-a/../kube-system"), REFUSED),
        (review(), replace(REFUSED, rules=(("long-grace", "enforce"),))),
        (review(), AdmissionAnswer("governed", rules=(("budget-exhausted", "observe"),))),
    ],
    ids=["a dry run", "a pod without a controller", "no namespace", "another rule", "observed only"],
)
def test_nothing_else_is_reported(asked: PodReview, answer: AdmissionAnswer) -> None:
    queue = Queue()

    queue.hear(asked, answer)

    assert queue.posted == []


def test_a_namespace_gets_a_bounded_number_of_events_in_a_span() -> None:
    queue = Queue()

    for _ in range(MAX_PER_NAMESPACE + 5):
        queue.hear(review(), REFUSED)
    queue.hear(review(namespace="team-b"), REFUSED)
    assert len(queue.posted) == MAX_PER_NAMESPACE + 1

    queue.now_ms += SPAN_MS
    queue.hear(review(), REFUSED)
    assert len(queue.posted) == MAX_PER_NAMESPACE + 2
