"""Evictions that a webhook, a policy or a missing right refuses: which pods stay for that, since when."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from timekeeper.accounts.exhaustion.evictions import MOST_VETO_MS
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.usage import figures_of_waste
from timekeeper.core.findings import RoleFinding
from timekeeper.core.kube.eviction import is_refused_for_good, is_webhooks

FRESH_MS = 1_200_000  # longer than between two attempts at one pod


@dataclass(frozen=True, slots=True)
class Veto:
    """Of one pod's eviction: its first refusal, its last, and the refuser's words."""

    since_ms: int
    last_ms: int
    sentence: str

    def rests(self, now_ms: int) -> bool:
        """Whether it is not tried again: for as long as it has been refused."""
        return now_ms - self.last_ms < min(self.last_ms - self.since_ms, MOST_VETO_MS)


Vetoes = dict[str, Veto]  # by UID; one thread writes, and others copy


def is_veto(error: str) -> bool:
    """Whether the answer, a status and a message, is no state of the cluster but somebody's refusal."""
    status, _, message = error.partition(" ")
    if not status.isdecimal():
        return False
    return is_refused_for_good(int(status)) or is_webhooks(int(status), message)


def noted(before: Veto | None, sentence: str, now_ms: int) -> Veto:
    """After one more refusal."""
    if before is None or now_ms - before.last_ms > FRESH_MS:
        return Veto(now_ms, now_ms, sentence)
    return replace(before, last_ms=now_ms, sentence=sentence)


def findings(
    vetoes: Vetoes, charged: Callable[[str], tuple[LedgerPod, int] | None], now_ms: int
) -> Iterator[RoleFinding]:
    """What they cost. ``charged``: the pod of a UID and its rate."""
    staying = [
        (veto, *found)
        for uid, veto in vetoes.copy().items()
        if now_ms - veto.last_ms <= FRESH_MS and (found := charged(uid)) is not None
    ]
    if staying:
        amount = sum(rate_milli * (now_ms - veto.since_ms) for veto, _, rate_milli in staying)
        pods = [f"{pod.namespace}/{pod.name}" for _, pod, _ in staying]
        yield RoleFinding("vetoed-evictions", figures_of_waste(pods, amount, staying[0][0].sentence))
