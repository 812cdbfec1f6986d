"""The live map's posts: every change once, everything again after a failure, and only by the leader."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import orjson
import pytest
from msgspec import structs

from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.reports import cluster_posts, waiting_pods
from scheduler_ext.reports.cluster_posts import (
    AFTER_FAILURE_MS,
    ALIVE_MS,
    INTERVAL_S,
    WHOLE_MS,
    ClusterPosts,
    MapSources,
)
from scheduler_ext.reports.waiting_pods import MAX_BYTES, MAX_COUNTS_BYTES, WaitingPods, waiting_reason
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import CountedRefusal, LastDecision, LastDecisions
from tests.scheduler_ext.gang_worlds import member
from tests.scheduler_ext.worlds import Json, asking, bound, node, on, percent, read, rebuilt
from tests.support.clock import Clock
from tests.worlds import card, limits_of
from timekeeper.api.resources.cluster_map import BODY
from timekeeper.core.cluster_map import MAX_WAITING, OF_DEVICES, STALE_MS, not_before
from timekeeper.core.dialects.others.claims import SHORT_OF_DEVICES
from timekeeper.core.findings import MOST_FINDINGS, MOST_OF_A_CODE, RoleFinding
from timekeeper.edge.timekeeper_client import PostRefusedError, TimekeeperError

NOW_MS = 1_793_577_600_000  # 2026-11-02T00:00:00Z


@dataclass
class Posted:
    """A client that keeps what is posted. ``fails``: raised instead."""

    bodies: list[Json] = field(default_factory=list)
    fails: Exception | None = None

    def post(self, body: bytes) -> None:
        if self.fails:
            raise self.fails
        assert len(body) <= 256 * 1024
        BODY.read(body)  # the timekeeper takes it
        self.bodies.append(orjson.loads(body))

    def close(self) -> None:
        """Nothing is open."""


def waiting(snapshot: Callable[[], Snapshot]) -> WaitingPods:
    """What waits in the snapshot; no pod was refused yet."""
    return WaitingPods(snapshot, LastDecisions(), lambda: UNHEARD, lambda _: "", lambda: NOW_MS)


class World:
    """Posts of a snapshot that a test replaces."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.client, self.clock, self.term = snapshot, Posted(), Clock(0), "e-1"
        self.lines: list[str] = []
        self.found: list[RoleFinding] = []
        sources = MapSources(
            lambda: self.snapshot.nodes,
            waiting(lambda: self.snapshot),
            lambda: self.found,
            lambda: self.term,
            self.clock,
        )
        self.posts = ClusterPosts(self.client, sources, lambda event, **_: self.lines.append(event))  # type: ignore[arg-type]

    def step(self) -> list[tuple[list[str], list[str], int | None]]:
        """Names of posted nodes, of gone ones, and how many wait, for each post of a step."""
        self.client.bodies.clear()
        self.posts.step()
        return [
            ([each["name"] for each in body["nodes"]], body["gone"], (body["waiting"] or {}).get("total"))
            for body in self.client.bodies
            if body["findings"] is None
        ]


def small() -> Snapshot:
    return rebuilt(
        [node("n1", card(0)), node("n2", card(1))], [on(percent(50, "p"), "n1", "n1-GPU-0"), percent(70, "w")]
    )


def test_every_change_is_posted_once() -> None:
    world = World(small())
    assert world.step() == [(["n1", "n2"], [], None), ([], [], 1)]
    (there,) = world.client.bodies[0]["nodes"][0]["cards"]
    assert (there["used_share_milli"], [each["name"] for each in there["pods"]]) == (500, ["p"])
    assert world.step() == []

    world.snapshot = replace(world.snapshot, nodes=world.snapshot.nodes.without("n2"), pods=Map())

    assert world.step() == [([], ["n2"], None), ([], [], 0)]


def test_cards_that_only_the_plugin_could_name_are_counted_on_their_node() -> None:
    pair = bound(asking(limits_of("main", nvidia_com__gpu="2"), name="pair"), "n", None)
    there = node("n", *(card(at) for at in range(8)), capacity={"nvidia.com/gpu": "8"})
    world = World(rebuilt([there, node("m", card(0))], [pair]))
    world.step()

    posted = {each["name"]: each for each in world.client.bodies[0]["nodes"]}
    assert [each["used_share_milli"] for each in posted["n"]["cards"]] == [0] * 8
    assert {name: each.get("unnamed") for name, each in posted.items()} == {"n": 2, "m": None}


