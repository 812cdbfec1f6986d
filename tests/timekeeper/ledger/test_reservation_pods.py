"""KAI's reservation pods: one and the fractions of its group are charged one card at every moment."""

from typing import Any

import pytest

from tests.timekeeper.ledger.test_metered import GPU, WHOLE, holding
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store.engine.upgrade import snapshot

ONE_DATABASE = (
    "what a tick decides of sessions; the histories of test_machine.py write them on both databases"
)

Json = dict[str, Any]
Lives = tuple[tuple[int, int, str], ...]
RESERVED = "kai-resource-reservation"
END = T0 + 4 * HOUR


def at(raw: Json, from_ms: int, to_ms: int | None = None, groups: tuple[str, ...] = ("g",)) -> Json:
    """The pod as it is from then on, of these groups of cards; ``to_ms``: it has ended."""
    key = "runai-gpu-group"
    several = {f"{key}/{group}": group for group in groups}
    raw["metadata"]["labels"] = several if len(groups) > 1 else {key: groups[0]}
    return raw | {"status": gpu_pod(bound_ms=from_ms, started_ms=from_ms, ended_ms=to_ms)["status"]}


def fraction(name: str, part: str = "0.5", **more: str) -> Json:
    return holding({}, name=name, scheduler="kai-scheduler", **{"gpu-fraction": part} | more)


def reservation(to_ms: int | None = None, namespace: str = RESERVED, group: str = "g") -> Json:
    raw = at(holding({GPU: "1"}, name=f"reservation-{group}"), T0, to_ms, (group,))
    raw["metadata"]["namespace"] = namespace
    return raw


def lived(town: Town, lives: Lives, setting: str = "", groups: tuple[str, ...] = ("g",), **of: str) -> int:
    """What the reservation pods are charged for four hours, at weight 1. Each pod: from when until when, in
    minutes; and its part of each card."""
    town.list_all()
    town.hear("configmaps", budgets(_settings=f"mode: meter\nweights: {{A100: 2}}\n{setting}"))
    town.hear("nodes", WHOLE)
    reserving = [{"group": group} | of for group in groups]
    for named in reserving:
        town.hear("pods", reservation(**named))  # type: ignore[arg-type]
    for minute in range(0, 241, 5):
        for number, (begin, end, part) in enumerate(lives):
            more = {"gpu-fraction-num-devices": str(len(groups))} if len(groups) > 1 else {}
            pod, begin_ms = fraction(f"p{number}", part, **more), T0 + begin * MINUTE
            if minute == begin:
                town.hear("pods", at(pod, begin_ms, None, groups))
            if minute == end:
                town.hear("pods", at(pod, begin_ms, T0 + end * MINUTE, groups))
        for named in reserving if minute == 240 else ():
            town.hear("pods", reservation(END, **named))
        town.node_heard("whole")
        town.tick()
        if minute == 100:
            town.restart()
        town.clock.turn(5 * MINUTE)
    return town.charged(of.get("namespace", RESERVED)) // 2


@pytest.mark.parametrize(
    ("lives", "hours"),
    [
        ((), 4.0),
        (((0, 240, "0.5"),), 2.0),
        (((0, 240, "0.5"), (0, 240, "0.5")), 0.0),
        (((60, 180, "0.5"),), 3.0),
        (((60, 180, "0.5"), (120, 240, "0.25")), 2.5),
        (((60, 120, "0.5"), (120, 180, "0.5")), 3.0),
        (((0, 240, "0.7"), (60, 120, "0.7")), 0.9),
    ],
)
def test_it_is_charged_what_the_fractions_leave(town: Town, lives: Lives, hours: float) -> None:
    assert lived(town, lives) == round(hours * 1_000 * HOUR)

    findings: list[Finding] = []
    with snapshot(town.store) as connection:
        audit(connection, town.clock(), findings.append)
    assert findings == []
    taken = sum((end - begin) * round(1_000 * float(part)) * MINUTE for begin, end, part in lives)
    assert town.charged() == 2 * taken


HALF: Lives = ((0, 240, "0.5"),)


@pytest.mark.parametrize(
    ("setting", "namespace"),
    [("reservationNamespaces: []", RESERVED), ("", "team-b"), ("reservationNamespaces: [kai]", RESERVED)],
)
def test_a_pod_that_has_the_label_alone_is_charged_whole(town: Town, setting: str, namespace: str) -> None:
    assert lived(town, HALF, setting, namespace=namespace) == 4_000 * HOUR


def test_the_namespace_that_the_setting_names_counts(town: Town) -> None:
    assert lived(town, HALF, "reservationNamespaces: [kai]", namespace="kai") == 2_000 * HOUR


def test_a_fraction_of_two_cards_leaves_half_of_each(town: Town) -> None:
    assert lived(town, HALF, groups=("g", "h")) == 4_000 * HOUR
    assert town.charged() == 2 * 4_000 * HOUR


def test_a_fraction_that_vanishes_holds_its_part_through_its_grace(town: Town) -> None:
    town.list_all()
    town.hear("configmaps", budgets(_settings="mode: meter"))
    town.hear("nodes", WHOLE)
    town.hear("pods", reservation())
    pod = at(fraction("p"), T0)
    town.change("pods", pod)
    town.advance(HOUR)
    town.node_heard("whole")
    town.change("pods", pod, deleted=True)
    for _ in range(60):
        town.advance(MINUTE, heard=False)
        town.node_heard("whole")
        town.tick()
    town.change("pods", reservation(T0 + 2 * HOUR))

    half = 500 * (HOUR + 30 * SECOND)
    assert (town.charged(), town.charged(RESERVED)) == (half, 2_000 * HOUR - half)
