"""What is kept of the API server's answers, however much tenants write into their objects."""

import json
from typing import Any

import pytest

from sidecar.node.kube import trimmed_json

DEVICES = "bursar.dev/devices"
HAMIS = "hami.io/node-nvidia-register"  # that it is there says all


def pod(uid: str, **annotations: str) -> dict[str, Any]:
    """A pod's metadata with more in it than the agent reads."""
    return {
        "metadata": {
            "uid": uid,
            "name": uid,
            "namespace": "team",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {DEVICES: "{}", "bursar.dev/other": "x", HAMIS: "x" * 9, **annotations},
            "labels": {"app": "x"},
            "managedFields": [{"fieldsV1": {"f:metadata": {}}}],
        }
    }


def kept(uid: str) -> dict[str, Any]:
    metadata = {"uid": uid, "name": uid, "namespace": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**metadata, "annotations": {DEVICES: "{}", HAMIS: ""}}}


def written(whole: object) -> bytes:
    """As the API server writes it."""
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


ABOUT = {"resourceVersion": "7", "continue": "x"}


@pytest.mark.parametrize("write", [written, lambda whole: json.dumps(whole, indent=1).encode()])
@pytest.mark.parametrize("uids", ["", "a", "abc"])
def test_of_each_object_only_what_the_agent_reads_is_kept(write: Any, uids: str) -> None:
    whole = {"kind": "PodList", "metadata": ABOUT, "items": [pod(uid) for uid in uids]}

    assert trimmed_json.loads(write(whole)) == {**whole, "items": [kept(uid) for uid in uids]}
    assert trimmed_json.loads(write(pod("a"))) == kept("a")
    assert trimmed_json.loads(write({"items": None, "metadata": ABOUT})) == {"items": None, "metadata": ABOUT}


@pytest.mark.parametrize(
    "text", ["", '{"items":[', '{"items":[]', '{"items":[{}{}]}x', '{"items":[1]}}', '"']
)
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra|Unterminated"):
        trimmed_json.loads(text.encode())


def test_a_users_text_that_looks_like_a_list_changes_nothing() -> None:
    sly = pod("a") | {"note": '"items":[{}]}', "spec": {"items": [1, 2], "x": 1}}

    assert trimmed_json.loads(written(sly)) == sly | kept("a")
