"""Messages on device claims, and on bound pods that use them: `kubectl describe` shows them as Events. And
why a claim is not made from its template, as Kubernetes' claim controller says it in the pod's Events.

What claims hold is charged by their sessions, so such pods are none of the ledger's pods.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Event
from typing import Literal
from urllib.parse import urlencode

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.claims.consumers import UNMADE
from timekeeper.accounts.session import Session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.allocation import DeviceClaim
from timekeeper.core.decisions import Decision, Record
from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.violation import first_of
from timekeeper.runtime.api_server import ANSWER_S, Answered, Reply
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.pod_notices import MAX_PODS, BudgetReason, BudgetState, texts_on_pods

ClaimReason = BudgetReason | Literal["ClaimRateAssumed", "ClaimUnused"]
_Named = tuple[str, str]  # name and UID
_MOST_NAMED = 3  # missing pods in a message
_UNMADE = "FailedResourceClaimCreation"


@dataclass(frozen=True, slots=True)
class ClaimNotice:
    """A message about a claim, or a pod that uses one: becomes an Event on it."""

    kind: Literal["ResourceClaim", "Pod"]
    namespace: str
    name: str
    uid: str
    reason: ClaimReason
    message: str
    type: Literal["Normal", "Warning"]

    @property
    def regarding(self) -> dict[str, str]:
        """The object, as an Event names it."""
        version = "v1" if self.kind == "Pod" else "resource.k8s.io/v1"
        where = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        return {"apiVersion": version, "kind": self.kind, **where}


def doubt_notices(opened: Iterable[Session]) -> Iterator[ClaimNotice]:
    """On claims whose rate is not certain, and on the pods that they are reserved for, once their sessions
    open."""
    for session in opened:
        if session.is_claim and session.doubt:
            rate = f"{session.rate_milli / 1000:g}, which is not certain: {session.doubt}"
            message = f"Claim {session.name} is charged at the rate {rate}."
            yield from _on_both(session, "ClaimRateAssumed", message)


def _on_both(session: Session, reason: ClaimReason, message: str) -> Iterator[ClaimNotice]:
    uid = session.owner_uid
    yield ClaimNotice("ResourceClaim", session.namespace, session.name, uid, reason, message, "Warning")
    for each in session.users.split()[:MAX_PODS]:
        uid, _, name = each.partition("/")
        yield ClaimNotice("Pod", session.namespace, name, uid, reason, message, "Warning")


def budget_notices(
    changes: Mapping[str, tuple[BudgetState, Statement]],
    cluster: ClusterState,
    sessions: Iterable[Session],
    settings: BudgetSettings,
    protected: Set[str] = frozenset(),
) -> Iterator[ClaimNotice]:
    """On claims that hold devices, and on bound pods that use claims, of namespaces whose state changed: what
    pods with cards read. ``sessions``: those that run; ``protected``: UIDs of protected pods."""
    made = {name: texts_on_pods(name, *change, settings) for name, change in changes.items()}
    texts = {name: text for name, text in made.items() if text is not None}
    claims, pods = defaultdict[str, list[_Named]](list), defaultdict[str, list[_Named]](list)
    for session in sessions:
        if session.is_claim and not session.is_over and session.namespace in texts:
            claims[session.namespace].append((session.name, session.owner_uid))
    for uid in [uid for namespace in texts for uid in cluster.pods.users.get(namespace, ())]:
        pod = cluster.pods[uid]
        if pod.node and pod.uses.gone_ms is None and not pod.hold.over and pod.charge != "cards":
            pods[pod.namespace].append((pod.name, uid))
    for namespace, text in sorted(texts.items()):
        for name, uid in sorted(claims[namespace])[:MAX_PODS]:
            yield ClaimNotice("ResourceClaim", namespace, name, uid, *text.others)
        for name, uid in sorted(pods[namespace])[:MAX_PODS]:
            yield ClaimNotice("Pod", namespace, name, uid, *text.of(uid, protected))


@dataclass(slots=True)
class OrphanNotices:
    """Each claim that holds devices and that no pod uses is named once."""

    _said: set[str] = field(default_factory=set)  # UIDs

    def notices(self, orphans: Iterable[DeviceClaim]) -> Iterator[ClaimNotice]:
        """On those that are new. ``orphans``: all of them."""
        now = {each.uid: each for each in orphans}
        for uid in now.keys() - self._said:
            claim = now[uid]
            message = (
                f"Claim {claim.name} holds devices, and is reserved for {_no_pod(claim)}. Namespace"
                f" {claim.namespace} pays for them until the claim is deleted, or a pod has used it."
            )
            yield ClaimNotice(
                "ResourceClaim", claim.namespace, claim.name, uid, "ClaimUnused", message, "Warning"
            )
        self._said = set(now)


def _no_pod(claim: DeviceClaim) -> str:
    if not claim.users:
        return "no pod"
    each = [f"{name} (UID {uid})" for uid, _, name in (user.partition("/") for user in claim.users)]
    return f"pods that do not exist or have ended: {first_of(each, _MOST_NAMED)}"


def keep_recording(
    waits: "SimpleQueue[Decision]", call: Callable[..., Reply], record: Record, stop: Event
) -> None:
    """Record each of these decisions, with the controller's reason, until ``stop``. ``call``: the API
    server's. Without an answer the decision stays as it is, and names the Event."""
    while not stop.is_set():
        try:
            record(with_reason(waits.get(timeout=1), call))
        except Empty:
            continue


def with_reason(decision: Decision, call: Callable[..., Reply]) -> Decision:
    """The decision with what the last of these Events on the pod says, such as a quota that is exceeded."""
    which = f"involvedObject.uid={decision.uid},reason={_UNMADE}"
    path = f"/api/v1/namespaces/{decision.namespace}/events?{urlencode({'fieldSelector': which})}"
    reply = call("GET", path, timeout_s=ANSWER_S)
    items = sequence(reply.body.get("items")) if isinstance(reply, Answered) else []
    said = [str(mapping(each).get("message") or "").rstrip(".") for each in items]
    if not said or not said[-1]:
        return decision
    texts = {name: str(text).replace(UNMADE, f": {said[-1]}") for name, text in decision.figures.items()}
    return replace(decision, figures=texts)
