"""What other threads see of the settler is of one tick, whatever the settler does meanwhile.

In each tick of these tests all objects are replaced: their names have the tick's number. So each part of a
view says which tick it is of.
"""

from collections.abc import Iterator
from dataclasses import replace
from threading import Condition, Thread
from typing import Any

import pytest

from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_held_claims import device_class
from tests.timekeeper.ledger.test_holding import held_pod
from tests.timekeeper.worlds import GPU, HOUR, SECOND, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.accounts.pods import charged_pods
from timekeeper.settler.state.tick_view import TickView

ONE_DATABASE = "what is in memory after a tick is written"
LOOKS = 20


def user(number: int) -> Json:
    """A pod that holds a device by its claim alone."""
    body = gpu_pod(f"u-{number}", namespace=f"team-{number}", node=f"n-{number}")
    body["metadata"]["annotations"] = {}
    body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": f"c-{number}"}]
    body["spec"]["containers"][0]["resources"] = {}
    return body


def objects(number: int, now_ms: int) -> list[tuple[str, Json]]:
    """What there is in the tick of this number, and in no other."""
    team, of_gang = f"team-{number}", {"bursar.dev/gang": f"g-{number}", "bursar.dev/gang-size": "2"}
    pods = [
        gpu_pod(
            f"p-{place}-{number}",
            namespace=team,
            node=f"n-{number}",
            card=place,
            started_ms=now_ms,
            annotations={"bursar.dev/held": "budget"} | of_gang,
        )
        for place in (0, 1)
    ]
    wants = {"bursar.dev/gpu-models": f"model-{number}"}
    waiting = gpu_pod(f"w-{number}", namespace=team, node="", annotations=wants)
    held = allocated(f"gpu-{number}", pool=f"n-{number}")
    claim = device_claim(f"c-{number}", held, namespace=team, at_ms=now_ms, pods=(f"uid-u-{number}",))
    return [
        ("nodes", node(f"n-{number}", model=f"model-{number}")),
        ("leases", lease(now_ms, f"n-{number}")),
        ("namespaces", {"metadata": {"name": team}}),
        ("resourceslices", device_slice(f"gpu-{number}", node=f"n-{number}")),
        ("deviceclasses", device_class(f"class-{number}", DRIVER)),
        *(("pods", pod) for pod in (*pods, waiting, held_pod(f"h-{number}", namespace=team), user(number))),
        ("resourceclaims", claim),
    ]


class Ticking:
    """A settler that ticks all the time in a thread of its own, and replaces everything in each tick.
    ``number``: of the last tick; ``written``: how many ticks have written something."""

    def __init__(self, town: Town) -> None:
        self.town, self.number, self.written = town, 0, 0
        self._there: list[tuple[str, Json]] = []
        self._ticked, self._is_over = Condition(), False
        self._thread = Thread(target=self._run, daemon=True)
        town.begin()
        for _ in range(2):
            self.tick()

    def tick(self) -> None:
        """One tick, in which everything is replaced."""
        town, number = self.town, self.number + 1
        now_ms = town.clock.turn(SECOND)
        new = objects(number, now_ms)
        for source, raw in self._there:
            town.hear(source, raw, deleted=True)
        for source, raw in new:
            town.hear(source, raw)
        town.hear("configmaps", budgets(_settings="lookahead: 0s", team_a=f"gpuHours: {number}"))
        self._there = new
        is_written = town.tick()
        with self._ticked:
            self.number, self.written = number, self.written + is_written
            self._ticked.notify_all()

    def await_later(self, number: int) -> None:
        """Until two more ticks than this one are written."""
        with self._ticked:
            assert self._ticked.wait_for(lambda: self.number >= number + 2, 60), "the settler has stopped"

    def _run(self) -> None:
        while not self._is_over:
            self.tick()

    def __enter__(self) -> "Ticking":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over = True
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def ticking(town: Town) -> Ticking:
    return Ticking(town)


def number_in(name: str) -> int:
    return int(name.rpartition("-")[2])


def of_names(names: Any) -> set[int]:
    return {number_in(name) for name in names}


