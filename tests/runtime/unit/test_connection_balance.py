"""Which worker accepts the next connection."""

from timekeeper.runtime.http.acceptor import ConnectionBalance


def test_the_next_client_goes_to_the_worker_with_fewer() -> None:
    balance = ConnectionBalance()
    balance.set(1, 10)
    balance.set(2, 9)

    assert balance.another_has_fewer(10)
    assert not balance.another_has_fewer(9)

    balance.leave(2)
    assert not balance.another_has_fewer(10)


def test_a_small_difference_is_tolerated() -> None:
    balance = ConnectionBalance(tolerance=4)
    balance.set(2, 6)

    assert balance.another_has_fewer(11)
    assert not balance.another_has_fewer(10)
