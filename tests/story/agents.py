"""The node agents in a simulated cluster: each step a node that is heard reports which of its pods use their
cards; idleness follows from the reports by our own function."""

from collections.abc import Iterable, Mapping
from random import Random

from tests.story.pods import SimPod
from tests.story.settling import Database
from timekeeper.accounts.card_use.figures import CardSample, MeasuredSession, UsageSample
from timekeeper.accounts.card_use.idleness import follow_idle

BELOW_MILLI = 50
LAPSE_MS = 120_000
IN_USE_PERCENT, IDLE_PERCENT = 60, 0  # of the card, whatever the pod holds of it


def report(database: Database, pods: Iterable[SimPod], random: Random, now_ms: int) -> None:
    """A report of each node that runs such pods. ``pods``: those that may be idle, on nodes that are heard;
    of other pods the reports say nothing."""
    by_node: dict[str, list[SimPod]] = {}
    for pod in pods:
        pod.is_used ^= random.random() < 0.03
        by_node.setdefault(pod.node, []).append(pod)
        if pod.is_used:
            pod.unused_since_ms = None
        elif pod.unused_since_ms is None or now_ms - pod.reported_ms > LAPSE_MS:
            pod.unused_since_ms = now_ms
        pod.reported_ms = now_ms
    for node, mine in by_node.items():
        sample = UsageSample(0, tuple((pod.uid, _figures(pod)) for pod in mine), ())
        _, before = database.idle.get(node, (0, {}))
        sessions = _sessions(database, [*before, *(pod.uid for pod in mine)])
        after = follow_idle(before, [(now_ms, sample)], sessions, BELOW_MILLI, LAPSE_MS)
        database.idle[node] = now_ms, after


def _figures(pod: SimPod) -> tuple[CardSample, ...]:
    assert pod.placement is not None
    percent = IN_USE_PERCENT if pod.is_used else IDLE_PERCENT
    uuids = dict.fromkeys(each.uuid for _, slices in pod.placement.containers for each in slices)
    return tuple(CardSample(uuid, percent, None, True) for uuid in uuids)


def _sessions(database: Database, uids: Iterable[str]) -> Mapping[str, MeasuredSession]:
    known = (database.sessions.get(uid) for uid in uids)
    return {
        each.uid: MeasuredSession(each.uid, each.bound_ms, each.ended_ms, each.devices, each.requested_milli)
        for each in known
        if each is not None
    }
