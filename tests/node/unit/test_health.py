"""What the agent knows of its cards over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.state import health
from sidecar.node.state.health import CALM_MS, PATIENCE_MS
from sidecar.node.values import CardFailed, CardSilent, DeviceReading, NodeCard
from tests.node.worlds import card, look, lost

A, B = card("GPU-a", links=("GPU-b",)), card("GPU-b", index=1, links=("GPU-a",))
BOTH = look(A, B)
NOBODY: frozenset[str] = frozenset()


def book(
    *looks: DeviceReading, held: frozenset[str] | None = NOBODY, step_ms: int = 5_000
) -> health.CardHistory:
    """The book after these looks, one each five seconds."""
    kept = health.initial(())
    for at, each in enumerate(looks):
        kept = health.after_reading(kept, each, held, False, at * step_ms)
    return kept


def of(kept: health.CardHistory, uuid: str) -> NodeCard:
    (found,) = (each for each in kept.cards if each.uuid == uuid)
    return found


def test_cards_are_reported_as_they_are_seen() -> None:
    assert book(BOTH).cards == (A, B)


def test_a_lost_card_stays_in_the_inventory_as_unhealthy_at_once() -> None:
    kept = book(BOTH, look(B, silent=(lost("GPU-a"),)))

    assert kept.cards == (A.but(healthy=False, fault="GPU is lost"), B)


def test_a_lost_card_of_which_only_the_index_is_known_is_found_by_it() -> None:
    kept = book(BOTH, look(A, silent=(lost("", 1),)))

    assert of(kept, "GPU-b").fault == "GPU is lost"


@pytest.mark.parametrize("silent", [(), (CardSilent(0, "GPU-a", "Unknown Error", False),)])
def test_a_card_that_is_silent_without_proof_is_given_some_seconds(silent: tuple[CardSilent, ...]) -> None:
    first = health.after_reading(book(BOTH), look(B, silent=silent), NOBODY, False, 1_000)
    almost = health.after_reading(first, look(B, silent=silent), NOBODY, False, 1_000 + PATIENCE_MS - 1)
    late = health.after_reading(almost, look(B, silent=silent), NOBODY, False, 1_000 + PATIENCE_MS)

    assert [of(each, "GPU-a").healthy for each in (first, almost, late)] == [True, True, False]
    assert of(late, "GPU-a").fault == (silent[0].reason if silent else health.NOT_LISTED)


def test_a_card_that_answers_again_is_healthy() -> None:
    kept = book(BOTH, look(B, silent=(lost("GPU-a"),)), BOTH)

    assert kept.cards == (A, B)


def test_links_stay_while_a_card_is_lost_for_they_are_soldered() -> None:
    joined = B.but(paths=(("GPU-a", 1),))
    seen_alone = B.but(links=())

    after = of(book(look(A, joined), look(seen_alone, silent=(lost("GPU-a"),))), "GPU-b")

    assert (after.links, after.paths) == (("GPU-a",), (("GPU-a", 1),))


def test_nvml_that_fails_leaves_the_inventory_and_the_health_for_some_seconds() -> None:
    silence = look(error="Driver Not Loaded")
    first = health.after_reading(book(BOTH), silence, NOBODY, False, 1_000)
    late = health.after_reading(first, silence, NOBODY, False, 1_000 + PATIENCE_MS)

    assert first.cards == (A, B)
    assert [(each.uuid, each.healthy, each.fault) for each in late.cards] == [
        ("GPU-a", False, "no cards can be read: Driver Not Loaded"),
        ("GPU-b", False, "no cards can be read: Driver Not Loaded"),
    ]


def test_nvml_that_fails_from_time_to_time_for_a_moment_harms_no_card() -> None:
    silence = look(error="Unknown Error")

    assert book(BOTH, silence, BOTH, silence, BOTH, silence).cards == (A, B)


def test_an_agent_that_starts_while_nvml_fails_keeps_what_was_written() -> None:
    kept = health.after_reading(health.initial((A, B)), look(error="Driver Not Loaded"), None, False, 0)

    assert kept.cards == (A, B)


def test_an_xid_makes_its_card_unhealthy_though_it_answers() -> None:
    kept = health.after_event(book(BOTH), CardFailed(("GPU-a",), "XID 79"), 1_000)
    later = health.after_reading(kept, BOTH, NOBODY, False, 10_000_000)

    assert [of(each, "GPU-a").fault for each in (kept, later)] == ["XID 79", "XID 79"]
    assert of(later, "GPU-b").healthy


def test_after_an_xid_a_card_is_well_again_once_it_was_reset() -> None:
    kept = health.after_event(book(BOTH), CardFailed(("GPU-a",), "XID 79"), 1_000)
    gone = health.after_reading(kept, look(B, silent=(lost("GPU-a"),)), NOBODY, False, 6_000)

    assert health.after_reading(gone, BOTH, NOBODY, False, 11_000).cards == (A, B)


def test_after_an_xid_a_card_is_well_again_once_the_driver_was_loaded_anew() -> None:
    kept = health.after_event(book(BOTH), CardFailed(("GPU-a",), "XID 79"), 1_000)
    out = health.after_reading(kept, look(error="Driver Not Loaded"), NOBODY, False, 6_000)

    assert health.after_reading(out, BOTH, NOBODY, False, 6_000 + PATIENCE_MS).cards == (A, B)


def test_a_moments_failure_of_nvml_is_no_reset_after_an_xid() -> None:
    kept = health.after_event(book(BOTH), CardFailed(("GPU-a",), "XID 79"), 1_000)
    out = health.after_reading(kept, look(error="Unknown Error"), NOBODY, False, 6_000)

    assert of(health.after_reading(out, BOTH, NOBODY, False, 11_000), "GPU-a").fault == "XID 79"


def test_after_an_xid_a_card_that_the_driver_wants_nothing_done_with_is_well_after_a_calm_while() -> None:
    at_rest = look(A, B, at_rest=("GPU-a", "GPU-b"))
    kept = health.after_event(book(BOTH), CardFailed(("GPU-a",), "XID 94"), 1_000)
    almost = health.after_reading(kept, at_rest, NOBODY, False, 1_000 + CALM_MS - 1)

    assert not of(almost, "GPU-a").healthy
    assert health.after_reading(almost, at_rest, NOBODY, False, 1_000 + CALM_MS).cards == (A, B)


def test_a_new_xid_begins_the_calm_while_anew() -> None:
    at_rest = look(A, B, at_rest=("GPU-a",))
    kept = health.after_event(book(BOTH), CardFailed(("GPU-a",), "XID 94"), 1_000)
    again = health.after_event(kept, CardFailed(("GPU-a",), "XID 94"), CALM_MS)

    assert not of(health.after_reading(again, at_rest, NOBODY, False, CALM_MS + 1_000), "GPU-a").healthy


def test_after_a_reboot_a_card_that_is_gone_is_left_out_unless_a_pod_holds_it() -> None:
    def rebooted(held: frozenset[str] | None) -> list[str]:
        kept = health.after_reading(health.initial((A, B)), look(B), held, True, 0)
        return [each.uuid for each in kept.cards]

    assert rebooted(NOBODY) == ["GPU-b"]
    assert rebooted(frozenset({"GPU-a"})) == ["GPU-a", "GPU-b"]
    assert rebooted(None) == ["GPU-a", "GPU-b"]  # nobody knows yet who holds what


def test_without_a_reboot_a_card_that_is_gone_stays() -> None:
    assert [each.uuid for each in book(BOTH, *[look(B)] * 100).cards] == ["GPU-a", "GPU-b"]


def test_an_instance_that_was_destroyed_is_left_out_once_no_pod_holds_it() -> None:
    small = card("MIG-1", index=100, mig="1g.10gb")

    def kept(held: frozenset[str]) -> list[str]:
        return [each.uuid for each in book(look(small, B), look(B), held=held).cards]

    assert kept(frozenset({"MIG-1"})) == ["GPU-b", "MIG-1"]
    assert kept(NOBODY) == ["GPU-b"]


def test_an_instance_that_is_not_shown_while_a_card_is_silent_stays() -> None:
    small = card("MIG-1", index=100, mig="1g.10gb")
    kept = book(look(small, B), look(B, silent=(lost("", 0),)))

    assert [each.uuid for each in kept.cards] == ["GPU-b", "MIG-1"]


def test_a_card_that_was_divided_under_a_pod_is_unhealthy_and_left_out_when_the_pod_is_gone() -> None:
    small = card("MIG-1", index=100, mig="1g.10gb")
    divided = look(small, B, divided=("GPU-a",))

    held = book(BOTH, divided, held=frozenset({"GPU-a"}))
    assert of(held, "GPU-a").fault == health.DIVIDED
    assert [each.uuid for each in book(BOTH, divided).cards] == ["GPU-b", "MIG-1"]


def test_indices_that_nvml_shifts_when_a_card_is_gone_stay_as_they_were_until_a_reboot() -> None:
    shifted = look(B.but(index=0))
    kept = book(BOTH, shifted)
    anew = health.after_reading(kept, shifted, NOBODY, True, 10_000)

    assert [(each.uuid, each.index) for each in kept.cards] == [("GPU-a", 0), ("GPU-b", 1)]
    assert [(each.uuid, each.index) for each in anew.cards] == [("GPU-b", 0)]


def test_cards_that_nvml_numbers_otherwise_keep_their_indices() -> None:
    assert book(BOTH, look(A.but(index=1), B.but(index=0))).cards == (A, B)


def test_new_faults_and_recoveries_are_reported_once() -> None:
    before = book(BOTH)
    ill = health.after_reading(before, look(B, silent=(lost("GPU-a"),)), NOBODY, False, 5_000)
    same = health.after_reading(ill, look(B, silent=(lost("GPU-a"),)), NOBODY, False, 10_000)
    well = health.after_reading(same, BOTH, NOBODY, False, 15_000)

    assert [each.uuid for each in health.new_faults(before, ill)] == ["GPU-a"]
    assert health.new_faults(ill, same) == ()
    assert [each.uuid for each in health.recovered(same, well)] == ["GPU-a"]


names = st.sampled_from(["GPU-a", "GPU-b", "GPU-c", "MIG-1"])
seen_cards = st.lists(names, unique=True).flatmap(
    lambda uuids: st.permutations(range(len(uuids))).map(
        lambda indices: tuple(
            card(uuid, index=index, mig="1g" if uuid[0] == "M" else None)
            for uuid, index in zip(uuids, indices, strict=True)
        )
    )
)
some_looks = st.builds(
    lambda cards, error, silent: look(*cards, error=error, silent=silent),
    seen_cards,
    st.sampled_from(["", "", "Unknown Error"]),
    st.lists(st.builds(lost, names, st.integers(0, 3)), max_size=2).map(tuple),
)
steps = st.lists(st.tuples(some_looks, st.booleans(), st.sampled_from([None, NOBODY])), max_size=12)


@given(steps, st.frozensets(names))
def test_whatever_is_seen_no_held_card_is_left_out_and_no_index_is_given_twice(
    told: list[tuple[DeviceReading, bool, frozenset[str] | None]], holding: frozenset[str]
) -> None:
    kept = health.initial(())
    for at, (each, rebooted, unknown) in enumerate(told):
        before = {one.uuid for one in kept.cards}
        kept = health.after_reading(kept, each, None if unknown is None else holding, rebooted, at * 5_000)
        now = [one.uuid for one in kept.cards]

        assert before & holding <= set(now)
        assert len(set(now)) == len(now)
        assert len({one.index for one in kept.cards}) == len(now)
        assert all(bool(one.fault) != one.healthy for one in kept.cards)
