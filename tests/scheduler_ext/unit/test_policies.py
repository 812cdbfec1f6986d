"""Which policy places a pod, what each prefers, and what `fragmentation` learns from the pods it sees."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_any
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.scoring.fragmentation import FragmentationPerNode
from scheduler_ext.scoring.load import CardLoads, LoadByCard, load
from scheduler_ext.scoring.policy import BINPACK, NO_FIT, RANDOM, Policy
from scheduler_ext.scoring.rank import foremost, places, ranked
from scheduler_ext.scoring.selection import MAX_KNOWN, Policies
from scheduler_ext.scoring.typical_pods import (
    BUILT_IN,
    ENOUGH_PODS,
    FEWEST_PODS,
    MAX_SHAPES,
    TypicalPod,
    TypicalPods,
    differ_milli,
    learn,
    typical_pod_of,
    typical_pods_of,
)
from scheduler_ext.snapshot.snapshot import Snapshot, non_gpu_pod_updated, pod_updated
from scheduler_ext.verbs.fit_cache import FilterResult, FitCache, fit_key
from scheduler_ext.verbs.protocol import ExtenderArgs
from tests.scheduler_ext.machine import Cluster, Replica
from tests.scheduler_ext.unit.test_cpu import plain, with_cpu
from tests.scheduler_ext.unit.test_leading import verbs_of
from tests.scheduler_ext.worlds import (
    Json,
    asking,
    bound,
    cards_of,
    node,
    on,
    percent,
    read,
    rebuilt,
    with_used,
)
from tests.worlds import card, container


def policies(default: str = "fragmentation", **namespaces: str) -> Policies:
    """With these namespaces' policies, and no measured figures."""
    standings = NamespaceStandings(
        {name: NamespaceStanding("IN_BUDGET", policy=word) for name, word in namespaces.items()}
    )
    return Policies(default, lambda: standings, lambda: None, lambda why: None)


def saying(word: str, namespace: str = "team-a") -> Json:
    """A pod that names its policy."""
    raw = percent(50, annotations={"bursar.dev/policy": word} if word else {})
    raw["metadata"]["namespace"] = namespace
    return raw


@pytest.mark.parametrize(
    ("cluster", "namespace", "pod", "policy"),
    [
        ("spread", "", "", "spread"),
        ("spread", "binpack", "", "binpack"),
        ("spread", "binpack", "random", "random"),
        ("binpack", "", "fragmentation", "fragmentation"),
        ("fragmentation", "", "", "fragmentation"),
        ("load", "", "", "fragmentation"),
    ],
)
def test_the_pods_word_comes_before_its_namespaces_and_that_before_the_clusters(
    cluster: str, namespace: str, pod: str, policy: str
) -> None:
    chosen = policies(cluster, **{"team-a": namespace})

    assert chosen(read(saying(pod))).name == policy
    assert chosen(read(saying("", "team-b"))).name == policies(cluster)(read(saying(""))).name


def test_load_goes_by_what_is_measured_once_there_is_something() -> None:
    said: list[str] = []
    measured: list[LoadByCard | None] = [None]
    chosen = Policies("load", NamespaceStandings, lambda: measured[0], said.append)
    pod = read(saying(""))

    before = [chosen(pod).name, chosen(pod).name]
    measured[0] = {"GPU-0": 10}
    after = chosen(pod)

    assert before == ["fragmentation"] * 2
    assert after.name == "load"
    assert chosen(pod) == after
    measured[0] = {"GPU-0": 10}
    assert chosen(pod) != after
    assert said == ["no measurements of card load"]


def test_each_time_that_load_has_no_figures_that_is_reported_once() -> None:
    said: list[str] = []
    measured: list[LoadByCard | None] = [None]
    chosen = Policies("load", NamespaceStandings, lambda: measured[0], said.append)

    for figures in (None, None, {"GPU-0": 10}, {"GPU-0": 10}, None, None):
        measured[0] = figures
        chosen(read(saying("")))

    assert said == ["no measurements of card load"] * 2


