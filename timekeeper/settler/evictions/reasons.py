"""Why pods are evicted, and what is written about it: Events, decisions, conditions and log lines. Pure but
for the counters."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from prometheus_client import Counter

from timekeeper import metrics
from timekeeper.accounts.card_use.evictions import EvictionCandidate
from timekeeper.accounts.card_use.idleness import DueStep
from timekeeper.accounts.claims.excess import EXCESS_GRACE_MS, ClaimExcess
from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.accounts.held.declared import Overtime
from timekeeper.accounts.held.gangs import BrokenGang
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.decisions import (
    EVICTED,
    OTHER_NAMESPACE,
    OTHER_POD,
    RECLAIMABLE,
    RECLAIMED,
    WAITING,
    WARNED,
    Figure,
)
from timekeeper.core.object_names import timestamp
from timekeeper.core.texts import apart, per_mille
from timekeeper.log import LogEvent
from timekeeper.settler.evictions.owners import TopmostOwner
from timekeeper.settler.pod_notices import hours_text

OVERUSED, OVERUSE_PROTECTED = "GPUMemoryEviction", "GPUMemoryEvictionRefused"
VETOED = "EvictionRefused"  # by a webhook, a policy or a right, whatever the reason of the eviction is
NOTICE, SPENT, SPENT_PROTECTED = "EvictionNotice", "BudgetEviction", "BudgetEvictionRefused"
GANG_NOT_WHOLE = "GangEviction"
CLAIM_EXCESS = "ClaimEviction"
OVERTIME_WARNING, OVERTIME = "OvertimeWarning", "OvertimeEviction"
VICTIMS_EVICTED, EVICTIONS_UNUSED = "VictimsEvicted", "EvictionsUnused"
SPARED = "BursarBudgetRestored"

# step -> the Event's reason, and the kind of the decision
IDLE_REASONS = {
    "warn": ("IdleWarning", WARNED),
    "reclaim": ("IdleReclaimable", RECLAIMABLE),
    "evict": ("IdleEviction", EVICTED),
    "scale": ("IdleScaledToZero", EVICTED),
}


@dataclass(frozen=True, slots=True)
class Said:
    """An Event and a decision about a pod. ``budget``: the key of the entry that decided."""

    kind: str
    reason: str
    text: str
    figures: Mapping[str, Figure]
    budget: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a pod is evicted. ``attempts`` counts by result; ``event`` and ``fields`` are those of the log
    line."""

    event: LogEvent
    attempts: Counter
    fields: Mapping[str, Any]
    evicted: Said  # once the eviction is accepted
    # reason and message of the pod's condition DisruptionTarget; the Eviction API writes one of its own
    condition: tuple[str, str] | None = None
    # "protected": deleted if a PodDisruptionBudget refuses, with the result "evicted"; "always": deleted
    # without asking it, with the result "deleted"
    deletes: Literal["never", "protected", "always"] = "never"
    most_grace_s: int | None = None  # a longer grace period of the pod is shortened to it

    def shortened_grace_s(self, pod: LedgerPod) -> int | None:
        """The grace period with which the pod leaves; None: its own."""
        most_s = self.most_grace_s
        return most_s if most_s is not None and pod.hold.grace_ms > 1000 * most_s else None


def of_gang(reason: Reason, gang: str, pods: int) -> Reason:
    """Of a pod that leaves with its gang: this number of its pods."""
    said = reason.evicted
    text = f"{said.text} All {pods} pods of gang {gang} leave together."
    figures: dict[str, Figure] = {**said.figures, "gang": gang, "gangPods": pods}
    evicted = replace(said, text=text, figures=figures)
    return replace(reason, evicted=evicted, fields={**reason.fields, "gang": gang})


# GPU memory above the share


