"""``POST /simulate``: /mutate's answer under given standings, without an effect."""

from typing import Any

import orjson
import pytest

from tests.runtime.lines import into
from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.worlds import POLICY, admitted, half, review_of
from tests.worlds import Json
from timekeeper.runtime.http.service import HttpAnswer
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import simulation_call
from webhook.standings import decode
from webhook.wire.pod_review import read


def simulated(admission: Reviewer, document: object, **request: Any) -> HttpAnswer:
    body = {"review": review_of(admitted(half()), dryRun=True, **request), "standings": document}
    return simulation_call(admission, lambda: 0, into([]))(orjson.dumps(body))


def known(document: Json) -> Reviewer:
    """A worker that has polled this document."""
    table = decode(orjson.dumps(document), "", 0)
    return Reviewer(POLICY, lambda: table, lambda: "ca", lambda: 0, 30_000)


def response(answer: HttpAnswer) -> Any:
    assert answer.status == 200
    assert isinstance(answer.body, bytes)
    return orjson.loads(answer.body)


def class_of(answer: HttpAnswer) -> str:
    return str(response(answer)["pod"]["spec"]["priorityClassName"])


def test_the_given_standings_decide_and_not_those_that_were_polled() -> None:
    admission = known(standings(team_a=entry("IN_BUDGET")))

    assert class_of(simulated(admission, standings(team_a=entry("OVER_BUDGET")))) == POLICY.over_budget.name
    assert class_of(simulated(admission, standings(team_a=entry("IN_BUDGET")))) == POLICY.in_budget.name
    denied = response(simulated(admission, standings(team_a=entry("OVER_BUDGET") | {"onExhausted": "deny"})))
    assert denied["pod"] is None
    assert "has used its GPU budget" in denied["refusal"]
    held = response(simulated(admission, standings(team_a=entry("OVER_BUDGET") | {"onExhausted": "hold"})))
    assert (held["standing"], held["held"]) == ("OVER_BUDGET", "budget")
    assert held["pod"]["spec"]["schedulingGates"] == [{"name": "bursar.dev/budget"}]


def test_no_simulation_counts_as_admitted() -> None:
    """A grant that one pod's cost uses up: after a real pod the next is over budget by the estimate."""
    small = standings(team_a=entry("IN_BUDGET") | {"remaining": 1})
    admission = known(small)

    for _ in range(3):
        assert class_of(simulated(admission, small)) == POLICY.in_budget.name
    review = orjson.dumps(review_of(admitted(half())))
    first, second = (admission.mutate(read(review)).audit["standing"] for _ in range(2))
    assert (first, second) == ("IN_BUDGET", "OVER_BUDGET")
    assert class_of(simulated(admission, small)) == POLICY.in_budget.name


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is not JSON"),
        (b"{}", "standings: must be an object"),
        (orjson.dumps({"standings": {}, "review": 7}), "not an AdmissionReview"),
        (orjson.dumps({"standings": {}, "review": review_of(admitted(half()))}), "with dryRun true"),
        (
            orjson.dumps({"standings": {"version": 1}, "review": review_of(admitted(half()), dryRun=True)}),
            "standings:",
        ),
    ],
)
def test_what_is_no_simulation_is_refused_with_a_sentence(body: bytes, said: str) -> None:
    answer = simulation_call(known(standings()), lambda: 0, into([]))(body)

    assert answer.status == 400
    assert isinstance(answer.body, bytes)
    assert said in answer.body.decode()


def owner_simulated(size: str = "", dry_run: bool = True, **settings: str) -> HttpAnswer:
    """Of a Job of three pods with a GPU each; ``size``: that its template says."""
    annotations = {"bursar.dev/gang": "g", "bursar.dev/gang-size": size} if size else {}
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [half()], "restartPolicy": "Never"},
    }
    job = {"metadata": {"name": "train"}, "spec": {"parallelism": 3, "template": template}}
    request = {
        "uid": "u",
        "kind": {"group": "batch", "version": "v1", "kind": "Job"},
        "namespace": "team-a",
        "operation": "CREATE",
        "object": job,
        "dryRun": dry_run,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    document = standings(team_a=entry("IN_BUDGET") | settings)
    body = orjson.dumps({"owner": review, "standings": document})
    return simulation_call(known(standings()), lambda: 0, into([]))(body)


def test_an_owner_is_answered_as_the_given_standings_have_it() -> None:
    def size(answer: HttpAnswer) -> str | None:
        metadata = response(answer)["object"]["spec"]["template"]["metadata"]
        found: str | None = metadata["annotations"].get("bursar.dev/gang-size")
        return found

    assert size(owner_simulated(gangs="auto")) == "3"
    assert size(owner_simulated()) is None
    contradicted = response(owner_simulated("2"))
    assert contradicted["object"] is None
    assert "this Job creates 3 pods of the template, which would start together" in contradicted["refusal"]
    real = owner_simulated(dry_run=False)
    assert (real.status, real.body) == (400, b"malformed simulation: owner.request: dryRun must be true\n")
