"""What was decided, with filters; and the story of one pod, or of a controller's pods."""

from timekeeper.core.decisions import KINDS
from timekeeper.dashboard.visits import PageContent, Visit, segment

_ROWS = 100
FILTERS = ("namespace", "kind", "reason", "pod", "owner", "from", "to")


def decisions(visit: Visit) -> PageContent:
    """The newest decisions first."""
    asked = {name: visit.text(name) for name in FILTERS}
    query = {("from_" if name == "from" else name): value for name, value in asked.items()}
    answer = visit.api.get("/v1/decisions", limit=_ROWS, after=visit.text("after"), **query)
    older = visit.link(after=answer["next"]) if answer["next"] else None
    newest = visit.link(after=None) if visit.text("after") else None
    values = {"rows": answer["decisions"], "older": older, "newest": newest, "kinds": KINDS}
    return PageContent("decisions.html", {**values, "filters": asked})


def pod(visit: Visit, namespace: str, pod: str) -> PageContent:
    """The life of a pod."""
    uid = visit.text("uid")
    path = f"/v1/explain/{segment(namespace)}/{segment(pod)}"
    return PageContent("story.html", {"story": visit.api.get(path, uid=uid), "uid": uid})


def owner(visit: Visit, namespace: str, kind: str, name: str) -> PageContent:
    """The life of the pods of a controller."""
    path = f"/v1/explain/{segment(namespace)}/{segment(kind)}/{segment(name)}"
    return PageContent("story.html", {"story": visit.api.get(path), "uid": None})
