"""Events of node agents: they list pods, restart, fall silent, are wrong; nodes reboot, are deleted, and are
registered again."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.timekeeper import truth
from tests.timekeeper.checked import Checked
from tests.timekeeper.lives import NODES, Said
from tests.timekeeper.worlds import SECOND

MAX_LISTED = 5
nodes = st.sampled_from(NODES)


class Agents(Checked):
    """The rules about nodes."""

    @rule(node=nodes, chosen=st.integers(0, 2**MAX_LISTED - 1), knows=st.booleans(), ticks=st.booleans())
    def an_agent_tells(self, node: str, chosen: int, knows: bool, ticks: bool) -> None:
        """It lists some of the pods that its node ever had, correctly or not."""
        mine = [pod.uid for pod in self.pods if pod.node == node][-MAX_LISTED:]
        there = frozenset(uid for at, uid in enumerate(mine) if chosen >> at & 1)
        self.speaks(node, there, knows, ticks)

    @rule(node=nodes, knows=st.booleans())
    def an_agent_lists_all(self, node: str, knows: bool) -> None:
        """It lists every pod that its node ever had."""
        self.speaks(node, frozenset(pod.uid for pod in self.pods if pod.node == node), knows, ticks=True)

    @precondition(lambda self: self.vanished())
    @rule(
        which=st.integers(0, 99), after=st.sampled_from((0, 1, 10 * SECOND, 40 * SECOND)), was=st.booleans()
    )
    def an_agent_sees_a_pod_gone(self, which: int, after: int, was: bool) -> None:
        """A while after the pod's object vanished; ``was``: it is listed once before."""
        pod = self.vanished()[which % len(self.vanished())]
        there = self.said[pod.node].there or frozenset()
        if was:
            self.speaks(pod.node, there | {pod.uid}, True, ticks=False)
        self.passes(after)
        self.speaks(pod.node, there - {pod.uid}, True, ticks=True)

    @rule(node=nodes, text=st.sampled_from(("{", None)), ticks=st.booleans())
    def an_agent_falls_silent(self, node: str, text: str | None, ticks: bool) -> None:
        """Its annotation is removed, or becomes unreadable."""
        there = None if text is None else frozenset[str]()
        self.says(node, replace(self.said[node], text=text, there=there, knows=False), ticks)

    @rule(node=nodes, is_told=st.booleans(), ticks=st.booleans())
    def a_node_boots_anew(self, node: str, is_told: bool, ticks: bool) -> None:
        """Its kubelet reports first, while the agent's annotation is of the earlier boot; or the agent
        restarts."""
        boot = f"boot-{next(self.numbers)}"
        if is_told:
            self.says(node, Said(boot, self.words(boot, frozenset(), False), frozenset(), False), ticks)
        else:
            self.says(node, replace(self.said[node], boot=boot, there=None), ticks)

    @precondition(lambda self: self.living())
    @rule(
        which=st.integers(0, 99),
        after=st.sampled_from((0, 1, 10 * SECOND)),
        looks=st.lists(st.booleans(), min_size=1, max_size=3),
        ticks=st.booleans(),
    )
    def a_node_boots_anew_after_a_pod_went(
        self, which: int, after: int, looks: list[bool], ticks: bool
    ) -> None:
        """Its agent reports, perhaps several times before the next tick; it may list the pod once more."""
        pod = self.pod(which)
        self.nodes_are_heard()
        pod.gone = self.now
        self.tell(pod)
        self.passes(after, tick=ticks)
        self.a_node_boots_anew(pod.node, True, ticks)
        others = frozenset(each.uid for each in self.living() if each.node == pod.node)
        for is_there in looks:
            self.passes(after, tick=False)
            self.speaks(pod.node, others | ({pod.uid} if is_there else set()), True, ticks)
        self.tick()

    @precondition(lambda self: self.connected and not self.away and not self.late)
    @rule(node=nodes)
    def a_node_is_deleted_or_registered_again(self, node: str) -> None:
        """Its pods' rates are fixed by then; pods are bound to it only while it exists."""
        if node in self.absent:
            self.absent.remove(node)
            self.says(node, self.said[node], ticks=True)
        elif all(uid in self.written.pods for uid in (pod.uid for pod in self.pods if pod.node == node)):
            self.absent.add(node)
            self.town.hear("nodes", self.town.objects["nodes"][f"/{node}/"], deleted=True)
            self.heard.says(node, replace(self.word(node), there=None, minor=0))
            self.tick()

    def vanished(self) -> list[truth.Pod]:
        """Force-deleted pods."""
        return [pod for pod in self.pods if pod.gone is not None and pod.end is None]
