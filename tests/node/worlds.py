"""Builders of what the agent is told."""

from typing import Any

from sidecar.node.values import CardLoad, CardSilent, DeviceReading, GPUProcess, NodeCard, NodeState, PodState

MEMORY_MIB = 81_920


def card(uuid: str = "GPU-a", **fields: Any) -> NodeCard:
    """A healthy whole card."""
    plain = NodeCard(uuid, 0, "NVIDIA H100", MEMORY_MIB, True, "", 0, (), None, ())
    return plain.but(**fields)


def look(*cards: NodeCard, **fields: Any) -> DeviceReading:
    """A look at these cards; with ``silent``, ``divided``, ``at_rest``, ``processes``, ``loads``, ``mps`` or
    ``error`` as keywords."""
    silent: tuple[CardSilent, ...] = fields.get("silent", ())
    processes: tuple[GPUProcess, ...] = fields.get("processes", ())
    loads: tuple[CardLoad, ...] = fields.get("loads", ())
    return DeviceReading(
        cards,
        silent,
        fields.get("divided", ()),
        fields.get("at_rest", ()),
        processes,
        loads,
        fields.get("mps", ()),
        fields.get("error", ""),
    )


def lost(uuid: str, index: int = 0) -> CardSilent:
    """A card that NVML says is lost."""
    return CardSilent(index, uuid, "GPU is lost", True)


def pod(name: str = "p", *cards: str, namespace: str = "team-a") -> PodState:
    """A pod with these cards in its container ``main``."""
    return PodState(f"uid-{name}", namespace, name, cards, False, (("main", cards),) if cards else ())


def node(
    inventory: str | None = None,
    holders: str | None = None,
    capacity: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    is_described: bool = False,
    **fields: str,
) -> NodeState:
    """The agent's node; allocatable is as its capacity where it is not given."""
    stands = tuple(sorted((capacity or {}).items()))
    given = stands if allocatable is None else tuple(sorted(allocatable.items()))
    return NodeState(
        fields.get("uid", "n1"),
        fields.get("version", "1"),
        fields.get("boot", "boot-1"),
        inventory,
        holders,
        stands,
        given,
        fields.get("other_taints"),
        is_described,
    )