def test_where_all_that_a_plugin_gives_out_is_held_each_such_card_is_and_the_others_are_unhealthy() -> None:
    """Eight cards of which the plugin calls two unhealthy; it alone knows which."""
    there = {**bare("n", {"nvidia.com/gpu": "8"})}
    there["status"] = {**there["status"], "allocatable": {"nvidia.com/gpu": "6"}}
    pods = [bound(asking(limits_of("main", nvidia_com__gpu="3"), name=name), "n", None) for name in "pq"]
    world = World(rebuilt([there], pods))
    world.step()

    (posted,) = world.client.bodies[0]["nodes"]
    shown = [(each["healthy"], each["used_share_milli"]) for each in posted["cards"]]
    assert shown == [(True, 1_000)] * 6 + [(False, 0)] * 2
    assert "unnamed" not in posted


def bare(name: str, capacity: dict[str, str]) -> Json:
    """A node without an inventory."""
    return {"metadata": {"name": name}, "status": {"capacity": capacity, "allocatable": capacity}}


def test_a_node_without_an_inventory_is_posted_with_what_it_offers_or_its_plugins_cards() -> None:
    koordinators, plugins = bare("k", {"koordinator.sh/gpu-core": "800"}), bare("n", {"nvidia.com/gpu": "8"})
    there = [koordinators, plugins, bare("cpu", {"cpu": "8"}), node("m", card(0))]
    world = World(rebuilt(there, []))
    world.step()

    nodes = world.client.bodies[0]["nodes"]
    posted = {each["name"]: (each.get("undescribed"), len(each["cards"])) for each in nodes}
    assert posted == {"k": ("koordinator.sh/gpu-core 800", 0), "n": (None, 8), "m": (None, 1)}


def test_all_is_posted_again_after_a_failure_and_every_few_minutes() -> None:
    world = World(small())
    world.client.fails = TimekeeperError("away")
    assert world.step() == []
    world.client.fails = None
    assert world.step() == []
    world.clock.turn(AFTER_FAILURE_MS)
    everything = world.step()
    assert everything == [(["n1", "n2"], [], None), ([], [], 1)]
    assert world.lines == ["cluster-failed", "cluster-sent"]

    world.clock.turn(WHOLE_MS - 1)
    assert world.step() == [([], [], 1)]
    world.clock.turn(1)
    assert world.step() == everything


def test_where_nothing_changes_a_post_comes_before_the_dashboard_calls_the_map_old() -> None:
    world = World(small())
    assert len(world.step()) == 2
    for _ in range(3):
        world.clock.turn(ALIVE_MS - 1)
        assert world.step() == []
        world.clock.turn(1)
        assert world.step() == [([], [], 1)]

    assert ALIVE_MS + 1000 * INTERVAL_S < STALE_MS


def test_a_follower_posts_nothing_and_a_new_leader_everything() -> None:
    world = World(small())
    world.term = ""
    assert world.step() == []
    world.term = "e-2"
    assert len(world.step()) == 2
    world.term = "e-3"  # it led no more for less than a step, and another may have posted
    assert len(world.step()) == 2
    assert {each["term"] for each in world.client.bodies} == {"e-3"}


def test_a_part_that_is_refused_holds_no_other_back() -> None:
    world = World(small())
    world.client.fails = PostRefusedError("400")
    assert world.step() == []
    assert world.lines == ["cluster-refused"] * 3


def found_by(world: World) -> list[Json]:
    """The lists of findings that a step posts."""
    world.step()
    return [body["findings"] for body in world.client.bodies if body["findings"] is not None]


