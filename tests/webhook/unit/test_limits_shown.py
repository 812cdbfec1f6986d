"""What HAMi's webhook wrote into a pod: the priority as a variable, and one card where there is no number."""

import pytest

from tests.webhook.worlds import POLICY, admitted, governed, operations, violations_of
from tests.worlds import Json, of_resources

PRIORITY = "nvidia.com/priority"
VARIABLE = "CUDA_TASK_PRIORITY"


def asking(name: str, env: list[Json] | None = None, **amounts: str) -> Json:
    """A container of HAMi's words."""
    limits = {f"nvidia.com/{key}": value for key, value in amounts.items()}
    return {**of_resources(limits, name), **({"env": env} if env is not None else {})}


def shown(raw: Json, name: str) -> list[Json]:
    """The variable, as often as it stands in the container."""
    (container,) = (each for each in raw["spec"]["containers"] if each["name"] == name)
    return [each for each in container.get("env", []) if each["name"] == VARIABLE]


@pytest.mark.parametrize("env", [None, [], [{"name": "A", "value": "b"}]])
def test_a_container_with_a_priority_is_shown_it_and_no_other_is(env: list[Json] | None) -> None:
    raw = admitted(
        asking("high", env, gpu="1", priority="0"),
        asking("none", gpu="1", gpumem="5"),
        asking("low", gpu="1", priority="1"),
    )

    after = governed(raw)

    assert [shown(after, name) for name in ("high", "none", "low")] == [
        [{"name": VARIABLE, "value": "0"}],
        [],
        [{"name": VARIABLE, "value": "1"}],
    ]
    assert operations(after) == []
    assert list(violations_of(after, POLICY)) == []


@pytest.mark.parametrize("amounts", [{"gpu": "1", "priority": "1"}, {"gpu": "1", "gpumem": "5"}])
def test_no_user_writes_another_one(amounts: dict[str, str]) -> None:
    raw = admitted(asking("main", [{"name": VARIABLE, "value": "0"}], **amounts))

    assert [each.rule for each in violations_of(raw, POLICY)] == ["isolation-variable"]


@pytest.mark.parametrize("amounts", [{"gpumem": "5"}, {"gpucores": "30", "priority": "1"}])
def test_a_container_without_a_number_of_cards_gets_one(amounts: dict[str, str]) -> None:
    raw = admitted(asking("main", None, **amounts), asking("two", gpu="2", gpumem="5"), asking("none"))

    after = governed(raw)

    limits = [each["resources"]["limits"].get("nvidia.com/gpu") for each in after["spec"]["containers"][:3]]
    assert limits == ["1", "2", None]
    assert after["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert operations(after) == []
    assert list(violations_of(after, POLICY)) == []
