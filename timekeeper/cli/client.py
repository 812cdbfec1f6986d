"""A client of the REST APIs. Every failure is a sentence."""

import json
import socket
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

from timekeeper.cli.output import (
    OBJECTS,
    AwayError,
    CommandError,
    PrintedSheet,
    RefusedError,
    Say,
    joined,
    listing,
    sheet_of,
    silent,
)
from timekeeper.core.texts import GPU_HOUR
from timekeeper.edge import http_client
from timekeeper.edge.http1 import HttpResponse
from timekeeper.edge.http_client import HttpClient, Server

_CONNECT_S = 10.0
_WITHIN_S = 300.0  # for a whole answer: a report may take long
_MOST_BYTES = 1 << 30
MAX_ROWS = 10_000  # of one answer
_HINTS = {
    401: "the token has expired, or is not for the audience bursar",
    403: "the account may not do this there; others: NAMESPACE/bursar-reader with -n NAMESPACE, of leads"
    " bursar-leads/NAME with -n _group.NAME, and of all bursar-system/bursar-finance or bursar-admin: see"
    " docs/access.md",
    404: "check the name; a server older than this command may lack the route",
    503: "the server or its database is busy or away, or does not lead; try again",
}
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# columns of every bill, and of every one in FOCUS
BILL = frozenset(
    ("from", "to", "amount", "gpuHours", "price", "cost", "currency", "requested", "unused", "measured")
)
FOCUS = frozenset(("BilledCost", "BillingCurrency", "ChargePeriodStart", "ResourceId", "x_Amount"))
_AGGREGATED_HINTS = _HINTS | {
    401: "your login was refused or has expired: log in again; kubectl auth whoami shows whether it is valid",
    403: "your user may not do this in this namespace: see docs/access.md",
    404: "check the name, and whether the aggregated API is installed: see docs/access.md",
}


class AnswerObject(dict[str, Any]):
    """An object of an answer. ``lacks`` makes the error that reading a field raises where there is none."""

    lacks: Callable[[str], CommandError]

    def __missing__(self, field: str) -> NoReturn:
        raise self.lacks(field)


