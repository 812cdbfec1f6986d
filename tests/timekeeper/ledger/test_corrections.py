"""A correction belongs to what it corrects: it has its price, group, time and pod, and takes back at most as
much as was charged there. The right figures are computed here, from the runs and entries alone."""

import csv
import io
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from sqlalchemy import insert, update

from tests.timekeeper.books import Books, Json, Run, days
from tests.timekeeper.worlds import DAY, GPU, HOUR, T0
from timekeeper.store.engine.schema import CHARGE_CORRECTIONS, SESSIONS

BOTH_DATABASES = "what was charged is read by SQL"
NOVEMBER = T0 - 19 * DAY - 10 * HOUR
OCTOBER = NOVEMBER - 31 * DAY
DECEMBER = NOVEMBER + 30 * DAY
UNIT = Fraction(1, GPU * HOUR)  # of a GPU-hour


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    yield made
    made.close()


def entry(group: str, price: int, from_ms: int, namespace: str = "team-a") -> tuple[str, str, int]:
    named = f"\ngroup: {group}" if group else ""
    return namespace, f"gpuHours: 9000\nperiod: month{named}\nprice: {price}", from_ms


def moved(books: Books) -> None:
    """In group vision at 2, and from 15 October on in group speech at 3."""
    books.entries(entry("vision", 2, OCTOBER), entry("speech", 3, OCTOBER + 14 * DAY))


def run(uid: str, day: int, hours: float, **fields: object) -> Run:
    """It began at 06:00 of this day of October."""
    start = OCTOBER + (day - 1) * DAY + 6 * HOUR
    labels = (("cost-center", f"of-{uid}"),)
    usual = Run(uid, labels=labels, started_ms=start, posted=days(start, start + int(hours * HOUR)))
    return replace(usual, **fields)  # type: ignore[arg-type]


def correct(books: Books, hours: str, key: str = "k", **fields: object) -> Json:
    """The entry, or the Problem."""
    body = {"namespace": "team-a", "month": "2026-10", "reason": "a fault", "gpuHours": hours} | fields
    answer = books.post("/v1/corrections", body, **{"Idempotency-Key": key})
    found: Json = answer.get_json()
    return found["corrections"][0] if answer.status_code == 200 else found


def bill(books: Books, query: str = "group=group") -> list[dict[str, str]]:
    """The corrections in November's bill."""
    books.clock.turn(HOUR)
    text = books.get(f"/v1/usage?format=csv&month=2026-11&{query}").text
    return [row for row in csv.DictReader(io.StringIO(text)) if row.get("correction")]


def priced(books: Books, query: str = "group=group") -> list[tuple[str, str, str, str]]:
    rows = bill(books, query)
    return [(row["group"], row["price"], row["gpuHours"], row["cost"]) for row in rows]


def focus(books: Books) -> Json:
    books.clock.turn(HOUR)
    (row,) = books.get("/v1/usage?format=focus&month=2026-11").get_json()["rows"]
    found: Json = row
    return found


def test_a_pods_hours_go_back_at_their_price_to_the_group_that_was_charged(books: Books) -> None:
    moved(books)
    books.write(run("a", 3, 10, name="train", node="n7"), run("b", 20, 5, node="n8"))

    made = correct(books, "-10", pod="train")

    assert (made["uid"], made["at"]) == ("a", OCTOBER + 2 * DAY + 6 * HOUR)
    assert priced(books) == [("vision", "2", "-10", "-20")]
    assert priced(books, "namespace=_group.vision&group=group") == [("vision", "2", "-10", "-20")]
    assert bill(books, "namespace=_group.speech") == []
    row = focus(books)
    names = ("ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodStart", "x_Node", "Tags", "x_Group")
    assert tuple(row[name] for name in names) == (
        *("2026-10-03T00:00:00Z", "2026-10-04T00:00:00Z", "2026-11-01T00:00:00Z"),
        *("n7", {"cost-center": "of-a"}, "vision"),
    )
    assert (row["BilledCost"], row["ListUnitPrice"], row["ResourceId"]) == (-20, 2, "a")