def test_findings_are_posted_as_often_as_the_map_must_be_and_at_once_in_a_new_term() -> None:
    world = World(small())
    world.found = [RoleFinding("closed-node", {"node": "n\x1b1", "why": "x"})]
    row = {
        "code": "closed-node",
        "level": "warning",
        "about": "nodes",
        "figures": {"node": "n?1", "why": "x"},
    }
    wanted = {"findings": [row | {"sentence": "n?1 is closed: x"}], "more": {}}
    assert found_by(world) == [wanted]
    world.clock.turn(ALIVE_MS - 1)
    assert found_by(world) == []
    world.clock.turn(1)
    assert found_by(world) == [wanted]
    world.term = "e-2"
    assert found_by(world) == [wanted]
    assert world.posts.wrong == {"closed-node": 1}
    world.term = ""
    assert (found_by(world), world.posts.wrong) == ([], {})
    world.term, world.found = "e-3", [RoleFinding("inventories", {"described": 1, "number": 1})]
    assert [each["level"] for (found,) in [found_by(world)] for each in found["findings"]] == ["ok"]
    assert world.posts.wrong == {}
    world.client.fails = TimekeeperError("away")
    world.clock.turn(ALIVE_MS)
    assert found_by(world) == []
    world.client.fails, world.found = None, []
    world.clock.turn(AFTER_FAILURE_MS)
    assert found_by(world) == [{"findings": [], "more": {}}]


def test_of_many_findings_the_first_are_posted_and_the_others_counted() -> None:
    world = World(small())
    codes = ("closed-node", "changing-node", "left-over-name", "locked-node", "silent-agent", "no-agent")
    names = dict.fromkeys(("node", "nodes", "why", "change", "pod"), "\u6f22" * 2_000)
    world.found = [RoleFinding(code, names) for code in codes for _ in range(MOST_OF_A_CODE + 5)]

    (posted,) = found_by(world)

    assert len(posted["findings"]) == MOST_FINDINGS
    assert posted["more"] == {**dict.fromkeys(codes[:5], 5), "no-agent": MOST_OF_A_CODE + 5}
    assert world.posts.wrong == dict.fromkeys(codes, MOST_OF_A_CODE + 5)


def waits(namespace: str, name: str, minute: int) -> Json:
    """A pod that was created in this minute."""
    raw = percent(50, name)
    created = f"2026-11-01T{minute // 60:02}:{minute % 60:02}:00Z"
    raw["metadata"] |= {"namespace": namespace, "uid": f"{namespace}/{name}", "creationTimestamp": created}
    return raw


def test_a_namespace_with_many_waiting_pods_hides_no_other_and_the_rest_is_counted() -> None:
    many = [waits("many", f"m{at:03}", at) for at in range(700)]
    few = [waits("few", f"f{at}", 700 + at) for at in range(3)]
    snapshot = rebuilt([], [*few, *reversed(many)])

    told = waiting(lambda: snapshot)()

    assert [pod["name"] for pod in told["pods"]] == [
        *(f"m{at:03}" for at in range(MAX_WAITING - 3)),
        *("f0", "f1", "f2"),
    ]
    assert (told["total"], told["more"]) == (703, {"many": 203})


def test_what_waits_is_posted_again_when_the_numbers_of_pods_beyond_those_listed_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_pods, "MAX_WAITING", 1)
    world = World(rebuilt([], [waits("a", "first", 0), waits("b", "second", 1)]))
    assert [world.step(), world.step()] == [[([], [], 2)], []]

    world.snapshot = rebuilt([], [waits("a", "first", 0), waits("c", "third", 1)])

    assert world.step() == [([], [], 2)]
    assert world.client.bodies[0]["waiting"]["more"] == {"c": 1}


def test_the_numbers_of_the_namespaces_with_most_fit_into_a_post() -> None:
    pods = [waits(f"{at:05}{'x' * 58}", f"p{at}", 0) for at in range(2_500)]
    pods += [waits("most", f"q{at}", 1) for at in range(9)]
    snapshot = rebuilt([], pods)

    told = waiting(lambda: snapshot)()

    size = len(orjson.dumps(told["more"]))
    assert 0.9 * MAX_COUNTS_BYTES < size <= MAX_COUNTS_BYTES
    assert told["more"]["most"] >= 8
    assert len(orjson.dumps({"version": 1, "nodes": [], "gone": [], "waiting": told})) < 256 * 1024


