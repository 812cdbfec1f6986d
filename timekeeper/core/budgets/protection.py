"""Which pods a budget entry's field ``protect`` selects, and its floor: up to this much they keep class and
cards when the budget is spent."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Protection:
    """The field ``protect``. A pod is selected if it has all ``labels`` and, where ``kinds`` are given, a
    controller of one of them. Of the two floors one is None."""

    labels: tuple[tuple[str, str], ...] = ()
    kinds: tuple[str, ...] = ()  # of controllers, as ``Deployment``
    cards_milli: int | None = None  # what the protected pods may hold at one time, unweighted, in milli-GPU
    amount: int | None = None  # what they may use in a period, in milli-GPU x milliseconds

    @property
    def floor(self) -> int:
        """The floor in its unit."""
        return (self.amount if self.cards_milli is None else self.cards_milli) or 0

    def selects(self, owner: str, labels: Mapping[str, object]) -> bool:
        """Whether it selects a pod with this controller (``Kind/name``) and these labels of its own."""
        if self.kinds and owner.partition("/")[0] not in self.kinds:
            return False
        return all(labels.get(name) == value for name, value in self.labels)
