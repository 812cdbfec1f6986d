"""PodGroups of a real kube-scheduler and API server with their feature gates on, beside our extender and
policies, for pods without Bursar's gates."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from tests.scheduler_ext.clusters import World, decided, extender_with, placed, with_roles
from tests.scheduler_ext.processes import ROOT
from tests.support.control_plane import answer, apply_files, bind_role
from tests.support.waiting import eventually
from tests.worlds import Json

pytestmark = pytest.mark.kubernetes("1.37")

GATES = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true"
SERVED = "--runtime-config=scheduling.k8s.io/v1beta1=true"
SCHEDULING = "/apis/scheduling.k8s.io"
GROUPS = f"{SCHEDULING}/v1beta1/namespaces/default/podgroups"
MODES = "/api/v1/namespaces/bursar-system/configmaps/bursar-modes"
TENANT = "tess"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """One of its own, with the gates."""
    options = Options(api_flags=(GATES, SERVED), controller_flags=(GATES,), scheduler_flags=(GATES,))
    with ControlPlane(options) as started:
        yield with_roles(started)


extender = extender_with()


def pod_group(name: str, least: int, **spec: object) -> Json:
    """A group of which so many pods start at least."""
    return {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **spec}}


def sixties(world: World, *names: str, **spec: Any) -> None:
    """Pods that no card takes two of."""
    for name in names:
        world.pod(name, {"bursar.dev/gpu-percent": "60"}, **spec)


def calls(world: World) -> list[str]:
    """Of the verbs so far: verb, result and pod."""
    said = re.findall(r"event=(\w+) result=(\S+) pod=default/(\S+)", world.extender.said())
    return [" ".join(call) for call in said]


def test_a_group_is_filtered_whole_and_bind_gives_no_card_twice(world: World) -> None:
    """kube-scheduler counts totals, in which the third pod has room, and calls filter for each pod before it
    binds one."""
    world.node("n1", cards=2)
    before = len(calls(world))
    world.plane.api.call("POST", GROUPS, pod_group("train", 3))
    sixties(world, "a", "b", "c", schedulingGroup={"podGroupName": "train"})

    decided(world, "a", "b", "c")
    eventually(lambda: any("no card" in world.refusals(name) for name in "abc"))

    verbs = [call.split()[0] for call in calls(world)[before:]]
    assert verbs[:4] == ["filter", "filter", "filter", "bind"]
    bound = [pod["metadata"]["name"] for pod in world.bound()]
    assert len(bound) == len({card for name in bound for card in world.cards_of(name)}) == 2


def test_no_pod_is_evicted_for_a_group_whose_cards_are_taken(world: World) -> None:
    """kube-scheduler asks filter as if the pods of lower priority were gone, and never asks preempt."""
    world.node("n1", cards=1)
    world.plane.api.call(
        "POST", f"{SCHEDULING}/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 9}
    )
    sixties(world, "taken")
    placed(world, "taken")
    before = len(calls(world))
    world.plane.api.call("POST", GROUPS, pod_group("dear", 1, priorityClassName="high"))
    sixties(world, "dear", schedulingGroup={"podGroupName": "dear"}, priorityClassName="high")

    eventually(lambda: "filter none dear" in calls(world)[before:], "the group's preemption")
    eventually(lambda: world.refusals("dear") != "", "its refusal")

    assert not any(call.startswith("preempt") for call in calls(world)[before:])
    assert "deletionTimestamp" not in world.get("taken")["metadata"]


def test_each_of_many_equal_pods_is_filtered(world: World) -> None:
    """kube-scheduler reuses what it knows of an equal pod (opportunistic batching), but not beside an
    extender."""
    world.node("n1", cards=2)
    world.node("n2", cards=2)
    before = len(calls(world))
    names = [f"same{number}" for number in range(6)]
    sixties(world, *names)

    decided(world, *names)

    filtered = {call.split()[2] for call in calls(world)[before:] if call.startswith("filter")}
    assert filtered == set(names)
    assert len(world.bound()) == 4


def test_a_pod_group_has_no_claims_where_a_tenant_is_governed(plane: ControlPlane) -> None:
    apply_files(
        plane, [ROOT / "deploy" / "manifests" / f"admission-{file}.yaml" for file in ("modes", "claims")]
    )
    bind_role(plane, "edit", TENANT)
    at = f"{GROUPS}?dryRun=All"
    claimed = pod_group("claimed", 1, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}])
    # the first answers may be that she has no right yet
    eventually(lambda: "[device-claim]" in answer(plane, "POST", at, claimed, TENANT).refusal, "the policy")

    assert answer(plane, "POST", at, pod_group("plain", 1), TENANT).refusal == ""

    plane.api.call("PATCH", MODES, {"data": {"default": "meter"}}, "application/merge-patch+json")
    eventually(lambda: answer(plane, "POST", at, claimed, TENANT).refusal == "", "the mode")
