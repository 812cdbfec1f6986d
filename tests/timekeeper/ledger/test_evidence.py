"""What counts as having run: proof before estimates, in both directions, and nothing twice."""

import json
from typing import Any

import pytest

from tests import worlds
from tests.timekeeper.clocks import iso
from tests.timekeeper.timelines import (
    Step,
    at,
    beat,
    budget,
    change,
    charged,
    hear,
    heard,
    list_all,
    live,
    node_heard,
    pending,
    posted,
    quiet,
    restart,
    resume,
    settled,
    silent,
    tick,
)
from tests.timekeeper.worlds import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
)
from tests.worlds import terminated
from timekeeper.edge.reflector import WatchProgress
from timekeeper.settler.cluster.cluster_state import WatchUpdate

ONE_DATABASE = "decisions about values; test_postings, test_heartbeats and the machine store the same on both"

START = T0 + 2 * SECOND
POD = gpu_pod(started_ms=START)


@pytest.fixture
def running(town: Town) -> Town:
    """A whole card, running since two seconds after its binding, on a node that is heard."""
    town.begin(
        ("nodes", node()),
        ("leases", lease(T0)),
        ("configmaps", budgets(team_a="gpuHours: 100\nperiod: month")),
    )
    town.clock.turn(2 * SECOND)
    town.change("pods", POD)
    return town


# pods, by what their objects say


def ended(until_ms: int, name: str = "p", since_ms: int = 0, **fields: Any) -> Json:
    """One that ran from a moment after the start to another."""
    return gpu_pod(name, started_ms=START + since_ms, ended_ms=START + until_ms, **fields)


def theirs(name: str, **fields: Any) -> Json:
    """One of team-b, on the other card."""
    return gpu_pod(name, namespace="team-b", card=1, **fields)


def leaving(by_ms: int, grace_s: int) -> Json:
    stamped = {"deletionTimestamp": iso(START + by_ms), "deletionGracePeriodSeconds": grace_s}
    return {**POD, "metadata": POD["metadata"] | stamped}


def containers(raw: Json, *statuses: Json, phase: str = "") -> Json:
    """The pod with these statuses of its container, and with this phase."""
    said = {"containerStatuses": [{"name": "main", **status} for status in statuses]}
    return {**raw, "status": raw["status"] | said | ({"phase": phase} if phase else {})}


def again(started_ms: int, last: Json) -> Json:
    """One whose container runs for the second time, as its status tells it."""
    raw = gpu_pod(started_ms=START + started_ms)
    return containers(raw, {"state": ran(started_ms), "lastState": last})


def ran(since_ms: int, until_ms: int | None = None) -> Json:
    since = iso(START + since_ms)
    return worlds.running(since) if until_ms is None else terminated(since, iso(START + until_ms))


UNKNOWN_END: Json = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
WAITING: Json = {"waiting": {"reason": "PodInitializing"}}
BROKEN = {"terminated": {"startedAt": "1970-01-01T00:00:00Z", "finishedAt": iso(START)}}
NEVER_RAN = {"state": {"waiting": {}}, "lastState": BROKEN}
CRASHING = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": ran(50 * SECOND, 51 * SECOND),
}
LOST = {"state": UNKNOWN_END, "lastState": ran(0, SECOND)}


def without_time(**status: str) -> Json:
    """The pod failed, and nothing says when."""
    return {**POD, "status": {"phase": "Failed"} | status}


def evicted() -> Json:
    raw = leaving(30 * SECOND, 30)
    del raw["metadata"]["deletionGracePeriodSeconds"]
    eviction = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    return {**raw, "status": raw["status"] | {"conditions": [*raw["status"]["conditions"], eviction]}}


def booted(boot: str, **fields: Any) -> Json:
    """The node in this boot; "": it does not say."""
    return {**node(**fields), "status": {"nodeInfo": {"bootID": boot} if boot else {}}}


def left_behind() -> Json:
    """The pod as PodGC leaves it where a finalizer keeps it: nothing says that its container has ended."""
    return {**leaving(6 * MINUTE, 0), "status": POD["status"] | {"phase": "Failed", "reason": "NodeLost"}}


def replaced(*steps: Step, first: str = "b1") -> list[Step]:
    """The machine is heard for a minute in this boot, and dies. Six minutes later its Node is gone, and its
    pod has failed; then this."""
    return [
        change("nodes", booted(first)),
        heard(MINUTE),
        at(6 * MINUTE, hear("nodes", booted(first), deleted=True), change("pods", left_behind())),
        *steps,
    ]


