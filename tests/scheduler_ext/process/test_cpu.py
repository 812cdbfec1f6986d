"""CPU requests in filter's answers."""

from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.unit.test_cpu import with_cpu
from tests.scheduler_ext.worlds import asking, node, on, percent
from tests.worlds import container


def test_pods_that_request_more_cpu_than_there_is_stop_no_other(running: Running) -> None:
    names = [f"n{at}" for at in range(8)]
    for name in names:
        running.put_node(node(name))
    for at in range(40):
        running.put_pod(with_cpu(on(percent(10, f"b{at}"), names[at % 8], f"{names[at % 8]}-GPU-0"), "1"))
    huge = [container(f"c{at}", gpu_percent="10") for at in range(3)]
    for each in huge:
        each["resources"]["requests"] = {"cpu": "9P"}
    for at in range(20):
        running.put_pod(asking(*huge, name=f"huge{at}"))
    running.extender.policies.learn(running.extender.cache.snapshot)

    assert running.filter(running.put_pod(percent(20, "p")), *names)["NodeNames"] == names
    assert running.filter(running.put_pod(asking(*huge, name="its")), *names)["Error"] == ""
