"""What would have happened to the pods of metered namespaces, had their budgets been enforced. Pure.

Admission is judged by its own rules and the standing at that moment. Evictions for a spent budget are
decided by `accounts.exhaustion.evictions` as if nothing were observed; what it would write on pods is
remembered here instead. After a restart the time of grace begins anew.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

from timekeeper.accounts.exhaustion.evictions import (
    BudgetEviction,
    BudgetEvictionMemory,
    EvictionNotice,
    due,
)
from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core import names
from timekeeper.core.admission.admission import class_status, keeps_own_class
from timekeeper.core.admission.marks import declared_time
from timekeeper.core.admission.pods import MalformedError, checked_pod
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, SidecarImages, Standing
from timekeeper.core.admission.protection import protected
from timekeeper.core.admission.rules.bypass import bypass_violations
from timekeeper.core.admission.rules.exhausted import budget_violations
from timekeeper.core.admission.rules.forged import without_marks
from timekeeper.core.admission.rules.modes import split_by_mode
from timekeeper.core.admission.rules.pod_rules import pod_violations
from timekeeper.core.admission.table import (
    StandingsTable,
    effective_policy,
    read_entry,
    read_settings,
    standing,
)
from timekeeper.core.budgets.policy import group_key
from timekeeper.core.json_values import Json
from timekeeper.core.protected import Published
from timekeeper.core.rating.held import cards_text, least_milli
from timekeeper.core.request.request import parse_new
from timekeeper.core.standings import Caps
from timekeeper.core.texts import only_printable
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation

VerdictWord = Literal["admitted", "demoted", "held", "refused", "unjudged", "evicted"]
VERDICTS: tuple[VerdictWord, ...] = get_args(VerdictWord)
MAX_SENTENCE = 500  # characters

# the classes of the chart: a ledger alone reads none
IN_BUDGET, OVER_BUDGET = PriorityClass("gpu-default-priority", 0), PriorityClass("gpu-lower-priority", -5)
_DEFAULT = AdmissionPolicy(
    known=True,
    mode="enforce",
    scheduler_name=names.SCHEDULER,
    in_budget=IN_BUDGET,
    over_budget=OVER_BUDGET,
    unknown_standing="inBudget",
    max_grace_s=600,
    runtime_class="",
    sidecar=None,
    sidecar_images=SidecarImages(""),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What would have happened. ``rule``: the first one that refuses; "" for all else."""

    word: VerdictWord
    rule: str = ""
    sentence: str = ""


ADMITTED = Verdict("admitted")
TOO_MANY = Verdict("unjudged", sentence="Too many pods were created at once to judge them all.")


@dataclass(frozen=True, slots=True)
class AdmissionTerms:
    """A namespace's policy as if it were enforced, and its standing. ``taken``: what earlier pods hold of its
    caps, as `cards_taken` has it."""

    policy: AdmissionPolicy
    standing: Standing
    protect: Published | None = None
    lookahead_ms: int | None = None
    taken: Mapping[str, int] = field(default_factory=dict)

    def standing_of(self, pod: Json, request: GPURequest) -> Standing:
        """The pod's. What is left of the floor is without the pods that are protected now, of which it may
        be one."""
        published, taken = self.protect, 0
        if published is not None and pod["metadata"].get("uid") in published.uids:
            taken = -published.protection.floor
        return protected(self.standing, published, pod, request, taken, self.lookahead_ms)


def cap_subjects(namespace: str, caps: Caps) -> Iterator[tuple[str, int]]:
    """The namespace and its group as keys of budgets, as far as they have `maxGPUs`, with that."""
    for subject, cap in ((namespace, caps.own), (group_key(caps.group), caps.of_group)):
        if cap.total_milli is not None:
            yield subject, cap.total_milli


class CardHolder(NamedTuple):
    """A pod of a namespace with a cap, and what it holds or would hold."""

    namespace: str
    created_ms: int
    milli: int


def cards_taken(
    pods: Iterable[CardHolder], claims: Mapping[str, int], caps_of: Callable[[str], Caps]
) -> Mapping[str, int]:
    """What would be held of each cap, in milli-GPU, by the key of its budget. The oldest pod goes first; one
    that a cap does not allow waits, and smaller ones go. ``claims``: namespace -> what its claims hold."""
    taken: dict[str, int] = defaultdict(int)
    for namespace, milli in claims.items():
        for subject, _ in cap_subjects(namespace, caps_of(namespace)):
            taken[subject] += milli
    for namespace, _, milli in sorted(pods, key=attrgetter("created_ms")):
        limits = tuple(cap_subjects(namespace, caps_of(namespace)))
        if all(taken[subject] + milli <= most for subject, most in limits):
            for subject, _ in limits:
                taken[subject] += milli
    return taken


def terms_of(document: Json, namespace: str, now_ms: int, taken: Mapping[str, int]) -> AdmissionTerms:
    """The terms of the namespace's pods by the standings document, which is that of this moment. Raises
    `standings.UndecodableStandingsError`."""
    settings, default = read_settings(document["settings"]), read_entry(document["default"])
    own = document["namespaces"].get(namespace)
    known = {} if own is None else {namespace: read_entry(own)}
    table = StandingsTable("", now_ms, settings, default, known, now_ms, now_ms)
    policy = effective_policy(_DEFAULT, table, namespace=namespace)
    enforced = replace(
        policy,
        mode="enforce",
        in_budget=_existing(policy.in_budget, IN_BUDGET),
        over_budget=_existing(policy.over_budget, OVER_BUDGET),
    )
    now = standing(table, namespace, 0, now_ms, 0)
    return AdmissionTerms(enforced, now, table.entry_of(namespace).protect, settings.lookahead_ms, taken)


