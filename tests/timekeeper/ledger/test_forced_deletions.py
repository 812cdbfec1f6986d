"""A pod with a card and a pod with a claim, deleted by force at one moment: both are charged by one rule.

The times are computed by hand: 15 s where the node's kubelet hears of it and ends such pods (1.31), the grace
period else, and whatever the node's agent lists.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.snapshot import EMPTY, expire, node_updated, pod_deleted, pod_updated
from tests.timekeeper.claims import allocated, device_claim
from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_claims import CLAIMS, SLICE, held, pod, sound
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node

GRACE = 10 * MINUTE
CARD = gpu_pod("card", started_ms=T0 + MINUTE, grace_s=GRACE // SECOND)
NEW = "v1.31.0-eks-5e0fdde"


def user() -> Json:
    """The pod with the claim; it is as old as the other."""
    body = pod("p", grace_s=GRACE // SECOND)
    body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    return body


def a_node(version: str, *listed: str, agent: bool = False, boot: str = "b1") -> Json:
    """A node whose kubelet is of this version, and whose agent lists these pods, if there is one."""
    raw = node()
    raw["status"] = {"nodeInfo": {"bootID": boot, "kubeletVersion": version}}
    if agent:
        pods: dict[str, Any] = {uid: [] for uid in listed}
        words = {"version": 1, "boot": boot, "known": True, "closed": "", "pods": pods}
        raw["metadata"]["annotations"]["bursar.dev/holders"] = json.dumps(words)
    return raw


def begin(town: Town, first: Json) -> None:
    """Both hold their card or device for a minute."""
    town.begin(SLICE, (CLAIMS, device_claim()), ("nodes", first), ("leases", lease(T0)), ("pods", pod(on="")))
    town.clock.turn(MINUTE)
    town.hear("pods", CARD)
    town.hear("pods", user())
    town.change(CLAIMS, held())
    town.clock.turn(MINUTE)
    town.node_heard()
    town.quiet(CLAIMS)
    town.tick()


def force(town: Town) -> None:
    """Both are deleted by force, and Kubernetes frees the claim in the next second."""
    for raw in (CARD, user()):
        last = raw | {"metadata": raw["metadata"] | {"deletionTimestamp": iso(town.clock())}}
        last["metadata"]["deletionGracePeriodSeconds"] = 0
        town.hear("pods", last, deleted=True)
    town.tick()
    town.change(CLAIMS, device_claim())


def passes(town: Town, ms: int, heard: bool = True) -> None:
    """In steps of five seconds, and after a minute of a minute."""
    for step in (5 * SECOND,) * 12 + (MINUTE,) * (ms // MINUTE - 1) if ms >= MINUTE else (ms,):
        town.clock.turn(step)
        if heard:
            town.node_heard()
        town.quiet(CLAIMS)
        town.tick()


def nothing_more(town: Town) -> None:
    passes(town, 11 * MINUTE)


def its_lease_ends(town: Town) -> None:
    passes(town, 11 * MINUTE, heard=False)


def its_lease_ends_for_a_minute(town: Town) -> None:
    passes(town, MINUTE, heard=False)
    nothing_more(town)


def its_agent_lists_both_for_a_minute(town: Town) -> None:
    passes(town, MINUTE)
    town.change("nodes", a_node(NEW, agent=True))
    nothing_more(town)


def it_boots_anew_after_five_seconds(town: Town) -> None:
    passes(town, 5 * SECOND)
    town.change("nodes", a_node(NEW, agent=True, boot="b2"))
    nothing_more(town)


def another_settler_starts(town: Town) -> None:
    town.resume()
    nothing_more(town)


BOTH_LISTED = ("uid-card", "uid-p")
CASES: dict[str, tuple[Json, Callable[[Town], None], int]] = {
    "a kubelet that ends them": (a_node(NEW), nothing_more, 15 * SECOND),
    "an agent that has not listed them": (a_node(NEW, agent=True), nothing_more, 15 * SECOND),
    "an older kubelet": (a_node("v1.30.9"), nothing_more, GRACE),
    "no kubelet": (a_node("kwok-v0.8.0"), nothing_more, GRACE),
    "a version that is not said": (a_node(""), nothing_more, GRACE),
    "a kubelet that is heard no more": (a_node(NEW), its_lease_ends, GRACE),
    "a kubelet that is back after a minute": (a_node(NEW), its_lease_ends_for_a_minute, 70 * SECOND),
    "an agent that lists them": (
        a_node("v1.30.9", *BOTH_LISTED, agent=True),
        its_agent_lists_both_for_a_minute,
        MINUTE,
    ),
    "another boot": (a_node("v1.30.9", agent=True), it_boots_anew_after_five_seconds, 5 * SECOND),
    "a settler that ends in these seconds": (a_node(NEW), another_settler_starts, GRACE),
}


def charged_until(town: Town) -> dict[str, int]:
    """Until when each is charged, from the rate and the amount."""
    found = town.get("/v1/sessions").get_json()["sessions"]
    return {
        each["kind"]: each["bound"] + (each["posted"] + each["pending"]) // each["rateMilli"]
        for each in found
    }


@pytest.mark.parametrize("case", CASES)
def test_card_and_device_are_charged_alike(town: Town, case: str) -> None:
    first, then, runs_on_ms = CASES[case]
    begin(town, first)
    at_ms = town.clock()

    force(town)
    then(town)

    assert charged_until(town) == {"pod": at_ms + runs_on_ms, "claim": at_ms + runs_on_ms}
    assert sound(town)


def test_a_kubelet_that_has_begun_with_a_longer_deletion_goes_on_with_it(town: Town) -> None:
    """A second deletion without grace shortens nothing: so a real one of 1.37 does."""
    begin(town, a_node(NEW))
    for raw in (CARD, user()):
        asked = {"deletionTimestamp": iso(town.clock() + 100 * SECOND), "deletionGracePeriodSeconds": 100}
        town.hear("pods", raw | {"metadata": raw["metadata"] | asked})
    at_ms = town.clock()

    force(town)
    nothing_more(town)

    assert charged_until(town) == {"pod": at_ms + 102 * SECOND, "claim": at_ms + 102 * SECOND}


def test_of_sharers_the_one_that_may_run_longest_counts(town: Town) -> None:
    """A first one was removed a minute before, by force too, on an older kubelet; the last one had ended."""
    begin(town, a_node("v1.30.9"))
    other = pod("q", grace_s=30)
    town.hear("pods", other)
    town.change(CLAIMS, held(pods=("uid-p", "uid-q")))
    at_ms = town.clock()
    town.change("pods", user(), deleted=True)
    town.change(CLAIMS, held(pods=("uid-q",)))
    passes(town, MINUTE)
    town.change("pods", pod("q", ended_ms=town.clock()))
    town.change(CLAIMS, device_claim())
    nothing_more(town)

    assert charged_until(town)["claim"] == at_ms + GRACE


def test_the_device_s_next_claim_is_charged_beside_it(town: Town) -> None:
    begin(town, a_node(NEW))
    at_ms = town.clock()
    force(town)
    next_one = device_claim("d", allocated(), at_ms=at_ms, pods=("uid-next",))
    town.change(CLAIMS, next_one)
    nothing_more(town)

    found = town.get("/v1/sessions").get_json()["sessions"]
    amounts = {
        finding["pod"]: finding["posted"] + finding["pending"]
        for finding in found
        if finding["kind"] == "claim"
    }
    assert amounts == {"c": (MINUTE + 15 * SECOND) * GPU, "d": 11 * MINUTE * GPU}


def test_the_extender_gives_the_card_out_no_earlier_than_its_charge_ends() -> None:
    """It reads no Leases: a node that is not silent renewed its Lease a minute ago at the latest."""

    def is_held(first: Json, after_ms: int) -> bool:
        snapshot = node_updated(EMPTY, read_node(first), T0)
        known = read_pod(CARD)
        assert known is not None
        snapshot = pod_deleted(pod_updated(snapshot, known, T0), known, T0 + HOUR)
        return expire(snapshot, T0 + HOUR + after_ms).allocation("uid-card") is not None

    silent = a_node(NEW)
    silent["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert is_held(a_node(NEW), 75 * SECOND - 1)
    assert not is_held(a_node(NEW), 75 * SECOND)
    assert is_held(a_node("v1.30.9"), GRACE - 1)
    assert not is_held(a_node("v1.30.9"), GRACE)
    assert is_held(silent, 2 * GRACE)
