"""The agent's decisions: what it writes when, and whom it tells."""

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.node.agent import GAP_MS, HUNG_MS, LONGEST_PAUSE_MS, Agent, AgentPorts
from sidecar.node.kube.api import ApiAnswer
from sidecar.node.state import node_patch
from sidecar.node.state.card_events import QUIET_MS
from sidecar.node.state.health import PATIENCE_MS
from sidecar.node.state.overuse import AgentEvent
from sidecar.node.values import CardFailed, DeviceReading, NodeState
from tests.node.worlds import MEMORY_MIB, card, look, lost, node, pod
from timekeeper.edge.reflector import UnreachableError

A, B = card("GPU-a"), card("GPU-b", index=1)
LOOK_MS = 5_000


class World:
    """An API server with one node, and ears for what is said and told."""

    def __init__(self, stands: NodeState | None = None) -> None:
        self.patches: list[dict[str, Any]] = []
        self.annotations: dict[str, str] = {}
        self.status: dict[str, Any] = {}
        self.notices: list[AgentEvent] = []
        self.said: list[tuple[str, dict[str, object]]] = []
        self.answer: Callable[[dict[str, Any]], ApiAnswer] = self.well
        ports = AgentPorts(
            self._write, self.notices.append, lambda event, **pairs: self.said.append((event, pairs))
        )
        self.agent = Agent(ports, "boot-1", LOOK_MS, 0)
        self.version = 1
        self.agent.on_node(stands or node(), 0)

    def _write(self, patch: dict[str, Any]) -> ApiAnswer:
        self.patches.append(patch)
        return self.answer(patch)

    def well(self, patch: dict[str, Any]) -> ApiAnswer:
        """The node as it is after the patch."""
        self.version += 1
        self.annotations |= patch.get("metadata", {}).get("annotations", {})
        self.status |= patch.get("status", {})
        metadata = {"uid": "n1", "resourceVersion": str(self.version), "annotations": self.annotations}
        return ApiAnswer(200, {"metadata": metadata, "status": self.status}, "")

    def words(self) -> list[str]:
        return [event for event, _ in self.said]


CAPACITY = {
    "bursar.dev/gpu-percent": "200",
    "bursar.dev/gpu-memory": str(2 * MEMORY_MIB),
    "bursar.dev/gpu-count": "2000",
    "cards.bursar.dev/millionths": "2000000",
}
INVENTORY = node_patch.inventory((A, B))
TAINTED = node(INVENTORY, capacity=CAPACITY, other_taints='[{"key": "other"}]')


def removals(remove: bool, stands: NodeState, seen: DeviceReading | None) -> list[dict[str, Any]]:
    """The patches with which an agent removes the startup taint of this node."""
    found: list[dict[str, Any]] = []
    world = World()

    def removed(patch: dict[str, Any]) -> ApiAnswer:
        found.append(patch)
        return world.well({})

    ports = AgentPorts(world.well, lambda _: None, lambda *_, **__: None)
    agent = Agent(ports, "boot-1", LOOK_MS, 0, removed if remove else None)
    agent.on_node(stands, 0)
    if seen:
        agent.on_reading(seen, 1)
    for at in range(3):
        agent.write_if_due(10_000 * (at + 1))
    return found


def test_the_startup_taint_is_removed_once_and_the_patch_names_the_nodes_version() -> None:
    patch = {"metadata": {"resourceVersion": "1"}, "spec": {"taints": [{"key": "other"}]}}

    assert removals(True, TAINTED, look(A, B)) == [patch]


@pytest.mark.parametrize(
    ("remove", "stands", "seen"),
    [
        (False, TAINTED, look(A, B)),
        (True, node(INVENTORY, capacity=CAPACITY), look(A, B)),
        (True, node(other_taints="[]"), None),
        (True, node(node_patch.inventory(()), other_taints="[]"), look()),
        (True, TAINTED, None),
    ],
    ids=["off", "no taint", "no inventory", "no cards", "cards not seen yet"],
)
def test_the_startup_taint_stays(remove: bool, stands: NodeState, seen: DeviceReading | None) -> None:
    assert removals(remove, stands, seen) == []


@pytest.fixture
def world() -> World:
    return World()


def test_a_look_is_written_once_and_only_what_changes_later(world: World) -> None:
    for at in range(5):
        world.agent.on_reading(look(A, B), at * LOOK_MS)
        world.agent.write_if_due(at * LOOK_MS)

    assert len(world.patches) == 1


def test_nothing_is_written_before_the_node_is_there_and_all_once_it_is(world: World) -> None:
    world.agent.on_node(None, 0)
    world.agent.on_reading(look(A), 1)
    world.agent.write_if_due(1)
    assert world.patches == []

    world.agent.on_node(node(uid="n2", version="9"), 2)
    world.agent.write_if_due(2)
    assert len(world.patches) == 1


