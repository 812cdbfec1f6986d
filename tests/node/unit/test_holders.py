"""Which pods are really on the node's cards: the annotation ``bursar.dev/holders``, look by look."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.nvml.cards import NVIDIA
from sidecar.node.state import holders
from sidecar.node.state.holders import HoldersRecord, Observation
from sidecar.node.state.plugin_devices import PluginDevices
from sidecar.node.values import PodState
from tests.node.worlds import node
from timekeeper.core.kube.holders import MAX_CLOSED, NodeHolders, decode_holders

BOOT = "5f1c7f0e-7f86-4b1e-9d57-1d6a3f0a8a11"
NEW = HoldersRecord(BOOT, False, {}, "")
GPU = "nvidia.com/gpu"


def pod(uid: str, *cards: str, name: str = "") -> PodState:
    """A pod of team-a with these cards by its placement."""
    return PodState(uid, "team-a", name or uid, cards, False, (("main", cards),) if cards else ())


def sight(
    *pods: PodState, there: dict[str, bool], given: dict[str, tuple[str, ...]] | None = None
) -> Observation:
    """A look at everything; with ``given``: on a node whose plugin picks the cards."""
    return Observation(pods, there, given or {}, given is not None)


def test_a_gpu_pod_with_processes_is_listed_with_its_cards() -> None:
    found = holders.after(NEW, sight(pod("a", "GPU-1"), pod("cpu"), there={"a": True, "cpu": True}))

    assert found == HoldersRecord(BOOT, True, {"a": ("GPU-1",)}, "")


def test_a_pod_that_has_not_begun_is_not_listed_yet() -> None:
    found = holders.after(NEW, sight(pod("a", "GPU-1"), pod("b", "GPU-2"), there={"a": False}))

    assert found == HoldersRecord(BOOT, True, {}, "")


def test_a_pod_deleted_by_force_stays_listed_while_its_cgroup_has_processes() -> None:
    ran = holders.after(NEW, sight(pod("a", "GPU-1"), there={"a": True}))
    forced = holders.after(ran, sight(there={"a": True}))
    ended = holders.after(forced, sight(there={"a": False, "other": True}))

    assert forced.pods == {"a": ("GPU-1",)}
    assert ended.pods == {}


def test_it_stays_listed_over_a_restart_of_the_agent_too() -> None:
    ran = holders.after(NEW, sight(pod("a", "GPU-1"), there={"a": True}))
    begun = holders.initial(holders.text(ran), BOOT)
    forced = holders.after(begun, sight(there={"a": True}))

    assert begun == HoldersRecord(BOOT, False, {"a": ("GPU-1",)}, "")
    assert forced == HoldersRecord(BOOT, True, {"a": ("GPU-1",)}, "")


def test_after_a_reboot_nothing_of_before_is_listed() -> None:
    ran = holders.after(NEW, sight(pod("a", "GPU-1"), there={"a": True}))

    assert holders.initial(holders.text(ran), "another") == HoldersRecord("another", False, {}, "")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"version": 2}',
        '{"version": 1, "boot": "b", "known": true, "pods": [], "closed": ""}',
        '{"version": 1, "boot": 7, "known": true, "pods": {}, "closed": ""}',
        '{"version": 1, "boot": "b", "known": true, "pods": {"a": [1]}, "closed": ""}',
    ],
)
def test_an_annotation_that_is_none_of_ours_counts_as_none(text: str | None) -> None:
    assert holders.initial(text, BOOT) == NEW


def test_nothing_is_known_before_everything_was_seen_once() -> None:
    no_pods = Observation(None, {"a": True}, {}, False)
    no_cgroups = Observation((pod("a", "GPU-1"),), None, {}, False)
    no_kubelet = Observation((pod("a"),), {"a": True}, None, True)

    assert [holders.after(NEW, each).known for each in (no_pods, no_cgroups, no_kubelet)] == [False] * 3


def test_what_was_known_once_stays_known_while_a_part_does_not_answer() -> None:
    ran = holders.after(NEW, sight(pod("a", "GPU-1"), there={"a": True}))

    assert holders.after(ran, Observation(None, None, None, True)) == ran


def test_while_cgroups_cannot_be_read_no_pod_is_taken_off_the_list() -> None:
    ran = holders.after(NEW, sight(pod("a", "GPU-1"), there={"a": True}))

    assert holders.after(ran, Observation((), None, {}, False)).pods == {"a": ("GPU-1",)}


def test_while_cgroups_cannot_be_read_a_pod_that_was_given_cards_counts_as_begun() -> None:
    ran = holders.after(NEW, sight(pod("a", "GPU-1"), there={"a": True}))
    blind = holders.after(
        ran, Observation((pod("a", "GPU-1"), pod("b", "GPU-2"), pod("cpu")), None, {}, False)
    )
    seeing = holders.after(blind, sight(pod("a", "GPU-1"), pod("b", "GPU-2"), there={"a": True, "b": False}))

    assert (blind.known, blind.pods) == (True, {"a": ("GPU-1",), "b": ("GPU-2",)})
    assert (seeing.known, seeing.pods) == (True, {"a": ("GPU-1",)})


def test_where_a_plugin_picks_the_cards_its_word_counts_and_not_the_placements() -> None:
    look = sight(pod("a", "GPU-1"), there={"a": True}, given={"a": ("GPU-2",)})

    assert holders.after(NEW, look).pods == {"a": ("GPU-2",)}


def test_where_a_plugin_picks_a_pod_that_it_gave_nothing_holds_nothing() -> None:
    looks = (
        sight(pod("a", "GPU-1"), there={"a": True}, given={"a": ()}),
        Observation((pod("a", "GPU-1"),), {"a": True}, None, True),
    )

    assert [holders.after(NEW, look).pods for look in looks] == [{}, {}]


def test_where_a_plugin_picks_a_pod_older_than_bursar_is_listed() -> None:
    look = sight(
        pod("old"), pod("cpu"), there={"old": True, "cpu": True}, given={"old": ("GPU-2",), "cpu": ()}
    )

    assert holders.after(NEW, look) == HoldersRecord(BOOT, True, {"old": ("GPU-2",)}, "")


def test_where_a_plugin_picks_a_pod_holds_its_cards_as_soon_as_it_has_a_cgroup() -> None:
    starting = sight(pod("a"), there={"a": False}, given={"a": ("GPU-1",)})
    ended = sight(pod("a"), there={"b": True}, given={"a": ("GPU-1",)})

    assert holders.after(NEW, starting).pods == {"a": ("GPU-1",)}
    assert holders.after(NEW, ended).pods == {}, "an old kubelet tells of pods that have ended"


def test_where_a_plugin_picks_a_pod_deleted_by_force_keeps_the_cards_it_was_given() -> None:
    # the kubelet tells of it no longer, though it runs
    ran = holders.after(NEW, sight(pod("a"), there={"a": True}, given={"a": ("GPU-1",)}))
    forced = holders.after(holders.initial(holders.text(ran), BOOT), sight(there={"a": True}, given={}))

    assert forced == HoldersRecord(BOOT, True, {"a": ("GPU-1",)}, "")


def test_while_the_kubelet_does_not_answer_pods_keep_the_cards_they_were_given() -> None:
    ran = holders.after(NEW, sight(pod("a"), there={"a": True}, given={"a": ("GPU-1",)}))

    assert holders.after(ran, Observation((pod("a"),), {"a": True}, None, True)) == ran


def test_the_kubelets_names_become_uids_by_the_api_servers_word() -> None:
    given = (
        PluginDevices("team-a", "train", ((GPU, "GPU-1"), (GPU, "GPU-2::0"))),
        PluginDevices("team-b", "train", ((GPU, "GPU-3"),)),
        PluginDevices("team-a", "web", (("rdma/hca", "m"),)),
    )
    pods = (pod("a", name="train"), pod("w", name="web"))

    found = holders.by_uid(given, pods, frozenset({"GPU-1", "GPU-2", "GPU-3"}))

    assert found == {"a": ("GPU-1", "GPU-2"), "w": ()}


def test_a_reason_closes_the_node_and_none_opens_it() -> None:
    why = holders.closed(NEW, "x" * 1_000)

    assert why.closed == "x" * MAX_CLOSED
    assert holders.closed(why, "") == NEW


def test_the_text_is_what_the_readers_read() -> None:
    held = HoldersRecord(BOOT, True, {"a": ("GPU-1", "GPU-2"), "b": ()}, "a pod …")

    assert decode_holders(holders.text(held)) == NodeHolders(
        BOOT, True, {"a": ("GPU-1", "GPU-2"), "b": ()}, "a pod …"
    )


def test_the_text_is_the_same_for_the_same_holders() -> None:
    one = holders.after(NEW, sight(pod("a", "GPU-1"), pod("b", "GPU-2"), there={"a": True, "b": True}))
    other = holders.after(NEW, sight(pod("b", "GPU-2"), pod("a", "GPU-1"), there={"b": True, "a": True}))

    assert holders.text(one) == holders.text(other)
    assert json.loads(holders.text(one))["version"] == 1


@pytest.mark.parametrize(
    ("resource", "picked"),
    [("nvidia.com/gpu", True), ("nvidia.com/mig-1g.10gb", True), ("aliyun.com/gpu-mem", False)],
)
def test_nvidias_plugin_picks_the_cards_itself(resource: str, picked: bool) -> None:
    assert holders.picked_by_plugin(node(capacity={resource: "8"}), NVIDIA.resources) is picked


UIDS = ("a", "b", "c")
states = st.fixed_dictionaries({uid: st.tuples(st.booleans(), st.booleans()) for uid in UIDS})


@given(st.lists(st.tuples(states, st.booleans()), min_size=1, max_size=12))
def test_a_pod_once_listed_is_listed_exactly_while_it_has_processes(
    looks: list[tuple[dict[str, tuple[bool, bool]], bool]],
) -> None:
    """``looks``: by pod, whether its object and its processes are there; and whether the agent restarts."""
    held = NEW
    told: set[str] = set()
    for state, restarts in looks:
        objects = tuple(pod(uid, f"GPU-{uid}") for uid, (is_object, _) in state.items() if is_object)
        running = {uid for uid, (_, runs) in state.items() if runs}
        held = holders.after(held, sight(*objects, there={uid: uid in running for uid in UIDS}))
        told = {uid for uid in running if uid in told or state[uid][0]}

        assert held == HoldersRecord(BOOT, True, {uid: (f"GPU-{uid}",) for uid in told}, "")
        held = holders.initial(holders.text(held), BOOT) if restarts else held
