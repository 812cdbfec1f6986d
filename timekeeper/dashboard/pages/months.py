"""Closed months, and whether one is as it was when it was closed."""

from timekeeper.dashboard.visits import PageContent, Visit, segment


def months(visit: Visit) -> PageContent:
    """The closed months, the newest first."""
    return PageContent("months.html", {"months": visit.api.get("/v1/months")["months"], "month": None})


def month(visit: Visit, month: str) -> PageContent:
    """One month with its hashes now and then, and the corrections of its charges."""
    answer = visit.api.get(f"/v1/months/{segment(month)}")
    return PageContent("months.html", {"months": (), "month": answer})
