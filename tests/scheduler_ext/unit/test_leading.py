"""Taking over, one history for each guarantee: two replicas that both believe what they like, stopped and
continued between any two calls. `test_faults` mixes all of this at random."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_ext.controllers.requeuer import Requeuer
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.leadership.fencing import Touched, marker, toucher
from scheduler_ext.model.leader_mark import LeaderMark, LeaderMarks, claimed, heard, listed
from scheduler_ext.model.pod import NonGPUPod
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.scoring.policy import BINPACK, Policy
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.fit_cache import FilterResult
from scheduler_ext.verbs.protocol import ExtenderArgs
from scheduler_ext.verbs.verbs import SearchShares, Verbs
from tests.scheduler_ext import machine, readback
from tests.scheduler_ext.machine import FINE, HOME, LATE, LOST_UNDONE, Cluster, Replica
from tests.scheduler_ext.worlds import node, on, percent, read
from tests.worlds import Json, card


class Pair:
    """Two replicas before a node of one card, and two pods of which it takes one."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.put("nodes", node("a", card(0)))
        self.p, self.q = (self.pod(name) for name in "pq")
        self.first, self.second = (self.replica(name) for name in ("x", "y"))

    def pod(self, name: str, share: int = 60, **fields: Any) -> Json:
        """A pod that waits."""
        return self.cluster.put("pods", percent(share, name, **fields))

    def replica(self, name: str) -> Replica:
        """A process in a pod of this name."""
        if f"{HOME}/{name}" not in self.cluster.objects["pods"]:
            metadata = {"name": name, "namespace": HOME, "uid": f"uid-{name}"}
            self.cluster.put("pods", {"metadata": metadata, "spec": {"containers": []}, "status": {}})
        return Replica(self.cluster, name, name)

    def bound(self) -> dict[str, str]:
        """Where each bound pod is; no card may be overcommitted."""
        pods = [each for each in self.cluster.pods() if readback.holds(each)]
        assert not readback.overcommitted(readback.taken(pods), {"a-GPU-0": 16_000})
        return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in pods}

    def before(self, verb: str, what: Callable[[], object], replica: str = "x") -> None:
        """Something happens once before the next call of this verb by the replica."""

        def hook(who: str, which: str) -> None:
            if (who, which) == (replica, verb):
                self.cluster.before = lambda _who, _which: None
                what()

        self.cluster.before = hook

    def fates(self, *fates: str, verb: str = "bind") -> None:
        """What becomes of the next calls of this verb."""
        left = list(fates)
        self.cluster.fate = lambda _who, which: left.pop(0) if which == verb and left else FINE

    def late(self) -> None:
        """Every call that was late arrives."""
        while self.cluster.late:
            self.cluster.late.pop(0)()


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_one_that_takes_over_leads_and_binds(pair: Pair) -> None:
    assert pair.first.bind(pair.p, "a") == "this extender is not the leader; another replica binds"

    pair.first.take_over()

    assert pair.first.leadership.term == 1
    assert pair.first.bind(pair.p, "a") == ""
    assert pair.bound() == {"p": "a"}


def test_a_leader_stopped_before_its_binding_goes_out_does_no_harm_when_it_goes_on(pair: Pair) -> None:
    pair.first.take_over()

    def meanwhile() -> None:
        pair.second.take_over()
        assert pair.second.bind(pair.q, "a") == ""

    pair.before("bind", meanwhile)
    assert pair.first.bind(pair.p, "a") != ""

    assert pair.bound() == {"q": "a"}


def test_a_binding_that_arrives_after_another_has_taken_over_is_void(pair: Pair) -> None:
    pair.first.take_over()
    pair.fates(LATE)
    pair.before("get", lambda: pair.second.take_over())  # while it looks what has become of it
    pair.first.bind(pair.p, "a")

    pair.second.deliver()
    assert pair.second.bind(pair.q, "a") == ""
    pair.late()

    assert pair.bound() == {"q": "a"}


def test_a_binding_that_arrives_while_another_takes_over_is_found(pair: Pair) -> None:
    """After the mark, and before the touch."""
    pair.first.take_over()
    pair.second.deliver()
    pair.second.belief.wanted = True
    pair.second.step()
    pair.second.deliver()
    assert pair.second.leadership.state == "fences"
    pair.first.bind(pair.p, "a")
    pair.second.step()

    assert pair.second.leadership.leads()
    assert pair.second.bind(pair.q, "a") == "no card has 60 percent free"
    assert pair.bound() == {"p": "a"}


