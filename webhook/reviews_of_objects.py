"""AdmissionReview of an object that is no pod, at the door: raw JSON becomes a value or a sentence.

Only what surrounds the object is checked here; what is looked at inside it, its own reviewer checks, for a
custom kind may hold anything.
"""

from dataclasses import dataclass

import orjson

from timekeeper.core.request import Json, mapping
from webhook.review import API_VERSION, MalformedError

NOTHING: Json = {}


@dataclass(frozen=True, slots=True)
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
        """True where nothing but the object's end is left: its deletion, or what its finalizers write."""
        return self.operation == "DELETE" or bool(
            mapping(self.object.get("metadata")).get("deletionTimestamp")
        )


def read(body: bytes) -> ObjectReview:
    """The review in a request's body. Raises MalformedError with a sentence, whatever the bytes are."""
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the body is not JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("kind") != "AdmissionReview":
        raise MalformedError("the body is no AdmissionReview")
    if whole.get("apiVersion") != API_VERSION:
        raise MalformedError(f"apiVersion must be {API_VERSION}")
    request = whole.get("request")
    if not isinstance(request, dict):
        raise MalformedError("request: must be an object")
    return _review(request)


def _review(request: Json) -> ObjectReview:
    kind = mapping(request.get("kind"))
    review = ObjectReview(
        uid=_text(request, "uid"),
        operation=_text(request, "operation"),
        subresource=_text(request, "subResource"),
        group=_text(kind, "group"),
        kind=_text(kind, "kind"),
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        dry_run=request.get("dryRun") is True,
        object=_object(request, "object"),
        old=_object(request, "oldObject"),
    )
    if not review.uid:
        raise MalformedError("request.uid: must not be empty")
    if not review.kind:
        raise MalformedError("request.kind.kind: must not be empty")
    return review


def _text(raw: Json, name: str) -> str:
    value = raw.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedError(f"{name}: must be a string")
    return value


def _object(request: Json, name: str) -> Json:
    value = request.get(name)
    if value is None:
        return NOTHING
    if not isinstance(value, dict):
        raise MalformedError(f"request.{name}: must be an object")
    return value
