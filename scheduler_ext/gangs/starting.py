"""The course of a start: its members get nodes, and are planned anew once a node takes one no more. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from scheduler_ext.gangs.capacity import placed_on
from scheduler_ext.gangs.changes import Decision, EndPlans, KeepCards, PlanAnew
from scheduler_ext.gangs.memory import Memory, Seen, Start
from scheduler_ext.gangs.plan import GangPlan, place_text
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.gang_table import GangState
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.reservations import as_found_by
from timekeeper.core import names
from timekeeper.core.gangs import is_grouped

ANEW_MS = 10_000  # between two plans for members whose node takes them no more


def adopted(memory: Memory, seen: Seen) -> Memory:
    """With starts of gangs of which some have a node, and too few: a former leader began them."""
    until_ms = seen.at_ms + seen.settings.deadline_ms
    for gang in memory.open.values():
        if gang.bound and gang.key not in memory.starts and memory.is_starting(gang):
            memory = memory.with_start(gang.key, Start(began_ms=seen.at_ms, until_ms=until_ms))
    return memory


def go_on(memory: Memory, gang: GangState, seen: Seen, policies: Callable[[Pod], Policy]) -> Decision:
    """The start is over once none of its members waits. A plan anew is for all that have no node."""
    start, waiting = memory.starts[gang.key], {pod.uid: pod for pod in gang.waiting}
    is_starting = memory.is_starting(gang)
    places = {uid: member for uid, member in start.places.items() if uid in waiting}
    if not places and not is_starting:
        return memory.with_start(gang.key, None), ()
    joins = start.joins and not is_starting  # those that it joined may all be lost
    if len(places) < len(start.places) or joins != start.joins:
        start = replace(start, places=places, joins=joins)
    start, is_broken = _checked(start, waiting, seen, policies)
    is_left = is_starting and any(pod.uid not in places for pod in gang.paid)
    is_due = seen.at_ms >= start.planned_ms + ANEW_MS or not start.planned_ms
    if not (is_broken or is_left) or not is_due or start.is_over:
        is_same = start is memory.starts[gang.key]
        return memory if is_same else memory.with_start(gang.key, start), ()
    pods = tuple(pod for pod in gang.paid if not joins or pod.uid in places)
    start = replace(start, places={}, planned_ms=seen.at_ms)
    return memory.with_start(gang.key, start), (EndPlans(tuple(places)), PlanAnew(gang, pods))


def planned_anew(memory: Memory, gang: GangState, plan: GangPlan, seen: Seen) -> Decision:
    """The start with this plan for its members without a node, if enough of them fit."""
    start = memory.starts[gang.key]
    if not start.joins and not plan.suffices(gang.needed - len(gang.bound)):
        return memory, ()
    kept = memory.with_start(gang.key, with_places(start, plan))
    # kube-scheduler has refused those without a gate where they were to be
    woken = [member.pod for member in plan.members if not member.pod.gated]
    return memory, (KeepCards(gang, plan, seen.snapshot, kept, woken, begins=False),)


def with_places(start: Start, plan: GangPlan) -> Start:
    """The start with these members' places, beside those that it has."""
    places = {member.pod.uid: member for member in plan.members}
    return replace(start, places={**start.places, **places}, where=place_text(plan))


def gates(start: Start, gang: GangState) -> list[Pod]:
    """The gates that have to go, for an earlier call may have failed. Of a PodGroup all go together:
    kube-scheduler tries no pod of it while one has a gate."""
    waiting = {pod.uid: pod for pod in gang.waiting}
    pods = gang.paid if is_grouped(gang.gang.key) else [waiting[uid] for uid in start.places]
    return [pod for pod in pods if pod.gates == (names.GANG_GATE,)]


def _checked(
    start: Start, waiting: Mapping[str, Pod], seen: Seen, policies: Callable[[Pod], Policy]
) -> tuple[Start, bool]:
    """The start with the nodes that take their members still; whether one takes its member no more."""
    checked, is_broken = dict[str, NodeInfo](), False
    for uid, member in start.places.items():
        pod, node, allocation = waiting[uid], seen.snapshot.node(member.node), seen.snapshot.allocation(uid)
        if allocation is not None and (allocation.state != "planned" or start.checked.get(uid) is node):
            continue
        if allocation is None or not _takes(node, pod, policies(pod)):
            is_broken = True
            break
        checked[uid] = node
    return replace(start, checked={**start.checked, **checked}) if checked else start, is_broken


def _takes(node: NodeInfo, pod: Pod, policy: Policy) -> bool:
    there = node.node_object
    if there is None or node.closed or not pod.node_constraints.admit(node.name, there.node_labels):
        return False
    return placed_on(pod, as_found_by(pod.uid, node), policy) is not None
