"""What a pod requests of two cards in the joint law of held and charged time, and what it holds of them."""

import random
from dataclasses import dataclass
from typing import Any

from tests import worlds

Json = dict[str, Any]

CARD_MIB = 16_000

Amounts = dict[str, tuple[int, int]]  # by card: thousandths of its compute, MiB


@dataclass(frozen=True)
class Part:
    """What one container requests of one card; 0: it does not name the amount."""

    card: str
    percent: int
    requested_mib: int

    @property
    def amount(self) -> tuple[int, int]:
        return 10 * self.percent, self.requested_mib or CARD_MIB * self.percent // 100

    def container(self, name: str) -> Json:
        named = {"bursar_dev__gpu_percent": self.percent, "bursar_dev__gpu_memory": self.requested_mib}
        return worlds.limits_of(name, **{key: str(value) for key, value in named.items() if value})

    def placed(self) -> list[Json]:
        share, mib = self.amount
        return [{"uuid": self.card, "index": int(self.card[-1]), "share_milli": share, "memory_mib": mib}]


@dataclass(frozen=True)
class Asks:
    """A pod's containers that request GPUs: an init container, ordinary ones, or both."""

    init: Part | None
    ordinary: dict[str, Part]

    @property
    def placed(self) -> Json:
        parts = self.ordinary | ({"setup": self.init} if self.init else {})
        return {name: part.placed() for name, part in parts.items()}

    def held(self) -> Amounts:
        """By card, the larger of the ordinary containers' sum and the init container's part."""
        found: Amounts = {}
        for part in self.ordinary.values():
            share, mib = found.get(part.card, (0, 0))
            found[part.card] = (share + part.amount[0], mib + part.amount[1])
        if self.init is not None:
            share, mib = found.get(self.init.card, (0, 0))
            found[self.init.card] = (max(share, self.init.amount[0]), max(mib, self.init.amount[1]))
        return found


def drawn(rng: random.Random) -> Asks:
    """In a third of the cases the init container alone requests cards."""

    def part() -> Part:
        percent = rng.choice([0, 10, 25, 40])
        return Part(
            rng.choice(["GPU-0", "GPU-1"]), percent, rng.choice([0, 500, 4000] if percent else [3000])
        )

    kind = rng.randrange(3)
    ordinary = {} if kind == 0 else {name: part() for name in rng.choice([["main"], ["main", "second"]])}
    return Asks(part() if kind in (0, 1) else None, ordinary)


def parts_milli(amounts: Amounts) -> int:
    """The pod's rate at weight 1: of each card the larger part, memory rounded up."""
    return sum(max(share, -(-1000 * mib // CARD_MIB)) for share, mib in amounts.values())
