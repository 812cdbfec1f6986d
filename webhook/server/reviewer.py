"""The state of one worker: the table of standings, the estimate of its own admissions, the policies derived
from them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

from timekeeper.core.admission.marks import looks_governed
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.protection import cost, protected, takes_of
from timekeeper.core.admission.rules.exhausted import budget_violations
from timekeeper.core.admission.table import StandingsTable, effective_policy, is_fresh, standing
from timekeeper.core.json_values import Json
from timekeeper.core.protected import Published
from timekeeper.core.values import GPURequest
from timekeeper.core.wire import StandingWord
from webhook.admission import pods
from webhook.admission.answers import refusal, with_causes
from webhook.standings import Sums, WorkerCounts
from webhook.wire.pod_review import AdmissionAnswer, PodReview

# by namespace, "" for those without an entry, and whether the cluster chooses its users
_Policies = tuple[StandingsTable | None, str, bool, dict[tuple[str, bool], AdmissionPolicy]]

NO_CA = "the CA bundle for sidecars is not loaded yet"


class NotReadyError(Exception):
    """A file that is needed to govern pods is not loaded yet."""


class Reviewer:
    """Answers reviews from memory; nothing here waits.

    ``table`` returns the last table of standings or None; ``ca`` the PEM text that sidecars trust, None
    before it is loaded; ``asked`` whether a poll of the table was attempted; ``chooses_users`` whether the
    cluster chooses the users of a namespace's pods. One thread at a time calls `mutate` and `admitted`.
    """

    def __init__(
        self,
        flags: AdmissionPolicy,
        table: Callable[[], StandingsTable | None],
        ca: Callable[[], str | None],
        now_ms: Callable[[], int],
        stale_after_ms: int,
        asked: Callable[[], bool] = lambda: True,
        chooses_users: Callable[[str], bool | None] = lambda _namespace: False,
    ) -> None:
        self._flags, self._table, self._ca = flags, table, ca
        self._now_ms, self._stale_after_ms, self._asked = now_ms, stale_after_ms, asked
        self._chooses_users = chooses_users
        self._counts, self._numbers = WorkerCounts(), count()
        # with the table, the CA and its freshness that they follow from; any thread replaces all of it
        self._policies: _Policies | None = None

    def unready(self) -> str:
        """Why this worker is not ready; empty where it is.

        Ready once a poll of the standings was attempted, even if it failed. Before that a namespace's own
        settings would not apply to its first pods.
        """
        if not self._asked():
            return "no poll of the standings was attempted yet"
        if self._flags.sidecar is not None and self._ca() is None:
            return NO_CA
        return ""

    def mutate(self, review: PodReview) -> AdmissionAnswer:
        """The answer of /mutate. Raises NotReadyError.

        By what was counted it chooses class and hold, and refuses nothing. A call with marks, which is the
        second for a pod or of a copy, is compared with such calls alone: its first one is among the others.
        """
        table, counts, namespace = self._table(), self._counts, review.namespace
        policy = self._policy_of(namespace, table)
        counts.forget(table, self._now_ms())
        own = counts.marked if review.operation == "CREATE" and looks_governed(review.pod) else counts.plain

        def standing_of(request: GPURequest) -> Standing:
            (spent, taken), (again, taken_again) = own.spent(namespace), counts.marked.spent(namespace)
            sums = max(spent, again), max(taken, taken_again)
            return self._standing(review, table, request, sums, denies=False)

        answer = pods.mutate(review, standing_of, policy)
        admission = answer.admission
        if not review.dry_run and admission is not None and admission.counted is not None:
            adds = _sums_of(table, namespace, admission.counted, admission.standing)
            own.add(namespace, next(self._numbers), *adds, self._now_ms())
        return answer

    def admitted(self, review: PodReview, answer: AdmissionAnswer, name: str = "") -> AdmissionAnswer:
        """The answer to a new pod, which is counted by its name where it is admitted: a refusal where those
        admitted before it use up a budget with `deny`. ``name``: in place of its own."""
        request = answer.admission.counted if answer.admission is not None else None
        if request is None:
            return answer
        table, counts = self._table(), self._counts
        counts.forget(table, self._now_ms())
        # an API server has named it by now
        name = name or review.pod["metadata"].get("name") or review.name or review.uid
        sums = counts.admitted.spent(review.namespace, name)
        now = self._standing(review, table, request, sums, denies=True)
        if now.by_estimate and not now.is_protected:
            exhausted = budget_violations(review.namespace, now, request)
            refused = with_causes(
                refusal(exhausted, (), self._policy_of(review.namespace, table), False), review
            )
            return replace(refused, warnings=answer.warnings, rules=(*refused.rules, *answer.rules))
        if not review.dry_run:
            adds = _sums_of(table, review.namespace, request, now)
            counts.admitted.add(review.namespace, name, *adds, self._now_ms())
        return answer

    def beside(self, claims: Iterable[Json], namespace: str) -> "Reviewer":
        """A reviewer with an estimate of its own: it has admitted nothing. ``claims``: claims and templates
        of the namespace that are supposed."""
        flags = replace(self._flags, claims=self._flags.claims.beside(claims, namespace))
        times = self._now_ms, self._stale_after_ms
        return Reviewer(flags, self._table, self._ca, *times, chooses_users=self._chooses_users)

    def policy_for(self, namespace: str) -> AdmissionPolicy:
        """The policy of the namespace's pods at this moment. Raises NotReadyError."""
        return self._policy_of(namespace, self._table())

    def deciding_group(self, namespace: str) -> str:
        """The key of the group's budget entry if its account determines the namespace's standing, else ""."""
        table = self._table()
        return table.entry_of(namespace).standing.group if table else ""

    def is_over_budget(self, namespace: str) -> bool:
        """Whether the namespace is over budget by the table alone; true where there is none."""
        table = self._table()
        return table is None or table.entry_of(namespace).standing.status == "OVER_BUDGET"

    def standing_word(self, namespace: str) -> StandingWord:
        """The namespace's standing by the table alone; of "" that of a namespace without an entry."""
        return standing(self._table(), namespace, 0, self._now_ms(), self._stale_after_ms).status

    def holds(self, namespace: str) -> bool:
        """Whether its new pods are held for its budget, by the table alone. Raises NotReadyError."""
        now = standing(self._table(), namespace, 0, self._now_ms(), self._stale_after_ms)
        return self.policy_for(namespace).hold_of(now) == "budget"

    def preempting(self, within: str) -> list[str]:
        """The classes of the table by which kube-scheduler preempts, up to this one ("": the cluster's of
        pods in budget)."""
        table = self._table()
        known = {known.name: known for known in table.settings.classes} if table else {}
        most = known[within].value if within in known else table.settings.in_budget.value if table else None
        preempts = (known for known in known.values() if known.preemption_policy == "PreemptLowerPriority")
        return sorted(known.name for known in preempts if most is None or (known.value or 0) <= most)

    def _standing(
        self, review: PodReview, table: StandingsTable | None, request: GPURequest, sums: Sums, denies: bool
    ) -> Standing:
        """The pod's, where so much is counted of its namespace and of the floor there."""
        protect, lookahead_ms = _terms(table, review.namespace)
        now = standing(table, review.namespace, sums[0], self._now_ms(), self._stale_after_ms, denies)
        return protected(now, protect, review.pod, request, sums[1], lookahead_ms)

    def _policy_of(self, namespace: str, table: StandingsTable | None) -> AdmissionPolicy:
        """The namespace's policy from table, flags and CA, cached until one of them changes or the table
        ages."""
        ca = ""
        if self._flags.sidecar is not None:
            read = self._ca()
            if read is None:
                raise NotReadyError(NO_CA)
            ca = read
        fresh, known = is_fresh(table, self._now_ms()), self._policies
        if known is None or known[0] is not table or known[1] != ca or known[2] is not fresh:
            self._policies = known = table, ca, fresh, {}
        key = namespace if table is not None and namespace in table.namespaces else ""
        policies, chooses = known[3], bool(self._chooses_users(namespace))
        policy = policies.get((key, chooses))
        if policy is None:
            sidecar = self._flags.sidecar
            if sidecar is not None:
                sidecar = replace(sidecar, ca=ca, has_own_user=sidecar.has_own_user and not chooses)
            policy = effective_policy(replace(self._flags, sidecar=sidecar), table, fresh, key)
            policies[key, chooses] = policy
        return policy


def _sums_of(table: StandingsTable | None, namespace: str, request: GPURequest, now: Standing) -> Sums:
    protect, lookahead_ms = _terms(table, namespace)
    takes = takes_of(protect, request, lookahead_ms) if protect and now.is_protected else 0
    return cost(request, lookahead_ms), takes


def _terms(table: StandingsTable | None, namespace: str) -> tuple[Published | None, int | None]:
    """Which pods the namespace protects, and the lookahead."""
    return (table.entry_of(namespace).protect, table.settings.lookahead_ms) if table else (None, None)