def _existing(known: PriorityClass, shipped: PriorityClass) -> PriorityClass:
    """A class that the document knows no value of has that of the chart."""
    return PriorityClass(known.name, shipped.value) if known.absent else known


def verdict(raw: Json, namespace: str, terms: AdmissionTerms, is_bound: bool = False) -> Verdict | None:
    """The verdict on a new pod; None: it requests no GPU, and would have been left alone. ``is_bound``: a
    scheduler had placed it before it was seen. Refusals count before the gate, and the gate before the
    class."""
    policy = terms.policy
    try:
        pod = without_marks(checked_pod(raw, "pod"), policy)
    except MalformedError as error:
        return Verdict("unjudged", sentence=_cut(str(error)))
    parsed = parse_new(pod, policy.unknown_accelerators, named=policy.accelerators)
    found, _ = split_by_mode(pod_violations(pod, parsed, policy), policy)
    broken = (*found, *bypass_violations(pod, parsed))
    refusing = [violation for violation in broken if not (is_bound and violation.rule == "node-name")]
    if refusing:
        return _refused(refusing)
    if parsed.request is None:
        return None
    now = terms.standing_of(pod, parsed.request)
    if exhausted := budget_violations(namespace, now, parsed.request):
        return _refused(exhausted)
    hold = policy.hold_of(now)
    if hold:
        for_time = hold == "budget" and policy.reserves_declared and declared_time(pod)
        waits = "budget can pay its declared time" if for_time else f"{hold} lets it through"
        return Verdict("held", sentence=f"It would wait behind a gate until the namespace's {waits}.")
    if waits := _waits_for_cards(namespace, parsed.request, terms):
        return Verdict("held", sentence=waits)
    word = class_status(now.status, hold)
    lower = policy.class_of(word)
    if lower != policy.over_budget or keeps_own_class(pod["spec"], lower, policy):
        return ADMITTED
    why = "The namespace has no known standing"
    if word == "OVER_BUDGET":
        why = f"{'The group of the' if now.group else 'The'} namespace has used its GPU budget"
    return Verdict("demoted", sentence=f"{why}: the pod would get priority class {lower.name}.")


def _waits_for_cards(namespace: str, request: GPURequest, terms: AdmissionTerms) -> str:
    """What the pod would wait for where earlier pods leave it too little of a cap; "" where it does not."""
    caps = terms.policy.caps
    for subject, most in cap_subjects(namespace, caps):
        held = terms.taken.get(subject, 0)
        if held + least_milli(request) > most:
            whose = f"namespace {namespace}" if subject == namespace else f"group {caps.group}"
            return (
                f"It would wait until cards are released: the budget of {whose} allows {cards_text(most)} at"
                f" one time (maxGPUs), and earlier pods hold {cards_text(held)}."
            )
    return ""


def _refused(violations: Iterable[Violation]) -> Verdict:
    first, *others = violations
    more = f" ({len(others)} more problem{'s' if len(others) > 1 else ''})" if others else ""
    return Verdict("refused", first.rule, _cut(first.sentence(), MAX_SENTENCE - len(more)) + more)


def _cut(sentence: str, most: int = MAX_SENTENCE) -> str:
    printable = only_printable(sentence)
    return printable if len(printable) <= most else f"{printable[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class LeavingMemory:
    """What would have been done. ``notices``: UID -> the notice that a pod would have; ``gone``: UIDs of pods
    that would not be there any more."""

    evictions: BudgetEvictionMemory
    notices: Mapping[str, EvictionNotice] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def after(self, leaving: BudgetEviction, at_ms: int) -> "LeavingMemory":
        """With one more pod evicted."""
        uid = leaving.pod.uid
        evictions = self.evictions.after(uid, leaving.terms.subject, "evicted", at_ms)
        return replace(self, evictions=evictions, gone=self.gone | {uid})

    def without(self, uids: Iterable[str]) -> "LeavingMemory":
        """With these pods gone, or never admitted: no pod has to leave in their place."""
        return replace(self, gone=self.gone | set(uids))


def leaving(
    pods: Iterable[LedgerPod],
    exhausted: Mapping[str, EvictionTerms],
    memory: LeavingMemory,
    now_ms: int,
    at_ms: int,
    is_protected: Callable[[LedgerPod], bool] = lambda _: False,
) -> tuple[tuple[BudgetEviction, ...], LeavingMemory]:
    """The pods whose eviction is due now, at most one of each account, and what is remembered of the others.
    ``exhausted``: namespace -> terms; ``at_ms``: by a monotonic clock; ``is_protected``: whether the budget
    protects the pod."""
    there = [each for each in pods if each.namespace in exhausted]
    if not there:
        return (), replace(memory, notices={}, gone=frozenset())
    terms = {name: replace(each, is_observed=False) for name, each in exhausted.items()}
    known = {each.uid for each in there}
    noticed = [_noticed(each, memory.notices) for each in there if each.uid not in memory.gone]
    found = due(noticed, terms, memory.evictions, now_ms, at_ms, is_protected)
    changed = {each.pod.uid: each.notice for each in found.changes}
    notices = {uid: each for uid, each in memory.notices.items() if uid in known} | changed
    return found.evictions, replace(memory, notices=notices, gone=memory.gone & known)


def _noticed(pod: LedgerPod, notices: Mapping[str, EvictionNotice]) -> LedgerPod:
    notice = notices.get(pod.uid)
    return replace(pod, evict_after_ms=notice.evict_after_ms if notice else None, delete_after_ms=None)
