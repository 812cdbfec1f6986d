"""What an outage of the timekeeper costs a claim that is freed meanwhile: after an orderly end nothing of
what was held until then, after a kill at most the time since the last look at all claims."""

from queue import Queue
from typing import cast

import pytest

from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_claims import BEGAN, CLAIMS, SLICE, held, sound, spans
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, READ, SECOND, Json, Town
from timekeeper.edge.reflector import ObjectChanged, UnreachableError
from timekeeper.runtime.api_server import Api
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.settler.process import last_look

LOOK = 13_400  # after the allocation: no whole number of steps of the charges


class ClaimsApi:
    """An API server with the town's claims; ``error``: why it does not answer."""

    def __init__(self, town: Town, error: str = "") -> None:
        self.town, self.error, self.asked = town, error, 0

    def page(self, path: str) -> Json:
        self.asked += 1
        assert path.startswith("/apis/resource.k8s.io/v1/resourceclaims?")
        if self.error:
            raise UnreachableError(self.error)
        return {"items": list(self.town.objects[CLAIMS].values()), "metadata": {"resourceVersion": "1"}}


def end_in_order(town: Town, *updates: WatchUpdate, error: str = "") -> ClaimsApi:
    """The settler gets SIGTERM, and these updates are not applied yet."""
    queue: Queue[WatchUpdate] = Queue()
    for update in updates:
        queue.put(update)
    api = ClaimsApi(town, error)
    last_look(town.settler, queue, cast(Api, api), town.clock)
    return api


@pytest.fixture
def holding(town: Town) -> Town:
    """A claim was allocated, and all claims were last known 13.4 s later."""
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.clock.turn(MINUTE)
    town.change(CLAIMS, held(pods=()))
    town.clock.turn(LOOK)
    town.quiet(CLAIMS)
    town.tick()
    return town


def freed_while_away(town: Town, away_ms: int = HOUR) -> list[tuple[int, int | None, int]]:
    """Its sessions, once the next settler has seen that the claim is free."""
    town.hear(CLAIMS, device_claim(), unheard=True)
    town.clock.turn(away_ms)
    town.resume()
    town.advance(SECOND)
    return spans(town)


def test_after_a_kill_a_claim_is_charged_until_the_last_look_to_the_millisecond(holding: Town) -> None:
    holding.clock.turn(12 * SECOND)

    assert freed_while_away(holding) == [(BEGAN, BEGAN + LOOK, GPU)]
    assert holding.charged() == LOOK * GPU
    assert sound(holding)


def test_after_an_orderly_end_it_is_charged_until_that(holding: Town) -> None:
    holding.clock.turn(12 * SECOND + 345)
    assert end_in_order(holding).asked == 1

    assert freed_while_away(holding) == [(BEGAN, BEGAN + LOOK + 12_345, GPU)]
    assert holding.charged() == (LOOK + 12_345) * GPU
    assert sound(holding)


def test_what_the_watch_had_brought_is_written_first(holding: Town) -> None:
    holding.clock.turn(SECOND)
    freed = READ[CLAIMS](device_claim())
    assert freed is not None
    heard = WatchUpdate(CLAIMS, holding.clock(), ObjectChanged(freed, False))
    holding.hear(CLAIMS, device_claim(), unheard=True)
    holding.clock.turn(SECOND)

    end_in_order(holding, heard)

    assert spans(holding) == [(BEGAN, BEGAN + LOOK + SECOND, GPU)]


def test_without_an_answer_the_last_look_is_that_of_the_watch(holding: Town) -> None:
    holding.clock.turn(12 * SECOND)
    end_in_order(holding, error="connection refused")

    assert freed_while_away(holding) == [(BEGAN, BEGAN + LOOK, GPU)]


def test_where_no_claims_are_followed_none_are_listed(town: Town) -> None:
    town.begin()

    assert end_in_order(town).asked == 0


def test_an_allocation_that_waited_for_its_slice_at_a_kill_is_charged_from_its_beginning(town: Town) -> None:
    town.begin((CLAIMS, device_claim()))
    town.hear_all(CLAIMS)
    town.tick()
    town.clock.turn(MINUTE)
    town.quiet(CLAIMS)
    town.tick()
    town.change(CLAIMS, held(pods=(), at_ms=town.clock()))
    for _ in range(3):
        town.clock.turn(SECOND)
        town.quiet(CLAIMS)
        town.tick()
    assert spans(town) == []

    town.hear("resourceslices", device_slice("gpu-0"), unheard=True)
    town.clock.turn(HOUR)
    town.resume()

    assert spans(town) == [(BEGAN, None, GPU)]


def test_a_claim_that_was_freed_and_allocated_in_one_second_is_charged_once(town: Town) -> None:
    """The next settler sees the second allocation first, whose time has no parts of a second."""
    town.begin(SLICE, (CLAIMS, device_claim()), (CLAIMS, device_claim("d")))
    town.clock.turn(MINUTE)
    town.change(CLAIMS, held(pods=()))
    town.clock.turn(5 * SECOND)
    town.quiet(CLAIMS)
    town.change(
        CLAIMS, device_claim("d", allocated("absent"))
    )  # it waits for its slice, so the last look stays here
    town.clock.turn(1_400)
    town.change(CLAIMS, device_claim())
    assert spans(town) == [(BEGAN, BEGAN + 6_400, GPU)]

    town.hear(CLAIMS, held(pods=(), at_ms=BEGAN + 6_000), unheard=True)
    town.clock.turn(600)
    town.resume()
    town.advance(6 * SECOND)

    assert spans(town) == [
        (BEGAN, BEGAN + 6_400, GPU),
        (BEGAN + 6_400, None, GPU),
        (BEGAN + 7_000, None, GPU),  # the other, whose allocation has no time
    ]
