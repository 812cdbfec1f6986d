"""The reference algorithms, by hand and against the published runs."""

import ast
import csv
import random
from pathlib import Path

import pytest

from tests.bench.experiment import Experiment, NodeRow, PodRow, run
from tests.bench.generator import GENERATED, Profile, generate
from tests.bench.placement import DATA, SEEDS, trace
from tests.bench.references import (
    REFERENCES,
    Gradient,
    Judge,
    Random,
    Reference,
    State,
    Typical,
    best_fit,
    clustering,
    dot_product,
    fits,
    fragment,
    packing,
    tightest,
    typical,
)

pytestmark = pytest.mark.untraced


HERE = Path(__file__).parents[1]
NOTHING: frozenset[str] = frozenset()


def pod(cpu: int = 0, gpus: int = 0, milli: int = 1000, *models: str, memory: int = 0) -> PodRow:
    """A pod of so many GPUs; none makes it a CPU-only one."""
    return PodRow(cpu, memory, gpus, milli if gpus else 0, models)


def share(milli: int, cpu: int = 0) -> PodRow:
    """A pod of a share of one GPU."""
    return pod(cpu, 1, milli)


def state(*cards: int, cpu: int = 64_000, hosts: frozenset[str] = NOTHING, model: str = "T4") -> State:
    """A node with so much left on its cards."""
    return State(cpu, 10_000, cards, model, hosts)


def nodes(*each: tuple[int, int]) -> tuple[NodeRow, ...]:
    """Nodes of so much CPU and so many GPUs."""
    return tuple(NodeRow(f"n{at}", cpu, 10_000, gpus, "T4") for at, (cpu, gpus) in enumerate(each))


@pytest.mark.parametrize("module", ["references.py", "experiment.py"])
def test_the_references_import_nothing_of_ours(module: str) -> None:
    imports = {
        alias.name if isinstance(each, ast.Import) else each.module or ""
        for each in ast.walk(ast.parse((HERE / module).read_text()))
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }

    assert not {name for name in imports if name.split(".")[0] in ("scheduler_ext", "timekeeper", "webhook")}


@pytest.mark.parametrize(
    ("judge", "asked", "node", "score"),
    [
        (best_fit, pod(32_000, 1), state(1000, 1000), 81),  # 1 - 32/256 - 1000/16000 = 0.8125
        (best_fit, pod(64_000, 2), state(1000, 1000), 100),
        (best_fit, pod(32_000), state(1000, 1000), 75),  # 1 - 32/256 - 2000/16000 = 0.75
        (dot_product, pod(32_000, 1), state(1000, 1000), 92),  # 1 - (1/2 x 1/4 + 1/4 x 1/8) / 2 = 0.9219
        (dot_product, share(500, cpu=64_000), state(1000, 200, cpu=128_000), 74),
        (packing, pod(1_000), state(1000, 1000), 0),
        (packing, pod(0, 2), state(1000, 1000, 1000, 1000), 29),
        (packing, share(100), state(1000, 1000, 1000, 1000), 29),
        (packing, pod(0, 2), state(200, 1000, 1000, 500), 48),
        (packing, share(300), state(200, 1000), 49),
        (packing, share(200), state(550, 1000), 95),  # 55 % of the card left: 100 - 5
        (clustering, pod(1_000), state(1000, 1000), 0),
        (clustering, share(200), state(1000, 1000), 43),  # 25 x 6000 / 8000 = 18, and 25
        (clustering, share(200), state(1000, 1000, hosts=frozenset({"share"})), 93),
        (clustering, share(200), state(1000, 1000, hosts=frozenset({"share", "1 GPU"})), 68),
        (clustering, share(200), state(1000, 1000, hosts=frozenset({"1 GPU"})), 18),
        (clustering, pod(0, 2), state(1000, 1000, hosts=frozenset({"1 GPU"})), 18),
    ],
)
def test_the_scores_are_those_worked_out_by_hand(
    judge: Judge, asked: PodRow, node: State, score: int
) -> None:
    assert judge(asked, node)[0] == score