@pytest.mark.parametrize(
    ("step", "of_charge", "of_entry"),
    [("month", "2026-10", "2026-11"), ("day", "2026-10-03", "2026-11-21")],
)
def test_focus_names_the_step_of_the_wrong_charge_and_a_sheet_that_of_the_correction(
    books: Books, step: str, of_charge: str, of_entry: str
) -> None:
    """November has the correction, and no step of November has the charge."""
    books.write(run("a", 3, 10))
    correct(books, "-10", pod="a")
    books.clock.turn(HOUR)

    asked = f"from={NOVEMBER}&to={DECEMBER}&by={step}"
    (row,) = books.get(f"/v1/usage?{asked}&format=focus").get_json()["rows"]
    sheet = csv.DictReader(io.StringIO(books.get(f"/v1/usage?{asked}&format=csv").text))

    assert (row["x_Step"], row["ChargePeriodStart"]) == (of_charge, "2026-10-03T00:00:00Z")
    assert [line["step"] for line in sheet if line["correction"]] == [of_entry]


def test_a_price_that_rose_on_the_months_last_day_is_not_paid_back(books: Books) -> None:
    books.entries(entry("", 2, OCTOBER), entry("", 3, OCTOBER + 30 * DAY))
    books.write(run("a", 3, 100))

    correct(books, "-100")

    assert priced(books, "group=group") == [("", "2", "-100", "-200")]


def test_without_a_pod_each_group_and_price_gets_its_proportion_to_the_unit(books: Books) -> None:
    moved(books)
    books.write(run("a", 3, 20, node="n1"), run("b", 4, 40, node="n2"), run("c", 20, 30, node="n3"))

    correct(books, "-30")

    assert priced(books) == [("vision", "2", "-20", "-40"), ("speech", "3", "-10", "-30")]
    rows = bill(books, "group=group,node,label:cost-center")
    assert [(row["node"], row["label:cost-center"]) for row in rows] == [("", ""), ("n3", "of-c")]
    books.clock.turn(HOUR)
    rows = books.get("/v1/usage?format=focus&month=2026-11").get_json()["rows"]
    assert [(row["x_Group"], row["ChargePeriodStart"][:10], row["ChargePeriodEnd"][:10]) for row in rows] == [
        ("vision", "2026-10-03", "2026-10-06"),
        ("speech", "2026-10-20", "2026-10-22"),
    ]


def test_units_are_shared_out_and_none_is_lost(books: Books) -> None:
    moved(books)
    books.write(run("a", 3, 20), run("c", 20, 10))
    body = {"namespace": "team-a", "month": "2026-10", "reason": "r", "amount": -100_000_001}

    assert books.post("/v1/corrections", body, **{"Idempotency-Key": "k"}).status_code == 200

    two_thirds, third = (int(row["amount"]) for row in bill(books))
    assert two_thirds + third == -100_000_001
    assert abs(third + Fraction(100_000_001, 3)) < 1


def test_nothing_more_is_taken_back_than_was_charged_there(books: Books) -> None:
    moved(books)
    books.write(run("a", 3, 10), run("b", 20, 6))

    assert correct(books, "-10.1", pod="a")["field"] == "gpuHours"
    assert correct(books, "-10", "1", pod="a")["amount"] == -10 * GPU * HOUR
    assert correct(books, "-6.1", "2")["field"] == "gpuHours"  # vision has nothing more
    assert correct(books, "-3", "3")["amount"] < 0
    refused = correct(books, "-3.5", "4", pod="b")  # of its 6 the namespace has 3 back
    assert refused["detail"] == (
        "it takes back 3.5 GPU-hours, and pod b of team-a is charged 3 in 2026-10, with earlier corrections"
    )
    assert correct(books, "-3", "4", pod="b")["amount"] < 0
    assert priced(books) == [
        ("vision", "2", "-10", "-20"),
        *2 * [("speech", "3", "-3", "-9")],
    ]


def test_what_was_added_is_taken_back_where_it_was_added(books: Books) -> None:
    moved(books)
    books.write(run("a", 3, 10))
    assert correct(books, "5", "1", pod="a")["amount"] > 0
    assert correct(books, "-15", "2", pod="a")["amount"] < 0

    assert [row[:3] for row in priced(books)] == [("vision", "2", "5"), ("vision", "2", "-15")]


TWO = (
    *("team-a", "2 pods train-0 of team-a are charged in 2026-10; name one by its uid: "),
    "first (100 GPU-hours, 2026-10-03 to 2026-10-07), second (20 GPU-hours, 2026-10-20 to 2026-10-21)",
)


