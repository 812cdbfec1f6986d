"""``make bench``: every benchmark that it names is a module that can be started."""

from importlib.util import find_spec

from tests.bench.__main__ import BENCHMARKS, BESIDE_A_PEER


def test_every_benchmark_is_a_module() -> None:
    named = {module for module, *_ in (BENCHMARKS | BESIDE_A_PEER).values()}

    assert named
    assert [each for each in named if find_spec(f"tests.bench.{each}") is None] == []
