"""Events on the controllers whose pods are refused because of a budget: `kubectl describe job` shows them;
and on all owners of a workload that is refused for its template, which only their controller reads else.

A pod that is admitted gets its Events from the timekeeper. A refused one does not exist, so its controller
gets the Event. The Events are queued beside admission; no review waits for them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from threading import Event, Thread

from timekeeper.core import names
from timekeeper.core.admission.rules.exhausted import without_figures
from timekeeper.core.budgets.scalars import NAME
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.object_names import MAX_OWNERS
from timekeeper.edge.events import SPAN_MS, EventRecorder, EventType
from timekeeper.runtime.api_server import Api, event_sender
from webhook.log import log
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer, PodReview

REPORTER = f"{names.DOMAIN}/webhook"
REASON, WORKLOAD = "OverBudget", "Refused"
MAX_PER_NAMESPACE = 20  # in five minutes, of each worker: its port may be open to callers that invent owners

_RULE = ("budget-exhausted", "enforce")
_FIELDS = ("apiVersion", "kind", "name", "uid")

Post = Callable[[dict[str, str], str, str, EventType], None]
Notice = Callable[[PodReview | ObjectReview, AdmissionAnswer], None]


class OwnerEvents:
    """Posts an Event for each review that refuses a controller's pod because of the budget, or a workload.
    ``post`` takes the owner's reference, the reason, the text and the type, and does not wait."""

    def __init__(self, post: Post, now_ms: Callable[[], int]) -> None:
        self._post, self._now_ms = post, now_ms
        self._span = 0
        self._posted: Counter[str] = Counter()  # by namespace, in this span

    def __call__(self, review: PodReview | ObjectReview, answer: AdmissionAnswer) -> None:
        refusal = without_figures(answer.refusal)
        if isinstance(review, PodReview):
            reason, text = REASON, f"Its new pods are refused: {refusal}"
            refused, is_told = review.pod, _RULE in answer.rules
        else:
            reason, text = WORKLOAD, f"Its {review.kind} is refused: {refusal}"
            refused, is_told = review.object, bool(refusal)
        is_told = is_told and not review.dry_run
        for owner in _owners(refused, review.namespace, reason == REASON) if is_told else ():
            if self._may_post(review.namespace):
                self._post(owner, reason, text, "Warning")

    def _may_post(self, namespace: str) -> bool:
        span = self._now_ms() // SPAN_MS
        if span != self._span:
            self._span = span
            self._posted.clear()
        self._posted[namespace] += 1
        return self._posted[namespace] <= MAX_PER_NAMESPACE


def _owners(refused: Json, namespace: str, is_controller: bool = False) -> Iterator[dict[str, str]]:
    """The references to the object's owners, in its namespace; ``is_controller``: to its controller alone."""
    references = map(mapping, sequence(mapping(refused.get("metadata")).get("ownerReferences")))
    chosen = (each for each in references if not is_controller or each.get("controller") is True)
    for owner in islice(chosen, MAX_OWNERS) if NAME.fullmatch(namespace) else ():
        found = {key: value for key in _FIELDS if isinstance(value := owner.get(key), str) and value}
        if len(found) == len(_FIELDS):
            yield found | {"namespace": namespace}


def start_owner_events(api: Api | None, instance: str) -> Notice:
    """Starts the thread that sends the Events, so call it after the fork. Without a way to the API server
    there are no Events."""
    if api is None:
        return lambda _review, _answer: None
    recorder = EventRecorder[str](event_sender(api), REPORTER, instance, api.clock.now_ms, log)
    Thread(target=recorder.run, args=(Event(),), name="events", daemon=True).start()
    return OwnerEvents(recorder.post_on, api.clock.now_ms)
