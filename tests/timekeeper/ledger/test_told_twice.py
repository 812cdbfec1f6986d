"""What is told late, twice, or out of turn changes no charge."""

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.timelines import Step, at, change, charged, hear, heard, list_all, live, settled, silent
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node

LONGEST_GRACE = 10 * MINUTE  # the default of maxGracePeriod
POD = gpu_pod(started_ms=T0)
STAMPED = {**POD, "metadata": POD["metadata"] | {"deletionTimestamp": iso(T0 + MINUTE)}}
# no status says when it ended, also not a later one that says that a container ran
RAN = {"name": "main", "state": {"terminated": {"startedAt": iso(T0), "exitCode": 137}}}


def evicted(raw: Json, **status: object) -> Json:
    return {**raw, "status": raw["status"] | {"phase": "Failed", "reason": "Evicted"} | status}


# from the moment of the binding; after a minute, in which the pod ran and its node was heard
TIMELINES: dict[str, list[Step]] = {
    "a removal that arrives late counts from when it happened": [
        at(11 * MINUTE, hear("leases", lease(T0 + 11 * MINUTE)), change("pods", STAMPED, deleted=True)),
        charged(MINUTE + 30 * SECOND),
    ],
    "a removal that is reported twice counts from the first time": [
        change("pods", POD, deleted=True),
        at(70 * SECOND, hear("pods", POD, deleted=True)),
        silent(130 * SECOND, charged(MINUTE + 30 * SECOND)),
    ],
    "a removal that is reported again by a clock turned back counts from the first time": [
        hear("pods", POD, deleted=True),
        at(MINUTE - HOUR, change("pods", POD, deleted=True)),
        silent(MINUTE + HOUR, charged(MINUTE + 30 * SECOND)),
    ],
    # a deletion with a longer grace period than the pod's own may have been missed
    "a pod that a list does not contain is charged for the longest grace period": [
        hear("pods", POD, deleted=True, unheard=True),
        at(MINUTE + SECOND, list_all),
        silent(HOUR + MINUTE + SECOND, charged(MINUTE + LONGEST_GRACE)),
    ],
    "an older lease takes nothing back": [change("leases", lease(T0 + SECOND)), charged(MINUTE)],
    # a list from an API server that was behind had it not; by then all of it was settled
    "a pod that was given up and is listed again goes on": [
        hear("pods", POD, deleted=True, unheard=True),
        list_all,
        silent(2 * HOUR, settled(MINUTE + LONGEST_GRACE)),
        hear("pods", POD),
        heard(2 * HOUR, charged(2 * HOUR)),
    ],
    "a node that lives on is no evidence for a pod that ended": [
        hear("pods", gpu_pod("other", namespace="team-b", card=1, started_ms=T0)),
        change("pods", evicted(POD, containerStatuses=[])),
        charged(MINUTE),
        heard(HOUR + MINUTE),  # by then all of it is settled
        change("pods", evicted(POD, containerStatuses=[RAN])),
        charged(MINUTE),
    ],
}


@pytest.mark.parametrize("timeline", TIMELINES.values(), ids=TIMELINES)
def test_a_pod_is_charged_as_if_all_were_told_once_and_in_order(town: Town, timeline: list[Step]) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", POD))

    live(town, [heard(MINUTE), *timeline])


def test_a_nodes_report_between_an_end_and_the_next_tick_is_not_charged(town: Town) -> None:
    pod = gpu_pod()
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", pod))

    live(town, [heard(HOUR), hear("pods", evicted(pod)), heard(HOUR + 7 * SECOND), charged(HOUR)])
