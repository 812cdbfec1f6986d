"""Which cards a pod holds until when: the one definition, which extender and ledger share.

A pod holds the cards of its placement (annotation ``bursar.dev/devices``) from its binding until they may be
given away: until its phase is terminal and none of its containers runs. If its object is removed before that,
the pod *vanished*: it holds its cards, and devices of claims, while a fresh report of its node's agent lists
it, else until its kubelet has ended it (`heard`), else until its grace is over, because the kubelet may run
it for that long.

A pod's end is *unconfirmed* while its phase is terminal and its status says that a container runs: a
controller has ended it from afar (PodGC), and its kubelet may run it. It holds its cards until its node has
another boot (`is_left_behind`).

`pod_hold` reads what one object says, `later` joins it with what earlier versions of the object said,
`vanished`, `followed` and `heard` continue after the removal, and `ends_ms` dates the end. `clock_ahead_ms`
tells how far the clock of a node is ahead, whose kubelet's timestamps prove charges, and `dated` corrects the
proof by it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.kube.holders import NodeHolders
from timekeeper.core.names import GANG_FORGIVEN, SIDECAR
from timekeeper.core.object_names import TERMINAL
from timekeeper.core.object_names import millis as millis
from timekeeper.core.values import GPURequest

_DEFAULT_GRACE_S = 30
_LEAST_GRACE_MS = 2_000  # of the kubelet, for each container
# within which a kubelet that hears of it has ended a pod that was removed by force: 5 s, and 10 for its watch
FORCED_MS = 15_000
RENEWED_MS = 10_000  # how often a kubelet renews its Lease
_ENDS_FORCED = (1, 31)  # the first kubelet that does (kubernetes#124063)
_TOLERATED_MS = 2_000  # of a node's clock; timestamps are whole seconds
_VERSION = re.compile(r"v([0-9]{1,3})\.([0-9]{1,3})\.")
_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")

NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"  # those that kubelets renew
_TOLERATED_CLOCK_MS = 5_000  # the API server may take seconds for a write, and notes whole ones
_TOLERATED_RECEIPT_MS = 12_000  # a kubelet reports an end within 10 s
CLOCK_WAS_SET = "the clock of its node was set while it ran, and of its possible ends the latest counts"


@dataclass(frozen=True, slots=True)
class PodHold:
    """What a pod's object says of its hold. Times in milliseconds since 1970."""

    bound_ms: int | None  # when the Binding was made; None: the object does not contain it
    over: bool = False  # the phase is terminal and no container runs: the cards may be given away
    unconfirmed: bool = False  # the phase is terminal, but a container runs as far as its status says
    ended_ms: int | None = None  # proof of the end: the latest finish of all containers; None: no proof
    # without proof: when the terminal phase was first reported, None where the object does not say it
    reported_ms: int | None = None
    witnessed_ms: int = 0  # the latest time in its statuses; the pod was there then
    # how long the kubelet may run it after its removal: by the largest of the spec's grace period and of the
    # deletions that were requested
    grace_ms: int = 1000 * _DEFAULT_GRACE_S
    deletion_ms: int | None = None  # deletionTimestamp: the deadline of a requested deletion
    asked_ms: int = 0  # how long a kubelet that has begun with the longest requested deletion goes on with it
    has_finalizer: bool = False  # `names.GANG_FORGIVEN`, which keeps its object
    finishes: tuple[
        int, ...
    ] = ()  # of its containers, by the clock of its node, where ``ended_ms`` is proved
    began_ahead_ms: int | None = None  # how long after its binding its node began with it, by that clock
    received_ms: int | None = None  # when the watch received its end; None: a list contained it
    doubt: str = ""  # why ``ended_ms`` is not certain


@dataclass(frozen=True, slots=True)
class NodeSight:
    """What is known of a pod's node after its object was removed."""

    boot: str = ""  # the boot ID; "": unknown
    report: NodeHolders | None = None  # the *fresh* report of its agent (`holders.fresh_holders`)
    ends_forced: bool = False  # its kubelet ends pods that were removed by force