def test_a_binding_before_the_mark_is_in_the_books_before_the_first_bind(pair: Pair) -> None:
    pair.first.take_over()
    pair.second.deliver()
    pair.first.bind(pair.p, "a")
    pair.second.belief.wanted = True
    pair.second.step()
    pair.second.step()

    assert pair.second.leadership.state == "claims"
    pair.second.take_over()
    assert pair.second.bind(pair.q, "a") == "no card has 60 percent free"


def test_one_that_was_followed_learns_it_from_the_watch_before_any_later_version(pair: Pair) -> None:
    pair.first.take_over()
    pair.second.take_over()
    late = pair.pod("late")
    pair.first.deliver()

    assert pair.first.leadership.state == "follows"
    assert pair.first.bind(late, "a") != ""


def test_a_version_that_was_only_read_is_not_bound(pair: Pair) -> None:
    """It may be younger than what the books know of others."""
    pair.first.take_over()
    pair.second.take_over()
    new = pair.pod("new")
    assert pair.second.bind(pair.q, "a") == ""
    vars(pair.first.cache)["deliver"] = lambda: None

    assert pair.first.bind(new, "a") == "the watch has not shown the pod's present version yet"
    assert pair.first.bind(pair.p, "a") == "the watch has not shown the pod's present version yet"
    assert pair.bound() == {"q": "a"}


def test_a_version_that_settling_has_read_is_not_bound_either(pair: Pair) -> None:
    pair.first.take_over()
    pair.second.deliver()
    pair.fates(LOST_UNDONE, LOST_UNDONE, LOST_UNDONE, LOST_UNDONE)
    pair.first.bind(pair.p, "a")
    pair.second.take_over()
    assert pair.second.bind(pair.q, "a") == ""
    vars(pair.first.cache)["deliver"] = lambda: None
    pair.first.settle()

    pair.first.bind(pair.p, "a")

    assert pair.bound() == {"q": "a"}


def test_a_bind_begun_in_an_earlier_term_does_not_go_on_in_a_later_one(pair: Pair) -> None:
    pair.first.take_over()

    def meanwhile() -> None:
        pair.second.take_over()
        assert pair.second.bind(pair.q, "a") == ""
        pair.first.take_over()
        pair.first.deliver()

    pair.before("get", meanwhile)
    pair.fates(LOST_UNDONE)
    pair.first.bind(pair.p, "a")

    assert pair.bound() == {"q": "a"}


def test_what_was_assumed_in_an_earlier_term_is_free_in_the_next(pair: Pair) -> None:
    pair.first.take_over()
    pair.fates(LOST_UNDONE, LOST_UNDONE, LOST_UNDONE, LOST_UNDONE)
    assert pair.first.bind(pair.p, "a") != ""
    pair.second.take_over()
    assert pair.second.bind(pair.q, "a") == ""
    pair.cluster.put("pods", {**pair.cluster.pod("q"), "status": {"phase": "Succeeded"}})
    pair.first.take_over()

    assert pair.first.cache.snapshot.allocation("uid-p") is None
    assert pair.first.bind(pair.pod("r"), "a") == ""


def test_one_that_starts_again_makes_void_what_its_predecessor_had_sent(pair: Pair) -> None:
    pair.first.take_over()
    pair.fates(LATE, LATE, LATE, LATE)
    pair.first.bind(pair.p, "a")
    again = pair.replica("x")
    again.take_over()
    assert again.bind(pair.q, "a") == ""

    pair.late()

    assert pair.bound() == {"q": "a"}


def test_a_pod_that_goes_while_it_is_to_be_touched_counts_as_the_watch_shows(pair: Pair) -> None:
    """It had been bound and forced away: its containers may run."""
    pair.first.take_over()
    pair.second.deliver()
    pair.second.belief.wanted = True
    pair.second.step()
    pair.second.deliver()
    assert pair.first.bind(pair.p, "a") == ""
    pair.cluster.remove("p")
    pair.second.step()
    assert pair.second.leadership.state == "fences"
    pair.second.take_over()

    assert pair.second.leadership.leads()
    assert pair.second.bind(pair.q, "a") == "no card has 60 percent free"


def test_a_touch_that_is_not_certain_is_repeated_before_the_first_bind(pair: Pair) -> None:
    pair.second.deliver()
    pair.second.belief.wanted = True
    pair.second.step()
    pair.second.deliver()
    pair.fates(LOST_UNDONE, "429", verb="patch")
    pair.second.step()

    assert pair.second.leadership.state == "fences"
    pair.second.step()
    assert pair.second.leadership.leads()


