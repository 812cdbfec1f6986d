"""The labels and annotations that Bursar writes on a governed pod, and what they say."""

from collections.abc import Mapping
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.admission.pods import annotations_of
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.json_values import Json
from timekeeper.core.request.request import canonical
from timekeeper.core.values import ContainerAsk, GPURequest
from timekeeper.core.wire import HeldFor, StandingWord

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
LABELS = {names.GOVERNED: "true"}
_FEW, _SHORT = 4, 256  # containers, and characters of their names: bounds the cache


def annotations(
    request: GPURequest, word: StandingWord, hold: HeldFor = "", declared: str = "", gang_key: str = ""
) -> dict[str, str]:
    """The annotations of a governed pod before it is bound."""
    few = len(request.asks) <= _FEW and sum([len(each.container) for each in request.asks]) <= _SHORT
    of_asks = _of_asks if few else _of_asks.__wrapped__
    held = {names.HELD: hold} if hold else {}
    its_time = {names.DECLARED: declared} if declared else {}
    its_gang = {names.GANG_KEY: gang_key} if gang_key else {}
    return {**of_asks(request.dialect, request.asks), names.STANDING: word, **held, **its_time, **its_gang}


@lru_cache(maxsize=1024)
def _of_asks(dialect: str, asks: tuple[ContainerAsk, ...]) -> Mapping[str, str]:
    request = GPURequest(dialect=dialect, asks=asks)
    return {**BY_NAME[dialect].at_admission(request), names.REQUEST: canonical(request)}


def recorded_hold(pod: Json) -> HeldFor:
    """How the pod is held by its annotation; "" where that has no such value."""
    recorded = annotations_of(pod).get(names.HELD)
    return "budget" if recorded == "budget" else "turn" if recorded == "turn" else ""


def looks_governed(pod: Json) -> bool:
    """Whether a new pod has what admission writes into each: it comes again, or is a copy, which cannot be
    told apart."""
    is_labelled = (pod["metadata"].get("labels") or {}).get(names.GOVERNED) == "true"
    return is_labelled and {names.STANDING, names.REQUEST} <= annotations_of(pod).keys()


def declared_time(pod: Json) -> str:
    """The pod's ``activeDeadlineSeconds`` as text; "" without one."""
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return str(seconds) if seconds else ""


def recorded_time(pod: Json) -> str:
    """What `declared_time` should be recorded in the pod's annotation; "" where it has none."""
    return declared_time(pod) if names.DECLARED in annotations_of(pod) else ""