@dataclass(frozen=True, slots=True)
class Vanished:
    """The hold of a pod whose object was removed before its end was reported."""

    removed_ms: int
    grace_ms: int  # how long the kubelet may run it after that
    boot: str = ""  # the first boot ID of its node known since
    listed_ms: int | None = None  # when a fresh report last listed it
    is_listed: bool = False  # the latest fresh report lists it
    left_ms: int | None = None  # when a report said that it has left
    users: tuple[str, ...] = ()  # of a claim: the UIDs of the pods that may still use its devices
    quick_ms: int | None = None  # within which a kubelet that hears of it ends it; None: not known
    # when such a kubelet renewed its Lease first and last since the removal was seen
    first_ms: int | None = None
    last_ms: int = 0

    @property
    def until_ms(self) -> int:
        """When its hold is over, as far as is known now; while it `is_listed`, not before the next report."""
        if self.left_ms is not None:
            return max(self.removed_ms, self.left_ms)
        until_ms = self.removed_ms + self.grace_ms
        if self.quick_ms is not None and self.first_ms is not None:
            # one whose first renewal came late was away, and heard of it then
            ended_ms = max(self.removed_ms, self.first_ms - RENEWED_MS) + self.quick_ms
            until_ms = min(until_ms, ended_ms) if self.last_ms >= ended_ms else until_ms
        return max(until_ms, self.listed_ms or 0)

    def is_held(self, now_ms: int) -> bool:
        """Whether the pod still holds its cards."""
        return self.left_ms is None and (self.is_listed or now_ms < self.until_ms)


def pod_hold(pod: Json) -> PodHold:
    """What the object says. Never raises on JSON from an API server.

    An end is proved only if every container that ended has a time of its own in its present state. One
    without it (``ContainerStatusUnknown``) may have run longer than the others.
    """
    metadata, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    is_terminal = status.get("phase") in TERMINAL
    over = is_terminal and not any(
        "running" in mapping(state.get("state")) for state in _all_statuses(status)
    )
    reported_ms = _phase_written_ms(metadata) if over else None
    finishes = _proved_finishes(status) if over else ()
    bound_ms, began_ms = _bound_ms(status), millis(status.get("startTime"))
    ahead_ms = None if bound_ms is None or began_ms is None else began_ms - bound_ms
    asked_s = _seconds(metadata.get("deletionGracePeriodSeconds"))
    return PodHold(
        bound_ms=bound_ms,
        over=over,
        unconfirmed=is_terminal and not over,
        ended_ms=_corrected_ms(max(finishes), reported_ms, ahead_ms) if finishes else None,
        reported_ms=reported_ms,
        witnessed_ms=_witnessed_ms(status),
        grace_ms=_runs_on_ms(pod),
        deletion_ms=millis(metadata.get("deletionTimestamp")),
        asked_ms=1000 * asked_s + _LEAST_GRACE_MS if asked_s else 0,
        has_finalizer=GANG_FORGIVEN in sequence(metadata.get("finalizers")),
        finishes=finishes,
        began_ahead_ms=ahead_ms if finishes else None,
    )


def later(before: PodHold | None, now: PodHold) -> PodHold:
    """The newer version of an object's hold, with what only earlier versions said: the first binding, the
    largest grace period, the first report of the end, the latest time. What was proved stays unless a later
    finish is proved: a kubelet that restarts may refuse a pod that has completed, and write statuses without
    its end."""
    if before is None:
        return now
    is_later = max(now.finishes, default=0) > max(before.finishes, default=0)
    proof = now if before.ended_ms is None or is_later else before
    return replace(
        now,
        bound_ms=_least(before.bound_ms, now.bound_ms),
        ended_ms=proof.ended_ms if now.over else None,
        finishes=proof.finishes,
        began_ahead_ms=proof.began_ahead_ms,
        received_ms=proof.received_ms,
        doubt=proof.doubt,
        reported_ms=_least(before.reported_ms, now.reported_ms),
        witnessed_ms=max(before.witnessed_ms, now.witnessed_ms),
        grace_ms=max(before.grace_ms, now.grace_ms),
        asked_ms=max(before.asked_ms, now.asked_ms),
    )


