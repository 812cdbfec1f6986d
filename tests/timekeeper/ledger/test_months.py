"""A month is closed with hashes that anybody can compute again, and corrected by entries beside it alone."""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import insert, update

from tests.timekeeper.books import Books, Json, Run, days, posting_row
from tests.timekeeper.worlds import DAY, GPU, HOUR, T0
from timekeeper.accounts.budget_history import BudgetEntry, History
from timekeeper.store import months
from timekeeper.store.engine.engine import ConflictError
from timekeeper.store.engine.schema import CLOSED_MONTHS, ENTRIES, POSTINGS, SESSIONS

BOTH_DATABASES = "what months come to is SQL"
NOVEMBER = T0 - 19 * DAY - 10 * HOUR
OCTOBER = NOVEMBER - 31 * DAY
ENDED = Run("b", started_ms=NOVEMBER - 9 * HOUR, posted=days(NOVEMBER - 9 * HOUR, NOVEMBER - 8 * HOUR))
# over the month's end: an hour of it is October's
LONG = Run("a", "team-b", started_ms=NOVEMBER - HOUR, heard_ms=NOVEMBER + HOUR, settled=False)
ENTRY = ("team-a", "gpuHours: 9\nperiod: month\nprice: 2", OCTOBER)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    made.entries(ENTRY)
    yield made
    made.close()


def october(books: Books) -> Json:
    found: Json = books.get("/v1/months/2026-10").get_json()
    return found


