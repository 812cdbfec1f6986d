"""Parses AdmissionReviews of objects other than pods: raw JSON becomes a value or an error sentence.

Only the envelope is checked here. Each reviewer checks the fields of the object that it reads, because a
custom kind may contain anything.
"""

from dataclasses import dataclass

from timekeeper.core.admission.pods import MalformedError, text_of
from timekeeper.core.json_values import Json, mapping
from webhook.wire.pod_review import request_of

NOTHING: Json = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReview:
    """One request to admit an object of ``kind`` in API ``group``. ``object`` and ``old`` are empty where the
    API server sent none."""

    uid: str
    operation: str
    subresource: str
    group: str
    kind: str
    namespace: str
    name: str
    dry_run: bool
    object: Json
    old: Json

    @property
    def is_going(self) -> bool:
        """Whether the object is being deleted: a DELETE, or a write by its finalizers."""
        return self.operation == "DELETE" or bool(
            mapping(self.object.get("metadata")).get("deletionTimestamp")
        )


def read(body: bytes) -> ObjectReview:
    """The review in a request's body. Raises MalformedError for anything else."""
    return _review(request_of(body))


def _review(request: Json) -> ObjectReview:
    kind = mapping(request.get("kind"))
    review = ObjectReview(
        uid=text_of(request, "uid"),
        operation=text_of(request, "operation"),
        subresource=text_of(request, "subResource"),
        group=text_of(kind, "group"),
        kind=text_of(kind, "kind"),
        namespace=text_of(request, "namespace"),
        name=text_of(request, "name"),
        dry_run=request.get("dryRun") is True,
        object=_object(request, "object"),
        old=_object(request, "oldObject"),
    )
    if not review.uid:
        raise MalformedError("request.uid: must not be empty")
    if not review.kind:
        raise MalformedError("request.kind.kind: must not be empty")
    return review


def _object(request: Json, name: str) -> Json:
    value = request.get(name)
    if value is None:
        return NOTHING
    if not isinstance(value, dict):
        raise MalformedError(f"request.{name}: must be an object")
    return value
