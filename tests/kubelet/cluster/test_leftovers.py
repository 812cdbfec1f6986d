"""A node whose owner was killed leaves containers, mounts, a network; the next to come takes them away."""

from tests.kubelet.left import Begun, Left


def test_what_a_killed_node_left_is_gone_when_the_next_begins(killed_before: Left, begun: Begun) -> None:
    everything = {"container", "mounts", "bridge", "control groups", "folder", "kernel setting"}

    assert killed_before.parts == everything, (
        f"not all was left that could be taken away; {killed_before.said}"
    )
    assert killed_before.elsewhere == frozenset(), "a runtime of the machine's own keeps its state there"
    assert not begun.container
    assert begun.panic == killed_before.panic
