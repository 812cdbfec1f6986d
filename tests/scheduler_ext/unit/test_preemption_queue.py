"""What the queue of waiting pods keeps: nothing of pods that are gone."""

import gc

from scheduler_ext.model.pod import _known_template_request
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.preemption_queue import PreemptionQueue
from tests.scheduler_ext.preempting import unscheduled
from tests.scheduler_ext.worlds import node, rebuilt
from timekeeper.core.values import GPURequest


def requests_in_memory() -> int:
    """Those of the cache of templates, which is bounded, do not count."""
    _known_template_request.cache_clear()
    gc.collect()
    return sum(isinstance(each, GPURequest) for each in gc.get_objects())


def test_requests_of_pods_that_are_gone_are_not_kept() -> None:
    queue = PreemptionQueue(PreemptionLimits(180_000, 600_000, 8, "bursar-scheduler", False))
    before = requests_in_memory()

    for share in range(1, 61):
        pods = [unscheduled(f"w{share}-{at}", share, priority=at) for at in range(5)]
        queue.follow(rebuilt([node("n")], pods), float(share))

    assert 0 < requests_in_memory() - before <= 20
