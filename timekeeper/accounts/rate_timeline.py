"""What postings come to together: the rate at each moment, corrections taken into account."""

from collections.abc import Iterable
from dataclasses import dataclass

Charge = tuple[int, int, int]  # from and to in milliseconds, rate in milli-GPU with its sign


@dataclass(frozen=True, slots=True)
class RateInterval:
    """A time, from (included) to (excluded), through which the rate stayed the same."""

    from_ms: int
    to_ms: int
    rate_milli: int

    @property
    def amount(self) -> int:
        """Milli-GPU x milliseconds."""
        return self.rate_milli * (self.to_ms - self.from_ms)


def steps(charges: Iterable[Charge]) -> dict[int, int]:
    """By how much the rate changes at each moment, in the order of time; moments without a change are left
    out. Two sets of charges come to the same, moment by moment, exactly where their steps are equal."""
    changes: dict[int, int] = {}
    for from_ms, to_ms, rate_milli in charges:
        if to_ms > from_ms:
            changes[from_ms] = changes.get(from_ms, 0) + rate_milli
            changes[to_ms] = changes.get(to_ms, 0) - rate_milli
    return {at: changes[at] for at in sorted(changes) if changes[at]}


def runs(changes: dict[int, int]) -> tuple[RateInterval, ...]:
    """The times of one rate that these steps make, without those of rate 0."""
    found = []
    rate_milli = since_ms = 0
    for at_ms, change in changes.items():
        if rate_milli:
            found.append(RateInterval(since_ms, at_ms, rate_milli))
        rate_milli, since_ms = rate_milli + change, at_ms
    return tuple(found)
