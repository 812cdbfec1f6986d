"""Decisions as sentences for people."""

from collections.abc import Callable, Mapping

from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.cluster_map import held_sentence
from timekeeper.core.decisions import (
    BIND_UNDONE,
    CAPPED,
    DEMOTED,
    HELD,
    MESSAGE,
    OTHER_NAMESPACE,
    OTHER_POD,
    PLACED,
    PREEMPTED,
    RECLAIMED,
    WAITING,
    WAITS_FOR_DEVICES,
    Decision,
    Figure,
)
from timekeeper.core.rating.held import cards_text

Figures = Mapping[str, Figure]

_BUDGET = "budget"  # whose it is
_MAX_NAMED = 4  # cards in a sentence
ANOTHER = "a pod of another namespace"  # in place of the name of a pod that the reader may not know


def sentence(decision: Decision) -> str:
    """What was decided, in one sentence or a few."""
    figures = decision.figures
    if MESSAGE in figures:
        return str(figures[MESSAGE])
    tell = _SENTENCES.get(decision.kind)
    return tell(decision.reason, {**figures, _BUDGET: decision.budget}) if tell else _plain(decision)


def without_other(figures: Figures) -> dict[str, Figure]:
    """The figures without the name of the other pod."""
    return {name: value for name, value in figures.items() if name not in (OTHER_NAMESPACE, OTHER_POD)}


def waits_for(figures: Figures) -> list[str]:
    """What would have to change for a pod that waits, what decides first: each a part of a sentence."""
    scheduler = str(figures.get("scheduler", "")).rstrip(".")
    said = [f"kube-scheduler says: {scheduler}"] if scheduler and "obstacle" not in figures else []
    return [*_waits_for(figures), *said] if "heldCards" in figures else [*said, *_waits_for(figures)]


def _decides(figures: Figures) -> str:
    """What alone keeps it off every node; "": nothing does."""
    if "obstacle" not in figures and "lacksBesideCards" in figures:
        return f"node {figures['freeCardsNode']} has the cards, and lacks {figures['lacksBesideCards']}"
    return str(figures.get("obstacle", ""))


def _waits_for(figures: Figures) -> list[str]:
    decides = _decides(figures)
    if "obstacle" in figures:  # while it stands nothing else matters
        return [decides]
    found = [decides] if decides else []
    if "capMilli" in figures:
        needs, cap, held = (_number(figures[name]) for name in _CAP_FIGURES)
        found.append(f"needs at least {needs} of a cap of {cap} cards, of which others hold {held}")
    elif "heldCards" in figures and "lacksBesideCards" not in figures:
        found.append(held_sentence(int(figures["heldCards"]), int(figures["heldNodes"])))
    elif "cardsNeeded" in figures:
        hole = (
            f"the card with most free memory has {figures['largestHoleMib']} MiB and"
            f" {_cards(figures['largestHoleMilli'])} of its compute free, on {figures['largestHoleNode']}"
            if "largestHoleNode" in figures
            else "no card is free"
        )
        found.append(f"needs {_needed(figures)}; {hole}")
    if figures.get("podsAhead"):
        ahead = figures["podsAhead"]
        found.append("1 waiting pod is ahead" if ahead == 1 else f"{ahead} waiting pods are ahead")
    return found


_CAP_FIGURES = ("needsAtLeastMilli", "capMilli", "heldByOthersMilli")


def _number(milli: Figure) -> str:
    return cards_text(int(milli))


def _needed(figures: Figures) -> str:
    cards = int(figures["cardsNeeded"])
    share, memory = int(figures.get("shareNeededMilli", 0)), int(figures.get("memoryNeededMib", 0))
    each = [f"{share // 10}% of the compute"] if share else []
    each += [f"{memory} MiB"] if memory else []
    what = f" with {' and '.join(each)}" if each else ""
    return f"{cards} cards{what} on one node" if cards > 1 else f"1 card{what}"


def _cards(milli: Figure) -> str:
    return f"{int(milli) / 10:g}%"


def _other(figures: Figures) -> str:
    if OTHER_POD not in figures:
        return ANOTHER
    return f"pod {figures[OTHER_NAMESPACE]}/{figures[OTHER_POD]}"


