"""For a namespace's pods others are held back from a node for a second in ten."""

from scheduler_ext.waiting.rounds import HOLD_BACK_AGAIN_S, HOLD_BACK_S, MAX_KNOWN, HoldBacks


def test_a_namespace_may_keep_a_node_for_a_second_in_ten() -> None:
    holds = HoldBacks()
    kept = []
    for tenth in range(300):  # half a minute, asked ten times a second
        now_s = 100 + tenth / 10
        if holds.may("n", "greedy", now_s):
            holds.note([("n", "greedy")], now_s)
            kept.append(now_s)

    assert len(kept) <= 3 * (10 * HOLD_BACK_S + 1)
    assert kept[0] == 100
    assert kept[-1] >= 100 + 2 * HOLD_BACK_AGAIN_S
    assert holds.may("other node", "greedy", 102)
    assert holds.may("n", "modest", 102)


def test_what_is_remembered_is_bounded() -> None:
    holds = HoldBacks()
    holds.note([(f"n{number}", "greedy") for number in range(MAX_KNOWN + 1)], 100)

    assert holds.may("n0", "greedy", 105)
    assert not holds.may(f"n{MAX_KNOWN}", "greedy", 105)
