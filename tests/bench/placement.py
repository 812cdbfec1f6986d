"""How well the policies pack GPUs: GPU allocation on the openb trace, beside the published algorithms.

``python -m tests.bench.placement --nodes FILE --pods FILE --replay FILE [--policy P] --json FILE`` replays
one experiment on anyone's data (columns: ``openb/README.md``). Without files: every list and seed of the
trace, every policy of Bursar and every reference; a reference that is off the published figures is an error.
"""

import argparse
import csv
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.experiment import (
    CLASSES,
    POINTS,
    Experiment,
    InputError,
    Outcome,
    read_experiment,
    run,
)
from tests.bench.references import REFERENCES
from tests.bench.served import ACTS_AS, POLICIES, Served

Json = dict[str, Any]

DATA = Path(__file__).parent / "openb"
LISTS = ("default", "cpu050", "gpushare40", "multigpu20", "gpuspec10")
SEEDS = (42, 43, 44, 45, 46)
EVERY = (*POLICIES, *REFERENCES)
OFF_PUBLISHED = 0.4  # of the mean over ten seeds, of which five are replayed
OFF_GOLDEN = 0.2  # of the mean over the same seeds


class Replay(NamedTuple):
    """One experiment of the trace, under one policy or reference."""

    name: str
    pods: str
    seed: int


Results = Mapping[Replay, Outcome]


def replayed(experiment: Experiment, name: str) -> Outcome:
    """The experiment under the policy or reference of this name."""
    placing = REFERENCES[name](experiment) if name in REFERENCES else Served(experiment, name)
    return run(experiment, placing.place)


def trace(pods: str, seed: int) -> Experiment:
    """An experiment of the trace."""
    return read_experiment(
        DATA / "openb_node_list_gpu_node.csv.xz",
        DATA / f"openb_pod_list_{pods}.csv.xz",
        DATA / "replay" / f"{pods}-{seed}.json.xz",
    )


def replay(one: Replay) -> Outcome:
    """One of all; in a process of its own."""
    return replayed(trace(one.pods, one.seed), one.name)


def replay_all(wanted: Sequence[Replay], jobs: int) -> Results:
    """All of these, on so many processes, with a line on stderr for each."""
    needed = list(dict.fromkeys(_acting(one) for one in wanted))
    found = {}
    began = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        for one, outcome in zip(needed, pool.map(replay, needed), strict=True):
            found[one] = outcome
            said = f"[{len(found)}/{len(needed)}, {time.monotonic() - began:.0f} s]"
            reached = ", ".join(f"{value} at {at} %" for at, value in outcome.allocation.items())
            print(f"{said} {one.name} {one.pods}-{one.seed}: {reached}", file=sys.stderr)
    return {one: found[_acting(one)] for one in wanted}


def _acting(one: Replay) -> Replay:
    return one._replace(name=ACTS_AS.get(one.name, one.name))


def mean_allocation(results: Results, name: str, pods: str, point: int) -> float | None:
    """Over the seeds; None where a replay never came to that point."""
    values = [
        outcome.allocation[str(point)]
        for one, outcome in results.items()
        if (one.name, one.pods) == (name, pods)
    ]
    reached = [value for value in values if value is not None]
    return statistics.fmean(reached) if reached and len(reached) == len(values) else None


def mean_failed(results: Results, name: str, pods: str) -> dict[str, float]:
    """Pods that found no place, by class, over the seeds."""
    outcomes = [outcome for one, outcome in results.items() if (one.name, one.pods) == (name, pods)]
    return {kind: statistics.fmean(outcome.failed[kind] for outcome in outcomes) for kind in CLASSES}


def off(results: Results) -> list[str]:
    """A sentence for each reference that is not what was published."""
    seeds = {one.seed for one in results}
    expected = [*_published(), *_golden(seeds)]
    said = []
    for name, pods, point, figure, tolerance in expected:
        measured = mean_allocation(results, name, pods, point)
        if measured is not None and abs(measured - figure) > tolerance:
            said.append(
                f"{name} on {pods} at {point} %: {measured:.2f}, published {figure:.2f}, allowed {tolerance}"
            )
    return said


Expected = tuple[str, str, int, float, float]  # reference, list, point, figure, tolerance