def _placed(_reason: str, figures: Figures) -> str:
    if not figures.get("cards"):
        return f"Placed on node {figures.get('node')}, whose plugin chooses the cards."
    share, memory = int(figures.get("shareMilli", 0)) / 1000, figures.get("memoryMib")
    amounts = [f"compute of {share:g} card{'' if share == 1 else 's'}"] if share else []
    amounts += [f"{memory} MiB"] if memory else []
    what = (
        f" {' and '.join(amounts)}, on" if amounts else ""
    )  # else named resources, such as replicas of a card
    return f"Placed on node {figures.get('node')}:{what} {_card_names(figures)}."


def _card_names(figures: Figures) -> str:
    """Cards as ``node/index``, or how many they are; the figure ``cards`` has their UUIDs."""
    uuids = str(figures.get("cards", "")).split(",")
    indexes = [each for each in str(figures.get("cardIndexes", "")).split(",") if each]
    if 0 < len(indexes) <= _MAX_NAMED:
        return ", ".join(f"{figures.get('node')}/{each}" for each in indexes)
    return "1 card" if len(uuids) == 1 else f"{len(uuids)} cards"


def _payer(figures: Figures) -> str:
    key = str(figures.get(_BUDGET, ""))
    return f"its group {key}" if key.startswith(GROUP) else "its namespace"


def _demoted(_reason: str, figures: Figures) -> str:
    whose = _payer(figures)
    by_others = f"pods admitted in the seconds before used the rest of the GPU budget of {whose}"
    why = by_others if "byEstimate" in figures else f"{whose} was over its GPU budget"
    return (
        f"Created while {why}, with the priority class"
        f" {figures.get('priorityClass') or 'of pods over budget'}: pods of namespaces in budget go first."
    )


def _held(reason: str, figures: Figures) -> str:
    why = {
        "OverBudget": f"{_payer(figures)} is over its GPU budget",
        "WaitsForBudget": f"the rest of the GPU budget of {_payer(figures)} does not pay its lookahead",
        "WaitsForTurn": "it must wait for its turn",
        "WaitsForClaims": "it was not known what its claims ask for",
        "DeclaredTime": "its budget reserves the whole time that it declares, "
        f"{int(figures.get('declaredMs', 0)) // 1000} s and its grace period, before it is released",
    }.get(reason, "its budget asks for it")
    return f"Created with the scheduling gate bursar.dev/budget: {why}."


def _waiting(reason: str, figures: Figures) -> str:
    if reason == "VictimsEvicted":
        return f"On node {figures.get('node')} {_other(figures)} is evicted for it."
    if reason == "BindFailed":
        return f"It could not be bound: {figures.get('bindError')}."
    why = f"no node takes it: {figures.get('reasons')}"
    if reason in ("Unschedulable", WAITS_FOR_DEVICES):
        why = f"kube-scheduler finds no node for it: {str(figures.get('scheduler')).rstrip('.')}"
    parts = _waits_for(figures)
    parts.insert(len(parts) if "heldCards" in figures else 1 if _decides(figures) else 0, why)
    said = "; ".join(parts)
    return f"{said if parts[0].startswith('kube-') else said[:1].upper() + said[1:]}."


def _undone(_reason: str, figures: Figures) -> str:
    return f"The binding to node {figures.get('node')} did not happen; the GPUs assumed there are free again."


def _reclaimed(_reason: str, figures: Figures) -> str:
    return (
        f"Evicted from node {figures.get('node')} ({figures.get('how')}): {_payer(figures)} is over its GPU"
        f" budget, and {_other(figures)} needs its GPUs."
    )


def _preempted(_reason: str, figures: Figures) -> str:
    if "podPriority" not in figures:
        return (
            f"Evicted from node {figures.get('node')} ({figures.get('how')}) for a pod of higher priority;"
            f" its own is {figures.get('victimPriority')}."
        )
    return (
        f"Evicted from node {figures.get('node')} ({figures.get('how')}) for {_other(figures)}, whose"
        f" priority is {figures.get('podPriority')}; its own is {figures.get('victimPriority')}."
    )


def _plain(decision: Decision) -> str:
    shown = without_other(decision.figures)
    given = ", ".join(f"{name} {value}" for name, value in sorted(shown.items()))
    return f"{decision.kind.capitalize()}: {decision.reason}" + (f" ({given})." if given else ".")


_SENTENCES: Mapping[str, Callable[[str, Figures], str]] = {
    PLACED: _placed,
    DEMOTED: _demoted,
    HELD: _held,
    WAITING: _waiting,
    CAPPED: _waiting,
    BIND_UNDONE: _undone,
    RECLAIMED: _reclaimed,
    PREEMPTED: _preempted,
}