def two(books: Books) -> None:
    moved(books)
    books.write(
        run("first", 3, 100, name="train-0", node="n1", models="A100"),
        run("second", 20, 20, name="train-0", node="n2", models="T4"),
    )


def test_a_name_of_several_pods_is_refused_with_their_uids_hours_and_days(books: Books) -> None:
    two(books)

    refused = correct(books, "-50", pod="train-0")

    assert (refused["status"], refused["field"], refused["detail"]) == (422, "pod", "".join(TWO[1:]))


def test_a_uid_names_one_of_them_and_no_pod_goes_below_zero(books: Books) -> None:
    two(books)

    assert correct(books, "-21", pod="train-0", uid="second")["detail"].startswith("it takes back 21 ")
    made = correct(books, "-50", uid="first")

    assert (made["pod"], made["uid"]) == ("train-0", "first")
    row = focus(books)
    assert (row["ResourceId"], row["x_Node"], row["x_GpuModels"]) == ("first", "n1", "A100")
    assert row["Tags"] == {"cost-center": "of-first"}
    assert correct(books, "-51", "more", uid="first")["field"] == "gpuHours"
    assert correct(books, "-20", "second", uid="second")["uid"] == "second"


def test_a_uid_that_was_not_charged_is_refused(books: Books) -> None:
    two(books)

    for fields in ({"uid": "third"}, {"uid": "first", "pod": "other"}):
        refused = correct(books, "-1", **fields)
        assert (refused["status"], refused["field"]) == (422, "uid")
        assert refused["detail"] == f"no pod {fields['uid']} of team-a is charged in 2026-10: check the UID"


def test_a_second_try_names_the_same_pod_by_its_name_or_its_uid(books: Books) -> None:
    moved(books)
    books.write(run("a", 3, 10, name="train"), run("b", 4, 10))
    made = correct(books, "-1", pod="train")

    for again in ({"uid": "a"}, {"pod": "train", "uid": "a"}):
        assert correct(books, "-1", **again) == made
    for other in ({}, {"pod": "b"}, {"uid": "b"}, {"uid": "a", "pod": "b"}):
        assert correct(books, "-1", **other)["status"] == 422


def test_sessions_of_one_pod_are_one_pod(books: Books) -> None:
    """Its reservation, and a session that another one took the place of."""
    moved(books)
    books.write(run("a", 3, 10, name="train"), run("a:hold:1", 4, 5, name="train"))

    assert correct(books, "-15", pod="train")["uid"] == "a"
    assert priced(books) == [("vision", "2", "-15", "-30")]


def test_each_allocation_of_a_claim_has_its_uid(books: Books) -> None:
    moved(books)
    first = run("c:claim:1", 3, 10, name="gpus", node="n1")
    books.write(first, run("c:claim:2", 20, 5, name="gpus", node="n2"))
    with books.store.writing() as connection:
        connection.execute(update(SESSIONS).values(kind="claim"))

    assert "c:claim:1 (10 GPU-hours, 2026-10-03), c:claim:2 (" in correct(books, "-1", pod="gpus")["detail"]
    assert correct(books, "-5", uid="c:claim:2")["pod"] == "gpus"
    row = focus(books)
    assert (row["ResourceId"], row["ResourceType"], row["x_Node"]) == ("c:claim:2", "ResourceClaim", "n2")
    assert (row["x_Group"], row["BilledCost"]) == ("speech", -15)


@pytest.mark.parametrize("state", ["rolled up", "runs"])
def test_what_is_corrected_may_be_rolled_up_or_still_run(books: Books, state: str) -> None:
    moved(books)
    whole = run("a", 30, 24, node="n7")
    if state == "rolled up":
        books.roll_up(whole)
    else:
        books.write(replace(whole, posted=(), heard_ms=whole.started_ms + 24 * HOUR, settled=False))

    assert correct(books, "-24.5", pod="a")["field"] == "gpuHours"
    correct(books, "-24", pod="a")

    assert priced(books) == [("speech", "3", "-24", "-72")]
    row = focus(books)
    assert (row["ChargePeriodStart"][:10], row["ChargePeriodEnd"][:10]) == ("2026-10-30", "2026-11-01")
    assert (row["x_Node"], row["Tags"]) == ("n7", {"cost-center": "of-a"})


