"""Whom the sidecar trusts while authorities change."""

from sidecar import trust
from sidecar.trust import Trust
from timekeeper.edge.http_client import PEM

OLD, BOTH, NEW = f"{PEM} old", f"{PEM} old and new", f"{PEM} new"


def test_a_named_bundle_is_tried_first_and_taken_over_only_once_it_has_verified_the_timekeeper() -> None:
    begun = trust.start(OLD)
    offered = trust.offer(begun, BOTH)

    assert begun.bundles() == (OLD,)
    assert offered.bundles() == (BOTH, OLD)
    assert trust.verified(offered, OLD) == offered
    assert trust.verified(offered, BOTH) == Trust(OLD, BOTH, None)


def test_the_last_word_of_the_timekeeper_counts() -> None:
    offered = trust.offer(trust.start(OLD), BOTH)

    assert trust.offer(offered, NEW).bundles() == (NEW, OLD)
    assert trust.offer(offered, OLD) == trust.start(OLD)
    assert trust.offer(offered, BOTH) is offered


def test_an_answer_without_a_certificate_changes_nothing() -> None:
    begun = trust.start(OLD)

    assert [trust.offer(begun, word) for word in (None, "", "not PEM")] == [begun] * 3


def test_white_space_around_a_bundle_makes_it_no_other_one() -> None:
    begun = trust.start(OLD)

    assert trust.start(f"{OLD}\n", (OLD, NEW)) == Trust(OLD, NEW, None)
    assert trust.offer(begun, f"\n{OLD}\n") == begun
    assert trust.reconfigured(begun, f"{OLD}\n") is begun


def test_a_restarted_process_goes_on_with_what_it_took_over() -> None:
    assert trust.start(OLD, (OLD, NEW)) == Trust(OLD, NEW, None)


def test_a_changed_configuration_overrules_what_was_taken_over() -> None:
    assert trust.start(BOTH, (OLD, NEW)) == Trust(BOTH, BOTH, None)
    assert trust.reconfigured(Trust(OLD, NEW, None), BOTH) == Trust(BOTH, BOTH, None)
    assert trust.reconfigured(Trust(OLD, NEW, None), OLD) == Trust(OLD, NEW, None)
