"""A pod's raw JSON becomes one whose fields have the API's types, or an error sentence; later code does not
check types again.

The API server sends typed, defaulted objects; the checks are for other sources.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from timekeeper.core.json_values import Json

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")

_NAME = itemgetter("name")
_TEXTS = {str, type(None)}


class MalformedError(ValueError):
    """Raw JSON is not of the API's form; the text gives the reason, and is the body of a 400."""


def checked_pod(raw: object, path: str) -> Json:
    """A pod whose metadata, containers, environments and volumes have the types that the API gives them.
    Raises MalformedError, with the path from ``path`` on."""
    pod = _object(raw, path)
    metadata = _object(pod.get("metadata"), f"{path}.metadata")
    for name in ("annotations", "labels"):
        _texts(metadata.get(name), f"{path}.metadata.{name}")
    spec = _object(pod.get("spec"), f"{path}.spec")
    for name in CONTAINER_LISTS:
        for index, container in enumerate(_named(spec.get(name), path, f".spec.{name}")):
            _container(container, f"{path}.spec.{name}[{index}]")
    for name in ("volumes", "schedulingGates"):
        _named(spec.get(name), path, f".spec.{name}")
    for name in ("priorityClassName", "schedulerName", "runtimeClassName", "nodeName"):
        text_of(spec, name)
    for name in ("priority", "terminationGracePeriodSeconds", "activeDeadlineSeconds"):
        _whole(spec.get(name), f"{path}.spec.{name}")
    return pod


def _container(container: Json, path: str) -> None:
    for variable in _named(container.get("env"), path, ".env"):
        if type(variable.get("value")) not in _TEXTS:
            index = container["env"].index(variable)
            raise MalformedError(f"{path}.env[{index}].value: must be a string")
    _named(container.get("volumeMounts"), path, ".volumeMounts")
    resources = container.get("resources")
    if resources is not None:
        for name in ("limits", "requests"):
            amounts = _object(resources, f"{path}.resources").get(name)
            if amounts is not None:
                _object(amounts, f"{path}.resources.{name}")


def _named(raw: object, path: str, member: str) -> Sequence[Json]:
    """An array of named objects, empty where it is absent. Error paths are formatted only where needed."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise MalformedError(f"{path}{member}: must be an array")
    try:
        "".join(map(_NAME, raw))  # raises for all but named objects, in half the time of a loop
    except (KeyError, TypeError):
        for index, item in enumerate(raw):
            if not isinstance(item, dict):
                raise MalformedError(f"{path}{member}[{index}]: must be an object") from None
            if not isinstance(item.get("name"), str):
                raise MalformedError(f"{path}{member}[{index}].name: must be a string") from None
    return raw


def _object(raw: object, path: str) -> Json:
    if not isinstance(raw, dict):
        raise MalformedError(f"{path}: must be an object")
    return raw


def text_of(raw: Json, name: str) -> str:
    """A field's text, empty where it is absent. Raises MalformedError where it is not text."""
    value = raw.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedError(f"{name}: must be a string")
    return value


def _texts(raw: object, path: str) -> None:
    if raw is None:
        return
    for key, value in _object(raw, path).items():
        if not isinstance(value, str):
            raise MalformedError(f"{path}[{key}]: must be a string")


def _whole(raw: object, path: str) -> None:
    if raw is not None and (not isinstance(raw, int) or isinstance(raw, bool)):
        raise MalformedError(f"{path}: must be a whole number")


def annotations_of(pod: Json) -> Json:
    """A checked pod's annotations, empty if it has none."""
    return pod["metadata"].get("annotations") or {}


def labels_of(pod: Json) -> Json:
    """A checked pod's labels, empty if it has none."""
    return pod["metadata"].get("labels") or {}


def variables_of(container: Json) -> list[str]:
    """The names of a checked container's variables."""
    return [each["name"] for each in sequence_of(container.get("env"))]


def sequence_of(raw: object) -> Sequence[Json]:
    """A checked list of the pod's spec, empty where it is absent."""
    return raw if isinstance(raw, list) else []


def added_ephemeral(pod: Json, old: Json) -> Iterator[tuple[int, Json]]:
    """The ephemeral containers that are not in the old pod, each with its index."""
    before = {each["name"] for each in sequence_of(old["spec"].get("ephemeralContainers"))} if old else set()
    for index, container in enumerate(sequence_of(pod["spec"].get("ephemeralContainers"))):
        if container["name"] not in before:
            yield index, container
