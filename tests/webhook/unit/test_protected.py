"""New pods that `protect` of their namespace's budget selects, while the budget is spent."""

from typing import Any

import orjson
import pytest

from tests.runtime.lines import into
from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.worlds import POLICY, admitted, half, patched, review, review_of
from tests.worlds import Json
from timekeeper.core.standings import UndecodableStandingsError
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import simulation_call
from webhook.standings import decode
from webhook.wire.pod_review import AdmissionAnswer

SERVING = {"tier": "serving"}


def protect(left: int = 1_000, **fields: Any) -> Json:
    """Two cards of pods with a label, of which so much is left."""
    selects = {"labels": SERVING, "owners": [], "cards": 2_000, "amount": None}
    return selects | {"left": left, "uids": [], "turns": False} | fields


class World:
    """One worker with a clock that is turned by hand."""

    def __init__(self, **fields: Any) -> None:
        self.now_ms, lookahead_ms = 0, fields.pop("lookahead_ms", 600_000)
        self.document = standings(
            {"lookaheadMs": lookahead_ms}, team_a=entry(**{"standing": "OVER_BUDGET"} | fields)
        )
        self.reads_table(0)
        self.reviewer = Reviewer(POLICY, lambda: self.table, lambda: "ca", lambda: self.now_ms, 30_000)

    def reads_table(self, at_ms: int) -> None:
        """A further table says the same, of a tick at this moment."""
        self.now_ms = at_ms
        document = {**self.document, "generated": self.document["generated"] + at_ms}
        self.table = decode(orjson.dumps(document), "", at_ms)

    def create(self, raw: Json) -> AdmissionAnswer:
        return self.reviewer.mutate(review(raw))


def serving(labels: Json = SERVING, **metadata: Any) -> Json:
    """A pod of half a card with these labels."""
    raw = admitted(half())
    return {**raw, "metadata": {**raw["metadata"], "labels": labels, **metadata}}


def outcome(answer: AdmissionAnswer) -> str:
    """The standing that is written, how the pod is held, or that it is refused."""
    return answer.verdict if answer.refusal else " ".join(answer.audit.values())


@pytest.mark.parametrize("on_exhausted", ["deny", "hold", "evict", "reclaim", "deprioritize"])
def test_a_protected_pod_is_in_budget_and_neither_held_nor_refused(on_exhausted: str) -> None:
    world = World(onExhausted=on_exhausted, protect=protect())
    raw = serving()

    answer = world.create(raw)

    after = patched(raw, list(answer.operations))
    assert outcome(answer) == "IN_BUDGET true"
    assert after["spec"]["priorityClassName"] == POLICY.in_budget.name
    assert "schedulingGates" not in after["spec"]
    assert after["metadata"]["annotations"]["bursar.dev/standing"] == "IN_BUDGET"
    assert answer.warnings == (
        "Namespace team-a has no GPU budget left for others. This pod is protected: it is in budget, because "
        "protect selects it and its floor is not used up.",
    )
    assert outcome(world.create(serving({"tier": "batch"}))) == (
        {"deny": "refused", "hold": "OVER_BUDGET budget", "evict": "OVER_BUDGET budget"}.get(
            on_exhausted, "OVER_BUDGET"
        )
    )


def test_no_more_is_admitted_than_the_floor_has_room_for_also_between_two_tables() -> None:
    world = World(protect=protect(left=1_200))

    assert [outcome(world.create(serving())) for _ in range(3)] == [
        "IN_BUDGET true",
        "IN_BUDGET true",
        "OVER_BUDGET",
    ]
    world.reads_table(2_000)
    assert outcome(world.create(serving())) == "IN_BUDGET true"


def test_of_a_floor_of_hours_a_pod_takes_what_it_uses_within_the_lookahead() -> None:
    half_an_hour: Json = {"cards": None, "amount": 10**12, "left": 500 * 600_000 * 2}
    world = World(protect=protect(**half_an_hour))

    assert [outcome(world.create(serving())) for _ in range(3)] == [
        "IN_BUDGET true",
        "IN_BUDGET true",
        "OVER_BUDGET",
    ]


def test_a_pod_that_uses_nothing_within_the_lookahead_takes_something_of_the_floor_all_the_same() -> None:
    world = World(lookahead_ms=0, protect=protect(cards=None, amount=10**12, left=2))

    assert [outcome(world.create(serving())) for _ in range(3)] == [
        "IN_BUDGET true",
        "IN_BUDGET true",
        "OVER_BUDGET",
    ]


def test_a_second_call_for_the_pod_leaves_out_what_the_first_took() -> None:
    world = World(protect=protect(left=500))
    raw = serving()
    after = patched(raw, list(world.create(raw).operations))
    changed = {
        **after,
        "metadata": {**after["metadata"], "annotations": {**after["metadata"]["annotations"], "x": "y"}},
    }

    assert world.create(changed).operations == ()
    assert outcome(world.create(serving())) == "OVER_BUDGET"


def test_a_controller_selects_and_a_deployments_pod_is_the_deployments() -> None:
    world = World(protect=protect(labels={}, owners=["Deployment"]))
    owner = {"kind": "ReplicaSet", "name": "web-5d", "controller": True, "apiVersion": "apps/v1", "uid": "u"}

    deployed = serving({"pod-template-hash": "5d"}, ownerReferences=[owner])
    assert outcome(world.create(deployed)) == "IN_BUDGET true"
    assert outcome(world.create(serving({}, ownerReferences=[owner]))) == "OVER_BUDGET"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"standing": "IN_BUDGET", "onExhausted": "hold", "hold": "budget"}, "IN_BUDGET true"),
        ({"standing": "IN_BUDGET", "onExhausted": "hold"}, "IN_BUDGET"),
        ({"standing": "UNLIMITED", "remaining": None}, "UNLIMITED"),
        ({"onExhausted": "hold", "hold": "budget", "protect": protect(turns=True)}, "IN_BUDGET turn true"),
        ({"standing": "IN_BUDGET", "remaining": 0, "protect": protect(left=0)}, "IN_BUDGET"),
    ],
)
def test_it_does_not_wait_for_its_budget_but_for_its_turn(fields: Json, expected: str) -> None:
    assert outcome(World(**{"protect": protect()} | fields).create(serving())) == expected


def test_a_standing_that_is_unknown_stays_unknown() -> None:
    world = World(validUntil=1, protect=protect())

    assert outcome(world.create(serving())) == "UNKNOWN"


def test_simulated_pods_take_their_parts_of_the_floor_and_of_no_other_simulation() -> None:
    world = World(onExhausted="deny", protect=protect(left=1_200))
    body = {"reviews": [review_of(serving(), dryRun=True)] * 3}

    for _ in range(2):
        answer = simulation_call(world.reviewer, into([]))(orjson.dumps(body))

        assert isinstance(answer.body, bytes)
        pods = orjson.loads(answer.body)["answers"]
        assert [(pod["standing"], pod["protected"], bool(pod["refusal"])) for pod in pods] == [
            ("IN_BUDGET", True, False),
            ("IN_BUDGET", True, False),
            ("", False, True),
        ]
    assert outcome(world.create(serving())) == "IN_BUDGET true"


@pytest.mark.parametrize("spoilt", [{"left": "x"}, {"cards": "2"}, 5])
def test_a_table_with_another_form_is_refused_whole(spoilt: Any) -> None:
    raw = protect(**spoilt) if isinstance(spoilt, dict) else spoilt

    with pytest.raises(UndecodableStandingsError):
        World(protect=raw)