def test_a_touch_changes_the_pod_whatever_the_clocks_say(pair: Pair) -> None:
    """Two that take over in the same millisecond by their clocks must not write the same."""
    api: Any = pair.first.api
    pair.first.deliver()
    pod = read(pair.p)
    touch = toucher(api, pair.first.cache, 1_000, machine.mute, map)
    sent: list[str] = []

    def patched(_namespace: str, _name: str, body: Json) -> tuple[int, Json]:
        sent.append(body["status"]["message"])
        return 200, pair.cluster.pod("p")

    vars(pair.cluster)["patch"] = patched

    assert touch([pod], "one") == touch([pod], "two") == Touched()
    assert ["one" in sent[0], "two" in sent[1]] == [True, True]


def test_only_pods_that_may_still_be_bound_are_touched(pair: Pair) -> None:
    held = percent(50, "gated")
    held["spec"]["schedulingGates"] = [{"name": "wait"}]
    pair.cluster.put("pods", held)
    going = percent(50, "going")
    going["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"
    pair.cluster.put("pods", going)
    pair.cluster.put("pods", percent(150, "malformed"))
    touched: list[str] = []
    pair.cluster.before = lambda _who, verb: touched.append(verb)

    pair.first.take_over()

    assert touched == ["patch"] * 3  # its own pod, p and q


def test_a_mark_that_may_not_have_been_written_is_followed_by_another(pair: Pair) -> None:
    pair.fates(LATE, verb="patch")
    pair.first.deliver()
    pair.first.belief.wanted = True
    pair.first.step()
    assert pair.first.leadership.state == "follows"

    pair.late()
    pair.first.take_over()

    assert pair.first.leadership.leads()


def test_the_mark_of_a_pod_of_another_namespace_deposes_no_leader(pair: Pair) -> None:
    pair.first.take_over()
    forged: Any = pair.first.api
    metadata = {"name": "forger", "namespace": "team-a", "uid": "uid-forger"}
    pair.cluster.put("pods", {"metadata": metadata, "spec": {"containers": []}, "status": {}})
    assert marker(forged, "team-a", "forger", machine.mute)("forged")
    pair.first.deliver()

    assert pair.first.leadership.leads()


def test_it_follows_once_the_election_names_another_and_stays_while_that_is_unknown(pair: Pair) -> None:
    pair.first.take_over()

    pair.first.belief.wanted = None
    pair.first.step()
    assert pair.first.leadership.leads()
    pair.first.belief.wanted = False
    pair.first.step()
    assert pair.first.leadership.term == 0


def test_a_bind_waits_for_a_taking_over_that_is_under_way(pair: Pair) -> None:
    assert pair.first.leadership.opens(lambda: 0.0) == 0
    pair.first.take_over()
    assert pair.first.leadership.opens(lambda: 0.0) == 1


def test_a_placement_found_for_a_pod_that_is_shown_bound_meanwhile_displaces_nothing(pair: Pair) -> None:
    pair.cluster.put("nodes", node("b", card(0)))
    pair.first.take_over()

    def policy(_pod: object) -> Policy:
        if not pair.cluster.pod("p")["spec"].get("nodeName"):
            pair.cluster.put("pods", on(pair.cluster.pod("p"), "b", "b-GPU-0"))
            pair.first.deliver()
        return BINPACK

    vars(pair.first.binder)["_policy"] = policy

    assert pair.first.bind(pair.p, "a") == "the pod is already bound to node b"

    allocation = pair.first.cache.snapshot.allocation("uid-p")
    assert allocation is not None
    assert (allocation.state, pair.first.cache.snapshot.allocated_on.get("uid-p")) == ("bound", "b")
    assert pair.first.bind(pair.q, "b") == "no card has 60 percent free"


# marks alone

ME = LeaderMarks("me")
MINE = LeaderMark("uid-x", "me.1", NonGPUPod("uid-x", "", 0))
THEIRS = LeaderMark("uid-y", "you.1", NonGPUPod("uid-y", "", 0))


def test_only_a_new_mark_after_our_own_beats_us() -> None:
    early = heard(heard(claimed(ME, "me.1"), THEIRS), MINE)
    assert (early.seen, early.superseded) == (True, False)
    assert not heard(early, THEIRS).superseded  # the same again, with another change of its pod
    assert heard(early, LeaderMark("uid-y", "you.2", THEIRS.pod)).superseded


def test_a_list_that_shows_ours_beside_an_unknown_one_beats_us() -> None:
    claim = claimed(ME, "me.1")

    assert listed(claim, {"uid-x": "me.1", "uid-y": "you.1"}).superseded
    assert not listed(heard(claim, THEIRS), {"uid-x": "me.1", "uid-y": "you.1"}).superseded
    assert not listed(claim, {"uid-y": "you.1"}).superseded
    assert listed(heard(claim, MINE), {"uid-y": "you.1"}).superseded


def test_an_earlier_mark_of_ours_neither_counts_nor_beats_us() -> None:
    late = heard(claimed(ME, "me.2"), MINE)

    assert (late.seen, late.superseded) == (False, False)


def test_filter_waits_for_a_taking_over_and_for_nothing_else(pair: Pair) -> None:
    leadership = pair.first.leadership
    leadership.wait_while_taking_over()  # it follows, and may be asked for a simulation

    pair.first.belief.wanted = True
    pair.first.deliver()
    pair.first.step()
    states: list[str] = [leadership.state]

    def wait() -> None:
        leadership.wait_while_taking_over()
        states.append(leadership.state)

    waiting = begun(wait)
    pair.first.take_over()
    waiting.join()

    assert states == ["claims", "leads"]


def test_a_pod_that_requests_cards_is_answered_by_what_arrived_while_filter_waited(pair: Pair) -> None:
    verbs = verbs_of(pair.first)
    pair.first.belief.wanted = True
    pair.first.deliver()
    pair.first.step()
    assert pair.first.leadership.state == "claims"
    found: list[FilterResult | str] = []

    waiting = begun(lambda: found.append(verbs.filter(ExtenderArgs(pair.p, ["a"], None))))
    pair.cluster.put("pods", on(pair.q, "a", "a-GPU-0"))
    pair.first.take_over()
    waiting.join()

    assert found == [FilterResult([], {"a": Refusal("no card has 60 percent free", "full")}, {})]


def test_a_pod_without_a_gpu_request_waits_for_no_takeover(pair: Pair) -> None:
    verbs = verbs_of(pair.first, waits=pytest.fail)
    pair.first.deliver()
    plain = {"metadata": {"name": "web", "namespace": "team-a", "uid": "uid-web"}, "spec": {"containers": []}}

    assert verbs.filter(ExtenderArgs(plain, ["a"], None)) == FilterResult(["a"], {}, {})


class Looked:
    """A cache that counts how often its snapshot is taken."""

    def __init__(self, cache: Any) -> None:
        self._cache, self.looks = cache, 0

    @property
    def snapshot(self) -> Snapshot:
        self.looks += 1
        taken: Snapshot = self._cache.snapshot
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


GANG = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2", "bursar.dev/held": "turn"}


@pytest.mark.parametrize("annotations", [{}, GANG], ids=["alone", "of a gang"])
def test_a_call_is_decided_on_one_snapshot(pair: Pair, annotations: dict[str, str]) -> None:
    """What happens during a call is seen as a whole by the next one, or not at all."""
    verbs: Any = verbs_of(pair.first)
    pair.first.deliver()
    looked = verbs._cache = verbs._requeuer._cache = Looked(pair.first.cache)
    metadata = {**pair.p["metadata"], "annotations": annotations, "resourceVersion": "of the call"}
    pod = {**pair.p, "metadata": metadata}

    answer = verbs.filter(ExtenderArgs(pod, ["a"], None))

    assert (answer.fits, looked.looks) == ([] if annotations else ["a"], 1)
    verbs.prioritize(ExtenderArgs(pod, ["a"], None))
    assert looked.looks == 2


BINPACKED = Policies("binpack", lambda: UNHEARD, lambda: None, lambda _why: None)


def verbs_of(
    replica: Replica,
    waits: Callable[[], bool] | None = None,
    policies: Policies = BINPACKED,
    search_shares: SearchShares | None = None,
) -> Verbs:
    """What kube-scheduler asks of this replica."""
    api: Any = replica.api
    requeuer = Requeuer(api, replica.cache, "bursar-scheduler", machine.mute)
    patience = waits or replica.leadership.wait_while_taking_over
    return Verbs(
        *(replica.cache, policies, requeuer, replica.binder, nobody_leaves, patience),
        *(lambda: UNHEARD, lambda *_: None),
        search_shares=search_shares,
    )


def nobody_leaves(_snapshot: Snapshot) -> PreemptionContext:
    """Who would leave for a pod: filter asks for none."""
    raise AssertionError


def begun(work: Callable[[], object]) -> threading.Thread:
    """A thread that has begun this, and that waits."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=0.1)
    assert thread.is_alive()
    return thread
