"""Pictures as values: points in the picture's own coordinates, which templates write as SVG: the burn-down
of a budget, figures over time, and nodes as rows of cards. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from itertools import count, pairwise
from typing import Any

from timekeeper.core.budgets.sentences import account_name, left_sentence
from timekeeper.core.cluster_map import undescribed_sentence, unnamed_sentence
from timekeeper.core.texts import GPU_HOUR, age, hours, moment

WIDTH, HEIGHT = 880, 270
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 14, 30  # around the plot
SIDE, GAP, CARD_HEIGHT = 14, 4, 20  # of a card
_MAX_LINES = 5  # horizontal lines above zero
_MAX_AHEAD = 3  # without a period's end: the picture ends after this many times the past

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A line of the grid: where it is, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDown:
    """Paths as SVG's ``points``. ``left``: what was left until now; ``ahead``: at the present rate; ``band``:
    between the fastest and the slowest pace; ``even``: the same use all the time. ``rows``: the table beside
    it, the time and what was left, oldest first."""

    left: str
    area: str
    ahead: str
    band: str
    even: str
    now: float
    across: tuple[AxisTick, ...]
    up: tuple[AxisTick, ...]
    rows: tuple[tuple[int, int, int], ...]
    is_limited: bool
    group: str  # whose budget the lines ahead are of, as "group research"; "": its own
    zone: str  # of the dates
    sentence: str


@dataclass(frozen=True, slots=True)
class _Plot:
    begin_ms: int
    end_ms: int
    top: int  # the largest amount

    def x(self, at_ms: float) -> float:
        part = (min(max(at_ms, self.begin_ms), self.end_ms) - self.begin_ms) / (self.end_ms - self.begin_ms)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, amount: float) -> float:
        part = min(max(amount, 0), self.top) / self.top
        return round(HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM), 1)

    def points(self, *pairs: tuple[float, float]) -> str:
        return " ".join(f"{self.x(at):g},{self.y(amount):g}" for at, amount in pairs)


def burn_down(
    budget: Json,
    paces: Json | None,
    steps: Sequence[tuple[int, int]],
    begin_ms: int,
    now_ms: int,
    zone: tzinfo = UTC,
) -> BurnDown | None:
    """The picture of an answer of ``GET /v1/budgets/{namespace}`` and of its forecast. ``steps``: the end of
    each step of the calendar and what was charged in it, oldest first. What was left is of its own budget;
    the lines ahead begin at what may be spent, which is less where its group has less left. An account
    without a limit shows what was used instead. Dates are those of ``zone``. None before ``begin_ms``, where
    the picture begins, is a moment ago."""
    if now_ms <= begin_ms:
        return None
    rows = _rows(budget, steps, begin_ms, now_ms)
    plot = _Plot(begin_ms, _end_ms(budget, paces, begin_ms, now_ms), _top(budget, rows))
    shown = [(at, left) for at, _, left in rows]
    is_limited = budget["granted"] is not None
    deciding = budget["deciding"]
    left = deciding["remaining"] if is_limited else 0
    ahead = _Ahead(plot, now_ms, left, paces if is_limited else None)
    base = [(rows[-1][0], 0), (rows[0][0], 0)]
    return BurnDown(
        left=plot.points(*shown),
        area=plot.points(*shown, *base),
        ahead=ahead.line("now"),
        band=ahead.band(),
        even=plot.points((begin_ms, budget["granted"]), (plot.end_ms, 0)) if _has_even(budget) else "",
        now=plot.x(now_ms),
        across=_across(plot, zone),
        up=_up(plot, int(GPU_HOUR), hours),
        rows=rows,
        is_limited=is_limited,
        group=account_name(deciding["subject"]) if deciding["subject"] != budget["namespace"] else "",
        zone=str(zone),
        sentence=_sentence(budget, paces, rows, now_ms),
    )


def _rows(
    budget: Json, steps: Sequence[tuple[int, int]], begin_ms: int, now_ms: int
) -> tuple[tuple[int, int, int], ...]:
    """When, what was used until then, and what was left of the grant (or used, without one)."""
    granted = budget["granted"]
    used = 0
    rows = [(begin_ms, 0, granted or 0)]
    for end_ms, amount in steps:
        used += amount
        at_ms = min(end_ms, now_ms)
        rows.append((at_ms, used, used if granted is None else granted - used))
    if rows[-1][0] < now_ms:
        rows.append((now_ms, used, used if granted is None else granted - used))
    return tuple(rows)


def _end_ms(budget: Json, paces: Json | None, begin_ms: int, now_ms: int) -> int:
    if budget["period"]["to"] is not None and budget["granted"] is not None:
        return int(budget["period"]["to"])
    gone_ms = paces["now"]["goneAt"] if paces else None
    latest_ms = now_ms + _MAX_AHEAD * (now_ms - begin_ms)
    return min(gone_ms, latest_ms) if gone_ms and gone_ms > now_ms else now_ms + (now_ms - begin_ms) // 10 + 1


def _top(budget: Json, rows: Sequence[tuple[int, int, int]]) -> int:
    return max(budget["granted"] or 0, *(left for _, _, left in rows), 1)


def _has_even(budget: Json) -> bool:
    return budget["granted"] is not None and budget["period"]["to"] is not None


@dataclass(frozen=True, slots=True)
class _Ahead:
    plot: _Plot
    now_ms: int
    left: int
    paces: Json | None

    def line(self, pace: str) -> str:
        return self.plot.points(*self._points(pace)) if self.paces and self.left > 0 else ""

    def band(self) -> str:
        if not self.paces or self.left <= 0 or not self.paces["slowest"]["rateMilli"]:
            return ""  # after a day without use it would fill the picture
        return self.plot.points(*self._points("slowest"), *self._points("fastest")[::-1])

    def _points(self, pace: str) -> list[tuple[float, float]]:
        """From what may be spent to the moment when it is gone, by its own pace or by its group's."""
        its: Json = self.paces[pace] if self.paces else {"rateMilli": 0, "goneAt": None}
        gone_ms, end_ms = its["goneAt"], self.plot.end_ms
        if gone_ms is None:
            return [(self.now_ms, self.left), (end_ms, self.left - its["rateMilli"] * (end_ms - self.now_ms))]
        if gone_ms > end_ms:
            at_end = self.left * (gone_ms - end_ms) / (gone_ms - self.now_ms)
            return [(self.now_ms, self.left), (end_ms, at_end)]
        return [(self.now_ms, self.left), (gone_ms, 0), (end_ms, 0)]


