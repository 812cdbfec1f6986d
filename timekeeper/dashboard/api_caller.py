"""Calls of the REST API within this process, with the visitor's token, as any other caller makes them."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import orjson
from werkzeug.test import Client, TestResponse

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

Json = dict[str, Any]

MAX_AGE_S = 30
MAX_ROWS = 10_000  # of one answer


class _Answer(Json):
    """It is not changed, for pages that have the same answer share it."""

    __slots__ = ("__weakref__",)


_READ: WeakValueDictionary[str, _Answer] = WeakValueDictionary()  # by ETag, while a page has it
_READING = Lock()


class ApiRefusedError(Exception):
    """The API answered with a problem. ``detail``: its sentence; ``field``: what of the request it is about,
    "" if nothing of it; ``others``: field and sentence of all else that is wrong."""

    def __init__(
        self, status: int, detail: str, field: str = "", others: Sequence[tuple[str, str]] = ()
    ) -> None:
        where = f"{field}: " if field else ""
        super().__init__(f"{status}: {where}{detail}")
        self.status, self.sentence, self.field = status, detail, field
        self.detail = f"{where}{detail}"
        self.others = others


class ApiCaller:
    """The REST API with one visitor's token."""

    def __init__(self, api: "WSGIApplication", token: str) -> None:
        self._client = Client(api, use_cookies=False)
        self._token = token

    def recent(self, path: str, **query: str | int | None) -> Json:
        """As `get`, from an answer that may be `MAX_AGE_S` old, where the route keeps one."""
        headers = {"Cache-Control": f"max-age={MAX_AGE_S}"}
        return self._read("GET", path, query_string=_given(query), headers=headers)

    def get(self, path: str, **query: str | int | None) -> Json:
        """The JSON of an answer. ``from_`` stands for the parameter ``from``; None: not given. Raises
        ApiRefusedError."""
        return self._read("GET", path, query_string=_given(query))

    def whole(self, path: str, list_of: str, **query: str | int | None) -> Json:
        """As `get`, with this list of every page."""
        page = self.get(path, limit=MAX_ROWS, **query)
        rows = [*page[list_of]]
        while page["next"]:
            page = self.get(path, limit=MAX_ROWS, **{**query, "after": page["next"]})
            rows += page[list_of]
        return {**page, list_of: rows}

    def table(self, path: str, max_age_s: int = 0, /, **query: str | int | None) -> list[dict[str, str]]:
        """The rows of an answer that is CSV, of every page, which may be ``max_age_s`` old where the route
        keeps one. Raises ApiRefusedError."""
        headers = {"Cache-Control": f"max-age={max_age_s}"}
        answer = self._open("GET", path, headers, query_string=_given(query), buffered=True)
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        follows = re.search(r"after=([\w-]+)", answer.headers.get("Link", ""))
        return rows + self.table(path, max_age_s, **{**query, "after": follows[1]}) if follows else rows

    def stream(self, path: str, **query: str | int | None) -> TestResponse:
        """An answer whose body is read in pieces; to be closed. Raises ApiRefusedError."""
        return self._open("GET", path, query_string=_given(query))

    def post(self, path: str, body: Json, **headers: str) -> Json:
        """The JSON of the answer to this body. Raises ApiRefusedError."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._read("POST", path, data=orjson.dumps(body), headers=named)

    def _read(self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> Json:
        answer = self._open(method, path, headers, buffered=True, **more)
        tag = answer.headers.get("ETag", "")
        with _READING:
            read = _READ.get(tag) if tag else None
            if read is None:
                read = _READ[tag] = _Answer(orjson.loads(answer.get_data()))
            return read

    def _open(
        self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any
    ) -> TestResponse:
        sent = {**(headers or {}), "Authorization": f"Bearer {self._token}"}
        answer = self._client.open(path, method=method, headers=sent, **more)
        if answer.status_code != 200:
            raise ApiRefusedError(answer.status_code, *_problem(answer.get_data()))
        return answer


def _given(query: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name.rstrip("_"): str(value) for name, value in query.items() if value is not None}


def _problem(body: bytes) -> tuple[str, str, list[tuple[str, str]]]:
    """Its sentence, its field, and the other faults."""
    try:
        problem = orjson.loads(body)
        others = [(str(each["field"]), str(each["detail"])) for each in problem.get("errors", ())[1:]]
        return str(problem["detail"]), str(problem.get("field") or ""), others
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return "no explanation", "", []
