"""The reference algorithms against a published run."""

import ast
import csv
from pathlib import Path

import pytest

from tests.bench.experiment import run
from tests.bench.placement import DATA, trace
from tests.bench.references import REFERENCES

pytestmark = pytest.mark.untraced


HERE = Path(__file__).parents[1]


@pytest.mark.parametrize("module", ["references.py", "experiment.py"])
def test_the_references_import_nothing_of_ours(module: str) -> None:
    imports = {
        alias.name if isinstance(each, ast.Import) else each.module or ""
        for each in ast.walk(ast.parse((HERE / module).read_text()))
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }

    assert not {name for name in imports if name.split(".")[0] in ("scheduler_ext", "timekeeper", "webhook")}


def test_a_replay_of_the_trace_is_the_published_run_to_the_second_decimal() -> None:
    with (DATA / "golden_default.csv").open(newline="") as file:
        published = next(r for r in csv.DictReader(file) if (r["policy"], r["seed"]) == ("FGD", "42"))
    experiment = trace("default", 42)

    outcome = run(experiment, REFERENCES["FGD"](experiment).place)

    assert [f"{outcome.allocation[at] or 0:.2f}" for at in ("100", "130")] == [
        f"{float(published[f'alloc_at_{at}']):.2f}" for at in (100, 130)
    ]
    assert sum(outcome.failed.values()) == int(published["failed_pods_sim"])
    assert len(experiment.arrivals) == int(published["pods"])
