"""Every version of every pod, as the API server's own watch tells it, and what is wrong with any of them.

The judge of the tests that let a storm loose on a real cluster: it imports nothing of ours but the other
oracle (`readback`), and looks at objects alone.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import urllib3

from tests.scheduler_ext.readback import ENDED, holds, inventory, slices

Json = dict[str, Any]


@dataclass
class History:
    """What has happened since it was begun. ``held``: the pods that hold cards now, by UID; ``alive``: those
    whose objects exist; ``bound``: how many have ever been, and ``order``: their names, in that order;
    ``freed``: how many ended while they held cards. ``wrong``: every moment at which a card held too much, or
    a pod's cards were changed. ``ended``: why it goes on no more, "" while it does. ``most_milli``: the most
    that all held at one moment, in thousandths of a card."""

    memory_mib: dict[str, int]
    held: dict[str, list[Json]] = field(default_factory=dict)
    alive: dict[str, Json] = field(default_factory=dict)
    bound: int = 0
    order: list[str] = field(default_factory=list)
    freed: int = 0
    wrong: list[str] = field(default_factory=list)
    ended: str = ""
    most_milli: int = 0
    _taken: dict[str, list[int]] = field(default_factory=dict)

    def saw(self, kind: str, pod: Json) -> None:
        """One event of the watch."""
        uid = pod["metadata"]["uid"]
        before, now = self.held.get(uid), slices(pod) if kind != "DELETED" and holds(pod) else None
        if kind == "DELETED":
            self.alive.pop(uid, None)
        else:
            self.alive[uid] = pod
        if before is None and now is not None:
            self.bound += 1
            self.order.append(pod["metadata"]["name"])
            self._move(now, 1)
            self.held[uid] = now
            self._judge(pod, now)
        elif before is not None and now is None:
            self.freed += 1
            self._move(before, -1)
            del self.held[uid]
        elif before is not None and before != now:
            self.wrong.append(f"{pod['metadata']['name']}: its cards were changed from {before} to {now}")

    def _move(self, parts: list[Json], sign: int) -> None:
        for each in parts:
            total = self._taken.setdefault(each["uuid"], [0, 0])
            total[0] += sign * each["share_milli"]
            total[1] += sign * each["memory_mib"]
        self.most_milli = max(self.most_milli, sum(share for share, _ in self._taken.values()))

    def _judge(self, pod: Json, parts: list[Json]) -> None:
        where = f"{pod['metadata']['name']} on {pod['spec']['nodeName']}"
        if not parts:
            self.wrong.append(f"{where}: bound without cards")
        for each in parts:
            share, memory = self._taken[each["uuid"]]
            if share > 1000 or memory > self.memory_mib[each["uuid"]]:
                self.wrong.append(f"{where}: {each['uuid']} holds {share} thousandths and {memory} MiB")


@contextmanager
def watched(api: Any, nodes: Iterable[Json], path: str) -> Iterator[History]:
    """Follows the pods at ``path`` over a connection of its own until the end."""
    history = History({uuid: mib for node in nodes for uuid, mib in inventory(node).items()})
    listed = api.call("GET", path)
    for pod in listed["items"]:
        history.saw("ADDED", pod)
    watch = _Watch(api, path, listed["metadata"]["resourceVersion"], history)
    thread = threading.Thread(target=watch.follow, daemon=True)
    thread.start()
    try:
        yield history
        assert not history.ended
    finally:
        watch.stop()
        thread.join()


class _Watch:
    """Every event from a version on. The API server cuts off who reads too slowly, as a test may on a busy
    machine: then it goes on from the last version seen, and nothing is left out."""

    def __init__(self, api: Any, path: str, version: str, history: History) -> None:
        self._api, self._path, self._version, self._history = api, path, version, history
        self._over = threading.Event()

    def stop(self) -> None:
        """The thread ends within a second."""
        self._over.set()

    def follow(self) -> None:
        """In a thread of its own."""
        try:
            with urllib3.PoolManager(ca_certs=str(self._api.ca_file)) as pool:
                while not self._over.is_set():
                    self._read(pool)
        except Exception as error:  # whatever it is, the test is to say so
            self._history.ended = repr(error)

    def _read(self, pool: urllib3.PoolManager) -> None:
        query = f"?watch=1&timeoutSeconds=1&resourceVersion={self._version}"
        headers = {"Authorization": f"Bearer {self._api.token}"}
        url = self._api.url + self._path + query
        rest = b""
        with pool.request("GET", url, headers=headers, preload_content=False) as response:
            for part in response.stream(65_536):
                *lines, rest = (rest + part).split(b"\n")
                for event in map(json.loads, filter(None, lines)):
                    if event["type"] == "ERROR":
                        raise AssertionError(f"the history is lost: {event['object']}")
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    self._history.saw(event["type"], event["object"])


def complaints(nodes: list[Json], pods: list[Json]) -> list[str]:
    """What is wrong with pods that must all be bound and fill every card's memory: read back card by card,
    and compared with what each pod's own limits ask."""
    cards = {
        card["uuid"]: (node["metadata"]["name"], card["index"], card["memory_mib"])
        for node in nodes
        for card in json.loads(node["metadata"]["annotations"]["bursar.dev/inventory"])["cards"]
    }
    taken = {uuid: [0, 0] for uuid in cards}
    found: list[str] = []
    for pod in pods:
        found += _of_pod(pod, cards, taken)
    for uuid, (share, memory) in taken.items():
        if share > 1000 or memory != cards[uuid][2]:
            found.append(f"{uuid} of {cards[uuid][0]} holds {share} thousandths and {memory} MiB")
    return found


