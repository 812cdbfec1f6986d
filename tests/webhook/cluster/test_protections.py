"""Policy `bursar-protections` in a real API server: who may write a budget entry with `protect`."""

import json

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import apply
from tests.support.waiting import eventually
from tests.webhook.policies import Policies
from tests.webhook.unit.test_configmaps import config_map
from tests.worlds import Json

PROTECTS = "gpuHours: 1\nprotect: {labels: {tier: serving}, cards: 4}"
FORBIDDEN = "data[team-a]: this entry has or had the field protect; writing it requires the right to create"
LABELLED = {"bursar.dev/budgets": "true"}


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane) -> Policies:
    """The policies in force and no webhook; tess may write ConfigMaps, and olga also create protections."""
    made = Policies(control_plane)
    allow(made, "tess")
    allow(made, "olga", {"apiGroups": ["bursar.dev"], "resources": ["protections"], "verbs": ["create"]})
    eventually(
        lambda: write(made, config_map({"team-a": PROTECTS}, "bursar-settings"), dry=True), "the policy"
    )
    return made


def allow(world: Policies, user: str, *more: Json) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}, *more]
    role = {"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "rules": rules}
    apply(world.cp, role | {"metadata": {"name": user}})
    world.kubectl("create", "clusterrolebinding", user, f"--clusterrole={user}", f"--user={user}")


def write(world: Policies, written: Json, user: str = "tess", dry: bool = False) -> str:
    """What kubectl says where the write is refused; empty where it is not."""
    how = ("--server-side", "--force-conflicts", f"--as={user}", *(("--dry-run=server",) if dry else ()))
    done = world.cp.kubectl("apply", "-f", "-", *how, input=json.dumps(written))
    return done.stderr if done.returncode else ""


def test_only_who_has_the_right_sets_changes_or_removes_it(world: Policies) -> None:
    both = {"team-a": PROTECTS, "team-b": "gpuHours: 2"}

    assert FORBIDDEN in write(world, config_map(both))
    assert write(world, config_map(both), "olga") == ""
    assert FORBIDDEN in write(world, config_map(both | {"team-a": PROTECTS.replace("4", "5")}))
    assert FORBIDDEN in write(world, config_map(both | {"team-a": "gpuHours: 1"}))
    assert write(world, config_map(both | {"team-b": "gpuHours: 3"})) == ""
    assert write(world, config_map(both | {"team-a": PROTECTS.replace("4", "5")}), "olga") == ""


@pytest.mark.parametrize(
    "text",
    [
        'gpuHours: 1\n"protect": {owners: [Job], cards: 1}',
        'gpuHours: 1\n"\\x70rotect": {owners: [Job], cards: 1}',
        "{gpuHours: 1, protect: {owners: [Job], cards: 1}}",
        "gpuHours: 1\n? protect\n: {owners: [Job], cards: 1}",
    ],
)
def test_no_way_to_write_the_field_in_yaml_passes(world: Policies, text: str) -> None:
    assert FORBIDDEN in write(world, config_map({"team-a": text}, "more", labels=LABELLED), dry=True)


def test_a_config_map_that_becomes_one_of_budgets_has_only_new_entries(world: Policies) -> None:
    plain = config_map({"team-a": PROTECTS}, "becoming")

    assert write(world, plain) == ""
    assert FORBIDDEN in write(world, config_map({"team-a": PROTECTS}, "becoming", labels=LABELLED))
    assert write(world, config_map({"team-a": "gpuHours: 1"}, "becoming", labels=LABELLED)) == ""


def test_config_maps_of_other_namespaces_are_nobodys_matter(world: Policies) -> None:
    elsewhere = config_map({"team-a": PROTECTS}, labels=LABELLED)
    elsewhere["metadata"]["namespace"] = "team-a"

    assert write(world, elsewhere) == ""
