"""What the queue of waiting pods keeps: nothing of pods that are gone."""

import gc

from scheduler_ext.model.pod import _known_template
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.preemption_queue import PreemptionQueue
from tests.scheduler_ext.preempting import unscheduled
from tests.scheduler_ext.worlds import node, rebuilt
from timekeeper.core.values import GPURequest


def requests_in_memory() -> list[GPURequest]:
    """Those of the cache of templates, which is bounded, do not count."""
    _known_template.cache_clear()
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, GPURequest)]


def test_requests_of_pods_that_are_gone_are_not_kept() -> None:
    queue = PreemptionQueue(PreemptionLimits(180_000, 600_000, 8, "bursar-scheduler", False))
    others = requests_in_memory()  # of other tests; they do not go while this list has them

    for share in range(1, 61):
        pods = [unscheduled(f"w{share}-{at}", share, priority=at) for at in range(5)]
        queue.follow(rebuilt([node("n")], pods), float(share))

    assert 0 < len(requests_in_memory()) - len(others) <= 20
