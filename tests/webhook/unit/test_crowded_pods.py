"""Of a pod with too many parts to be searched the webhook says that alone, as the policy `bursar-sizes` does;
and a large review has a thread beside the others'."""

from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import orjson
import pytest
import yaml

from tests.runtime.lines import into
from tests.support.routed import HERE
from tests.webhook.clusters import MANIFESTS
from tests.webhook.unit.test_app import World
from tests.webhook.unit.test_templates import workload
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    admitted,
    half,
    object_review,
    plain,
    review,
    review_of,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.size import TOO_MANY_PARTS, is_crowded
from timekeeper.core.decisions import Decision
from timekeeper.runtime.http.framing import RequestHead
from timekeeper.runtime.http.service import HttpAnswer, HttpRequest, plain_text
from webhook.admission.workloads import judge
from webhook.server.review_endpoint import LARGE_BYTES, LIMITS, review_routes
from webhook.wire.pod_review import MAX_MARKS

SENTENCE = TOO_MANY_PARTS.sentence()


def names(count: int, letters: int = 4) -> Json:
    return {f"{number:0{letters}}": "1" for number in range(count)}


def annotated(field: str, count: int, letters: int) -> Json:
    raw = admitted(plain())
    raw["metadata"][field] = names(count, letters)
    return raw


def gated(count: int, letters: int) -> Json:
    return admitted(plain(), schedulingGates=[{"name": name} for name in names(count, letters)])


def on_paths(count: int, letters: int) -> Json:
    volumes = [{"name": name, "hostPath": {"path": f"/{'x' * (letters - 1)}"}} for name in names(count)]
    return admitted(plain(), volumes=volumes)


def mounting(count: int, letters: int) -> Json:
    return admitted(plain(volumeMounts=[{"name": "v", "mountPath": name} for name in names(count, letters)]))


def limited(count: int, letters: int) -> Json:
    return admitted(*(plain(f"c{n}", resources={"limits": names(1, letters)}) for n in range(count)))