def back(boot: str, *steps: Step, **fields: Any) -> Step:
    """Six hours after the beginning a node of this name is heard in this boot, and then this."""
    renewed = hear("leases", lease(START + 6 * HOUR))
    return at(6 * HOUR, renewed, tick, hear("nodes", booted(boot, **fields)), node_heard, tick, *steps)


def both(idle: Json, phase: str) -> Json:
    """A pod whose GPU container ends after five seconds, and an idle one later."""
    raw = theirs("both", bound_ms=START)
    raw["spec"]["containers"].append(worlds.container("idle"))
    raw["status"] |= worlds.status(phase, main=ran(0, 5 * SECOND), idle=idle)
    return raw


def unplaced() -> Json:
    """A pod that another scheduler bound."""
    raw = ended(MINUTE, "bare", namespace="team-b", node="n2")
    del raw["metadata"]["annotations"]["bursar.dev/devices"]
    raw["spec"]["schedulerName"] = "default-scheduler"
    return raw


def forged() -> Json:
    """A pod with the placement of a smaller one."""
    raw = ended(MINUTE, "forged", namespace="team-b", percent=80, card=1)
    raw["metadata"]["annotations"] = gpu_pod("small", percent=1, card=1)["metadata"]["annotations"]
    return raw


def second() -> Json:
    """Another pod with the first one's name."""
    raw = ended(HOUR + MINUTE, since_ms=HOUR, bound_ms=START + HOUR)
    raw["metadata"]["uid"] = "uid-second"
    return raw


def killed(phase: str, code: int) -> Json:
    state = ran(0, MINUTE)
    state["terminated"]["exitCode"] = code
    return containers(ended(MINUTE), {"state": state}, phase=phase)


def stuck(state: Json, phase: str = "") -> Json:
    return containers(theirs("stuck", bound_ms=T0), {"state": state}, phase=phase)


def crew(main: list[Json], init: list[Json] | None = None, phase: str = "Running") -> Json:
    """A pod of team-b on card 1 with an init container, a native sidecar and two others, each of which asks
    for a quarter of it; states of the two others and of the two first, if they have any."""
    quarter = {"uuid": "GPU-1", "index": 1, "share_milli": 250, "memory_mib": 4_000}
    names = ("setup", "cache", "main", "helper")
    given = {"version": 1, "containers": {name: [quarter] for name in names}}
    first, sidecar, *others = (worlds.container(name, gpu_percent="25") for name in names)
    raw = theirs("crew", annotations={"bursar.dev/devices": json.dumps(given)})
    raw["spec"] |= {"initContainers": [first, sidecar | {"restartPolicy": "Always"}], "containers": others}
    raw["status"] |= worlds.status(phase, main=main[0], helper=main[1])
    of_init = dict(zip(names, init or (), strict=False))
    raw["status"]["initContainerStatuses"] = worlds.status(phase, **of_init)["containerStatuses"]
    return raw


def expired(ms: int, *steps: Step) -> Step:
    """Then, much later than anything may still count."""
    return silent(ms + 2 * HOUR, *steps)


