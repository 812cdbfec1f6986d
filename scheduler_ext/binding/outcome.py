"""How a bind ends, as values. They become text only in the answer to kube-scheduler. And what an API server's
reply to a Binding means."""

from dataclasses import dataclass
from enum import StrEnum

from scheduler_ext.fit import refusal
from timekeeper.runtime.api_server import Answered, Lost, Reply


class NotBoundReason(StrEnum):
    """Why a pod was not bound: the key for code, metrics and logs; the sentence is for people."""

    NOT_READY = "not-ready"  # the cache is not complete yet
    FOLLOWER = "follower"  # another replica leads
    GONE = "gone"  # no pod with this UID exists
    NOT_SHOWN = "not-shown"  # the watch has not shown the pod's present version
    ELSEWHERE = "elsewhere"  # the pod is bound to another node
    UNSETTLED = "unsettled"  # an earlier Binding to another node may still succeed
    SPENT = "spent"  # the namespace's budget is spent and says `deny`, `evict` or `hold`
    GANG = "gang"  # no cards are reserved on the node for the pod and all of its gang
    CAPPED = "capped"  # a cap of the namespace or group does not allow the pod's cards now
    MALFORMED = "malformed"  # the GPU request cannot be read
    TOO_LARGE = "too-large"  # the store takes no change of the pod
    NO_FIT = "no-fit"  # the node has too little free for the request now
    NODE_LOCKED = "node-locked"  # the node's plugin hands out the devices of another pod
    CARDS_CHANGED = "cards-changed"  # the node's cards differ from those assumed for the pod
    API_SERVER = "api-server"  # the API server refused the Binding, or did not answer


@dataclass(frozen=True, slots=True)
class Bound:
    """The pod is bound to the requested node."""


@dataclass(frozen=True, slots=True)
class NotBound:
    """The pod is not bound to the requested node, as far as this replica knows."""

    reason: NotBoundReason
    sentence: str


Outcome = Bound | NotBound

BOUND = Bound()
GONE = NotBound(NotBoundReason.GONE, "the pod is gone")
NOT_SHOWN = NotBound(NotBoundReason.NOT_SHOWN, "the watch has not shown the pod's present version yet")
FOLLOWER = NotBound(NotBoundReason.FOLLOWER, "this extender is not the leader; another replica binds")
TOO_LARGE = NotBound(
    NotBoundReason.TOO_LARGE,
    "the pod is too large for the API server's store: remove labels or annotations, or delete the pod",
)
CARDS_CHANGED = NotBound(
    NotBoundReason.CARDS_CHANGED, "the node's cards differ from those that were assumed for the pod"
)
GANG = NotBound(NotBoundReason.GANG, refusal.GANG_WAITS.sentence)


def bound_to(node: str, wanted: str) -> Outcome:
    """The outcome for a pod that is bound to ``node`` already."""
    if node == wanted:
        return BOUND
    return NotBound(NotBoundReason.ELSEWHERE, f"the pod is already bound to node {node}")


def refused(why: str) -> NotBound:
    """The API server's refusal, or its silence, in its own words."""
    return NotBound(NotBoundReason.API_SERVER, why)


def sentence(outcome: Outcome) -> str:
    """kube-scheduler's Error field: "" if the pod is bound."""
    return "" if isinstance(outcome, Bound) else outcome.sentence


def is_unknown(reply: Reply) -> bool:
    """True if the call may have had its effect, or not."""
    return isinstance(reply, Lost) or (isinstance(reply, Answered) and reply.status >= 500)


def is_conflict(reply: Reply) -> bool:
    """True if the API server answered 409."""
    return isinstance(reply, Answered) and reply.status == 409
