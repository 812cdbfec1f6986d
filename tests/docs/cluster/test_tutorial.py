"""docs/tutorial.md, typed from its first line to its last on the cluster that `make up` starts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.demo.layout import lay_out
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from deploy.local.up import exports
from tests.deploy.reading import ROOT
from tests.docs.shell import console, run
from tests.support.worker_control_plane import Lender

pytestmark = pytest.mark.cluster

NODES, BUDGET, POD, WRONG, EXPLAIN, BILL, USED, SECOND, CLEAN = console(
    (ROOT / "docs" / "tutorial.md").read_text()
)


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    with lender.stack(new_ledger=True) as running, Sidecars(running):
        lay_out(running)
        yield running


@pytest.fixture(scope="module")
def variables(stack: Stack) -> str:
    """The lines that `make up` prints for a second terminal."""
    return exports(stack.cp, stack)


def test_the_lesson_shows_what_it_says(stack: Stack, variables: str, tmp_path: Path) -> None:
    plugin = tmp_path / "bin" / "kubectl-bursar"
    plugin.parent.mkdir()
    plugin.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m timekeeper.cli.main "$@"\n')
    plugin.chmod(0o755)

    def typed(commands: str) -> str:
        return run(stack.cp, f"{variables}\n{commands}", tmp_path)

    assert ["big", "200"] in [line.split() for line in typed(NODES).splitlines()]
    row = typed(BUDGET).splitlines()[-1].split()
    assert row[:4] == ["astronomy", "IN_BUDGET", "10.00", "0.00"]
    node, priority, devices = typed(POD).splitlines()[-3:]
    assert (node, priority) == ("big", "gpu-default-priority")
    (card,) = json.loads(devices)["containers"]["train"]
    assert card["share_milli"] == 500
    assert "more than one card, but not a multiple of 100" in typed(f"({WRONG.strip()}) 2>&1")
    first, _, cards = EXPLAIN.splitlines()
    stack.wait("the decision", lambda: "Placed on node big" in typed(first))
    stack.wait("the node's cards", lambda: "not yet" not in typed(f"{cards} || echo not yet"))
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


README = (ROOT / "README.md").read_text()
_, WHY = console((ROOT / "docs" / "users.md").read_text())
REVIEWS, _, _ = console((ROOT / "docs" / "review.md").read_text())
PENDING, _, _, REVIEW, DEMOTED, HELD, CHARGED, _, _ = console(
    (ROOT / "docs" / "troubleshooting.md").read_text()
)


def test_the_commands_of_troubleshooting_answer_its_questions(
    stack: Stack, variables: str, tmp_path: Path
) -> None:
    """Those that need a kubelet, and the remedy for a pod too large for etcd, are typed elsewhere or not."""
    for name, module in (("kubectl-bursar", "timekeeper.cli.main"), ("bursar-webhook", "webhook")):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {sys.executable} -m {module} "$@"\n')
        command.chmod(0o755)
    pods = "/api/v1/namespaces/team-a/pods"
    dry = f"{pods}?dryRun=All"
    for name, amount in (("runs", {"percent": "50"}), ("waits", {"memory": "100000"})):
        limits = {f"bursar.dev/gpu-{key}": text for key, text in amount.items()}
        container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        body |= {"spec": {"restartPolicy": "Never", "containers": [container]}}
        (tmp_path / f"{name}.json").write_text(json.dumps(body))

    runs = json.loads((tmp_path / "runs.json").read_text())
    stack.wait("the budget", lambda: "IN_BUDGET" in str(stack.cp.api.call("POST", dry, runs)))
    for name in ("runs", "waits"):
        stack.cp.api.call("POST", pods, json.loads((tmp_path / f"{name}.json").read_text()))

    def typed(commands: str, pod: str) -> str:
        filled = commands.replace("POD", pod).replace("NAMESPACE", "team-a").replace("FILE", f"{pod}.json")
        return run(stack.cp, f"{variables}\n{filled}", tmp_path)

    explain, state, describe = PENDING.splitlines()
    stack.wait("the reason", lambda: "100000 MiB" in typed(explain, "waits"))
    stack.wait("the post of a filter's answer", lambda: "no cards fit" in typed(state, "waits"))
    assert "no card has 100000 MiB free" in typed(describe, "waits")
    assert "no card has 100000 MiB free" in typed(WHY.replace("train", "waits"), "waits")
    assert typed(REVIEW, "runs") is not None
    (tmp_path / "train.yaml").write_text(README.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / "budgets.yaml").write_text((ROOT / "deploy" / "samples" / "budgets.yaml").read_text())
    reviewed = typed(REVIEWS.replace("helm template .", "cat train.yaml"), "runs")
    assert "\n+  priorityClassName: gpu-lower-priority\n" in reviewed
    standing, _, answer = typed(DEMOTED, "runs").partition("\n")
    assert standing == "IN_BUDGET gpu-default-priority"
    assert json.loads(answer)["standing"] == "IN_BUDGET"
    assert json.loads(typed(HELD, "runs")) == {"items": []}
    stack.wait("the session", lambda: "runs" in typed(CHARGED, "runs"))
