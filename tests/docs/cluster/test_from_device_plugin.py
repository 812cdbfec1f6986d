"""docs/from-device-plugin.md, typed on a real API server: a claim on a device that
kubernetes-sigs/dra-example-driver published, as it was recorded, allocated by kube-scheduler."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kwok_nodes import device_class, kwok_node
from deploy.local.stack import Stack
from deploy.local.up import exports
from tests.deploy.reading import ROOT
from tests.docs.shell import console, run
from tests.kubelet import recorded
from tests.support.control_plane import create_namespace
from tests.support.worker_control_plane import Lender
from tests.worlds import Json

pytestmark = pytest.mark.cluster

DRIVER = "gpu.example.com"
RESOURCES = "/apis/resource.k8s.io/v1"
(COMMANDS,) = console((ROOT / "docs" / "from-device-plugin.md").read_text())
SIMULATE, APPLY, EXPLAIN, TOP, USAGE = COMMANDS.splitlines()


def published(driver: str) -> Json:
    """The recorded slice of the driver, as it created it."""
    raw = recorded.read("slices")[driver][0]
    metadata = {"name": raw["metadata"]["name"]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": raw["spec"],
    }


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    with lender.stack(new_ledger=True) as running:
        create_namespace(running.cp, "team-a")
        found = published(DRIVER)
        call = running.cp.api.call
        call("POST", "/api/v1/nodes", kwok_node(found["spec"]["nodeName"]))
        call("POST", f"{RESOURCES}/deviceclasses", device_class(DRIVER))
        call("POST", f"{RESOURCES}/resourceslices", found)
        yield running


@pytest.fixture(scope="module")
def folder(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the samples and the plugin, where the sample's pod holds its claim."""
    made = tmp_path_factory.mktemp("typed")
    (made / "deploy").symlink_to(ROOT / "deploy")
    (made / "bin").mkdir()
    plugin = made / "bin" / "kubectl-bursar"
    plugin.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m timekeeper.cli.main "$@"\n')
    plugin.chmod(0o755)
    said = json.loads(typed(stack, made, f"{SIMULATE} -o json"))
    assert [(each["outcome"], each["cost"]["rateMilli"]) for each in said["pods"]] == [("unknown", 1000)]
    typed(stack, made, APPLY)
    stack.wait("the session", lambda: charges(stack, made) != [])
    return made


def typed(stack: Stack, folder: Path, commands: str) -> str:
    return run(stack.cp, f"{exports(stack.cp, stack)}\n{commands}", folder)


def charges(stack: Stack, folder: Path) -> list[Json]:
    found: list[Json] = json.loads(typed(stack, folder, f"{EXPLAIN} -o json"))["charges"]
    return found


def claim(stack: Stack) -> Json:
    """The claim that was made for the pod."""
    (found,) = stack.cp.api.call("GET", f"{RESOURCES}/namespaces/team-a/resourceclaims")["items"]
    made: Json = found
    return made


def test_the_pod_and_its_claim_are_explained_by_the_device_that_was_allocated(
    stack: Stack, folder: Path
) -> None:
    (result,) = claim(stack)["status"]["allocation"]["devices"]["results"]
    name, where = claim(stack)["metadata"]["name"], f"{result['pool']}/{result['device']}"

    said = charges(stack, folder)[0]["sentence"]
    of_claim = typed(stack, folder, EXPLAIN.replace("explain claimed-device", f"explain claim/{name}"))

    assert f"claim {name} holds {DRIVER} {where} (class {DRIVER}) of node {result['pool']} since" in said
    assert said.endswith(
        "Its rate is 1: 1 GPU of model LATEST-GPU-MODEL. It was reserved for claimed-device."
    )
    assert "It was reserved for claimed-device." in " ".join(of_claim.split())


def test_top_shows_the_claim_with_its_device(stack: Stack, folder: Path) -> None:
    (row,) = [line.split() for line in typed(stack, folder, TOP).splitlines() if "claim/" in line]

    assert row[:2] == ["team-a", f"claim/{claim(stack)['metadata']['name']}"]
    assert row[-1].startswith("real/gpu-")


def test_the_report_is_grouped_by_what_it_holds(stack: Stack, folder: Path) -> None:
    name = claim(stack)["metadata"]["name"]
    shown = f"{USAGE} -o json"
    stack.wait("a charge", lambda: json.loads(typed(stack, folder, shown))["items"] != [])

    (row,) = json.loads(typed(stack, folder, shown))["items"]

    assert (row["namespace"], row["claim"], row["classes"], row["drivers"]) == (
        "team-a",
        name,
        DRIVER,
        DRIVER,
    )
    assert row["devices"].startswith("real/gpu-")


def test_a_pod_whose_template_is_missing_says_what_it_waits_for(stack: Stack, folder: Path) -> None:
    body = {
        "metadata": {"name": "early"},
        "spec": {
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "later"}],
        },
    }
    stack.cp.api.call("POST", "/api/v1/namespaces/team-a/pods", body)
    command = "kubectl bursar explain early -n team-a -o json"

    def waits() -> list[str]:
        found: list[str] = json.loads(typed(stack, folder, command))["waitsFor"]
        return found

    missing = "waits for its claims: ResourceClaimTemplate later is not there"
    stack.wait("the reason", lambda: missing in waits())


def test_the_claim_and_its_pod_get_the_event_that_the_budget_is_spent(stack: Stack, folder: Path) -> None:
    path = "/api/v1/namespaces/bursar-system/configmaps"
    body = {"metadata": {"name": "bursar-budgets"}, "data": {"team-a": "gpuHours: 10\nperiod: month"}}
    stack.cp.api.call("POST", path, body)
    stack.wait("the entry", lambda: " 10.00" in typed(stack, folder, "kubectl bursar budget team-a"))
    spent = {"data": {"team-a": "gpuHours: 0\nperiod: month"}}
    stack.cp.api.call("PATCH", f"{path}/bursar-budgets", spent, "application/merge-patch+json")
    command = "kubectl get events -n team-a --field-selector reason=OverBudget -o json"

    def named() -> set[tuple[str, str, str]]:
        found = [each["involvedObject"] for each in json.loads(typed(stack, folder, command))["items"]]
        return {(each["kind"], each["name"], each["uid"]) for each in found}

    its, pod = (
        claim(stack)["metadata"],
        stack.cp.api.call("GET", "/api/v1/namespaces/team-a/pods/claimed-device"),
    )
    expected = {
        ("ResourceClaim", its["name"], its["uid"]),
        ("Pod", "claimed-device", pod["metadata"]["uid"]),
    }
    stack.wait("the Events", lambda: expected <= named())
    said = typed(stack, folder, f"kubectl describe resourceclaim {its['name']} -n team-a")
    assert "OverBudget" in said
