"""What is to be done now to the pods of namespaces over budget with ``onExhausted: evict``. Pure.

1. Every charged pod of such a namespace gets a notice, once: the time before which it is not evicted.
2. Once the account is spent and a pod's time has come, it is evicted: of an account's pods the one with the
   lowest priority first, of equals the youngest, each some time after the last. Pods that leave together, for
   they share a claim or are of a gang, have one time, and are evicted when the turn of the last has come.
3. A pod whose PodDisruptionBudget refused is tried again after the others, and deleted when ``pdbGrace`` is
   over.
4. As soon as a namespace is not exhausted any more, its pods' notices are withdrawn; and that of a pod
   as soon as its budget protects it.

Notices are annotations of the pods, so a settler that takes over continues where the other one ended.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.kube.eviction import EvictionResult

MAX_NOTICES = 200  # written or withdrawn in one step, so that evictions need not wait for all of them
FORGET_MS = 1_200_000
FIRST_VETO_MS, MOST_VETO_MS = 30_000, 600_000
WRITTEN_MS = 30_000  # the watch shows a written notice within this time
# between two attempts at one pod, by the result of the last
PAUSE_MS: Mapping[str, int] = {
    "evicted": 60_000,  # accepted, but the watch may report the deletion late
    "deleted": 60_000,
    "gone": 60_000,
    "protected": 10_000,
    "refused": 30_000,
    "unclear": 10_000,
}
LEFT: tuple[EvictionResult, ...] = ("evicted", "deleted", "gone", "unclear")
Pods = tuple[LedgerPod, ...]
Together = Callable[[LedgerPod], Iterable[Pods]]
ATTEMPT_MS = 1_000  # between two attempts at the pods of one account that evicted none


@dataclass(frozen=True, slots=True)
class EvictionNotice:
    """The two annotations of a pod. Milliseconds since 1970, whole seconds; None: absent."""

    evict_after_ms: int | None = None
    delete_after_ms: int | None = None


NO_NOTICE = EvictionNotice()


@dataclass(frozen=True, slots=True)
class BudgetAttempt:
    """The last attempt at one pod, by a monotonic clock."""

    at_ms: int
    result: EvictionResult
    vetoes: int = 0  # how many in succession a webhook, a policy or a right has refused, with this one

    @property
    def pause_ms(self) -> int:
        """Until the next attempt: it grows while somebody refuses."""
        if not self.vetoes:
            return PAUSE_MS[self.result]
        return min(FIRST_VETO_MS << min(self.vetoes - 1, 10), MOST_VETO_MS)


@dataclass(frozen=True, slots=True)
class BudgetEvictionMemory:
    """What was done since ``began_ms``. Times are of a monotonic clock. A restart may forget all of it."""

    began_ms: int
    last: Mapping[str, int] = field(default_factory=dict)  # account -> its last eviction
    tried: Mapping[str, int] = field(default_factory=dict)  # account -> its last attempt
    attempts: Mapping[str, BudgetAttempt] = field(default_factory=dict)  # UID -> last attempt
    # UID -> the notice that was written and when, until the watch shows it
    written: Mapping[str, tuple[EvictionNotice, int]] = field(default_factory=dict)
    # UIDs of pods whose namespace was in budget while they had a notice: it does not count any more
    void: frozenset[str] = frozenset()

    def after(
        self, uid: str, subject: str, result: EvictionResult, at_ms: int, vetoed: bool = False
    ) -> "BudgetEvictionMemory":
        """With one more attempt. An unclear result counts as an eviction."""
        before = self.attempts.get(uid)
        vetoes = (before.vetoes if before else 0) + 1 if vetoed else 0
        attempts = {key: each for key, each in self.attempts.items() if at_ms - each.at_ms < FORGET_MS}
        counts = result in ("evicted", "deleted", "unclear")
        return replace(
            self,
            attempts=attempts | {uid: BudgetAttempt(at_ms, result, vetoes)},
            tried={**self.tried, subject: at_ms},
            last={**self.last, subject: at_ms} if counts else self.last,
        )

    def spaced(self, terms: EvictionTerms, pods: int) -> "BudgetEvictionMemory":
        """After this number of pods left together: each takes the time of one."""
        last_ms = self.last.get(terms.subject)
        if last_ms is None:
            return self
        return replace(self, last={**self.last, terms.subject: last_ms + (pods - 1) * terms.spacing_ms})

    def after_writing(self, uid: str, notice: EvictionNotice, at_ms: int) -> "BudgetEvictionMemory":
        """With a notice that the API server has accepted."""
        written = {key: each for key, each in self.written.items() if at_ms - each[1] < WRITTEN_MS}
        return replace(self, written=written | {uid: (notice, at_ms)}, void=self.void - {uid})

    def notice_of(self, pod: LedgerPod, at_ms: int) -> EvictionNotice:
        """The pod's notice, by what was written last."""
        written = self.written.get(pod.uid)
        if written is not None and at_ms - written[1] < WRITTEN_MS:
            return written[0]
        return EvictionNotice(pod.evict_after_ms, pod.delete_after_ms)

    def may_evict(self, terms: EvictionTerms, at_ms: int) -> bool:
        """Whether the account may evict its next pod."""
        last_ms = self.last.get(terms.subject, self.began_ms)
        tried_ms = self.tried.get(terms.subject, self.began_ms)
        return at_ms - last_ms >= terms.spacing_ms and at_ms - tried_ms >= ATTEMPT_MS

    def is_paused(self, uid: str, at_ms: int, deletes: bool = False) -> bool:
        """Whether the last attempt at this pod was too recent for another. ``deletes``: the next one does not
        ask."""
        attempt = self.attempts.get(uid)
        if attempt is None:
            return False
        return at_ms - attempt.at_ms < (PAUSE_MS[attempt.result] if deletes else attempt.pause_ms)

    def left(self, at_ms: int) -> frozenset[str]:
        """The UIDs of pods that may be leaving, though the watch does not show it yet."""
        lately = (uid for uid in self.attempts if self.is_paused(uid, at_ms))
        return frozenset(uid for uid in lately if self.attempts[uid].result in LEFT)