def test_what_decides_first_is_the_reason_why_a_pod_waits() -> None:
    """Its mistake, an obstacle, a failed bind, kube-scheduler's own refusal, the most frequent reason."""
    full = CountedRefusal(Refusal("no card has 50 percent free", "full"), 40)
    decision = LastDecision(41, (full, CountedRefusal(Refusal("closed", "closed"), 1)))
    pod = read(percent(50, "p"))
    taint, by_itself = "taint", "0/56 nodes are available: 15 taint, 41 no card"

    def why(
        decision: LastDecision | None, message: str = taint, obstacle: str = "", malformed: str = ""
    ) -> str:
        said = structs.replace(pod, unschedulable_because=message, malformed=malformed)
        return waiting_reason(said, decision, obstacle)

    assert why(None, "") == ""
    assert why(None) == taint
    assert why(decision) == "no card has 50 percent free (40 of 41 nodes)"
    assert why(decision, by_itself) == by_itself
    assert pod.request is not None
    claims = structs.replace(pod, request=replace(pod.request, dialect="claims"), unschedulable_because="")
    assert "which a ResourceQuota may refuse" in waiting_reason(claims, None, "")
    assert waiting_reason(structs.replace(claims, unschedulable_because=taint), None, "") == taint
    failed = replace(decision, bind_error="the node's plugin is busy")
    assert why(failed, by_itself) == "the node's plugin is busy"
    assert why(failed, obstacle="no node has GPU cards") == "no node has GPU cards"
    assert why(failed, obstacle="no node has GPU cards", malformed="150 percent") == "150 percent"


@pytest.mark.parametrize(
    ("gates", "obstacle", "said"),
    [
        (("bursar.dev/gang",), "4 cards missing of 8", "4 cards missing of 8"),
        (
            ("bursar.dev/budget",),
            "",
            "its scheduling gate bursar.dev/budget keeps it from every scheduler: it is",
        ),
        (
            ("kueue.x-k8s.io/admission", "bursar.dev/gang"),
            "4 cards missing of 8",
            "its scheduling gate kueue",
        ),
        (
            ("example.com/later",),
            "",
            "its scheduling gate example.com/later keeps it from every scheduler: it is",
        ),
    ],
)
def test_another_systems_gate_comes_first_and_our_own_after_what_decides(
    gates: tuple[str, ...], obstacle: str, said: str
) -> None:
    pod = structs.replace(read(percent(50, "p")), gates=gates)

    assert waiting_reason(pod, None, obstacle).startswith(said)


@pytest.mark.parametrize(
    ("gates", "gang"),
    [(("bursar.dev/gang",), "g"), ((), "g"), (("bursar.dev/budget", "bursar.dev/gang"), "")],
)
def test_a_member_that_waits_for_cards_is_posted_with_its_gang(gates: tuple[str, ...], gang: str) -> None:
    """One that waits for the budget is listed with what is held."""
    raws = [member("a", gates=gates), waits("c", "single", 1)]
    told = waiting(lambda: rebuilt([], raws))()

    assert {row["name"]: row.get("gang", "") for row in told["pods"]} == {"a": gang, "single": ""}


def test_a_pod_is_posted_with_when_it_may_start_and_one_of_claims_with_who_knows_it() -> None:
    runner = on(percent(100, "r", activeDeadlineSeconds=3_600), "n", "GPU-0")
    by_claim = percent(50, "claims")
    status = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    by_claim["status"]["conditions"] = [
        status | {"message": f"0/1 nodes are available: 1 {SHORT_OF_DEVICES}."}
    ]
    snapshot = rebuilt([node("n", card(0))], [runner, percent(50, "w"), by_claim], NOW_MS)

    posted = {pod["name"]: pod.get("when") for pod in waiting(lambda: snapshot)()["pods"]}

    assert posted["w"] == not_before(NOW_MS + 3_600_000, "n")
    assert posted["claims"] == OF_DEVICES


def test_no_post_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_posts, "MAX_BYTES", 1_000)
    nodes = [node(f"n{at}", *(card(10 * at + each) for each in range(3))) for at in range(6)]
    world = World(rebuilt(nodes, []))

    posted = world.step()

    assert sorted(name for names, _, _ in posted for name in names) == [f"n{at}" for at in range(6)]
    assert len(posted) > 3
    assert MAX_BYTES < 256 * 1024
