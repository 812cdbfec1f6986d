"""One review decides each thing once: patch, warnings, audit, decision and log read one value."""

import sys
from collections import Counter
from types import FrameType
from typing import Any

import orjson
import pytest

from tests.runtime.lines import into
from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.process_metrics import of_this_process
from tests.webhook.unit.test_claims import CLAIMS, claiming
from tests.webhook.worlds import (
    admitted,
    half,
    patch_of,
    patched,
    plain,
    review_of,
    with_annotations,
    with_class,
)
from tests.worlds import Json, limits_of
from webhook.server.app import create_calls
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import simulation_call
from webhook.standings import decode

ONCE = (
    "placed_by",
    "parse_new",
    "_parse",
    "govern",
    "gang_of",
    "hold_of",
    "keeps_own_class",
    "class_of",
    "without_placement",
    "admission_of",
)
# a policy is made for a namespace; what a mark says, and whether it is forged, are other questions
OF_OTHERS = ("effective_policy", "forgery_violations", "_given_fields")


class World:
    """One worker whose evaluations are counted. `table`: its namespace's entry."""

    def __init__(self, **table: Any) -> None:
        document = standings({"lookaheadMs": 600_000}, team_a=entry(**table))
        known = decode(orjson.dumps(document), "", 0)
        self.reviewer = Reviewer(CLAIMS, lambda: known, lambda: "ca", lambda: 0, 30_000)
        self.calls = create_calls(self.reviewer, of_this_process(), into([]))
        self.calls["/simulate"] = simulation_call(self.reviewer, into([]))
        self.reviewer.policy_for("team-a")  # which is made once for a table

    def counted(self, path: str, body: Json) -> tuple[Json, Counter[str]]:
        """The answer, and how often each function was evaluated for it."""
        asked = orjson.dumps(body)
        found: Counter[str] = Counter()

        def notice(frame: FrameType, event: str, _: object) -> None:
            name, caller = frame.f_code.co_name, frame.f_back
            if event == "call" and name in ONCE and caller and caller.f_code.co_name not in OF_OTHERS:
                found[name] += 1

        sys.setprofile(notice)
        try:
            answer = self.calls[path](asked)
        finally:
            sys.setprofile(None)
        assert isinstance(answer.body, bytes)
        return orjson.loads(answer.body), found


GANG = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}
PODS: dict[str, Json] = {
    "a half card": admitted(half(), plain()),
    "whole cards of the plugin": admitted(limits_of("main", nvidia_com__gpu="2")),
    "of a gang": with_annotations(admitted(half()), GANG),
    "of a class of its own": with_class(admitted(half()), "batch", -100),
    "of a higher class": with_class(admitted(half()), "urgent", 7),
    "with claims": claiming("two"),
    "with claims that are not known": claiming("later"),
    "without a card": admitted(plain()),
}
TABLES: dict[str, Json] = {
    "in budget": {},
    "over budget": {"standing": "OVER_BUDGET"},
    "held": {"standing": "OVER_BUDGET", "onExhausted": "hold"},
    "refused": {"standing": "OVER_BUDGET", "onExhausted": "deny"},
    "observed": {"mode": "observe"},
    "protected": {
        "standing": "OVER_BUDGET",
        "protect": {
            "labels": {},
            "owners": [],
            "cards": 2_000,
            "amount": None,
            "left": 1_000,
            "uids": [],
            "turns": False,
        },
    },
}


@pytest.mark.untraced
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("pod", PODS)
def test_each_thing_is_decided_once_for_one_review(pod: str, table: str) -> None:
    world, raw = World(**TABLES[table]), PODS[pod]

    answer, first = world.counted("/mutate", review_of(raw))

    after = patched(raw, patch_of(answer["response"]))
    after["metadata"] |= {"name": "p", "uid": "uid-p"}
    _, again = world.counted("/mutate", review_of(after))
    _, checked = world.counted("/validate", review_of(after))
    _, simulated = world.counted("/simulate", {"reviews": [review_of(raw, dryRun=True)]})
    for found in (first, again, checked, simulated):
        assert {name: count for name, count in found.items() if count > 1} == {}


@pytest.mark.untraced
@pytest.mark.parametrize("pod", PODS)
def test_an_owners_template_is_read_once_by_each_route(pod: str) -> None:
    world, raw = World(gangs="auto", caps={"total": 4_000, "pod": None}), PODS[pod]
    template = {"metadata": {"annotations": raw["metadata"].get("annotations", {})}, "spec": raw["spec"]}
    for kind, group in (("Deployment", "apps"), ("StatefulSet", "apps"), ("Job", "batch")):
        owner = {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": {"name": "o"},
            "spec": {"template": template},
        }
        kind_of = {"kind": {"group": group, "version": "v1", "kind": kind}, "name": "o"}
        for path in ("/templates", "/gangs"):
            _, found = world.counted(path, review_of(owner, **kind_of))
            assert {name: count for name, count in found.items() if count > 1} == {}