def overuse(candidate: EvictionCandidate, attempt: int) -> Reason:
    """``attempt``: its number, from 1 on."""
    over = candidate.over
    found = (each.excess for each in over.episode.cards)
    cards = ",".join(f"{each.uuid}:{each.memory_mib}/{each.share_mib}" for each in found)
    times = {"since_ms": over.episode.since_ms, "grace_ms": candidate.grace_ms}
    figures: dict[str, Figure] = {
        "node": over.node,
        "sinceMs": over.episode.since_ms,
        "graceMs": candidate.grace_ms or 0,
        "cards": cards,
    }
    return Reason(
        "overuse-eviction",
        metrics.OVERUSE_EVICTIONS,
        {"node": over.node, **times, "cards": cards, "attempt": attempt},
        Said(EVICTED, OVERUSED, f"Evicted by Bursar: {_overused(candidate)}", figures),
    )


def overuse_protected(candidate: EvictionCandidate) -> str:
    """The Event's text for a pod that a PodDisruptionBudget protects."""
    return f"A PodDisruptionBudget prevents the eviction of this pod: {_overused(candidate)}"


def _overused(candidate: EvictionCandidate) -> str:
    episode = candidate.over.episode
    found = (each.excess for each in episode.cards)
    cards = ", ".join(f"{each.memory_mib} MiB of {each.uuid} (share {each.share_mib} MiB)" for each in found)
    used = f"the pod has used more GPU memory than its share since {timestamp(episode.since_ms)}, now {cards}"
    return f"{used}; overuseGrace is {(candidate.grace_ms or 0) / 1000:g}s"


# A namespace over budget


def spent(pod: LedgerPod, terms: EvictionTerms, deletes: bool) -> Reason:
    """``deletes``: its PodDisruptionBudget was respected for pdbGrace."""
    how = (
        "Deleted by Bursar, because its PodDisruptionBudget was respected for pdbGrace"
        if deletes
        else "Evicted by Bursar"
    )
    account = {"account": terms.subject, "granted": terms.granted, "spent": terms.spent}
    return Reason(
        "budget-eviction",
        metrics.BUDGET_EVICTIONS,
        {**account, "priority": pod.priority},
        _of_budget(EVICTED, SPENT, f"{how}: {exhausted(terms)}", pod, terms, deletes),
        ("BursarBudgetExhausted", exhausted(terms)),
        "always" if deletes else "never",
    )


def notice(pod: LedgerPod, terms: EvictionTerms, evict_after: str) -> Said:
    """``evict_after``: the time in the annotation."""
    text = (
        f"The GPU budget of {terms.subject} is exhausted (onExhausted: evict). Once it is spent, this pod is "
        f"evicted, not before {evict_after}. It stays if the budget is raised, granted or renewed by then."
    )
    return _of_budget(WARNED, NOTICE, text, pod, terms)


def exhausted(terms: EvictionTerms) -> str:
    """Why the pod must leave, with the figures."""
    charged, granted = apart(terms.spent, terms.granted, first=hours_text)
    return f"{terms.subject} has spent {charged} of {granted} GPU-hours of its budget (onExhausted: evict)."


def spent_protected(
    terms: EvictionTerms, delete_after: str, gang: str = "", who: str = "A PodDisruptionBudget"
) -> str:
    """``delete_after``: the time in the annotation; ``gang``: the name of the one that stays with it."""
    it = f"this pod and keeps gang {gang} whole; they are" if gang else "this pod; it is"
    return f"{who} prevents the eviction of {it} deleted after {delete_after}: {exhausted(terms)}"


def spared(namespace: str, is_protected: bool = False) -> str:
    """Why the pod's notice was withdrawn."""
    if is_protected:
        return f"The budget of namespace {namespace} protects this pod (protect)."
    return f"Namespace {namespace} is in its GPU budget again."


def _of_budget(
    kind: str, reason: str, text: str, pod: LedgerPod, terms: EvictionTerms, deleted: bool = False
) -> Said:
    figures: dict[str, Figure] = {
        "account": terms.subject,
        "granted": terms.granted,
        "spent": terms.spent,
        "priority": pod.priority,
        "graceMs": terms.grace_ms,
        "deleted": int(deleted),
    }
    return Said(kind, reason, text, figures, terms.entry)


# Cards that are not used


def idle(action: DueStep, owner: TopmostOwner | None, obstacle: str) -> Reason:
    """Why an idle pod is evicted. ``obstacle``: why its owner is not scaled to zero."""
    return Reason(
        "idle-eviction",
        metrics.IDLE_EVICTIONS,
        {"node": action.pod.node},
        idle_step(replace(action, step="evict"), owner, obstacle),
        ("BursarIdle", "The pod hardly used its cards."),
    )


