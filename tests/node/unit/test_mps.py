"""Which cards the inventory says to be on MPS, over time."""

from sidecar.node.state.mps import BEGINS_AFTER_MS, LASTS_MS, MpsCards, after, initial

BOTH = ("GPU-a", "GPU-b")


def through(before: MpsCards, *looks: tuple[int, tuple[str, ...], tuple[str, ...]]) -> MpsCards:
    """After looks: when, who answered, and who computed through MPS."""
    for now_ms, answered, computing in looks:
        before = after(before, answered, computing, now_ms)
    return before


def test_a_card_is_reported_once_it_has_lasted_at_every_look() -> None:
    begins = through(initial(()), (0, BOTH, ("GPU-a",)), (BEGINS_AFTER_MS - 1, BOTH, ("GPU-a",)))
    assert begins.advertised == frozenset()

    assert through(begins, (BEGINS_AFTER_MS, BOTH, ("GPU-a",))).advertised == {"GPU-a"}
    stopped = through(begins, (BEGINS_AFTER_MS, BOTH, ()), (BEGINS_AFTER_MS + 1, BOTH, ("GPU-a",)))
    assert stopped == MpsCards(frozenset(), (("GPU-a", BEGINS_AFTER_MS + 1),))


def test_a_card_stays_reported_for_long_after_the_last_process() -> None:
    idle = through(initial(BOTH), (0, BOTH, ("GPU-b",)), (LASTS_MS - 1, BOTH, ("GPU-b",)))
    assert idle.advertised == set(BOTH)

    assert through(idle, (LASTS_MS, BOTH, ("GPU-b",))) == MpsCards(frozenset({"GPU-b"}), ())


def test_of_a_card_that_does_not_answer_nothing_changes() -> None:
    silent = through(initial(BOTH), (0, BOTH, ()), (LASTS_MS, ("GPU-b",), ()))

    assert silent == MpsCards(frozenset({"GPU-a"}), (("GPU-a", 0),))


def test_a_look_that_failed_changes_nothing() -> None:
    before = through(initial(("GPU-a",)), (0, BOTH, ("GPU-b",)))

    assert through(before, (LASTS_MS, (), ())) == before