# the largest that is searched, and the least that is not
BOUNDS: dict[str, tuple[Json, Json]] = {
    "annotations": (annotated("annotations", 1000, 10), annotated("annotations", 1001, 4)),
    "labels": (annotated("labels", 1000, 10), annotated("labels", 1001, 4)),
    "gates": (gated(1000, 10), gated(1001, 4)),
    "volumes": (
        admitted(plain(), volumes=[{"name": name} for name in names(1000)]),
        admitted(plain(), volumes=[{"name": name} for name in names(1001)]),
    ),
    "containers": (admitted(*[plain()] * 1000), admitted(*[plain()] * 1001)),
    "init containers": (
        admitted(plain(), initContainers=[plain()] * 1000),
        admitted(plain(), initContainers=[plain()] * 1001),
    ),
    "ephemeral containers": (
        admitted(plain(), ephemeralContainers=[plain()] * 1000),
        admitted(plain(), ephemeralContainers=[plain()] * 1001),
    ),
    "variables": (
        admitted(plain(env=[{"name": name} for name in names(20_000)])),
        admitted(plain(env=[{"name": name} for name in names(20_001)])),
    ),
    "letters of annotations": (annotated("annotations", 1000, 10), annotated("annotations", 1000, 11)),
    "letters of gates": (gated(1000, 10), gated(1000, 11)),
    "letters of resources": (limited(1000, 10), limited(1000, 11)),
    "letters of host paths": (on_paths(400, 20), on_paths(400, 21)),
    "letters of mounts": (mounting(2000, 100), mounting(2000, 101)),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_bounds_are_those_of_the_policy(bound: str) -> None:
    searched, crowded = BOUNDS[bound]

    assert (is_crowded(searched), is_crowded(crowded)) == (False, True)
    assert (review(searched).is_crowded, review(crowded).is_crowded) == (False, True)


def test_the_policy_says_the_same() -> None:
    (policy, *_) = yaml.safe_load_all((MANIFESTS / "admission-sizes.yaml").read_text())

    assert policy["spec"]["validations"][0]["message"] == SENTENCE


CROWDED: dict[str, Json] = {
    "which is decoded": admitted(*[half()] * 1001, hostPID=True, nodeName="n1"),
    "whose parts are of no type": admitted(*["no container"] * 1001),  # type: ignore[arg-type]
    "which is not decoded": admitted(*[{"name": "a"}] * MAX_MARKS),
}


class Recording(World):
    """Keeps what is recorded, too."""

    def __init__(self, policy: AdmissionPolicy = POLICY) -> None:
        self.recorded: list[Decision] = []
        super().__init__(policy, record=self.recorded.append)


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize("which", CROWDED)
def test_a_crowded_pod_is_refused_with_that_sentence_alone(which: str, path: str) -> None:
    world, raw = Recording(), {**CROWDED[which], "metadata": {"generateName": "train-"}}

    refused = world.reviews(path, raw)

    assert refused == {
        "uid": "uid-1",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": SENTENCE},
    }
    assert "verdict=refused" in world.lines[0]
    assert "rules=pod-parts:enforce" in world.lines[0]
    # whether one that is not decoded is a dry run is not known
    reasons = [(each.reason, each.generate_name) for each in world.recorded]
    assert reasons == ([] if which == "which is not decoded" else [("PodParts", "train-")])


@pytest.mark.parametrize("which", CROWDED)
def test_only_where_its_policy_says_so(which: str) -> None:
    raw = CROWDED[which]

    observed = World(OBSERVING).reviews("/mutate", raw)
    metered = World(replace(POLICY, mode="meter")).reviews("/mutate", raw)
    resized = World().reviews("/validate", raw, operation="UPDATE", subResource="resize")
    gone = World().reviews("/validate", {}, operation="DELETE", oldObject=admitted(*[half()] * 1001))
    body = review_of(raw, operation="UPDATE")
    body["request"] = {"subResource": "ephemeralcontainers", **body["request"]}  # as an API server orders it
    debugged = orjson.loads(World().posts("/validate", body).data)["response"]

    assert [each["allowed"] for each in (observed, metered, resized, gone, debugged)] == [*[True] * 4, False]
    (warning,) = observed["warnings"]
    assert SENTENCE[:200] in warning
    assert not any("warnings" in each for each in (metered, resized, gone))


def test_a_body_of_anybody_that_is_not_decoded_says_why() -> None:
    answer = World().posts("/mutate", {"kind": ["a"] * (MAX_MARKS + 1)})

    assert answer.status_code == 400
    assert "too many parts to be read" in answer.text


def test_a_template_of_crowded_pods_is_refused_with_that_sentence_alone() -> None:
    crowded = {"metadata": {}, "spec": {"containers": [half()] * 1001, "hostPID": True}}
    deployment = object_review(workload("Deployment", crowded))

    answer = judge(deployment, POLICY)

    assert (answer.refusal, answer.rules) == (f"spec.template.{SENTENCE}", (("pod-parts", "enforce"),))


def request(size: int, **more: Any) -> HttpRequest:
    head = RequestHead("POST", "/mutate", "", "/mutate", (1, 1), {}, (), False, False)
    return HttpRequest(head, b" " * size, HERE, HERE, lambda _: None, **more)


def handler_of(
    call: Callable[[bytes], HttpAnswer], *aside: str, verified_only: bool = False
) -> Callable[[HttpRequest], Any]:
    (route,) = review_routes({"/mutate": call}, into([]), verified_only, aside)
    return route.handler


def answered(body: bytes) -> HttpAnswer:
    return plain_text(200, str(len(body)))  # type: ignore[arg-type]


def test_a_large_review_is_answered_in_a_thread_and_a_small_one_is_not() -> None:
    handler = handler_of(answered)

    assert handler(request(LARGE_BYTES)).body == b"%d\n" % LARGE_BYTES
    assert handler(request(LARGE_BYTES + 1))(request(LARGE_BYTES + 1)).body == b"%d\n" % (LARGE_BYTES + 1)
    assert callable(handler_of(answered, "/mutate")(request(1)))


def test_one_large_review_is_answered_at_a_time() -> None:
    begun, goes_on = list[int](), Event()

    def call(body: bytes) -> HttpAnswer:
        begun.append(len(body))
        goes_on.wait()
        return answered(body)

    handler, large = handler_of(call), request(LARGE_BYTES + 1)
    threads = [Thread(target=handler(large), args=(large,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert handler_of(answered)(request(1)).status == 200
    assert len(begun) <= 1
    goes_on.set()
    for thread in threads:
        thread.join()

    assert len(begun) == 2


def test_of_large_reviews_only_so_many_wait_that_others_have_room() -> None:
    handler, size = handler_of(answered), LIMITS.unanswered_bytes // 4
    waiting = [handler(request(size)) for _ in range(2)]

    refused = handler(request(size))
    waiting[0](request(size))

    assert refused.status == 503
    assert callable(handler(request(size)))


def test_large_reviews_of_one_namespace_give_way_to_those_of_another() -> None:
    def of(namespace: str, parts: int) -> HttpRequest:
        body = b'{"request": {"uid": "u", "namespace": "%s", ' % namespace.encode()
        return replace(request(0), body=body.ljust(LIMITS.unanswered_bytes // 2 // parts))

    handler = handler_of(answered)
    piles = [handler(of("pile", 8)) for _ in range(8)]
    assert handler(of("pile", 8)).status == 503

    others = [handler(of("other", 8)) for _ in range(4)]
    assert handler(of("other", 8)).status == 503  # each has half

    large = of("pile", 8)
    assert [answer(large).status for answer in piles] == [200] * 4 + [503] * 4
    assert [answer(large).status for answer in others] == [200] * 4


def test_a_caller_that_is_not_verified_leaves_nothing() -> None:
    reviewed = list[bytes]()

    def call(body: bytes) -> HttpAnswer:
        reviewed.append(body)
        return answered(body)

    handler = handler_of(call, verified_only=True)

    for size in (1, LARGE_BYTES + 1):
        assert handler(request(size)).status == 403
    assert reviewed == []
    assert handler(request(1, is_verified=True)).status == 200


def test_nothing_of_the_worlds_pods_is_crowded() -> None:
    assert not is_crowded(orjson.loads(orjson.dumps(review_of(admitted(half()))))["request"]["object"])
    odd: list[Any] = [
        None,
        7,
        [],
        {"metadata": 1, "spec": []},
        {"spec": {"containers": {"a": 1}, "volumes": [3]}},
    ]
    assert not any(map(is_crowded, odd))
