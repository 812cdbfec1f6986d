"""What people write (`tests/cases`, a file a system): admission, extender and meter read each pod alike, as
its writer meant it, or admission refuses it by the rule and field that stand beside it.

A case is a manifest and its pods: of each ``at``, the path of its template, nothing for the manifest itself;
``asks``, what each container asks of each of its cards, a number for whole ones; ``claims``, its GPUs by
claims, or ``unknown``; ``rate``, the thousandths of a card that the meter charges on the file's node; or
``refused``, rule -> field; ``warns``: parts of warnings. ``beside``: objects that exist before;
``settings``: of the cluster. In `lives.yaml` a case is the statuses of a pod, and for how many seconds both
roles hold its card.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_ext.model.pod import read_pod as read_by_extender
from tests.webhook.exports import (
    but_for_the_sidecars_amounts,
    exported_of,
    marks_of,
    with_marks,
    without_empty,
)
from tests.webhook.worlds import (
    POLICY,
    admitted,
    governed,
    half,
    mutated,
    object_review,
    patched,
    requested,
    review,
)
from tests.worlds import Json, of_resources
from tests.worlds import pod as without_status
from timekeeper.accounts.pods import metered_view, read_pod
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.bypass import bypass_violations
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.dialects.others.claims import request_of
from timekeeper.core.ledger.hold import PodHold, later
from timekeeper.core.rating.nodes import cards_of_node
from timekeeper.core.rating.rating import Demand, rated, without_constraints
from timekeeper.core.request.claims import known_by
from timekeeper.core.request.device_classes import ClassParameters, parameters
from timekeeper.core.request.inventory import charged_cards
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from webhook.admission import workloads
from webhook.admission.validation import validate
from webhook.dryrun.judge.assumed_cluster import VENDORS_CLASSES
from webhook.dryrun.judge.manifests import read
from webhook.dryrun.judge.objects import kind_of
from webhook.wire import defaulting

FOLDER = Path(__file__).parents[2] / "cases"
NAMESPACE = "team-a"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pod of a manifest, as the API server gives it to admission."""

    manifest: Json
    at: str
    pod: Json
    meant: Json  # what the file says of it
    policy: AdmissionPolicy
    classes: ClassParameters  # what the API server's policies know of DeviceClasses
    node: Json


def cases() -> Iterator[Any]:
    """All pods of all files."""
    for path in sorted(FOLDER.glob("*.yaml")):
        (document,), problem = read(path.read_text())
        assert problem is None, f"{path.name}: {problem}"
        assert document.problem is None, f"{path.name}: {document.problem}"
        for case in document.value["cases"]:
            policy = _policy(
                {**document.value.get("settings", {}), **case.get("settings", {})}, case.get("beside", [])
            )
            classes = parameters(policy.claims.classes.values(), policy.claims.settings)
            for meant in case.get("pods", []):
                at = meant.get("at", "")
                pod = _pod(case["manifest"], at)
                node = _node(meant.get("node", document.value.get("node", {})))
                found = Case(
                    manifest=case["manifest"],
                    at=at,
                    pod=pod,
                    meant=meant,
                    policy=policy,
                    classes=classes,
                    node=node,
                )
                yield pytest.param(found, id=f"{path.stem}: {case['case']}" + (f" ({at})" if at else ""))


def _policy(settings: Json, beside: list[Json]) -> AdmissionPolicy:
    schedulers = frozenset(name for dialect in DIALECTS for name in dialect.schedulers)
    return replace(
        POLICY,
        unknown_accelerators=settings.get("unknownAccelerators", "refuse"),
        other_schedulers=schedulers if settings.get("otherSchedulers") else frozenset(),
        claims=known_by(beside, NAMESPACE, {}, VENDORS_CLASSES),
    )


def _pod(manifest: Json, at: str) -> Json:
    found: Any = manifest
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", at):
        found = found[name] if name else found[int(index)]
    pod = defaulting.pod(found) if not at else workloads.as_pod(found)
    pod["metadata"] = {**pod["metadata"], "name": "p", "namespace": NAMESPACE, "uid": "uid-p"}
    pod["spec"].setdefault("priority", 0)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _node(written: Json) -> Json:
    amounts = {name: str(amount) for name, amount in written.items() if "/" in name}
    metadata = {
        "name": "n",
        "labels": written.get("labels", {}),
        "annotations": written.get("annotations", {}),
    }
    return {"metadata": metadata, "status": {"capacity": amounts, "allocatable": amounts}}


def _ask(written: Any) -> Ask:
    given: Json = {"cards": written, "milli": 1000} if isinstance(written, int) else written
    named = {"memory_milli": given.get("memory_milli", 0), "device": given.get("device", "")}
    resources = tuple(sorted(given.get("resources", {}).items()))
    return Ask(given.get("cards", 1), given.get("milli", 0), given.get("mib", 0), resources, **named)


