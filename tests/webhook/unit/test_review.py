"""The door: every body becomes a review or a sentence, and never anything else."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.worlds import OBSERVING, POLICY, admitted, governed, half, review_of
from tests.worlds import Json
from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.wire.pod_review import AdmissionAnswer, PodReview, encode, read


def test_a_review_is_read_with_the_namespace_of_the_request() -> None:
    raw = admitted(half())

    review = read(orjson.dumps(review_of(raw, name="p", dryRun=True)))

    assert review == PodReview(
        uid="uid-1",
        operation="CREATE",
        subresource="",
        namespace="team-a",
        name="p",
        dry_run=True,
        pod=raw,
        old={},
        user="someone",
        groups=("system:authenticated",),
    )


def test_the_caller_is_read_with_the_groups_that_are_text() -> None:
    whole = review_of(admitted(half()), userInfo={"username": "u", "groups": ["a", 7, {}, ["b"], "c"]})

    review = read(orjson.dumps(whole))

    assert (review.user, review.groups) == ("u", ("a", "c"))


def changed(path: str, value: Any) -> Json:
    """A good review with one place of it set to something else."""
    whole = review_of(admitted(half(), init=[half("first")], volumes=[{"name": "v"}]))
    *parents, last = path.split(".")
    place: Any = whole
    for each in parents:
        place = place[int(each) if each.isdigit() else each]
    place[int(last) if last.isdigit() else last] = value
    return whole


MALFORMED: dict[str, tuple[Any, str]] = {
    "no object": ([], "the body is not an AdmissionReview"),
    "of another kind": (changed("kind", "Pod"), "the body is not an AdmissionReview"),
    "of a former version": (
        changed("apiVersion", "admission.k8s.io/v1beta1"),
        "apiVersion must be admission.k8s.io/v1",
    ),
    "no request": (changed("request", None), "request: must be an object"),
    "no uid": (changed("request.uid", ""), "request.uid: must not be empty"),
    "a uid that is no text": (changed("request.uid", 7), "uid: must be a string"),
    "not of pods": (
        changed("request.resource.resource", "deployments"),
        "request.resource: only pods are reviewed here",
    ),
    "of another subresource": (
        changed("request.subResource", "binding"),
        "request.subResource: only ephemeralcontainers, resize, status are reviewed here",
    ),
    "no pod": (changed("request.object", None), "request.object: must be an object"),
    "no metadata": (changed("request.object.metadata", None), "request.object.metadata: must be an object"),
    "an annotation that is no text": (
        changed("request.object.metadata.annotations", {"a": 1}),
        "request.object.metadata.annotations[a]: must be a string",
    ),
    "labels that are a list": (
        changed("request.object.metadata.labels", ["a"]),
        "request.object.metadata.labels: must be an object",
    ),
    "no spec": (changed("request.object.spec", []), "request.object.spec: must be an object"),
    "containers that are no list": (
        changed("request.object.spec.containers", {}),
        "request.object.spec.containers: must be an array",
    ),
    "a container that is no object": (
        changed("request.object.spec.containers.0", "c"),
        "request.object.spec.containers[0]: must be an object",
    ),
    "a container without a name": (
        changed("request.object.spec.initContainers.0.name", None),
        "request.object.spec.initContainers[0].name: must be a string",
    ),
    "a variable without a name": (
        changed("request.object.spec.containers.0.env", [{}]),
        "request.object.spec.containers[0].env[0].name: must be a string",
    ),
    "a variable whose value is a number": (
        changed("request.object.spec.containers.0.env", [{"name": "A", "value": 1}]),
        "request.object.spec.containers[0].env[0].value: must be a string",
    ),
    "resources that are no object": (
        changed("request.object.spec.containers.0.resources", "50"),
        "request.object.spec.containers[0].resources: must be an object",
    ),
    "limits that are no object": (
        changed("request.object.spec.containers.0.resources.limits", ["50"]),
        "request.object.spec.containers[0].resources.limits: must be an object",
    ),
    "mounts that are no objects": (
        changed("request.object.spec.containers.0.volumeMounts", ["/data"]),
        "request.object.spec.containers[0].volumeMounts[0]: must be an object",
    ),
    "a volume without a name": (
        changed("request.object.spec.volumes.0", {}),
        "request.object.spec.volumes[0].name: must be a string",
    ),
    "a user whose name is no text": (changed("request.userInfo.username", 7), "username: must be a string"),
    "a priority that is no number": (
        changed("request.object.spec.priority", "0"),
        "request.object.spec.priority: must be a whole number",
    ),
    "a grace period that is a truth": (
        changed("request.object.spec.terminationGracePeriodSeconds", True),
        "request.object.spec.terminationGracePeriodSeconds: must be a whole number",
    ),
    "an old pod that is none": (
        changed("request.oldObject", {}),
        "request.oldObject.metadata: must be an object",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_review_is_answered_with_what_is_malformed(case: str) -> None:
    body, sentence = MALFORMED[case]

    with pytest.raises(MalformedError) as told:
        read(orjson.dumps(body))

    assert str(told.value) == sentence


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"NaN", b'{"a":' * 5_000, b"[" * 100_000],
    ids=["empty", "cut off", "not UTF-8", "NaN", "deep and cut off", "very deep"],
)
def test_bytes_that_are_no_json_are_rejected(body: bytes) -> None:
    with pytest.raises(MalformedError, match="the body is not JSON"):
        read(body)


def test_the_answer_to_a_deletion_reads_no_pod() -> None:
    assert read(orjson.dumps(review_of(None, operation="DELETE"))).pod == {}


def test_a_refusal_carries_a_code_that_kubectl_does_not_retry() -> None:
    response = orjson.loads(encode("u", AdmissionAnswer("refused", refusal="no")))["response"]

    assert response == {
        "uid": "u",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
    }


# properties

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)

PLACES = [
    "request",
    "request.object",
    "request.object.metadata",
    "request.object.metadata.annotations",
    "request.object.metadata.labels",
    "request.object.spec",
    "request.object.spec.containers",
    "request.object.spec.containers.0",
    "request.object.spec.containers.0.name",
    "request.object.spec.containers.0.env",
    "request.object.spec.containers.0.resources",
    "request.object.spec.containers.0.resources.limits",
    "request.object.spec.containers.0.resources.requests",
    "request.object.spec.initContainers",
    "request.object.spec.initContainers.0.volumeMounts",
    "request.object.spec.containers.0.envFrom",
    "request.object.spec.containers.0.securityContext",
    "request.object.spec.containers.0.volumeMounts",
    "request.object.spec.volumes",
    "request.object.spec.volumes.0.hostPath",
    "request.object.spec.hostPID",
    "request.object.spec.schedulingGates",
    "request.object.spec.priority",
    "request.object.spec.priorityClassName",
    "request.object.spec.schedulerName",
    "request.object.spec.nodeName",
    "request.object.spec.resources",
    "request.object.spec.ephemeralContainers",
    "request.oldObject",
    "request.operation",
    "request.subResource",
    "request.resource",
    "request.dryRun",
    "request.userInfo",
    "request.userInfo.groups",
]


GOVERNED = governed(admitted(half(), init=[half("first")], volumes=[{"name": "v"}]))
POD = admitted(half(), init=[half("first")], volumes=[{"name": "v"}])


@given(
    st.sampled_from(PLACES),
    ANY,
    st.sampled_from(["CREATE", "UPDATE"]),
    st.sampled_from(["", "ephemeralcontainers"]),
    st.sampled_from([POD, GOVERNED]),
    st.sampled_from([POLICY, OBSERVING]),
)
def test_whatever_stands_somewhere_the_answer_is_a_verdict_or_a_sentence(
    place: str, value: Any, operation: str, subresource: str, raw: Json, policy: AdmissionPolicy
) -> None:
    whole = review_of(raw, subResource=subresource, operation=operation)
    replaced = json.loads(json.dumps(whole))
    *parents, last = place.split(".")
    at: Any = replaced
    for each in parents:
        at = at[int(each) if each.isdigit() else each]
    at[int(last) if last.isdigit() else last] = value

    try:
        body = orjson.dumps(replaced)
    except (TypeError, orjson.JSONEncodeError):
        return  # an integer or a text that no JSON of ours can carry
    try:
        review = read(body)
    except MalformedError as error:
        said = str(error)
        assert said
        return
    policy = replace(policy, exempt=frozenset(("someone",)))
    for answer in (mutate(review, lambda _: Standing("IN_BUDGET"), policy), validate(review, policy)):
        response = orjson.loads(encode(review.uid, answer))["response"]
        assert response["uid"] == review.uid
        assert response["allowed"] is (answer.refusal == "")


@given(ANY)
def test_arbitrary_json_is_no_review(value: Any) -> None:
    try:
        body = orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return
    with pytest.raises(MalformedError):
        read(body)
