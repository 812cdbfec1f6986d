"""Why a claim is not made is what the claim controller says of it; without an answer the record names the
Event."""

from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_held_claims import waits
from tests.timekeeper.worlds import T0
from timekeeper.accounts.claims.consumers import with_use
from timekeeper.accounts.decisions.sentences import sentence, waits_for
from timekeeper.core.decisions import Decision
from timekeeper.runtime.api_server import Answered, Lost, Reply
from timekeeper.settler.claim_notices import keep_recording, with_reason
from timekeeper.settler.pod_notices import obstacle_decision

QUOTA = 'PodResourceClaim c: resourceclaims.resource.k8s.io "p-c-x" is forbidden: exceeded quota: none'
NONE = "none is made from ResourceClaimTemplate it"
NAMED = f"{NONE}; the pod's Events say why (FailedResourceClaimCreation)"


def decision() -> Decision:
    using = with_use(waits(names=("",)), None)
    assert using is not None
    return obstacle_decision(using, using.uses.obstacle, T0)


class Server:
    """An API server with this answer; ``asked``: the paths."""

    def __init__(self, reply: Reply) -> None:
        self.reply, self.asked = reply, list[str]()

    def call(self, method: str, path: str, **_: Any) -> Reply:
        self.asked.append(f"{method} {path}")
        return self.reply


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Answered(200, {"items": [{"message": "old"}, {"message": f"{QUOTA}."}]}), f"{NONE}: {QUOTA}"),
        (Answered(200, {"items": []}), NAMED),
        (Answered(200, {"items": [{}]}), NAMED),
        (Answered(403, {"message": "forbidden"}), NAMED),
        (Lost("no answer"), NAMED),
    ],
)
def test_a_pod_whose_claim_is_not_made_says_what_its_controller_says(reply: Reply, why: str) -> None:
    server = Server(reply)

    found = with_reason(decision(), server.call)

    assert sentence(found) == f"Admitted at {iso(T0).split('.')[0].rstrip('Z')}Z; waits for its claim: {why}."
    assert waits_for(found.figures) == [f"waits for its claim: {why}"]
    assert server.asked == [
        "GET /api/v1/namespaces/team-a/events?fieldSelector="
        "involvedObject.uid%3Duid-p%2Creason%3DFailedResourceClaimCreation"
    ]


def test_it_is_recorded_until_the_end() -> None:
    queue, stop, recorded = SimpleQueue[Decision](), Event(), list[Decision]()
    queue.put(decision())

    def record(said: Decision) -> None:
        recorded.append(said)
        stop.set()

    keep_recording(queue, Server(Answered(200, {"items": [{"message": QUOTA}]})).call, record, stop)

    assert [QUOTA in sentence(said) for said in recorded] == [True]
