"""A reader of another package is not trusted with what others read."""

from typing import Any

import pytest

from sidecar.node.devices import GuardedReader
from sidecar.node.values import NO_VENDOR, Vendor
from tests.node.worlds import card, look


class Reader:
    waits = False

    def __init__(self, *cards: Any) -> None:
        self._cards = cards

    def look(self) -> Any:
        return look(*self._cards)

    def wait(self, most_ms: int) -> None: ...


@pytest.mark.parametrize("uuid", ["", "A 0", "A,0", "Ä", "A\n", "A" * 129])
def test_a_uuid_that_a_list_or_a_report_cannot_have_is_an_error(uuid: str) -> None:
    found = GuardedReader(Reader(card(uuid))).look()  # type: ignore[arg-type]

    assert (found.cards, "no usable UUID" in found.error) == ((), True)


def test_other_uuids_are_read() -> None:
    cards = card("0000:03:00.0"), card("A" * 128, index=1)

    assert GuardedReader(Reader(*cards)).look().cards == cards  # type: ignore[arg-type]


def test_a_reader_without_names_of_its_vendor_has_none() -> None:
    acme = Reader()
    acme.vendor = Vendor(("acme.example/card",), frozenset())  # type: ignore[attr-defined]

    assert GuardedReader(Reader()).vendor == NO_VENDOR  # type: ignore[arg-type]
    assert GuardedReader(acme).vendor.resources == ("acme.example/card",)  # type: ignore[arg-type]
