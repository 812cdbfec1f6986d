"""Which cards a pod holds until when: from the binding until its phase is terminal and nothing runs, and
after the removal of its object."""

import datetime
from dataclasses import replace
from typing import Any

import pytest

from tests.worlds import container, pod, running, status, terminated
from timekeeper.core import names
from timekeeper.core.kube.holders import NodeHolders, fresh_holders
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import NodeSight, PodHold, Vanished

T0, T2, T5, T9 = (f"2026-11-20T10:00:0{second}Z" for second in (0, 2, 5, 9))
T0_MS = 1795168800000
UNKNOWN_END = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
MAX_MS = 600_000


def held(pod_status: dict[str, Any], **metadata: Any) -> PodHold:
    subject = pod(container("a", gpu_percent="10"), container("idle"))
    subject["metadata"] |= metadata
    return hold.pod_hold({**subject, "status": pod_status})


def end_of(pod_status: dict[str, Any], last_evidence_ms: int = 0, **metadata: Any) -> int | None:
    """Seconds after T0; None while the pod holds its cards."""
    found = held(pod_status, **metadata)
    return (hold.ends_ms(found, last_evidence_ms) - T0_MS) // 1000 if found.over else None


def kinds(init: Any = None, regular: Any = None, ephemeral: Any = None) -> dict[str, Any]:
    listed = {
        "initContainerStatuses": init,
        "containerStatuses": regular,
        "ephemeralContainerStatuses": ephemeral,
    }
    states = {key: [{"name": "c", "state": state}] for key, state in listed.items() if state}
    return {"phase": "Succeeded", **states}


@pytest.mark.parametrize(
    ("pod_status", "end_s"),
    [
        (status("Running", a=terminated(T0, T5), idle=running(T0)), None),
        (status("Failed", a=terminated(T0, T5), idle=running(T0)), None),
        (status("Succeeded", a=terminated(T0, T5), idle=terminated(T0, T9)), 9),
        (kinds(init=running(T0), regular=terminated(T0, T5)), None),
        (kinds(regular=terminated(T0, T5), ephemeral=running(T0)), None),
        (kinds(init=terminated(T0, T9), regular=terminated(T0, T5)), 9),
        (kinds(regular=terminated(T0, T5), ephemeral=terminated(T0, T9)), 9),
        (status("Pending"), None),
        ({}, None),
    ],
)
def test_a_hold_ends_with_the_last_container_of_any_kind(
    pod_status: dict[str, Any], end_s: int | None
) -> None:
    assert end_of(pod_status) == end_s


def test_an_end_without_a_time_is_no_proof_and_never_before_the_last_witness() -> None:
    last = {"name": "a", "lastState": terminated(T0, T2)}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    lost = {"phase": "Failed", "containerStatuses": [{**last, "state": UNKNOWN_END}]}
    backing_off = {"phase": "Failed", "containerStatuses": [{**last, "state": waiting}]}
    other_ended = status("Failed", a=UNKNOWN_END, idle=terminated(T0, T5))
    refused = {"phase": "Failed"}
    written = [{"time": T9, "fieldsV1": {"f:status": {"f:phase": {}}}}]

    for told in (lost, backing_off, other_ended, refused):
        assert held(told).ended_ms is None
        assert end_of(told, T0_MS + 7000) == 7
        assert end_of(told, T0_MS + 7000, managedFields=written) == 9
    assert end_of(other_ended) == 5
    assert end_of(refused, T0_MS + 12_000, managedFields=written) == 12


