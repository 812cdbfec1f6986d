"""The toleration of its own that a claim on one device is created with."""

import json
from dataclasses import replace
from typing import Any

import jsonpatch
import orjson
import pytest

from tests.webhook.worlds import POLICY, review_of
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.request.claims import KnownClaims
from timekeeper.core.request.device_classes import DeviceClass
from webhook.admission.claims import with_toleration
from webhook.wire.object_review import read

TOKEN = "0123456789abcdef" * 2
OTHERS = [{"key": f"example.com/{number}", "operator": "Exists"} for number in range(16)]
DRIVERS = {"gpu": "gpu.nvidia.com", "nic": "x"}
KNOWN = KnownClaims({name: DeviceClass(name, driver) for name, driver in DRIVERS.items()})
KIND = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
CLASSES = replace(POLICY, claims=KNOWN)


def claim(*requests: Json) -> Json:
    named = [{"name": f"r{number}", **each} for number, each in enumerate(requests)]
    spec = {"devices": {"requests": named}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": spec,
    }


def one(name: str = "gpu", **fields: Any) -> Json:
    return {"exactly": {"deviceClassName": name, "allocationMode": "ExactCount", "count": 1, **fields}}


def operations(raw: Json, policy: AdmissionPolicy = CLASSES, old: Json | None = None) -> Any:
    """What the review of its creation changes, or of the update of ``old``."""
    of_update = {"operation": "UPDATE", "oldObject": old} if old else {"operation": "CREATE"}
    review = read(orjson.dumps(review_of(raw, kind=KIND, **of_update)))
    return json.loads(json.dumps(with_toleration(review, policy, TOKEN).operations))


def tolerations(raw: Json) -> Any:
    """Of the claim's request, after the review."""
    after = jsonpatch.apply_patch(raw, operations(raw))
    return after["spec"]["devices"]["requests"][0]["exactly"]["tolerations"]


def own(token: str = TOKEN, namespace: str = "team-a") -> Json:
    return {
        "key": f"heir.bursar.dev/{namespace}",
        "operator": "Equal",
        "value": token,
        "effect": "NoSchedule",
    }


def test_a_claim_on_one_gpu_gets_its_own_beside_those_that_it_has() -> None:
    assert tolerations(claim(one())) == [own()]
    assert tolerations(claim(one(tolerations=OTHERS[:15]))) == [*OTHERS[:15], own()]
    assert tolerations(claim(one("unknown"))) == [own()], "the class may be of GPUs"


def test_each_request_of_a_claim_on_several_gpus_gets_the_same() -> None:
    assert tolerations(claim(one(count=8))) == [own()]
    after = claim(one(count=2), one("unknown", tolerations=[own("f" * 32), OTHERS[0]]))
    after = jsonpatch.apply_patch(after, operations(after))
    found = [each["exactly"]["tolerations"] for each in after["spec"]["devices"]["requests"]]
    assert found == [[own()], [OTHERS[0], own()]]


def test_one_that_somebody_has_written_is_replaced() -> None:
    before = [own("f" * 32), OTHERS[0], own(namespace="team-b")]

    assert tolerations(claim(one(tolerations=before))) == [OTHERS[0], own()]


@pytest.mark.parametrize(
    "raw",
    [
        claim(one("nic")),
        claim(one(count=9)),
        claim(*[one(count=3)] * 3),
        claim(one(), one("nic")),
        claim(one(), one(tolerations=OTHERS)),
        claim(one(allocationMode="All")),
        claim(one(adminAccess=True)),
        claim(one(), one(capacity={"requests": {"memory": "1Gi"}})),
        claim({"firstAvailable": [{"name": "s", "deviceClassName": "gpu"}]}),
        claim(one(tolerations=OTHERS)),
        claim(),
    ],
)
def test_other_claims_stay_as_they_are(raw: Json) -> None:
    assert operations(raw, replace(CLASSES, claims=replace(KNOWN, drivers=lambda: {"x": False}))) == []


@pytest.mark.parametrize("mode", ["observe", "meter"])
def test_claims_stay_as_they_are_where_nothing_is_enforced(mode: Any) -> None:
    assert operations(claim(one()), replace(CLASSES, mode=mode)) == []


FORMER = own("f" * 32)


@pytest.mark.parametrize("mode", ["enforce", "observe", "meter"])
@pytest.mark.parametrize(
    ("before", "manifest"),
    [
        (claim(one(tolerations=[FORMER])), claim(one())),
        (claim(one(tolerations=[OTHERS[0], FORMER])), claim(one(tolerations=OTHERS[:1]))),
        (claim(one(tolerations=[FORMER])), claim(one(tolerations=[own()]))),
        (
            claim(one(count=2, tolerations=[FORMER]), one("unknown", tolerations=[OTHERS[0], FORMER])),
            claim(one(count=2), one("unknown", tolerations=OTHERS[:1])),
        ),
        (claim(one()), claim(one(tolerations=[own()]))),
    ],
)
def test_a_manifest_that_is_applied_again_gets_what_the_claim_was_created_with(
    before: Json, manifest: Json, mode: Any
) -> None:
    after = jsonpatch.apply_patch(manifest, operations(manifest, replace(CLASSES, mode=mode), before))

    assert [each["exactly"].get("tolerations", []) for each in after["spec"]["devices"]["requests"]] == [
        each["exactly"].get("tolerations", []) for each in before["spec"]["devices"]["requests"]
    ]


@pytest.mark.parametrize(
    ("before", "manifest"),
    [
        (claim(one()), claim(one())),
        (claim(one()), claim(one(count=2))),
        (claim(one(tolerations=[FORMER])), claim(one(tolerations=OTHERS[:1]))),
        (claim(one(tolerations=[FORMER])), claim({"firstAvailable": [{"name": "s"}]})),
        (claim(one(tolerations=[FORMER])), claim()),
    ],
)
def test_a_claim_from_before_gets_none_and_what_its_user_changes_stays(before: Json, manifest: Json) -> None:
    assert operations(manifest, old=before) == []