@pytest.mark.parametrize(
    ("asked", "cards", "chosen"),
    [
        (share(200), (1000, 300, 200, 200), (2,)),
        (share(250), (1000, 300, 200, 300), (1,)),
        (pod(0, 2), (0, 1000, 900, 1000, 1000), (1, 3)),
        (pod(1_000), (1000,), ()),
    ],
)
def test_a_share_fills_the_tightest_card_and_whole_gpus_take_the_first_free_ones(
    asked: PodRow, cards: tuple[int, ...], chosen: tuple[int, ...]
) -> None:
    assert tightest(asked, state(*cards)) == chosen


@pytest.mark.parametrize(
    ("asked", "fit"),
    [
        (pod(64_000, 1), True),
        (pod(64_001, 1), False),
        (pod(0, 1, memory=10_001), False),
        (pod(0, 2), False),
        (share(600), True),
        (pod(0, 1, 1000, "V100M16", "T4"), True),
        (pod(0, 1, 1000, "V100M16"), False),
        (PodRow(0, 0, 0, 0, ("V100M16",)), True),
    ],
)
def test_a_node_is_feasible_by_cpu_memory_model_and_cards(asked: PodRow, fit: bool) -> None:
    assert fits(asked, state(600, 1000)) is fit


def test_typical_pods_are_the_most_frequent_shapes_until_95_per_cent_are_covered() -> None:
    listed = [share(500)] * 10 + [pod(4_000)] * 5 + [pod(8_000, 1)] * 5

    # the larger of equally frequent ones comes first; with two of them 15 of 20 are covered, with three all
    assert typical(listed) == [
        Typical(0, 500, 1, (), 0.5),
        Typical(8_000, 1000, 1, (), 0.25),
        Typical(4_000, 0, 0, (), 0.25),
    ]
    assert typical([share(500)] * 95 + [pod(8_000, 1)] * 5) == [Typical(0, 500, 1, (), 1.0)]


def test_the_fragment_is_what_a_typical_pod_could_not_use() -> None:
    shapes = [
        Typical(1_000, 500, 1, (), 0.5),  # loses the card with 300 left
        Typical(1_000, 1000, 2, (), 0.25),  # there are no two whole cards: loses all 1300
        Typical(1_000, 0, 0, (), 0.125),  # asks for none: all
        Typical(4_001, 100, 1, (), 0.0625),  # has no CPU: all
        Typical(1_000, 100, 1, ("A10",), 0.0625),  # not of that model: all
    ]

    assert fragment(shapes, 4_000, (1000, 300), "T4") == 0.5 * 300 + 0.5 * 1300
    assert fragment(shapes, 4_001, (1000, 300), "T4") == 0.5 * 300 + 0.4375 * 1300


def test_the_gradient_takes_the_card_and_the_node_whose_fragment_grows_least() -> None:
    listed = (share(500),) * 19 + (share(300),)
    judge = Gradient(Experiment(nodes((64_000, 2)), listed, (), 0))

    # 300 of the untouched card would strand nothing that is not stranded already, of the other 300 less
    assert judge(share(300), state(1000, 300))[1] == (1,)
    # F falls by 300: int(100 / (1 + exp(-0.3)))
    assert judge(share(300), state(1000, 300))[0] == 57


def naive(judge: Judge, experiment: Experiment) -> list[bool]:
    """Who finds a place if every node is judged for every pod."""
    states = [State(n.cpu_milli, n.memory_mib, (1000,) * n.gpus, n.model) for n in experiment.nodes]
    placed = []
    for each in experiment.arrivals:
        judged = [(judge(each, s), at) for at, s in enumerate(states) if fits(each, s)]
        placed.append(bool(judged))
        if judged:
            (_, cards), at = max(judged, key=lambda found: (found[0][0], -found[1]))
            left = tuple(x - each.gpu_milli * (i in cards) for i, x in enumerate(states[at].cards))
            hosts = states[at].hosts | (
                {"share" if not each.whole else f"{each.num_gpu} GPU"} if each.num_gpu else set()
            )
            states[at] = State(
                states[at].cpu_milli - each.cpu_milli,
                states[at].memory_mib - each.memory_mib,
                left,
                states[at].model,
                frozenset(hosts),
            )
    return placed


