"""Names in objects of Kubernetes, and kinds of decisions."""

from collections.abc import Collection

from tests.reference.blocks import table
from timekeeper.core import names
from timekeeper.core.decisions import KINDS
from timekeeper.core.object_names import GATE_NAMES, OBJECT_NAMES

_NOTES = {
    names.GPU_PERCENT: "requests.md",
    names.CARD_MILLIONTHS: "cluster-autoscaler.md#what-is-added-up",
    names.IDLE: "node-agent.md#idle-pods",
    names.WANTS_SIDECAR: "governed-pods.md#the-sidecar",
    names.BUDGETS_LABEL: "budget-settings.md",
    names.CORDONED_CARDS: "extender.md#closed-nodes",
    names.NODE_CHANGE: "nodes.md",
    names.INVENTORY: "node-agent.md#what-it-writes",
    names.HOLDERS: "node-agent.md#which-pods-use-which-cards",
}
_LINKS = {
    "refused": "[rules.md](rules.md)",
    "capped": "[caps](caps.md)",
}


def of_users() -> str:
    """Those that users write."""
    return _names({"user"})


def of_administrators() -> str:
    """Those that administrators write."""
    return _names({"administrator"})


def of_pods() -> str:
    """Those that Bursar writes on pods."""
    return _names({"webhook", "Binding", "extender", "timekeeper"})


def of_nodes() -> str:
    """Those that the node agent writes."""
    return _names({"node agent"})


def kinds_of_decisions() -> str:
    """The kinds of decisions with their reasons."""
    rows = (
        (f"`{kind}`", f"{each.reasons} ({_LINKS[kind]})" if kind in _LINKS else each.reasons, each.by)
        for kind, each in KINDS.items()
    )
    return table(("kind", "reasons", "by"), rows)


def _names(writers: Collection[str]) -> str:
    texts = {each for each in vars(names).values() if isinstance(each, str) and f"{names.DOMAIN}/" in each}
    known = OBJECT_NAMES.keys() | GATE_NAMES.keys()
    if texts != known:
        raise ValueError(f"a name without a meaning, or the reverse: {texts ^ known}")
    of_all = (*OBJECT_NAMES.items(), *GATE_NAMES.items())
    found = [(name, each) for name, each in of_all if each.by in writers]
    with_writer = len(writers) > 1
    rows = (
        (f"`{name}`", each.kind, *([each.by] if with_writer else []), _linked(name, each.meaning))
        for name, each in found
    )
    return table(("name", "kind", *(["written by"] if with_writer else []), "meaning"), rows)


def _linked(name: str, meaning: str) -> str:
    target = _NOTES.get(name)
    return f"{meaning} ([{target.partition('#')[0]}]({target}))" if target else meaning
