"""The page on the node agent has all flags, metrics, Events and log lines, and no others. Its chapters on
holders and on measured use have tests of their own."""

import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sidecar.node import agent
from sidecar.node.agent import Agent, AgentPorts
from sidecar.node.kube.api import ApiAnswer
from sidecar.node.metrics import of_agent
from sidecar.node.nri.plugin import Plugin
from sidecar.node.nvml import cards
from sidecar.node.state import card_events, health, mps
from tests.node.worlds import card, look, node

ROOT = Path(__file__).parents[3]
WHOLE = (ROOT / "docs" / "node-agent.md").read_text()
OTHERS = ("which-pods-use-which-cards", "measured-use")
PAGE = WHOLE[: WHOLE.index("## Which pods use which cards\n")] + WHOLE[WHOLE.index("## Rights\n") :]


def firsts(heading: str) -> set[str]:
    """The words in the first column of the table under a heading."""
    table = PAGE.partition(heading)[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def written(_: dict[str, Any]) -> ApiAnswer:
    metadata = {"uid": "n", "resourceVersion": "2"}
    return ApiAnswer(200, {"metadata": metadata}, "")


def test_every_metric_is_documented_with_its_kind_and_labels() -> None:
    one = Agent(AgentPorts(written, lambda _: None, lambda *_, **__: None), "boot", 5_000, 0)
    one.on_node(node(), 0)
    one.on_reading(look(card()), 0)
    one.write_if_due(0)
    of_nri = Plugin(lambda *_: None, frozenset()).page()
    families = list(text_string_to_metric_families(of_agent(one, 0, {"posted": 1}) + of_nri))
    exist = {
        each.name + ("_total" if each.type == "counter" else ""): (each.type, set(each.samples[0].labels))
        for each in families
    }

    rows = re.findall(r"^\| `(bursar_\w+)` \| (\w+)(.*?) \|", PAGE, re.MULTILINE)

    assert {name: kind for name, kind, _ in rows} == {name: kind for name, (kind, _) in exist.items()}
    for name, _, labels in rows:
        on_page = re.sub(r"\(.*?\)", "", labels)  # a label's values
        assert set(re.findall(r"`(\w+)`", on_page)) == exist[name][1]


def test_every_line_of_the_log_is_documented() -> None:
    code = "\n".join(
        file.read_text() for file in (ROOT / "sidecar" / "node").rglob("*.py") if file.stem != "holder_survey"
    )
    written = set(re.findall(r'\b(?:log|_log_once)\("([a-z-]+)"', code))

    assert firsts("| event in the log |") == written


def test_its_events_numbers_and_links_are_those_that_there_are() -> None:
    assert set(re.findall(r"`(GPU[A-Z]\w+)`", PAGE)) == {card_events.FAULTY, card_events.WELL}
    listed = ", ".join(map(str, sorted(cards.OF_PROGRAMS)[:-1]))
    assert f"Programs cause the XIDs {listed} and {max(cards.OF_PROGRAMS)}" in PAGE
    assert (health.PATIENCE_MS, health.CALM_MS, cards.REOPEN_MS) == (10_000, 600_000, 20_000)
    assert (cards.MAX_REOPEN_MS, card_events.QUIET_MS) == (300_000, 600_000)
    assert (mps.BEGINS_AFTER_MS, mps.LASTS_MS) == (30_000, 600_000)
    assert agent.HUNG_MS + health.PATIENCE_MS + 5_000 == 25_000
    for name in OTHERS:
        assert f"](#{name})" in PAGE
