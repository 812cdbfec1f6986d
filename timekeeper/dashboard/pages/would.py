"""What would have happened to pods of metered namespaces."""

from timekeeper.dashboard.visits import PageContent, Visit

_ROWS = 200


def would(visit: Visit) -> PageContent:
    """The newest week first. Pods to which nothing would have happened are counted, and have no row."""
    answer = visit.api.get("/v1/would", namespace=visit.scope, limit=_ROWS, after=visit.text("after"))
    older = visit.link(after=answer["next"]) if answer["next"] else None
    rows = [each for each in answer["rows"] if each["verdict"] != "admitted"]
    judged = sum(each["pods"] for each in answer["rows"] if each["verdict"] != "evicted")
    values = {"rows": rows, "judged": judged, "enforced": answer["enforced"], "notes": answer["notes"]}
    return PageContent("would.html", {**values, "older": older})