def _of_pod(pod: Json, cards: dict[str, tuple[str, int, int]], taken: dict[str, list[int]]) -> Iterator[str]:
    name, where = pod["metadata"]["name"], pod["spec"].get("nodeName")
    if not where or pod["status"]["phase"] in ENDED:
        yield f"{name} is not bound"
        return
    annotations = pod["metadata"]["annotations"]
    placed = json.loads(annotations["bursar.dev/devices"])["containers"]
    if placed.keys() != {each["name"] for each in pod["spec"]["containers"]}:
        yield f"{name}: cards for {sorted(placed)}"
    for container in pod["spec"]["containers"]:
        parts = placed[container["name"]]
        uuids = [each["uuid"] for each in parts]
        if annotations[f"visible-devices.bursar.dev/{container['name']}"] != ",".join(uuids):
            yield f"{name}: {container['name']} sees others than {uuids}"
        if len(set(uuids)) < len(uuids):
            yield f"{name}: a card twice"
        asked = _asked(container["resources"]["limits"], cards[uuids[0]][2])
        if [(each["share_milli"], each["memory_mib"]) for each in parts] != asked:
            yield f"{name}: {container['name']} asked {asked} and has {parts}"
        for each in parts:
            if cards[each["uuid"]][:2] != (where, each["index"]):
                yield f"{name}: {each['uuid']} is not card {each['index']} of {where}"
            taken[each["uuid"]][0] += each["share_milli"]
            taken[each["uuid"]][1] += each["memory_mib"]


def _asked(limits: dict[str, str], card_mib: int) -> list[tuple[int, int]]:
    """Thousandths and MiB on each card, by the plain words of the README: percents of a card with the same of
    its memory, n x 100 as n whole cards, or memory alone."""
    percent = int(limits.get("bursar.dev/gpu-percent", 0))
    if percent >= 100:
        return [(1000, card_mib)] * (percent // 100)
    if percent:
        return [(percent * 10, card_mib * percent // 100)]
    memory = limits["bursar.dev/gpu-memory"]  # the API server writes 4000 as 4k
    return [(0, int(memory.removesuffix("k")) * (1000 if memory.endswith("k") else 1))]
