"""One account over its period: the burn-down with its forecast."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from itertools import dropwhile
from typing import Any

from timekeeper.core import texts
from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.texts import not_in_group
from timekeeper.dashboard.api_caller import ApiCaller, ApiRefusedError, Json
from timekeeper.dashboard.charts import BurnDown, burn_down
from timekeeper.dashboard.visits import PageContent, Visit, part, segment

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_DAYS_BY_HOUR = 3  # a shorter time is drawn by the hour
_DAYS_BY_DAY = 400
_MAX_STEPS = 10_000

_ROWS = 200


def account_values(visit: Visit, key: str, budget: Json) -> dict[str, Any]:
    """The forecast and the picture of a namespace's or group's account. ``key``: its name, or
    ``_group.NAME``."""
    forecast = part(lambda: visit.api.get("/v1/forecast", namespace=key))
    paces = forecast.answer["forecasts"][0] if forecast.answer else None
    begin_ms = budget["period"]["from"]
    step = step_of(visit.now_ms - begin_ms)
    spent = part(lambda: _spent(visit, key, max(0, begin_ms), step))
    rows = [] if spent.answer is None else spent.answer["rows"]
    picture = picture_of(visit.now_ms, budget, paces, rows, visit.zone) if spent.answer is not None else None
    return {
        "budget": budget,
        "forecast": forecast,
        "paces": paces,
        "burn": picture,
        "spent": spent,
        "step": step,
    }


def step_of(length_ms: int) -> str:
    """The calendar's step in which a time is drawn."""
    if length_ms <= _DAYS_BY_HOUR * DAY_MS:
        return "hour"
    return "day" if length_ms <= _DAYS_BY_DAY * DAY_MS else "month"


def _spent(visit: Visit, key: str, begin_ms: int, step: str) -> Json:
    """What was charged in each step of the period so far."""
    return visit.api.get(
        "/v1/usage",
        namespace=key,
        group="group" if key.startswith(GROUP) else "namespace",
        by=step,
        from_=begin_ms,
        to=max(visit.now_ms, begin_ms + 1),
        limit=_MAX_STEPS,
    )


def picture_of(
    now_ms: int, budget: Json, paces: Json | None, rows: list[Json], zone: tzinfo = UTC
) -> BurnDown | None:
    """The burn-down; without a limit there is no period, and it begins with the first use."""
    begin_ms = budget["period"]["from"]
    if begin_ms <= 0:
        rows = list(dropwhile(lambda each: not each["amount"], rows))
        begin_ms = rows[0]["from"] if rows else now_ms
    return burn_down(budget, paces, list(_steps(rows, begin_ms)), begin_ms, now_ms, zone)


def _steps(rows: list[Json], begin_ms: int) -> Iterator[tuple[int, int]]:
    """The end of each step and its charge. A step without a charge has no row: the line stays level until the
    next one begins."""
    at_ms = begin_ms
    for each in rows:
        if each["from"] > at_ms:
            yield each["from"], 0
        at_ms = each["to"]
        yield at_ms, each["amount"]


_SESSIONS, _DECISIONS, _WORKLOADS = 100, 12, 12


def namespace(visit: Visit, namespace: str) -> PageContent:
    """All about one namespace, each part by the right that it needs."""
    ask = visit.api.get
    budget = ask(f"/v1/budgets/{segment(namespace)}")
    begin_ms = max(0, budget["period"]["from"])
    parts = {
        "sessions": part(lambda: ask("/v1/sessions", namespace=namespace, state="held", limit=_SESSIONS)),
        "ended": part(lambda: ask("/v1/sessions", namespace=namespace, state="ended", limit=_SESSIONS)),
        "decisions": part(lambda: ask("/v1/decisions", namespace=namespace, limit=_DECISIONS)),
        "grants": part(lambda: visit.api.whole("/v1/grants", "grants", subject=namespace)),
        "workloads": part(
            lambda: ask(
                "/v1/usage",
                namespace=namespace,
                group="workload",
                use="true",
                sort="-gpuHours",
                from_=begin_ms,
                to=max(visit.now_ms, begin_ms + 1),
                limit=_WORKLOADS,
            )
        ),
    }
    listed, ended = ((parts[name].answer or {}).get("sessions", ()) for name in ("sessions", "ended"))
    is_unknown = texts.is_unknown(budget) and not listed and not ended
    values = {
        "namespace": namespace,
        "is_unknown": is_unknown,
    }
    return PageContent("namespace.html", {**account_values(visit, namespace, budget), **parts, **values})


FIELDS = ("namespace", "gpuHours", "reason")


@dataclass(frozen=True, slots=True)
class PassingOnForm:
    """What a visitor has filled in. ``key``: names the grant, so that a form sent twice gives it once;
    ``faults``: what is wrong, by field, "" for what no field is about; ``status``: of the answer."""

    key: str
    texts: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    status: int = 200

    @property
    def first(self) -> str:
        """The first field of the form that is wrong; "" without one."""
        return next((each for each in FIELDS if each in self.faults), "")


def empty_form() -> PassingOnForm:
    """A form for a new grant."""
    return PassingOnForm(secrets.token_hex(16))


def filled_form(given: Mapping[str, str]) -> PassingOnForm:
    """The form as it was sent."""
    return PassingOnForm(given.get("key", ""), {name: given.get(name, "").strip() for name in FIELDS})


def pass_on(api: ApiCaller, group: str, form: PassingOnForm) -> PassingOnForm | None:
    """Pass the amount on. The form with what is wrong if the API refuses; None: it is done."""
    try:
        path = f"/v1/groups/{segment(group)}/grants"
        api.post(path, dict(form.texts), Idempotency_Key=form.key)
    except ApiRefusedError as error:
        where = error.field if error.field in FIELDS else ""
        own = {where: error.sentence if where else error.detail}
        others = {field: said for field, said in error.others if field in FIELDS}
        return replace(form, faults=others | own, status=error.status)
    return None


def with_stranger(form: PassingOnForm, group: str, members: Sequence[str]) -> PassingOnForm:
    """The refused form; it also names a namespace that is not of the group, for the API looks for that only
    once the other fields can be read."""
    named = form.texts.get("namespace", "")
    if not form.faults or "namespace" in form.faults or named in members:
        return form
    return replace(form, faults={**form.faults, "namespace": not_in_group(named, group)})


def would(visit: Visit) -> PageContent:
    """The newest week first. Pods to which nothing would have happened are counted, and have no row."""
    answer = visit.api.whole("/v1/would", "rows", namespace=visit.scope)
    rows = [each for each in answer["rows"] if each["verdict"] != "admitted"]
    rows, _, newer, older = visit.page_of(rows, _ROWS)
    judged = sum(each["pods"] for each in answer["rows"] if each["verdict"] != "evicted")
    values = {"rows": rows, "judged": judged, "enforced": answer["enforced"], "notes": answer["notes"]}
    return PageContent("would.html", {**values, "newer": newer, "older": older})
