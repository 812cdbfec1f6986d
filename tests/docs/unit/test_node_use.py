"""The chapter on measured use of docs/node-agent.md has all metrics of the agent for it, and no others."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sidecar.node.state.exporter import of_cards, of_containers, of_pods, of_reports
from sidecar.node.state.overuse import OVER, WITHIN, CardOveruse, OveruseEpisode
from sidecar.node.state.reports import UsagePorts, UsageReports
from sidecar.node.state.use import ContainerLoad, PodLoad, UsageReading
from sidecar.node.values import CardLoad, NodeCard, PodState
from timekeeper import metrics
from timekeeper.accounts.card_use import evictions, overuse
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.settler.evictions import reasons

WHOLE = (Path(__file__).parents[3] / "docs" / "node-agent.md").read_text()
PAGE = WHOLE[WHOLE.index("## Measured use\n") : WHOLE.index("## Rights\n")]


def _say(event: str, **pairs: object) -> None:
    """No log."""


def test_every_metric_of_use_is_explained_with_its_kind_and_labels() -> None:
    card = NodeCard("G", 0, "A100", 10, True, "", 0, (), "1g.5gb", ())
    pod = PodState("u", "team", "p", ("G",), False, ())
    seen = UsageReading((PodLoad("u", (CardLoad("G", 1, 9),)),), (CardLoad("G", 1, 9),))
    reports = UsageReports(UsagePorts(lambda _: None, lambda *_: True, lambda: 0.5, _say), "run", 0)
    episodes = {"u": OveruseEpisode(0, None, (CardOveruse("G", 9, 8),))}
    text = (
        of_cards((card,), seen, "n")
        + of_pods((pod,), seen, {"u": {"G": 8}}, episodes)
        + of_containers((pod,), (ContainerLoad("u", "main", "id", (CardLoad("G", 1, 9),)),))
        + of_reports(reports)
    )
    families = list(text_string_to_metric_families(text))
    exist = {each.name + ("_total" if each.type == "counter" else ""): each.type for each in families}
    labels = {label for each in families for sample in each.samples for label in sample.labels}

    of_the_agent = PAGE[PAGE.index("### Metrics of use\n") :]
    on_page = dict(re.findall(r"^\| `(\w+)` \| (gauge|counter)", of_the_agent, re.MULTILINE))

    assert on_page == exist
    assert [label for label in sorted(labels) if f"`{label}`" not in PAGE] == []


def test_the_events_that_are_written_are_the_ones_that_are_documented() -> None:
    written = {OVER, WITHIN, reasons.OVERUSED, reasons.OVERUSE_PROTECTED}

    assert set(re.findall(r"`(GPU[A-Za-z]+)`", PAGE)) == written


def test_what_becomes_of_an_eviction_and_its_bounds_are_documented() -> None:
    text = " ".join(PAGE.split())

    assert set(re.findall(r"`(\w+)`", metrics.OVERUSE_EVICTIONS._documentation)) == set(evictions.RESULTS)
    assert (
        f"with {evictions.SPACE_MS // 1000} s between two and {evictions.MAX_IN_AN_HOUR} in an hour" in text
    )
    assert f"after {evictions.FIRST_PAUSE_MS // 1000} s, 1, 2, 4 and 8 minutes, then each" in text
    assert f"then each {evictions.LONGEST_PAUSE_MS // 60_000} minutes" in text
    assert (overuse.FRESH_MS, BudgetSettings().overuse_grace_ms) == (120_000, 600_000)
