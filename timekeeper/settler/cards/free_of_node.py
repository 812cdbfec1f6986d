"""What is free of one node."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import Session
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.dialects.mig import card_model
from timekeeper.core.dialects.moments import most_at_once
from timekeeper.core.dialects.nvidia_parts import MIG, instance_profile, is_in_parts
from timekeeper.core.free_cards import Apart, FreeUnit, NodeFree, Unnamed, in_cards, on_node
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.request.cards import amounts_by_card, decode_placement
from timekeeper.core.values import WHOLE_MILLI, Card, UndecodableError
from timekeeper.settler.cards.claim_devices import ClaimDevices
from timekeeper.settler.cluster.known_nodes import KnownNode


class Holder(NamedTuple):
    """A session that holds cards. ``covered_milli``: what other sessions hold of them; a pod that reserves a
    card for pods with fractions holds the rest."""

    session: Session
    pod: LedgerPod | None
    covered_milli: int


class FreeOfNode(NamedTuple):
    """``milli``: by the model of whole cards, in thousandths of these; ``labels`` as in `NodeFree`."""

    node: NodeFree
    milli: Counter[str]


def free_of(
    node: KnownNode, held: Iterable[Holder], devices: ClaimDevices, closed: bool, kept: Container[str]
) -> FreeOfNode:
    """What is free of a node. ``kept``: cards that are kept empty for a gang."""
    cards = [card for card in node.cards if "" not in devices.uuids and card.uuid not in devices.uuids]
    parts = {name: card for card in cards if is_in_parts(card) for name, _ in card.resources}
    used, taken, unnamed, covered = dict[str, CardAmount](), Counter[str](), list[Unnamed](), 0
    for session, pod, covered_milli in held:
        of_parts = {name: amount for name in parts if pod is not None and (amount := _asked(pod, name))}
        uses = _uses(session, pod)
        if of_parts:
            taken.update(of_parts)
        elif uses and uses.keys() <= {card.uuid for card in cards}:
            used.update({uuid: used.get(uuid, NO_AMOUNT) + use for uuid, use in uses.items()})
        elif not (cards and pod is not None and all(each.ask.device for each in pod.request.asks)):
            unnamed.append((session.models, session.requested_milli))  # no other vendor's device beside them
            covered += covered_milli
    apart = node.apart or ("excluded" if closed and not devices.units else "")
    whole, in_parts = list[FreeUnit](), list[FreeUnit]()
    for card in cards:
        its = "unhealthy" if not card.healthy else "cordoned" if card.uuid in node.cordoned else apart
        if not is_in_parts(card):
            left = 0 if card.uuid in kept else _left(card, used.get(card.uuid, NO_AMOUNT))
            size = weight_of(card.model, ())
            whole.append(FreeUnit(card.model, left, its, card_model(card.model), size))
    for name, card in sorted(parts.items()):
        in_parts += _parts(name, card, node, taken[name], apart)
    if not (cards or devices.units):
        whole += _undescribed(node, apart)
    in_parts += [unit._replace(apart=unit.apart or node.apart) for unit in devices.units]
    models = *on_node(whole, _beside(unnamed, covered)), *on_node(in_parts)
    found = NodeFree(node.labels, len(unnamed) if whole else 0, models)
    return FreeOfNode(found, in_cards(models, (*whole, *in_parts)))


def _parts(name: str, card: Card, node: KnownNode, taken: int, apart: Apart) -> Iterator[FreeUnit]:
    """The node's replicas, or instances of a profile, of which the card and those like it have a number.
    ``taken``: of instances in slices."""
    profile = instance_profile(name)
    amount = profile.slices if profile else 1  # of the resource, that a unit takes
    kind = f"MIG {name.removeprefix(MIG)}" if profile else name.removeprefix("nvidia.com/")
    model, size = card_model(card.model), -(-WHOLE_MILLI * amount // dict(card.resources)[name])
    for at in range(node.gpus.get(name, 0)):
        yield FreeUnit(f"{card.model} {kind}", WHOLE_MILLI * (amount * at >= taken), apart, model, size)


def _undescribed(node: KnownNode, apart: Apart) -> Iterator[FreeUnit]:
    """What plugins count, where nothing describes it: of each vendor's resource whole devices."""
    others = {name: amount for name, amount in node.gpus.items() if accelerator_of(name)}
    number = node.devices - sum(others.values())
    for name, amount in others.items():
        parts = node.rated.devices.get(name, 1)
        yield from [FreeUnit(name, WHOLE_MILLI, apart, name)] * -(-amount // parts)
    name = ", ".join(name for name in node.gpus if name not in others)
    yield from [FreeUnit(name, WHOLE_MILLI, apart)] * (number if name else 0)


def _beside(unnamed: Iterable[Unnamed], covered_milli: int) -> Iterator[Unnamed]:
    """Without what pods with fractions hold of cards that others reserve for them."""
    for models, milli in sorted(unnamed, key=lambda each: each[1]):
        within = min(milli, covered_milli) if milli < WHOLE_MILLI else 0
        covered_milli -= within
        if milli > within:
            yield models, milli - within


def _asked(pod: LedgerPod, resource: str) -> int:
    return most_at_once(
        pod.request.asks, lambda each: each.ask.devices * dict(each.ask.resources).get(resource, 0)
    )


def _uses(session: Session, pod: LedgerPod | None) -> dict[str, CardAmount]:
    """What it takes of each card, by UUID; empty where nothing names them."""
    read = (pod.as_read or pod) if pod is not None else None
    try:
        placement = decode_placement(session.devices or (read.devices if read else ""))
    except UndecodableError:
        return {}
    if read is not None and read.request.asks:
        return amounts_by_card(read.request, placement)
    slices = (part for _, container in placement.containers for part in container)
    return {part.uuid: CardAmount(part.share_milli, part.memory_mib) for part in slices}


def _left(card: Card, use: CardAmount) -> int:
    """What of the card may be given out, in thousandths: of the respect in which the least is left."""
    named = dict(use.resources)
    parts = [WHOLE_MILLI * named.get(name, 0) // most for name, most in card.resources if most]
    memory = -(-WHOLE_MILLI * use.memory_mib // max(1, card.memory_mib))
    return max(0, WHOLE_MILLI - max(use.share_milli, memory, *parts))
