"""The state of one worker: the table of standings, the estimate of its own admissions, the policies derived
from them."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from timekeeper.core.admission.marks import looks_governed
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.protection import cost, protected, takes_of
from timekeeper.core.admission.table import StandingsTable, effective_policy, is_fresh, standing
from timekeeper.core.json_values import Json
from timekeeper.core.values import GPURequest
from timekeeper.core.wire import StandingWord
from webhook.admission import pods
from webhook.standings import AdmissionBurst
from webhook.wire.pod_review import AdmissionAnswer, PodReview

NO_CA = "the CA bundle for sidecars is not loaded yet"


class NotReadyError(Exception):
    """A file that is needed to govern pods is not loaded yet."""


class Reviewer:
    """Answers reviews from memory; nothing here waits.

    ``table`` returns the last table of standings or None; ``ca`` the PEM text that sidecars trust, None
    before it is loaded; ``asked`` whether a poll of the table was attempted. One thread at a time calls
    `mutate`.
    """

    def __init__(
        self,
        flags: AdmissionPolicy,
        table: Callable[[], StandingsTable | None],
        ca: Callable[[], str | None],
        now_ms: Callable[[], int],
        stale_after_ms: int,
        asked: Callable[[], bool] = lambda: True,
    ) -> None:
        self._flags, self._table, self._ca = flags, table, ca
        self._now_ms, self._stale_after_ms, self._asked = now_ms, stale_after_ms, asked
        # what was admitted, and of that what was protected; of pods that look governed apart: second calls
        # count beside the first ones of their pods, and copies count as plain pods do
        self._bursts = tuple((AdmissionBurst(), AdmissionBurst()) for _ in range(2))
        # with the table, the CA and its freshness that they follow from; any thread replaces all of it
        self._policies: tuple[StandingsTable | None, str, bool, dict[str, AdmissionPolicy]] | None = None

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
        """The answer of /mutate. Raises NotReadyError."""
        table = self._table()
        policy = self._policy_of(review.namespace, table)
        is_again = review.operation == "CREATE" and looks_governed(review.pod)
        admitted, taken = self._bursts[is_again]
        entry = table.entry_of(review.namespace) if table else None
        protect, group = (entry.protect, entry.group) if entry else (None, "")
        lookahead_ms = table.settings.lookahead_ms if table else None

        def standing_of(request: GPURequest) -> Standing:
            namespace, now_ms = review.namespace, self._now_ms()
            spent = admitted.spent(namespace, now_ms)
            by_group = admitted.spent(group, now_ms) if group else 0
            now = standing(table, namespace, spent, now_ms, self._stale_after_ms, by_group)
            return protected(now, protect, review.pod, request, taken.spent(namespace, now_ms), lookahead_ms)

        answer = pods.mutate(review, standing_of, policy)
        admission = answer.admission
        counted = admission.counted if admission is not None and not review.dry_run else None
        if admission is not None and counted is not None:
            for account in (review.namespace, group) if group else (review.namespace,):
                admitted.add(account, cost(counted, lookahead_ms), self._now_ms())
            if protect is not None and admission.standing.is_protected:
                taken.add(review.namespace, takes_of(protect, counted, lookahead_ms), self._now_ms())
        return answer

    def beside(self, claims: Iterable[Json], namespace: str) -> "Reviewer":
        """A reviewer with an estimate of its own: it has admitted nothing. ``claims``: claims and templates
        of the namespace that are supposed."""
        flags = replace(self._flags, claims=self._flags.claims.beside(claims, namespace))
        return Reviewer(flags, self._table, self._ca, self._now_ms, self._stale_after_ms)

    def policy_for(self, namespace: str) -> AdmissionPolicy:
        """The policy of the namespace's pods at this moment. Raises NotReadyError."""
        return self._policy_of(namespace, self._table())

    def deciding_group(self, namespace: str) -> str:
        """The key of the group's budget entry if its account determines the namespace's standing, else ""."""
        table = self._table()
        return table.entry_of(namespace).deciding_group if table else ""

    def is_over_budget(self, namespace: str) -> bool:
        """Whether the namespace is over budget by the table alone; true where there is none."""
        table = self._table()
        return table is None or table.entry_of(namespace).standing.status == "OVER_BUDGET"

    def standing_word(self, namespace: str) -> StandingWord:
        """The namespace's standing by the table alone; of "" that of a namespace without an entry."""
        return standing(self._table(), namespace, 0, self._now_ms(), self._stale_after_ms).status

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
        policies, key = known[3], namespace if table is not None and namespace in table.namespaces else ""
        policy = policies.get(key)
        if policy is None:
            sidecar = None if self._flags.sidecar is None else replace(self._flags.sidecar, ca=ca)
            policy = effective_policy(replace(self._flags, sidecar=sidecar), table, fresh, key)
            policies[key] = policy
        return policy
