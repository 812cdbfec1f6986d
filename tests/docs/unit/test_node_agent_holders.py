"""The chapter on holders of docs/node-agent.md has all metrics, Events and log lines, and no others."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sidecar.node import holder_survey, settings
from sidecar.node.holder_survey import HolderSurvey, SurveyPaths
from sidecar.node.nvml.cards import NVIDIA
from sidecar.node.values import DeviceReading, GPUProcess, NodeState, ProcessOwner
from timekeeper.core.kube.holders import decode_holders

ROOT = Path(__file__).parents[3]
WHOLE = (ROOT / "docs" / "node-agent.md").read_text()
PAGE = WHOLE[WHOLE.index("## Which pods use which cards\n") : WHOLE.index("## Measured use\n")]
CODE = (ROOT / "sidecar" / "node" / "holder_survey.py").read_text()


def _say(event: str, **pairs: object) -> None:
    """No log."""


def test_every_metric_of_holders_is_explained_with_its_labels() -> None:
    agent = HolderSurvey(SurveyPaths("", "", "", (), True, frozenset(), NVIDIA), "boot", _say, lambda _: None)
    agent.on_node(NodeState("n", "1", "boot", None, None, (), (), None, False))
    stranger = DeviceReading((), (), (), (), (GPUProcess(1, "GPU-1", None, None),), (), (), "")
    for now_ms in (0, 5_000):
        agent.survey(stranger, {1: ProcessOwner("a", "c")}, (), frozenset(), now_ms)
    families = list(text_string_to_metric_families(agent.page()))
    exist = {each.name: sorted(each.samples[0].labels) for each in families}

    rows = re.findall(r"^\| `(bursar_\w+)`(.*?) \| gauge \|", PAGE, re.MULTILINE)

    assert {name: sorted(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == exist


def test_every_line_of_its_log_is_explained() -> None:
    written = set(re.findall(r'_log\("([a-z-]+)"', CODE))
    table = PAGE.partition("| event | fields |")[2]

    on_page = {
        event for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for event in row.split(", ")
    }

    assert {event.strip("`") for event in on_page} == written


def test_its_events_and_flags_are_those_that_there_are() -> None:
    flags = {flag for flag, _, _ in settings.FLAGS} | {"runtime-class"}  # this one is the webhook's

    assert set(re.findall(r"`(GPU[A-Z][A-Za-z]+)`", PAGE)) == {
        holder_survey.STRANGER,
        holder_survey.OPEN_RUNTIME,
    }
    assert set(re.findall(r"--([a-z]+(?:-[a-z]+)+|proc|cgroups)\b", PAGE)) <= flags


def test_the_example_of_the_annotation_is_one() -> None:
    example = re.findall(r'^\{"version".*$', PAGE, re.MULTILINE)[0]

    rows = PAGE.partition("| field | meaning |")[2].partition("\n\n")[0]
    assert list(json.loads(example)) == ["version", *re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)]
    assert decode_holders(example).known
