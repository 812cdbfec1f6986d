"""What pods hold of cards, for the caps that pods of other schedulers are released within."""

from collections.abc import Callable, Collection, Iterable

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.request.cards import amounts_by_card, decode_placement
from timekeeper.core.request.held import held_milli
from timekeeper.core.values import Card, GPURequest, UndecodableError


def capped_namespaces(
    held: Iterable[HeldPod], namespaces: Iterable[str], history: History, now_ms: int
) -> frozenset[str]:
    """The namespaces whose pods count in a cap of one of these held pods: its own, and those of its group."""
    own = {each.namespace for each in held if each.by_other}
    groups = {history.group(each, now_ms) for each in own} - {""}
    if not groups:
        return frozenset(own)
    return frozenset(own | {each for each in namespaces if history.group(each, now_ms) in groups})


def cards_held(
    pods: Iterable[LedgerPod],
    namespaces: Collection[str],
    scheduler: str,
    cards: Callable[[str], tuple[Card, ...]],
    most_milli: Callable[[GPURequest], int],
) -> dict[str, int]:
    """What the pods of these namespaces hold, in milli-GPU. A pod of another scheduler than ``scheduler``
    that was released and has no node counts with the most that it can hold."""
    total = dict.fromkeys(namespaces, 0)
    for pod in pods:
        if pod.namespace not in total or pod.ended_ms is not None:
            continue
        if pod.node:
            total[pod.namespace] += _held_milli(pod, cards(pod.node))
        elif is_by_other(pod, scheduler) and not pod.is_gated:
            total[pod.namespace] += most_milli(pod.request)
    return total


def is_by_other(pod: LedgerPod, scheduler: str) -> bool:
    """True if another scheduler than this one places the pod."""
    return pod.scheduler not in ("", scheduler)


def _held_milli(pod: LedgerPod, cards: tuple[Card, ...]) -> int:
    try:
        uses = amounts_by_card(pod.request, decode_placement(pod.devices)) if pod.devices else {}
    except UndecodableError:
        uses = {}
    known = {card.uuid for card in cards}
    return held_milli(pod.request, uses if known.issuperset(uses) else {}, 0, cards)