@pytest.mark.parametrize("seed", range(5))
def test_judging_only_what_has_changed_comes_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    shapes = [
        share(300, 2_000),
        share(700, 4_000),
        pod(8_000, 1),
        pod(16_000, 2),
        pod(6_000),
        share(50, 9_000),
    ]
    arrivals = tuple(rng.choice(shapes) for _ in range(80))
    there = nodes(*((rng.choice([16_000, 48_000]), rng.choice([1, 2, 4])) for _ in range(9)))
    experiment = Experiment(there, arrivals, arrivals, seed)

    for judge in (best_fit, dot_product, packing, clustering, Gradient(experiment)):
        reference = Reference(experiment, judge)
        assert [reference.place(each) is not None for each in arrivals] == naive(judge, experiment)


def test_ties_go_to_the_first_node_of_the_order() -> None:
    experiment = Experiment(nodes((64_000, 2), (64_000, 2)), (), (), 0)
    reference = Reference(experiment, packing)

    reference.place(share(400))

    assert [reference.state(at).cards for at in (0, 1)] == [(600, 1000), (1000, 1000)]


def test_random_is_the_same_for_a_seed_and_fills_no_card_beyond_its_end() -> None:
    arrivals = tuple([share(400), pod(0, 1)] * 6)
    experiment = Experiment(nodes((64_000, 2), (64_000, 3)), arrivals, arrivals, 7)
    one, other = Random(experiment), Random(experiment)

    assert [one.place(each) for each in arrivals] == [other.place(each) for each in arrivals]
    assert not any(one.place(pod(0, 1)) for _ in range(3))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "FGD" else pytest.mark.soak)
        for name in REFERENCES
        if name != "Random"
    ],
)
def test_a_replay_of_the_trace_is_the_published_run_to_the_second_decimal(name: str) -> None:
    with (DATA / "golden_default.csv").open(newline="") as file:
        published = next(r for r in csv.DictReader(file) if r["policy"] == name and r["seed"] == "42")
    experiment = trace("default", 42)

    outcome = run(experiment, REFERENCES[name](experiment).place)

    assert [f"{outcome.allocation[at] or 0:.2f}" for at in ("100", "130")] == [
        f"{float(published[f'alloc_at_{at}']):.2f}" for at in (100, 130)
    ]
    assert sum(outcome.failed.values()) == int(published["failed_pods_sim"])
    assert len(experiment.arrivals) == int(published["pods"])


def test_random_comes_near_the_published_runs() -> None:
    with (DATA / "golden_default.csv").open(newline="") as file:
        published = [float(r["alloc_at_100"]) for r in csv.DictReader(file) if r["policy"] == "Random"]
    experiment = trace("default", 42)

    measured = run(experiment, Random(experiment).place).allocation["100"] or 0

    assert min(published) - 0.4 < measured < max(published) + 0.4


def test_a_generated_list_is_its_seeds_alone_and_asks_what_its_profile_says() -> None:
    published = trace("default", 42)
    nodes = tuple(sorted(published.nodes))

    def made(profile: Profile, seed: int) -> Experiment:
        return generate(nodes, published.listed, profile, seed)

    def cpu(experiment: Experiment) -> float:
        asking = [each for each in experiment.listed if each.num_gpu]
        return sum(each.cpu_milli for each in asking) / sum(each.asked_milli for each in asking)

    plain, scarce = made(Profile(), 7), made(Profile(cpu=2.0, cpu_only=3.0), 7)

    assert plain == made(Profile(), 7) != made(Profile(), 8)
    assert 1.4 < cpu(scarce) / cpu(plain) < 2.6
    kinds = [sum(each.kind == "cpu" for each in one.listed) for one in (plain, scarce)]
    assert 2.0 < kinds[1] / kinds[0] < 3.0
    for one in (plain, scarce):
        assert sum(each.asked_milli for each in one.arrivals) // 62_120 == 130
        assert all(any(_takes(node, each) for node in nodes) for each in set(one.listed))
    assert not {seed for _, seeds in GENERATED.values() for seed in seeds} & set(SEEDS)
    assert not set(GENERATED["tuning"][1]) & set(GENERATED["held-out"][1])


def _takes(node: NodeRow, asked: PodRow) -> bool:
    enough = node.cpu_milli >= asked.cpu_milli and node.memory_mib >= asked.memory_mib
    return enough and node.gpus >= asked.num_gpu
