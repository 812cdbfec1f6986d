"""Takeover: what a replica does before its first bind, so that earlier leaders can bind nothing more.

1. It writes a mark on its own pod and waits until its watch of pods shows it. Then its cache holds every
  Binding made before the mark; it is as complete as a quorum list made after it.
2. It touches the status of every GPU pod that may still be bound. A Binding that an earlier leader sends, or
  has sent, names the version before the touch: it is answered 409 from now on.
3. Now it leads, until the watch shows another replica's mark after its own, or the Lease names another.

A pod so large that the store refuses the touch does not keep a replica from leading: the store refuses every
Binding of that version too (`pod_patches.touch_patch`). The leader does not bind it until its version has
changed and a touch has succeeded.

An earlier leader that continues (it was stopped, or cut off) does no harm. A version from before the mark is
void by the touch, and to learn a later version its watch must first show the mark, which deposes it. So a
Binding names only a version that the watch has shown, and it is sent only if `Leadership.term`, read after
that version, is still the term in which its cards were assumed (`Binder`). None of this depends on a clock,
except the time since the last look at the Lease.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Literal

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.leadership.election import Election
from scheduler_ext.leadership.fencing import AT_ONCE, Touch, may_be_bound
from scheduler_ext.log import Log
from scheduler_ext.model.leader_mark import LeaderMark, LeaderMarks, claimed, given_up, heard, listed
from scheduler_ext.model.pod import Pod

State = Literal["follows", "claims", "fences", "leads"]

TOUCH_S = 1.0  # touching before the next look at the Lease, which must be renewed however slow touches are
SOON_S = 0.05  # until the cache is complete
AGAIN_S = 0.5  # after a failure, at first
LONGEST_S = 8.0
PATIENT_S = 1.5  # kube-scheduler waits two seconds for an answer
LOOKS_AGAIN_S = 2.0  # at pods that are too large for the store
STUCK_S = 5.0  # touches that fail for so long are reported
MAX_LOOKS = 40  # looks for the mark in the watch; then another is written


class Leadership:
    """``mark`` writes a word on this replica's own pod and returns whether that succeeded; None for a single
    replica, which needs no mark. ``touch`` voids Bindings of these pods' present versions, with that word,
    and returns those for which that is not certain. ``led`` is called each time this replica becomes
    leader. ``is_bound_here``: whether an extender may be called for the pod; others are not touched.

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
        is_bound_here: Callable[[Pod], bool] = lambda _pod: True,
    ) -> None:
        self._election, self._cache, self._mark, self._touch, self._log = election, cache, mark, touch, log
        self._led, self._patience_s, self._now_s = led, patience_s, now_s
        self._is_bound_here = is_bound_here
        self._changed = threading.Condition()
        self._asked = threading.Event()
        self._me, self._claims = uuid.uuid4().hex, 0
        self._marks = LeaderMarks(self._me)
        self._state: State = "follows"
        self._left: list[Pod] = []
        self._too_large: dict[str, str] = {}  # UID -> the version of which the store takes no change
        self._failing_since: float | None = None
        self._why = ""
        self._looks_begun = self._looks_done = self._fruitless = 0
        self._wanted: bool | None = None
        self._ended = False
        self.takeovers = 0
        self.elected = mark is not None

    @property
    def state(self) -> State:
        """The stage of the takeover."""
        return self._state

    def leads(self) -> bool:
        """True while this replica may bind."""
        return self._state == "leads"

    @property
    def term(self) -> int:
        """The number of this replica's term; 0 while it follows."""
        return self.takeovers if self._state == "leads" else 0

    @property
    def term_name(self) -> str:
        """A name that no other term of any replica has; "" while this one follows."""
        term = self.term
        return f"{self._me}-{term}" if term else ""

    def excludes(self, uid: str) -> bool:
        """True for a pod that the store could not change when this replica took over, and that it therefore
        must not bind."""
        return uid in self._too_large

    @property
    def excluded(self) -> int:
        """The number of pods that this replica must not bind because they are too large for the store."""
        return len(self._too_large)

    @property
    def stuck(self) -> int:
        """The number of pods whose touches have failed for `STUCK_S` and keep this replica from leading."""
        failing_since = self._failing_since
        if self._state != "fences" or failing_since is None or self._now_s() - failing_since < STUCK_S:
            return 0
        return len(self._left)

    @property
    def obstacle(self) -> str:
        """What `stuck` means, for people; empty while it is 0."""
        pods = self.stuck
        if not pods:
            return ""
        return f"fencing is stuck: the status of {pods} pods cannot be changed, first {self._why}"

    def opens(self, until_s: Callable[[], float]) -> int:
        """The term, after waiting for it at most ``until_s()`` seconds; 0 if this replica does not lead."""
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

    def wait_while_taking_over(self) -> bool:
        """Wait until the takeover ends, at most `PATIENT_S`; whether there was one. An earlier answer of
        filter would send pods by the hundred to a bind that must fail."""
        if self._state not in ("claims", "fences"):
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._state not in ("claims", "fences"), PATIENT_S)
        return True

    def heard(self, mark: LeaderMark) -> None:
        """The watch shows this mark; everything before it is in the cache."""
        with self._changed:
            self._marks = heard(self._marks, mark)
            self._judge()

    def listing(self, marks: Iterable[LeaderMark], book: Callable[[], None]) -> None:
        """A list shows these marks. ``book`` puts the list into the cache. A deposed leader must know before
        that; its own mark counts as shown only after."""
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
        """Check the election and take over until ``stop``."""
        while not stop.is_set():
            self._asked.wait(self.step())
            self._asked.clear()

    def step(self) -> float:
        """One look at the election and the next part of the takeover; returns the seconds until the next
        step, unless a bind asks earlier."""
        if not self._cache.complete:
            return SOON_S
        self._look()
        if self._wanted is False:
            self._follow("another replica must lead")
        elif self._wanted and self._state == "follows":
            self._claim()
        if self._state == "fences":
            return self._fence()
        if self._state == "leads" and self._too_large:
            return self._touch_again()
        if self._state == "claims":
            self._fruitless += 1
            if self._fruitless > MAX_LOOKS:
                self._follow("the watch did not show its leader mark")
            return AGAIN_S
        return AGAIN_S if self._wanted and self._state == "follows" else self._election.every_s

    def end(self) -> None:
        """This replica ends: it binds no more, and another may lead at once."""
        with self._changed:
            self._ended = True  # a look in progress must not start another claim
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
            self._election.give_back()  # end() ran during the look and gave back too early
            wanted = False
        with self._changed:
            if wanted is not None or self._wanted is None:
                self._wanted = wanted
            self._looks_done = number
            self._changed.notify_all()

    def _claim(self) -> None:
        """Write the mark; without other replicas go straight to the touches."""
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
            self._follow("its leader mark was not written")

    def _judge(self) -> None:
        """What the marks mean for this replica; the caller holds the lock."""
        if self._marks.superseded:
            self._follow("another replica has taken over")
        elif self._state == "claims" and self._marks.seen:
            self._begin_touching()
            self._asked.set()

    def _begin_touching(self) -> None:
        self._left = self._still_waiting(each.uid for each in self._cache.snapshot.pods.values())
        self._too_large, self._failing_since = {}, None
        self._enter("fences")
        self._log("fences", pods=len(self._left))

    def _fence(self) -> float:
        """Touch the remaining pods until it is time to look at the Lease; the watch may have shown some of
        them bound or deleted. None is touched twice under one mark unless its touch was uncertain."""
        until_s = self._now_s() + min(TOUCH_S, self._election.every_s)
        left = self._still_waiting(pod.uid for pod in self._left)
        tried, undone = 0, list[Pod]()
        while tried < len(left) and self._state == "fences" and (not tried or self._now_s() < until_s):
            some = left[tried : tried + AT_ONCE]
            done = self._touch(some, self._word)
            undone += done.uncertain
            self._too_large |= {pod.uid: pod.version for pod in done.too_large}
            self._why = done.why or self._why
            tried += len(some)
        with self._changed:
            if self._state != "fences":
                return 0.0
            self._left = left[tried:] + undone
            if not undone:
                self._failing_since = None
            elif self._failing_since is None:
                self._failing_since = self._now_s()
            if self._left:
                return self._pause_s(fruitful=len(undone) < tried)
            self.takeovers += 1
            self._enter("leads")
        self._led()
        return self._rests_s

    def _touch_again(self) -> float:
        """Touch the excluded pods whose version has changed; those that are bound or gone are dropped."""
        now = self._still_waiting(self._too_large)
        self._too_large = {pod.uid: self._too_large[pod.uid] for pod in now}
        changed = [pod for pod in now if pod.version != self._too_large[pod.uid]][:AT_ONCE]
        if changed:
            done = self._touch(changed, self._word)
            kept = {pod.uid for pod in done.uncertain}
            refused = {pod.uid: pod.version for pod in done.too_large}
            touched = {pod.uid for pod in changed} - kept
            left = {uid: at for uid, at in self._too_large.items() if uid not in touched}
            self._too_large = left | refused
        return self._rests_s

    @property
    def _rests_s(self) -> float:
        """The leader's pause before its next step."""
        every_s = self._election.every_s
        return min(LOOKS_AGAIN_S, every_s) if self._too_large else every_s

    def _still_waiting(self, uids: Iterable[str]) -> list[Pod]:
        """Of these pods those that an extender may still bind, as the watch shows them."""
        now = self._cache.snapshot.pods
        found = [pod for uid in uids if (pod := now.get(uid)) is not None and may_be_bound(pod)]
        return list(filter(self._is_bound_here, found))

    @property
    def _word(self) -> str:
        """A short word for this replica's present claim, never written before."""
        return f"{self._me[:8]}.{self._claims}"

    def _pause_s(self, *, fruitful: bool) -> float:
        """The pause before the next touches: none after successful ones, longer and longer after failures,
        but not so long that the Lease is lost."""
        self._fruitless = 0 if fruitful else self._fruitless + 1
        longest_s = min(LONGEST_S, self._election.every_s)
        return 0.0 if fruitful else min(AGAIN_S * 2.0**self._fruitless, longest_s)

    def _follow(self, why: str) -> None:
        with self._changed:
            if self._state == "follows":
                return
            self._marks = given_up(self._marks)
            self._left, self._too_large, self._failing_since = [], {}, None
            self._enter("follows")
        self._log("follows", why=why)

    def _enter(self, state: State) -> None:
        self._state, self._fruitless = state, 0
        if state == "leads":
            self._log("leads")
        self._changed.notify_all()