def _published() -> Iterable[Expected]:
    """Of every algorithm of the paper."""
    with (DATA / "published.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name in row.keys() - {"list", "at"}:
                yield name, row["list"], int(row["at"]), float(row[name]), OFF_PUBLISHED


def _golden(seeds: set[int]) -> Iterable[Expected]:
    with (DATA / "golden_default.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["seed"]) in seeds]
    for name in REFERENCES:
        for point in (100, 130):
            figures = [float(row[f"alloc_at_{point}"]) for row in rows if row["policy"] == name]
            if figures:
                yield name, "default", point, statistics.fmean(figures), OFF_GOLDEN


def table(results: Results) -> str:
    """The means over the seeds, for people, and what was published of other algorithms."""
    lines, published, names = [], list(_published()), dict.fromkeys(one.name for one in results)
    for pods in dict.fromkeys(one.pods for one in results):
        titles = [f"{at} %" for at in POINTS] + list(CLASSES)
        lines.append(f"{pods:24}" + "".join(f"{title:>9}" for title in titles))
        for name in names:
            values = [mean_allocation(results, name, pods, at) for at in POINTS]
            cells = ["-" if value is None else f"{value:.2f}" for value in values]
            cells += [f"{count:.1f}" for count in mean_failed(results, name, pods).values()]
            lines.append(f"  {name:22}" + "".join(f"{cell:>9}" for cell in cells))
        others = {name for name, *_ in published} - set(names)
        for name in sorted(others):
            figures = {
                at: f"{figure:.2f}" for who, of, at, figure, _ in published if (who, of) == (name, pods)
            }
            cells = [figures.get(at, "-") for at in POINTS]
            lines.append(f"  {name:22}" + "".join(f"{cell:>9}" for cell in cells) + "  as published")
        lines.append("")
    lines.append(
        "GPU allocation in per cent when so many per cent had arrived; pods without a place, by class"
    )
    return "\n".join(lines)


def as_json(results: Results) -> Json:
    """The means, and every replay."""
    lists = dict.fromkeys(one.pods for one in results)
    names = dict.fromkeys(one.name for one in results)
    means = [
        {
            "policy": name,
            "list": pods,
            "allocation": {str(at): mean_allocation(results, name, pods, at) for at in POINTS},
            "failed": mean_failed(results, name, pods),
        }
        for pods in lists
        for name in names
    ]
    replays = [
        {"policy": one.name, "list": one.pods, "seed": one.seed, **told(outcome)}
        for one, outcome in results.items()
    ]
    return {"means": means, "replays": replays}


def told(outcome: Outcome) -> Json:
    """An outcome as JSON."""
    return {"allocation": outcome.allocation, "failed": outcome.failed}


def whole_trace(given: argparse.Namespace) -> int:
    """Everything, or what was chosen of it; 1 where a reference is off."""
    names = given.policy or EVERY
    wanted = [Replay(name, pods, seed) for pods in given.lists for name in names for seed in given.seeds]
    results = replay_all(wanted, given.jobs)
    print(table(results))
    _write(given.json, as_json(results))
    wrong = off(results) if set(given.seeds) == set(SEEDS) else []
    for sentence in wrong:
        print(f"reference off: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


def one_experiment(given: argparse.Namespace) -> int:
    """The experiment of the files given; 2 where they are not what they should be."""
    name = given.policy[0] if given.policy else POLICIES[0]
    try:
        outcome = replayed(read_experiment(given.nodes, given.pods, given.replay), name)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    found = {"policy": name, **told(outcome)}
    print(json.dumps(found))
    _write(given.json, found)
    return 0


def _write(file: Path | None, found: Json) -> None:
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """One experiment, or the whole trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, what in (
        ("nodes", "csv of the nodes"),
        ("pods", "csv of the pods"),
        ("replay", "JSON: who arrives"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)
    parser.add_argument(
        "--policy",
        nargs="+",
        choices=EVERY,
        metavar="P",
        help=f"of {', '.join(EVERY)}; default: {POLICIES[0]}, for the whole trace all",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    parser.add_argument("--lists", nargs="+", choices=LISTS, default=LISTS, help="of the trace")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="of the trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    given = parser.parse_args(arguments)
    files = [given.nodes, given.pods, given.replay]
    if not set(given.seeds) <= set(SEEDS):
        parser.error(f"--seeds: of the trace there are {', '.join(map(str, SEEDS))}")
    if any(files) and not all(files):
        parser.error("--nodes, --pods and --replay go together")
    if all(files) and len(given.policy or ()) > 1:
        parser.error("--policy: one for one experiment")
    return one_experiment(given) if all(files) else whole_trace(given)


if __name__ == "__main__":
    sys.exit(main())
