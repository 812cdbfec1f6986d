"""The reference algorithms, by hand and against the published runs."""

import ast
import csv
from pathlib import Path

import pytest

from tests.bench.experiment import Experiment, NodeRow, PodRow, run
from tests.bench.generator import GENERATED, Profile, generate
from tests.bench.placement import DATA, SEEDS, trace
from tests.bench.references import REFERENCES, Judge, Random, State, clustering, packing

pytestmark = pytest.mark.untraced


HERE = Path(__file__).parents[1]


def pod(cpu: int = 0, gpus: int = 0, milli: int = 1000, *models: str, memory: int = 0) -> PodRow:
    """A pod of so many GPUs; none makes it a CPU-only one."""
    return PodRow(cpu, memory, gpus, milli if gpus else 0, models)


def share(milli: int, cpu: int = 0) -> PodRow:
    """A pod of a share of one GPU."""
    return pod(cpu, 1, milli)


def state(*cards: int, cpu: int = 64_000, hosts: frozenset[str] = frozenset(), model: str = "T4") -> State:
    """A node with so much left on its cards."""
    return State(cpu, 10_000, cards, model, hosts)


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
    "name",
    [
        pytest.param(name, marks=() if name == "FGD" else pytest.mark.soak)
        for name in REFERENCES
        if name != "Random" and not name.startswith("DeviceClaims")  # of which no run is published
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