def scored(policy: Policy, raw: Json, snapshot: Snapshot, names: list[str]) -> list[int]:
    """What the nodes are ranked by."""
    pod = read(raw)
    assert pod.request is not None
    found: list[int] = (
        FitCache().scored(fit_key(pod.request, policy, pod.amounts), snapshot.nodes, names)[0].tolist()
    )
    return found


def test_load_takes_the_least_busy_card_of_the_least_busy_node() -> None:
    snapshot = with_used(a=[100, 100], b=[100, 80], c=[30, 100])
    busy = {"a-GPU-0": 700, "a-GPU-1": 300, "b-GPU-0": 250, "b-GPU-1": 100, "c-GPU-0": 0, "c-GPU-1": 90}
    policy = load(CardLoads(busy))

    assert scored(policy, percent(50), snapshot, ["a", "b", "c"]) == [-300, -100, -90]
    request = read(percent(50)).request
    assert request is not None
    placed = fit(request, snapshot.node("b"), policy)
    assert cards_of(placed) == {"main": [1]}


class Watched(dict[str, int]):
    """Figures that note whose are looked at."""

    def __init__(self, **busy: int) -> None:
        super().__init__({uuid.replace("_", "-"): each for uuid, each in busy.items()})
        self.read: list[str] = []

    def get(self, uuid: str, default: int | None = None) -> int | None:  # type: ignore[override]
        """How busy the card is."""
        self.read.append(uuid)
        return super().get(uuid, default)


def test_whether_a_pod_fits_is_not_computed_again_with_other_figures_but_how_well_is() -> None:
    cluster, figures = Cluster(), Watched(a_GPU_0=100, b_GPU_0=200)
    for name in ("a", "b"):
        cluster.put("nodes", node(name, card(0)))
    pod = cluster.put("pods", percent(50))
    replica = Replica(cluster, "x", "x")
    replica.deliver()
    verbs = verbs_of(
        replica, waits=bool, policies=Policies("load", NamespaceStandings, lambda: figures, pytest.fail)
    )
    asked = ExtenderArgs(pod, ["a", "b"], None)

    assert (verbs.filter(asked), figures.read) == (FilterResult(["a", "b"], {}, {}), [])
    assert (verbs.prioritize(asked).tolist(), sorted(figures.read)) == ([10, 9], ["a-GPU-0", "b-GPU-0"])


def test_an_unmeasured_card_is_taken_last() -> None:
    policy = load(CardLoads({"a-GPU-0": 999}))

    assert scored(policy, percent(50), with_used(a=[100], b=[100]), ["a", "b"]) == [-999, -1000]


def test_random_draws_a_node_by_the_pods_uid_and_the_same_one_each_time() -> None:
    names = [f"n{at}" for at in range(10)]
    scores = [0] * 9 + [NO_FIT]

    each = (ranked(RANDOM, f"uid-{at}", scores, places(names)).tolist() for at in range(2_000))
    drawn = Counter(names[ranks.index(10)] for ranks in each)

    assert set(drawn) == set(names[:9])
    assert all(150 < count < 300 for count in drawn.values())
    assert (ranked(RANDOM, "u", scores, places(names)) == ranked(RANDOM, "u", scores, places(names))).all()
    assert ranked(RANDOM, "u", scores, places(names))[9] == 0


# what is learned


def test_typical_pods_are_the_most_frequent_shapes_that_cover_95_percent_of_the_pods() -> None:
    rare, often, some, most = (
        TypicalPod(1, 1, 100),
        TypicalPod(2, 1, 200),
        TypicalPod(3, 1, 300),
        TypicalPod(4, 1, 400),
    )

    assert typical_pods_of({rare: 5, often: 45, some: 25, most: 25}) == TypicalPods(
        ((often, 45), (most, 25), (some, 25))
    )
    assert typical_pods_of({rare: 6, often: 44, some: 25, most: 25}).pods == 100
    assert len(typical_pods_of({TypicalPod(at, 1, 100): 1 for at in range(300)}).counts) == MAX_SHAPES
    assert typical_pods_of({}) == TypicalPods(())


