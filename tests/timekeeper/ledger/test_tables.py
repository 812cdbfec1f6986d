"""Tables of the REST API, as kubectl asks for them, over a real ledger."""

from collections.abc import Iterator

import pytest

from tests.timekeeper.dashboards import ADMIN, Dashboards, filled
from tests.timekeeper.worlds import Json
from timekeeper.api.create_app import ROUTES
from timekeeper.api.http.routes import TABLE

ONE_DATABASE = "tables are made of answers that other modules read on both"

KUBECTL = f"{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
IN_PATH = {"{namespace}": "team-a", "{group}": "lab", "{node}": "gpu-1", "{month}": "2026-11"}
IN_PATH |= {"{pod}": "train-7", "{kind}": "Job", "{name}": "train"}
GOT = [each for each in ROUTES if each.sheet and each.method == "GET"]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboards]:
    """Budgets, sessions, decisions and a map."""
    made = filled(tmp_path_factory.mktemp("ledger"))
    yield made
    made.close()


def path_of(template: str) -> str:
    """A path of the route."""
    for name, value in IN_PATH.items():
        template = template.replace(name, value)
    return template


def table(ledger: Dashboards, path: str, accept: str = KUBECTL, **headers: str) -> Json:
    """The Table of an answer."""
    answer = ledger.books.get(path, ADMIN, Accept=accept, **headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, TABLE), answer.text
    found: Json = answer.get_json()
    return found


@pytest.mark.parametrize("route", GOT, ids=lambda each: each.path)
def test_each_cell_has_its_column(route: object, ledger: Dashboards) -> None:
    found = table(ledger, path_of(route.path))  # type: ignore[attr-defined]

    widths = {len(row["cells"]) for row in found["rows"]}
    assert widths <= {len(found["columnDefinitions"])}
    assert found["rows"] or found["empty"]


def test_a_table_has_what_the_plain_answer_has(ledger: Dashboards) -> None:
    plain = ledger.books.get("/v1/budgets", ADMIN).get_json()

    found = table(ledger, "/v1/budgets")

    names = [each["namespace"] for each in (*plain["groups"], *plain["budgets"])]
    assert [row["cells"][0] for row in found["rows"]] == names


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/*",
        "application/json",
        "application/problem+json, application/json",
        f"application/json, {TABLE};q=0.5",
        "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
        f"{TABLE};q=0,*/*;q=0.1",
    ],
)
def test_who_does_not_prefer_a_table_gets_the_plain_answer(accept: str, ledger: Dashboards) -> None:
    answer = ledger.books.get("/v1/held", ADMIN, Accept=accept)

    assert (answer.status_code, "held" in answer.get_json()) == (200, True)


@pytest.mark.parametrize(
    ("path", "accept", "allowed"),
    [
        ("/v1/held", "text/html", f"application/json, {TABLE}"),
        ("/v1/held", "application/json;as=Table;v=v2;g=meta.k8s.io", f"application/json, {TABLE}"),
        ("/v1/held", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", ""),
        ("/v1/held", "application/json;q=0", f"application/json, {TABLE}"),
        ("/v1/doubts", TABLE, "application/json"),
        ("/v1/usage", "image/png", f"application/json, text/csv, {TABLE}"),
    ],
)
def test_other_types_are_refused_with_those_that_there_are(
    path: str, accept: str, allowed: str, ledger: Dashboards
) -> None:
    answer = ledger.books.get(path, ADMIN, Accept=accept)

    problem = answer.get_json()
    assert (answer.status_code, problem["field"]) == (406, "Accept")
    assert problem["detail"].endswith(f"it has {allowed}" if allowed else TABLE)


def test_pages_of_a_table_go_on_where_the_one_before_ends(ledger: Dashboards) -> None:
    first = table(ledger, "/v1/sessions?limit=90")
    second = table(ledger, f"/v1/sessions?limit=90&after={first['metadata']['continue']}")

    assert (len(first["rows"]), second["metadata"]["continue"]) == (90, "")
    plain = ledger.books.get("/v1/sessions", ADMIN).get_json()["sessions"]
    assert len(first["rows"] + second["rows"]) == len(plain)


def test_a_table_is_always_anew_for_it_has_ages(ledger: Dashboards) -> None:
    tag = ledger.books.get("/v1/sessions", ADMIN).headers["ETag"]

    answer = ledger.books.get("/v1/sessions", ADMIN, **{"Accept": TABLE, "If-None-Match": tag})

    assert (answer.status_code, "ETag" in answer.headers) == (200, False)


def test_a_table_is_of_the_rows_and_not_of_csv(ledger: Dashboards) -> None:
    answer = ledger.books.get("/v1/usage?format=csv", ADMIN, Accept=TABLE)

    assert (answer.status_code, answer.get_json()["field"]) == (400, "format")


@pytest.mark.parametrize(("name", "pods"), [("train-9", ["train-9"]), ("train-7", [])])
def test_one_waiting_pod_is_asked_for_by_its_name(name: str, pods: list[str], ledger: Dashboards) -> None:
    answer = ledger.books.get(f"/v1/waiting?namespace=team-a&pod={name}", ADMIN).get_json()

    assert ([each["name"] for each in answer["pods"]], answer["total"]) == (pods, len(pods))


def test_a_grant_that_was_made_is_a_row(ledger: Dashboards) -> None:
    body = {"subject": "team-a", "gpuHours": "2", "reason": "more"}

    answer = ledger.books.post("/v1/grants", body, ADMIN, **{"Accept": TABLE, "Idempotency-Key": "table"})

    assert answer.get_json()["rows"][0]["cells"][1:] == ["team-a", "2", "manual", ADMIN_NAME, "more"]


@pytest.mark.parametrize(
    ("options", "first"), [("", "2026-11-01"), (";exact=true", "2026-11-01T00:00:00+01:00")]
)
def test_a_table_is_of_the_budgets_zone(
    options: str, first: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = filled(tmp_path_factory.mktemp("zone"))
    made.books.entries(("_settings", "timeZone: Europe/Berlin", 0))

    found = table(made, "/v1/usage?by=day", f"{TABLE}{options}")

    assert found["rows"][0]["cells"][0] == first
    made.close()


ADMIN_NAME = "system:serviceaccount:bursar-system:bursar-admin"
