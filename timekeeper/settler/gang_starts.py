"""What the releaser does for gangs: it has cards reserved for all members, one gang after another, and says
which gates are to be removed together.

The extender is asked in a thread of its own, as a plan may take a second: meanwhile single pods are released.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from timekeeper import metrics
from timekeeper.accounts.held.drains import ENDS, DrainTurns, End
from timekeeper.accounts.held.gangs import (
    AskForCards,
    OpenGates,
    WaitFor,
    WaitingGang,
    exist_text,
    next_step,
    started_until_ms,
)
from timekeeper.accounts.held.limits import HeldView
from timekeeper.accounts.held.looks import LookRounds
from timekeeper.accounts.held.order import HeldPod
from timekeeper.core.decisions import GANG, MESSAGE, Decision, Figure, Record, record_nothing
from timekeeper.log import log, log_exception
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.peers import Peer

AGAIN_MS = 5_000  # until the cards of a gang are looked for again
# after a start that came to nothing, twice as long after each
REST_MS, MAX_REST_MS, FORGOTTEN_MS = 15_000, 600_000, 3_600_000
SHOWN_MS = 3_000  # the watch shows reservations by then
ASKS_COST = 10  # it plans in vain for at most a tenth of the time; a slow machine delays no gang for long
TOGETHER_MS = 2_000  # calls that are begun so long after they were decided are left out
WAITS = "GangWaits"
ANSWER_S = 10.0
REPLICAS = 4  # calls, each of which may reach one that does not lead
MAX_TOLD = 16  # members of a gang that get an Event
UNKNOWN = "the extender cannot be asked: the timekeeper has no --extender-url"

# members, how many of them must fit, epoch and end: the extender's answer, or None and a sentence
Reserve = Callable[[AskForCards, int, int], "GangAnswer"]
Call = Callable[[], "GangAnswer | None"]  # None: the extender was not asked
Submit = Callable[[Call], "Future[GangAnswer | None]"]  # calls run one after another
Report = Callable[[str, str, str, str, str], None]
ReportOn = Callable[[Mapping[str, str], str, str], None]


@dataclass(frozen=True, slots=True)
class GangAnswer:
    """How many members have cards reserved, and where; if none, why: parts of a sentence for people, how many
    cards are missing, and whether cards are kept empty for it."""

    reserved: int
    why: str = ""
    where: str = ""
    cards: int = 0
    is_drained: bool = False


def reserve_with(extender: Peer) -> Reserve:
    """Asks this extender."""
    extender = replace(extender, timeout_s=ANSWER_S)

    def reserve(asked: AskForCards, epoch: int, until_ms: int) -> GangAnswer:
        if not extender.url:
            return GangAnswer(0, UNKNOWN)
        body = body_of(asked, epoch, until_ms)
        why = ""
        for _ in range(REPLICAS):
            try:
                return answer_of(extender.ask("/v1/gangs/reserve", body), len(asked.uids))
            except Problem as problem:
                why = problem.detail
        return GangAnswer(0, why)

    return reserve


def body_of(asked: AskForCards, epoch: int, until_ms: int) -> dict[str, Any]:
    """The body of the call."""
    body = {
        "version": 1,
        "pods": list(asked.uids),
        "bound": list(asked.bound),
        "needed": asked.needed,
        "epoch": epoch,
        "until": until_ms,
    }
    optional = (("drain", asked.drain_ms), ("late", asked.late_ms))
    return body | {name: at_ms for name, at_ms in optional if at_ms}


def answer_of(said: Mapping[str, Any], asked: int) -> GangAnswer:
    """What the extender says of this number of members, and of those that do not exist yet."""
    reserved, missing, cards = (int(said.get(each) or 0) for each in ("reserved", "missing", "cards"))
    near, why, where, kept = (str(said.get(each) or "") for each in ("near", "why", "where", "drain"))
    asked = int(said.get("members") or asked)
    fit = f"{asked - missing} of {asked} members fit{f' in {near}' if near else ''}" if missing else ""
    lack = f"{cards} cards missing" if cards else ""
    text = "; ".join(each for each in (fit, lack, why, kept) if each)
    return GangAnswer(reserved, text, where, cards, bool(kept))


class GangStarts:
    """Used by the releaser's thread. ``reserve`` is called in another; ``submit``: runs a call there;
    ``deadline_ms``: how long cards are reserved; ``late_ms``: how long after that for members that do not
    exist yet; ``report_on``: posts an Event on any object; ``drains``: for
    which gang cards are kept empty."""

    def __init__(
        self,
        reserve: Reserve,
        report: Report,
        steady: Callable[[], int],
        record: Record = record_nothing,
        submit: Submit | None = None,
        deadline_ms: int = 60_000,
        report_on: ReportOn = lambda _regarding, _reason, _note: None,
        drains: DrainTurns | None = None,
        late_ms: int = 0,
    ) -> None:
        self._late_ms = late_ms
        self._drains = drains or DrainTurns(0, 0)
        self._wants_drain = False  # the last call
        self._short: set[str] = set()  # keys of gangs that lacked cards when they were looked for last
        for end in ENDS:
            metrics.GANG_DRAINS.labels(end)
        self._report_on = report_on
        self._reserve, self._report, self._steady, self._record = reserve, report, steady, record
        self._deadline_ms = deadline_ms
        for result in ("reserved", "none"):
            metrics.GANG_RESERVATIONS.labels(result)
        for reason in ("some-bound", "none-bound"):
            metrics.GANG_FAILURES.labels(reason)
        self._submit = submit or ThreadPoolExecutor(1, "gang").submit
        self._asked: dict[str, Future[GangAnswer | None]] = {}  # key -> the answer that comes
        self._took_ms = 0  # the last answer
        self._next_ask_ms = 0
        self._paused: dict[str, int] = {}  # key -> until when its cards are not looked for again
        self._opened: dict[str, int] = {}  # key -> until when its gates are not removed again
        self._unpaid: set[str] = set()  # keys of gangs that their budgets could not pay last
        self._answers: dict[str, str] = {}  # key -> why its cards were not reserved last
        self._places: dict[str, str] = {}  # key -> where they were
        self._told: dict[str, str] = {}  # key -> what was told last
        self._kept: dict[str, int] = {}  # key -> until when its room is kept though no pod shows cards yet
        # key -> how often cards were reserved for it in an hour, and when these reservations ended last
        self._tries: dict[str, tuple[int, int]] = {}
        self._vain: list[str] = []  # keys of gangs for which cards were looked for in vain, since `had_turns`
        self._rounds = LookRounds()
        self._starting: dict[str, int] = {}  # key -> until when the gates of its last epoch's pods are open
        self._epoch = 0

    def opening(self, view: HeldView) -> list[HeldPod]:
        """The members whose gates are removed now: of gangs with cards for all. That they can be paid was
        asked before their cards were reserved, and their room has been kept since."""
        self._follow(view)
        at_ms, found = self._steady(), list[HeldPod]()
        for it in view.gangs.values():
            step = next_step(it, view.at_ms)
            if isinstance(step, OpenGates) and at_ms >= self._opened.get(it.key, 0):
                self._opened[it.key] = at_ms + SHOWN_MS
                found += [view.pods[uid] for uid in step.uids if uid in view.pods]
        return found

    def decided(self, view: HeldView) -> list[HeldPod]:
        """The gangs for which cards are looked for or reserved, each as one pod: their room is taken."""
        kept = self._kept.keys() | self._asked.keys()
        return [
            it.held
            for it in view.gangs.values()
            if it.held is not None and (it.key in kept or isinstance(next_step(it, view.at_ms), OpenGates))
        ]

    def ready(self, view: HeldView) -> dict[str, HeldPod]:
        """The gangs for which cards may be looked for once they can be paid, each as one pod, by UID: the
        one that has the drain before all others, for the extender keeps cards only while it is asked; of
        others those of their namespace's round."""
        found = self._ready(view)
        if self._drains.key in found:
            return {self._drains.key: found[self._drains.key]}
        return self._rounds.of(found, self._unpaid)

    def _ready(self, view: HeldView) -> dict[str, HeldPod]:
        return {
            it.held.uid: it.held
            for it in view.gangs.values()
            if it.held is not None
            and self._is_due(it, view.at_ms)
            and isinstance(next_step(it, view.at_ms), AskForCards)
        }

    def _is_due(self, it: WaitingGang, now_ms: int) -> bool:
        """Whether cards may be looked for again: some time after the last look, and longer after each start
        that came to nothing."""
        if self._steady() < self._paused.get(it.key, 0):
            return False
        tries, ended_ms = self._tries.get(it.key, (0, 0))
        if not tries or it.was_whole or it.bound >= it.gang.minimum:
            return True
        return not ended_ms <= now_ms < ended_ms + min(MAX_REST_MS, REST_MS * 2 ** (tries - 1))

    def look(self, ready: Set[str], paid: Sequence[str], view: HeldView) -> None:
        """Look for cards for the gangs that can be paid together, one after another, until one of them gets
        none. ``ready``: all of which it was asked whether they can be paid; by UID, which is the gang's
        key."""
        self._unpaid = (self._unpaid - {*paid}) | (ready - {*paid})
        if not self._may_ask():
            return
        in_vain = Event()
        for key in paid:
            step = next_step(view.gangs[key], view.at_ms)
            if isinstance(step, AskForCards):
                self._ask(key, step, view.at_ms, in_vain)

    def had_turns(self) -> list[str]:
        """The namespaces for whose gangs cards were looked for in vain, since the last call. Each has had a
        turn: else those whose gangs never fit would have all of them."""
        found = [key.partition("/")[0] for key in self._vain]
        self._vain = []
        return found

    def _may_ask(self) -> bool:
        """Whether the extender has answered all calls, and has rested from the last one in vain."""
        return not self._asked and self._steady() >= self._next_ask_ms

    def ask_for_released(self, view: HeldView) -> None:
        """Look for cards for a gang without a gate, whose last reservations have ended; it is paid."""
        for it in view.gangs.values():
            step = next_step(it, view.at_ms)
            if it.held is None and isinstance(step, AskForCards) and self._is_due(it, view.at_ms):
                if self._may_ask():
                    self._ask(it.key, step, view.at_ms, Event())
                return

    def _ask(self, key: str, asked: AskForCards, now_ms: int, in_vain: Event) -> None:
        """``in_vain``: set once a call that was decided with this one got no cards; then it is left out."""
        at_ms = self._steady()
        self._wants_drain = key == self._drains.key
        if self._wants_drain:
            asked = replace(asked, drain_ms=self._drains.asked(now_ms))
        self._epoch = epoch = max(self._epoch + 1, now_ms)

        def timed() -> GangAnswer | None:
            began_ms = self._steady()
            if in_vain.is_set() or began_ms - at_ms > TOGETHER_MS:
                return None
            in_vain.set()  # also if it raises
            until_ms = now_ms + began_ms - at_ms + self._deadline_ms
            late_ms = until_ms + self._late_ms if self._late_ms else 0
            answer = self._reserve(replace(asked, late_ms=late_ms), epoch, until_ms)
            self._took_ms = self._steady() - began_ms
            if answer.reserved:
                self._tries[key] = self._tries.get(key, (0, 0))[0] + 1, until_ms
                in_vain.clear()
            return answer

        self._asked[key] = self._submit(timed)

    def _follow(self, view: HeldView) -> None:
        """Take in an answer that has come, and tell people what has changed."""
        metrics.WAITING_GANGS.set(len(view.gangs))
        at_ms = self._steady()
        self._paused = {key: until_ms for key, until_ms in self._paused.items() if at_ms < until_ms}
        self._opened = {key: until_ms for key, until_ms in self._opened.items() if at_ms < until_ms}
        self._kept = {key: until_ms for key, until_ms in self._kept.items() if at_ms < until_ms}
        self._tries = {key: each for key, each in self._tries.items() if view.at_ms < each[1] + FORGOTTEN_MS}
        self._unpaid &= view.gangs.keys()
        self._short &= view.gangs.keys()
        for known in (self._answers, self._places, self._told):
            for key in [each for each in known if each not in view.gangs]:
                del known[key]
        for key in [key for key, future in self._asked.items() if future.done()]:
            self._take(key, self._asked.pop(key), at_ms, view.at_ms)
        self._note_end(self._drains.follow(view.gangs, self._short, view.at_ms))
        self._count_failures(view)
        for it in view.gangs.values():
            self._tell(it, view)

    def _count_failures(self, view: HeldView) -> None:
        """Each start once whose deadline passes while this process looks."""
        self._starting = {key: ended_ms for key, ended_ms in self._starting.items() if key in view.gangs}
        for it in view.gangs.values():
            if it.was_whole:
                self._starting.pop(it.key, None)
            elif view.at_ms < self._starting.get(it.key, 0):
                continue
            elif self._starting.pop(it.key, 0):
                metrics.GANG_FAILURES.labels("some-bound" if it.bound else "none-bound").inc()
            elif (until_ms := started_until_ms(it)) > view.at_ms:
                self._starting[it.key] = until_ms

    def _note_end(self, how: End | None) -> None:
        if how is not None:
            metrics.GANG_DRAINS.labels(how).inc()

    def _take_drain(self, key: str, answer: GangAnswer, now_ms: int) -> None:
        """Whether it lacks cards, and whether its drain goes on."""
        (self._short.add if answer.cards else self._short.discard)(key)
        if key != self._drains.key:
            return
        if answer.reserved:
            self._note_end(self._drains.end("fit", now_ms))
        elif answer.cards and not answer.is_drained and self._wants_drain:
            self._note_end(self._drains.end("none", now_ms))

    def _take(self, key: str, future: "Future[GangAnswer | None]", at_ms: int, now_ms: int) -> None:
        try:
            answer = future.result()
        except Exception as error:
            log_exception("gang-not-reserved", error)
            answer = GangAnswer(0, "the extender's answer cannot be read")
        if answer is None:
            return
        if not answer.reserved:
            self._next_ask_ms = at_ms + min(AGAIN_MS, ASKS_COST * self._took_ms)
            self._vain.append(key)
            self._rounds.in_vain(key)
        metrics.GANG_RESERVATIONS.labels("reserved" if answer.reserved else "none").inc()
        log("gang-asked", level="info", gang=key, reserved=answer.reserved, why=answer.why or None)
        self._paused[key] = at_ms + (SHOWN_MS if answer.reserved else AGAIN_MS)
        if answer.reserved:
            self._kept[key] = at_ms + SHOWN_MS
        self._answers[key], self._places[key] = answer.why, answer.where
        self._take_drain(key, answer, now_ms)

    def _tell(self, it: WaitingGang, view: HeldView) -> None:
        text = self.sentence(it, view.at_ms)
        if self._told.get(it.key) == text:
            return
        self._told[it.key] = text
        for controller in dict.fromkeys(each.controller for each in it.members if each.controller):
            regarding = dict(zip(("apiVersion", "kind", "name", "uid"), controller, strict=True))
            self._report_on({**regarding, "namespace": it.namespace}, WAITS, text)
        for each in [each for each in it.members if not each.is_bound][:MAX_TOLD]:
            self._report(it.namespace, each.name, each.uid, WAITS, text)
            figures: dict[str, Figure] = {
                MESSAGE: text,
                "size": it.gang.size,
                "exist": len(it.members),
                "bound": it.bound,
            }
            where = {"owner": each.owner, "name": each.name, "uid": each.uid}
            self._record(
                Decision(
                    at_ms=view.at_ms,
                    kind=GANG,
                    reason=WAITS,
                    namespace=it.namespace,
                    figures=figures,
                    **where,
                )
            )

    def sentence(self, it: WaitingGang, now_ms: int) -> str:
        """What the gang waits for."""
        step = next_step(it, now_ms)
        start = f"Gang {it.gang.name} starts whole"
        if isinstance(step, WaitFor):
            return f"{start}: {step.why}."
        if isinstance(step, OpenGates):
            where = f" {self._places[it.key]}" if self._places.get(it.key) else ""
            return f"{start}: {len(step.uids)} members have cards{where}, and their gates are being removed."
        waits = self._answers.get(it.key) or "cards for them are looked for"
        if it.key in self._unpaid:
            waits = "the budget cannot pay all of them now"
        return f"{start}: {exist_text(it)}; {waits}."