def world(sizes: Mapping[int, int], plain_pods: int = 0, cards: bool = True) -> Snapshot:
    """Pods by percent that are bound elsewhere, and pods without a GPU on one node."""
    pods = [
        bound(with_cpu(percent(size, f"p{size}-{at}"), "2"), "elsewhere", None)
        for size, many in sizes.items()
        for at in range(many)
    ]
    snapshot = rebuilt([node("n", card(0))] if cards else [], pods)
    for at in range(plain_pods):
        other = read_any(plain(f"o{at}", "1"))
        snapshot = non_gpu_pod_updated(snapshot, other)  # type: ignore[arg-type]
    return snapshot


def test_nothing_is_learned_of_a_few_pods() -> None:
    assert learn(world({50: FEWEST_PODS - 1})) == BUILT_IN
    assert learn(world({50: FEWEST_PODS})) == TypicalPods(((TypicalPod(2_000, 1, 500), FEWEST_PODS),))


def test_of_a_pod_whose_claims_are_not_known_yet_nothing_is_learned() -> None:
    """Anyone can create one: it names a claim that is never created."""
    waiting = asking(container(), name="c", annotations={"bursar.dev/claims": "unknown"})
    snapshot = pod_updated(world({50: FEWEST_PODS}), read(waiting))

    assert learn(snapshot) == TypicalPods(((TypicalPod(2_000, 1, 500), FEWEST_PODS),))


def test_pods_without_a_gpu_count_where_there_are_cards_and_never_more_than_the_others() -> None:
    half = (TypicalPod(2_000, 1, 500), 30)

    assert learn(world({50: 30}, 7)) == TypicalPods((half, (TypicalPod(0), 7)))
    assert learn(world({50: 30}, 99)) == TypicalPods((half, (TypicalPod(0), 30)))
    assert learn(world({50: 30}, 99, cards=False)) == TypicalPods((half,))


