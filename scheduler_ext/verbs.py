"""What kube-scheduler asks of us, decided: filter, prioritize and bind, each on one snapshot."""

from collections.abc import Callable

from scheduler_ext import refusal
from scheduler_ext.answers import Answers, Sorted, question
from scheduler_ext.binder import Binder, Order
from scheduler_ext.books import Books
from scheduler_ext.fit import fit
from scheduler_ext.nodes import without_seat
from scheduler_ext.pods import Pod, read_pod
from scheduler_ext.policy import BUILT, Policy, policy_named
from scheduler_ext.rank import ranks
from scheduler_ext.refusal import Refusal
from scheduler_ext.snapshot import Snapshot
from scheduler_ext.waiting import waiter
from scheduler_ext.waker import Waker
from scheduler_ext.wire import Asked
from timekeeper.core.request import mapping
from timekeeper.core.values import GPURequest

INCOMPLETE = "the extender's books are not complete yet"


class Policies:
    """The policy of each request: its own, else the cluster's. ``say`` hears once of each that is not built
    yet and acts as binpack."""

    def __init__(self, default: str, say: Callable[[str], None]) -> None:
        self._default, self._say = default, say
        self._said: set[str] = set()

    def __call__(self, request: GPURequest) -> Policy:
        word = request.policy or self._default
        if word not in BUILT and word not in self._said:
            self._said.add(word)
            self._say(word)
        return policy_named(word)


class Verbs:
    """filter and prioritize change nothing but the memory of who waits; bind is `Binder`'s."""

    def __init__(self, books: Books, policies: Policies, waker: Waker, binder: Binder) -> None:
        self._books, self._policies, self._waker, self._binder = books, policies, waker, binder
        self._answers = Answers()

    @property
    def complete(self) -> bool:
        """False until both first lists are in."""
        return self._books.complete

    def filter(self, asked: Asked) -> Sorted | str:
        """The nodes sorted into those that fit and the others; an error's text before the books are
        complete."""
        if not self.complete:
            return INCOMPLETE
        snapshot = self._books.snapshot
        pod = _pod(asked, snapshot)
        if pod is None:
            return Sorted(asked.names, {}, {})
        if pod.request is None:
            why = refusal.malformed(pod.malformed).sentence
            return Sorted([], {}, dict.fromkeys(asked.names, why))
        policy = self._policies(pod.request)
        found = self._answers.sort(question(pod.request, policy, pod.amounts), snapshot.nodes, asked.names)
        found = _beside_itself(found, pod, pod.request, policy, snapshot)
        if not found.fits and asked.names:
            self._waker.refused(waiter(pod, policy, asked.names), snapshot)
        else:
            self._waker.tried(pod.uid)
        return found

    def prioritize(self, asked: Asked) -> list[int]:
        """A rank for each node, 10 for the best; 0 for one that the pod does not fit on."""
        snapshot = self._books.snapshot
        pod = _pod(asked, snapshot) if self.complete else None
        if pod is None or pod.request is None:
            return [0] * len(asked.names)
        policy = self._policies(pod.request)
        scores = self._answers.scores(question(pod.request, policy, pod.amounts), snapshot.nodes, asked.names)
        ranked = iter(ranks([score for score in scores if score is not None]))
        return [0 if score is None else next(ranked) for score in scores]

    def bind(self, order: Order) -> str:
        """Why the pod is not bound, "" where it is."""
        return self._binder.bind(order) if self.complete else INCOMPLETE


def _pod(asked: Asked, snapshot: Snapshot) -> Pod | None:
    """The pod as the watch has read it already, where that is the very one; else read from the call."""
    metadata = mapping(asked.pod.get("metadata"))
    known = snapshot.pods.get(str(metadata.get("uid", "")))
    if known is not None and known.version == metadata.get("resourceVersion"):
        return known
    return read_pod(asked.pod)


def _beside_itself(
    found: Sorted, pod: Pod, request: GPURequest, policy: Policy, snapshot: Snapshot
) -> Sorted:
    """A pod for which cards are assumed already does not stand in its own way on that node: a bind that was
    not answered in time is asked again."""
    name = snapshot.seated.get(pod.uid)
    if name is None or name not in {**found.short, **found.refused}:
        return found
    if isinstance(fit(request, without_seat(snapshot.node(name), pod.uid), policy), Refusal):
        return found
    return Sorted(
        [*found.fits, name],
        {node: why for node, why in found.short.items() if node != name},
        {node: why for node, why in found.refused.items() if node != name},
    )
