"""docs/tutorial.md, typed from its first line to its last on the cluster that `make up` starts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.demo.layout import lay_out
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from deploy.local.up import exports
from tests.deploy.reading import ROOT
from tests.docs.shell import console, run

pytestmark = pytest.mark.cluster

NODES, BUDGET, POD, WRONG, EXPLAIN, BILL, USED, SECOND, CLEAN = console(
    (ROOT / "docs" / "tutorial.md").read_text()
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with ControlPlane() as cp, Stack(cp) as running, Sidecars(running):
        lay_out(running)
        yield running


def test_the_lesson_shows_what_it_says(stack: Stack, tmp_path: Path) -> None:
    found = exports(stack.cp, stack)
    plugin = tmp_path / "bin" / "kubectl-bursar"
    plugin.parent.mkdir()
    plugin.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m timekeeper.cli.main "$@"\n')
    plugin.chmod(0o755)

    def typed(commands: str) -> str:
        return run(stack.cp, f"{found}\n{commands}", tmp_path)

    assert ["big", "200"] in [line.split() for line in typed(NODES).splitlines()]
    assert typed(BUDGET).splitlines()[-1].split()[:3] == ["astronomy", "IN_BUDGET", "10.00"]
    node, priority, devices = typed(POD).splitlines()[-3:]
    assert (node, priority) == ("big", "gpu-default-priority")
    (card,) = json.loads(devices)["containers"]["train"]
    assert card["share_milli"] == 500
    assert "more than one card, but not a multiple of 100" in typed(f"({WRONG.strip()}) 2>&1")
    first = EXPLAIN.splitlines()[0]
    stack.wait("the decision", lambda: "Placed on node big" in typed(first))
    assert {line.split()[0] for line in typed(EXPLAIN).splitlines() if line} >= {"NAMESPACE", "NODE", "big"}
    typed(BILL)
    assert (tmp_path / "bill.csv").read_text().startswith("from,to,namespace,owner,")
    assert typed(USED).splitlines()[-1].split()[1] == "OVER_BUDGET"
    stack.wait("the webhook's standings", lambda: "OVER_BUDGET" in typed(DRY))
    told = typed(f"exec 2>&1\n{SECOND}")
    assert "OVER_BUDGET gpu-lower-priority" in told
    assert "Warning: " in told
    typed(CLEAN)


DRY = SECOND.splitlines()[0] + " --dry-run=server -o jsonpath='{.metadata.annotations.bursar\\.dev/standing}'"