TIMELINES: dict[str, list[Step]] = {
    # heartbeats
    "a repeated heartbeat charges nothing more": [
        at(10 * SECOND, beat(1), pending(10 * SECOND)),
        at(MINUTE, beat(1), pending(10 * SECOND)),
    ],
    "a heartbeat overtaken by a later one charges nothing more": [
        at(10 * SECOND, beat(2)),
        at(15 * SECOND, beat(1), pending(10 * SECOND)),
    ],
    "spooled heartbeats are dated by their age": [
        at(HOUR, beat(1, 50 * MINUTE, 40 * MINUTE), pending(20 * MINUTE))
    ],
    "a repeat from an earlier run of the sidecar charges nothing more": [
        at(10 * SECOND, beat(7, boot="first")),
        at(20 * SECOND, beat(1, boot="second")),
        at(30 * SECOND, beat(7, boot="first"), pending(20 * SECOND)),
    ],
    "a heartbeat older than the session charges nothing before its start": [
        at(SECOND, beat(1, DAY), pending(0))
    ],
    "a server clock turned back charges nothing negative and closes nothing": [
        at(10 * MINUTE, beat(1)),
        at(-50 * MINUTE, beat(2), tick, pending(0)),
        silent(11 * MINUTE, pending(10 * MINUTE)),
    ],
    # a sidecar's clock may be years off: what it sends is how long ago
    "ages count and no clock of the pods": [
        at(HOUR, beat(1, 30 * MINUTE)),
        at(HOUR + MINUTE, beat(2, 40 * MINUTE), pending(30 * MINUTE)),
    ],
    # the watch and the node's Lease
    "a node that reports is evidence for its pods up to its lease": [
        at(MINUTE, hear("leases", lease(T0 + 40 * SECOND)), quiet, tick, pending(38 * SECOND))
    ],
    "a lease from a fast clock counts only up to the last report of the pods": [
        at(MINUTE, quiet),
        at(2 * MINUTE, change("leases", lease(T0 + DAY)), pending(MINUTE)),
    ],
    "silence costs nothing and the gap is charged when the node comes back": [
        heard(MINUTE),
        silent(2 * HOUR + MINUTE, budget(posted=MINUTE, pending=0)),
        heard(2 * HOUR + MINUTE, budget(posted=MINUTE, pending=2 * HOUR)),
    ],
    "a silent session is posted after settle after and stays open": [
        heard(MINUTE),
        silent(HOUR + MINUTE, settled(MINUTE)),
        change("pods", ended(30 * MINUTE)),
        posted((0, MINUTE), (MINUTE, 30 * MINUTE)),
    ],
    # proof
    "proof takes back what was posted too much": [
        heard(MINUTE),
        silent(HOUR + MINUTE),
        change("pods", ended(20 * SECOND)),
        posted((0, MINUTE), (20 * SECOND, MINUTE, -GPU, "correction")),
        charged(20 * SECOND),
        budget(posted=20 * SECOND),
    ],
    "proof replaces a heartbeat that says more": [
        at(HOUR, beat(1), change("pods", ended(MINUTE)), beat(2), charged(MINUTE))
    ],
    # through a crash and its back-off the cards are held: the earliest start ever told counts
    "a restart leaves no gap": [
        at(20 * MINUTE, hear("pods", again(10 * MINUTE, ran(5 * MINUTE, 6 * MINUTE)))),
        heard(20 * MINUTE, pending(20 * MINUTE)),
    ],
    "a start error of 1970 is no start and the binding counts": [
        hear("pods", containers(gpu_pod("broken", bound_ms=START), NEVER_RAN, phase="Pending")),
        heard(MINUTE),
        charged(2 * MINUTE),  # the other pod's as well
    ],
    "a pod that never starts is charged from its binding": [
        hear("pods", theirs("stuck", bound_ms=T0)),
        heard(9 * MINUTE, charged(9 * MINUTE + 2 * SECOND, "team-b")),
    ],
    "a pod that ended without having run held its cards until its end was reported": [
        hear("pods", theirs("rejected", phase="Failed")),
        heard(HOUR, posted((-2 * SECOND, 0), uid="uid-rejected")),
    ],
    # the container had crashed and was started again; its last end is unknown, an earlier one proves nothing
    "an end without a time refunds nothing that was watched, pending": [
        heard(HOUR),
        change("pods", containers(POD, LOST, phase="Failed")),
        silent(3 * HOUR, charged(HOUR)),
        change("pods", ended(MINUTE)),
        charged(MINUTE),
    ],
    "an end without a time refunds nothing that was watched, posted": [
        heard(HOUR),
        silent(2 * HOUR),
        change("pods", containers(POD, LOST, phase="Failed")),
        silent(4 * HOUR, charged(2 * HOUR)),
        change("pods", ended(MINUTE)),
        charged(MINUTE),
    ],
    "a pod is charged until its last container ends though it uses no card": [
        hear("pods", both(ran(0), "Running")),
        heard(30 * SECOND, charged(30 * SECOND, "team-b")),
        change("pods", both(ran(0, 30 * SECOND), "Succeeded")),
        posted((0, 30 * SECOND), uid="uid-both"),
    ],
    # deletions
    "a finalizer takes nothing from what was witnessed after the deadline": [
        at(MINUTE, hear("pods", leaving(MINUTE, 0))),
        heard(80 * SECOND),
        change("pods", leaving(MINUTE, 0), deleted=True),
        expired(80 * SECOND, settled(110 * SECOND)),
    ],
    "a second deletion does not shorten the grace of the first": [
        change("pods", leaving(300 * SECOND, 300)),
        change("pods", leaving(0, 0)),
        heard(0),
        change("pods", leaving(0, 0), deleted=True),
        expired(0, settled(300 * SECOND)),
    ],
    "a second deletion does not shorten the grace of the first, after a restart": [
        change("pods", leaving(300 * SECOND, 300)),
        restart,
        change("pods", leaving(0, 0)),
        heard(0),
        change("pods", leaving(0, 0), deleted=True),
        expired(0, settled(300 * SECOND)),
    ],
    "a pod that never ran pays for holding": [
        change("pods", theirs("held", bound_ms=START)),
        heard(MINUTE),
        change("pods", theirs("held", bound_ms=START, phase="Failed")),
        heard(HOUR + MINUTE, posted((0, MINUTE), uid="uid-held")),
    ],
    "a session keeps the terms it was opened under": [
        hear("configmaps", budgets(_settings="weights: {A100: 7}")),
        heard(MINUTE, charged(MINUTE)),
    ],
    "a pod that vanishes goes on for its grace period": [
        at(MINUTE, node_heard, change("pods", POD, deleted=True)),
        silent(70 * SECOND, charged(70 * SECOND)),
        expired(70 * SECOND, settled(90 * SECOND)),
    ],
    "no grace period is longer than the settings allow": [
        change("pods", theirs("patient", started_ms=START, grace_s=86_400)),
        at(MINUTE, node_heard),
        change("pods", theirs("patient", started_ms=START, grace_s=86_400), deleted=True),
        expired(MINUTE, charged(11 * MINUTE, "team-b")),
    ],
    "a pod deleted with terminal statuses is charged by them": [
        at(HOUR, node_heard, change("pods", ended(MINUTE), deleted=True), settled(MINUTE))
    ],
    # its cards were held meanwhile; while the node is silent, the charge stops at the last evidence
    "a pod that vanishes from a silent node is charged through its grace": [
        heard(MINUTE),
        silent(21 * MINUTE, charged(MINUTE)),
        change("pods", POD, deleted=True),
        expired(21 * MINUTE, settled(21 * MINUTE + 30 * SECOND)),
    ],
    "a pod that vanished while we were away has the longest grace after its last evidence": [
        heard(MINUTE),
        hear("pods", POD, deleted=True, unheard=True),
        at(3 * HOUR, hear("leases", lease(START + 3 * HOUR), unheard=True), resume),
        expired(3 * HOUR, settled(11 * MINUTE)),
    ],
    # a watch that expired is listed anew: what went in between went unseen
    "a pod missing from a new list has the longest grace after its last evidence": [
        heard(MINUTE),
        at(6 * MINUTE, hear("pods", POD, deleted=True, unheard=True), list_all, tick),
        expired(6 * MINUTE, charged(11 * MINUTE)),
    ],
    # what was missed, and what is told again
    "a pod that ended while we were away is charged by its statuses": [
        hear("pods", ended(7 * MINUTE), unheard=True),
        at(HOUR, resume, settled(7 * MINUTE)),
    ],
    "a pod whose whole life we missed is charged by its statuses": [
        hear("pods", ended(7 * MINUTE, "whole", namespace="team-b", card=1), unheard=True),
        at(HOUR, resume, charged(7 * MINUTE, "team-b")),
    ],
    "a settled pod that is listed again is charged nothing more": [
        change("pods", ended(MINUTE)),
        at(HOUR, resume, resume, resume, settled(MINUTE)),
    ],
    "the gap of a restart is charged from the same start": [
        at(HOUR, hear("leases", lease(START + HOUR), unheard=True), resume, pending(HOUR))
    ],
    "a name that is used again is another session": [
        hear("pods", ended(MINUTE), deleted=True),
        at(2 * HOUR, change("pods", second()), settled(MINUTE)),
        posted((HOUR, HOUR + MINUTE), uid="uid-second"),
    ],
    # placements
    # another scheduler bound it: whole cards at the weight of the node's model
    "without a placement a pod is charged by its request": [
        hear("nodes", node("n2", model="H100")),
        change("configmaps", budgets(_settings="weights: {H100: 2.5}")),
        change("pods", unplaced()),
        posted((0, MINUTE, 2_500, "settled"), uid="uid-bare"),
    ],
    # it is not believed; the session waits a little for the inventory, then is charged by its request
    "a forged placement changes no charge": [
        change("pods", forged()),
        posted(uid="uid-forged"),
        silent(6 * SECOND, posted((0, MINUTE, 800, "settled"), uid="uid-forged")),
    ],
    "a pod that arrives before its node waits for the nodes cards": [
        hear("configmaps", budgets(_settings="weights: {H100: 2}")),
        change("pods", ended(MINUTE, "early", namespace="team-b", node="n9", percent=50)),
        change("nodes", node("n9", model="H100")),
        posted((0, MINUTE, 1_000, "settled"), uid="uid-early"),
    ],
    "what a user annotates later hides no pod": [
        change("pods", ended(MINUTE, annotations={"bursar.dev/policy": "nonsense"})),
        settled(MINUTE),
    ],
    # what a kubelet's statuses say
    # the init container ends before the others begin: three quarters are held at most
    "cards that only an init container uses are charged": [
        hear("pods", crew(2 * [WAITING], [ran(0), WAITING], "Pending")),
        heard(MINUTE, charged(MINUTE + 2 * SECOND, "team-b", 750)),
    ],
    "a native sidecar with a gpu ends the session last": [
        change(
            "pods",
            crew(
                [ran(MINUTE, 2 * MINUTE), ran(MINUTE, 3 * MINUTE)],
                [ran(0, MINUTE), ran(MINUTE, 4 * MINUTE)],
                "Succeeded",
            ),
        ),
        posted((-2 * SECOND, 4 * MINUTE, 750, "settled"), uid="uid-crew"),
    ],
    # also where the phase is terminal already, as a node's lifecycle controller sets it from afar
    "while one of several gpu containers runs the cards are held": [
        hear("pods", crew([ran(0, SECOND), ran(0)])),
        heard(MINUTE),
        hear("pods", crew([ran(0, SECOND), ran(0)], phase="Failed")),
        heard(2 * MINUTE, charged(2 * MINUTE + 2 * SECOND, "team-b", 750), posted(uid="uid-crew")),
    ],
    "back off between crashes is charged for the cards are held": [
        hear("pods", containers(POD, CRASHING)),
        heard(5 * MINUTE, pending(5 * MINUTE)),
    ],
    # after two restarts of a container its status no longer tells the first
    "a start that no watch repeats to a restarted settler stays known": [
        at(10 * MINUTE),
        hear("pods", again(9 * MINUTE, ran(8 * MINUTE, 8 * MINUTE + SECOND)), unheard=True),
        restart,
        heard(10 * MINUTE, pending(10 * MINUTE)),
    ],
    "an evicted pod pays until its containers have ended": [
        hear("pods", evicted()),
        heard(20 * SECOND, pending(20 * SECOND)),
        change("pods", ended(25 * SECOND, phase="Failed")),
        settled(25 * SECOND),
    ],
    # the kubelet has refused the pod, whose containers were still ending; later its object is deleted
    "a heartbeat after an end without a time counts also after a restart": [
        heard(MINUTE),
        change("pods", without_time(reason="NodeAffinity")),
        at(80 * SECOND, beat(1)),
        heard(3 * HOUR, settled(80 * SECOND)),
        restart,
        change("pods", without_time(reason="NodeAffinity") | {"metadata": leaving(3 * HOUR, 30)["metadata"]}),
        change("pods", without_time(reason="NodeAffinity"), deleted=True),
        heard(5 * HOUR, settled(80 * SECOND)),
    ],
    # a kubelet that restarts refuses pods that have completed, and forgets their statuses
    "a proof that was never posted is not taken back": [
        heard(HOUR),
        hear("pods", ended(MINUTE)),
        hear("pods", without_time(reason="UnexpectedAdmissionError")),
        heard(3 * HOUR, settled(MINUTE)),
    ],
    "an end without a time that is proved later, and then taken back": [
        heard(HOUR),
        change("pods", without_time(reason="UnexpectedAdmissionError")),
        change("pods", ended(MINUTE)),
        change("pods", without_time(reason="UnexpectedAdmissionError")),
        heard(3 * HOUR, charged(MINUTE)),
    ],
    # nodes
    # the pod object stays and holds its cards; its containers start again
    "a rebooted nodes pods are charged through the reboot": [
        heard(MINUTE),
        hear("leases", lease(START + MINUTE), deleted=True),
        silent(11 * MINUTE, charged(MINUTE)),
        hear("pods", again(9 * MINUTE, UNKNOWN_END)),
        heard(11 * MINUTE, charged(11 * MINUTE)),
    ],
    "a removed nodes pods are charged through their grace": [
        heard(MINUTE),
        at(11 * MINUTE, hear("leases", lease(START), deleted=True), hear("nodes", node(), deleted=True)),
        change("pods", POD, deleted=True),
        expired(11 * MINUTE, settled(11 * MINUTE + 30 * SECOND)),
    ],
    "a node that is not ready and comes back without the pod is charged for the silence": [
        at(MINUTE, beat(1), tick),
        at(31 * MINUTE, hear("pods", POD, deleted=True)),
        heard(31 * MINUTE),
        heard(3 * HOUR, settled(31 * MINUTE + 30 * SECOND)),
    ],
    # clocks
    "a start from a fast clock is charged once it has come": [
        hear("pods", theirs("early", started_ms=START + MINUTE)),
        heard(30 * SECOND, charged(0, "team-b")),
        heard(70 * SECOND, charged(10 * SECOND, "team-b")),
    ],
    "an end before its start costs nothing": [change("pods", ended(-MINUTE)), charged(0)],
}
LEFT = MINUTE + 30 * SECOND  # with its grace
# a pod that has failed from afar, and cannot go; its node's name comes back
TIMELINES |= {
    f"a pod that cannot go, {case}": timeline
    for case, timeline in {
        "on another machine": replaced(back("b2", charged(LEFT))),
        "and the next settler": replaced(restart, back("b2", charged(LEFT)), restart, tick, charged(LEFT)),
        "on another machine with other cards": replaced(back("b2", charged(LEFT), cards=1, model="T4")),
        "until its finalizer is gone": replaced(
            back("b2"), change("pods", left_behind(), deleted=True), expired(7 * HOUR, charged(LEFT))
        ),
        "until its end is proved": replaced(
            back("b2"), change("pods", ended(MINUTE)), at(7 * HOUR, tick, charged(MINUTE))
        ),
        "while its object changes": replaced(
            back("b2"),
            change("pods", {**left_behind(), "spec": POD["spec"] | {"priority": 7}}),
            charged(LEFT),
        ),
        "and nothing was heard of it before": [
            change("nodes", booted("b1")),
            heard(MINUTE),
            hear("nodes", booted("b2"), unheard=True),
            hear("pods", left_behind(), unheard=True),
            at(6 * HOUR, hear("leases", lease(START + 6 * HOUR), unheard=True), resume, tick, charged(LEFT)),
        ],
        "on the same machine": replaced(back("b1", charged(6 * HOUR))),
        "on the same machine with other cards": replaced(back("b1", charged(6 * HOUR), cards=1, model="T4")),
        "on a machine that names no boot": replaced(back("", charged(6 * HOUR))),
        "and in which boot it ran is not known": replaced(back("b2", charged(6 * HOUR)), first=""),
        "and its heartbeats went on": [
            *replaced(at(7 * MINUTE, beat(1), tick)),
            back("b2", charged(7 * MINUTE + 30 * SECOND)),
        ],
        "and had survived the reboot": [
            change("nodes", booted("b1")),
            heard(MINUTE),
            change("nodes", booted("b2")),
            heard(2 * MINUTE),
            change("pods", left_behind()),
            restart,
            back("b2", charged(6 * HOUR)),
        ],
        "and had survived the reboot of its machine, which was replaced then": [
            change("nodes", booted("b0")),
            restart,
            *replaced(back("b2", charged(LEFT))),
        ],
    }.items()
}
# no timestamp of the kubelet's tells of it: the binding does, and deleting the pod refunds nothing
TIMELINES |= {
    f"who holds cards without ever starting pays to the end, {case}": [
        hear("pods", stuck({"waiting": {"reason": reason}})),
        heard(10 * HOUR),
        hear("pods", stuck(UNKNOWN_END, "Failed")),
        change("pods", stuck(UNKNOWN_END, "Failed"), deleted=True),
        expired(10 * HOUR, posted((-2 * SECOND, 10 * HOUR), uid="uid-stuck")),
    ]
    for case, reason in (("bogus image", "ErrImagePull"), ("endless init", "PodInitializing"))
}
TIMELINES |= {
    f"an end without a time is charged to the last evidence, {reason}": [
        heard(MINUTE),
        at(80 * SECOND, beat(1), change("pods", without_time(reason=reason, message=message))),
        heard(3 * HOUR, settled(80 * SECOND)),
    ]
    for reason, message in (("Evicted", "The node was low on resource: memory."), ("NodeLost", ""))
}
TIMELINES |= {
    f"completed failed and killed pods are charged by the kubelets timestamps, {phase} {code}": [
        at(HOUR, node_heard, change("pods", killed(phase, code)), settled(MINUTE))
    ]
    for phase, code in (("Succeeded", 0), ("Failed", 1), ("Failed", 137))
}


