"""Whose turn it is before an autoscaler, which counts pods without gates alone: one gang that lacks cards
loses its gates though it does not fit, and filter refuses its pods until all do. Pure."""

from dataclasses import replace

from scheduler_ext.gangs.changes import Decision, Grow, OpenGates
from scheduler_ext.gangs.memory import AutoscalerTurn, Memory, Seen
from scheduler_ext.gangs.next_plan import Order, due, place

LACKS_MS, TURN_MS = 30_000, 900_000  # before an autoscaler sees a gang, and for how long the next waits


def take_turn(memory: Memory, seen: Seen, order: Order, has_grown: bool) -> Decision:
    """``has_grown``: nodes have come for the gang whose turn it is, so it is planned again."""
    turn = memory.turn
    gang = memory.open.get(turn.key)
    is_over = seen.at_ms >= turn.until_ms or turn.key in memory.starts or memory.of(turn.key).has_run
    if gang is not None and not (is_over or gang.reserved):
        again = replace(memory.of(turn.key), looked=0)
        return memory.with_history(turn.key, again) if has_grown else memory, ()
    lacking = [
        gang
        for key, gang in memory.open.items()
        if (since_ms := memory.of(key).short_ms) is not None
        and seen.at_ms >= since_ms + LACKS_MS
        and due(memory, gang, seen)
    ]
    if not lacking:
        return replace(memory, turn=AutoscalerTurn(had=turn.had)), (Grow(None),)
    had = frozenset() if turn.had.issuperset(gang.key for gang in lacking) else turn.had
    gang = min((gang for gang in lacking if gang.key not in had), key=lambda gang: place(gang, order))
    turn = AutoscalerTurn(gang.key, seen.at_ms + TURN_MS, had | {gang.key})
    opened = OpenGates([pod for pod in gang.paid if pod.gated])
    return replace(memory, turn=turn), (Grow(None), Grow(gang, seen.now_ms + TURN_MS), opened)
