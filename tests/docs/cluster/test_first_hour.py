"""The documents alone, from an empty cluster to an empty cluster: their commands, typed in the order in which
a new administrator reads them. Nothing is typed that no page has.

There is no kubelet: kwok runs the pods, and processes of this machine do the work of Bursar's own.
"""

import shutil
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from deploy.local.up import exports
from tests.deploy.reading import ROOT
from tests.docs.cluster.test_uninstall import everything
from tests.docs.shell import console, run
from tests.support.control_plane import kubectl, offer_volume
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

Typed = Callable[[str], str]


def page(name: str) -> list[str]:
    """The blocks of commands of a document."""
    return console((ROOT / "docs" / f"{name}.md").read_text())


def block(name: str, *words: str) -> str:
    """The block of a document that has these words."""
    (found,) = [each for each in page(name) if all(word in each for word in words)]
    return found


def empty_cluster(cp: ControlPlane, folder: Path) -> None:
    """A node with a GPU that nothing of ours has described, and a volume that the ledger's claim finds."""
    cp.api.call("POST", "/api/v1/nodes", kwok_node("big"))
    offer_volume(cp, folder)
    cp.start_scheduler()


def describe_node(typed: Typed) -> None:
    """As node-agent.md says, for a node without an agent."""
    label, by_hand = block("install", "kubectl label node"), block("node-agent", "bursar.dev/inventory=")
    for commands in (label, by_hand, by_hand.partition("\n")[2].replace('"capacity"', '"allocatable"')):
        typed(commands.replace("node NODE", "node big").replace("GPU-...", "GPU-1"))


def first_budget_pod_and_bill(typed: Typed, folder: Path) -> None:
    """tutorial.md, without its cluster."""
    _nodes, budget, pod, wrong, explain, bill, used, second, clean = page("tutorial")
    assert typed(budget).splitlines()[-1].split()[:3] == ["astronomy", "IN_BUDGET", "10.00"]
    assert "gpu-default-priority" in typed(pod)
    assert "not a multiple of 100" in typed(f"({wrong.strip()}) 2>&1")
    eventually(lambda: "Placed on node big" in typed(explain.splitlines()[0]), "the decision")
    typed(explain)
    typed(bill)
    assert (folder / "bill.csv").read_text().startswith("from,to,namespace,owner,")
    assert typed(used).splitlines()[-1].split()[1] == "OVER_BUDGET"
    dry = second.splitlines()[0] + " --dry-run=server -o yaml"
    eventually(lambda: "gpu-lower-priority" in typed(dry), "the webhook's standings")
    assert "Warning: " in typed(f"exec 2>&1\n{second}")
    typed(clean)


def test_the_documents_lead_from_an_empty_cluster_to_an_empty_cluster(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    plugin = tmp_path / "bin" / "kubectl-bursar"
    plugin.parent.mkdir()
    plugin.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m timekeeper.cli.main "$@"\n')
    plugin.chmod(0o755)
    took: list[tuple[str, float]] = [("begin", time.monotonic())]

    def done(part: str) -> None:
        took.append((part, time.monotonic()))

    with ControlPlane() as cp:
        empty_cluster(cp, tmp_path)
        before = everything(cp)
        done("(control plane)")
        found = ""

        def typed(commands: str) -> str:
            return run(cp, f"{found}\n{commands}", tmp_path)

        describe_node(typed)
        typed(block("helm", "webhook-configurations.yaml"))
        typed("kubectl wait pod -n bursar-system --all --for condition=Ready --timeout=5m")
        cp.stop_scheduler()
        with Stack(cp) as stack, Sidecars(stack):
            verify = block("install", "--dry-run=server")
            eventually(lambda: "true UNLIMITED bursar-scheduler" in typed(verify), "the standings")
            done("install")
            typed("kubectl apply --server-side -f deploy/samples/budgets.yaml")
            typed(page("cli")[0])
            found = exports(cp, stack)
            first_budget_pod_and_bill(typed, tmp_path)
            done("first budget, pod, explain, report")
            typed("kubectl bursar doctor || true")
            found = ""
            typed(block("upgrade", "timekeeper.yaml"))
            typed("kubectl wait pod -n bursar-system --all --for condition=Ready --timeout=5m")
            done("upgrade")
        roles = ("viewer", "metrics", "grants")  # of `make up`, not of a document
        kubectl(cp, "delete", "clusterrolebinding", *(f"bursar-{role}-local" for role in roles))
        for commands in page("uninstall"):
            if "saved" not in commands:  # to save the ledger takes a kubelet; test_uninstall.py saves
                typed(commands)
        eventually(lambda: everything(cp) == before, lambda: everything(cp))
        done("uninstall")
    with capfd.disabled():
        for (_, begun), (part, ended) in pairwise(took):
            print(f"{part}: {ended - begun:.0f} s")