def is_left_behind(hold: PodHold, uid: str, boot: str, sight: NodeSight) -> bool:
    """Whether nothing of a pod whose end is unconfirmed can run any more, because its node has booted anew: a
    kubelet starts no pod whose phase is terminal. ``boot``: that of the node when the phase became terminal,
    for a pod that runs survives a reboot; "": not known. Other cards, or a new Node object, prove nothing:
    the machine may have gone on."""
    is_listed = sight.report is not None and uid in sight.report.pods
    return hold.unconfirmed and bool(boot and sight.boot) and boot != sight.boot and not is_listed


def ends_ms(hold: PodHold, last_evidence_ms: int) -> int:
    """When a hold that is over ended: by proof; else by the first report of the terminal phase; else with the
    last evidence. Without proof it is never before the last evidence."""
    if hold.ended_ms is not None:
        return hold.ended_ms
    return max(hold.reported_ms or 0, hold.witnessed_ms, last_evidence_ms)


def removed_ms(deletion_ms: int | None, seen_ms: int, last_evidence_ms: int) -> int:
    """When an object was removed. ``deletion_ms``: its deletionTimestamp, a deadline that a finalizer may
    outlast, and that API servers before 1.33 may date into the past; so it counts no earlier than the last
    evidence. ``seen_ms``: when the removal was seen."""
    return min(seen_ms, max(deletion_ms if deletion_ms is not None else seen_ms, last_evidence_ms))


def vanished(
    hold: PodHold, seen_ms: int, last_evidence_ms: int, most_grace_ms: int, was_watched: bool = True
) -> Vanished:
    """The hold of a pod whose object is gone, though it was not over. ``was_watched``: its removal was seen
    as an event; else a list did not contain it, deletions may have been missed, and ``most_grace_ms``, the
    cluster's largest, is its grace period."""
    if not was_watched:
        return Vanished(min(seen_ms, last_evidence_ms), most_grace_ms)
    at_ms = removed_ms(hold.deletion_ms, seen_ms, last_evidence_ms)
    quick_ms = max(FORCED_MS, hold.asked_ms)
    return Vanished(at_ms, min(hold.grace_ms, most_grace_ms), quick_ms=quick_ms)


def followed(gone: Vanished, uid: str, sight: NodeSight, at_ms: int) -> Vanished:
    """The vanished pod after what is known of its node at ``at_ms``: apply it when the pod vanishes, and then
    whenever its Node changes or is confirmed.

    A pod that the last fresh report listed has left once a complete one does not list it. For one that was
    not listed, silence proves nothing, except in a report from another boot. Without a fresh report the
    clock alone counts.
    """
    if gone.left_ms is not None:
        return gone
    gone, report = replace(gone, boot=gone.boot or sight.boot), sight.report
    if report is None:
        return replace(gone, is_listed=False)
    if not report.pods.keys().isdisjoint(gone.users or (uid,)):
        return replace(gone, is_listed=True, listed_ms=max(at_ms, gone.listed_ms or 0))
    is_other_boot = bool(gone.boot and sight.boot) and gone.boot != sight.boot
    if report.known and (gone.is_listed or is_other_boot):
        return replace(gone, is_listed=False, left_ms=at_ms)
    return gone


def heard(gone: Vanished, at_ms: int) -> Vanished:
    """The vanished pod, now that the Lease of its kubelet, which ends pods that were removed by force, was
    renewed at this time. The kubelet hears of the next pod on these cards later: its watch is one."""
    if at_ms <= gone.removed_ms:
        return gone
    return replace(gone, first_ms=gone.first_ms or at_ms, last_ms=max(at_ms, gone.last_ms))


def ends_forced(node: Json) -> bool:
    """Whether the node's kubelet ends a pod within seconds once it hears that it was removed by force."""
    told = str(mapping(mapping(node.get("status")).get("nodeInfo")).get("kubeletVersion"))
    found = _VERSION.match(told)
    return found is not None and (int(found[1]), int(found[2])) >= _ENDS_FORCED


