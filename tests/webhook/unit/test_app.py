"""The routes, as the loop serves them."""

from typing import Any

import orjson
import pytest
from werkzeug.test import TestResponse

from tests.runtime.lines import into
from tests.support.raw_values import VALUES
from tests.support.routed import client_of
from tests.webhook.process_metrics import of_this_process
from tests.webhook.worlds import POLICY, WITHOUT_SIDECAR, admitted, half, patch_of, patched, plain, review_of
from tests.worlds import Json, container
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.decisions import Record, record_nothing
from timekeeper.edge.source_health import STUCK_MS, SourceHealth
from webhook.metrics import WebhookMetrics
from webhook.server.app import create_app, create_calls
from webhook.server.review_endpoint import review_routes
from webhook.server.reviewer import Reviewer


class World:
    """An application whose log lines are kept."""

    def __init__(
        self, policy: AdmissionPolicy = POLICY, ca: str | None = "ca", record: Record = record_nothing
    ) -> None:
        self.lines: list[str] = []
        self.metrics: WebhookMetrics = of_this_process()
        admission = Reviewer(policy, lambda: None, lambda: ca, lambda: 0, 30_000)
        calls = create_calls(admission, self.metrics, into(self.lines), record=record)
        self.client = client_of(create_app(admission), review_routes(calls, into(self.lines)))

    def posts(self, path: str, body: object) -> TestResponse:
        """The answer to a body, as JSON."""
        return self.client.post(path, data=orjson.dumps(body), content_type="application/json")

    def reviews(self, path: str, raw: Json, **request: Any) -> Json:
        """The response to the review of a pod."""
        answer = self.posts(path, review_of(raw, **request))
        assert answer.status_code == 200
        whole: Json = orjson.loads(answer.data)
        assert (whole["apiVersion"], whole["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: Json = whole["response"]
        return response


def test_a_pod_that_was_governed_is_valid() -> None:
    world, raw = World(), admitted(half(), plain())

    response = world.reviews("/mutate", raw)
    after = patched(raw, patch_of(response))

    assert response["uid"] == "uid-1"
    assert world.reviews("/validate", after) == {"uid": "uid-1", "allowed": True}


def test_a_pod_of_a_controller_has_no_name_yet() -> None:
    world, raw = World(), admitted(half())
    del raw["metadata"]["name"], raw["metadata"]["namespace"]
    raw["metadata"]["generateName"] = "job-"

    assert world.reviews("/mutate", raw, namespace="team-b")["allowed"] is True

    assert world.lines[0].startswith(
        "info event=review webhook=mutate verdict=governed namespace=team-b pod=job-* operation=CREATE "
        "standing=UNKNOWN ms="
    )


def test_a_refusal_is_logged_and_counted_by_its_rules() -> None:
    world = World()
    raw = admitted(container("a", gpu_percent="150"), nodeName="n1")

    world.reviews("/mutate", raw, dryRun=True)

    assert "verdict=refused" in world.lines[0]
    assert "rules=share-range:enforce,node-name:enforce dry_run=true" in world.lines[0]
    text = world.metrics.exposition().decode()
    assert 'bursar_webhook_violations_total{mode="enforce",rule="share-range"} 1.0' in text
    assert 'bursar_webhook_violations_total{mode="enforce",rule="node-name"} 1.0' in text
    assert 'bursar_webhook_reviews_total{verdict="refused",webhook="mutate"} 1.0' in text


def test_a_pod_governed_while_its_standing_is_unknown_is_counted() -> None:
    world = World()

    world.reviews("/mutate", admitted(half()))
    world.reviews("/mutate", admitted(plain()))

    assert "bursar_webhook_unknown_standing_total 1.0" in world.metrics.exposition().decode()


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_a_malformed_review_is_a_400_with_a_reason(path: str) -> None:
    world = World()

    answer = world.posts(path, {"kind": "Pod"})

    assert (answer.status_code, answer.text) == (
        400,
        "malformed AdmissionReview: the body is not an AdmissionReview\n",
    )
    assert "bursar_webhook_malformed_total 1.0" in world.metrics.exposition().decode()


ODD = b'"what is odd"'


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_whatever_stands_where_nothing_is_read_a_review_is_answered_as_without_it(value: bytes) -> None:
    raw = admitted(half())
    raw["metadata"]["managedFields"] = [{"fieldsV1": "what is odd"}]
    body = orjson.dumps(review_of(raw))
    world = World()

    answers = [
        world.client.post("/mutate", data=body.replace(ODD, odd), content_type="application/json")
        for odd in (ODD, value)
    ]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].data == answers[1].data


def test_what_is_not_followed_or_skipped_is_in_readyz_and_in_the_metrics() -> None:
    world, now_ms = World(), 0
    health = SourceHealth("resourceclaims", lambda *_, **__: None, lambda: now_ms)
    admission = Reviewer(POLICY, lambda: None, lambda: "ca", lambda: 0, 30_000)
    client = create_app(admission, lambda: (health,)).test_client()
    health.failed("away")
    health.skip("u", {}, KeyError("x"))

    assert client.get("/readyz").text == "ok\nwatch of resourceclaims: 1 objects are skipped\n"
    now_ms = STUCK_MS
    world.metrics.found([health])
    assert client.get("/readyz").text.splitlines() == [
        "ok",
        "watch of resourceclaims: it has not got on since 1970-01-01T00:00:00.000Z",
        "watch of resourceclaims: 1 objects are skipped",
    ]
    for code in ("watch-fails", "object-unread"):
        line = f'bursar_findings{{code="{code}",role="webhook"}} 1.0'
        assert line in world.metrics.exposition().decode()


def test_unready_without_the_ca_and_ready_without_a_sidecar() -> None:
    unready, without = World(ca=None), World(WITHOUT_SIDECAR, ca=None)

    assert unready.client.get("/readyz").status_code == 503
    assert unready.client.get("/livez").status_code == 200
    assert unready.posts("/mutate", review_of(admitted(half()))).status_code == 503
    text = unready.metrics.exposition().decode()
    assert 'bursar_webhook_not_ready_total{webhook="mutate"} 1.0' in text
    assert unready.lines == [
        'warning event=not-ready webhook=mutate reason="the CA bundle for sidecars is not loaded yet"'
    ]
    assert without.client.get("/readyz").text == "ok\n"
    assert without.reviews("/mutate", admitted(half()))["allowed"] is True


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/mutate", 405), ("POST", "/livez", 405), ("GET", "/", 404), ("POST", "/static/x", 404)],
)
def test_other_routes_and_methods_are_problems(method: str, path: str, status: int) -> None:
    answer = World().client.open(path, method=method)

    assert answer.status_code == status
    assert answer.content_type == "application/problem+json"
    assert answer.get_json()["status"] == status
