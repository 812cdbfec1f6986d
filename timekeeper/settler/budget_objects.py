"""Writes a GPUBudget object for each namespace with a budget, so that kubectl alone shows it.

Nothing reads the objects back for a decision. What was written is compared with what is there every ten
minutes, so that a deleted or forged object is put right. An object whose figures are ten minutes old is
written again once nothing else is due.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event

from timekeeper import metrics
from timekeeper.accounts.balance import NO_BUDGET, BudgetStatus, Statement, read_status, status_of
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.object_names import timestamp
from timekeeper.edge.list_watch import pages
from timekeeper.edge.reflector import ExpiredError, UnreachableError
from timekeeper.log import log
from timekeeper.runtime.api_server import ANSWER_S, APPLY, Answered, Api, Reply

GROUP_VERSION = "bursar.dev/v1alpha1"
KIND, PLURAL, NAME = "GPUBudget", "gpubudgets", "budget"
_PATH = f"/apis/{GROUP_VERSION}"
_QUERY = "fieldManager=bursar-timekeeper&force=true"

AT_ONCE = 8  # new standings, grants and objects that are written side by side
URGENT_S = 0.05  # between two rounds of these
ORDINARY_S = 0.5  # between writes of figures alone
_TRIES = 3  # of a write, while the API server says that it is busy, and for how long
COMPARE_S = 600.0
AGED_MS = 600_000  # figures so old are written again
ABSENT_S = 60.0  # until the next look for the CustomResourceDefinition


class BudgetObjects:
    """Used by one thread. ``statements``: the accounts now, by subject, None before the first decision;
    ``exists``: whether a namespace does; ``seconds``: a monotonic clock; ``now_ms``: the time that an object
    says."""

    def __init__(
        self,
        api: Api,
        statements: Callable[[], Mapping[str, Statement] | None],
        exists: Callable[[str], bool],
        seconds: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._api, self._statements, self._exists, self._seconds = api, statements, exists, seconds
        self._now_ms = now_ms
        self._written: dict[str, BudgetStatus] = {}
        self._as_of: dict[str, str] = {}  # of what is written; the oldest first
        self._read_s: float | None = None  # when the objects were listed; None: they must be listed
        self._seen: Mapping[str, Statement] = {}  # the accounts of the last step
        # what is to be written, in order
        self._standings: dict[str, BudgetStatus] = {}
        self._urgent: dict[str, BudgetStatus] = {}
        self._ordinary: dict[str, BudgetStatus] = {}
        self._without_namespace: dict[str, BudgetStatus] = {}
        self._problem = ""
        self._calls = ThreadPoolExecutor(AT_ONCE, "budget-object")

    def keep(self, stop: Event) -> None:
        """Write what changes until ``stop``."""
        pause_s = 1.0
        with self._calls:
            while not stop.wait(pause_s):
                pause_s = self.step()

    def step(self) -> float:
        """Write the objects that are due first, if any are: new standings before all else; figures alone one
        by one. How long to wait before the next step, in seconds."""
        statements = self._statements()
        if statements is None:
            return 1.0
        if self._read_s is None or self._seconds() - self._read_s > COMPARE_S:
            if not self._read():
                return ABSENT_S
            self._seen = {}
        self._sort(statements)
        for queue, most, pause_s in (
            (self._standings, AT_ONCE, URGENT_S),
            (self._urgent, AT_ONCE, URGENT_S),
            (self._ordinary, 1, ORDINARY_S),
        ):
            if queue:
                due = {name: queue.pop(name) for name in list(islice(queue, most))}
                return pause_s if self._write(due) else ABSENT_S
        name = next(iter(self._as_of), "")
        if not name or self._as_of[name] > timestamp(self._now_ms() - AGED_MS):
            return 1.0
        statement = statements.get(name)
        status = NO_BUDGET if statement is None else status_of(statement)
        return ORDINARY_S if self._write({name: status}) else ABSENT_S

    def _read(self) -> bool:
        """What is there now. False where the kind does not exist, or the API server gives no list."""
        try:
            items = [each for page, _ in pages(self._api, f"{_PATH}/{PLURAL}") for each in page]
        except (UnreachableError, ExpiredError) as error:
            self._tell(f"the list failed: {error}")
            return False
        objects = ((mapping(item.get("metadata")), mapping(item.get("status"))) for item in items)
        found = {str(of.get("namespace")): status for of, status in objects if of.get("name") == NAME}
        self._written = {name: read_status(status) for name, status in found.items()}
        as_of = {name: _as_of(status) for name, status in found.items()}
        self._as_of = dict(sorted(as_of.items(), key=lambda name_and_time: name_and_time[1]))
        self._read_s = self._seconds()
        self._tell("")
        return True

    def _sort(self, statements: Mapping[str, Statement]) -> None:
        """Find what is due among the accounts that are new since the last step."""
        for name in [each for each in self._without_namespace if self._exists(each)]:
            self._urgent[name] = self._without_namespace.pop(name)
        if statements is self._seen:
            return
        for name, statement in statements.items():
            if statement is not self._seen.get(name) and not name.startswith("_"):
                self._due(name, status_of(statement))
        for name in self._written.keys() - statements.keys():
            self._due(name, NO_BUDGET)
        self._seen = statements

    def _due(self, name: str, status: BudgetStatus) -> None:
        """Where it is in the queue already it keeps its place: what changes often delays no other."""
        due = self._queue_of(name, status)
        for queue in (self._standings, self._urgent, self._ordinary, self._without_namespace):
            if queue is not due:
                queue.pop(name, None)
        if due is not None:
            due[name] = status

    def _queue_of(self, name: str, status: BudgetStatus) -> dict[str, BudgetStatus] | None:
        """The queue in which it must be; None: what is there says enough."""
        written = self._written.get(name)
        if written is None:
            if status.standing == "UNLIMITED":
                return None
            return self._urgent if self._exists(name) else self._without_namespace
        if written.standing != status.standing:
            return self._standings
        if written.urgent != status.urgent:
            return self._urgent
        return self._ordinary if written.significant != status.significant else None

    def _write(self, due: Mapping[str, BudgetStatus]) -> bool:
        """Write these side by side. False if the API server does not take one: the objects are read again
        then."""
        as_of = timestamp(self._now_ms())
        replies = self._calls.map(lambda name: self._call(name, due[name], as_of), due)
        written = zip(due, due.values(), replies, strict=True)
        return False not in [self._is_taken(name, status, reply, as_of) for name, status, reply in written]

    def _call(self, name: str, status: BudgetStatus, as_of: str) -> Reply:
        path = f"{_PATH}/namespaces/{name}/{PLURAL}/{NAME}?{_QUERY}"
        body = {
            "apiVersion": GROUP_VERSION,
            "kind": KIND,
            "metadata": {"name": NAME, "namespace": name},
            "status": {**status.wire(), "asOf": as_of},
        }
        return self._api.call("PATCH", path, body, content_type=APPLY, timeout_s=ANSWER_S, tries=_TRIES)

    def _is_taken(self, name: str, status: BudgetStatus, reply: Reply, as_of: str) -> bool:
        if isinstance(reply, Answered) and reply.status < 300:
            self._written[name] = status
            self._as_of.pop(name, None)
            self._as_of[name] = as_of
            metrics.BUDGET_OBJECTS.labels("written").inc()
            return True
        metrics.BUDGET_OBJECTS.labels("failed").inc()
        if isinstance(reply, Answered) and not self._exists(name):
            for known in (self._written, self._as_of):  # the namespace is gone, and its object with it
                known.pop(name, None)
            return True
        self._tell(f"{name}: {reply.message}")
        self._read_s = None
        return False

    def _tell(self, problem: str) -> None:
        """Log a problem once, and its end."""
        if problem and not self._problem:
            log("budget-objects-failed", level="warning", problem=problem)
        if self._problem and not problem:
            log("budget-objects-written")
        self._problem = problem


def _as_of(status: Json) -> str:
    """Of when the figures of an object are; "" where it says no moment that could be."""
    as_of = status.get("asOf")
    return as_of if isinstance(as_of, str) else ""