@pytest.mark.parametrize(
    ("began", "ended", "reported", "end_s"),
    [
        (5, 45, 47, 45),  # a kubelet that starts the pod late, with a right clock
        (-59, -19, 42, 40),  # a minute behind: bound at 0, started at 1, ended at 41
        (-59, -19, None, 40),
        (-59, 40, 42, 42),  # behind at first, and set right while the pod ran
        (-2, 40, 42, 40),  # within what is tolerated
        (61, 101, 42, 42),  # a minute ahead
        (61, 101, None, 101),  # the tenant has removed the time of the report
        (61, 101, 1, 40),  # the tenant has written another time
        (1, 41, 1, 41),
    ],
)
def test_an_end_by_a_wrong_clock_is_corrected_by_the_times_that_the_api_server_wrote(
    began: int, ended: int, reported: int | None, end_s: int
) -> None:
    """Seconds after the binding."""

    def at(second: int) -> str:
        return datetime.datetime.fromtimestamp(T0_MS / 1000 + second, datetime.UTC).isoformat()

    told = status("Succeeded", a=terminated(at(began), at(ended))) | {
        "startTime": at(began),
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(0)}],
    }
    written = [{"time": at(reported), "fieldsV1": {"f:status": {"f:phase": {}}}}] if reported else []

    assert end_of(told, managedFields=written) == end_s


def test_a_container_that_never_ran_leaves_the_others_proof() -> None:
    never = {"waiting": {"reason": "PodInitializing"}}

    assert held(status("Failed", a=never, idle=terminated(T0, T5))).ended_ms == T0_MS + 5000


def test_a_container_that_waits_to_run_again_proves_no_end() -> None:
    waiting = status("Failed", a={"waiting": {"reason": "CrashLoopBackOff"}}, idle=terminated(T0, T5))
    waiting["containerStatuses"][0]["lastState"] = terminated(T0, T2)

    assert held(waiting).ended_ms is None


def test_an_end_without_proof_is_dated_by_the_writer_of_the_phase_alone() -> None:
    entries = [
        {"time": T0, "fieldsV1": {"f:metadata": {"f:labels": {}}}},
        {"time": "soon", "fieldsV1": {"f:status": {"f:phase": {}}}},
        {"time": T9, "fieldsV1": {"f:status": {"f:phase": {}}}},
    ]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": T9}

    ended = held({"phase": "Failed", "conditions": [scheduled], "startTime": T0}, managedFields=entries)

    assert (ended.ended_ms, ended.reported_ms) == (None, T0_MS + 9000)


def test_a_binding_is_dated_by_its_condition_else_by_the_start_of_the_pod() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": T2}

    assert held({"conditions": [scheduled], "startTime": T5}).bound_ms == T0_MS + 2000
    assert held({"conditions": [{**scheduled, "status": "False"}], "startTime": T5}).bound_ms == T0_MS + 5000
    assert held({"conditions": [{**scheduled, "type": "Ready"}], "startTime": T5}).bound_ms == T0_MS + 5000
    undated = {"type": "PodScheduled", "status": "True"}
    assert held({"conditions": [undated], "startTime": T5}).bound_ms == T0_MS + 5000
    assert held({}).bound_ms is None


@pytest.mark.parametrize(
    ("seconds", "deletion", "grace_s"),
    [
        (30, None, 30),
        (30, 36_000, 36_000),
        (30, 0, 30),
        (None, None, 30),
        (2, None, 2),
        (-1, True, 30),
        (True, None, 30),
    ],
)
def test_the_grace_is_the_larger_of_spec_and_deletion(seconds: Any, deletion: Any, grace_s: int) -> None:
    fields = {} if seconds is None else {"terminationGracePeriodSeconds": seconds}
    subject = pod(container(), **fields)
    subject["metadata"]["deletionGracePeriodSeconds"] = deletion

    assert hold.pod_hold(subject).grace_ms == grace_s * 1000


