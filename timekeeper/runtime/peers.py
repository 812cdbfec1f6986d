"""Calls to the other roles, for simulations and cards of gangs: nothing that is charged waits for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson

from timekeeper.edge.http1 import HttpResponse
from timekeeper.edge.http_client import HttpClient, connecting, read_token, sentence, server_of, trusting
from timekeeper.runtime.http.problem_details import Problem, unavailable

MAX_BYTES = 16 * 1024 * 1024

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """A role at ``url`` ("": none), called ``name`` in answers. ``ca``: PEM text of the CAs that it may be
    certified by. ``token_file`` None: it asks for no token."""

    name: str
    url: str
    ca: Callable[[], str]
    timeout_s: float
    token_file: Path | None = None

    def ask(self, path: str, body: Json) -> Json:
        """The answer's JSON. Raises a Problem: 400 with its sentence on the manifest if it rejects the body,
        else 503."""
        try:
            answer = self._posted(path, orjson.dumps(body))
        except (OSError, ValueError) as error:
            why = sentence(error, self.timeout_s)
            raise unavailable(f"the {self.name} cannot be asked: {why}") from error
        status, said = answer.status, _object(answer.body)
        if status == HTTPStatus.OK and said is not None:
            return said
        detail = str((said or {}).get("detail") or answer.body[:500].decode(errors="replace").strip())
        if status == HTTPStatus.BAD_REQUEST:
            raise Problem(400, f"the {self.name} says: {detail}", "manifest")
        raise unavailable(f"the {self.name} answered {status}: {detail}")

    def _posted(self, path: str, body: bytes) -> HttpResponse:
        headers = {"Content-Type": "application/json"}
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {read_token(str(self.token_file))}"
        client = HttpClient(server_of(self.url), connecting(lambda: trusting(self.ca())), keep=0)
        return client.call("POST", path, headers, body, within_s=self.timeout_s, repeat=False, most=MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Peers:
    """Who admits pods, and who places them."""

    webhook: Peer
    extender: Peer


def peers(webhook_url: str, extender_url: str, token_file: Path, ca: Callable[[], str] = lambda: "") -> Peers:
    """The roles at these URLs."""
    return Peers(
        Peer("webhook", webhook_url, ca, timeout_s=5.0),
        Peer("extender", extender_url, ca, timeout_s=5.0, token_file=token_file),
    )


NO_PEERS = peers("", "", Path())


def _object(answer: bytes) -> Json | None:
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
