"""One namespace: its budget over time, what it is charged for, its pods and its latest decisions."""

from timekeeper.dashboard.pages.accounts import account_values
from timekeeper.dashboard.visits import PageContent, Visit, part, segment

_SESSIONS, _DECISIONS, _OWNERS = 100, 12, 12


def namespace(visit: Visit, namespace: str) -> PageContent:
    """All about one namespace, each part by the right that it needs."""
    ask = visit.api.get
    budget = ask(f"/v1/budgets/{segment(namespace)}")
    begin_ms = max(0, budget["period"]["from"])
    parts = {
        "sessions": part(lambda: ask("/v1/sessions", namespace=namespace, state="open", limit=_SESSIONS)),
        "decisions": part(lambda: ask("/v1/decisions", namespace=namespace, limit=_DECISIONS)),
        "grants": part(lambda: ask("/v1/grants", subject=namespace, limit=1_000)),
        "owners": part(
            lambda: ask(
                "/v1/usage",
                namespace=namespace,
                group="owner",
                use="true",
                sort="-gpuHours",
                from_=begin_ms,
                to=max(visit.now_ms, begin_ms + 1),
                limit=_OWNERS,
            )
        ),
    }
    return PageContent(
        "namespace.html", {**account_values(visit, namespace, budget), **parts, "namespace": namespace}
    )
