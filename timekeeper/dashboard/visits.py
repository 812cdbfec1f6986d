"""One request of a visitor: the API with its token, and what its address says."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import tzinfo
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from werkzeug.test import TestResponse

from timekeeper.dashboard.api_caller import ApiCaller, ApiRefusedError, Json

FORBIDDEN = 403
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Visit:
    """``home``: the namespace of the visitor's account, "" where the token names none; ``asked``: the
    address' parameters, each once; ``zone``: the budgets'."""

    api: ApiCaller
    home: str
    path: str
    asked: Mapping[str, str]
    now_ms: int
    _: KW_ONLY
    zone: tzinfo

    @property
    def namespace(self) -> str:
        """The namespace that the visitor chose; "": all."""
        return self.asked.get("namespace", "")

    @property
    def scope(self) -> str | None:
        """That namespace as the API's parameter."""
        return self.namespace or None

    def text(self, name: str, otherwise: str | None = None) -> str | None:
        """A parameter that is not empty."""
        return self.asked.get(name) or otherwise

    def page_of(self, rows: list[Row], each: int) -> tuple[list[Row], int, str | None, str | None]:
        """The rows of the page that the visitor chose, the number of the first, and links to the page before
        and the next one. A number beyond the last page is the last."""
        text = self.asked.get("page", "")
        asked = int(text) - 1 if text.isascii() and text.isdigit() and len(text) < 7 else 0
        at = max(0, min(asked, (len(rows) - 1) // each))
        before = self.link(page=at) if at else None
        after = self.link(page=at + 2) if each * (at + 1) < len(rows) else None
        return rows[each * at : each * (at + 1)], each * at + 1, before, after

    def link(self, **changed: str | int | None) -> str:
        """The address of this page with other parameters; None leaves one out."""
        return link(self.path, **{**self.asked, **changed})


@dataclass(frozen=True, slots=True)
class PageContent:
    """A template and its values."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Download:
    """An answer of the API as a file for the visitor, which begins with ``start``."""

    name: str
    answer: TestResponse
    start: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page that needs a right of its own: its answer, or why there is none."""

    answer: Json | None
    refused: str = ""


def part(ask: Callable[[], Json]) -> Part:
    """The part's answer. A missing right leaves the other parts of the page as they are. Raises
    ApiRefusedError for any other refusal."""
    try:
        return Part(ask())
    except ApiRefusedError as error:
        if error.status != FORBIDDEN:
            raise
        return Part(None, error.detail)


def link(path: str, **query: str | int | None) -> str:
    """An address on this server."""
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
