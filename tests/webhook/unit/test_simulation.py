"""``POST /simulate``: /mutate's answers to pods, without an effect."""

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


def simulated(document: Json, count: int = 1) -> list[Any]:
    """The answers to equal pods, of a worker that has polled this document."""
    return answers(known(document), count)


def answers(admission: Reviewer, count: int = 1) -> list[Any]:
    body = {"reviews": [review_of(admitted(half()), dryRun=True)] * count}
    found: list[Any] = response(simulation_call(admission, into([]))(orjson.dumps(body)))["answers"]
    return found


def known(document: Json) -> Reviewer:
    """A worker that has polled this document."""
    table = decode(orjson.dumps(document), "", 0)
    return Reviewer(POLICY, lambda: table, lambda: "ca", lambda: 0, 30_000)


def response(answer: HttpAnswer) -> Any:
    assert answer.status == 200
    assert isinstance(answer.body, bytes)
    return orjson.loads(answer.body)


def test_a_pod_is_answered_as_the_polled_standings_have_its_namespace() -> None:
    (over,) = simulated(standings(team_a=entry("OVER_BUDGET")))
    (within,) = simulated(standings(team_a=entry("IN_BUDGET")))
    (denied,) = simulated(standings(team_a=entry("OVER_BUDGET") | {"onExhausted": "deny"}))
    (held,) = simulated(standings(team_a=entry("OVER_BUDGET") | {"onExhausted": "hold"}))

    assert over["pod"]["spec"]["priorityClassName"] == POLICY.over_budget.name
    assert within["pod"]["spec"]["priorityClassName"] == POLICY.in_budget.name
    assert denied["pod"] is None
    assert "has used its GPU budget" in denied["refusal"]
    assert (held["standing"], held["held"]) == ("OVER_BUDGET", "budget")
    assert held["pod"]["spec"]["schedulingGates"] == [{"name": "bursar.dev/budget"}]


def test_the_pods_of_a_simulation_count_for_each_other_and_for_no_real_one() -> None:
    """A grant that one pod's cost uses up: the next is over budget by the estimate."""
    admission = known(standings(team_a=entry("IN_BUDGET") | {"remaining": 1}))

    def foretold() -> list[str]:
        return [answer["standing"] for answer in answers(admission, count=3)]

    assert [foretold(), foretold()] == [["IN_BUDGET", "OVER_BUDGET", "OVER_BUDGET"]] * 2
    review = orjson.dumps(review_of(admitted(half())))
    real = [admission.mutate(read(review)).audit["standing"] for _ in range(2)]
    assert real == ["IN_BUDGET", "OVER_BUDGET"]
    assert foretold() == ["IN_BUDGET", "OVER_BUDGET", "OVER_BUDGET"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is not JSON"),
        (b"7", "reviews: must be a list of AdmissionReviews"),
        (b"{}", "reviews: must be a list of AdmissionReviews"),
        (orjson.dumps({"reviews": [7]}), "not an AdmissionReview"),
        (orjson.dumps({"reviews": [review_of(admitted(half()))]}), "with dryRun true"),
        (orjson.dumps({"owner": 7}), "not an AdmissionReview"),
    ],
)
def test_what_is_no_simulation_is_refused_with_a_sentence(body: bytes, said: str) -> None:
    answer = simulation_call(known(standings()), into([]))(body)

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
    admission = known(standings(team_a=entry("IN_BUDGET") | settings))
    return simulation_call(admission, into([]))(orjson.dumps({"owner": review}))


def test_an_owner_is_answered_as_the_polled_standings_have_it() -> None:
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
