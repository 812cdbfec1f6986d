"""``python -m tests.scheduler_ext.memory_hungry scheduler_ext FLAGS``: the extender. Its simulation of a pod
named ``mib-N`` first allocates N MiB in the child process."""

import sys
from collections.abc import Sequence

from scheduler_ext.__main__ import main
from scheduler_ext.model.pod import Pod
from scheduler_ext.simulation import child
from scheduler_ext.simulation.simulate import SimulatedPod, SimulationInput, simulate

_NAME = "mib-"


def hungry(pods: Sequence[Pod], books: SimulationInput) -> list[SimulatedPod]:
    """The same outcome, at the price of that memory. It is never written, so the machine does not lack it."""
    wanted = sum(int(pod.name.removeprefix(_NAME)) for pod in pods if pod.name.startswith(_NAME))
    held = [bytes(1024 * 1024) for _ in range(wanted)]
    assert len(held) == wanted
    return simulate(pods, books)


if __name__ == "__main__":
    child.simulate = hungry  # type: ignore[attr-defined]
    main(sys.argv[2:])