def of_users(view: TickView) -> set[int]:
    pod = view.cluster.pods[next(uid for uid in view.cluster.pods if uid.startswith("uid-p-0-"))]
    return of_names(mate.uid for mate in view.mates(pod))


# each part of a view -> the numbers of the ticks that it is of
PARTS: dict[str, Any] = {
    "pods": lambda view: of_names(pod.uid for pod in charged_pods(view.cluster.pods)),
    "every pod": lambda view: of_names(pod.uid for pod in view.pods()),
    "gangs": lambda view: of_names(key for _, key in view.cluster.gangs),
    "mates": of_users,
    "namespaces": lambda view: of_names(view.cluster.namespaces),
    "nodes": lambda view: of_names(view.cluster.nodes),
    "existing": lambda view: of_names(view.cluster.existing_namespaces),
    "claim pods": lambda view: of_names(uid for uids in view.cluster.users.values() for uid in uids),
    "claims": lambda view: of_names(claim.name for claim in view.cluster.allocated.values()),
    "claim names": lambda view: of_names(name for _, name in view.cluster.claim_names),
    "held claims": lambda view: of_names(held.claim.name for held in view.held_claims()),
    "devices": lambda view: of_names(name for *_, name in view.cluster.devices.every()),
    "classes": lambda view: of_names(view.cluster.classes.classes),
    "history": lambda view: {
        view.history.budget("team-a", view.history.newest_ms()).budget.amount // (HOUR * GPU)
    },
    "statements": lambda view: {view.statements.namespaces["team-a"].balance.granted // (HOUR * GPU)},
    "held": lambda view: of_names(view.held.pods),
    "sessions": lambda view: {max(number_in(uid) for uid in view.sessions if uid.startswith("uid-p-"))},
    "charged": lambda view: {
        number_in(uid) for uid in view.cluster.pods if uid.startswith("uid-p-") and view.charged(uid)
    },
    "asked": lambda view: of_names(view.asked),
    "users": lambda view: {max(number_in(uid) for uid in view.claim_users)},
}


def test_all_of_a_view_is_of_one_tick_while_the_settler_ticks(ticking: Ticking) -> None:
    """The second half of each look is read once the settler has written two more ticks."""
    halves = list(PARTS.items())[::2], list(PARTS.items())[1::2]
    with ticking:
        seen, began = set[int](), ticking.written
        while len(seen) < LOOKS:
            view, numbers = ticking.town.settler.view, dict[str, set[int]]()
            for half in halves:
                numbers |= {name: read(view) for name, read in half}
                ticking.await_later(max(numbers["pods"]))
            (number,) = numbers["pods"]
            assert numbers == {name: {number} for name in PARTS}
            seen.add(number)
        assert ticking.written - began >= 2 * LOOKS, "ticks with changes happened meanwhile"


def torn(one: TickView, other: TickView) -> Iterator[tuple[str, TickView]]:
    """Views of which one part is of another tick, with the part's name."""
    for name in ("history", "statements", "held", "sessions", "claim_users", "asked"):
        yield name, replace(one, **{name: getattr(other, name)})
    for name in (
        *("pods", "gangs", "namespaces", "nodes", "existing_namespaces", "users", "allocated"),
        *("claim_names", "devices", "classes"),
    ):
        cluster = replace(one.cluster, **{name: getattr(other.cluster, name)})
        yield name, replace(one, cluster=cluster)


def test_a_view_that_is_torn_would_be_found(ticking: Ticking) -> None:
    """What the test above reads says for each part of which tick it is."""
    before = ticking.town.settler.view
    ticking.tick()
    after = ticking.town.settler.view

    def is_whole(view: TickView) -> bool:
        try:
            numbers = [read(view) for read in PARTS.values()]
        except (KeyError, StopIteration):
            return False
        return all(number == numbers[0] and len(number) == 1 for number in numbers)

    assert is_whole(before)
    assert is_whole(after)
    assert [name for name, view in torn(before, after) if is_whole(view)] == []
    assert [name for name, view in torn(after, before) if is_whole(view)] == []