@dataclass(frozen=True, slots=True)
class BudgetEviction:
    """A pod to evict now, or to delete where its PodDisruptionBudget was respected long enough. ``others``:
    those that leave with it or not at all: they share a claim with it, or are of its gang."""

    pod: LedgerPod
    terms: EvictionTerms
    deletes: bool
    others: Pods = ()

    @property
    def pods(self) -> Pods:
        """All that leave."""
        return (self.pod, *self.others)


# a pod's turn, and its eviction
_Due = tuple[tuple[int, tuple[bool, int, int, str]], BudgetEviction]


@dataclass(frozen=True, slots=True)
class NoticeChange:
    """A notice to write on a pod, or, if it is empty, to withdraw."""

    pod: LedgerPod
    notice: EvictionNotice
    terms: EvictionTerms | None
    # it may have the condition that it is about to be deleted, and is not any more
    is_spared: bool = False


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What one step does about the pods of accounts over budget."""

    evictions: tuple[BudgetEviction, ...] = ()  # at most one of each account
    changes: tuple[NoticeChange, ...] = ()
    noticed: int = 0  # pods with a valid notice
    observed: Mapping[str, int] = field(default_factory=dict)  # namespace -> pods that would have to leave
    void: frozenset[str] = frozenset()


def due(
    pods: Iterable[LedgerPod],
    exhausted: Mapping[str, EvictionTerms],
    past: BudgetEvictionMemory,
    now_ms: int,
    at_ms: int,
    is_spared: Callable[[LedgerPod], bool] = lambda _: False,
    together: Together = lambda pod: ((pod,),),
) -> EvictionPlan:
    """The evictions that are due, and the notices to be written, each in the order in which pods must leave.

    ``exhausted``: namespace -> terms. ``now_ms``: the clock of notices; ``at_ms``: the monotonic clock of
    ``past``. ``is_spared``: whether the budget protects the pod, or it was created without enforcement, or
    one that shares its claims stays; ``together``: the pods that may leave together, itself among them.
    """
    concerned = [
        (pod, None if is_spared(pod) else exhausted.get(pod.namespace), past.notice_of(pod, at_ms))
        for pod in pods
        if pod.namespace in exhausted or pod.evict_after_ms is not None or pod.uid in past.written
    ]

    def wanted_of(pod: LedgerPod, terms: EvictionTerms | None, notice: EvictionNotice) -> EvictionNotice:
        wanted = _wanted(pod, terms, notice, past, now_ms)
        if terms is None or wanted in (notice, NO_NOTICE):
            return wanted
        others = (each for some in together(pod) for each in some if each.uid != pod.uid)
        return _earliest(wanted, others, terms, past, now_ms, at_ms)

    changes = [
        NoticeChange(pod, wanted, terms, is_spared=notice.delete_after_ms is not None)
        for pod, terms, notice in concerned
        if (wanted := wanted_of(pod, terms, notice)) != notice
    ]
    changes.sort(key=lambda each: (each.notice != NO_NOTICE, *leaving_order(each.pod)))
    changing = {each.pod.uid for each in changes}
    ready = {
        pod.uid: (
            _turn(pod, notice, terms, past, now_ms),
            BudgetEviction(pod, terms, _deletes(notice, terms, now_ms)),
        )
        for pod, terms, notice in concerned
        if terms is not None and pod.uid not in changing and _is_due(pod, terms, notice, past, now_ms, at_ms)
    }
    leaving = sorted(_leaving(ready, together), key=lambda each: each[0], reverse=True)
    return EvictionPlan(
        tuple({each.terms.subject: each for _, each in leaving}.values()),  # of each account the first
        tuple(changes[:MAX_NOTICES]),
        noticed=sum(notice != NO_NOTICE for _, _, notice in concerned),
        observed=_observed(
            pod for pod, terms, _ in concerned if terms is not None and _would_leave(pod, terms)
        ),
        void=frozenset(
            pod.uid
            for pod, terms, notice in concerned
            if notice != NO_NOTICE and (terms is None or terms.is_observed or pod.uid in past.void)
        ),
    )


def _leaving(ready: Mapping[str, _Due], together: Together) -> Iterator[_Due]:
    """All that may leave now: pods that are ready, with those that end a hold together, if all are. One that
    a claim is reserved for and that has no node is about to get one."""
    done: dict[int, Pods] = {}  # by identity: all pods of a gang have the same set
    for turn, mine in ready.values():
        for some in together(mine.pod):
            if id(some) in done:
                continue
            done[id(some)] = some
            others = [each for each in some if each.uid != mine.pod.uid and each.is_staying]
            if not others:
                yield turn, mine
            elif all(each.uid in ready for each in others):
                theirs = [ready[each.uid] for each in others]
                deletes = any(each.deletes for each in (mine, *(it for _, it in theirs)))
                pods = tuple(it.pod for _, it in theirs)
                yield max(turn, *(it for it, _ in theirs)), replace(mine, deletes=deletes, others=pods)


def _observed(pods: Iterable[LedgerPod]) -> Mapping[str, int]:
    return Counter(pod.namespace for pod in pods)


def _would_leave(pod: LedgerPod, terms: EvictionTerms) -> bool:
    return terms.is_observed and terms.is_spent and pod.is_charged


def _wanted(
    pod: LedgerPod,
    terms: EvictionTerms | None,
    notice: EvictionNotice,
    past: BudgetEvictionMemory,
    now_ms: int,
) -> EvictionNotice:
    """The notice that the pod should have now."""
    if terms is None or terms.is_observed:
        return NO_NOTICE
    if not pod.is_charged or (pod.uid not in past.void and is_valid(notice, terms, now_ms)):
        return notice
    return EvictionNotice(_whole_second(now_ms + terms.grace_ms))


def _earliest(
    new: EvictionNotice,
    others: Iterable[LedgerPod],
    terms: EvictionTerms,
    past: BudgetEvictionMemory,
    now_ms: int,
    at_ms: int,
) -> EvictionNotice:
    """A new notice, with the earliest time of those that the others have: a pod that comes to share a claim
    puts nothing off."""
    found = ((each, past.notice_of(each, at_ms)) for each in others if each.is_charged)
    valid = (it for each, it in found if each.uid not in past.void and is_valid(it, terms, now_ms))
    times = [each.evict_after_ms for each in (new, *valid) if each.evict_after_ms is not None]
    return EvictionNotice(min(times))


def _is_due(
    pod: LedgerPod,
    terms: EvictionTerms,
    notice: EvictionNotice,
    past: BudgetEvictionMemory,
    now_ms: int,
    at_ms: int,
) -> bool:
    """Whether the pod, whose notice is valid, may be evicted now."""
    is_time = notice.evict_after_ms is not None and notice.evict_after_ms <= now_ms
    if not (terms.is_spent and is_time and pod.is_charged) or terms.is_observed:
        return False
    deletes = _deletes(notice, terms, now_ms)
    return past.may_evict(terms, at_ms) and not past.is_paused(pod.uid, at_ms, deletes)


def _turn(
    pod: LedgerPod, notice: EvictionNotice, terms: EvictionTerms, past: BudgetEvictionMemory, now_ms: int
) -> tuple[int, tuple[bool, int, int, str]]:
    """Due pods are tried in ascending order. Protected pods come last, the one that was tried longest ago
    first, so that they take no other pod's turn."""
    if notice.delete_after_ms is None or _deletes(notice, terms, now_ms):
        return -1, leaving_order(pod)
    attempt = past.attempts.get(pod.uid)
    return (attempt.at_ms if attempt else 0), leaving_order(pod)