def idle_step(action: DueStep, owner: TopmostOwner | None = None, obstacle: str = "") -> Said:
    """What is said once an idle pod is warned, evicted, its owner scaled, or its cards may be taken."""
    reason, kind = IDLE_REASONS[action.step]
    figures: dict[str, Figure] = {
        "node": action.pod.node,
        "sinceMs": action.period.since_ms,
        "afterMs": action.terms.after_ms,
        "graceMs": action.terms.grace_ms,
    }
    return Said(kind, reason, _idle_text(action, owner, obstacle), figures)


def _idle_text(action: DueStep, owner: TopmostOwner | None, obstacle: str) -> str:
    below, since = per_mille(action.terms.below_milli), timestamp(action.period.since_ms)
    unused = f"The pod has used less than {below} of what it holds since {since}."
    if action.step == "reclaim":
        return f"{unused} Waiting pods of namespaces in budget may take them from now on."
    named = f"{owner.kind} {owner.name}" if owner else ""
    if owner and action.step == "scale":
        again = owner.help(is_stopped=True)
        return f"{unused} Bursar scaled {named} to zero. To start it again: {again}"
    why = f"; it is not scaled to zero: {obstacle}" if obstacle else ""
    anew = f" {named} creates it again{why}. To free its cards: {owner.help()}" if owner else ""
    if action.step == "evict":
        return f"Evicted by Bursar: {unused}{anew}"
    then = "waiting pods of namespaces in budget may take them"
    if action.terms.action != "reclaim":
        is_scaled = owner and action.terms.action == "scale" and not obstacle
        then, anew = (f"{named} is scaled to zero", "") if is_scaled else ("it is evicted", anew)
    return f"{unused} If it uses no more until {timestamp(action.until_ms)}, {then}.{anew}"


# A gang below its minimum


def broken(pod: LedgerPod, it: BrokenGang) -> Reason:
    """Why a member is evicted of whose gang others were preempted."""
    text = (
        f"Evicted by Bursar: pods of gang {it.gang.name} were preempted, and {len(it.uids)} of the"
        f" {it.needed} pods that it needs are left."
    )
    figures: dict[str, Figure] = {"node": pod.node, "bound": len(it.uids), "minimum": it.gang.minimum}
    return Reason(
        "gang-eviction",
        metrics.GANG_EVICTIONS,
        {"node": pod.node, "gang": f"{it.namespace}/{it.gang.key}"},
        Said(EVICTED, GANG_NOT_WHOLE, text, figures),
        ("BursarGang", "Too few pods of its gang are left after a preemption."),
    )


# A claim that became another


def excess(pod: LedgerPod, found: ClaimExcess) -> Reason:
    """Why a pod leaves whose claims, or those of a pod of its gang, hold more GPUs than it was judged for. No
    PodDisruptionBudget keeps it: the user who replaces a claim could write one."""
    whose = "its claims" if found.pod.uid == pod.uid else f"the claims of pod {found.pod.name}"
    more = f"{found.devices} GPUs, and were judged for {found.judged}; devices of unknown drivers count, too"
    what = more if found.devices > found.judged else "devices of an unknown driver, for which none is judged"
    text = f"Evicted by Bursar: {whose} hold {what}. A claim was replaced after that: create the pod again."
    figures: dict[str, Figure] = {"node": pod.node, "devices": found.devices, "judged": found.judged}
    return Reason(
        "claim-excess-eviction",
        metrics.CLAIM_EXCESS_EVICTIONS,
        {"node": pod.node, "devices": found.devices, "judged": found.judged},
        Said(EVICTED, CLAIM_EXCESS, text, figures),
        ("BursarClaim", "Its claims hold more GPUs than it was judged for."),
        "protected",
        EXCESS_GRACE_MS // 1000,
    )


# A device for the claim of another pod


_OVER_BUDGET = "Its namespace is over its GPU budget"


