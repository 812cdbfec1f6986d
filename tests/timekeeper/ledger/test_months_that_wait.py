"""A month that is not closed two days after its end says for whom it waits, and what ends that."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert, update

from tests.timekeeper.books import Books, Run
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.accounts.session import CLAIMS
from timekeeper.core.findings import RoleFinding
from timekeeper.settler.months import MonthCloser
from timekeeper.store.engine.engine import ConflictError
from timekeeper.store.engine.schema import NODES, SESSIONS

BOTH_DATABASES = "for whom a month waits is SQL"
DECEMBER = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1000)  # T0 is of 20 November
TAINT = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


@dataclass
class Closing:
    """A settler's town with the thread that closes months, whose steps a test makes."""

    town: Town
    closer: MonthCloser

    def passes(self, until_ms: int, *nodes: str) -> None:
        """Time passes; only these nodes are heard."""
        self.town.clock.turn(until_ms - self.town.clock())
        for name in nodes:
            self.town.node_heard(name)
        self.town.tick()
        self.closer.step()
        self.town.clock.turn(MINUTE)
        self.town.tick()

    @property
    def findings(self) -> list[dict[str, Any]]:
        rows = self.town.get("/v1/findings").get_json()["findings"]
        return [row for row in rows if row["code"] == "month-open"]


@pytest.fixture
def closing(town: Town) -> Closing:
    """A pod on n1, whose node falls silent a minute after T0 and is tainted; another one that ends on n2."""
    town.begin(
        ("configmaps", budgets(team_a="gpuHours: 900\nperiod: month")),
        *(("nodes", node(name)) for name in ("n1", "n2")),
        *(("leases", lease(T0, name)) for name in ("n1", "n2")),
        ("pods", gpu_pod("train", started_ms=T0)),
        ("pods", gpu_pod("good", node="n2", started_ms=T0, ended_ms=T0 + MINUTE)),
    )
    town.advance(MINUTE)
    tainted = node("n1")
    tainted["spec"] = {**tainted.get("spec", {}), "taints": [TAINT]}
    town.change("nodes", tainted)
    settler = town.settler
    made = MonthCloser(town.store, town.store, lambda: settler.view.history, town.clock)
    settler.late_months = lambda: made.late
    return Closing(town, made)


def test_a_silent_pod_is_named_with_its_node_and_the_command_that_ends_it(closing: Closing) -> None:
    closing.passes(DECEMBER + 2 * DAY - 3 * MINUTE, "n2")
    assert closing.findings == []
    before = closing.town.get("/v1/months/2026-11").get_json()
    closing.passes(DECEMBER + 2 * DAY, "n2")

    (found,) = closing.findings
    who = "pod team-a/train on n1 has not ended, and was last heard of at 2026-11-20 10:01"
    assert found["level"] == "warning"
    assert found["sentence"].startswith(f"2026-11 ended 2d0h ago and is not closed: {who}")
    assert found["figures"]["command"] == "kubectl delete -n team-a --force pod train"
    assert (before["state"], before["waitsFor"]) == ("waits", 1)
    (awaited,) = before["awaited"]
    assert awaited.startswith(who)
    assert awaited.endswith(": kubectl delete -n team-a --force pod train")


def test_the_command_ends_it(closing: Closing) -> None:
    """What it does: the pod's object is gone."""
    closing.passes(DECEMBER + 3 * DAY, "n2")
    assert len(closing.findings) == 1

    closing.town.change("pods", gpu_pod("train", started_ms=T0), deleted=True)
    closing.passes(DECEMBER + 3 * DAY + HOUR, "n2")
    closing.passes(DECEMBER + 3 * DAY + 2 * HOUR, "n2")

    assert closing.findings == []
    assert closing.town.get("/v1/months/2026-11").get_json()["state"] == "closed"


@pytest.fixture
def books(database_url: str) -> Any:
    made = Books(database_url)
    yield made
    made.close()


def late(books: Books, close: Callable[..., Any] | None = None) -> tuple[RoleFinding, ...]:
    with books.store.reading() as connection:
        history = books.services.ledger.history(connection)
    closer = MonthCloser(books.store, Refusing() if close else books.store, lambda: history, books.clock)
    closer.step()
    return closer.late


class Refusing:
    """A database that does not take the month."""

    def writing(self) -> Any:
        raise ConflictError("the disk is full")


NOVEMBER = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


def test_of_several_the_first_to_fall_silent_is_named_and_a_claim_by_its_kind(books: Books) -> None:
    books.write(
        Run("a", "team-b", node="n7", started_ms=NOVEMBER - DAY, heard_ms=NOVEMBER - 2 * HOUR, settled=False),
        Run("b", started_ms=NOVEMBER - DAY, heard_ms=NOVEMBER - 3 * HOUR, settled=False, name="train"),
    )
    with books.store.writing() as connection:
        connection.execute(update(SESSIONS).where(SESSIONS.c.uid == "a").values(kind="claim"))
        connection.execute(insert(NODES), {"name": CLAIMS, "watermark_ms": NOVEMBER - 2 * HOUR})
    (found,) = late(books)

    assert "pod team-a/train on n1" in found.sentence
    assert ", and 1 more (page /months/2026-10) (kubectl delete -n team-a" in found.sentence
    answer = books.get("/v1/months/2026-10").get_json()
    assert answer["waitsFor"] == 2
    assert [each.split(" has")[0] for each in answer["awaited"]] == [
        "pod team-a/train on n1",
        "claim team-b/a on n7",
    ]
    assert answer["awaited"][1].endswith(": kubectl delete -n team-b --force resourceclaim a")


def test_a_month_that_cannot_be_written_is_a_finding_too(books: Books) -> None:
    """Whatever the cause: here the database refuses."""
    books.write(Run("a", started_ms=NOVEMBER - DAY, posted=((NOVEMBER - DAY, NOVEMBER - DAY + HOUR, 1),)))

    (found,) = late(books, Refusing)

    assert "ago and is not closed: the disk is full (see month-not-closed" in found.sentence
    assert found.figures["command"] == "see month-not-closed in the timekeeper's log"
    assert late(books) == ()


class Waits:
    """A stop that is set after four waits, each of which it notes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) == 4


def test_a_month_is_closed_soon_after_a_start_once_the_budgets_are_known(books: Books) -> None:
    with books.store.reading() as connection:
        known = books.services.ledger.history(connection)
    answers = iter((None, None, known))
    waits = Waits()

    MonthCloser(books.store, books.store, lambda: next(answers), books.clock).keep(waits)  # type: ignore[arg-type]

    assert waits.seconds == [1.0, 1.0, 1.0, 600.0]