def _deletes(notice: EvictionNotice, terms: EvictionTerms, now_ms: int) -> bool:
    """Whether a PodDisruptionBudget has refused the pod's eviction for ``pdbGrace``."""
    ends_ms = notice.delete_after_ms
    return ends_ms is not None and (ends_ms <= now_ms or terms.pdb_grace_ms == 0)


def protected_notice(notice: EvictionNotice, terms: EvictionTerms, now_ms: int) -> EvictionNotice:
    """The notice of a pod after a PodDisruptionBudget has refused its eviction. The budget protects the pod
    for ``pdbGrace`` from its first refusal on."""
    ends_ms = _whole_second(now_ms + terms.pdb_grace_ms)
    before_ms = notice.delete_after_ms
    return replace(notice, delete_after_ms=ends_ms if before_ms is None else min(before_ms, ends_ms))


def leaving_order(pod: LedgerPod) -> tuple[bool, int, int, str]:
    """Pods leave in ascending order: those first that got their cards over budget with the class of pods in
    budget; then the lowest priority, of equals the youngest."""
    return not pod.is_saved_up, pod.priority, -(pod.hold.bound_ms or pod.created_ms), pod.uid


def is_valid(notice: EvictionNotice, terms: EvictionTerms, now_ms: int) -> bool:
    """Whether the notice was given for this period of the account, and not for a time further ahead than a
    notice given now would be."""
    after_ms = notice.evict_after_ms
    if after_ms is None:
        return False
    return terms.since_ms <= after_ms - terms.grace_ms and after_ms <= _whole_second(now_ms + terms.grace_ms)


def _whole_second(at_ms: int) -> int:
    """Rounded up, because annotations have whole seconds."""
    return -(-at_ms // 1000) * 1000
