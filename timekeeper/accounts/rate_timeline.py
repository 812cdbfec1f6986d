"""The net rate of postings at each moment, corrections included."""

from collections.abc import Iterable
from dataclasses import dataclass

Charge = tuple[int, int, int]  # from and to in milliseconds, rate in milli-GPU with its sign


@dataclass(frozen=True, slots=True)
class RateInterval:
    """A time, from (included) to (excluded), with one rate."""

    from_ms: int
    to_ms: int
    rate_milli: int

    @property
    def amount(self) -> int:
        """Milli-GPU x milliseconds."""
        return self.rate_milli * (self.to_ms - self.from_ms)


def steps(charges: Iterable[Charge]) -> dict[int, int]:
    """By how much the rate changes at each moment, in order of time, without zeros. Two sets of charges have
    the same net rate at every moment if and only if their steps are equal."""
    changes: dict[int, int] = {}
    for from_ms, to_ms, rate_milli in charges:
        if to_ms > from_ms:
            changes[from_ms] = changes.get(from_ms, 0) + rate_milli
            changes[to_ms] = changes.get(to_ms, 0) - rate_milli
    return {at: changes[at] for at in sorted(changes) if changes[at]}


def runs(changes: dict[int, int]) -> tuple[RateInterval, ...]:
    """The intervals of one rate that these steps describe, without those of rate 0."""
    found = []
    rate_milli = since_ms = 0
    for at_ms, change in changes.items():
        if rate_milli:
            found.append(RateInterval(since_ms, at_ms, rate_milli))
        rate_milli, since_ms = rate_milli + change, at_ms
    return tuple(found)
