"""Admission in a simulated cluster: the webhook's own functions, from the table of standings to the pod."""

from dataclasses import replace
from typing import Any

from msgspec import structs

from scheduler_ext.model import pod as extenders
from tests.story.pods import Json, Template, Workload
from tests.webhook.worlds import WITHOUT_SIDECAR, admitted, patched
from tests.worlds import of_resources
from timekeeper.accounts import pods as ledgers
from timekeeper.core import names
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Standing
from timekeeper.core.admission.table import StandingsTable, effective_policy, is_fresh, standing
from webhook.admission.pods import mutate
from webhook.wire.pod_review import PodReview

STALE_AFTER_MS = 30_000
LOWER = "batch-low"
CLASSES = {"gpu-default-priority": 0, "gpu-lower-priority": -5, LOWER: -3}

FLAGS = replace(
    WITHOUT_SIDECAR,
    in_budget=PriorityClass("gpu-default-priority", 0),
    over_budget=PriorityClass("gpu-lower-priority", -5),
)


class Admission:
    """Pods of one workload are equal but for their names, so the answer to one is kept for all, as long as
    everything is equal that it depends on."""

    def __init__(self) -> None:
        self._known: dict[object, Template | None] = {}

    def admit(self, work: Workload, table: StandingsTable | None, now_ms: int) -> Template | None:
        """The pod as admitted; None if it is refused."""
        its = standing(table, work.namespace, 0, now_ms, STALE_AFTER_MS)
        policy = effective_policy(FLAGS, table, is_fresh(table, now_ms), work.namespace)
        key = (
            *(work.name, its.status, its.on_exhausted, its.hold, its.until_ms),
            *(policy.mode, policy.caps, policy.in_budget, policy.over_budget, policy.unknown_standing),
            *(policy.reserves_declared, policy.requires_duration),
        )
        if key not in self._known:
            self._known[key] = _admitted(work, its, policy)
        return self._known[key]


def raw_of(work: Workload) -> Json:
    """The pod that the controller creates."""
    containers = [of_resources(dict(limits), f"c{at}") for at, limits in enumerate(work.limits)]
    # named by the pod, for in observe mode each keeps its own scheduler
    fields: dict[str, Any] = {"terminationGracePeriodSeconds": work.grace_s, "schedulerName": names.SCHEDULER}
    if work.declares_s:
        fields["activeDeadlineSeconds"] = work.declares_s
    if work.priority:
        fields |= {"priorityClassName": LOWER, "priority": work.priority}
    raw = admitted(*containers, **fields)
    raw["metadata"] |= {
        "namespace": work.namespace,
        "labels": {"app": work.name},
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": work.name,
                "uid": f"owner-{work.name}",
                "controller": True,
            }
        ],
    }
    return raw


def _admitted(work: Workload, its: Standing, policy: AdmissionPolicy) -> Template | None:
    raw = raw_of(work)
    review = PodReview(
        uid="u",
        operation="CREATE",
        subresource="",
        namespace=work.namespace,
        name="",
        dry_run=False,
        pod=raw,
        old={},
    )
    answer = mutate(review, lambda _namespace: its, policy)
    if answer.refusal:
        return None
    after = patched(raw, list(answer.operations))
    name = after["spec"].get("priorityClassName", "")
    after["spec"]["priority"] = CLASSES.get(name, 0)
    after["spec"]["preemptionPolicy"] = "Never" if name == "gpu-lower-priority" else "PreemptLowerPriority"
    ledger, extender = ledgers.read_pod(after), extenders.read_pod(after)
    assert isinstance(ledger, ledgers.LedgerPod)
    assert extender is not None
    # the simulated nodes advertise no amounts: what kube-scheduler counts never stands in the way
    return Template(after, ledger, structs.replace(extender, amounts=(), cpu_milli=0))
