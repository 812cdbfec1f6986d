"""The law of held cards: whatever the watches show, and in which order, the snapshot's functions hold a pod's
card exactly when an oracle says so that shares no code with them."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.model.node import read_node
from scheduler_ext.snapshot.snapshot import (
    Snapshot,
    expire,
    node_deleted,
    node_updated,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from tests.scheduler_ext import hold_oracle
from tests.scheduler_ext.worlds import asking, holders, node, on, read, rebuilt
from tests.support.profile import examples
from tests.worlds import Json, container

pytestmark = pytest.mark.untraced


CONTAINERS = ("first", "gpu", "idle", "bursar-sidecar", "debug")
KINDS = {
    "first": "initContainerStatuses",
    "bursar-sidecar": "initContainerStatuses",
    "debug": "ephemeralContainerStatuses",
}
LOOKS = ("listed", "absent", "looking", "none", "dark", "silent")

events = st.one_of(
    st.tuples(st.just("time"), st.sampled_from([1, 29, 30, 31, 300, 599, 600])),
    st.tuples(st.just("phase"), st.sampled_from(["Running", "Succeeded", "Failed"])),
    st.tuples(st.sampled_from(["runs", "ends"]), st.sampled_from(CONTAINERS)),
    st.tuples(st.just("delete"), st.sampled_from([0, 1, 60, 36_000])),
    st.tuples(st.just("look"), st.sampled_from(LOOKS)),
    st.tuples(st.just("removed"), st.sampled_from(["watched", "gap"])),
    st.tuples(st.just("boot"), st.booleans()),
)


@dataclass
class World:
    """One pod on one card, as the API server's objects show it, and the same story for the oracle."""

    story: hold_oracle.Story
    pod: Json
    now_s: int = 0
    report: str = "absent"
    snapshot: Snapshot = field(default_factory=Snapshot)

    def begin(self) -> None:
        self.snapshot = rebuilt([self.node()], [self.pod])

    def node(self) -> Json:
        """The Node object, with what its agent reports now."""
        boot = f"b{self.story.boot}"
        text = {
            "listed": holders({"uid-p": []}, boot=boot),
            "absent": holders(boot=boot),
            "looking": holders(known=False, boot=boot),
            "dark": "{",
            "silent": holders({"uid-p": []}, boot=boot),
        }.get(self.report)
        raw = node("n", annotations={} if text is None else {"bursar.dev/holders": text})
        status = "Unknown" if self.report == "silent" else "True"
        raw["status"] |= {"conditions": [{"type": "Ready", "status": status}], "nodeInfo": {"bootID": boot}}
        return raw

    def applies(self, kind: str, what: Any) -> None:
        if kind == "time":
            self.now_s += what
        elif kind == "boot":
            self.boots(was_away=what)
        elif kind == "look":
            self.report, self.story.is_listed_now = what, what == "listed"
            self.snapshot = node_updated(self.snapshot, read_node(self.node()), 1000 * self.now_s)
            self.seen()
        elif self.story.gone_s is None:
            self.pod_changes(kind, what)
        self.snapshot = expire(self.snapshot, 1000 * self.now_s)

    def boots(self, was_away: bool) -> None:
        """The machine boots while the pod has an object; its Node may have been gone meanwhile."""
        if self.story.gone_s is None:
            self.story.boot += 1
            self.snapshot = node_deleted(self.snapshot, "n") if was_away else self.snapshot
            self.snapshot = node_updated(self.snapshot, read_node(self.node()), 1000 * self.now_s)

    def pod_changes(self, kind: str, what: Any) -> None:
        if kind == "removed":
            self.story.was_left = self.story.is_left_behind()
            self.story.gone_s, self.story.in_gap = self.now_s, what == "gap"
            now_ms = 1000 * self.now_s
            gone = pods_listed(self.snapshot, [], now_ms) if what == "gap" else None
            self.snapshot = gone or pod_deleted(self.snapshot, read(self.pod), now_ms)
            return self.seen()
        if kind == "phase":
            self.story.phase = what
        elif kind == "delete":
            self.story.deletions_s.append(what)
            self.pod["metadata"] |= {
                "deletionGracePeriodSeconds": what,
                "deletionTimestamp": "2026-11-20T10:00:00Z",
            }
        else:
            self.story.running[what] = kind == "runs"
        self.story.changes()
        self.pod["status"] = {"phase": self.story.phase} | self.statuses()
        self.snapshot = pod_updated(self.snapshot, read(self.pod), 1000 * self.now_s)
        return None

    def statuses(self) -> Json:
        listed: dict[str, list[Json]] = {}
        for name, runs in self.story.running.items():
            state: Json = {"running": {}} if runs else {"terminated": {"finishedAt": "2026-11-20T10:00:00Z"}}
            listed.setdefault(KINDS.get(name, "containerStatuses"), []).append({"name": name, "state": state})
        return listed

    def seen(self) -> None:
        """What is known of the node, once the object is gone."""
        if self.story.gone_s is not None:
            self.story.looks.append("dark" if self.report == "silent" else self.report)


def world() -> World:
    init = [container("first"), container("bursar-sidecar")]
    raw = on(asking(container("gpu", gpu_percent="100"), container("idle"), init=init), "n", "n-GPU-0")
    raw["spec"]["terminationGracePeriodSeconds"] = 30
    made = World(hold_oracle.Story(), raw)
    made.begin()
    return made


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(events, max_size=14))
def test_a_card_is_held_exactly_while_the_oracle_says_so(told: list[tuple[str, Any]]) -> None:
    there = world()

    for kind, what in told:
        was_held = there.story.is_held(there.now_s)
        there.applies(kind, what)
        if there.story.gone_s is not None and not was_held and kind != "removed":
            return  # what the agent says of a pod that was let go is another law (`test_orphans_law`)
        held = there.snapshot.allocation("uid-p") is not None
        assert held == there.story.is_held(there.now_s), (kind, what)


def test_a_second_deletion_does_not_shorten_the_first() -> None:
    there = world()
    for event in (("delete", 36_000), ("delete", 0), ("removed", "watched"), ("time", 599)):
        there.applies(*event)

    assert there.snapshot.allocation("uid-p") is not None
    there.applies("time", 1)
    assert there.snapshot.allocation("uid-p") is None


def test_a_silent_node_keeps_its_cards_until_its_object_goes() -> None:
    there = world()
    for event in (("look", "silent"), ("removed", "watched"), ("time", 600)):
        there.applies(*event)
    assert there.snapshot.allocation("uid-p") is not None

    gone = expire(node_deleted(there.snapshot, "n", 600_000), 600_000)

    assert gone.allocation("uid-p") is None