def test_an_entry_of_an_earlier_release_is_read_as_it_was(books: Books) -> None:
    """Of a name the last session before the wrong charge, at what was in force then."""
    two(books)
    old = {"namespace": "team-a", "pod": "train-0", "at_ms": NOVEMBER - 1, "amount": -4 * GPU * HOUR}
    old |= {"reason": "r", "actor": "p", "idempotency_key": "old", "created_ms": NOVEMBER + HOUR}
    with books.store.writing() as connection:
        connection.execute(insert(CHARGE_CORRECTIONS), [old])

    assert priced(books) == [("speech", "3", "-4", "-12")]
    row = focus(books)
    assert (row["ResourceId"], row["ChargePeriodStart"][:10]) == ("second", "2026-10-31")
    assert correct(books, "-17", uid="second")["field"] == "gpuHours"  # of its 20 they took 4


def test_the_bills_own_figure_is_taken_back_in_full(books: Books) -> None:
    moved(books)
    start = OCTOBER + 6 * HOUR
    books.write(Run("a", rate=1, started_ms=start, posted=days(start, start + DAY)))
    end = start + HOUR - 24_691  # of which GPU-hours have no end
    books.write(Run("b", rate=742, started_ms=start, posted=days(start, end)))
    text = books.get("/v1/usage?format=csv&month=2026-10&group=pod").text
    figures = {row["pod"]: (row["gpuHours"], int(row["amount"])) for row in csv.DictReader(io.StringIO(text))}

    for pod, (hours, charged) in figures.items():
        assert correct(books, f"-{hours}", pod, pod=pod)["amount"] == -charged
    assert len(figures["b"][0].partition(".")[2]) == 12


@pytest.mark.parametrize(
    ("hours", "units"),
    [
        ("-0.741666666667", -2_670_000_000),  # 44.5 minutes
        ("-0.00000001", -36),
        ("-0.000000000278", -1),
        ("-0.0000000003", None),  # of no amount
        ("-0.0000000002778", None),
        ("-0.123456789012", None),
    ],
)
def test_a_figure_is_exact_or_refused(books: Books, hours: str, units: int | None) -> None:
    moved(books)
    books.write(run("a", 3, 10))

    made = correct(books, hours)

    assert made.get("amount", None) == units
    assert units or made["field"] == "gpuHours"


# A law


