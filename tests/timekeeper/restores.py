"""Events that make a cluster say what is not so: a node's clock is set, a node never has a Lease, a node's
condition Ready is Unknown, etcd is restored from a backup (lists go back, resource versions are used again),
a UID comes back.

Their law: what one node says, or its clock does, or what etcd takes back, changes charges of its own pods
alone, and these lie between 0 and the pod's cards. All others are charged as the oracle says.
"""

import copy
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.timekeeper import truth
from tests.timekeeper.agents import Agents, nodes
from tests.timekeeper.clocks import iso
from tests.timekeeper.lives import ALL_NODES, LEASELESS, TEAMS
from tests.timekeeper.versions import OLDER, SILENCE
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, Json

CLOCK_STEPS = (-HOUR, -MINUTE, MINUTE, HOUR)


class Restores(Agents):
    """The rules. ``binds``, ``ends``: as the machine has them."""

    binds: Callable[..., None]
    ends: Callable[[int, int], None]

    # -- clocks of nodes

    @precondition(lambda self: self.connected and not self.late)
    @rule(node=nodes, step=st.sampled_from(CLOCK_STEPS))
    def a_node_s_clock_is_set(self, node: str, step: int) -> None:
        """Until then it was right, as its Lease showed."""
        if node in self.silent:
            return
        self.set_clock(node, step)
        self.renews(node, 0)
        self.watch_is_alive()
        self.tick()

    @precondition(lambda self: self.connected and not self.late and not self.away and self.living())
    @rule(
        which=st.integers(0, 99),
        step=st.sampled_from(CLOCK_STEPS),
        runs=st.sampled_from((MINUTE, 3 * HOUR)),
        after=st.sampled_from((0, 9 * SECOND)),
    )
    def a_pod_ends_just_after_its_node_s_clock_is_set(
        self, which: int, step: int, runs: int, after: int
    ) -> None:
        """The next Lease shows it, after the end. With a watch the charge is right to 12 s."""
        pod = self.pod(which)
        if pod.node not in self.silent and pod.end is None and pod.waiting and self.wrong == 0:
            pod.starts(max(pod.changed(), self.now))
            self.tell(pod)
            self.passes(runs)
            self.set_clock(pod.node, step)
            pod.ends(self.now)
            self.tell(pod)
            self.tick()
            self.passes(after)
            self.renews(pod.node, 0)
            self.tick()
            self.ends_are_right.add(pod.uid)

    def set_clock(self, node: str, step: int) -> None:
        """Its Leases show its clock from now on."""
        if node not in self.ahead:
            self.ahead[node] = 0
            self.renews(node, 0)
        self.ahead[node] += step
        for pod in self.pods:
            if pod.node == node:
                pod.ahead = self.ahead[node]
                self.odd.add(pod.uid)

    # -- a node that never had a Lease

    @precondition(lambda self: self.wrong == 0)
    @rule(which=st.integers(0, 99), team=st.sampled_from(TEAMS), started=st.booleans())
    def a_pod_is_bound_to_a_node_without_a_lease(self, which: int, team: str, started: bool) -> None:
        """Its condition Ready is the sign of life."""
        if sum(pod.node == LEASELESS for pod in self.living()) < 2:
            self.binds(which % truth.SHAPES, 30, team, LEASELESS, 30, started, 0)

    @rule(node=st.sampled_from(ALL_NODES))
    def ready_becomes_unknown_or_not(self, node: str) -> None:
        """Of a node with a Lease that says nothing."""
        self.unready ^= {node}
        self.says(node, self.said[node], ticks=True)

    # -- etcd

    @rule()
    def etcd_is_backed_up(self) -> None:
        """One backup is kept."""
        objects = self.town.objects
        self.backup = self.versions.newest, dict(objects["pods"]), dict(objects["leases"])

    @precondition(lambda self: self.backup is not None and not self.away)
    @rule(sign=st.sampled_from(("", SILENCE, OLDER)), which=st.integers(0, 99))
    def etcd_is_restored(self, sign: str, which: int) -> None:
        """All watches list: they expire, have been silent for a minute, in which a pod ends, or hear an older
        version. Pods that were made since are forgotten, those that were removed since are back, and resource
        versions are used again."""
        assert self.backup is not None
        version, pods, leases = self.backup
        there = self.town.objects["pods"]
        by_uid = {pod.uid: pod for pod in self.pods}
        for key in there.keys() - pods.keys():
            by_uid[_uid(there[key])].gone = self.now
            self.ghosts.pop(key, None)
        for key in pods.keys() - there.keys():
            self.ghosts[key] = pods[key]
        self.mistake(*(_uid(raw) for key, raw in pods.items() if raw != there.get(key)))
        self.town.objects["pods"], self.town.objects["leases"] = dict(pods), dict(leases)
        self.versions.newest = version
        self.told = len(self.log)
        if sign == SILENCE:
            self.passes_in_silence(which)
        self.lists(sign)
        self.tick()

    def passes_in_silence(self, which: int) -> None:
        """Watches end in order and are opened again. None hears anything, from Leases either."""
        self.connected = False
        if self.living():
            self.ends(which, 0)
        for _ in range(3):
            self.passes(30 * SECOND, tick=False)
            self.town.quiet()
            self.heard.heard = max(self.heard.heard, self.town.clock())
            self.tick()

    def mistake(self, *uids: str) -> None:
        """Their objects say that they live."""
        self.odd |= set(uids)
        self.ends_are_right -= set(uids)

    @precondition(lambda self: self.connected and not self.away and not self.late and self.living())
    @rule(which=st.integers(0, 99))
    def a_version_is_used_again(self, which: int) -> None:
        """etcd is restored, and then a pod ends with the version that another state of it had before."""
        pod, others = self.pod(which), [pod for pod in self.living() if pod is not self.pod(which)]
        if not others or pod.end is not None or pod.uid in self.odd or pod.uid not in self.written.pods:
            return
        self.tell(pod)
        first = self.versions.newest
        for _ in range(2):
            self.tell(others[0])
        self.connected = False
        self.versions.newest = first - 1
        pod.ends(self.now)
        self.tell(pod)
        self.lists()
        self.tick()

    @precondition(lambda self: any(pod.gone is not None for pod in self.pods))
    @rule(which=st.integers(0, 99), node=nodes)
    def a_uid_comes_back(self, which: int, node: str) -> None:
        """An object with the UID of a pod that is gone, bound now, perhaps to another node."""
        gone = [pod for pod in self.pods if pod.gone is not None]
        pod = copy.deepcopy(gone[which % len(gone)])
        key = f"{pod.namespace}/{pod.name}/{pod.uid}"
        if key in self.ghosts or any(pod.name == other.name for other in self.living()):
            return
        pod.gone, pod.node, pod.phase, pod.end = None, node, "Pending", None
        pod.lives = {part.name: truth.Life() for part in pod.parts}
        self.mistake(pod.uid)
        self.ghosts[key] = self.versions.stamp(pod.raw())
        self.town.objects["pods"][key] = self.ghosts[key]
        self.log.append((self.ghosts[key], False))
        self.catches_up()
        self.tick()

    @precondition(lambda self: self.ghosts)
    @rule()
    def what_came_back_goes(self) -> None:
        """Its objects are removed."""
        for key, raw in self.ghosts.items():
            self.town.objects["pods"].pop(key, None)
            self.log.append((raw | {"metadata": raw["metadata"] | {"deletionTimestamp": _now(self)}}, True))
        self.ghosts.clear()
        self.catches_up()
        self.tick()

    def settles(self) -> None:
        """Without what came back."""
        self.what_came_back_goes()
        super().settles()


def _uid(raw: Json) -> str:
    return str(raw["metadata"]["uid"])


def _now(machine: Restores) -> str:
    return iso(machine.now)