TIMELINES |= {
    f"what was proved stays, {case}, {'after a restart' if again else 'watched'}": [
        heard(HOUR),
        change("pods", ended(MINUTE)),
        settled(MINUTE),
        heard(2 * HOUR),
        *([hear("pods", taken_back, unheard=True), restart] if again else []),
        change("pods", taken_back),
        heard(5 * HOUR, settled(MINUTE), posted((0, MINUTE))),
        change("pods", taken_back, deleted=True),
        expired(5 * HOUR, settled(MINUTE), posted((0, MINUTE))),
    ]
    for case, taken_back in (
        ("no statuses", without_time(reason="UnexpectedAdmissionError")),
        ("it waits", containers(POD, {"state": WAITING}, phase="Failed")),
        ("an end without a time", containers(POD, {"state": UNKNOWN_END}, phase="Failed")),
        ("an earlier end", containers(POD, {"state": ran(0, SECOND)}, phase="Failed")),
        ("it waits again", {**POD, "status": POD["status"] | {"phase": "Pending", "containerStatuses": []}}),
    )
    for again in (False, True)
}


def born(name: str, ms: int) -> Json:
    """The node with the cards of ``n1``, which came at this moment."""
    raw = node(name)
    return {**raw, "metadata": raw["metadata"] | {"creationTimestamp": iso(START + ms)}}


