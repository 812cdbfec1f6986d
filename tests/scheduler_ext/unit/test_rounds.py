"""The rounds of nodes with freed cards, on a clock turned by hand."""

from scheduler_ext.waiting.rounds import TRIED_WITHIN_S, Rounds


def test_a_pod_that_one_node_awaits_is_no_candidate_of_another() -> None:
    rounds = Rounds()
    rounds.begin(["a", "b"], 0.0)
    rounds.look("a").current.woke("p", 1.0)

    assert not rounds.look("b").may("p")
    assert rounds.look("b").may("q")


def test_a_pod_is_requeued_once_in_a_round_and_again_in_the_next() -> None:
    rounds = Rounds()
    rounds.begin(["a"], 0.0)
    rounds.look("a").current.woke("p", 1.0)
    assert rounds.next_look() == 1.0 + TRIED_WITHIN_S

    assert rounds.tried("p", 2.0)
    assert not rounds.tried("p", 2.0)
    assert rounds.due(2.0) == ["a"]
    assert not rounds.look("a").may("p")

    rounds.begin(["a"], 3.0)
    assert rounds.look("a").may("p")
