"""The pods that were created lately and are not judged yet: the watch's thread adds them, the judge's takes
them. Each pod is added once, with no more of its object than admission reads."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import orjson

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.ledger.hold import millis
from timekeeper.core.names import SYSTEM_NAMESPACES
from timekeeper.core.object_names import MIRROR

MAX_BYTES = 16 << 20  # a pod whose object is beyond it is counted as not judged
MAX_WAITING = 50_000
_REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class NewPod:
    """``body``: its metadata and spec as JSON; empty where it was too large. ``is_bound``: a
    scheduler had placed it before it was seen."""

    uid: str
    namespace: str
    name: str
    created_ms: int
    body: bytes
    is_bound: bool


class NewPods:
    """``since_ms``: older pods are left out. ``is_metered``: whether the namespace's pods are left alone now;
    a pod of another is never judged later.
    ``most_bytes``: of the objects that wait."""

    def __init__(self, since_ms: int, is_metered: Callable[[str], bool], most_bytes: int = MAX_BYTES) -> None:
        self._since_ms, self._is_metered = since_ms // 1000 * 1000, is_metered  # objects have whole seconds
        self._known: OrderedDict[str, int] = OrderedDict()
        self._waiting: deque[NewPod] = deque()
        self._most_bytes, self._bytes, self._dropped = most_bytes, 0, 0
        self._lock = Lock()

    def offer(self, raw: Json) -> None:
        """Add the pod if it is new. Called for every version of every pod; never waits for the judge."""
        metadata = mapping(raw.get("metadata"))
        uid = str(metadata.get("uid", ""))
        if uid in self._known:
            return
        created_ms = millis(metadata.get("creationTimestamp")) or 0
        if created_ms < self._since_ms:
            return
        self._remember(uid, created_ms)
        namespace = str(metadata.get("namespace", ""))
        is_mirror = MIRROR in mapping(metadata.get("annotations"))
        if is_mirror or namespace in SYSTEM_NAMESPACES or not self._is_metered(namespace):
            return
        body, is_bound = _body(raw), _is_bound(raw)
        with self._lock:
            body = body if self._bytes + len(body) <= self._most_bytes else b""
            if len(self._waiting) >= MAX_WAITING:
                self._dropped += 1
                return
            self._bytes += len(body)
            name = str(metadata.get("name", ""))
            self._waiting.append(NewPod(uid, namespace, name, created_ms, body, is_bound))

    def take(self, most: int) -> list[NewPod]:
        """The oldest that wait."""
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._bytes -= sum(len(each.body) for each in taken)
            return taken

    def are_waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._waiting)

    def take_dropped(self) -> int:
        """How many pods were left out since the last call, for not even their names were few enough."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            return dropped

    def _remember(self, uid: str, created_ms: int) -> None:
        """Pods that are too many to be remembered by name are known by their age."""
        self._known[uid] = created_ms
        if len(self._known) > _REMEMBERED:
            _, oldest_ms = self._known.popitem(last=False)
            self._since_ms = max(self._since_ms, oldest_ms + 1)


def _is_bound(raw: Json) -> bool:
    """The Binding of a scheduler writes node and condition together; a user names the node alone."""
    conditions = map(mapping, sequence(mapping(raw.get("status")).get("conditions")))
    placed = {each.get("status") for each in conditions if each.get("type") == "PodScheduled"}
    return "True" in placed and bool(mapping(raw.get("spec")).get("nodeName"))


def _body(raw: Json) -> bytes:
    spec = {name: each for name, each in mapping(raw.get("spec")).items() if name != "ephemeralContainers"}
    metadata = {name: each for name, each in mapping(raw.get("metadata")).items() if name != "managedFields"}
    try:
        return orjson.dumps({"metadata": metadata, "spec": spec})
    except orjson.JSONEncodeError:  # nested too deeply for the library
        return b""