def test_looks_from_before_the_nodes_object_arrived_count_once_it_has(world: World) -> None:
    agent = Agent(AgentPorts(world.well, world.notices.append, lambda *_, **__: None), "boot-1", LOOK_MS, 0)
    agent.on_reading(look(A), 0)
    agent.on_node(node(), 1)

    assert agent.cards == (A,)


def test_a_node_that_was_deleted_and_made_again_gets_everything_again(world: World) -> None:
    world.agent.on_reading(look(A), 0)
    world.agent.write_if_due(0)
    world.agent.on_node(None, GAP_MS)
    world.agent.on_node(node(uid="n2", version="50"), GAP_MS)
    world.agent.write_if_due(GAP_MS)

    assert world.patches[1] == world.patches[0]


def test_removed_annotations_are_written_again_after_a_pause(world: World) -> None:
    world.agent.on_reading(look(A), 0)
    world.agent.write_if_due(0)

    for at in range(1, 2 * GAP_MS):
        world.agent.on_node(node(version=str(100 + at)), at)
        world.agent.write_if_due(at)

    assert len(world.patches) == 2


def test_a_watch_that_is_behind_our_own_write_has_nothing_written_again(world: World) -> None:
    world.version = 10
    world.agent.on_reading(look(A), 0)
    world.agent.write_if_due(0)
    world.agent.on_node(node(version="9"), GAP_MS)
    world.agent.write_if_due(GAP_MS)

    assert len(world.patches) == 1


def test_a_node_that_a_restored_etcd_took_back_is_written_again(world: World) -> None:
    """The watch had shown our write; the node of the backup has an older version and no inventory."""
    world.version = 10
    world.agent.on_reading(look(A), 0)
    world.agent.write_if_due(0)
    world.agent.on_node(world.agent.node, 1)

    world.agent.on_node(node(version="9"), GAP_MS)
    world.agent.write_if_due(GAP_MS)

    assert len(world.patches) == 2


@pytest.mark.parametrize("status", [403, 404, 409, 422, 500])
def test_a_write_that_is_refused_is_reported_once_and_tried_ever_less_often(
    world: World, status: int
) -> None:
    world.answer = lambda _: ApiAnswer(status, None, "no")
    world.agent.on_reading(look(A), 0)
    for at in range(0, 10 * LONGEST_PAUSE_MS, 500):
        world.agent.write_if_due(at)

    assert world.words() == ["not-written"]
    assert 10 <= len(world.patches) <= 16
    world.answer = world.well
    world.agent.write_if_due(11 * LONGEST_PAUSE_MS)
    assert world.agent.writes == {"written": 1, "refused": len(world.patches) - 1, "failed": 0}


def test_an_api_server_that_is_away_costs_nothing_but_time(world: World) -> None:
    def away(_: dict[str, Any]) -> ApiAnswer:
        raise UnreachableError("Connection refused")

    world.answer = away
    world.agent.on_reading(look(A), 0)
    world.agent.write_if_due(0)
    world.answer = world.well
    world.agent.write_if_due(GAP_MS)

    assert world.agent.writes == {"written": 1, "refused": 0, "failed": 1}


def test_pods_on_a_card_that_fails_are_reported_and_no_others_and_again_when_it_is_well(world: World) -> None:
    on_both, on_b = pod("both", "GPU-a", "GPU-b"), pod("b", "GPU-b")
    world.agent.pods = (on_both, on_b, pod("none"))
    world.agent.on_reading(look(A, B), 0)
    world.agent.on_reading(look(B, silent=(lost("GPU-a"),)), 5_000)
    world.agent.on_reading(look(B, silent=(lost("GPU-a"),)), 10_000)
    world.agent.on_reading(look(A, B), 15_000)

    assert [(each.name, each.kind, each.note) for each in world.notices] == [
        ("both", "Warning", "card GPU-a of this pod is not healthy: GPU is lost"),
        ("both", "Normal", "card GPU-a of this pod is healthy again"),
    ]
    assert world.words() == ["card-unhealthy", "card-healthy-again"]


