"""How the API server is asked to let pods go, whatever the reason: its answers in, calls and results out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import pytest

from tests.support.events import UnqueuedRecorder
from tests.timekeeper.played_api import EVENT, Answers, Played
from tests.timekeeper.worlds import T0, Json, gpu_pod
from timekeeper import metrics
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core.decisions import EVICTED, Decision
from timekeeper.log import log
from timekeeper.runtime.api_server import Answered, Unsent, event_sender
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.evictor import evict, evict_together
from timekeeper.settler.evictions.reasons import Reason, Said

Deletes = Literal["never", "protected", "always"]

PROTECTED = Answered(429, {"details": {"causes": [{"reason": "DisruptionBudget"}]}})
ANOTHERS = Answered(409, {"message": "Precondition failed: UID in precondition: a, UID in object meta: b"})
AWAY = Unsent("no connection")


def status(number: int) -> Answered:
    return Answered(number, {"message": "as it is told to"})


class Evictor:
    """Who asks, and what it has recorded."""

    def __init__(self, answers: Answers, budgets: Sequence[Json] = ()) -> None:
        self.api, self.decisions = Played(answers, budgets), list[Decision]()
        events = UnqueuedRecorder(event_sender(self.api), "bursar.dev/timekeeper", "one", lambda: T0, log)
        unused = cast(Any, None)  # store, epoch and view belong to the rounds
        shared = unused, unused, self.api, events, unused, lambda: T0, lambda: T0
        self.context = EvictorContext(*shared, self.decisions.append)


def pod(name: str, gang: str = "", grace_s: int = 30) -> LedgerPod:
    marks = {"bursar.dev/held": "budget", "bursar.dev/gang": gang, "bursar.dev/gang-size": "2"}
    raw = gpu_pod(name, started_ms=T0, annotations=marks if gang else {}, grace_s=grace_s)
    return cast(LedgerPod, read_pod(raw))


def reason(deletes: Deletes = "never") -> Reason:
    said = Said(EVICTED, "BudgetEviction", "Evicted by Bursar.", {})
    condition = ("BursarBudgetExhausted", "It is spent.")
    return Reason("budget-eviction", metrics.BUDGET_EVICTIONS, {}, said, condition, deletes)


ASKED, MARKED, DELETED = "evict p", "condition p", "delete p"


@pytest.mark.parametrize(
    ("deletes", "answers", "result", "calls"),
    [
        ("never", {}, "evicted", [ASKED, MARKED, EVENT]),
        ("never", {"condition": status(500)}, "evicted", [ASKED, MARKED, EVENT]),
        ("never", {"evict": PROTECTED}, "protected", [ASKED]),
        ("never", {"evict": status(403)}, "refused", [ASKED, EVENT]),
        ("never", {"evict": status(404)}, "gone", [ASKED]),
        ("never", {"evict": AWAY}, "unclear", [ASKED]),
        ("protected", {}, "evicted", [ASKED, MARKED, EVENT]),
        ("protected", {"evict": PROTECTED}, "evicted", [ASKED, MARKED, DELETED, EVENT]),
        ("protected", {"evict": PROTECTED, "condition": status(500)}, "refused", [ASKED, MARKED]),
        ("protected", {"evict": status(429)}, "refused", [ASKED]),
        ("protected", {"evict": status(403)}, "refused", [ASKED, EVENT]),
        ("protected", {"evict": status(503)}, "unclear", [ASKED]),
        ("protected", {"evict": ANOTHERS}, "gone", [ASKED]),
        ("always", {}, "deleted", [MARKED, DELETED, EVENT]),
        ("always", {"delete": status(403)}, "refused", [MARKED, DELETED, EVENT]),
        ("always", {"delete": ANOTHERS}, "gone", [MARKED, DELETED]),
        ("always", {"delete": AWAY}, "unclear", [MARKED, DELETED]),
        *(
            ("always", {"condition": status(number)}, "deleted", [MARKED, DELETED, EVENT])
            for number in (400, 403, 410, 422)
        ),
        *(
            ("always", {"condition": status(number)}, "refused", [MARKED])
            for number in (401, 408, 409, 429, 500)
        ),
        ("always", {"condition": AWAY}, "refused", [MARKED]),
        ("always", {"condition": status(404)}, "gone", [MARKED]),
    ],
)
def test_how_a_pod_is_asked_to_leave(
    deletes: Deletes, answers: Answers, result: str, calls: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A PodDisruptionBudget is overruled where the reason says so; before a pod is deleted its condition says
    why, unless that is refused for good."""
    evictor = Evictor(answers)

    assert evict(evictor.context, pod("p"), reason(deletes)) == result

    assert evictor.api.calls == calls
    assert [each.name for each in evictor.decisions] == (["p"] if result in ("evicted", "deleted") else [])
    told = capfd.readouterr().err
    assert f"event=budget-eviction result={result} namespace=team-a pod=p uid=uid-p" in told
    assert ("event=condition-refused" in told) == (
        deletes == "always" and DELETED in calls and "condition" in answers
    )


