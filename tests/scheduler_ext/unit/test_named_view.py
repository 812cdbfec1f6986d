"""Cards with named resources, as people are shown them and as the timekeeper charges them."""

import json

import pytest

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.snapshot.allocation import uses_of
from tests.scheduler_ext.reserving import NOW_MS
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.unit.test_gas import INTEL, intel_node, wants
from tests.scheduler_ext.worlds import asking, bound, read, rebuilt, request_of
from timekeeper.accounts.pods import LedgerPod, decode_request, encode_request, read_pod
from timekeeper.accounts.reserved import open_reserved
from timekeeper.accounts.session import open_session
from timekeeper.api.resources.bindings import read_bindings
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.reservation import Reservation, condition_of
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.request.inventory import read_cards
from timekeeper.core.request.request import canonical
from timekeeper.core.values import Card, Placement
from timekeeper.core.wire import binding_asks
from timekeeper.runtime.http.problem_details import Problem

NODE = intel_node(cards=2, millicores=1000, tiles=2)
RAW = asking(wants(i915=2, millicores=800, tiles=2))
NAMED = {f"{INTEL}i915": 1, f"{INTEL}millicores": 400, f"{INTEL}tiles": 1}


def test_the_map_shows_the_largest_part_of_a_cards_resources(running: Stepped) -> None:
    answer = fit(request_of(RAW), rebuilt([NODE], []).node("n"))
    assert isinstance(answer, Placement)
    devices = written_for(read(RAW), request_of(RAW), answer, "n", 7, family="gas").annotations
    running.put_node(NODE)
    running.put_pod(bound(RAW, "n", devices["bursar.dev/devices"]))

    for card in running.posted()["nodes"]["n"]["cards"]:
        assert card["used_share_milli"] == 500
        assert [pod["share_milli"] for pod in card["pods"]] == [500]


@pytest.mark.parametrize(
    ("unit_costs", "rate"),
    [((), 1000), (((f"{INTEL}tiles", 2 * 10**11),), 800), (((f"{INTEL}tiles", 0),), 800)],
)
def test_extender_and_ledger_agree_on_what_a_pod_takes_and_the_ledger_charges_the_costliest(
    unit_costs: tuple[tuple[str, int], ...], rate: int
) -> None:
    answer = fit(request_of(RAW), rebuilt([NODE], []).node("n"))
    assert isinstance(answer, Placement)
    written = written_for(read(RAW), request_of(RAW), answer, "n", 7, family="gas").annotations
    raw = bound(RAW, "n", written["bursar.dev/devices"])
    pod, cards = read_pod(raw), read_cards(NODE) or ()
    assert isinstance(pod, LedgerPod)

    opened = open_session(pod, NodeCards(cards), BudgetSettings(unit_costs=unit_costs, charge_by="memory"), 0)

    assert (opened.doubt, opened.rate_milli, opened.requested_milli) == (None, rate, 1000)
    uses = uses_of(rebuilt([NODE], [raw]).node("n").allocations)
    assert {uuid: dict(use.resources) for uuid, use in uses.items()} == {"card0": NAMED, "card1": NAMED}
    assert decode_request(encode_request(pod.request)).asks == pod.request.asks


def test_a_request_is_estimated_by_cards_that_have_its_resources_alone() -> None:
    request, cards = request_of(RAW), (*(read_cards(NODE) or ()), Card("GPU-0", 0, "A100", 80_000))

    rating = rated(Demand(request=request), NodeCards(cards), BudgetSettings())

    assert (rating.rate_milli, rating.requested.share_milli) == (1000, 1000)
    assert json.loads(canonical(request))["main"]["resources"] == NAMED


def test_a_reported_binding_has_its_resources_and_a_wrong_one_is_refused() -> None:
    request = request_of(RAW)
    part = {"uuid": "card0", "index": 0, "share_milli": 0, "memory_mib": 0}
    devices = json.dumps({"version": 1, "containers": {"main": [part]}})
    wrongs: list[object] = [[], {"a": -1}, {"a": 2**63}, {"a": 0.5}, {str(at): 1 for at in range(65)}]

    def body(**ask: object) -> bytes:
        asks = [{**binding_asks(request)[0], **ask}]
        named = {"uid": "u", "namespace": "a", "pod": "p", "node": "n", "dialect": "gas", "devices": devices}
        binding = {**named, "age_ms": 0, "grace_ms": 0, "asks": asks}
        return json.dumps({"version": 1, "bindings": [binding]}).encode()

    (read,) = read_bindings(body(), 0)

    assert read.request.asks == request.asks
    for wrong in wrongs:
        with pytest.raises(Problem) as refused:
            read_bindings(body(resources=wrong), 0)
        assert refused.value.where.startswith("bindings[0].asks[0].resources")


def test_a_reservation_keeps_amounts_and_tiles_from_other_pods_and_is_charged_as_the_pod_would_be() -> None:
    answer = fit(request_of(RAW), rebuilt([NODE], []).node("n"))
    assert isinstance(answer, Placement)
    condition = condition_of(Reservation("n", answer, NOW_MS, NOW_MS + 60_000, free_ms=NOW_MS))
    waiting = {**RAW, "status": {"phase": "Pending", "conditions": [condition]}}

    node = rebuilt([NODE], [waiting], NOW_MS).node("n")
    pod = read_pod(waiting)

    assert [dict(use.resources) for use in uses_of(node.allocations).values()] == [NAMED, NAMED]
    other = fit(request_of(asking(wants(i915=2, tiles=2), name="other")), node)
    assert isinstance(other, Placement)
    assert [part.tiles for _, parts in (*answer.containers, *other.containers) for part in parts] == [
        (0,),
        (0,),
        (1,),
        (1,),
    ]
    assert isinstance(pod, LedgerPod)
    held = open_reserved(pod, read_cards(NODE) or (), BudgetSettings(), NOW_MS)
    assert held is not None
    assert held.rate_milli == 1000
