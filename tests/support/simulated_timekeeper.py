"""A simulated timekeeper for those who ask it for standings, and its documents."""

import gzip
from typing import Any

import orjson

from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from tests.worlds import Json


class SimulatedTimekeeper(Served):
    """Answers each GET from ``document``, compressed for whoever accepts that; None answers 503. Remembers
    the headers of each request; ``spoilt`` sends a body that is no gzip. Takes each POST; ``posted``
    are their bodies. ``flags`` are an extender's that asks it."""

    def __init__(self, tls: Tls, document: Json | None = None) -> None:
        self.document: Json | None = document or standings()
        (tls.folder / "token").write_text("token\n")
        self.spoilt = False
        self.asked: list[dict[str, str]] = []
        self.answered: list[int] = []
        self.posted: list[bytes] = []
        super().__init__(type("Handler", (_Handler,), {"timekeeper": self}), tls.server())
        self.flags = (
            f"--timekeeper-url={self.url}",
            f"--timekeeper-ca={tls.file('ca.crt')}",
            f"--token-file={tls.file('token')}",
        )

    def reply(self, known: str) -> tuple[int, str, bytes]:
        """Status, ETag and body for a caller that knows this ETag."""
        document = self.document
        if document is None:
            return 503, "", b"no"
        etag = f'"{document["revision"]}"'
        return (304, etag, b"") if known == etag else (200, etag, orjson.dumps(document))


class _Handler(JsonHandler):
    timekeeper: SimulatedTimekeeper

    def do_GET(self) -> None:
        asked = {"path": self.path, **{name.lower(): value for name, value in self.headers.items()}}
        self.timekeeper.asked.append(asked)
        status, etag, body = self.timekeeper.reply(self.headers.get("If-None-Match", ""))
        self.timekeeper.answered.append(status)
        headers = [("ETag", etag)]
        if body and asked.get("accept-encoding") == "gzip":
            headers.append(("Content-Encoding", "gzip"))
            body = b"\x1f\x8bspoilt" if self.timekeeper.spoilt else gzip.compress(body)
        self.answer(status, body, headers)

    def do_POST(self) -> None:
        self.timekeeper.posted.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, {"version": 1})


def entry(standing: str = "IN_BUDGET", **fields: Any) -> Json:
    """One namespace of the standings."""
    return {
        "standing": standing,
        "onExhausted": "deprioritize",
        "priorityClass": "gpu-default-priority",
        "ratio": 100,
        "warnAt": 800,
        "remaining": 3_600_000_000,
        "validUntil": None,
        "rules": {},
        "exempt": [],
        "policy": "binpack",
    } | fields


def standings(settings: Json | None = None, revision: str = "1", **namespaces: Json) -> Json:
    """A document of ``GET /v1/standings``; namespaces are keywords with ``_`` for a dash."""
    return {
        "version": 1,
        "revision": revision,
        "generated": 1_750_000_000_000,
        "settings": {
            "mode": "enforce",
            "schedulerName": "bursar-scheduler",
            "sidecar": True,
            "priorityClasses": {
                "inBudget": {"name": "gpu-default-priority", "value": 0},
                "overBudget": {"name": "gpu-lower-priority", "value": -5},
            },
            "unknownStanding": "inBudget",
            "maxGracePeriodMs": 600_000,
            "policy": "binpack",
        }
        | (settings or {}),
        "default": entry("UNLIMITED", ratio=None, warnAt=None, remaining=None),
        "namespaces": {name.replace("_", "-"): value for name, value in namespaces.items()},
    }