def hashed(*rows: list[object]) -> str:
    lines = (json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_closed_month_has_hashes_of_its_charges_grants_and_prices_and_is_unchanged(books: Books) -> None:
    books.write(ENDED, LONG)
    books.close_months()

    found = october(books)

    assert (found["state"], found["differs"], found["closed"]["closed"]) == ("closed", [], books.clock())
    assert found["now"] == found["closed"]["hashes"]
    charges = hashed(["a", "team-b", GPU * HOUR], ["b", "team-a", GPU * HOUR])
    prices = hashed(
        ["team-a", OCTOBER, NOVEMBER, "", "2", "USD"], ["team-b", OCTOBER, NOVEMBER, "", "", "USD"]
    )
    assert (found["now"]["charges"], found["now"]["prices"]) == (charges, prices)
    whole = f"{charges}\n{hashed()}\n{prices}\n".encode()
    assert found["now"]["sha256"] == hashlib.sha256(whole).hexdigest()
    assert [each["month"] for each in books.get("/v1/months").get_json()["months"]] == ["2026-10"]


def test_the_texts_of_all_entries_are_read_for_prices_once_the_transaction_is_over(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    books.write(ENDED)
    october(books)
    open_then: list[int] = []

    def history_of(entries: Iterable[BudgetEntry]) -> History:
        open_then.append(books.store.engine.pool.checkedout())  # type: ignore[attr-defined]
        return read(entries)

    read = months.history_of  # type: ignore[attr-defined]
    monkeypatch.setattr(months, "history_of", history_of)
    books.close_months()
    found = october(books)

    assert (found["state"], found["differs"]) == ("closed", [])
    assert open_then == [0, 0]


def test_a_session_that_goes_on_is_posted_and_folded_without_a_change_of_the_month(books: Books) -> None:
    books.write(ENDED, LONG)
    books.close_months()
    posted = days(NOVEMBER - HOUR, NOVEMBER + 2 * HOUR)
    with books.store.writing() as connection:
        rows = [posting_row(LONG, number, *each) for number, each in enumerate(posted)]
        connection.execute(insert(POSTINGS), rows)
    assert october(books)["differs"] == []  # posted, and not settled yet
    with books.store.writing() as connection:
        settled = {"ended_ms": NOVEMBER + 2 * HOUR, "settled_ms": NOVEMBER + 2 * HOUR}
        connection.execute(update(SESSIONS).where(SESSIONS.c.uid == "a").values(settled))

    assert october(books)["differs"] == []


def test_a_month_waits_for_a_session_whose_last_evidence_is_of_it(books: Books) -> None:
    books.write(ENDED, Run("c", started_ms=NOVEMBER - HOUR, heard_ms=NOVEMBER - 1, settled=False))
    books.close_months()

    found = october(books)

    assert (found["state"], found["waitsFor"], found["closed"]) == ("waits", 1, None)


def test_later_proof_shows_as_a_change_with_what_explains_it(books: Books) -> None:
    books.write(ENDED)
    books.close_months()
    with books.store.writing() as connection:
        start, end = NOVEMBER - 9 * HOUR, NOVEMBER - 9 * HOUR + HOUR // 2
        late = posting_row(ENDED, 9, start, end, -1) | {"created_ms": books.clock() + 1}
        connection.execute(insert(POSTINGS), [late])

    found = october(books)

    assert found["differs"] == ["charges"]
    assert (found["late"]["postings"], found["late"]["amount"]) == (1, -GPU * HOUR // 2)


def test_a_price_that_was_changed_behind_the_ledgers_back_shows_without_a_restart(books: Books) -> None:
    books.write(ENDED)
    books.close_months()
    assert october(books)["differs"] == []
    of_table = "" if books.store.engine.dialect.name == "sqlite" else " ON entries"
    with books.store.writing() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER entries_are_written_once{of_table}")
        connection.execute(update(ENTRIES).values(text=ENTRY[1].replace("price: 2", "price: 3")))

    found = october(books)

    assert found["differs"] == ["prices"]
    assert found["now"]["prices"] == hashed(["team-a", OCTOBER, NOVEMBER, "", "3", "USD"])


def test_what_was_kept_of_a_closed_month_cannot_be_changed(books: Books) -> None:
    books.write(ENDED)
    books.close_months()

    with pytest.raises(ConflictError), books.store.writing() as connection:
        connection.execute(update(CLOSED_MONTHS).values(amount=1))


def correct(books: Books, key: str = "k", **fields: object) -> Json:
    usual = {"namespace": "team-a", "gpuHours": "-0.5", "month": "2026-10", "pod": "b", "reason": "a fault"}
    body: Json = {**usual, **fields}
    given = {name: value for name, value in body.items() if value is not None}
    answer = books.post("/v1/corrections", given, **{"Idempotency-Key": key})
    found: Json = answer.get_json()
    return found if answer.status_code != 200 else found["corrections"][0]


def test_a_wrong_charge_is_corrected_by_an_entry_that_the_bill_shows_beside_it(books: Books) -> None:
    books.write(ENDED)
    books.close_months()
    before = october(books)["now"]

    made = correct(books)

    assert (made["actor"], made["at"], made["amount"]) == ("admin", NOVEMBER - 9 * HOUR, -GPU * HOUR // 2)
    assert correct(books) == made  # a second try
    assert correct(books, reason="another")["status"] == 422
    books.clock.turn(HOUR)
    assert october(books)["now"] == before
    assert [each["id"] for each in october(books)["corrections"]] == [made["id"]]
    bill = list(csv.DictReader(io.StringIO(books.get("/v1/usage?format=csv&group=pod").text)))
    assert [(each["pod"], each["gpuHours"], each["cost"], each["correction"]) for each in bill] == [
        ("b", "-0.5", "-1", "a fault (admin; of 2026-10)")
    ]
    (row,) = books.get("/v1/usage?format=focus").get_json()["rows"]
    assert (row["ChargeClass"], row["BilledCost"], row["BillingPeriodStart"], row["ChargePeriodStart"]) == (
        *("Correction", -1, "2026-11-01T00:00:00Z"),
        "2026-10-31T00:00:00Z",
    )
    (charge,) = csv.DictReader(io.StringIO(books.get("/v1/usage?format=csv&month=2026-10").text))
    assert (charge["gpuHours"], "correction" in charge) == ("1", False)
    assert books.get("/v1/usage").get_json()["corrections"] == [made]


LABELS = (("cost-center", "42"), ("team", "vision"))
OWNED = replace(ENDED, owner="Job/train", labels=LABELS)


def test_a_correction_of_a_pod_stands_with_its_uid_labels_and_place(books: Books) -> None:
    """Of several pods with one name the last one before the wrong charge."""
    books.write(
        OWNED,
        replace(OWNED, uid="early", name="b", started_ms=NOVEMBER - 20 * HOUR, posted=(), labels=()),
        replace(OWNED, uid="late", name="b", started_ms=NOVEMBER + HOUR, posted=(), labels=()),
    )
    correct(books)
    books.clock.turn(HOUR)

    (row,) = books.get("/v1/usage?format=focus").get_json()["rows"]
    fields = (
        "ResourceId",
        "ResourceName",
        "ResourceType",
        "Tags",
        "SkuId",
        "x_Owner",
        "x_Node",
        "x_GpuModels",
    )
    assert tuple(row[field] for field in fields) == (
        *("b", "b", "Pod", dict(LABELS), "gpu/A100", "Job/train", "n1", "A100"),
    )
    for group, expected in {
        "label:cost-center": ["42"],
        "owner,node": ["Job/train", "n1"],
        "pod": ["b", "b", "Job/train"],
    }.items():
        (line,) = csv.DictReader(io.StringIO(books.get(f"/v1/usage?format=csv&group={group}").text))
        names = {"pod": ("uid", "pod", "owner")}.get(group, group.split(","))
        assert [line[name] for name in names] == expected


def test_a_correction_of_a_folded_pod_stands_with_its_labels_too(books: Books) -> None:
    books.roll_up(replace(OWNED, uid="old", name="b"))
    correct(books)
    books.clock.turn(HOUR)

    (row,) = books.get("/v1/usage?format=focus").get_json()["rows"]
    assert (row["ResourceId"], row["Tags"], row["x_Owner"]) == ("old", dict(LABELS), "Job/train")


def test_a_correction_of_a_claim_is_no_pods(books: Books) -> None:
    books.write(replace(OWNED, uid="c:claim:1"))
    with books.store.writing() as connection:
        connection.execute(update(SESSIONS).values(kind="claim", name="gpus"))
    correct(books, pod="gpus")
    books.clock.turn(HOUR)

    (row,) = books.get("/v1/usage?format=focus").get_json()["rows"]
    assert (row["ResourceId"], row["ResourceName"], row["ResourceType"]) == (
        *("c:claim:1", "gpus"),
        "ResourceClaim",
    )


def test_a_correction_of_a_namespace_has_the_labels_and_node_that_its_pods_have_in_common(
    books: Books,
) -> None:
    other = replace(OWNED, uid="x", models="T4", labels=(("cost-center", "42"), ("team", "audio")))
    books.write(OWNED, other)
    correct(books, pod=None)
    books.clock.turn(HOUR)

    (row,) = books.get("/v1/usage?format=focus").get_json()["rows"]
    assert (row["ResourceId"], row["ResourceName"], row["ResourceType"], row["Tags"]) == (
        *("team-a", "team-a", "Namespace", {"cost-center": "42"}),
    )
    assert (row["x_Node"], row["x_GpuModels"]) == ("n1", None)
    (line,) = csv.DictReader(io.StringIO(books.get("/v1/usage?format=csv&group=label:cost-center").text))
    assert line["label:cost-center"] == "42"


def test_a_report_names_the_cluster_and_a_closed_month_keeps_its_name(books: Books) -> None:
    """A month has the name of its end, so that the running one has today's from its beginning on."""
    books.entries(
        ("_settings", "clusterName: old", OCTOBER + DAY),
        ("_settings", "clusterName: prod-eu", NOVEMBER + 3 * DAY),
    )
    books.write(ENDED, Run("n", started_ms=NOVEMBER, posted=days(NOVEMBER, NOVEMBER + HOUR)))
    books.close_months()
    before = october(books)
    correct(books, pod="b")
    books.clock.turn(HOUR)
    books.entries(("_settings", "clusterName: renamed", books.clock() - 1))

    assert (before["clusterName"], october(books)["clusterName"], october(books)["differs"]) == (
        "old",
        "old",
        [],
    )
    of_october, of_november = "month=2026-10", f"from={NOVEMBER}"
    for query, names in {of_october: ["old"], of_november: ["renamed", "renamed"]}.items():
        answer = books.get(f"/v1/usage?{query}&format=focus").get_json()
        assert ([row["x_ClusterName"] for row in answer["rows"]], answer["clusterName"]) == (names, names[0])
        assert {row["BillingAccountId"] for row in answer["rows"]} == {"bursar"}
        sheet = list(csv.DictReader(io.StringIO(books.get(f"/v1/usage?{query}&format=csv").text)))
        assert [row["clusterName"] for row in sheet] == names
        assert books.get(f"/v1/usage?{query}").get_json()["clusterName"] == names[0]
    whole = books.get(f"/v1/usage?from={OCTOBER}&by=month&format=csv").text
    assert [row["clusterName"] for row in csv.DictReader(io.StringIO(whole))] == ["old", *2 * ["renamed"]]
    metrics = books.get("/v1/metrics").text
    assert 'bursar_account_posted_gpu_seconds{cluster="renamed",namespace="team-a"}' in metrics


def test_without_a_name_nothing_names_the_cluster(books: Books) -> None:
    books.write(ENDED)

    (row,) = books.get("/v1/usage?month=2026-10&format=focus").get_json()["rows"]
    assert (row["x_ClusterName"], october(books)["clusterName"]) == (None, None)
    assert "clusterName" not in books.get("/v1/usage?month=2026-10&format=csv").text
    assert "cluster=" not in books.get("/v1/metrics").text


def test_a_balance_and_a_month_to_come_are_not_corrected(books: Books) -> None:
    books.write(ENDED)
    before = books.get("/v1/budgets/team-a").get_json()["posted"]

    assert correct(books)["amount"] < 0
    assert books.get("/v1/budgets/team-a").get_json()["posted"] == before
    assert correct(books, "other", month="2027-01")["field"] == "month"


@pytest.mark.parametrize(
    ("month", "state"), [("2026-09", "before"), ("2026-11", "runs"), ("2026-12", "future")]
)
def test_a_month_that_cannot_be_closed_says_why(books: Books, month: str, state: str) -> None:
    books.write(ENDED)

    assert books.get(f"/v1/months/{month}").get_json()["state"] == state


def test_of_an_empty_ledger_every_month_that_ended_is_before_it(books: Books) -> None:
    assert october(books)["state"] == "before"


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        (
            {"namespace": "team-x", "pod": None},
            "namespace",
            "team-x has neither a budget nor a charge: check the name",
        ),
        ({"pod": "nobody"}, "pod", "no pod nobody of team-a is charged in 2026-10: check the name"),
        ({"month": "2026-11"}, "pod", "no pod b of team-a is charged in 2026-11: check the name"),
        (
            {"gpuHours": "-1.5"},
            "gpuHours",
            "it takes back 1.5 GPU-hours, and pod b of team-a is charged 1 in 2026-10,"
            " with earlier corrections",
        ),
        (
            {"gpuHours": "-2", "pod": None},
            "gpuHours",
            "it takes back 2 GPU-hours, and team-a is charged 1 in 2026-10, with earlier corrections",
        ),
    ],
)
def test_what_nobody_was_charged_is_not_corrected(
    books: Books, fields: Json, field: str, sentence: str
) -> None:
    books.write(ENDED)

    answer = correct(books, **fields)

    assert (answer["status"], answer["field"], answer["detail"]) == (422, field, sentence)


def test_no_more_is_taken_back_than_earlier_corrections_left(books: Books) -> None:
    books.write(ENDED)

    assert [correct(books, key).get("amount") for key in ("1", "2", "3")] == [*2 * [-GPU * HOUR // 2], None]
    assert correct(books, "4", gpuHours="0.5")["amount"] == GPU * HOUR // 2
    assert correct(books, "5")["amount"] == -GPU * HOUR // 2


@pytest.mark.parametrize("namespace", ["team-a", "team-b"])
def test_what_was_missed_is_charged_where_a_budget_or_a_charge_tells_of_the_namespace(
    books: Books, namespace: str
) -> None:
    books.write(LONG)

    assert correct(books, namespace=namespace, gpuHours="3", pod=None)["amount"] == 3 * GPU * HOUR
