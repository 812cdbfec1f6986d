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


def parameters() -> str:
    """Each parameter outside paths with its routes, a GET by its path; each meaning of it has a row."""
    takes: dict[tuple[str, str], list[str]] = {}
    for name, operation in _operations():
        for each in (given for given in operation["parameters"] if given["in"] != "path"):
            takes.setdefault((f"`{each['name']}`", _meaning(each)), []).append(name.replace("GET ", ""))
    rows = sorted((name, meaning, ", ".join(found)) for (name, meaning), found in takes.items())
    return table(("parameter", "meaning", "of"), rows)


def tables() -> str:
    """The columns of each route's Table, those of wide ones alone in italics."""
    return table(("route", "columns of its Table"), _tables())


def _tables() -> Iterator[tuple[str, str]]:
    for route in ROUTES:
        sheets = {"": route.sheet, **{f" with `table={name}`": each for name, each in route.sheets.items()}}
        for more, sheet in sheets.items():
            if sheet is not None:
                names = (f"*{each.title}*" if each.priority else each.title for each in sheet.columns)
                yield f"`{route.method} {route.path}`{more}", ", ".join(filter(None, names))


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


def _meaning(parameter: Json) -> str:
    choices = parameter["schema"].get("enum", ())
    listed = f": {', '.join(f'`{each}`' for each in choices)}" if choices else ""
    place = "" if parameter["in"] == "query" else f" (in the {parameter['in']})"
    return f"{parameter['description']}{listed}{place}"