class World:
    """A random history; what it comes to is computed hour by hour, from what was drawn."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.terms: dict[str, list[tuple[int, str, int]]] = {}
        for name in ("team-a", "team-b", "team-c"):
            moments = sorted(self.chance.sample(range(1, 60 * 24 - 200), 3))
            self.terms[name] = [(OCTOBER + at * HOUR, self.group(), self.price()) for at in (0, *moments)]
        self.runs = [self.run(number) for number in range(14)]

    def group(self) -> str:
        return self.chance.choice(("vision", "speech", ""))

    def price(self) -> int:
        return self.chance.randrange(1, 5)

    def run(self, number: int) -> Run:
        start = OCTOBER + self.chance.randrange(0, 48 * 24) * HOUR
        end = min(start + self.chance.randrange(1, 200) * HOUR, T0)
        usual = Run(
            f"u{number}", self.chance.choice(sorted(self.terms)), f"pod-{number % 6}", started_ms=start
        )
        usual = replace(usual, rate=GPU + 7 * number, posted=days(start, end))
        is_open = self.chance.random() < 0.2
        return replace(usual, posted=(), settled=False, heard_ms=end) if is_open else usual

    def write(self, books: Books) -> None:
        for name, each in self.terms.items():
            books.entries(*(entry(group, price, at, name) for at, group, price in each))
        settled = [each for each in self.runs if each.settled]
        books.roll_up(*settled[::3])
        books.write(*(each for each in self.runs if each not in settled[::3]))

    def charged(self, namespace: str, start: int, end: int, uid: str = "") -> Counter[tuple[str, int]]:
        """By group and price."""
        found: Counter[tuple[str, int]] = Counter()
        terms = self.terms[namespace]
        ends = [*(at for at, *_ in terms[1:]), 1 << 60]
        for each in self.runs:
            if each.namespace == namespace and uid in ("", each.uid):
                until = each.posted[-1][1] if each.posted else each.heard_ms
                for (at, group, price), to in zip(terms, ends, strict=True):
                    length = min(until, to, end) - max(each.started_ms, at, start)
                    found[group, price] += each.rate * max(0, length)
        return found


MONTHS = {
    "2026-10": (OCTOBER, NOVEMBER),
    "2026-11": (NOVEMBER, DECEMBER),
    "2026-12": (DECEMBER, DECEMBER + 31 * DAY),
}


NAMES = ("2026-09", *MONTHS, "2027-01")
ZONES = ("America/Los_Angeles", "Asia/Tokyo", "Europe/Budapest", "UTC", "Pacific/Kiritimati", "Pacific/Niue")


def money(books: Books, query: str, names: Iterable[str], group: str = "") -> Counter[tuple[str, int]]:
    """By group and price, of all months."""
    found: Counter[tuple[str, int]] = Counter()
    for month in names:
        text = books.get(f"/v1/usage?format=csv&month={month}&{query}").text
        for row in csv.DictReader(io.StringIO(text)):
            exact = Fraction(int(row["amount"]) * int(row["price"])) * UNIT
            assert abs(Fraction(row["cost"]) - exact) < Fraction(1, 10**11)
            found[row.get("group", group), int(row["price"])] += int(row["amount"])
    return found


def move(books: Books, chance: random.Random) -> None:
    """Somebody moves the clock of the budgets; the settler closes the months that it can, or is away."""
    books.entries(("_settings", f"timeZone: {chance.choice(ZONES)}", books.clock() - 1))
    if chance.random() < 0.6:
        books.close_months()


def bounds_of(books: Books, month: str) -> tuple[int, int]:
    found = books.get(f"/v1/months/{month}").get_json()
    return found["from"], found["to"]


@pytest.mark.parametrize(("seed", "has_zones"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_money_of_all_groups_over_all_months_is_what_was_billed(
    books: Books, seed: int, has_zones: bool
) -> None:
    """Histories of moves, prices and corrections, of which some are refused; with time zones that change, and
    months that are closed or wait meanwhile."""
    world, taken, names = World(seed), 0, NAMES if has_zones else tuple(MONTHS)
    world.write(books)
    if has_zones:
        books.clock.at_ms = OCTOBER + 20 * DAY
        while books.clock() < T0:
            move(books, world.chance)
            books.clock.turn(world.chance.randrange(1, 9) * DAY)
        books.clock.at_ms = max(books.clock(), T0)
    billed = sum((world.charged(name, OCTOBER, T0) for name in world.terms), Counter[tuple[str, int]]())
    for number in range(10):
        books.clock.turn(world.chance.randrange(1, 30) * HOUR)
        target = world.chance.choice(world.runs)
        uid, month = world.chance.choice((target.uid, "")), world.chance.choice(("2026-10", "2026-11"))
        there = world.charged(target.namespace, *bounds_of(books, month), uid)
        if not has_zones:
            assert bounds_of(books, month) == MONTHS[month]
        amount = world.chance.choice((-1, -1, 1)) * world.chance.randrange(1, there.total() // 2 + 2)
        body = {"namespace": target.namespace, "month": month, "reason": "r", "amount": amount}
        body |= {"uid": uid} if uid else {}
        answer = books.post("/v1/corrections", body, **{"Idempotency-Key": f"k{number}"})
        books.clock.turn(HOUR)
        changed = money(books, "group=group", names)
        changed.subtract(billed)
        assert changed.total() == (amount if answer.status_code == 200 else 0)
        assert all(value * amount >= 0 for value in changed.values())
        if there.total():
            assert {key for key, value in changed.items() if value} <= (+there).keys()
        if answer.status_code == 200 and not taken and there.total():
            for key, value in changed.items():
                assert abs(value - Fraction(amount * there[key], there.total())) < 1
        taken += answer.status_code == 200
        billed.update(changed)
        if has_zones and world.chance.random() < 0.4:
            move(books, world.chance)
            assert money(books, "group=group", names) == +billed  # whatever the months are now

    assert taken > 3
    assert not -billed
    groups = [money(books, f"namespace=_group.{name}", names, name) for name in ("vision", "speech")]
    of_groups = Counter({key: value for key, value in billed.items() if key[0]})
    assert +sum(groups, Counter[tuple[str, int]]()) == +of_groups
    by_pod = Counter[str]()
    for month in names:
        text = books.get(f"/v1/usage?format=csv&month={month}&group=pod").text
        for row in csv.DictReader(io.StringIO(text)):
            by_pod[row["uid"]] += int(row["amount"])
    assert all(value >= 0 for uid, value in by_pod.items() if uid)
