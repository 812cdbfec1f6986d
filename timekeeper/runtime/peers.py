"""Calls to the other roles, for simulations and cards of gangs: nothing that is charged waits for them."""

import http.client
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from timekeeper.runtime.http.problem_details import Problem, unavailable
from timekeeper.runtime.tls import client_context

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
        """The answer's JSON. Raises a Problem: 429 if the role said so, 400 with its sentence and field if
        it rejects the body, else 503."""
        try:
            status, answer = self._posted(path, orjson.dumps(body))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise unavailable(f"the {self.name} cannot be asked: {error}") from error
        said = _object(answer)
        if status == http.client.OK and said is not None:
            return said
        detail = str((said or {}).get("detail") or answer[:500].decode(errors="replace").strip())
        if status == http.client.TOO_MANY_REQUESTS:
            raise Problem(429, detail, headers={"Retry-After": "1"})
        if status == http.client.BAD_REQUEST:
            raise Problem(400, f"the {self.name} says: {detail}", str((said or {}).get("field", "")))
        raise unavailable(f"the {self.name} answered {status}: {detail}")

    def _posted(self, path: str, body: bytes) -> tuple[int, bytes]:
        address = urlsplit(self.url)
        headers = {"Content-Type": "application/json"}
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {self.token_file.read_text(encoding='ascii').strip()}"
        connection = http.client.HTTPSConnection(
            address.netloc, timeout=self.timeout_s, context=client_context(self.ca())
        )
        try:
            connection.request("POST", address.path.rstrip("/") + path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_BYTES)
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Peers:
    """Who admits pods, and who places them."""

    webhook: Peer
    extender: Peer


def peers(webhook_url: str, extender_url: str, token_file: Path, ca: Callable[[], str] = lambda: "") -> Peers:
    """The roles at these URLs."""
    return Peers(
        Peer("webhook", webhook_url, ca, timeout_s=5.0),
        Peer("extender", extender_url, ca, timeout_s=65.0, token_file=token_file),
    )


NO_PEERS = peers("", "", Path())


def _object(answer: bytes) -> Json | None:
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