def renamed(came_ms: int, seen_ms: int, until_ms: int, *between: Step) -> list[Step]:
    """Its host is silent from an hour on, and comes again as another Node, whose agent shows the same cards
    later; after two days someone removes the old Node."""
    return [
        change("nodes", born("n1", -DAY)),
        heard(HOUR),
        at(seen_ms, hear("nodes", born("n2", came_ms))),
        *between,
        silent(48 * HOUR, charged(HOUR)),
        at(49 * HOUR, hear("leases", lease(START), deleted=True)),
        hear("nodes", born("n1", -DAY), deleted=True),
        change("pods", POD, deleted=True),
        expired(49 * HOUR, charged(until_ms)),
    ]


TEN = HOUR + 10 * MINUTE
# a card that is on another Node is not held on the one that is silent
TIMELINES |= {
    "a host that was renamed is charged until its cards came again": renamed(TEN, TEN, TEN),
    "a host that was renamed, and its agent came a day later": renamed(TEN, 25 * HOUR, TEN),
    "a host that was renamed, and the next settler": renamed(TEN, 3 * HOUR, TEN, restart),
    "cards that an older node shows too": renamed(30 * MINUTE, 2 * HOUR, 49 * HOUR + 30 * SECOND),
    "a node that lives though another shows its cards": [
        change("nodes", born("n1", -DAY)),
        heard(HOUR),
        hear("nodes", born("n2", HOUR)),
        heard(2 * HOUR),
        change("pods", POD, deleted=True),
        expired(2 * HOUR, charged(2 * HOUR + 30 * SECOND)),
    ],
}


