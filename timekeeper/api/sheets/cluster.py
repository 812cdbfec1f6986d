"""Nodes, cards, and the pods that wait for them."""

from collections.abc import Iterator

from timekeeper.api.sheets.sheet import (
    AGE,
    BADGE,
    DECIMAL,
    GPUS,
    INTEGER,
    NAMESPACE,
    NODE,
    POD,
    SENTENCE,
    STANDING,
    TEXT,
    TIME,
    CellKind,
    Json,
    Sheet,
    exact_percent,
)
from timekeeper.core.cluster_map import STALE_MS, WAITING_STATES, undescribed_sentence, unnamed_sentence
from timekeeper.core.free_cards import APART
from timekeeper.core.texts import NOT_PLACED, age

_CELLS = 10
_FULL, _FREE = "█", "·"
_SHOWN_PODS = 4
_NOT_ASKED = "kube-scheduler has not asked for a node yet"


def bar(used: int, whole: int) -> str:
    """A bar of ten cells, each full if any of it is used, and per cent."""
    if whole <= 0:
        return ""
    full = min(_CELLS, -(-_CELLS * used // whole))
    return f"{_FULL * full}{_FREE * (_CELLS - full)} {100 * used // whole:3d}%"


_BAR = CellKind("bar", lambda parts, _: bar(*parts), exact=exact_percent)
_PODS = CellKind("", lambda raw, _: _pods(raw), exact=lambda raw, _: _pods(raw, None))


def _cards(answer: Json) -> Iterator[Json]:
    """A row for each card, for each node without an inventory, and for what is held of a node without a
    card's name."""
    for node in answer["nodes"]:
        closed = f"closed: {node['closed']}" if node["closed"] else ""
        unnamed = unnamed_sentence(node.get("unnamed", 0), len(node["cards"]))
        for card in node["cards"]:
            yield {**card, "node": node["name"], "closed": closed}
        if not node["cards"]:
            yield {"node": node["name"], "state": closed or undescribed_sentence(node.get("undescribed", ""))}
        elif unnamed:
            yield {"node": node["name"], "state": unnamed}


def _state(raw: Json) -> str:
    if "state" in raw:
        return str(raw["state"])
    faults = (
        ("unhealthy", not raw["healthy"]),
        ("cordoned", raw["cordoned"]),
        (raw["closed"], raw["closed"]),
    )
    return ", ".join(word for word, is_so in faults if is_so)


def _pods(raw: Json, most: int | None = _SHOWN_PODS) -> str:
    pods = raw.get("pods", ())
    held = ((f"{pod['namespace']}/{pod['name']}", pod["held"]) for pod in pods)
    names = [name if state == "bound" else f"{name} ({state})" for name, state in held]
    more = len(names[most or len(names) :]) + raw.get("more_pods", 0)
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _memory(raw: Json) -> tuple[int, int]:
    return raw.get("used_memory_mib", 0), raw.get("memory_mib", 0)


def _post_warnings(answer: Json, now_ms: int) -> Iterator[str]:
    """That the extender has posted nothing, or nothing lately."""
    if answer["posted"] is None:
        yield (
            "Nothing is known: no extender has posted nodes or waiting pods. Where the ledger runs alone"
            " there is none, and kubectl bursar top lists who holds cards; else its flag is --timekeeper-url."
        )
    elif now_ms - answer["posted"] > STALE_MS:
        yield f"This is old: the extender posted last {age(now_ms - answer['posted'])} ago."


def _waiting_warnings(answer: Json, now_ms: int) -> Iterator[str]:
    """The same; and that more pods wait, or may wait, than are listed."""
    listed, total = len(answer["pods"]), answer["total"]
    if not listed and answer["placement"] == "off":
        yield f"{NOT_PLACED}."
        return
    yield from _post_warnings(answer, now_ms)
    if answer["posted"] is not None and total != listed:
        some = "Not all" if total is None else f"{listed} of {total}"
        yield f"{some} waiting pods are listed: kubectl bursar explain POD says why another one waits."


def _takes(model: Json) -> str:
    return ", ".join(f"{size}: {number}" for size, number in model["takes"].items())


def _what_is_not_free(model: Json) -> str:
    apart = [f"{model[word]} {word}" for word in APART if model[word]]
    is_held = model["cards"] > sum(model[word] for word in APART) and not model["whole"] + model["partMilli"]
    return ", ".join((["all held"] if is_held else []) + apart)


def _free_warnings(answer: Json, now_ms: int) -> Iterator[str]:
    """That nothing is known, or nothing new, or not all."""
    if answer["asOf"] is None:
        yield "Nothing is known yet: the settler has not looked."
    elif now_ms - answer["asOf"] > STALE_MS:
        yield f"This is old: the settler looked last {age(now_ms - answer['asOf'])} ago."
    if answer["vague"]:
        yield (
            f"Of {answer['vague']} pods the plugin of their node alone knows which cards they hold: at least"
            " this many are free as a whole."
        )


FREE = Sheet(
    columns=(
        TEXT("model", "Model", "of the cards; a MIG instance, a replica and a claim's device count as cards"),
        INTEGER("cards", "Cards", "of all nodes"),
        INTEGER("free", "Free", "as a whole", "whole"),
        GPUS("parts", "Parts", "what is free of other cards, in cards", "partMilli"),
        TEXT("nodes", "Nodes with", "on how many nodes 1, 2, 4 and 8 whole cards are free", _takes),
        TEXT("state", "State", "that all are held, or how many are not given out", _what_is_not_free),
    ),
    rows=lambda answer: answer["models"],
    empty="no node has such cards",
    warnings=_free_warnings,
)
MAP = Sheet(
    columns=(
        NODE("node", "Node", "the node"),
        DECIMAL("card", "Card", "its number on the node", lambda raw: str(raw.get("index", ""))),
        TEXT("uuid", "UUID", "of the card", lambda raw: raw.get("uuid", ""), 1),
        TEXT("model", "Model", "of the card", lambda raw: raw.get("model", "")),
        _BAR(
            "compute",
            "Compute",
            "how much of its compute is given out",
            lambda raw: (raw.get("used_share_milli", 0), 1000 if "index" in raw else 0),
        ),
        _BAR("memory", "Memory", "how much of its memory is given out", _memory),
        DECIMAL(
            "memoryMiB",
            "MiB",
            "the same in MiB, of how many",
            lambda raw: "/".join(map(str, _memory(raw))) if "index" in raw else "",
        ),
        TEXT("state", "State", "why it is not usable", _state),
        _PODS("pods", "Pods", "that hold a part of it", lambda raw: raw),
    ),
    rows=_cards,
    empty="no card is listed",
    warnings=_post_warnings,
)


def _why_it_waits(raw: Json) -> str:
    return "; ".join(filter(None, (raw["reason"] or _NOT_ASKED, raw.get("when"))))


WAITING = Sheet(
    columns=(
        NAMESPACE("namespace", "Namespace", "of the pod"),
        POD("pod", "Pod", "that is not bound", "name"),
        INTEGER("priority", "Priority", "of the pod"),
        STANDING("standing", "Standing", "of its namespace, as the extender saw it"),
        BADGE(
            "state", "State", "what it waits for", lambda raw: WAITING_STATES.get(raw["state"], raw["state"])
        ),
        AGE("age", "Age", "since its creation", lambda raw: (raw["created"], None)),
        TIME("created", "Waits since", "when it was created", priority=1),
        SENTENCE("reason", "Reason", "that concerns most nodes, and when it may end", _why_it_waits),
    ),
    rows=lambda answer: answer["pods"],
    empty="no GPU pod is listed",
    warnings=_waiting_warnings,
)