class Client:
    """The timekeeper at ``url``. ``ca``: its CA (PEM). ``host``: its certificate's name; "":
    the URL's. ``path``: of a Unix socket that leads to the URL without TLS. ``say`` shows how far it is.
    Threads may share it. Raises CommandError where it cannot be called so."""

    def __init__(
        self, url: str, token: str = "", ca: str = "", host: str = "", path: Path | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.say: Say = silent
        self.within_s = _WITHIN_S
        self.others: Iterator[str] = iter(())  # tokens with more rights, where a read is refused
        self._headers = {"User-Agent": "kubectl-bursar"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._hints = _HINTS if path is None else _AGGREGATED_HINTS
        try:
            server = http_client.server_of(self.url)
        except ValueError as error:
            raise CommandError(f"{url} is no address of a server: {error}") from error
        if path is not None:
            connect = _to_socket(path)
        elif ca:
            try:
                http_client.trusting(ca)
            except http_client.NotConnected as error:
                raise CommandError(
                    "the CA contains no readable certificate; --ca-file names another"
                ) from error
            connect = http_client.connecting(lambda: http_client.trusting(ca), host)
        else:
            connect = http_client.connecting(http_client.system_context, host)
        self._client = HttpClient(server, connect, connect_s=_CONNECT_S)
        weakref.finalize(self, self._client.close)

    def get(self, path: str, **query: str | None) -> Any:
        """The JSON of an answer. ``from_`` stands for the parameter ``from``. Raises CommandError."""
        return self._json(self._call("GET", _asked(path, query)))

    def sheet(
        self, form: str, path: str, *lists: str, most: int | None = None, **query: str | None
    ) -> PrintedSheet:
        """What a command prints in this form: the server's Table, or for JSON and YAML the answer, with these
        lists of it as its items. ``most``: rows in all, and a warning where there are more; None: those of
        every page. Raises CommandError."""
        if most is not None:
            query["limit"] = str(most)
        if form not in OBJECTS:
            return joined(self._tables(form, path, query, most))
        answer = self.whole(path, *lists, **query) if lists and not most else self.get(path, **query)
        return PrintedSheet(answer=listing(answer, *lists) if lists else answer)

    def whole(self, path: str, *lists: str, **query: str | None) -> Any:
        """The JSON of an answer with these lists, and its total, of every page. Raises CommandError."""
        answer = page = self.get(path, **query)
        while all(isinstance(page[name], list) for name in lists):
            self.say(f"{sum(len(answer[name]) for name in lists)} {' and '.join(lists)} read")
            if page.get("next") is None:
                return answer
            page = self.get(path, **{**query, "after": page["next"]})
            for name in lists:
                answer[name] += page[name]
            if "total" in page:
                amount = answer["total"]["amount"] + page["total"]["amount"]
                exact = round(Decimal(amount) / GPU_HOUR, 12).normalize()
                answer["total"] = {"amount": amount, "gpuHours": f"{exact:f}"}
            answer["next"] = page.get("next")
        raise self._is_another("JSON")

    def answered(self, form: str, path: str, **query: str | None) -> tuple[PrintedSheet, Any]:
        """The same of a route whose Table has the answer, by which the command decides how it ends."""
        if form in OBJECTS:
            answer = self.get(path, **query)
            return PrintedSheet(answer=answer), answer
        page = self._json(self._call("GET", _asked(path, query), headers=_accepted(form)), True)
        return sheet_of(page), page["answer"]

    def list(self, form: str, path: str, list_of: str, **query: str | None) -> PrintedSheet:
        """The same of a route in pages, of which JSON and YAML have the members alone."""
        if form not in OBJECTS:
            return joined(self._tables(form, path, query))
        return PrintedSheet(answer=self.whole(path, list_of, **query)[list_of])

    def _tables(
        self, form: str, path: str, query: Mapping[str, str | None], most: int | None = None
    ) -> Iterator[PrintedSheet]:
        """The pages of the Table: all, or the first that have ``most`` rows together."""
        after: str | None = None
        read = 0
        while after != "" and (most is None or read < most):
            page = self._json(
                self._call("GET", _asked(path, {**query, "after": after}), headers=_accepted(form)), True
            )
            read += len(page["rows"])
            self.say(f"{read} rows read")
            after = page["metadata"]["continue"]
            if after and most is not None and read >= most:
                page["warnings"].append(f"Only {read} are listed, and there are more.")
            yield sheet_of(page)

    def csv(self, path: str, columns: Collection[str], **query: str | None) -> str:
        """The bill in CSV. Raises CommandError, also where one of these columns is missing."""
        answer = self._call("GET", _asked(path, query))
        text = _text(answer)
        is_csv = answer.headers.get("content-type", "").startswith("text/csv")
        if not is_csv or not set(columns) <= set(text.partition("\n")[0].strip().split(",")):
            raise self._is_another("CSV")
        return text

    def post(self, form: str, path: str, body: object, *lists: str, **headers: str) -> PrintedSheet:
        """What a command prints of the answer to this body, as `sheet`. Raises CommandError."""
        is_table = form not in OBJECTS
        sent = {"Content-Type": "application/json", **headers, **(_accepted(form) if is_table else {})}
        answer = self._json(self._call("POST", path, json.dumps(body).encode(), sent), is_table)
        if is_table:
            return sheet_of(answer)
        return PrintedSheet(answer=listing(answer, *lists) if lists else answer)

    def post_once(self, form: str, path: str, body: object, lists: str, key: str, twice: str) -> PrintedSheet:
        """The same with an Idempotency-Key; "": a new one. ``twice``: what another try without it could do.
        Raises CommandError, which names the key where the server may have acted."""
        key = key or str(uuid.uuid4())
        try:
            return self.post(form, path, body, lists, **{"Idempotency-Key": key})
        except RefusedError:
            raise  # nothing was written
        except CommandError as error:
            raise CommandError(f"{error.message}\nTo try again without {twice}: --key {key}") from error

    def status(self, path: str) -> tuple[int, str, str]:
        """Status, text and ``Date``, whatever they are. Raises CommandError without an answer."""
        answer = self._request("GET", path, None, {})
        return answer.status, _text(answer), answer.headers.get("date", "")

    def probe(self) -> None:
        """Ask whether the server lives, which it says at once; a report may take long. Raises AwayError."""
        self._request("GET", "/livez", None, {}, _CONNECT_S)

    def forward(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """The answer, whatever it is. Raises CommandError without one."""
        return self._request(method, path, body, headers)

    def _json(self, answer: HttpResponse, is_table: bool = False) -> Any:
        """Every JSON of ours is an object with a version, or a Table. Reading a field that is not there
        raises CommandError."""
        try:
            value = json.loads(_text(answer), object_hook=self._object)
        except ValueError as error:
            raise self._is_another("JSON") from error
        if not isinstance(value, dict) or ("version" not in value and value.get("kind") != "Table"):
            raise self._is_another("JSON")
        if is_table and "version" in value:
            raise CommandError(
                f"{self.url} answered without a table: it is a timekeeper older than this command. -o json"
                " prints its answer"
            )
        return value

    def _object(self, members: dict[str, Any]) -> "AnswerObject":
        made = AnswerObject(members)
        made.lacks = self._lacks
        return made

    def _lacks(self, field: str) -> CommandError:
        return CommandError(
            f"{self.url} did not answer with Bursar's JSON, which has a field {field}: it is another server,"
            " or one of another version"
        )

    def _is_another(self, form: str) -> CommandError:
        return CommandError(
            f"{self.url} did not answer with Bursar's {form}: it is another server, or a login stands in"
            " between"
        )

    def _call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        answer = self._request(method, path, body, headers or {})
        while answer.status == HTTPStatus.FORBIDDEN and (token := next(self.others, None)):
            self._headers["Authorization"] = f"Bearer {token}"
            answer = self._request(method, path, body, headers or {})
        if answer.status >= 300:
            raise _kind(answer.status)(_sentence(answer.status, _text(answer), self._hints))
        return answer

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        within_s: float | None = None,
    ) -> HttpResponse:
        within_s = within_s or self.within_s
        try:
            return self._client.call(
                method,
                path,
                {**self._headers, **headers},
                body,
                within_s=within_s,
                repeat=method == "GET",
                most=_MOST_BYTES,
            )
        except http_client.FAILURES as error:
            why = http_client.sentence(error, within_s)
            late = why.removeprefix("no answer")  # " within 10 s"
            raise AwayError(f"no answer from {self.url}{late if late != why else f': {why}'}") from error


def _kind(status: int) -> type[CommandError]:
    if status in (502, 503, 504):
        return AwayError
    return RefusedError if 400 <= status < 500 else CommandError


def _accepted(form: str) -> dict[str, str]:
    """A Table for people, or of CSV the exact one."""
    return {"Accept": f"{_TABLE};exact=true" if form == "csv" else _TABLE}


def _asked(path: str, query: Mapping[str, str | None]) -> str:
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _text(answer: HttpResponse) -> str:
    return answer.body.decode(errors="replace")


def _sentence(status: int, text: str, hints: Mapping[int, str]) -> str:
    """What a problem document, or a Status of the API server, says, and what to do."""
    try:
        problem = json.loads(text)
        said = str(problem.get("detail") or problem["message"])
        field = f"{problem['field']}: " if problem.get("field") else ""
        said += "".join(f"; {each['field']}: {each['detail']}" for each in problem.get("errors", ())[1:])
    except (ValueError, KeyError, TypeError, AttributeError):
        said, field = text.strip()[:500] or "no explanation", ""
    hint = f"\n{hints[status][:1].upper()}{hints[status][1:]}." if status in hints else ""
    return f"the server answered {status}: {field}{said}{hint}"


def _to_socket(path: Path) -> Callable[[Server, float], socket.socket]:
    """Leads to the socket at ``path``, whatever the URL says."""

    def connect(_server: Server, within_s: float) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(within_s)
        try:
            made.connect(str(path))
        except OSError as error:
            made.close()
            raise OSError(error.errno, error.strerror, str(path)) from error
        return made

    return connect