def _across(plot: _Plot, zone: tzinfo) -> tuple[AxisTick, ...]:
    length_ms = plot.end_ms - plot.begin_ms
    is_short = length_ms <= 3 * 86_400_000
    ticks = (plot.begin_ms + length_ms * at // 4 for at in range(5))
    shown = ((at, moment(at, zone)) for at in ticks)
    return tuple(AxisTick(plot.x(at), text[5:16] if is_short else text[:10]) for at, text in shown)


def _up(plot: _Plot, unit: int, text: Callable[[int], str]) -> tuple[AxisTick, ...]:
    """At round amounts: 1, 2 or 5 times a power of ten units apart. ``text``: of parts of units."""
    apart = (factor * max(1, unit // 10**8) * 10**power for power in count() for factor in (1, 2, 5))
    step = next(amount for amount in apart if plot.top <= _MAX_LINES * amount)
    return tuple(
        AxisTick(plot.y(amount), f"{amount / unit:,.0f}" if step >= unit else text(amount))
        for amount in range(0, plot.top + 1, step)
    )


def _sentence(budget: Json, paces: Json | None, rows: Sequence[tuple[int, int, int]], now_ms: int) -> str:
    """What the picture says, for those who do not see it."""
    used = rows[-1][1]
    if budget["granted"] is None:
        own = f"{hours(used)} GPU-hours were used since {moment(rows[0][0])}; there is no limit"
        return f"{own} of its own. {left_sentence(budget)}." if left_sentence(budget) else f"{own}."
    text = f"Of {hours(budget['granted'])} GPU-hours {hours(used)} are used."
    if budget["deciding"]["subject"] != budget["namespace"]:
        text = f"{text} {left_sentence(budget)}."
    gone_ms = paces["now"]["goneAt"] if paces else None
    if gone_ms is None or gone_ms <= now_ms:
        return text
    return f"{text} At the present rate the budget is gone at {moment(gone_ms)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """``lines``: of each its class, its name, and SVG's ``points`` of each part, for what is not known is a
    gap. ``rows``: the table beside it: from when, for how much of the time it is known, and the figures as
    text, oldest first."""

    title: str
    sentence: str
    lines: tuple[tuple[str, str, tuple[str, ...]], ...]
    rows: tuple[tuple[int, str, tuple[str, ...]], ...]
    across: tuple[AxisTick, ...]
    up: tuple[AxisTick, ...]
    zone: str


# from and to, how long of that it is known, a figure of each line
Step = tuple[int, int, int, tuple[int, ...]]


def line_chart(
    title: str,
    lines: Mapping[str, str],
    steps: Sequence[Step],
    unit: int,
    text: Callable[[int], str],
    zone: tzinfo = UTC,
) -> LineChart | None:
    """Figures over time: one line of each class, with its name. ``unit``: how much of them is one; ``text``:
    of a figure. None without a step."""
    if not steps:
        return None
    top = max(1, *(figure for *_, figures in steps for figure in figures))
    plot = _Plot(steps[0][0], steps[-1][1], top)
    last = ", ".join(
        f"{text(figure)} {name}" for figure, name in zip(steps[-1][3], lines.values(), strict=True)
    )
    gaps = sum(later[0] > step[1] for step, later in pairwise(steps))
    return LineChart(
        title=title,
        sentence=f"From {moment(plot.begin_ms)} to {moment(plot.end_ms)}, at last {last}"
        f"{f', with {gaps} gap' + 's' * (gaps > 1) if gaps else ''}.",
        lines=tuple(
            (kind, name, tuple(_parts(plot, steps, at))) for at, (kind, name) in enumerate(lines.items())
        ),
        rows=tuple(
            (begin_ms, "" if known_ms == end_ms - begin_ms else age(known_ms), tuple(map(text, figures)))
            for begin_ms, end_ms, known_ms, figures in steps
        ),
        across=_across(plot, zone),
        up=_up(plot, unit, text),
        zone=str(zone),
    )


def _parts(plot: _Plot, steps: Sequence[Step], at: int) -> Iterator[str]:
    """A line with its steps, anew after each gap."""
    points: list[tuple[float, float]] = []
    for begin_ms, end_ms, _, figures in steps:
        if points and points[-1][0] < begin_ms:
            yield plot.points(*points)
            points = []
        points += [(begin_ms, figures[at]), (end_ms, figures[at])]
    yield plot.points(*points)


WHOLE_MILLI = 1_000


@dataclass(frozen=True, slots=True)
class CardShape:
    """A card: where it is, how high it is filled from below, and its class: fine, full, cordoned, faulty."""

    x: int
    y: float
    fill: float
    kind: str


def card_row(cards: Sequence[Json]) -> tuple[CardShape, ...]:
    """A node's cards from left to right."""
    return tuple(_shape(at, each) for at, each in enumerate(cards))


def width_of(cards: Sequence[Json]) -> int:
    """Of the row."""
    return max(1, len(cards)) * (SIDE + GAP) - GAP


def row_sentence(cards: Sequence[Json], unnamed: int = 0, undescribed: str = "") -> str:
    """What the row shows. ``unnamed``: cards that are held, of which no name is known; ``undescribed``: what
    the node offers without an inventory."""
    if undescribed:
        return undescribed_sentence(undescribed)
    used = sum(each["used_share_milli"] for each in cards)
    touched = sum(each["used_share_milli"] > 0 or each["used_memory_mib"] > 0 for each in cards)
    faulty = sum(not each["healthy"] for each in cards)
    parts = [f"{touched} of {len(cards)} cards are in use, {_per_cent(used, len(cards))} of their compute"]
    held = unnamed_sentence(unnamed, len(cards))
    return ", ".join([*parts, *([held] if held else []), *([f"{faulty} are unhealthy"] if faulty else [])])


def free_sentence(cards: Sequence[Json], is_closed: bool, unnamed: int = 0) -> str:
    """What new pods can get of a node's compute: whole cards, and the largest part of a shared one; of an
    open node without an inventory nothing is known."""
    if not cards and not is_closed:
        return "unknown"
    usable = [each for each in cards if each["healthy"] and not each["cordoned"] and not is_closed]
    whole = sum(each["used_share_milli"] == 0 and each["used_memory_mib"] == 0 for each in usable) - unnamed
    part = max([0, *(WHOLE_MILLI - each["used_share_milli"] for each in usable if each["used_share_milli"])])
    found = [f"{whole} card{'s' * (whole > 1)}"] if whole > 0 else []
    return " and ".join([*found, *([f"{part // 10}% of a card"] if part >= 10 else [])]) or "none"


def _shape(at: int, card: Json) -> CardShape:
    share = card["used_share_milli"] / WHOLE_MILLI
    memory = card["used_memory_mib"] / card["memory_mib"] if card["memory_mib"] else 0
    fill = round(CARD_HEIGHT * min(1, max(share, memory)), 1)
    return CardShape(at * (SIDE + GAP), round(CARD_HEIGHT - fill, 1), fill, _kind(card))


def _kind(card: Json) -> str:
    if not card["healthy"]:
        return "faulty"
    return "cordoned" if card["cordoned"] else "sound"


def _per_cent(milli: int, cards: int) -> str:
    return f"{milli // (10 * cards)}%" if cards else "0%"