def grace_ms(pod: Json, most_ms: int = 2**53) -> int:
    """The pod's grace period, at most ``most_ms``: the larger of the spec's ``terminationGracePeriodSeconds``
    and the ``deletionGracePeriodSeconds`` of a requested deletion."""
    spec = mapping(pod.get("spec")).get("terminationGracePeriodSeconds")
    deletion = mapping(pod.get("metadata")).get("deletionGracePeriodSeconds")
    in_spec = _seconds(spec)
    seconds = max(_DEFAULT_GRACE_S if in_spec is None else in_spec, _seconds(deletion) or 0)
    return min(seconds * 1000, most_ms)


def _runs_on_ms(pod: Json) -> int:
    """How long the kubelet may run the pod after its object was removed: its grace period, but at least 2 s.
    A preStop hook may use up the grace period, and a native sidecar may wait as long for its turn; both have
    these 2 s afterwards.

    Source: pkg/kubelet/kuberuntime, ``killContainer``.
    """
    spec = mapping(pod.get("spec"))
    first, others = sequence(spec.get("initContainers")), sequence(spec.get("containers"))
    if any(map(_has_hook, first + others)) or any(map(_is_waited_for, first)):
        return max(grace_ms(pod), 1_000) + _LEAST_GRACE_MS
    return max(grace_ms(pod), _LEAST_GRACE_MS)


def _is_waited_for(init_container: object) -> bool:
    each = mapping(init_container)
    return each.get("restartPolicy") == "Always" and each.get("name") != SIDECAR


def _has_hook(container: object) -> bool:
    lifecycle = mapping(container).get("lifecycle")
    return lifecycle is not None and bool(mapping(lifecycle).get("preStop"))


def started_ms(pod: Json, request: GPURequest) -> int | None:
    """The earliest start of a GPU container in the pod's status."""
    gpu = {each.container for each in request.asks}
    statuses = [each for each in _all_statuses(mapping(pod.get("status"))) if each.get("name") in gpu]
    starts = [millis(run.get("startedAt")) for each in statuses for run in _runs(each)]
    return min((start for start in starts if start is not None), default=None)


