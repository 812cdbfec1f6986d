"""Budget ConfigMaps written to a real API server."""

from collections.abc import Iterator

import orjson
import pytest

from deploy.local.cluster import ControlPlane
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
from tests.webhook.unit.test_configmaps import BAD, GOOD, SENTENCE, config_map
from tests.worlds import Json


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The webhook, registered."""
    with Registered(control_plane, tmp_path_factory.mktemp("configmaps")) as made:
        yield made


def apply(world: Registered, written: Json) -> tuple[int, str]:
    """kubectl apply --server-side: exit code and stderr."""
    return world.said("apply", "--server-side", "-f", "-", input=orjson.dumps(written).decode())


def test_kubectl_apply_of_a_mistake_is_refused_and_a_good_one_is_stored(world: Registered) -> None:
    code, said = apply(world, config_map({"team-a": BAD}))

    assert code == 1
    assert f'admission webhook "budgets.bursar.dev" denied the request: {SENTENCE}' in said
    assert apply(world, config_map({"team-a": GOOD}))[0] == 0
    patch = orjson.dumps({"data": {"team-a": BAD}}).decode()
    code, said = world.said(
        "patch", "-n", "bursar-system", "configmap", "bursar-budgets", "--type", "merge", "-p", patch
    )
    assert (code, SENTENCE in said) == (1, True)


def test_a_labelled_config_map_is_reviewed_also_without_a_name_yet(world: Registered) -> None:
    labels = {"bursar.dev/budgets": "true"}
    named = config_map({"team-a": BAD}, "more-budgets", labels=labels)
    generated = config_map({"team-a": BAD}, labels=labels, generateName="more-")
    del generated["metadata"]["name"]

    for written in (named, generated):
        code, said = world.said("create", "-f", "-", input=orjson.dumps(written).decode())
        assert (code, SENTENCE in said) == (1, True)


def test_other_config_maps_and_other_namespaces_do_not_come_to_us(world: Registered) -> None:
    elsewhere = config_map({"team-a": BAD})
    elsewhere["metadata"]["namespace"] = "team-a"

    assert apply(world, config_map({"team-a": BAD}, "other"))[0] == 0
    assert apply(world, config_map({"team-a": BAD}, "labelled", labels={"a": "b"}))[0] == 0
    assert apply(world, elsewhere)[0] == 0

    assert "name=other" not in world.webhook.log()
    assert "name=labelled" not in world.webhook.log()
    assert "webhook=budgets verdict=refused namespace=team-a" not in world.webhook.log()


def test_an_old_mistake_blocks_no_other_key_and_the_budgets_can_be_deleted_while_we_are_down(
    world: Registered,
) -> None:
    probe = config_map({"x": BAD}, "probe", labels={"bursar.dev/budgets": "true"})
    world.unregister()
    eventually(lambda: not world.denies(probe), "the webhook not to be asked")
    assert apply(world, config_map({"team-a": BAD}))[0] == 0
    world.register()
    eventually(lambda: world.denies(probe), "the webhook to be asked")

    code, said = apply(world, config_map({"team-a": BAD, "team-b": GOOD}))

    assert code == 0
    assert "Warning: Wrong before and unchanged; the last valid entry stays in force: team-a, line 2" in said
    world.register(at="https://127.0.0.1:1")
    eventually(lambda: not world.denies(probe), "the webhook not to be asked")
    world.kubectl("delete", "-n", "bursar-system", "configmap", "bursar-budgets")
    world.register()
