"""The query parameters of the extender's pages. Every mistake is an error; none is ignored."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.reports.advice import MAX_FREE
from scheduler_ext.scoring.typical_pods import TypicalPod, TypicalPods
from scheduler_ext.verbs.protocol import MalformedArgsError
from timekeeper.core import names
from timekeeper.core.quantity import thousandths
from timekeeper.core.values import WHOLE_MILLI

MAX_NODES, USUAL_NODES = 500, 100
MAX_PODS, USUAL_PODS = 1_000, 200
MAX_SIZES, TYPICAL_SIZES = 16, 6

_SHORT = {name.partition("/")[2]: name for name in (names.GPU_PERCENT, names.GPU_MEMORY, names.GPU_COUNT)}
_BARE = (*_SHORT, "cpu", "model")
_SIZE = "such as gpu-percent:50, gpu-count:2,cpu:16, gpu-memory:8000,model:H100 or nvidia.com/gpu:1"


@dataclass(frozen=True, slots=True)
class Size:
    """A requested size, as text and as a pod that requests exactly that."""

    text: str
    pod: Pod


@dataclass(frozen=True, slots=True)
class ClusterQuery:
    """``node``: only this node, "" for all. ``after``: nodes with later names. ``sizes``: sizes to count;
    empty: typical ones. ``free``: advice for up to this many whole cards of a node."""

    node: str
    after: str
    limit: int
    sizes: tuple[Size, ...]
    free: int


@dataclass(frozen=True, slots=True)
class WaitingQuery:
    """``namespace`` and ``name``: only these pods, "" for all. ``after``: pods with a later
    ``namespace/name``."""

    namespace: str
    name: str
    after: str
    limit: int


def cluster_query(given: Mapping[str, Sequence[str]]) -> ClusterQuery:
    """The query of ``/v1/cluster``. Raises MalformedArgsError."""
    _known(given, ("node", "after", "limit", "request", "free"))
    asked = given.get("request", ())
    if len(asked) > MAX_SIZES:
        raise MalformedArgsError(f"request: at most {MAX_SIZES} of them, not {len(asked)}")
    return ClusterQuery(
        node=_one(given, "node"),
        after=_one(given, "after"),
        limit=_number(given, "limit", USUAL_NODES, MAX_NODES),
        sizes=tuple(size(text) for text in asked),
        free=_number(given, "free", 0, MAX_FREE),
    )


def waiting_query(given: Mapping[str, Sequence[str]]) -> WaitingQuery:
    """The query of ``/v1/waiting``. Raises MalformedArgsError."""
    _known(given, ("namespace", "name", "after", "limit"))
    return WaitingQuery(
        namespace=_one(given, "namespace"),
        name=_one(given, "name"),
        after=_one(given, "after"),
        limit=_number(given, "limit", USUAL_PODS, MAX_PODS),
    )


def size(text: str) -> Size:
    """A request as ``resource:amount,...``; ``bursar.dev/`` may be omitted, and ``cpu`` and ``model`` may be
    added. It is parsed like a pod's limits. Raises MalformedArgsError."""
    limits: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for part in text.split(","):
        name, _, amount = part.strip().partition(":")
        if (
            not amount
            or not ("/" in name or name in _BARE)
            or (name == "cpu" and thousandths(amount) is None)
        ):
            raise MalformedArgsError(f"request {text!r}: {part!r} is not resource:amount, {_SIZE}")
        if name == "model":
            annotations[names.MODELS] = amount.replace("|", ",")
        else:
            limits[_SHORT.get(name, name)] = amount
    pod = pod_of(limits, annotations)
    if pod is None:
        raise MalformedArgsError(f"request {text!r} requests no GPU; {_SIZE}")
    if pod.request is None:
        raise MalformedArgsError(f"request {text!r}: {pod.malformed}")
    return Size(text, pod)


def typical_sizes(typical_pods: TypicalPods) -> tuple[Size, ...]:
    """The most frequent GPU requests of the typical pods."""
    counts = [typical for typical, _ in typical_pods.counts if typical.devices and not typical.exclude_models]
    return tuple(size(_text_of(typical)) for typical in counts[:TYPICAL_SIZES])


def _text_of(typical: TypicalPod) -> str:
    parts = (
        {"gpu-count": typical.devices} if typical.devices > 1 or typical.share_milli == WHOLE_MILLI else {}
    )
    if 0 < typical.share_milli < WHOLE_MILLI:
        parts["gpu-percent"] = typical.devices * typical.share_milli // 10
    if typical.memory_mib:
        parts["gpu-memory"] = typical.devices * typical.memory_mib
    words = [f"{name}:{amount}" for name, amount in parts.items()]
    words += [f"cpu:{typical.cpu_milli}m"] if typical.cpu_milli else []
    words += ["model:" + "|".join(typical.models)] if typical.models else []
    return ",".join(words)


def pod_of(limits: Mapping[str, str], annotations: Mapping[str, str]) -> Pod | None:
    """A waiting pod of one container with these limits; None if it requests no GPU."""
    resources = {"limits": dict(limits), "requests": dict(limits)}
    named = dict.fromkeys(("name", "namespace", "uid"), "asked")
    return read_pod(
        {
            "metadata": {**named, "annotations": dict(annotations)},
            "spec": {"containers": [{"name": "main", "resources": resources}]},
            "status": {},
        }
    )


def _known(given: Mapping[str, Sequence[str]], names_: Collection[str]) -> None:
    for name in given:
        if name not in names_:
            raise MalformedArgsError(f"{name!r} is not a parameter; there are {', '.join(names_)}")


def _one(given: Mapping[str, Sequence[str]], name: str) -> str:
    values = given.get(name, ())
    if len(values) > 1:
        raise MalformedArgsError(f"{name}: at most one, not {len(values)}")
    return values[0] if values else ""


def _number(given: Mapping[str, Sequence[str]], name: str, usual: int, most: int) -> int:
    text = _one(given, name)
    if not text:
        return usual
    if not text.isascii() or not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= most:
        raise MalformedArgsError(f"{name}: {text!r} is not a whole number from 1 to {most}")
    return int(text)