def _seconds(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _bound_ms(status: Json) -> int | None:
    """When the Binding was made; the kubelet's start time if a scheduler has reset the condition since."""
    for condition in map(mapping, sequence(status.get("conditions"))):
        if condition.get("type") == "PodScheduled":
            bound = millis(condition.get("lastTransitionTime"))
            if condition.get("status") == "True" and bound is not None:
                return bound
    return millis(status.get("startTime"))


def _proved_finishes(status: Json) -> tuple[int, ...]:
    """The finishes of the containers, if each that ever ran has one in its present state."""
    finishes: list[int] = []
    for container in _all_statuses(status):
        state = mapping(container.get("state"))
        finished = millis(mapping(state.get("terminated")).get("finishedAt"))
        if finished is not None:
            finishes.append(finished)
        elif "terminated" in state or "terminated" in mapping(container.get("lastState")):
            return ()
    return tuple(finishes)


def _corrected_ms(ended_ms: int, reported_ms: int | None, ahead_ms: int | None) -> int:
    """The end by the API server's clock, where the clock of the node is wrong by more than `_TOLERATED_MS`,
    as far as the object alone says it.

    A kubelet starts a pod just after its Binding: a ``startTime`` before that shows by how much its clock is
    behind at least (``ahead_ms`` < 0). An end after its own report shows that the clock is ahead, by the
    delay of ``startTime`` at most. A tenant may have written the time of the report (`_phase_written_ms`), so
    it shortens no end by more than that.
    """
    if ahead_ms is None:
        return ended_ms
    if ahead_ms < -_TOLERATED_MS:
        latest_ms = ended_ms - ahead_ms
        return latest_ms if reported_ms is None else max(ended_ms, min(latest_ms, reported_ms))
    if ahead_ms > _TOLERATED_MS and reported_ms is not None and ended_ms > reported_ms + _TOLERATED_MS:
        return max(reported_ms, ended_ms - ahead_ms)
    return ended_ms


def dated(hold: PodHold, leases_ms: Collection[int]) -> PodHold:
    """The hold with its proved end by the API server's clock, where the node's clock was set while the pod
    ran. ``leases_ms``: by how much it was ahead, as the node's Lease showed at the end; empty: not known.

    Each way to read the clock gives an end: as the Lease showed it at the end, and as ``startTime`` showed it
    at the start. The latest that is not after the receipt counts, for a pod has ended when that is received.
    Without a receipt at the time the longer reading counts, with a doubt.
    """
    if hold.ended_ms is None or not leases_ms:
        return hold
    finishes, received_ms = hold.finishes or (hold.ended_ms,), hold.received_ms
    readings = {*leases_ms, _at_start_ms(hold.began_ahead_ms, leases_ms)}
    is_late = received_ms is not None and max(finishes) > received_ms + _TOLERATED_MS
    if not any(readings) and not is_late:
        return hold
    ends = {finish_ms - ahead_ms for finish_ms in finishes for ahead_ms in readings}
    if received_ms is None:
        longest_ms = max(finishes) - min(readings)
        return replace(hold, ended_ms=longest_ms, doubt=CLOCK_WAS_SET if len(readings) > 1 else "")
    possible = [at_ms for at_ms in ends if at_ms <= received_ms + _TOLERATED_MS]
    latest_ms = min(received_ms, max(possible, default=received_ms))
    is_certain = len(readings) == 1 or received_ms - latest_ms <= _TOLERATED_RECEIPT_MS
    return replace(hold, ended_ms=latest_ms, doubt="" if is_certain else CLOCK_WAS_SET)


def _at_start_ms(began_ahead_ms: int | None, leases_ms: Collection[int]) -> int:
    """By how much the clock was ahead at the pod's start. It may also have begun late, with a right clock:
    only a Lease that shows the same says that the clock was ahead."""
    if began_ahead_ms is None:
        return min(0, *leases_ms)
    near = [ahead_ms for ahead_ms in leases_ms if abs(ahead_ms - began_ahead_ms) <= _TOLERATED_CLOCK_MS]
    return near[0] if near else min(0, began_ahead_ms)


def _phase_written_ms(metadata: Json) -> int | None:
    """When the writer of the status' phase last wrote, by the API server's clock. Tenants may change or
    remove it: therefore an end without proof is never before the last evidence."""
    written = [
        millis(each.get("time"))
        for each in map(mapping, sequence(metadata.get("managedFields")))
        if "f:phase" in mapping(mapping(each.get("fieldsV1")).get("f:status"))
    ]
    return min((at_ms for at_ms in written if at_ms is not None), default=None)


def _all_statuses(status: Json) -> list[Json]:
    return [mapping(each) for kind in _STATUSES if kind in status for each in sequence(status[kind])]


def _runs(each: Json) -> Iterator[Json]:
    """Every running or terminated state of a container, present and last."""
    for when in ("state", "lastState"):
        for kind, run in mapping(each.get(when)).items():
            if kind in ("running", "terminated"):
                yield mapping(run)


def _witnessed_ms(status: Json) -> int:
    """The latest time of all runs; 0: there is none."""
    latest_ms = 0
    for container in _all_statuses(status):
        for run in _runs(container):
            for field in ("startedAt", "finishedAt"):
                if field in run:
                    latest_ms = max(latest_ms, millis(run[field]) or 0)
    return latest_ms


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def clock_ahead_ms(lease: Mapping[str, Any]) -> int | None:
    """By how much the clock of a node was ahead when its kubelet last renewed this Lease: the kubelet writes
    its own time into it, and the API server notes its own beside it. 0 within `_TOLERATED_CLOCK_MS`; None: it
    is not known. Never raises on JSON from an API server."""
    renewed_ms = millis(mapping(lease.get("spec")).get("renewTime"))
    fields = map(mapping, sequence(mapping(lease.get("metadata")).get("managedFields")))
    noted = [at_ms for entry in fields if _renews(entry) and (at_ms := millis(entry.get("time"))) is not None]
    if renewed_ms is None or not noted:
        return None
    ahead_ms = renewed_ms - max(noted)
    return ahead_ms if abs(ahead_ms) > _TOLERATED_CLOCK_MS else 0


def _renews(entry: Json) -> bool:
    """Whether this entry of managedFields is of who wrote the Lease's time; others may write to it too."""
    written = mapping(entry.get("fieldsV1"))
    return not written or "f:renewTime" in mapping(written.get("f:spec"))
