"""Usage reports: what was charged inside a span, by namespace or by pod."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from timekeeper.core.policy import GPU_HOUR

_DIGITS = Decimal("0.000000000001")  # fine enough to tell every single amount from its neighbours


@dataclass(frozen=True, slots=True)
class Charged:
    """Who was charged; ``pod`` and what follows are empty in a report by namespace."""

    namespace: str
    pod: str = ""
    uid: str = ""
    owner: str = ""
    node: str = ""
    models: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report: amounts in milli-GPU x milliseconds."""

    who: Charged
    posted: int
    pending: int

    @property
    def amount(self) -> int:
        """Posted and pending together."""
        return self.posted + self.pending


def report(posted: Iterable[tuple[Charged, int]], pending: Iterable[tuple[Charged, int]]) -> tuple[Row, ...]:
    """The lines of a report, sorted; who was charged nothing is left out."""
    sums: dict[Charged, tuple[int, int]] = {}
    for who, amount in posted:
        settled, open_ = sums.get(who, (0, 0))
        sums[who] = (settled + amount, open_)
    for who, amount in pending:
        settled, open_ = sums.get(who, (0, 0))
        sums[who] = (settled, open_ + amount)
    rows = [Row(who, settled, open_) for who, (settled, open_) in sums.items() if settled or open_]
    return tuple(sorted(rows, key=lambda row: (row.who.namespace, row.who.pod, row.who.uid)))


def gpu_hours(amount: int) -> str:
    """An amount in GPU-hours as decimal text: exact where that ends, else to 12 places, from which the amount
    can still be told."""
    with localcontext() as context:
        context.prec = 50
        hours = (Decimal(amount) / GPU_HOUR).quantize(_DIGITS, ROUND_HALF_EVEN)
    text = f"{hours:f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
