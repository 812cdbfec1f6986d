"""A day of pods with agents, in rows: docs/databases.md multiplies them by what `tests.bench.sizes` says."""

import re

from sqlalchemy import func, select

from tests.packaging.checkout import ROOT
from tests.timekeeper.ledger.test_node_usage import AGENT, card, report, use
from tests.timekeeper.worlds import DAY, HOUR, SECOND, T0, Json, Town, agent_status, budgets, gpu_pod, node
from timekeeper.store.engine.schema import METADATA

BOTH_DATABASES = "the page has a column for each"
PAGE = (ROOT / "docs" / "databases.md").read_text()
ROW = re.compile(r"^\| ([a-z, -]+) \| ([`a-z_, ]+) \| ([0-9,]+) \| ([0-9,]+) \|$", re.M)
YEARS = re.compile(
    r"^\| ([0-9,]+) ([a-z ]+) for a year \| `([a-z_]+)` \| ([0-9.]+ .B) \| ([0-9.]+ .B) \|$", re.M
)
PODS = ("a", "b", "c")  # in two namespaces


def number(text: str) -> int:
    return int(text.replace(",", ""))


def rows(town: Town) -> dict[str, int]:
    with town.store.reading() as connection:
        counted = ((table, select(func.count()).select_from(table)) for table in METADATA.sorted_tables)
        return {table.name: int(connection.execute(each).scalar_one()) for table, each in counted}


def pods(begin: int, ended_ms: int | None = None) -> list[Json]:
    return [
        gpu_pod(
            name,
            namespace=f"team-{at % 2}",
            percent=20,
            bound_ms=begin,
            started_ms=begin,
            ended_ms=ended_ms,
        )
        for at, name in enumerate(PODS)
    ]


def test_a_day_of_pods_with_agents_adds_the_rows_that_the_page_multiplies(town: Town) -> None:
    begin = T0 - T0 % DAY + DAY
    town.clock.turn(begin - T0)
    budget = "gpuHours: 100\nperiod: month"
    town.begin(("nodes", node()), ("configmaps", budgets(team_0=budget, team_1=budget)))
    town.reviews.tokens[AGENT] = agent_status()
    town.writer.step()
    before = rows(town)
    for pod in pods(begin):
        town.change("pods", pod)
    for hour in range(24):
        for step in range(3):
            report(town, 3 * hour + step, use(a=[card()], b=[card()], c=[card()]))
            assert all(town.beat(pod, 3 * hour + step + 1).status_code == 200 for pod in pods(begin))
            town.advance(15 * SECOND)
            town.writer.step()
        town.advance(HOUR - 45 * SECOND)
    for pod in pods(begin, ended_ms=begin + DAY):
        town.change("pods", pod)
        town.change("pods", pod, deleted=True)
    town.advance(HOUR)

    added = {name: count - before[name] for name, count in rows(town).items() if count != before[name]}

    kept = {"sessions": len(PODS), "heartbeats": len(PODS), "postings": len(PODS)}
    kept["card_hours"] = 24 * 2  # of the node's model, and of none
    assert added == kept | {"figures": 24 * len(PODS), "days": 2, "node_uses": 1, "nodes": 1}


def test_the_page_multiplies_these_rows_by_their_bytes() -> None:
    sizes = {kind: (number(lite), number(shared)) for kind, _, lite, shared in ROW.findall(PAGE)}
    tables = {kind: re.findall("`([a-z_]+)`", names) for kind, names, *_ in ROW.findall(PAGE)}
    assert tables == {
        "pod": ["sessions", "heartbeats", "postings"],
        "pod-hour with an agent": ["figures"],
        "hour of a model": ["card_hours"],
        "decision": ["decisions"],
        "namespace-day": ["days"],
        "folded pod-day": ["folded"],
    }
    pods_made = [f"{20_000 * 365 * 24 * size / 1e9:.1f} GB" for size in sizes["pod-hour with an agent"]]
    models_made = [f"{9 * 365 * 24 * size / 1e6:.1f} MB" for size in sizes["hour of a model"]]  # "", too
    assert YEARS.findall(PAGE) == [
        ("20,000", "pods with agents", "figures", *pods_made),
        ("8", "models", "card_hours", *models_made),
    ]