@pytest.mark.parametrize("timeline", TIMELINES.values(), ids=TIMELINES)
def test_a_pod_is_charged_by_what_is_told_of_it(running: Town, timeline: list[Step]) -> None:
    live(running, timeline)


def test_a_heartbeat_of_a_pod_without_a_session_is_kept_by_its_sidecar(running: Town) -> None:
    stranger = gpu_pod("stranger")

    answer = running.beat(stranger, 1)

    assert (answer.status_code, answer.content_type) == (404, "application/problem+json")


def test_many_runs_of_a_sidecar_leave_a_bounded_number_of_rows(running: Town) -> None:
    from sqlalchemy import select

    from timekeeper.store import heartbeats as beats
    from timekeeper.store.engine.schema import HEARTBEATS

    for run in range(30):
        running.clock.turn(SECOND)
        running.beat(POD, 1, boot=f"run-{run}")

    with running.store.reading() as connection:
        assert len(connection.execute(select(HEARTBEATS)).all()) == beats.MAX_BOOTS
    assert running.budget()["pending"] == GPU * 30 * SECOND


def test_a_pod_that_cannot_be_charged_is_reported(running: Town, capfd: pytest.CaptureFixture[str]) -> None:
    bad = gpu_pod("bad", started_ms=START)
    bad["spec"]["containers"][0]["resources"]["limits"] = {"bursar.dev/gpu-percent": "150"}
    running.change("pods", bad)

    assert "event=pod-not-charged namespace=team-a pod=bad" in capfd.readouterr().err


