"""Of a gang all pods are asked to leave, or none: the preemptor before an API server."""

from tests.scheduler_ext.preempting import budget_over, in_namespace, stage, unscheduled
from tests.scheduler_ext.preempting_worlds import OWES, begins, reservation
from tests.scheduler_ext.worlds import node, on, percent
from tests.worlds import Json, card

GANG = {"bursar.dev/held": "budget", "bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}


def debtor(name: str, where: str) -> Json:
    """One of a gang of two of a namespace that is over budget."""
    uuid = "GPU-0" if where == "n" else f"{where}-GPU-0"
    return in_namespace(on(percent(100, name, annotations=GANG), where, uuid), "team-b")


ON_TWO_NODES = (
    *(node("n", card(0)), node("o", card(0))),
    *(debtor("a", "n"), debtor("b", "o"), unscheduled("p", 100)),
)


def test_of_a_gang_those_on_other_nodes_leave_as_well_and_each_says_why() -> None:
    """The timekeeper reads of the condition what it ends if this process is killed between two of them."""
    world = stage(*ON_TWO_NODES, standings=OWES)
    begins(world, "p")
    world.step(times=20)

    assert world.asked() == ["a", "b"]
    assert reservation(world, "p") == "n"
    assert [each[2:] for each in world.left] == [("reclaim", "evicted")] * 2
    for name in "ab":
        conditions = world.api.pod(name, "team-b")["status"]["conditions"]
        assert [each["reason"] for each in conditions] == ["BursarReclaim"]


def test_the_pod_is_bound_without_waiting_for_the_gangs_pods_on_other_nodes() -> None:
    world = stage(*ON_TWO_NODES, standings=OWES)
    begins(world, "p")
    world.ends("a", "team-b")
    world.step(times=40)

    held = world.pod("p").reserved
    assert held is not None
    assert held.free_ms is not None
    assert world.going() == ["b"]


def test_a_disruption_budget_that_allows_one_keeps_both_while_it_is_honoured() -> None:
    world = stage(*ON_TWO_NODES, standings=OWES, pdbs=budget_over("team-b", 1))
    begins(world, "p")
    world.step(after_s=1, times=100)
    assert (reservation(world, "p"), world.asked()) == ("n", [])

    world.step(after_s=10, times=52)
    assert world.going() == ["a", "b"]


def test_a_disruption_budget_that_the_watch_has_not_shown_keeps_both() -> None:
    world = stage(*ON_TWO_NODES, standings=OWES, protected=["b"])
    begins(world, "p")
    world.step(after_s=1, times=100)

    assert (reservation(world, "p"), world.going()) == ("n", [])
