"""A client of the REST APIs. Every failure is a sentence."""

import json
import re
import socket
import ssl
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

import urllib3
from urllib3.connection import HTTPConnection

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

_CONNECT_S, _READ_S = 10.0, 120.0
_HINTS = {
    401: "the token has expired, or is not for the audience bursar",
    403: "the account may not do this in this namespace: see docs/access.md",
    404: "check the name; a server older than this command may lack the route",
    503: "the server or its database is busy or away, or does not lead; try again",
}
_SCHEMES = ("https://", "http://")
_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
_OBJECT = re.compile(r"^\w*Connection(Pool)?\(.*?\): ")
# columns of every bill, and of every one in FOCUS
BILL = frozenset(
    ("from", "to", "amount", "gpuHours", "price", "cost", "currency", "requested", "used", "measured")
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
    Raises CommandError where it cannot be called so."""

    def __init__(
        self, url: str, token: str = "", ca: str = "", host: str = "", path: Path | None = None
    ) -> None:
        if not url.lower().startswith(_SCHEMES):
            raise CommandError(f"{url} is no address of a server: it begins with {' or '.join(_SCHEMES)}")
        self.url = url.rstrip("/")
        self.say: Say = silent
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._hints = _HINTS if path is None else _AGGREGATED_HINTS
        self._pool: urllib3.PoolManager
        if path is not None:
            self._pool = _socket_pool(path)
            return
        if not ca:
            self._pool = urllib3.PoolManager(retries=False)
            return
        try:
            ssl.create_default_context(cadata=ca)
        except (ssl.SSLError, ValueError) as error:
            raise CommandError("the CA contains no readable certificate; --ca-file names another") from error
        self._pool = urllib3.PoolManager(
            ca_cert_data=ca, retries=False, assert_hostname=host or None, server_hostname=host or None
        )

    def get(self, path: str, **query: str | None) -> Any:
        """The JSON of an answer. ``from_`` stands for the parameter ``from``. Raises CommandError."""
        return self._json(self._call("GET", _asked(path, query)))

    def sheet(
        self, form: str, path: str, *lists: str, most: int | None = None, **query: str | None
    ) -> PrintedSheet:
        """What a command prints in this form: the server's Table, or for JSON and YAML the answer, with these
        lists of it as its items. ``most``: rows in all, None: those of every page. Raises CommandError."""
        if most is not None:
            query["limit"] = str(most)
        if form not in OBJECTS:
            return joined(self._tables(path, query, most))
        answer = self.get(path, **query)
        return PrintedSheet(answer=listing(answer, *lists) if lists else answer)

    def list(self, form: str, path: str, list_of: str, **query: str | None) -> PrintedSheet:
        """The same of a route in pages, of which JSON and YAML have the members alone."""
        if form not in OBJECTS:
            return joined(self._tables(path, query))
        return PrintedSheet(answer=list(self.pages(path, list_of, **query)))

    def _tables(
        self, path: str, query: Mapping[str, str | None], most: int | None = None
    ) -> Iterator[PrintedSheet]:
        """The pages of the Table: all, or the first that have ``most`` rows together."""
        after: str | None = None
        read = 0
        while after != "" and (most is None or read < most):
            page = self._json(
                self._call("GET", _asked(path, {**query, "after": after}), headers=_TABLE), True
            )
            read += len(page["rows"])
            self.say(f"{read} rows read")
            yield sheet_of(page)
            after = page["metadata"]["continue"]

    def csv(self, path: str, columns: Collection[str], **query: str | None) -> str:
        """The bill in CSV. Raises CommandError, also where one of these columns is missing."""
        answer = self._call("GET", _asked(path, query))
        text = _text(answer)
        is_csv = answer.headers.get("Content-Type", "").startswith("text/csv")
        if not is_csv or not set(columns) <= set(text.partition("\n")[0].strip().split(",")):
            raise self._is_another("CSV")
        return text

    def pages(self, path: str, list_of: str, **query: str | None) -> Iterator[Any]:
        """The members of all pages."""
        after: str | None = None
        read = 0
        while True:
            page = self.get(path, after=after, **query)
            if not isinstance(page[list_of], list):
                raise self._is_another("JSON")
            read += len(page[list_of])
            self.say(f"{read} {list_of} read")
            yield from page[list_of]
            after = page.get("next")
            if after is None:
                return

    def post(self, form: str, path: str, body: object, *lists: str, **headers: str) -> PrintedSheet:
        """What a command prints of the answer to this body, as `sheet`. Raises CommandError."""
        is_table = form not in OBJECTS
        sent = {"Content-Type": "application/json", **headers, **(_TABLE if is_table else {})}
        answer = self._json(self._call("POST", path, json.dumps(body), sent), is_table)
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
        return answer.status, _text(answer), answer.headers.get("Date", "")

    def probe(self) -> None:
        """Ask whether the server lives, which it says at once; a report may take long. Raises AwayError."""
        self._request("GET", "/livez", None, {}, _CONNECT_S)

    def forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, urllib3.HTTPHeaderDict, bytes]:
        """Status, headers and body, whatever they are. Raises CommandError without an answer."""
        answer = self._request(method, path, body, headers)
        return answer.status, answer.headers, answer.data

    def _json(self, answer: urllib3.BaseHTTPResponse, is_table: bool = False) -> Any:
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
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> urllib3.BaseHTTPResponse:
        answer = self._request(method, path, body, headers or {})
        if answer.status >= 300:
            raise _kind(answer.status)(_sentence(answer.status, _text(answer), self._hints))
        return answer

    def _request(
        self,
        method: str,
        path: str,
        body: str | bytes | None,
        headers: Mapping[str, str],
        read_s: float = _READ_S,
    ) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool.request(
                method,
                self.url + path,
                body=body,
                headers={**self._headers, **headers},
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise AwayError(f"no answer from {self.url}: {_why(error, read_s)}") from error


def _kind(status: int) -> type[CommandError]:
    if status in (502, 503, 504):
        return AwayError
    return RefusedError if 400 <= status < 500 else CommandError


def _why(error: urllib3.exceptions.HTTPError, read_s: float = _READ_S) -> str:
    """What is wrong, without urllib3's objects."""
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        return f"none within {read_s:g} s"
    if isinstance(error, urllib3.exceptions.ProtocolError) and error.args:
        what, *cause = error.args
        return ": ".join([str(what).removesuffix("."), *map(str, cause[:1])])
    return _OBJECT.sub("", str(error))


def _asked(path: str, query: Mapping[str, str | None]) -> str:
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _text(answer: urllib3.BaseHTTPResponse) -> str:
    return answer.data.decode(errors="replace")


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


def _socket_pool(path: Path) -> urllib3.PoolManager:
    """A pool whose connections all lead to the socket at ``path``, whatever their URLs say."""

    class Connection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(str(path))
            except OSError as error:
                made.close()
                raise urllib3.exceptions.NewConnectionError(self, f"{path}: {error}") from error
            return made

    class Pool(urllib3.HTTPConnectionPool):
        ConnectionCls: Any = Connection

    manager = urllib3.PoolManager(retries=False)
    manager.pool_classes_by_scheme = {"http": Pool}
    return manager
