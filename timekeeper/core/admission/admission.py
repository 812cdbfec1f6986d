"""What is decided of one new pod whose request is known: made once for each review, and read by patch,
warnings, audit, decision and log."""

from dataclasses import dataclass, replace

from timekeeper.core import names
from timekeeper.core.admission.marks import declared_time, recorded_time
from timekeeper.core.admission.pods import annotations_of, sequence_of
from timekeeper.core.admission.policy import (
    AdmissionPolicy,
    PriorityClass,
    Standing,
    is_above_budget_class,
    scheduler_of,
    without_placement,
)
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.gangs import gang_of
from timekeeper.core.json_values import Json
from timekeeper.core.request.zeros import asked_limits
from timekeeper.core.values import GPURequest
from timekeeper.core.wire import HeldFor, StandingWord


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a pod asks for, who places it, its gang, standing, hold and class. ``policy``: of its namespace,
    without what the pod does not get; ``scheduler``: the schedulerName of the governed pod; ``gang_key``: of
    the gang whose start is ours, "" without one; ``declared``: how long it means to run, in seconds, if it
    reserves that; ``standing_class``: of its standing and hold; ``class_given``: None: it keeps its own;
    ``class_replaced``: its user's, which is too high for its standing; "" where there is none;
    ``without_sidecar``: why it gets none, for its user; "" where it gets one or has asked for none."""

    request: GPURequest
    policy: AdmissionPolicy
    scheduler: str
    gang_key: str
    standing: Standing
    hold: HeldFor
    declared: str
    standing_class: PriorityClass
    class_given: PriorityClass | None
    class_replaced: str
    without_sidecar: str

    @property
    def counted(self) -> GPURequest | None:
        """What a call for the pod counts of the budget until the next table: a held pod uses nothing before
        it is released, and observed ones are not estimated."""
        return None if self.hold or self.policy.mode != "enforce" else self.request


def admission_of(
    pod: Json,
    request: GPURequest,
    standing: Standing,
    policy: AdmissionPolicy,
    recorded: HeldFor | None = None,
) -> Admission:
    """Of a pod that breaks no rule. ``request`` is what the core parsed from this pod; ``recorded``: how
    /mutate has held it, None: not yet."""
    spec, dialect = pod["spec"], request.dialect
    scheduler = placed_by(spec, dialect, policy)
    is_ours = dialect != of_claims.NAME and scheduler == policy.scheduler_name
    gang = gang_of(pod) if is_ours else None
    if recorded is None:
        is_held_gang = gang is not None and policy.mode == "enforce"
        hold = policy.hold_of(standing, not is_ours, of_claims.is_known(request)) or (
            "turn" if is_held_gang else ""
        )
        declared = declared_time(pod) if policy.reserves_declared and hold == "budget" else ""
    else:
        hold, declared = recorded, recorded_time(pod)
    standing_class = policy.class_of(class_status(standing.status, hold))
    given: PriorityClass | None = standing_class
    own, is_above = spec.get("priorityClassName"), is_above_budget_class(spec, policy)
    # it is not set; a class above that of pods in budget is still replaced
    if standing_class.absent or policy.keeps_classes:
        given = policy.in_budget if is_above else None
    elif keeps_own_class(spec, standing_class, policy):
        given = None
    placing = without_placement(policy, dialect, pod)
    without = sidecar_obstacle(pod, placing)
    is_known = spec.get("priority") is not None  # else it is a manifest's
    is_replaced = given is not None and is_known and own not in (None, given.name, policy.cluster_default)
    return Admission(
        request=request,
        policy=placing if without is None else replace(placing, sidecar=None),
        scheduler=scheduler,
        gang_key=gang.key if gang is not None and hold else "",
        standing=standing,
        hold=hold,
        declared=declared,
        standing_class=standing_class,
        class_given=given,
        # of one that is above the class of pods in budget the rule `priority-class` speaks
        class_replaced=str(own) if is_replaced and not is_above else "",
        without_sidecar=without or "",
    )


def sidecar_obstacle(pod: Json, policy: AdmissionPolicy) -> str | None:
    """Why the sidecar, which is optional evidence, is left out of a pod for which the policy has one: because
    it would do harm, in words for the pod's user, or "" because they ask for none. None: it is not."""
    if policy.sidecar is None:
        return None
    spec, dns = pod["spec"], pod["spec"].get("dnsPolicy") or "ClusterFirst"
    if annotations_of(pod).get(names.WANTS_SIDECAR) == "off" and not policy.requires_sidecar:
        return ""
    if policy.waits_for_sidecar:
        return "pods of this namespace wait for their sidecar to start"
    if spec.get("shareProcessNamespace"):
        return "spec.shareProcessNamespace: containers that wait for all processes, or end them, meet ours"
    if dns != "ClusterFirstWithHostNet" and (dns != "ClusterFirst" or spec.get("hostNetwork")):
        return "spec.dnsPolicy: the pod resolves no Service, where ClusterFirstWithHostNet would"
    return None


def placed_by(spec: Json, dialect: str, policy: AdmissionPolicy) -> str:
    """The schedulerName of the pod once it is governed. In observe mode each pod keeps its own: on nodes
    without an inventory the scheduler that its user chose still places it, and Bursar's would not."""
    given = spec.get("schedulerName") or ""
    if policy.mode == "observe":
        return given
    if policy.places and policy.claims.resources:  # for which its scheduler may allocate devices
        every = (each for field in ("initContainers", "containers") for each in sequence_of(spec.get(field)))
        if any(not policy.claims.resources.isdisjoint(asked_limits(container)) for container in every):
            return policy.claim_scheduler
    if policy.places and BY_NAME[dialect].plugin_chooses and of_claims.has_claims(spec):
        return policy.claim_scheduler  # which alone allocates devices; the plugin chooses the cards
    return scheduler_of(dialect, given, policy)


def class_status(word: StandingWord, hold: HeldFor) -> StandingWord:
    """The standing that determines the class: a pod that waits for its budget has the class of pods in
    budget, because its class cannot change when it is released."""
    return "IN_BUDGET" if hold == "budget" else word


def keeps_own_class(spec: Json, ours: PriorityClass, policy: AdmissionPolicy) -> bool:
    """Whether the pod keeps its user's priority class: its value, which the API server resolves before any
    webhook runs, is at most that of ``ours``, the standing's class. The cluster's default is not its user's.
    In observe mode every class is kept. Where the standing's class does not exist, each class is kept that is
    not above the one of pods in budget."""
    own, value = spec.get("priorityClassName"), spec.get("priority")
    if own == policy.cluster_default and policy.mode != "observe":
        return False  # its user named none
    if not own or policy.mode == "observe":
        return bool(own)
    if ours.absent:
        return not is_above_budget_class(spec, policy)
    return value is not None and ours.value is not None and value <= ours.value
