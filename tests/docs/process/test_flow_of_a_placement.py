"""A pod's placement passes the functions of docs/architecture.md in that order."""

from tests.docs.flows import missing, steps, traced
from tests.scheduler_ext.conftest import Running, api, running, start
from tests.scheduler_ext.worlds import node, percent

__all__ = ["api", "running", "start"]


def test_the_functions_of_the_page_are_called_in_order(running: Running) -> None:
    running.put_node(node("n1"))
    pod = running.put_pod(percent(50))

    with traced() as calls:
        assert running.filter(pod, "n1")["NodeNames"] == ["n1"]
        assert running.prioritize(pod, "n1") == {"n1": 10}
        assert running.bind(pod, "n1") == ""

    assert missing(steps("a pod is placed"), calls) == []
