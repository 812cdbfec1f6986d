"""Where the preemptor looks for victims: on nodes with a pod of lower rank, and on no other."""

from random import Random

from scheduler_ext.model.standing import NamespaceStanding
from scheduler_ext.preemption.plan import PreemptibleNodes
from tests.scheduler_ext.preemption_worlds import DEMOTED, IN, OVER, UNLIMITED, of, standing
from tests.scheduler_ext.worlds import node, on, percent, read, rebuilt
from tests.worlds import Json

NODES = [f"n{at}" for at in range(4)]
NAMESPACES = ("team-a", "team-b", "team-c")


def is_worth(waiting: Json, there: list[Json], words: dict[str, NamespaceStanding]) -> bool:
    """Whether one of the node's pods is of lower rank, by the words of precedence.py alone."""
    namespace, priority = waiting["metadata"]["namespace"], waiting["spec"]["priority"]
    return any(
        pod["spec"]["priority"] < priority
        or (
            words[namespace].status == "IN_BUDGET"
            and (
                words[pod["metadata"]["namespace"]] == OVER
                or "bursar.dev/reclaimable" in pod["metadata"]["annotations"]
            )
        )
        for pod in there
    )


def test_a_node_is_searched_if_and_only_if_it_has_a_pod_of_lower_rank() -> None:
    random, nodes, found = Random(20261123), PreemptibleNodes(), set[int]()
    for _ in range(300):
        words = {namespace: random.choice((IN, OVER, DEMOTED, UNLIMITED)) for namespace in NAMESPACES}
        running: dict[str, list[Json]] = {}
        for name in NODES:
            pod = of(
                on(percent(60, f"p-{name}", priority=random.choice((0, 0, 5))), name, f"{name}-GPU-0"),
                random.choice(NAMESPACES),
            )
            if random.random() < 0.1:
                pod["metadata"]["annotations"]["bursar.dev/reclaimable"] = "idle"
            running[name] = [pod] if random.random() < 0.7 else []
        nodes.follow(
            rebuilt([node(name) for name in NODES], [pod for pods in running.values() for pod in pods])
        )
        standings = standing(**{name.replace("-", "_"): word for name, word in words.items()})
        for priority in (0, 1, 6):
            waiting = of(percent(60, "w", priority=priority), random.choice(NAMESPACES))

            worth = nodes.worth(read(waiting), standings)

            assert worth == [name for name in NODES if is_worth(waiting, running[name], words)]
            found.add(len(worth))
    assert found == {0, 1, 2, 3, 4}
