"""The lock on a node, by which its plugin finds the pod whose devices it hands out next: a time, and the
namespace and name of its holder, with commas between them. Some schedulers name no holder. Source: HAMi,
`pkg/util/nodelock`."""

from dataclasses import dataclass

from timekeeper.core.dialects import DIALECTS
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.object_names import millis

EXPIRES_MS = 300_000  # then a lock without a holder is over, and the holder of another is named to people
_BY_LOCK = {
    name: [dialect for dialect in DIALECTS if dialect.node_lock == name]
    for name in sorted({dialect.node_lock for dialect in DIALECTS if dialect.node_lock})
}


@dataclass(frozen=True, slots=True)
class NodeLock:
    """``written_ms``: by the clock of its writer. ``holder``: namespace and name; None: it names none."""

    written_ms: int
    holder: tuple[str, str] | None = None

    def is_old(self, now_ms: int) -> bool:
        """Whether its time is more than `EXPIRES_MS` away."""
        return abs(now_ms - self.written_ms) > EXPIRES_MS


def read_lock(text: object) -> NodeLock | None:
    """None: it is no lock."""
    moment, *pod = str(text).split(",")
    written_ms = millis(moment)
    if written_ms is None or len(pod) not in (0, 2):
        return None
    return NodeLock(written_ms, (pod[0], pod[1]) if pod else None)


def locks_of(node: Json) -> dict[str, NodeLock]:
    """The locks on a Node, by annotation."""
    found = ((name, read_lock(annotations_of(node).get(name))) for name in _BY_LOCK)
    return {name: lock for name, lock in found if lock is not None}


def waits_for_a_plugin(pod: Json, node: str) -> bool:
    """Whether some plugin that reads locks has still to hand out devices of this node to the pod."""
    return any(waits_for_devices(pod, node, lock) for lock in _BY_LOCK)


def waits_for_devices(pod: Json, node: str, lock: str) -> bool:
    """Whether the plugin that reads this lock has still to hand out devices of this node to the pod. What
    says so is written by the Binding and the plugin alone."""
    if mapping(pod.get("spec")).get("nodeName") != node:
        return False
    if mapping(pod.get("status")).get("phase") != "Pending":
        return False
    written = annotations_of(pod)
    return any(
        written.get(name) == unserved
        for dialect in _BY_LOCK[lock]
        for names, unserved in ((dialect.plugin_erases, "allocating"), (dialect.plugin_writes, "false"))
        for name in names[:1]
    )