@pytest.mark.parametrize(("own_s", "most_s", "sent_s"), [(31, 30, 30), (30, 30, None), (3_600, None, None)])
def test_every_call_names_the_pod_by_uid_and_shortens_a_longer_grace_alone(
    own_s: int, most_s: int | None, sent_s: int | None
) -> None:
    evictor = Evictor({"evict": PROTECTED})
    evict(evictor.context, pod("p", grace_s=own_s), replace(reason("protected"), most_grace_s=most_s))

    bodies = evictor.api.bodies
    options = {"preconditions": {"uid": "uid-p"}} | ({} if sent_s is None else {"gracePeriodSeconds": sent_s})
    assert bodies[ASKED]["deleteOptions"] == options
    assert {key: bodies[DELETED].get(key) for key in options} == options
    assert bodies[MARKED]["metadata"] == {"uid": "uid-p"}
    (target,) = bodies[MARKED]["status"]["conditions"]
    assert (target["type"], target["status"], target["reason"]) == (
        "DisruptionTarget",
        "True",
        "BursarBudgetExhausted",
    )


def allowing(disruptions: int, app: str = "web") -> list[Json]:
    selector = {"matchLabels": {"app": app}}
    return [{"spec": {"selector": selector}, "status": {"disruptionsAllowed": disruptions}}]


@pytest.mark.parametrize(
    ("deletes", "answers", "budgets", "results"),
    [
        (("never", "never"), {}, (), {"p": "evicted", "q": "evicted"}),
        (("never", "never"), {"try q": PROTECTED}, (), {"q": "protected"}),
        (("never", "never"), {"try q": status(403)}, (), {"q": "refused"}),
        (("never", "never"), {"try p": AWAY}, (), {"p": "refused"}),
        (
            ("never", "never"),
            {"try q": status(404), "evict q": status(404)},
            (),
            {"p": "evicted", "q": "gone"},
        ),
        (("protected", "protected"), {"try q": PROTECTED}, allowing(0), {"p": "evicted", "q": "evicted"}),
        (("protected", "protected"), {"try q": status(403)}, (), {"q": "refused"}),
        (("never", "always"), {"try q": PROTECTED}, allowing(1), {"p": "evicted", "q": "deleted"}),
        (("never", "never"), {}, allowing(1), {"q": "protected"}),
        (("never", "never"), {}, allowing(2), {"p": "evicted", "q": "evicted"}),
        (("never", "never"), {}, allowing(0, "other"), {"p": "evicted", "q": "evicted"}),
        (("never", "never"), {"read": status(403)}, (), {"p": "refused"}),
        # what changed since the trial
        (("never", "never"), {"evict p": status(403)}, (), {"p": "refused"}),
        (("never", "never"), {"evict p": status(404)}, (), {"p": "gone", "q": "evicted"}),
        (("never", "never"), {"evict p": AWAY}, (), {"p": "unclear", "q": "evicted"}),
        (("never", "never"), {"evict q": PROTECTED}, (), {"p": "evicted", "q": "protected"}),
    ],
)
def test_pods_that_leave_together_leave_all_or_none(
    deletes: tuple[Deletes, Deletes], answers: Answers, budgets: Sequence[Json], results: dict[str, str]
) -> None:
    """Each that needs its PodDisruptionBudget is tried first, without effect."""
    evictor = Evictor(answers, budgets)
    leaving = [(pod(name), reason(how)) for name, how in zip("pq", deletes, strict=True)]

    assert {each.name: result for each, result in evict_together(evictor.context, leaving)} == results

    left = {name for name, result in results.items() if result in ("evicted", "deleted")}
    assert {each.name for each in evictor.decisions} == left
    if not left:
        refused_in_act = any(key.startswith("evict") for key in answers)
        acts = [call for call in evictor.api.calls if not call.startswith("try") and call != EVENT]
        assert acts == ["evict p"] * refused_in_act


def test_a_pod_that_leaves_alone_is_not_tried_and_one_of_a_gang_names_it_if_another_leaves_too() -> None:
    evictor = Evictor({})
    evict_together(evictor.context, [(pod("p", "g"), reason())])
    assert evictor.api.calls == [ASKED, MARKED, EVENT]

    evict_together(
        evictor.context, [(pod(name, gang), reason()) for name, gang in zip("abc", "gg ", strict=True)]
    )
    texts = [str(each.figures["message"]) for each in evictor.decisions]
    assert [text.endswith("All 2 pods of gang g leave together.") for text in texts] == [
        False,
        True,
        True,
        False,
    ]
