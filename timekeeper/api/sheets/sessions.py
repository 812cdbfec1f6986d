"""Sessions, held pods, and the charges on a node."""

from collections.abc import Iterator

from timekeeper.api.sheets.sheet import (
    AGE,
    AMOUNT,
    DECIMAL,
    GPUS,
    GROUP,
    INTEGER,
    NAMESPACE,
    NODE,
    OWNER,
    POD,
    SENTENCE,
    TEXT,
    TIME,
    Column,
    Json,
    Sheet,
)

_ADMITTED: dict[bool | None, str] = {True: "in budget", False: "over budget"}


def _device(raw: Json) -> str:
    """A claim's device: POOL/DEVICE, and that it is a share of it, or admin access."""
    word = ":admin" if raw["admin"] else ":share" if raw["share"] else ""
    return f"{raw['pool']}/{raw['device']}{word}"


def _holder(raw: Json) -> str:
    return f"claim/{raw['pod']}" if raw["kind"] == "claim" else str(raw["pod"])


def _held(raw: Json) -> str:
    return str(len(raw["cards"]) or len(raw["devices"]) or "")


def _admitted(raw: Json) -> str:
    return _ADMITTED.get(raw["admittedInBudget"], "")


def _shown(answer: Json) -> Iterator[Column]:
    """Without devices where no claim holds any."""
    has_devices = any(each["devices"] for each in answer["sessions"])
    yield from (each for each in SESSIONS.columns if has_devices or each.key != "devices")


SESSIONS = Sheet(
    columns=(
        NAMESPACE("namespace", "Namespace", "whose account pays"),
        POD("pod", "Pod", "the pod, or claim/NAME for a device claim", _holder),
        TEXT("uid", "UID", "of the pod, or of the claim's allocation", priority=1),
        OWNER("owner", "Owner", "the pod's controller", priority=1),
        NODE("node", "Node", "where it holds cards"),
        TEXT("models", "Model", "of its cards"),
        DECIMAL("cards", "Cards", "how many cards or devices it holds", _held),
        GPUS("gpus", "GPUs", "the rate that it is charged at, in weighted GPUs", "rateMilli"),
        TIME("bound", "Since", "since when it holds them", priority=1),
        AGE(
            "age", "Age", "how long it held them", lambda raw: (raw["bound"], raw["ended"] or raw["vanished"])
        ),
        TIME("vanished", "Removed", "when its object was removed", lambda raw: raw["vanished"] or "", 1),
        AMOUNT("gpuHours", "GPU-hours", "what it was charged, posted and pending", "amount"),
        TEXT("state", "State", "settled: the charge is final"),
        TEXT(
            "admitted", "Admitted", "whether its namespace was in budget when the pod was created", _admitted
        ),
        TEXT("devices", "Devices", "of a claim", lambda raw: ",".join(map(_device, raw["devices"]))),
    ),
    rows=lambda answer: answer["sessions"],
    empty="no pod holds a card",
    chosen=_shown,
)
HELD = Sheet(
    columns=(
        NAMESPACE("namespace", "Namespace", "of the pod"),
        POD(
            "pod",
            "Pod",
            "the pod, or a gang with how many of its pods are held",
            lambda raw: f"gang {raw['gang']} ({raw['pods']} pods)" if raw["gang"] else raw["pod"],
        ),
        TEXT("waitsFor", "Waits for", "its budget, or its turn"),
        INTEGER("ahead", "Ahead", "how many of its namespace are released before it"),
        INTEGER("priority", "Priority", "the larger is released first"),
        GPUS("gpus", "GPUs", "the highest rate that it can have, in weighted GPUs", "rateMilli"),
        AGE("age", "Age", "since its creation", lambda raw: (raw["created"], None)),
        TIME("created", "Created", "when it was created", priority=1),
        TIME(
            "earliest",
            "Earliest",
            "its release by the present budget",
            lambda raw: "not by this budget" if raw["earliest"] is None else raw["earliest"],
        ),
    ),
    rows=lambda answer: answer["held"],
    empty="no pod is held",
)


def _state(answer: Json, _now_ms: int) -> Iterator[str]:
    """Whether the node is there, and until when it was heard."""
    node, heard, left = answer["node"], _seconds(answer["heard"]), _seconds(answer["left"])
    last = f"last heard with a pod on it at {heard}" if heard else "never heard with a pod on it"
    match answer["state"]:
        case "left":
            yield f"Node {node} has left: it was {last}, and the API server has no such Node since {left}."
        case "silent":
            yield f"Node {node} is silent: it was {last}; the API server still has it."
        case _:
            yield f"Node {node} is there; it was {last}."


def _seconds(text: str | None) -> str:
    """The API's time in whole seconds; "" for None."""
    return f"{text[:19]}Z" if text else ""


def _why(raw: Json) -> str:
    is_open = raw["state"] == "open" and raw["end"] not in ("runs", "silent")
    return f"{raw['why']}; later proof may change it" if is_open else str(raw["why"])


NODE_CHARGES = Sheet(
    columns=(
        NAMESPACE("namespace", "Namespace", "whose account pays"),
        GROUP("group", "Group", "of the namespace", lambda raw: raw["group"] or None),
        POD("pod", "Pod", "that held the cards"),
        GPUS("held", "Cards", "its part of the cards together", "heldMilli"),
        TIME("from", "From", "when it got them", lambda raw: _seconds(raw["from"])),
        TIME("to", "Charged until", "runs: it holds them still", lambda raw: _seconds(raw["to"]) or "runs"),
        AMOUNT("gpuHours", "GPU-hours", "what it was charged, posted and pending", "amount"),
        SENTENCE("why", "Why", "why it is charged until then", _why),
    ),
    rows=lambda answer: answer["charges"],
    empty="no pod held cards there",
    notes=_state,
)
