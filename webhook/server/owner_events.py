"""Events on the controllers whose pods are refused because of a budget: `kubectl describe job` shows them.

A pod that is admitted gets its Events from the timekeeper. A refused one does not exist, so its controller
gets the Event. The Events are queued beside admission; no review waits for them.
"""

from collections import Counter
from collections.abc import Callable
from threading import Event, Thread

from timekeeper.core import names
from timekeeper.core.admission.rules.exhausted import without_figures
from timekeeper.core.budgets.scalars import NAME
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.edge.events import SPAN_MS, EventRecorder, EventType
from timekeeper.runtime.api_server import Api, event_sender
from webhook.log import log
from webhook.wire.pod_review import AdmissionAnswer, PodReview

REPORTER = f"{names.DOMAIN}/webhook"
REASON = "OverBudget"
MAX_PER_NAMESPACE = 20  # in five minutes, of each worker: its port may be open to callers that invent owners

_RULE = ("budget-exhausted", "enforce")
_FIELDS = ("apiVersion", "kind", "name", "uid")

Post = Callable[[dict[str, str], str, str, EventType], None]
Notice = Callable[[PodReview, AdmissionAnswer], None]


class OwnerEvents:
    """Posts an Event for each review that refuses a controller's pod because of the budget. ``post`` takes
    the controller's reference, the reason, the text and the type, and does not wait."""

    def __init__(self, post: Post, now_ms: Callable[[], int]) -> None:
        self._post, self._now_ms = post, now_ms
        self._span = 0
        self._posted: Counter[str] = Counter()  # by namespace, in this span

    def __call__(self, review: PodReview, answer: AdmissionAnswer) -> None:
        owner = {} if review.dry_run or _RULE not in answer.rules else controller_of(review)
        if not owner or not self._may_post(review.namespace):
            return
        refusal = without_figures(answer.refusal)
        self._post(owner, REASON, f"Its new pods are refused: {refusal}", "Warning")

    def _may_post(self, namespace: str) -> bool:
        span = self._now_ms() // SPAN_MS
        if span != self._span:
            self._span = span
            self._posted.clear()
        self._posted[namespace] += 1
        return self._posted[namespace] <= MAX_PER_NAMESPACE


def controller_of(review: PodReview) -> dict[str, str]:
    """The reference to the pod's controller, in the pod's namespace; empty where it has none."""
    references = map(mapping, sequence(_metadata(review).get("ownerReferences")))
    owner = next((each for each in references if each.get("controller") is True), {})
    found = {key: value for key in _FIELDS if isinstance(value := owner.get(key), str) and value}
    if len(found) < len(_FIELDS) or not NAME.fullmatch(review.namespace):
        return {}
    return found | {"namespace": review.namespace}


def _metadata(review: PodReview) -> Json:
    return mapping(review.pod.get("metadata"))


def start_owner_events(api: Api | None, instance: str) -> Notice:
    """Starts the thread that sends the Events, so call it after the fork. Without a way to the API server
    there are no Events."""
    if api is None:
        return lambda _review, _answer: None
    recorder = EventRecorder[str](event_sender(api), REPORTER, instance, api.clock.now_ms, log)
    Thread(target=recorder.run, args=(Event(),), name="events", daemon=True).start()
    return OwnerEvents(recorder.post_on, api.clock.now_ms)
