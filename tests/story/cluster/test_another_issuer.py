"""The API server gets another issuer of service accounts' tokens, and accepts both for a while, under all
roles, which run on; and a role whose token it rejects is named."""

import base64
import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import ISSUER
from deploy.local.stack import Stack
from tests.support.waiting import eventually

HOME = "bursar-system"
ANOTHER = "https://oidc.example.com/cluster"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Every role, ready; its API server is started again, so it is of these tests alone."""
    with ControlPlane() as plane, Stack(plane) as running:
        yield running


def take(plane: ControlPlane, issuer: str) -> None:
    """New tokens are of this issuer from now on, and those of the one before are accepted, too."""
    command = plane._processes._commands["kube-apiserver"]
    command.insert(command.index(f"--service-account-issuer={ISSUER}"), f"--service-account-issuer={issuer}")
    plane.restart_process("kube-apiserver")
    eventually(lambda: plane.api.answers("/readyz"), "the API server")


def issuer_of(token: str) -> Any:
    body = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["iss"]


def status(stack: Stack, path: str, token: str, url: str = "") -> int:
    try:
        stack.get(path, token, url)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def test_tokens_of_either_issuer_are_accepted_by_every_role(stack: Stack) -> None:
    def tokens() -> tuple[str, str]:
        return stack.reader_token(), stack.token(HOME, "bursar-webhook", audience="bursar")

    of_one = tokens()
    take(stack.cp, ANOTHER)
    of_another = tokens()

    assert [issuer_of(token) for token in (*of_one, *of_another)] == [ISSUER] * 2 + [ANOTHER] * 2
    for reader, webhook in (of_one, of_another):
        assert status(stack, "/v1/budgets", reader) == 200
        assert status(stack, "/v1/standings", webhook) == 200
        assert status(stack, "/metrics", reader, stack.webhook_url) == 200
        assert status(stack, "/metrics", reader, stack.read_url) == 200


def test_a_role_whose_token_the_api_server_rejects_is_a_finding(stack: Stack) -> None:
    allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {
        "serviceAccountName": "bursar-webhook",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "example", "securityContext": allowed}],
    }
    pods = f"/api/v1/namespaces/{HOME}/pods"
    pod = stack.cp.api.call("POST", pods, {"metadata": {"name": "ends"}, "spec": spec})
    (stack.folder / "webhook.token").write_text(
        stack.token(HOME, "bursar-webhook", audience="bursar", pod=pod)
    )
    stack.cp.api.call("DELETE", f"{pods}/ends?gracePeriodSeconds=0")

    def named() -> list[str]:
        found = stack.get("/v1/findings", stack.reader_token())["findings"]
        return [finding["figures"]["caller"] for finding in found if finding["code"] == "token-refused"]

    stack.wait("the finding", lambda: named() == ["webhook"], "timekeeper")
    assert "the timekeeper answered 401" in stack.log("webhook")
