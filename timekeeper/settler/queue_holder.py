"""Holds Kueue's LocalQueues of namespaces that have spent their budget, and lets them go, in threads of its
own. The object says since when it is held, the ledger at which rate: nothing else is remembered for it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from zoneinfo import ZoneInfo

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import DEFAULTS, GROUP, History, is_group
from timekeeper.accounts.held.queues import (
    MANAGER,
    LocalQueue,
    SinceHold,
    holding,
    queue_words,
    read_queue,
    terms,
)
from timekeeper.accounts.statements import Statements
from timekeeper.core.decisions import HELD, MESSAGE, QUEUE, RELEASED, Decision, Record
from timekeeper.core.findings import RoleFinding, some_of
from timekeeper.core.json_values import mapping, sequence
from timekeeper.edge.events import EventRecorder
from timekeeper.edge.list_watch import inform, is_before
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchFailed
from timekeeper.edge.source_health import SourceHealth
from timekeeper.log import log, log_exception
from timekeeper.runtime.api_server import ANSWER_S, APPLY, Answered, Api
from timekeeper.settler.settler import Settler
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import decisions, ledger
from timekeeper.store.engine.engine import Store

_GROUP = "/apis/kueue.x-k8s.io"
_VERSIONS = ("v1", "v1beta2", "v1beta1")  # the first that is served
_LOOK_S = 0.5
_AGAIN_S = 15.0  # until the next look for Kueue, or after a watch that is refused
_REFUSED_S = 5.0  # until a write that failed is made again
_UNDONE_S = 60.0  # until a hold that somebody took back is set again
_REMEMBERED = 10_000
MOST_WRITES = 20  # in a second


@dataclass(frozen=True, slots=True)
class _Look:
    """At one moment. ``faults``: what is not as its budget wants it, and why; ``holding``: by UID of a queue
    the account that holds it, or would."""

    view: TickView
    statements: Statements
    now_ms: int
    faults: dict[str, str] = field(default_factory=dict)
    holding: dict[str, Statement] = field(default_factory=dict)

    def asks(self, namespace: str) -> bool:
        return self.view.history.budget(namespace, self.now_ms).budget.kueue == "hold"


class QueueHolder:
    """``follow`` is used by one thread, ``keep`` by another. ``seconds``: a monotonic clock."""

    def __init__(
        self,
        api: Api,
        store: Store,
        settler: Settler,
        events: EventRecorder[str],
        record: Record,
        now_ms: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._store, self._settler, self._events = api, store, settler, events
        self._record, self._now_ms, self._seconds = record, now_ms, seconds
        self._version, self._absent = "", "Kueue is not looked for yet"  # "": its queues are followed
        self.queues: dict[str, LocalQueue] = {}  # by UID
        self._writes: deque[float] = deque(maxlen=MOST_WRITES)  # when the last ones were made
        self._held: dict[str, float] = {}  # UID -> when this process held it
        self._refused: dict[str, tuple[float, str]] = {}  # UID -> when a write failed, and why
        self._told: dict[tuple[str, str], str] = {}  # namespace and name -> the sentence of its last decision
        self._read: set[str] = set()  # namespaces whose earlier decisions are read
        # the history of entries; whether any entry asks, or asked, for holds; the namespaces that ask now
        self._asked: tuple[History | None, bool, frozenset[str]] = None, False, frozenset()
        self._since_holds: dict[tuple[object, ...], tuple[int, int]] = {}
        self.findings: tuple[RoleFinding, ...] = ()

    def follow(self, stop: Event) -> None:
        """Follow the queues until ``stop``, while an entry asks or has ever asked for holds."""
        while not stop.wait(_LOOK_S):
            if self._look() is not None:
                self._version, self._absent = self._served()
                if not self._absent:
                    self._watch(stop)
                stop.wait(_AGAIN_S)

    def _look(self) -> _Look | None:
        """None: nothing is decided yet, or no queue was ever to be held."""
        view = self._settler.view
        if view.statements is None:
            return None
        look = _Look(view, view.statements, self._now_ms())
        if self._asked[0] is not (history := view.history):
            names = frozenset(name or DEFAULTS for name in ("", *history.namespaces()) if look.asks(name))
            self._asked = history, history.ever_held_queues(), names
        return look if self._asked[1] else None

    def _served(self) -> tuple[str, str]:
        """The version that is served, and why there is none."""
        reply = self._api.call("GET", _GROUP, timeout_s=ANSWER_S)
        if not isinstance(reply, Answered) or reply.status >= 300:
            return "", f"the API server has no Kueue: {reply.message}"
        found = {mapping(version).get("version") for version in sequence(reply.body.get("versions"))}
        version = next((version for version in _VERSIONS if version in found), "")
        return version, "" if version else f"Kueue serves none of {', '.join(_VERSIONS)}"

    def _watch(self, stop: Event) -> None:
        """Until ``stop``, or until the watch is refused: by a right, or because the kind is gone."""
        refusals: list[str] = []

        def wait(pause_ms: int) -> bool:
            return stop.wait(pause_ms / 1000) or bool(refusals)

        health, self._absent = SourceHealth("localqueues", log, self._now_ms), "its queues are not listed yet"
        path = f"{_GROUP}/{self._version}/localqueues"
        for event in inform(self._api, path, read_queue, wait, health):
            match event:
                case WatchFailed(sentence):
                    self._absent = f"its queues are not followed: {sentence}"
                    refusals += [sentence] if sentence.startswith(("403", "404")) else []
                    continue
                case ObjectsListed(items):
                    self.queues = {queue.uid: queue for queue in items}
                case ObjectChanged(queue, True):
                    self.queues.pop(queue.uid, None)
                case ObjectChanged(queue, False):
                    self._see(queue)
            self._absent = ""
            if stop.is_set():
                return

    def _see(self, queue: LocalQueue) -> None:
        known = self.queues.get(queue.uid)
        if known is None or not is_before(queue.version, known.version):
            self.queues[queue.uid] = queue

    def keep(self, stop: Event) -> None:
        """Hold and let go until ``stop``."""
        while not stop.wait(_LOOK_S):
            try:
                self.step()
            except Exception as error:  # the ledger is away, or a fault of ours: the next look decides again
                log_exception("queues-not-held", error)

    def step(self) -> None:
        """One look: write what differs, new holds first, as many as a second allows."""
        look = self._look()
        if look is None:
            return
        self._held = {uid: at_s for uid, at_s in self._held.items() if uid in self.queues}
        self._refused = {uid: failed for uid, failed in self._refused.items() if uid in self.queues}
        queues = sorted(self.queues.values(), key=lambda queue: (queue.namespace, queue.name))
        due = [queue for queue in queues if self._is_due(look, queue)]
        for queue in sorted(due, key=lambda queue: queue.held_ms is not None):
            self._write(look, queue)
        faults = look.faults
        if self._absent:
            faults = dict.fromkeys(self._asked[2], self._absent)
        else:
            self._tell(look)
        said: dict[str, int | str] = {"number": len(faults), "queues": some_of(faults)}
        said["why"] = "; ".join(dict.fromkeys(faults.values()))
        self.findings = (RoleFinding("queues-not-held", said),) if faults else ()

    def _is_due(self, look: _Look, queue: LocalQueue) -> bool:
        """Whether it is to be held now, or let go."""
        namespace, account, history = queue.namespace, None, look.view.history
        if look.asks(namespace):
            statement = look.statements.namespaces.get(namespace, look.statements.default)
            if (statement.valid_until_ms or look.now_ms + 1) <= look.now_ms:
                return False  # the settler has not decided since
            lookahead_ms = history.settings(look.now_ms).lookahead_ms
            since = partial(self._since, look, queue)
            account = holding(statement, queue.held_ms, since, lookahead_ms, look.now_ms)
        if account is not None:
            look.holding[queue.uid] = account
        if account is None or look.view.cluster.metered.meters(namespace):
            self._held.pop(queue.uid, None)
            return queue.held_ms is not None
        name, owners = f"{namespace}/{queue.name}", some_of(queue.owners) or "another"
        is_undone = self._seconds() - self._held.get(queue.uid, -_UNDONE_S) < _UNDONE_S
        if queue.policy != "None" and queue.held_ms is None:
            look.faults[name] = f"its stopPolicy {queue.policy} is of {owners}, and stands"
        elif queue.policy == "None" and is_undone:
            look.faults[name] = f"{owners} took the hold back, and it is set once a minute"
        return queue.policy == "None" and not is_undone

    def _since(self, look: _Look, queue: LocalQueue, account: Statement) -> SinceHold:
        held_ms, history, key = queue.held_ms or 0, look.view.history, account.in_force.key
        subject, span = key if is_group(key) else queue.namespace, account.account.span
        known = (subject, held_ms, span, account.balance.granted)
        if known not in self._since_holds:
            members = look.statements.namespaces.items()
            names = {name for name, own in members if GROUP + own.in_force.budget.group == subject}
            with self._store.reading() as connection:
                rate = ledger.rate_at(connection, names or {subject}, held_ms)
                granted = ledger.granted_since(connection, subject, span, held_ms)
            if len(self._since_holds) >= _REMEMBERED:
                self._since_holds.clear()
            self._since_holds[known] = rate, granted
        then, now = (terms(history, queue.namespace, at_ms) for at_ms in (held_ms, look.now_ms))
        return SinceHold(*self._since_holds[known], is_other=then != now)

    def _write(self, look: _Look, queue: LocalQueue) -> None:
        at_s, is_hold = self._seconds(), queue.held_ms is None
        failed_s, why = self._refused.get(queue.uid, (-_REFUSED_S, ""))
        if why:
            look.faults[f"{queue.namespace}/{queue.name}"] = why
        is_full = len(self._writes) == MOST_WRITES and at_s - self._writes[0] < 1
        if is_full or at_s - failed_s < _REFUSED_S:
            return
        self._writes.append(at_s)
        path = f"{_GROUP}/{self._version}/namespaces/{queue.namespace}/localqueues/{queue.name}"
        body = queue.named(self._version) | ({"spec": {"stopPolicy": "Hold"}} if is_hold else {})
        if is_hold:  # of that version alone: a person may have set another value since
            body["metadata"]["resourceVersion"] = queue.version
        path = f"{path}?fieldManager={MANAGER}{'&force=true' if is_hold else ''}"
        reply = self._api.call("PATCH", path, body, content_type=APPLY, timeout_s=ANSWER_S)
        if isinstance(reply, Answered) and reply.status < 300:
            self._refused.pop(queue.uid, None)
            self._see(read_queue(reply.body))
            if is_hold:
                self._held[queue.uid] = at_s
        elif not isinstance(reply, Answered) or reply.status != 409:
            self._refused[queue.uid] = at_s, reply.message

    def _tell(self, look: _Look) -> None:
        """Record what has changed since the last decision on each queue, and post an Event on it."""
        if new := self._asked[2] - self._read:
            with self._store.reading() as connection:
                self._told |= decisions.held_queues(connection, new)
            self._read |= new
        there = {(queue.namespace, queue.name): queue for queue in [*self.queues.values()]}
        for namespace, name in sorted(self._told.keys() | there.keys()):
            queue, said = there.get((namespace, name)), self._told.get((namespace, name), "")
            account = None if queue is None else look.holding.get(queue.uid)
            what = ""
            if queue is not None and queue.held_ms is not None:
                what = "is held"
            elif account is not None and look.view.cluster.metered.meters(namespace):
                what = "would be held"
            if (bool(what) == bool(said) and what in said) or (what and account is None):
                continue
            zone = ZoneInfo(look.view.history.settings(look.now_ms).time_zone)
            sentence = f"Kueue's queue {name} {queue_words(namespace, account, zone, what)}."
            self._told[namespace, name] = sentence if what else ""
            reason = {"is held": "QueueHeld", "would be held": "QueueWouldBeHeld", "": "QueueLetGo"}[what]
            if queue is not None and "is held" in what + said:
                about = queue.named(self._version)
                self._events.post_on({**about, **about.pop("metadata")}, reason, sentence)
            self._record(
                Decision(
                    at_ms=look.now_ms,
                    kind=HELD if what else RELEASED,
                    reason=reason,
                    namespace=namespace,
                    owner=f"{QUEUE}/{name}",
                    figures={MESSAGE: sentence},
                )
            )
