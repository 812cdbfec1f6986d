"""When a pod holds its cards: from binding until the kubelet says that none of its GPU containers runs."""

from typing import Any

import pytest

from tests.worlds import container, pod, running, status, terminated
from timekeeper.core.ledger import hold
from timekeeper.core.request.request import parse
from timekeeper.core.values import GPURequest

T0, T5, T9 = "2026-11-20T10:00:00Z", "2026-11-20T10:00:05Z", "2026-11-20T10:00:09Z"
T0_MS = 1795168800000


def world(pod_status: dict[str, Any]) -> tuple[dict[str, Any], GPURequest]:
    subject = pod(container("a", gpu_percent="10"), container("b", gpu_percent="10"), container("plain"))
    request = parse(subject).request
    assert request is not None
    return {**subject, "status": pod_status}, request


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        (T0, T0_MS),
        ("2026-11-20T11:00:00+01:00", T0_MS),
        ("2026-11-20T10:00:00.250000Z", T0_MS + 250),
        ("1970-01-01T00:00:00Z", None),
        ("2026-11-20T10:00:00", None),
        ("soon", None),
        ("", None),
        (None, None),
        (5, None),
    ],
)
def test_timestamps_are_read_and_the_1970_of_a_start_error_is_none(text: object, at_ms: int | None) -> None:
    assert hold.millis(text) == at_ms


def test_a_pod_started_when_its_first_gpu_container_did() -> None:
    assert (
        hold.started_ms(*world(status("Running", a=running(T5), b=running(T9), plain=running(T0))))
        == T0_MS + 5000
    )


def test_the_start_before_a_restart_is_read_from_the_last_state() -> None:
    subject, request = world(status("Running", a=running(T9)))
    subject["status"]["containerStatuses"][0]["lastState"] = terminated(T0, T5)

    assert hold.started_ms(subject, request) == T0_MS


def test_a_pod_without_a_started_container_has_no_start() -> None:
    assert hold.started_ms(*world(status("Pending", a={"waiting": {"reason": "ImagePullBackOff"}}))) is None
    undated = status("Running", a={"running": {}}, b=running(T5))
    assert hold.started_ms(*world(undated)) == T0_MS + 5000


@pytest.mark.parametrize(
    "pod_status",
    [
        status("Running", a=running(T0), b=running(T0)),
        status("Running", a=terminated(T0, T5), b=terminated(T0, T5)),
        status("Failed", a=terminated(T0, T5), b=running(T0)),
        status("Pending"),
        {},
    ],
)
def test_cards_are_held_until_the_phase_is_terminal_and_nothing_runs(pod_status: dict[str, Any]) -> None:
    assert not hold.pod_hold(world(pod_status)[0]).over


@pytest.mark.parametrize(
    ("seconds", "grace_ms"), [(0, 0), (5, 5000), (None, 30000), (10_000, 600_000), (-1, 30000)]
)
def test_the_grace_period_is_bounded(seconds: int | None, grace_ms: int) -> None:
    fields: dict[str, Any] = {} if seconds is None else {"terminationGracePeriodSeconds": seconds}

    assert hold.grace_ms(pod(container(), **fields), 600_000) == grace_ms


@pytest.mark.parametrize(
    ("phase", "main", "ended_ms"),
    [
        ("Failed", {}, T0_MS + 5000),
        ("Failed", {"waiting": {}}, T0_MS + 5000),
        ("Failed", terminated(T0, T0), T0_MS + 5000),
        ("Failed", terminated(T0, T9), T0_MS + 9000),
        ("Running", terminated(T0, T9), None),
    ],
)
def test_an_end_that_was_proved_stays_and_a_later_proof_counts(
    phase: str, main: dict[str, Any], ended_ms: int | None
) -> None:
    proved = hold.pod_hold(world(status("Succeeded", a=terminated(T0, T5)))[0])

    assert hold.later(proved, hold.pod_hold(world(status(phase, a=main))[0])).ended_ms == ended_ms