@pytest.mark.untraced
def test_of_many_pods_a_part_is_looked_at() -> None:
    snapshot = world({50: ENOUGH_PODS // 2, 20: ENOUGH_PODS // 2 + 10})

    typical_pods = learn(snapshot)

    assert ENOUGH_PODS // 3 < typical_pods.pods <= ENOUGH_PODS
    assert (
        differ_milli(
            typical_pods, TypicalPods(((TypicalPod(2_000, 1, 500), 1), (TypicalPod(2_000, 1, 200), 1)))
        )
        < 60
    )


def test_waiting_pods_of_one_namespace_cannot_make_themselves_the_typical_ones() -> None:
    running = [bound(with_cpu(percent(50, f"r{at}"), "2"), "n", None) for at in range(100)]
    waiting = [with_cpu(percent(20, f"w{at}"), "9P") for at in range(400)]
    others = [with_cpu(percent(30, f"o{at}"), "2") for at in range(3)]
    for each in others:
        each["metadata"]["namespace"] = "another"

    typical_pods = learn(rebuilt([node("n", card(0))], [*running, *waiting, *others]))

    assert typical_pods == typical_pods_of(
        {TypicalPod(2_000, 1, 500): 100, TypicalPod(10**9, 1, 200): 5, TypicalPod(2_000, 1, 300): 3}
    )
    assert learn(rebuilt([node("n", card(0))], waiting)) == BUILT_IN


def test_of_several_containers_the_one_that_requests_most_stands_for_the_pod() -> None:
    request = read(
        asking(
            container("a", gpu_percent="40"), container("b", gpu_count="2"), container("c", gpu_percent="90")
        )
    ).request
    assert request is not None

    assert typical_pod_of(request, 500) == TypicalPod(500, 2, 1000)


def test_answers_are_computed_again_only_when_the_typical_pods_have_changed() -> None:
    chosen, pod = policies(), read(percent(10))
    first = chosen(pod)

    learned = chosen.learn(world({50: 90, 20: 10}))
    second = chosen(pod)
    hardly = chosen.learn(world({50: 88, 20: 12}))

    assert (learned, hardly) == (True, False)
    assert chosen(pod) == second != first
    assert chosen.fragmentation_model.typical_pods == learn(world({50: 90, 20: 10}))
    assert chosen.learn(world({50: 80, 20: 20}))


def test_pods_with_equal_cpu_share_one_policy_until_others_have_come_in_between() -> None:
    chosen, pods = policies(), [read(with_cpu(percent(50), f"{at}m")) for at in range(MAX_KNOWN + 1)]
    first = chosen(pods[0])

    assert chosen(read(with_cpu(percent(20), "0m"))) is first
    for pod in pods:
        chosen(pod)
    assert chosen(pods[0]) == first
    assert chosen(pods[0]) is not first


def test_a_pod_is_ranked_by_its_policy_of_now_whatever_its_filter_was_asked_under() -> None:
    cluster, standings = Cluster(), [NamespaceStandings()]
    for name, used in (("a", 50), ("b", 0)):
        cluster.put("nodes", node(name, card(0)))
        if used:
            cluster.put("pods", on(percent(used, "user"), name, f"{name}-GPU-0"))
    pod = cluster.put("pods", percent(40))
    replica = Replica(cluster, "x", "x")
    replica.deliver()
    by_namespace = Policies("binpack", lambda: standings[0], lambda: None, pytest.fail)
    verbs = verbs_of(replica, waits=bool, policies=by_namespace)
    asked = ExtenderArgs(pod, ["a", "b"], None)

    verbs.filter(asked)
    standings[0] = NamespaceStandings({"team-a": NamespaceStanding("IN_BUDGET", policy="spread")})

    assert verbs.prioritize(asked).tolist() == [9, 10]


def test_the_policy_knows_how_much_cpu_its_pod_takes() -> None:
    chosen = policies()(read(with_cpu(percent(50), "2500m")))

    assert isinstance(chosen.per_node, FragmentationPerNode)
    assert chosen.per_node.cpu_milli == 2_500


def test_a_node_without_cpu_for_its_last_gpus_is_left_to_pods_that_need_little() -> None:
    def of(name: str, cores: str) -> Json:
        raw = node(name, card(0), card(1))
        raw["status"]["allocatable"] = {**raw["status"]["allocatable"], "cpu": cores}
        return raw

    snapshot = rebuilt([of("a", "16"), of("b", "64")], [])
    chosen = policies()
    hungry, modest = with_cpu(percent(50), "12"), with_cpu(percent(50), "1")

    hungry_scores = scored(chosen(read(hungry)), hungry, snapshot, ["a", "b"])
    modest_scores = scored(chosen(read(modest)), modest, snapshot, ["a", "b"])

    assert hungry_scores[0] < hungry_scores[1]
    assert modest_scores[0] >= modest_scores[1]
    assert read_node(of("a", "16")).cpu_milli == 16_000


@example([0, 0, 5, *[0] * 7, 5], 1, False)  # of two that are best n10 is the first by name
@given(
    st.lists(st.integers(-5, 5) | st.just(NO_FIT), min_size=1, max_size=30), st.integers(1, 31), st.booleans()
)
def test_the_foremost_are_none_worse_than_those_left_out_and_the_best_is_among_them(
    scores: list[int], most: int, drawn: bool
) -> None:
    names = [f"n{at}" for at in range(len(scores))]
    policy = RANDOM if drawn else BINPACK

    found = foremost(policy, "uid-1", scores, places(names), names, most)

    assert found == [name for name in names if name in found]
    assert len(found) == min(most, len(names))
    if not drawn:
        by_name = dict(zip(names, scores, strict=True))
        left = [by_name[name] for name in names if name not in found]
        assert not left or min(by_name[name] for name in found) >= max(left)
    ranks = dict(zip(names, ranked(policy, "uid-1", scores, places(names)).tolist(), strict=True))
    if any(score != NO_FIT for score in scores):
        assert 10 in {ranks[name] for name in found}
