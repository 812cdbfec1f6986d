"""Claims on devices are charged by their allocation, from when it is made until it is cleared."""

from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.worlds import GPU, MINUTE, T0, Town, budgets

SLICE = ("resourceslices", device_slice("gpu-0", "gpu-1"))


def test_a_claim_is_charged_from_its_allocation_to_its_release(town: Town) -> None:
    town.begin(SLICE, ("resourceclaims", device_claim()))
    town.clock.turn(MINUTE + 200)

    held = device_claim("c", allocated(), at_ms=T0 + MINUTE, pods=("uid-p",))
    town.change("resourceclaims", held)
    town.clock.turn(10 * MINUTE - 200)
    town.change("resourceclaims", device_claim())

    assert town.charged() == 10 * MINUTE * GPU
    assert town.postings(f"claim-c:claim:{T0 + MINUTE}") == [(T0 + MINUTE, T0 + 11 * MINUTE, GPU, "settled")]


def test_the_balance_falls_while_a_claim_is_held(town: Town) -> None:
    town.begin(SLICE, ("resourceclaims", device_claim()), ("configmaps", budgets(team_a="gpuHours: 1")))
    town.change("resourceclaims", device_claim("c", allocated(), at_ms=T0, pods=("uid-p",)))

    town.clock.turn(30 * MINUTE)
    town.quiet("resourceclaims")
    town.tick()

    assert town.budget()["remaining"] == 30 * MINUTE * GPU
    assert town.charged() == 30 * MINUTE * GPU
