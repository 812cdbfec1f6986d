"""The page on what pods use tells of all metrics that the agent gives of it, and of no others."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sidecar.node import watchdog
from sidecar.node.exporter import of_cards, of_pods, of_reports
from sidecar.node.reports import Ports, Reports
from sidecar.node.use import Measured, PodLoad
from sidecar.node.values import Card, Load, PodSeen
from sidecar.node.watchdog import Episode, Excess

PAGE = (Path(__file__).parent.parent.parent / "docs" / "node-use.md").read_text()


def _say(event: str, **pairs: object) -> None:
    """No log."""


def test_every_metric_of_use_is_explained_with_its_kind_and_labels() -> None:
    card = Card("G", 0, "A100", 10, True, "", 0, (), "1g.5gb")
    pod = PodSeen("u", "team", "p", ("G",), False, ())
    seen = Measured((PodLoad("u", (Load("G", 1, 9),)),), (Load("G", 1, 9),))
    reports = Reports(Ports(lambda _: None, lambda *_: True, lambda: 0.5, _say), "run", 0)
    episodes = {"u": Episode(0, None, (Excess("G", 9, 8),))}
    text = (
        of_cards((card,), seen, "n") + of_pods((pod,), seen, {"u": {"G": 8}}, episodes) + of_reports(reports)
    )
    families = list(text_string_to_metric_families(text))
    exist = {each.name + ("_total" if each.type == "counter" else ""): each.type for each in families}
    labels = {label for each in families for sample in each.samples for label in sample.labels}

    told = dict(re.findall(r"^\| `(\w+)` \| (gauge|counter)", PAGE, re.MULTILINE))

    assert told == exist
    assert [label for label in sorted(labels) if f"`{label}`" not in PAGE] == []


def test_the_events_that_are_written_are_the_ones_that_are_told_of() -> None:
    assert set(re.findall(r"`(GPU[A-Za-z]+)`", PAGE)) == {watchdog.OVER, watchdog.WITHIN}
