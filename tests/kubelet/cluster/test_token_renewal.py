"""A real token of the least life there is, ten minutes: the kubelet renews it, and the sidecar beats on."""

import base64
import json
import os
import signal
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.cleanup import FOLDER
from deploy.local.limits import LONGEST_S
from tests.kubelet.worlds import (
    PODS,
    SIDECAR,
    Json,
    ReceivedBeat,
    World,
    container,
    gpu_pod,
    held_ms,
    runs_for,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_500)]

LIFE_S = 600  # the least that the API server gives
LEEWAY_S = 60  # by which the timekeeper's clock may be behind: so long it asks the API server all the same
HALF = 500  # milli-GPU


@dataclass(frozen=True, slots=True)
class Token:
    """What the file holds at a moment, and what that says of itself."""

    text: str
    id: str
    life_s: int
    expires_ms: int


def token_of(pod: Json) -> Token:
    """The token that the pod's sidecar would read now."""
    volumes = Path(FOLDER, "kubelet/pods", pod["metadata"]["uid"], "volumes")
    text = (volumes / "kubernetes.io~projected/bursar-token/token").read_text()
    body = text.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return Token(text, claims["jti"], claims["exp"] - claims["iat"], 1000 * claims["exp"])


def short_lived(world: World, pod: Json) -> Json:
    """The pod as the webhook governs it, but with a token of ten minutes."""
    governed = world.stack.cp.api.call("POST", f"{PODS}?dryRun=All", pod)
    (volume,) = (each for each in governed["spec"]["volumes"] if each["name"] == "bursar-token")
    (source,) = volume["projected"]["sources"]
    source["serviceAccountToken"]["expirationSeconds"] = LIFE_S
    added = {part: governed["spec"][part] for part in ("containers", "initContainers", "volumes")}
    return {**pod, "spec": {**pod["spec"], **added}}


def is_taken_by_the_api_server(world: World, token: Token) -> bool:
    """By the TokenReview that the timekeeper asks for."""
    spec = {"token": token.text, "audiences": ["bursar"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    reviewed = world.stack.cp.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
    return bool(reviewed["status"].get("authenticated", False))


def answer_to_a_beat(world: World, token: Token) -> int:
    """The timekeeper's status for an empty post with this token."""
    request = urllib.request.Request(
        f"{world.stack.timekeeper_url}/v1/heartbeats",
        data=b"{}",
        headers={"Authorization": f"Bearer {token.text}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=LONGEST_S, context=world.stack.tls_context()) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_renewed_token_is_beaten_with_when_the_first_has_expired(world: World) -> None:
    pod = gpu_pod("renewed", container("main", runs_for(3_600), gpu_percent="50"))
    world.create(short_lived(world, pod))
    pod = world.running("renewed")
    world.beaten(pod)
    first = token_of(pod)
    tokens: dict[str, Token] = {}
    beats: dict[ReceivedBeat, None] = {}

    def late() -> list[ReceivedBeat]:
        return [beat for beat in beats if beat.received_ms > first.expires_ms + 1000 * LEEWAY_S]

    def watch() -> bool:
        token = token_of(pod)
        tokens.setdefault(token.id, token)
        beats.update(dict.fromkeys(world.beats(pod)))
        return len(late()) > 5

    most_s = LIFE_S + LEEWAY_S + LONGEST_S
    world.until("beats after the first token has expired for good", watch, within_s=most_s)
    last = token_of(pod)
    taken = [is_taken_by_the_api_server(world, token) for token in (first, last)]
    answers = [answer_to_a_beat(world, token) for token in (first, last)]
    os.kill(world.pid(pod, "main"), signal.SIGKILL)
    ended = world.ended("renewed", "Failed")
    said = [line for line in world.node.output(ended, SIDECAR) if "event=started" not in line]
    print(*(f"token {each.id} until {each.expires_ms}" for each in tokens.values()), sep="\n")
    print(f"{len(beats)} beats seen, {len(late())} with the old one expired; {answers=}, {said=}")

    assert len(tokens) > 1, "the kubelet renewed none"
    assert {each.life_s for each in tokens.values()} == {LIFE_S}
    assert last.expires_ms == max(each.expires_ms for each in tokens.values()) > first.expires_ms
    assert taken == [False, True]
    assert answers == [401, 400], "refused for the token, and for what was posted"
    assert len({beat.boot for beat in beats}) == 1
    assert world.charged(ended) == held_ms(ended) * HALF
