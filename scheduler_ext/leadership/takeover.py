"""Taking over: what a replica does before its first bind, so that whoever led before can do nothing more.

1. It writes a mark on its own pod, and waits until its watch of the pods has shown it. Then its books hold
   every Binding that came before the mark: they are as complete as a list at quorum made after it.
2. It touches the status of every GPU pod that may still be bound. A Binding that an earlier leader sends, or
   has sent, names the version from before that touch: from now on it is a 409.
3. Now it leads, until the watch shows another's mark after its own, or the Lease names another.

An earlier leader that goes on (it was stopped, or cut off) cannot harm: a version from before the mark is
void by the touch, and to learn of a later one from its watch it must first have been shown the mark, which
deposes it. So a Binding names only a version that the watch has shown, and is sent only where a look at
`Leadership.term` that comes after the version was read shows the term in which its cards were assumed
(`Binder`). None of this asks a clock; one is asked only how long it is since the last look at the Lease.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Literal

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.leadership.election import Election
from scheduler_ext.leadership.fencing import AT_ONCE, Touch, may_be_bound
from scheduler_ext.model.leader_mark import LeaderMark, LeaderMarks, claimed, given_up, heard, listed
from scheduler_ext.model.pod import Pod
from timekeeper.runtime.log import Log

State = Literal["follows", "claims", "fences", "leads"]

TOUCH_S = 1.0  # of touches before the next look at the Lease: it must be renewed however slow they are
SOON_S = 0.05  # until the books are complete
AGAIN_S = 0.5  # after something that came to nothing, at first
LONGEST_S = 8.0
PATIENT_S = 1.5  # kube-scheduler waits two seconds for an answer
MOST_LOOKS = 40  # for a mark in the watch; then another is written


class Leadership:
    """``mark`` writes a word on this replica's own pod and says whether it was done; None where there is one
    replica alone, which needs none. ``touch`` makes the Bindings of these pods' versions void, by that word,
    and gives back those for which that is not certain. ``led`` is called each time that we begin to lead.

    `heard`, `listing` and `opens` may be called from any thread; `run` does the work in one.
    """

    def __init__(
        self,
        election: Election,
        cache: ClusterCache,
        mark: Callable[[str], bool] | None,
        touch: Touch,
        log: Log,
        led: Callable[[], object] = lambda: None,
        patience_s: float = 10.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._election, self._cache, self._mark, self._touch, self._log = election, cache, mark, touch, log
        self._led, self._patience_s, self._now_s = led, patience_s, now_s
        self._changed = threading.Condition()
        self._asked = threading.Event()
        self._me, self._claims = uuid.uuid4().hex, 0
        self._marks = LeaderMarks(self._me)
        self._state: State = "follows"
        self._left: list[Pod] = []
        self._looks_begun = self._looks_done = self._in_vain = 0
        self._wanted: bool | None = None
        self._ended = False
        self.takeovers = 0
        self.elected = mark is not None

    @property
    def state(self) -> State:
        """How far we are."""
        return self._state

    def leads(self) -> bool:
        """True while this replica may bind."""
        return self._state == "leads"

    @property
    def term(self) -> int:
        """How often we have begun to lead; 0 while we do not."""
        return self.takeovers if self._state == "leads" else 0

    def opens(self, until_s: Callable[[], float]) -> int:
        """The term, after a wait for it of ``until_s()`` seconds at most; 0 where that is not to be."""
        if self.leads():
            return self.term
        with self._changed:
            begun = self._looks_begun
            self._asked.set()

            def settled() -> bool:
                known = self._looks_done > begun and self._wanted is False
                return known or self.leads()

            self._changed.wait_for(settled, min(until_s(), self._patience_s))
        return self.term

    def wait_while_taking_over(self) -> None:
        """Until that has come to something, `PATIENT_S` at most: who is told of nodes before has his pods
        wait for us by the hundred, each counted where it cannot be bound yet."""
        if self._state in ("claims", "fences"):
            with self._changed:
                self._changed.wait_for(lambda: self._state not in ("claims", "fences"), PATIENT_S)

    def heard(self, mark: LeaderMark) -> None:
        """The watch shows this mark, and all that came before it is in the books."""
        with self._changed:
            self._marks = heard(self._marks, mark)
            self._judge()

    def listing(self, marks: Iterable[LeaderMark], book: Callable[[], None]) -> None:
        """A list shows these marks. ``book`` puts the list into the books: whom it deposes must know before,
        and our own mark counts as seen only after."""
        there = {each.uid: each.word for each in marks}
        with self._changed:
            after = listed(self._marks, there)
            if after.superseded:
                self._marks = after
                self._judge()
        book()
        with self._changed:
            self._marks = listed(self._marks, there)
            self._judge()

    def run(self, stop: threading.Event) -> None:
        """Looks and takes over until ``stop``."""
        while not stop.is_set():
            self._asked.wait(self.step())
            self._asked.clear()

    def step(self) -> float:
        """One look at the election, and the next part of what follows from it; the seconds until there is
        more to do unless somebody asks."""
        if not self._cache.complete:
            return SOON_S
        self._look()
        if self._wanted is False:
            self._follow("another is to lead")
        elif self._wanted and self._state == "follows":
            self._claim()
        if self._state == "fences":
            return self._fence()
        if self._state == "claims":
            self._in_vain += 1
            if self._in_vain > MOST_LOOKS:
                self._follow("its mark was not shown")
            return AGAIN_S
        return AGAIN_S if self._wanted and self._state == "follows" else self._election.every_s

    def end(self) -> None:
        """This replica ends: it binds no more, and another may lead at once."""
        with self._changed:
            self._ended = True  # a look that is under way must not lead to another claim
            led = self._state != "follows"
        self._follow("it ends")
        if led:
            self._election.give_back()

    def _look(self) -> None:
        with self._changed:
            self._looks_begun += 1
            number = self._looks_begun
        wanted = False if self._ended else self._election.look()
        if wanted and self._ended:
            self._election.give_back()  # the end came while we looked, and gave back too early
            wanted = False
        with self._changed:
            if wanted is not None or self._wanted is None:
                self._wanted = wanted
            self._looks_done = number
            self._changed.notify_all()

    def _claim(self) -> None:
        """Write the mark; where nobody needs to see one, go on to the touches."""
        with self._changed:
            if self._ended:
                return
            self._claims += 1
            word = f"{self._me}.{self._claims}"
            self._marks = claimed(self._marks, word)
            self._enter("claims")
            if self._mark is None:
                self._begin_touching()
        if self._mark is not None and not self._ended and not self._mark(word):
            # it may have been written all the same; the next one is another word
            self._follow("its mark was not written")

    def _judge(self) -> None:
        """What the marks mean for us; the caller holds the lock."""
        if self._marks.superseded:
            self._follow("another has taken over")
        elif self._state == "claims" and self._marks.seen:
            self._begin_touching()
            self._asked.set()

    def _begin_touching(self) -> None:
        self._left = [pod for pod in self._cache.snapshot.pods.values() if may_be_bound(pod)]
        self._enter("fences")
        self._log("fences", pods=len(self._left))

    def _fence(self) -> float:
        """Touch those that are left, until it is time to look at the Lease; the watch may have shown the end
        or the Binding of some. None is touched twice under one mark, unless its touch was not certain."""
        until_s = self._now_s() + min(TOUCH_S, self._election.every_s)
        now, claim = self._cache.snapshot.pods, self._marks.claim
        left = [pod for pod in self._left if (known := now.get(pod.uid)) is not None and may_be_bound(known)]
        tried, undone = 0, list[Pod]()
        while tried < len(left) and self._state == "fences" and (not tried or self._now_s() < until_s):
            some = left[tried : tried + AT_ONCE]
            undone += self._touch(some, claim)
            tried += len(some)
        with self._changed:
            if self._state != "fences":
                return 0.0
            self._left = left[tried:] + undone
            if self._left:
                return self._pause_s(fruitful=len(undone) < tried)
            self.takeovers += 1
            self._enter("leads")
        self._led()
        return self._election.every_s

    def _pause_s(self, *, fruitful: bool) -> float:
        """Until the next touches: none after some that were done, ever longer after some that were not, but
        not so long that the Lease is lost."""
        self._in_vain = 0 if fruitful else self._in_vain + 1
        longest_s = min(LONGEST_S, self._election.every_s)
        return 0.0 if fruitful else min(AGAIN_S * 2.0**self._in_vain, longest_s)

    def _follow(self, why: str) -> None:
        with self._changed:
            if self._state == "follows":
                return
            self._marks = given_up(self._marks)
            self._left = []
            self._enter("follows")
        self._log("follows", why=why)

    def _enter(self, state: State) -> None:
        self._state, self._in_vain = state, 0
        if state == "leads":
            self._log("leads")
        self._changed.notify_all()
