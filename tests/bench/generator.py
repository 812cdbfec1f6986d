"""Pod lists that nobody published, drawn from the published one: other CPU, other sizes, another mix.

The constants of a policy are chosen on the lists of ``TUNING`` alone. Those of ``HELD_OUT`` have other
factors and other seeds, and are for reporting.
"""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.bench.experiment import POINTS, WHOLE_MILLI, Experiment, NodeRow, PodRow

JITTER = 1.5  # by which a shape's CPU, and a share, differs at most from the published one
CPU_STEP_MILLI = 500
SHARE_STEP_MILLI = 10


class Profile(NamedTuple):
    """How a list differs from the published one. ``cpu``: the CPU of GPU pods, times this. The others: how
    often the class comes, times this."""

    cpu: float = 1.0
    cpu_only: float = 1.0
    share: float = 1.0
    several: float = 1.0

    def weight(self, pod: PodRow) -> float:
        """How often the pod is drawn, beside others."""
        return {"cpu": self.cpu_only, "share": self.share, "several": self.several}.get(pod.kind, 1.0)


TUNING: Mapping[str, Profile] = {
    "plain": Profile(),
    "cpu 1.5": Profile(cpu=1.5),
    "cpu 2": Profile(cpu=2.0),
    "cpu 2.5": Profile(cpu=2.5),
    "cpu 3": Profile(cpu=3.0),
    "cpu-only 3": Profile(cpu_only=3.0),
    "cpu-only 5": Profile(cpu_only=5.0),
    "cpu 0.5": Profile(cpu=0.5),
    "shares": Profile(share=3.0),
    "whole": Profile(share=0.3, several=3.0),
}
HELD_OUT: Mapping[str, Profile] = {
    "plain": Profile(),
    "cpu 1.75": Profile(cpu=1.75),
    "cpu 2.25": Profile(cpu=2.25),
    "cpu 2.75": Profile(cpu=2.75),
    "cpu 3.5": Profile(cpu=3.5),
    "cpu-only 2": Profile(cpu_only=2.0),
    "cpu-only 4": Profile(cpu_only=4.0),
    "cpu 0.7": Profile(cpu=0.7),
    "shares": Profile(share=2.0, several=0.5),
    "whole": Profile(share=0.5, several=5.0),
    "cpu 2, whole": Profile(cpu=2.0, share=0.5, several=3.0),
    "cpu 2, shares": Profile(cpu=2.0, share=2.0),
}
# by name: the families and their seeds
GENERATED = {"tuning": (TUNING, tuple(range(1, 11))), "held-out": (HELD_OUT, tuple(range(1001, 1011)))}


def generate(
    nodes: Sequence[NodeRow], published: Sequence[PodRow], profile: Profile, seed: int
) -> Experiment:
    """A list as long as the published one, and arrivals drawn from it until 130 % of the GPUs have been
    requested, at the nodes in an order of their own. The same arguments give the same experiment."""
    drawing = random.Random(f"{profile} {seed}")
    most_cpu = {
        gpus: max((each.cpu_milli for each in nodes if each.gpus >= gpus), default=0)
        for gpus in {pod.num_gpu for pod in published}
    }
    changed = {
        pod: _changed(pod, profile, most_cpu[pod.num_gpu], drawing) for pod in dict.fromkeys(published)
    }
    weights = [profile.weight(pod) for pod in published]
    listed = [changed[pod] for pod in drawing.choices(published, weights, k=len(published))]
    order = list(nodes)
    drawing.shuffle(order)
    end = POINTS[-1] * WHOLE_MILLI * sum(each.gpus for each in nodes) // 100
    arrivals, asked = [], 0
    while asked < end:
        pod = drawing.choice(listed)
        arrivals.append(pod)
        asked += pod.asked_milli
    return Experiment(tuple(order), tuple(listed), tuple(arrivals), seed)


def _changed(pod: PodRow, profile: Profile, most_cpu: int, drawing: random.Random) -> PodRow:
    """The same class with other sizes."""
    cpu_by, share_by = (JITTER ** drawing.uniform(-1, 1) for _ in range(2))
    if pod.num_gpu:
        cpu_by *= profile.cpu
    cpu = min(round(pod.cpu_milli * cpu_by / CPU_STEP_MILLI) * CPU_STEP_MILLI, most_cpu)
    if pod.kind != "share":
        return pod._replace(cpu_milli=cpu)
    share = round(pod.gpu_milli * share_by / SHARE_STEP_MILLI) * SHARE_STEP_MILLI
    return pod._replace(
        cpu_milli=cpu, gpu_milli=min(max(share, SHARE_STEP_MILLI), WHOLE_MILLI - SHARE_STEP_MILLI)
    )
