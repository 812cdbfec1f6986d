"""The flows of docs/architecture.md, and which functions of ours are really called, in order."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
ROLES = ("webhook", "timekeeper", "scheduler_ext", "sidecar")
# The server's loop calls these: when it starts, or with a client's bytes.
OF_THE_LOOP = {
    "timekeeper.runtime.http.framing.RequestReader.next",
    "webhook.server.review_endpoint.review_routes",
    "scheduler_ext.serving.routes.verb_calls",
    "timekeeper.serving.gunicorn_app.heartbeat_route",
}


def steps(title: str) -> list[str]:
    """The functions of a flow that a handler passes, in the page's order."""
    (flow,) = re.findall(rf"^## Flow: {title}\n.*?(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    return [step for step in re.findall(r"^\d+\. `([\w.]+)`", flow, re.MULTILINE) if step not in OF_THE_LOOP]


@contextmanager
def traced() -> Iterator[list[str]]:
    """Every function of ours that is called meanwhile, by this thread and those that start meanwhile."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.partition(".")[0] in ROLES:
            calls.append(f"{module}.{frame.f_code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def missing(wanted: list[str], calls: list[str]) -> list[str]:
    """The first steps that do not come after the step before them; empty where all are called in order."""
    at = -1
    for number, step in enumerate(wanted):
        try:
            at = calls.index(step, at + 1)
        except ValueError:
            return wanted[number:]
    return []
