"""What stands above the controllers of a gang's pods: a JobSet, by the pods' labels, or a LeaderWorkerSet, by
the StatefulSet of its leaders. Its user looks for Events there."""

from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.snapshot.gang_table import GangState
from timekeeper.core.json_values import mapping
from timekeeper.core.object_names import controller_of

JOBSET = ("jobset.x-k8s.io/v1alpha2", "JobSet")
LEADERS = ("apps/v1", "StatefulSet")
MOST_KNOWN = 10_000

Reference = tuple[str, ...]  # `Pod.reference`


class GangSets:
    """Used by one thread."""

    def __init__(self, calls: GangCalls) -> None:
        self._calls = calls
        self._known: dict[tuple[str, ...], Reference] = {}

    def of(self, gang: GangState) -> Reference:
        """Its apiVersion, kind, name and UID; empty: there is none, or it is not known now."""
        kind, name, *told = gang.gang.key.split("/")
        if "@" in name:
            return ()  # it is in a virtual cluster
        if kind == "jobset":
            return (*JOBSET, name, told[0]) if told else ()
        return self._of_leaders(gang, name.rpartition("-")[0]) if kind == "leaderworkerset" else ()

    def _of_leaders(self, gang: GangState, name: str) -> Reference:
        """Each group is a gang. The leaders' StatefulSet has the name of the set; it is read once."""
        key = gang.namespace, name, gang.first.owner
        if key not in self._known:
            (found,) = self._calls.owners(gang.namespace, [(*LEADERS, name)])
            above = controller_of(mapping(mapping(found).get("metadata")))
            if above[1:2] != ("LeaderWorkerSet",):
                return ()
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = above
        return self._known[key]