def test_pods_without_a_request_only_show_that_the_watch_is_alive(running: Town) -> None:
    plain = gpu_pod("plain")
    plain["spec"]["containers"][0]["resources"] = {}
    running.clock.turn(MINUTE)
    running.hear("leases", lease(running.clock()))
    running.change("pods", plain)

    assert running.settler.cluster.pods.keys() == {"uid-p"}
    assert running.charged() == GPU * MINUTE


def test_nothing_is_concluded_before_everything_arrived_once(running: Town) -> None:
    """Before the list of pods is there, a session without a pod has lost nothing."""
    running.start_anew()
    running.advance(MINUTE, heard=False)

    answer = running.get("/readyz")
    assert answer.status_code == 503
    assert "waiting for pods, nodes" in answer.get_data(as_text=True)
    assert running.settler.ledger.sessions["uid-p"].vanished_ms is None

    running.list_all()
    running.tick()
    assert running.get("/readyz").status_code == 200


def test_a_watch_that_is_only_quiet_moves_the_watermark_of_pods_alone(town: Town) -> None:
    cluster = town.settler.cluster
    cluster.apply(WatchUpdate("nodes", T0, WatchProgress()))
    assert cluster.pods.current_ms == 0

    cluster.apply(WatchUpdate("pods", T0, WatchProgress()))
    assert cluster.pods.current_ms == T0