def reclaimed(pod: LedgerPod, heir: LedgerPod, node: str) -> Reason:
    """Why a pod that is over budget, or idle, leaves for the device of a waiting pod's claim."""
    why, short = f"namespace {pod.namespace} is over its GPU budget (onExhausted: reclaim)", _OVER_BUDGET
    if pod.is_reclaimable:
        why, short = "the pod has hardly used its GPUs (idle: reclaim)", "It hardly used its GPUs"
    text = (
        f"Evicted by Bursar: {why}, and the claim of a waiting pod of a namespace in budget gets the device."
    )
    return Reason(
        "claim-reclaim-eviction",
        metrics.CLAIM_RECLAIM_EVICTIONS,
        {"node": node, "priority": pod.priority, "for_pod": f"{heir.namespace}/{heir.name}"},
        Said(RECLAIMED, "Reclaimed", text, _between(pod, heir, node) | _other(heir)),
        ("BursarReclaim", f"{short}, and another pod needs its device."),
    )


def victims_evicted(heir: LedgerPod, victim: LedgerPod, node: str, devices: int, is_kept: bool) -> Said:
    """What is said of the waiting pod. ``is_kept``: a taint keeps each device for its claim."""
    it, whose = ("it", "this pod's claim") if devices == 1 else ("each", "its claim")
    kept = (
        f"A taint keeps {it} for {whose} meanwhile"
        if is_kept
        else f"Nothing can keep {it} for {whose} meanwhile, so another claim may get it first"
    )
    who = "Idle pods" if victim.is_reclaimable else "Pods over budget"
    text = f"{who} are evicted from node {node} for {_devices(devices)}. {kept}."
    return Said(WAITING, VICTIMS_EVICTED, text, _between(victim, heir, node) | _other(victim))


def evictions_unused(heir: LedgerPod, node: str, devices: int) -> Said:
    """The pods have left, and the claims did not get the devices."""
    it = "it" if devices == 1 else "them"
    text = (
        f"Pods over budget were evicted from node {node} for {_devices(devices)}, and it did not get {it} in"
        " time. No pod is evicted for such a claim of this namespace for five minutes."
    )
    return Said(WAITING, EVICTIONS_UNUSED, text, {"node": node})


def _devices(number: int) -> str:
    return "a device of this pod's claim" if number == 1 else f"{number} devices of this pod's claims"


def _between(victim: LedgerPod, heir: LedgerPod, node: str) -> dict[str, Figure]:
    return {
        "node": node,
        "how": "evicted",
        "victimPriority": victim.priority,
        "podPriority": heir.priority,
        "victimStanding": "OVER_BUDGET",
        "podStanding": "IN_BUDGET",
    }


def _other(pod: LedgerPod) -> dict[str, Figure]:
    return {OTHER_NAMESPACE: pod.namespace, OTHER_POD: pod.name}


# Past the declared time


def overtime(late: Overtime) -> Reason:
    """Why a pod past its declared time is evicted."""
    return Reason(
        "overtime-eviction",
        metrics.OVERTIME_EVICTIONS,
        {"node": late.pod.node},
        _of_overtime(EVICTED, OVERTIME, f"Evicted by Bursar: {_past(late)}.", late),
        ("BursarOvertime", "The pod held its cards for longer than it had declared."),
        "protected" if late.deletes else "never",
    )


def overtime_warning(late: Overtime) -> Said:
    """What is said once a pod's declared time is over."""
    text = _past(late)
    then = (
        f"it is evicted after {timestamp(late.may_end_ms)}"
        if late.is_ended
        else "what it uses after its grace period is not reserved"
    )
    return _of_overtime(WARNED, OVERTIME_WARNING, f"{text[0].upper()}{text[1:]}; {then}.", late)


def _of_overtime(kind: str, reason: str, text: str, late: Overtime) -> Said:
    figures: dict[str, Figure] = {
        "node": late.pod.node,
        "declaredMs": late.pod.declared_ms,
        "graceMs": late.pod.hold.grace_ms,
        "declaredUntilMs": late.until_ms,
    }
    return Said(kind, reason, text, figures)


def _past(late: Overtime) -> str:
    return (
        f"the pod declared {late.pod.declared_ms // 1000} s (activeDeadlineSeconds), which were over at"
        f" {timestamp(late.until_ms)}"
    )
