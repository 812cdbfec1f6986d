"""Every route of the webhook that takes a body, with the table of hostile values: each is answered, and a
refusal has its sentence. `test_fuzz` sends more of them to the routes of pods."""

import pytest
from werkzeug.test import Client

from tests.runtime.lines import into
from tests.support.hostile_json import spoilt_in_turn
from tests.support.routed import client_of
from tests.webhook.good_reviews import BASES
from tests.webhook.process_metrics import of_this_process
from tests.webhook.worlds import POLICY, admitted, half, review_of
from tests.worlds import Json
from webhook.server.app import create_app, create_calls
from webhook.server.review_endpoint import review_routes
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import PATH, simulation_call

TEMPLATE = admitted(half())
CLAIM = {
    "devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]}
}


def of_object(group: str, kind: str, spec: Json) -> Json:
    """A review of a new object."""
    raw = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "x", "namespace": "team-a"}}
    kinds = {"group": group, "version": "v1", "kind": kind}
    return review_of({**raw, "spec": spec}, kind=kinds, name="x", dryRun=True)


JOB = {"parallelism": 2, "completions": 2, "template": TEMPLATE}
SUPPOSED = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c"},
    "spec": CLAIM,
}
REVIEWS: dict[str, Json] = {
    **{path: bases[0] for path, bases in BASES.items()},
    "/jobs": of_object("batch", "Job", JOB),
    "/gangs": of_object("batch", "Job", JOB),
    "/claims": of_object("resource.k8s.io", "ResourceClaim", CLAIM),
    PATH: {"reviews": [review_of(TEMPLATE, dryRun=True)], "claims": [SUPPOSED]},
    f"{PATH}?owner": {"owner": of_object("batch", "Job", JOB)},
}


@pytest.fixture
def client() -> Client:
    admission = Reviewer(POLICY, lambda: None, lambda: "ca", lambda: 0, 30_000)
    log = into([])
    calls = create_calls(admission, of_this_process(), log) | {PATH: simulation_call(admission, log)}
    return client_of(create_app(admission), review_routes(calls, log))


def test_each_route_has_its_review(client: Client) -> None:
    admission = Reviewer(POLICY, lambda: None, lambda: "ca", lambda: 0, 30_000)

    assert {*create_calls(admission, of_this_process(), into([])), PATH} <= REVIEWS.keys()


@pytest.mark.parametrize("path", REVIEWS)
def test_a_hostile_body_is_answered_and_a_refusal_has_its_sentence(client: Client, path: str) -> None:
    seen = set()
    for label, body in spoilt_in_turn(REVIEWS[path], rounds=2):
        answer = client.post(path, data=body)
        assert answer.status_code in (200, 400), label
        assert answer.data.strip(), label
        seen.add(answer.status_code)

    assert seen == {200, 400}