def _by_container(request: GPURequest | None) -> dict[str, Ask]:
    asks: tuple[ContainerAsk, ...] = request.asks if request else ()
    return {
        asking.container: replace(asking.ask, resources=tuple(sorted(asking.ask.resources)))
        for asking in asks
    }


def _metered(case: Case) -> int:
    """What the pod is charged where Bursar does not govern it, in thousandths of a card."""
    pod = read_pod({**case.pod, "spec": {**case.pod["spec"], "nodeName": "n"}})
    view = None if pod is None else metered_view(pod, {})
    if view is None:
        return 0
    node = cards_of_node(case.node, charged_cards(case.node))
    return rated(Demand(request=without_constraints(view.request)), node, BudgetSettings()).rate_milli


@pytest.mark.parametrize("case", list(cases()))
def test_admission_extender_and_meter_read_a_pod_as_its_writer_meant_it(case: Case) -> None:
    answer = mutated(case.pod, policy=case.policy, namespace=NAMESPACE)
    refusals = case.meant.get("refused", {})
    if "rate" in case.meant or not refusals:
        assert _metered(case) == case.meant.get("rate", 0)
    assert {rule for rule, _ in answer.rules if answer.refusal} == set(refusals), answer.refusal
    assert all(path in answer.refusal for path in refusals.values()), answer.refusal
    warnings = answer.warnings
    if case.at and workloads.of_kind(*kind_of(case.manifest), workloads.BUILT_IN):
        of_workload = workloads.judge(object_review(case.manifest), case.policy)
        assert bool(of_workload.refusal) == bool(refusals), of_workload.refusal
        assert all(f"{case.at}.{path}" in of_workload.refusal for path in refusals.values()), (
            of_workload.refusal
        )
        warnings = (*warnings, *of_workload.warnings)
    assert all(part in " ".join(warnings) for part in case.meant.get("warns", ())), warnings
    if refusals:
        return

    stored = patched(case.pod, list(answer.operations))
    validation = validate(review(stored, namespace=NAMESPACE), case.policy)
    assert not validation.refusal, validation.refusal
    by_policies = bypass_violations(case.pod, case.policy.parsed(case.pod, NAMESPACE), case.classes)
    assert not by_policies, by_policies
    if answer.admission is not None:
        _created_from_its_export(stored, case)
        _created_with_marks(stored, case)
    extender, ledger = read_by_extender(stored), read_pod(stored)
    requests = [requested(answer), extender.request if extender else None]
    requests += [ledger.request if ledger is not None else None]
    if "claims" in case.meant:
        number = case.meant["claims"]
        assert requests == [request_of(None if number == "unknown" else number)] * 3
    else:
        amounts = {name: _ask(written) for name, written in case.meant.get("asks", {}).items()}
        assert list(map(_by_container, requests)) == [amounts] * 3


def _created_from_its_export(stored: Json, case: Case) -> None:
    """The export of the bound pod, created again, is the pod that its template makes."""
    exported = exported_of(stored)
    again = mutated(exported, policy=case.policy, namespace=NAMESPACE)
    assert not again.refusal, again.refusal
    assert again.warnings[-1].startswith("This is removed")
    assert without_empty(patched(exported, list(again.operations))) == without_empty(stored)


OTHER = governed(admitted(half("other")), "OVER_BUDGET", POLICY, "turn")


def _created_with_marks(stored: Json, case: Case) -> None:
    """A second call changes nothing, and nor do any marks of another pod."""
    assert mutated(stored, policy=case.policy, namespace=NAMESPACE).operations == ()
    chance = random.Random(case.at + str(case.pod["spec"]))
    marks = [mark for mark in marks_of(OTHER) if mark[0] not in ("initContainers", "volumes")]
    for _ in range(8):
        marked = with_marks(case.pod, chance.sample(marks, chance.randrange(len(marks) + 1)))
        answer = mutated(marked, policy=case.policy, namespace=NAMESPACE)
        assert not answer.refusal, answer.refusal
        after = patched(marked, list(answer.operations))
        assert but_for_the_sidecars_amounts(after) == but_for_the_sidecars_amounts(stored)


def _lives() -> list[Any]:
    (document,), _ = read((FOLDER / "lives.yaml").read_text())
    return [pytest.param(case, id=case["case"]) for case in document.value["cases"]]


@pytest.mark.parametrize("case", _lives())
def test_extender_and_ledger_hold_a_card_as_long_as_the_statuses_prove(case: Json) -> None:
    pod = without_status(of_resources({"nvidia.com/gpu": "1"}), nodeName="n")
    for read_as in (read_by_extender, read_pod):
        hold: PodHold | None = None
        for status in case["statuses"]:
            version: Any = read_as({**pod, "status": status})
            hold = later(hold, version.hold)
        assert hold is not None
        seconds: object = (
            "unproved" if hold.ended_ms is None else (hold.ended_ms - (hold.bound_ms or 0)) / 1000
        )
        assert (seconds if hold.over else "still") == case["holds"]
