"""The judge of the storms condemns what is wrong, and nothing else."""

import json

import pytest

from deploy.local.kwok_nodes import card_uuid, kwok_node
from tests.scheduler_ext.history import History, Json, complaints

NODE = kwok_node("n", cards=2, memory_mib=16_000)
ONE, OTHER = card_uuid("n", 0), card_uuid("n", 1)


def part(uuid: str, share: int, memory: int | None = None) -> Json:
    """A slice of a card."""
    return {
        "uuid": uuid,
        "index": int(uuid == OTHER),
        "share_milli": share,
        "memory_mib": 16 * share if memory is None else memory,
    }


def bound(name: str, percent: int, *parts: Json, phase: str = "Running", where: str = "n") -> Json:
    """A pod of one container that asked so much and was given these."""
    limits = {"bursar.dev/gpu-percent": str(percent)}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "annotations": {
                "bursar.dev/devices": json.dumps({"version": 1, "containers": {"main": list(parts)}}),
                "visible-devices.bursar.dev/main": ",".join(each["uuid"] for each in parts),
            },
        },
        "spec": {"nodeName": where, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


def after(*events: tuple[str, Json]) -> History:
    """The history of these events."""
    history = History({ONE: 16_000, OTHER: 16_000})
    for kind, pod in events:
        history.saw(kind, pod)
    return history


HALF, REST = bound("half", 50, part(ONE, 500)), bound("rest", 60, part(ONE, 600))


def test_a_card_that_holds_too_much_at_any_moment_is_wrong() -> None:
    history = after(("ADDED", HALF), ("ADDED", REST), ("DELETED", REST))

    assert history.wrong == [f"rest on n: {ONE} holds 1100 thousandths and 17600 MiB"]
    assert (history.bound, history.freed, set(history.held)) == (2, 1, {"half"})


@pytest.mark.parametrize("how", ["DELETED", "Succeeded", "Failed"])
def test_who_has_ended_holds_nothing(how: str) -> None:
    end = (
        ("DELETED", HALF) if how == "DELETED" else ("MODIFIED", bound("half", 50, part(ONE, 500), phase=how))
    )

    assert after(("ADDED", HALF), end, ("ADDED", REST)).wrong == []


def test_memory_is_counted_as_well() -> None:
    assert after(("ADDED", bound("a", 10, part(ONE, 100, 9_000))), ("ADDED", HALF)).wrong


def test_cards_that_change_under_a_pod_are_wrong_and_so_are_none_at_all() -> None:
    assert (
        "were changed" in after(("ADDED", HALF), ("MODIFIED", bound("half", 50, part(OTHER, 500)))).wrong[0]
    )
    assert after(("ADDED", bound("none", 50))).wrong == ["none on n: bound without cards"]


FULL = [HALF, bound("b", 50, part(ONE, 500)), bound("c", 100, part(OTHER, 1000))]


def test_pods_that_fill_every_card_as_they_asked_are_right() -> None:
    assert complaints([NODE], FULL) == []


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        (bound("b", 50, part(ONE, 500), where=""), "b is not bound"),
        (bound("b", 50, part(ONE, 500), phase="Failed"), "b is not bound"),
        (bound("b", 40, part(ONE, 500)), "asked [(400, 6400)]"),
        (bound("b", 50, part(OTHER, 500)), "holds 1500 thousandths"),
        (bound("b", 200, part(ONE, 1000), part(ONE, 1000)), "a card twice"),
        (bound("b", 50, part(ONE, 500) | {"index": 1}), "is not card 1 of n"),
        (bound("b", 50, part(ONE, 500), where="m"), "is not card 0 of m"),
    ],
)
def test_each_mistake_is_reported(instead: Json, told: str) -> None:
    assert any(told in each for each in complaints([NODE], [FULL[0], instead, FULL[2]]))


def test_a_container_that_sees_other_cards_than_it_has_is_reported() -> None:
    wrong = bound("b", 50, part(ONE, 500))
    wrong["metadata"]["annotations"]["visible-devices.bursar.dev/main"] = OTHER

    assert any("sees others" in each for each in complaints([NODE], [FULL[0], wrong, FULL[2]]))


def test_a_card_that_is_not_full_is_reported() -> None:
    assert complaints([NODE], FULL[:2]) == [f"{OTHER} of n holds 0 thousandths and 0 MiB"]
