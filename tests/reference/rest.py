"""The routes of the timekeeper, from its OpenAPI document."""

from collections.abc import Iterator

from tests.reference.blocks import table
from tests.worlds import Json
from timekeeper.api.create_app import ROUTES
from timekeeper.api.http.openapi import document
from timekeeper.api.sheets import FOCUS, REPORT
from timekeeper.api.sheets.sheet import Sheet


def routes() -> str:
    """Each route, the right that it needs, and what it is for."""
    return table(
        ("route", "needs", "what it is for"),
        ((name, _needs(operation), operation["summary"]) for name, operation in _operations()),
    )


def report() -> str:
    """The columns of a report's CSV."""
    return _meanings(REPORT)


def focus() -> str:
    """The columns of FOCUS."""
    return _meanings(FOCUS)


def _meanings(sheet: Sheet) -> str:
    """Columns of one meaning are in one row."""
    names: dict[str, list[str]] = {}
    for column in sheet.columns:
        names.setdefault(column.about, []).append(f"`{column.key}`")
    return table(("column", "what it is"), ((", ".join(those), about) for about, those in names.items()))


def statuses() -> str:
    """Each status of a problem, with its cause."""
    causes = {
        status: each["description"]
        for _, operation in _operations()
        for status, each in operation["responses"].items()
        if int(status) >= 400
    }
    return table(("status", "cause"), sorted(causes.items()))


def _operations() -> Iterator[tuple[str, Json]]:
    for path, methods in document(ROUTES)["paths"].items():
        for method, operation in methods.items():
            yield f"`{method.upper()} {path}`", operation


def _needs(operation: Json) -> str:
    if not operation["security"]:
        return "nothing"
    stated = operation.get("description", "").removeprefix("Needs ").removesuffix(" in API group bursar.dev.")
    return stated.rstrip(",") or "a token"
