"""Lists where CPU is scarce."""

import pytest

from tests.bench.scarce import Scarce, compared


@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_pods_ask_for_so_many_per_cent_of_the_cpu_of_a_gpu(kind: str) -> None:
    made = Scarce(kind, 150, seed=1, every=8).experiment()

    asked = sum(pod.cpu_milli for pod in made.listed) / sum(pod.asked_milli for pod in made.listed)
    there = sum(node.cpu_milli for node in made.nodes) / made.gpu_milli
    assert asked / there == pytest.approx(1.5, rel=0.02)
    assert sum(pod.asked_milli for pod in made.arrivals) >= made.gpu_milli


def test_a_seed_makes_one_list() -> None:
    one = Scarce("pods", 150, seed=1, every=8)

    assert one.experiment() == one.experiment() != one._replace(seed=2).experiment()


def test_what_is_gained_has_its_standard_error_over_the_seeds() -> None:
    row = compared("pods", 150, [(91.0, 90.0), (93.0, 90.0)])

    assert (row["policy"], row["fgd"], row["more"], row["error"]) == (92.0, 90.0, 2.0, 1.0)
