"""The gangs that run: which pods leave with a victim, because their gang would not go on without it."""

from collections.abc import Collection, Iterable

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.immutable_map import Map

GangKey = str  # its namespace, and what tells it from others there


def gang_key(pod: Pod) -> GangKey | None:
    """The gang that the bound pod started with; None without one."""
    return None if pod.started_with is None else f"{pod.namespace}/{pod.started_with.key}"


class StartedGangs:
    """The bound pods of each gang, kept beside the pods of snapshots. May be called from any thread: what is
    known is one immutable value, which is replaced as a whole."""

    def __init__(self) -> None:
        # the pods; by UID their gangs, by gang the UIDs of its pods
        self._known: tuple[Map[Pod], Map[str], Map[frozenset[str]]] = Map(), Map(), Map()

    def members(self, pods: Map[Pod], key: GangKey) -> list[Pod]:
        """The members among these pods that hold cards and stay, as far as their objects say."""
        found = [pods.get(uid) for uid in sorted(self._followed(pods).get(key) or ())]
        return [pod for pod in found if pod is not None and pod.holding and not pod.deleting]

    def _followed(self, pods: Map[Pod]) -> Map[frozenset[str]]:
        known, keys, members = self._known
        for uid in pods.changed_since(known) if pods is not known else ():
            pod, before = pods.get(uid), keys.get(uid)
            key = None if pod is None else gang_key(pod)
            if key == before:
                continue
            if before is not None:
                keys, left = keys.without(uid), (members.get(before) or frozenset()) - {uid}
                members = members.set(before, left) if left else members.without(before)
            if key is not None:
                keys, members = (
                    keys.set(uid, key),
                    members.set(key, (members.get(key) or frozenset()) | {uid}),
                )
        self._known = pods, keys, members
        return members


def spare_members(members: Collection[Pod]) -> int:
    """How many of these members of one gang may leave without its end."""
    least = max((each.started_with.minimum for each in members if each.started_with), default=0)
    return max(0, len(members) - least)


def not_without(leaving: Iterable[Pod], members: Iterable[Collection[Pod]]) -> list[Pod]:
    """The pods that leave with these, if ``members`` are those of their gangs that stay or are among them."""
    going = {each.uid for each in leaving}
    found: list[Pod] = []
    for gang in members:
        if sum(each.uid in going for each in gang) > spare_members(gang):
            found += [each for each in gang if each.uid not in going]
    return found