def test_heartbeats_of_a_pod_that_is_gone_change_nothing_and_say_so(running: Town) -> None:
    ended = gpu_pod(started_ms=START, ended_ms=START + MINUTE)
    running.hear("pods", ended, deleted=True)
    running.advance(HOUR, heard=False)

    answer = running.beat(POD, 1)
    running.tick()

    assert (answer.status_code, answer.get_json()["over"]) == (200, True)
    assert running.postings() == [(START, START + MINUTE, GPU, "settled")]
    assert running.charged() == GPU * MINUTE


# Terms.


@pytest.mark.parametrize(
    ("charge_by", "rate"), [("dominant", 1_500), ("compute", 750), ("memory", 1_500), ("mean", 1_125)]
)
def test_a_rate_is_fixed_at_bind_by_what_is_charged_and_the_models_weight(
    running: Town, charge_by: str, rate: int
) -> None:
    """A quarter of a card's compute and half of its memory, on a model of weight 3."""
    running.hear("nodes", node("n2", model="H100"))
    running.change("configmaps", budgets(_settings=f"chargeBy: {charge_by}\nweights: {{H100: 3}}"))
    body = gpu_pod("uneven", namespace="team-b", node="n2", started_ms=START)
    limits = {"bursar.dev/gpu-percent": "25", "bursar.dev/gpu-memory": "8000"}
    body["spec"]["containers"][0]["resources"]["limits"] = limits
    slice_ = {"uuid": "GPU-0", "index": 0, "share_milli": 250, "memory_mib": 8_000}
    body["metadata"]["annotations"]["bursar.dev/devices"] = json.dumps(
        {"version": 1, "containers": {"main": [slice_]}}
    )
    running.change("pods", body)

    running.hear("configmaps", budgets(_settings="weights: {H100: 1}\nchargeBy: dominant"))
    running.hear("nodes", node("n2", model="T4"))
    ended = {**body, "status": worlds.status("Succeeded", main=ran(0, MINUTE))}
    running.change("pods", ended)

    assert running.postings("uid-uneven") == [(START, START + MINUTE, rate, "settled")]
