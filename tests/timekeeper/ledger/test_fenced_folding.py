"""The settler folds under its term, so that one that settles no more folds nothing either."""

from threading import Event, Thread

import pytest
from sqlalchemy import func, select

from deploy.local.limits import LONGEST_S
from tests.timekeeper.past import live
from tests.timekeeper.worlds import HOUR, Town
from timekeeper.store.engine.schema import FOLDED
from timekeeper.store.fencing import FencedStore
from timekeeper.store.retention import roll_up_all, roll_up_daily

BOTH_DATABASES = "two settlers wait for each other's locks"


def folded(town: Town) -> int:
    with town.store.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(FOLDED)).scalar_one())


def test_a_settler_whose_term_is_over_folds_nothing_and_says_so(
    town: Town, capfd: pytest.CaptureFixture[str]
) -> None:
    live(town)
    town.clock.turn(2 * HOUR)
    before = FencedStore(town.store, town.settler.epoch)
    town.start_anew()

    stop = Event()
    folding = Thread(target=roll_up_daily, args=(before, town.clock, HOUR, stop))
    folding.start()
    folding.join(LONGEST_S)
    is_over = not folding.is_alive()
    stop.set()
    folding.join()

    assert is_over
    assert folded(town) == 0
    assert "folding-ends" in capfd.readouterr().err
    assert roll_up_all(FencedStore(town.store, town.settler.epoch), town.clock, HOUR).rows == 9