@pytest.mark.parametrize(
    ("seconds", "fields", "runs_on_s"),
    [
        (0, {}, 2),
        (1, {}, 2),
        (9, {}, 9),
        (9, {"lifecycle": {"preStop": {"sleep": {"seconds": 300}}}}, 11),
        (0, {"lifecycle": {"preStop": {"sleep": {"seconds": 300}}}}, 3),
        (9, {"lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}, 9),
        (9, {"initContainers": [{"name": "a", "restartPolicy": "Always"}]}, 11),
        (9, {"initContainers": [{"name": "a"}, {"name": "bursar-sidecar", "restartPolicy": "Always"}]}, 9),
    ],
)
def test_the_kubelet_gives_two_seconds_at_least_also_after_hooks_and_to_sidecars(
    seconds: int, fields: dict[str, Any], runs_on_s: int
) -> None:
    hook = {"lifecycle": fields["lifecycle"]} if "lifecycle" in fields else {}
    inits = {"initContainers": fields.get("initContainers", [])}
    subject = pod(container() | hook, terminationGracePeriodSeconds=seconds, **inits)

    assert hold.pod_hold(subject).grace_ms == runs_on_s * 1000


def test_a_later_version_forgets_neither_grace_nor_binding_nor_the_first_report() -> None:
    long = PodHold(5, True, False, None, 20, 9, 36_000_000, 40)

    assert hold.later(long, PodHold(7, True, False, None, 30, 3, 0, 15)) == PodHold(
        5, True, False, None, 20, 9, 36_000_000, 15
    )
    assert hold.later(None, long) == long


@pytest.mark.parametrize(
    ("deletion_ms", "evidence_ms", "at_ms"),
    [(None, 10, 100), (60, 10, 60), (60, 80, 80), (-5000, 80, 80), (130, 80, 100), (60, 170, 100)],
)
def test_a_removal_is_no_earlier_than_the_last_evidence_and_no_later_than_seen(
    deletion_ms: int | None, evidence_ms: int, at_ms: int
) -> None:
    assert hold.removed_ms(deletion_ms, 100, evidence_ms) == at_ms


def test_a_vanished_pod_has_its_grace_and_after_a_gap_the_clusters_largest() -> None:
    known = PodHold(0, grace_ms=36_000_000, deletion_ms=900)

    assert hold.vanished(known, 1000, 500, MAX_MS) == Vanished(900, MAX_MS, quick_ms=15_000)
    assert hold.vanished(PodHold(0, grace_ms=30_000), 1000, 500, MAX_MS) == Vanished(
        1000, 30_000, quick_ms=15_000
    )
    assert hold.vanished(PodHold(0, grace_ms=30_000), 1000, 500, MAX_MS, was_watched=False) == Vanished(
        500, MAX_MS
    )


def test_a_kubelet_that_renews_its_lease_has_ended_it_within_seconds_of_hearing_of_it() -> None:
    gone = Vanished(100_000, 600_000, quick_ms=15_000)

    def until_ms(*renewals_ms: int) -> int:
        found = gone
        for at_ms in renewals_ms:
            found = hold.heard(found, at_ms)
        return found.until_ms

    assert until_ms() == until_ms(99_000) == until_ms(100_000) == 700_000
    assert until_ms(108_000) == 700_000  # it may have died since
    assert until_ms(108_000, 118_000) == 115_000
    assert until_ms(160_000, 164_999) == 700_000
    assert until_ms(160_000, 165_000) == 165_000  # it was away for a minute
    assert replace(gone, grace_ms=3_000).until_ms == 103_000
    assert hold.heard(replace(gone, quick_ms=None), 200_000).until_ms == 700_000


@pytest.mark.parametrize(
    ("version", "ends"),
    [
        *(("v1.31.0", True), ("v1.37.2-eks-abc", True), ("v2.0.1", True)),
        *(("v1.30.14", False), ("v1.9.0", False), ("kwok-v0.8.0", False), ("", False), (None, False)),
    ],
)
def test_a_kubelet_ends_pods_that_were_removed_by_force_from_1_31_on(version: object, ends: bool) -> None:
    assert hold.ends_forced({"status": {"nodeInfo": {"kubeletVersion": version}}}) is ends
    assert hold.ends_forced({}) is False


def sight(*uids: str, boot: str = "b1", known: bool = True) -> NodeSight:
    return NodeSight(boot, NodeHolders(boot, known, dict.fromkeys(uids, ())))


def test_a_listed_pod_holds_beyond_its_grace_until_a_report_without_it() -> None:
    gone = hold.followed(Vanished(1000, 500), "u", sight("u"), 1000)
    assert gone.is_held(9999)
    gone = hold.followed(gone, "u", sight("u"), 3000)
    assert (gone.until_ms, gone.is_held(9999)) == (3000, True)
    assert hold.followed(gone, "u", sight(known=False), 3500).is_held(9999)

    left = hold.followed(gone, "u", sight(), 4000)

    assert (left.until_ms, left.is_held(4000)) == (4000, False)
    assert hold.followed(left, "u", sight("u"), 5000) == left
    assert (
        hold.followed(hold.followed(Vanished(1000, 500), "u", sight("u"), 1000), "u", sight(), 1200).until_ms
        == 1200
    )


def test_a_report_that_is_not_fresh_leaves_the_clock() -> None:
    gone = hold.followed(
        hold.followed(Vanished(1000, 500), "u", sight("u"), 1000), "u", NodeSight("b1"), 1100
    )

    assert (gone.until_ms, gone.is_held(1499), gone.is_held(1500)) == (1500, True, False)
    assert hold.followed(gone, "u", sight("u"), 2000).is_held(9999)


def test_silence_about_a_pod_never_listed_counts_only_in_another_boot() -> None:
    gone = hold.followed(Vanished(1000, 500), "u", sight(), 1000)
    assert gone == Vanished(1000, 500, "b1")

    assert hold.followed(gone, "u", sight(boot="b2"), 1200).until_ms == 1200
    assert hold.followed(gone, "u", sight(boot="b2", known=False), 1200).until_ms == 1500
    assert hold.followed(gone, "u", sight(boot=""), 1200).until_ms == 1500


@pytest.mark.parametrize(
    ("pod_status", "boot", "seen", "is_left"),
    [
        (status("Failed", a=running(T0)), "b1", sight(boot="b2"), True),
        (status("Failed", a=running(T0)), "b1", NodeSight("b2"), True),
        (status("Failed", a=running(T0)), "b1", sight("u", boot="b2"), False),
        (status("Failed", a=running(T0)), "b1", sight(), False),
        (status("Failed", a=running(T0)), "", sight(), False),
        (status("Failed", a=running(T0)), "b1", sight(boot=""), False),
        (status("Running", a=running(T0)), "b1", sight(boot="b2"), False),
        (status("Failed", a=terminated(T0, T5)), "b1", sight(boot="b2"), False),
    ],
)
def test_an_unconfirmed_end_is_confirmed_by_another_boot_that_does_not_list_the_pod(
    pod_status: dict[str, Any], boot: str, seen: NodeSight, is_left: bool
) -> None:
    assert hold.is_left_behind(held(pod_status), "u", boot, seen) == is_left


@pytest.mark.parametrize(
    ("ready", "boot", "is_fresh"),
    [("True", "b1", True), ("False", "b1", True), ("Unknown", "b1", False), ("True", "b2", False)],
)
def test_a_report_is_fresh_while_the_node_speaks_in_the_same_boot(
    ready: str, boot: str, is_fresh: bool
) -> None:
    told = '{"version": 1, "boot": "b1", "known": true, "pods": {"u": []}, "closed": ""}'
    node = {
        "metadata": {"annotations": {names.HOLDERS: told}},
        "status": {"nodeInfo": {"bootID": boot}, "conditions": [{"type": "Ready", "status": ready}]},
    }

    assert (fresh_holders(node) is not None) == is_fresh
    assert fresh_holders({"metadata": {"annotations": {names.HOLDERS: "no"}}}) is None
