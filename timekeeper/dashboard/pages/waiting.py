"""The pods that wait, and why: behind Bursar's gate, and those that no node takes."""

from timekeeper.dashboard.visits import PageContent, Visit, part

_HELD, _RECORDS = 100, 100


def waiting(visit: Visit) -> PageContent:
    """Held pods in the order of their release, and the pods of which the last record says that they wait."""
    ask = visit.api.get
    held = part(lambda: ask("/v1/held", namespace=visit.scope, limit=_HELD, after=visit.text("after")))
    records = [
        part(lambda kind=kind: ask("/v1/decisions", namespace=visit.scope, kind=kind, limit=_RECORDS))  # type: ignore[misc]
        for kind in ("waiting", "capped")
    ]
    return PageContent("waiting.html", {"held": held, "records": records})
