"""What one worker knows and remembers while it answers: the table of standings, its own estimate, the
clock."""

from collections.abc import Callable
from dataclasses import replace

from webhook import verdict
from webhook.estimate import Admitted, cost
from webhook.review import Answer, Review
from webhook.table import Table, agreed, as_before, standing
from webhook.terms import Sidecar, Standing, Terms


class NotReadyError(Exception):
    """The files that a pod is governed with have not been read yet."""


class Admission:
    """Answers reviews with what is known at this moment; nothing here waits for anybody.

    ``table`` gives the last table of standings or None; ``ca`` the PEM text that sidecars shall trust, None
    while it has not been read. For one thread.
    """

    def __init__(
        self,
        flags: Terms,
        table: Callable[[], Table | None],
        ca: Callable[[], str | None],
        now_ms: Callable[[], int],
        stale_after_ms: int,
    ) -> None:
        self._flags, self._table, self._ca = flags, table, ca
        self._now_ms, self._stale_after_ms = now_ms, stale_after_ms
        self._admitted = Admitted()
        self._agreed: tuple[Table | None, str, Terms] | None = None

    def unready(self) -> str:
        """Why no pod can be governed yet; empty where it can. An absent table is no reason."""
        if self._flags.sidecar is not None and self._ca() is None:
            return "the CA bundle for sidecars has not been read yet"
        return ""

    def mutate(self, review: Review) -> Answer:
        """The answer of /mutate. Raises NotReadyError."""
        table = self._table()
        terms = self._terms(table)
        before = verdict.recorded(review, terms)

        def standing_of(namespace: str) -> Standing:
            now_ms = self._now_ms()
            spent = 0 if before else self._admitted.spent(namespace, now_ms)
            now = standing(table, namespace, spent, now_ms, self._stale_after_ms)
            return as_before(now) if before == "OVER_BUDGET" else now

        answer = verdict.mutate(review, standing_of, terms)
        request = verdict.newly_governed(review, answer)
        if request is not None:
            lookahead_ms = table.settings.lookahead_ms if table else None
            self._admitted.add(review.namespace, cost(request, lookahead_ms), self._now_ms())
        return answer

    def validate(self, review: Review) -> Answer:
        """The answer of /validate. Raises NotReadyError."""
        return verdict.validate(review, self._terms(self._table()))

    def _terms(self, table: Table | None) -> Terms:
        """What table, flags and CA agree to; made anew only when one of them has changed."""
        ca = ""
        if self._flags.sidecar is not None:
            read = self._ca()
            if read is None:
                raise NotReadyError(self.unready())
            ca = read
        if self._agreed is None or self._agreed[0] is not table or self._agreed[1] != ca:
            self._agreed = table, ca, self._agree(table, ca)
        return self._agreed[2]

    def _agree(self, table: Table | None, ca: str) -> Terms:
        sidecar = self._flags.sidecar
        trusting = None if sidecar is None else Sidecar(sidecar.image, sidecar.timekeeper_url, ca)
        return agreed(replace(self._flags, sidecar=trusting), table)