def test_a_card_that_fails_anew_at_each_look_makes_an_event_of_each_kind_in_ten_minutes(world: World) -> None:
    world.agent.pods = (pod("p", "GPU-a"),)
    for at in range(0, 3_600_000, 1_000):
        world.agent.on_reading(
            look(card("GPU-a", healthy=at % 3_000 == 0, fault="x" * (at // 1_000 % 3))), at
        )
        world.agent.tick(at)

    kinds = [each.kind for each in world.notices]
    assert (kinds.count("Warning"), kinds.count("Normal")) == (6, 6)


def test_the_sums_of_a_card_are_reported_at_the_next_interval(world: World) -> None:
    world.agent.pods = (pod("p", "GPU-a", "GPU-b"),)
    ill = card("GPU-a", healthy=False, fault="XID 48")
    for at, seen in ((0, look(A, B)), (1, look(ill, B)), (2, look(A, B)), (3, look(ill, B))):
        world.agent.on_reading(seen, at)
    world.agent.on_reading(look(ill, B), QUIET_MS)
    assert [each.kind for each in world.notices] == ["Warning", "Normal"]

    world.agent.on_reading(look(ill, B), QUIET_MS + 1)
    assert [each.note for each in world.notices][2:] == ["card GPU-a of this pod is not healthy: XID 48"]
    world.agent.on_reading(look(ill, B), 9 * QUIET_MS)
    assert len(world.notices) == 3


def test_cards_that_fail_together_are_one_event_on_a_pod(world: World) -> None:
    world.agent.pods = (pod("p", "GPU-a", "GPU-b"),)
    world.agent.on_reading(look(A, B), 0)
    world.agent.on_card_failed(CardFailed(("GPU-a", "GPU-b"), "XID 79"), 1)

    (notice,) = world.notices
    assert notice.note == (
        "card GPU-a of this pod is not healthy: XID 79, card GPU-b of this pod is not healthy: XID 79"
    )


def test_an_agent_that_starts_does_not_repeat_the_reports_of_the_one_before_it() -> None:
    ill = card("GPU-a", healthy=False, fault="XID 48")
    world = World(node(node_patch.inventory((ill, B))))
    world.agent.pods = (pod("p", "GPU-a", "GPU-b"),)
    world.agent.on_reading(look(ill, B), 0)
    assert world.notices == []

    world.agent.on_reading(look(A, B), 1)
    world.agent.pods = (pod("new", "GPU-a"),)
    world.agent.on_reading(look(ill, B), 2)
    assert [(each.name, each.kind) for each in world.notices] == [("p", "Normal"), ("new", "Warning")]


def test_mps_is_in_the_inventory_once_it_lasts_and_does_not_have_the_node_written_each_time(
    world: World,
) -> None:
    for at in range(0, 1_200_000, 5_000):
        comes_and_goes = at < 300_000 and at % 10_000
        stays = 300_000 <= at < 400_000
        world.agent.on_reading(look(A, B, mps=("GPU-a",) if comes_and_goes or stays else ()), at)
        world.agent.write_if_due(at)

    told = [patch["metadata"]["annotations"]["bursar.dev/inventory"] for patch in world.patches]

    assert [node_patch.read_mps(each) for each in told] == [set(), {"GPU-a"}, set()]
    assert '"mps"' not in told[2]


def test_an_xid_is_written_at_once(world: World) -> None:
    world.agent.on_reading(look(A), 0)
    world.agent.write_if_due(0)
    world.agent.on_card_failed(CardFailed(("GPU-a",), "XID 79"), GAP_MS)
    world.agent.write_if_due(GAP_MS)

    (told,) = node_patch.read_inventory(world.patches[1]["metadata"]["annotations"]["bursar.dev/inventory"])
    assert (told.healthy, told.fault) == (False, "XID 79")
    assert "status" not in world.patches[1]


def test_while_nvml_hangs_its_cards_become_unhealthy_within_half_a_minute_and_are_well_after(
    world: World,
) -> None:
    world.agent.on_reading(look(A), 0)
    for at in range(0, 30_000, 1_000):
        world.agent.tick(at)
    assert not world.agent.cards[0].healthy
    assert not world.agent.nvml_answers

    world.agent.on_reading(look(A), 40_000)
    assert world.agent.cards == (A,)
    assert world.words() == ["reader-silent", "card-unhealthy", "reader-back", "card-healthy-again"]
    assert LOOK_MS + HUNG_MS + PATIENCE_MS <= 30_000


def test_an_agent_that_starts_without_nvml_leaves_what_was_written_and_says_one_line() -> None:
    stands = node(
        node_patch.inventory((A,)),
        None,
        {
            "bursar.dev/gpu-percent": "100",
            "bursar.dev/gpu-memory": str(MEMORY_MIB),
            "bursar.dev/gpu-count": "1000",
            "cards.bursar.dev/millionths": "1000000",
        },
    )
    world = World(stands)
    for at in range(3):
        world.agent.on_reading(look(error="Driver Not Loaded"), at * 1_000)
        world.agent.write_if_due(at * 1_000)

    assert world.patches == []
    assert world.words() == ["reader-silent"]


def test_a_node_without_a_driver_and_without_an_inventory_gets_none(world: World) -> None:
    for at in range(0, 100_000, LOOK_MS):
        world.agent.on_reading(look(error="no library"), at)
        world.agent.write_if_due(at)

    assert world.patches == []


def test_after_a_reboot_missing_cards_go_once_it_is_known_that_no_pod_holds_them() -> None:
    stands = node(
        node_patch.inventory((A, B)), '{"version":1,"boot":"boot-0","known":true,"pods":{},"closed":""}'
    )
    world = World(stands)
    world.agent.on_reading(look(B.but(index=0)), 0)
    assert len(world.agent.cards) == 2

    world.agent.pods = ()
    world.agent.on_reading(look(B.but(index=0)), 5_000)
    assert [(each.uuid, each.index) for each in world.agent.cards] == [("GPU-b", 0)]
