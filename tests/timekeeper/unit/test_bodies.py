"""What each post may say: the first value that is wrong is named by its place, with what is allowed."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.worlds import Json
from timekeeper.api.resources import cluster_map, decisions, heartbeats, node_usage
from timekeeper.api.resources.bindings import read_bindings
from timekeeper.api.resources.ends import read_ends
from timekeeper.api.resources.grants import read_grant
from timekeeper.api.resources.group_grants import read_passing_on
from timekeeper.api.resources.simulated.bodies import read_simulation
from timekeeper.runtime.http.problem_details import Problem

NOW = 10**12
USE = {"uuid": "GPU-0", "utilisation": 37, "memory_mib": 8_000}
POD = {"uid": "uid-p", "namespace": "team-a", "pod": "p", "node": "n1"}
ASK = {"container": "main", "init": False, "devices": 1, "share_milli": 1_000, "memory_mib": 0}
ON_CARD = {"namespace": "a", "name": "p", "uid": "u", "share_milli": 500, "memory_mib": 1, "held": "bound"}
ON_MAP = {"uuid": "GPU-0", "index": 0, "model": "", "memory_mib": 1, "healthy": True, "cordoned": False}
WAITS = {"namespace": "a", "name": "p", "uid": "u", "state": "refused", "standing": "IN_BUDGET", "reason": ""}
PLACED = (
    '{"containers":{"main":[{"index":0,"memory_mib":16000,"share_milli":1000,"uuid":"GPU-0"}]},"version":1}'
)

POSTS: dict[str, Json] = {
    "heartbeats": {
        "version": 1,
        "boot": "b",
        "sequence": 1,
        "beats": [{"age_ms": 0, "devices": [{**USE, "scope": "shared"}]}],
    },
    "node usage": {
        "version": 1,
        "boot": "b",
        "sequence": 1,
        "uses": [{"age_ms": 0, "pods": [{"uid": "uid-p", "cards": [USE]}], "cards": [USE]}],
    },
    "bindings": {
        "version": 1,
        "bindings": [
            {
                **POD,
                "age_ms": 0,
                "dialect": "bursar",
                "asks": [{**ASK, "resources": {"nvidia.com/gpumem": 1}}],
                "devices": PLACED,
                "grace_ms": 30_000,
            }
        ],
    },
    "ends": {
        "version": 1,
        "ends": [
            {
                **POD,
                "bound_ms": 1,
                "over": True,
                "ended_ms": 2,
                "reported_ms": None,
                "witnessed_ms": 0,
                "grace_ms": 0,
                "deletion_ms": None,
                "removed_age_ms": 0,
                "left_age_ms": None,
            }
        ],
    },
    "decisions": {
        "version": 1,
        "source": "webhook",
        "decisions": [
            {
                "kind": "refused",
                "reason": "Rules",
                "namespace": "team-a",
                "figures": {"milli": 500, "text": "a"},
                "count": 1,
                "first_age_ms": 0,
                "last_age_ms": 0,
            }
        ],
    },
    "cluster": {
        "version": 1,
        "nodes": [
            {
                "name": "n1",
                "closed": "",
                "cards": [
                    {**ON_MAP, "used_share_milli": 0, "used_memory_mib": 0, "pods": [ON_CARD], "more_pods": 0}
                ],
            }
        ],
        "gone": ["n2"],
        "waiting": {"total": 1, "pods": [{**WAITS, "priority": 0, "age_ms": 0}], "more": {"team-a": 1}},
        "term": "a-1",
    },
    "simulation": {
        **{"version": 1, "namespace": "team-a", "manifest": {"apiVersion": "v1", "kind": "Pod"}},
        "claims": [{}],
    },
    "grant": {"subject": "team-a", "gpuHours": "1.5", "reason": "ticket 7"},
    "passing on": {"namespace": "team-a", "amount": 5, "reason": "ticket 7"},
}
READ: dict[str, Callable[[bytes], object]] = {
    "heartbeats": heartbeats.BODY.read,
    "node usage": node_usage.BODY.read,
    "bindings": lambda body: read_bindings(body, NOW),
    "ends": lambda body: read_ends(body, NOW),
    "decisions": decisions.BODY.read,
    "cluster": cluster_map.BODY.read,
    "simulation": read_simulation,
    "grant": read_grant,
    "passing on": read_passing_on,
}

BOOT = "it must be 1 to 64 letters, digits or . _ : -"
NAME = "it must be a name of Kubernetes"
AGE = "it must be a whole number from 0 to 2592000000"
FIGURES = "it does not have the form of a card's figures"
MOMENT = "it must be null or a whole number from 1 to 9007199254740992"
WORD = "it must be 1 to 32 lower-case letters or -"
FIGURE = "it must be a whole number of 64 bits, or a printable text of at most 1000 characters"
TEXT = "it must be a printable text of 1 to 253 characters"
AMOUNT = "it must be a whole number from 0 to 2147483648"
RESOURCES = "it must be an object of at most 64 whole numbers"
HOURS = (
    "it must be a number of GPU-hours other than 0, with at most 8 decimals or as an answer has it, at most"
    " 1000000000"
)
REASON = "it must be a text of 1 to 500 characters, without line breaks"
CLOSED = "no such field; allowed: gpuHours, amount, reason, subject, from, kind"

REFUSED: list[tuple[str, str, object, str]] = [
    ("heartbeats", "version", 2, "it must be 1"),
    ("heartbeats", "boot", "a\n", BOOT),
    ("heartbeats", "sequence", True, "it must be a whole number from 0 on"),
    ("heartbeats", "beats", [], "it must be a list of 1 to 1000 beats"),
    ("heartbeats", "beats[0]", 7, "it must be an object"),
    ("heartbeats", "beats[0].age_ms", -1, AGE),
    ("heartbeats", "beats[0].devices", None, "it must be a list of at most 64 cards"),
    ("heartbeats", "beats[0].devices[0]", 7, FIGURES),
    ("heartbeats", "beats[0].devices[0].uuid", "", FIGURES),
    ("heartbeats", "beats[0].devices[0].utilisation", 2**32, FIGURES),
    ("heartbeats", "beats[0].devices[0].memory_mib", 1.5, FIGURES),
    ("heartbeats", "beats[0].devices[0].scope", "mine", FIGURES),
    ("node usage", "boot", "a b", BOOT),
    ("node usage", "sequence", 2**64, "it must be a whole number from 0 on"),
    ("node usage", "uses", [], "it must be a list of 1 to 1000 objects"),
    ("node usage", "uses[0]", 1, "it must be an object"),
    ("node usage", "uses[0].age_ms", 31 * 86_400_000, AGE),
    ("node usage", "uses[0].pods", None, "it must be a list of 0 to 1024 objects"),
    ("node usage", "uses[0].pods", [{"uid": "a", "cards": []}] * 2, "each pod must appear once"),
    ("node usage", "uses[0].pods[0].uid", "a\0", BOOT),
    ("node usage", "uses[0].pods[0].cards", [USE] * 2, "each card must appear once"),
    ("node usage", "uses[0].cards[0].uuid", "\0", "it must be 1 to 128 visible ASCII characters"),
    ("node usage", "uses[0].cards[0].utilisation", 101, "it must be a whole number from 0 to 100, or null"),
    ("node usage", "uses[0].cards[0].memory_mib", -1, f"{AMOUNT}, or null"),
    ("bindings", "bindings", [], "it must be a list of 1 to 100 objects"),
    ("bindings", "bindings[0].uid", "", BOOT),
    ("bindings", "bindings[0].namespace", "A b", NAME),
    ("bindings", "bindings[0].dialect", "none", ""),
    ("bindings", "bindings[0].asks", [], "it must be a list of 1 to 1000 objects"),
    ("bindings", "bindings[0].asks[0].init", 1, "it must be true or false"),
    ("bindings", "bindings[0].asks[0].devices", 257, "it must be a whole number from 0 to 256"),
    ("bindings", "bindings[0].asks[0].memory_milli", None, "it must be a whole number from 0 to 1000"),
    ("bindings", "bindings[0].asks[0].resources", {f"r{at}": 1 for at in range(65)}, RESOURCES),
    ("bindings", "bindings[0].asks[0].resources.a", -1, ""),
    ("bindings", "bindings[0].asks[0].resources", dict.fromkeys(map(str, range(65)), 1), ""),
    ("bindings", "bindings[0].devices", "{", ""),
    ("bindings", "bindings[0].grace_ms", True, AMOUNT),
    ("ends", "ends", [], "it must be a list of 1 to 100 objects"),
    ("ends", "ends[0]", "p", "it must be an object"),
    ("ends", "ends[0].pod", 7, NAME),
    ("ends", "ends[0].bound_ms", 0, MOMENT),
    ("ends", "ends[0].over", "yes", "it must be true or false"),
    ("ends", "ends[0].reported_ms", 1.5, MOMENT),
    ("ends", "ends[0].witnessed_ms", True, "it must be a whole number from 0 to 9007199254740992"),
    ("ends", "ends[0].deletion_ms", "now", MOMENT),
    ("ends", "ends[0].removed_age_ms", None, AGE),
    ("ends", "ends[0].left_age_ms", 2**60, AGE),
    ("decisions", "source", "Webhook", WORD),
    ("decisions", "decisions", 1, "it must be a list of 1 to 1000 objects"),
    ("decisions", "decisions[0].kind", "Refused", WORD),
    ("decisions", "decisions[0].reason", "not a word", "it must be a word of 1 to 64 letters or digits"),
    ("decisions", "decisions[0].namespace", "A b", "it must be the name of a namespace, or _group.NAME"),
    ("decisions", "decisions[0].name", "a\0b", "it must be a printable text of at most 320 characters"),
    ("decisions", "decisions[0].uid", None, "it must be a printable text of at most 320 characters"),
    ("decisions", "decisions[0].count", 0, "it must be a whole number from 1 to 2147483648"),
    ("decisions", "decisions[0].last_age_ms", 1, "it must not be more than first_age_ms"),
    ("decisions", "decisions[0].figures", [], "it must be an object with at most 24 members"),
    ("decisions", "decisions[0].figures", {"1": 1}, ""),
    ("decisions", "decisions[0].figures.milli", True, FIGURE),
    ("decisions", "decisions[0].figures.milli", 2**63, FIGURE),
    ("decisions", "decisions[0].figures.text", "\0", FIGURE),
    ("cluster", "nodes", {}, "it must be a list of at most 500"),
    ("cluster", "nodes[0].name", "", TEXT),
    ("cluster", "nodes[0].closed", "\n", "it must be a printable text of 0 to 300 characters"),
    ("cluster", "nodes[0].cards[0].memory_mib", -1, AMOUNT),
    ("cluster", "nodes[0].cards[0].healthy", 1, "it must be true or false"),
    ("cluster", "nodes[0].cards[0].pods", {}, "it must be a list of at most 64"),
    ("cluster", "nodes[0].cards[0].pods[0].name", "", TEXT),
    ("cluster", "gone[0]", 7, TEXT),
    ("cluster", "nodes[0].cards[0].model", "A100\u200b", ""),
    ("cluster", "nodes[0].cards[0].pods[0].name", "", TEXT),
    ("decisions", "decisions[0].owner", "Job/\n", ""),
    ("cluster", "waiting", 7, "it must be an object"),
    ("cluster", "waiting.pods[0].priority", 2**40, "it must be a whole number of 32 bits"),
    ("cluster", "waiting.more.hog", -1, AMOUNT),
    ("simulation", "namespace", "A", "it must be the name of a namespace"),
    ("simulation", "manifest", [], "it must be a Pod or an owner of pods"),
    ("simulation", "claims[0]", 7, "it must be a ResourceClaim or a ResourceClaimTemplate"),
    ("simulation", "budget", "", "no such field; allowed: version, namespace, manifest, claims"),
    ("grant", "subject", None, "it must be the name of a namespace, or _group.NAME"),
    ("grant", "from", "_group.blue", "it must be the name of a namespace"),
    ("grant", "kind", "gift", "it must be manual or correction; or with from, transfer"),
    ("grant", "kind", "transfer", "it must be manual or correction; or with from, transfer"),
    ("grant", "gpuHours", True, HOURS),
    ("grant", "gpuHours", "1e3", HOURS),
    ("grant", "reason", "a\nb", REASON),
    ("grant", "hours", 7, CLOSED),
    ("passing on", "namespace", "_group.blue", "it must be the name of a namespace"),
    ("passing on", "amount", "5", "it must be a whole number of milli-GPU x milliseconds"),
    ("passing on", "amount", 0, "it must not be 0, and at most 1000000000 GPU-hours"),
    ("passing on", "subject", "a", "no such field; allowed: gpuHours, amount, reason, namespace"),
]


def changed(post: Json, place: str, value: object) -> bytes:
    """The post with another value at this place."""
    whole: Any = json.loads(json.dumps(post))
    inner, keys = whole, [int(each) if each.isdigit() else each for each in re.findall(r"\w+", place)]
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(("kind", "place", "value", "sentence"), REFUSED)
def test_the_first_wrong_value_is_named_by_its_place(
    kind: str, place: str, value: object, sentence: str
) -> None:
    READ[kind](json.dumps(POSTS[kind]).encode())

    with pytest.raises(Problem) as refused:
        READ[kind](changed(POSTS[kind], place, value))

    assert (refused.value.status, refused.value.where) == (400, place)
    assert not sentence or refused.value.detail == sentence


@pytest.mark.parametrize("kind", POSTS)
def test_what_is_no_object_is_refused(kind: str) -> None:
    for body, sentence in ((b"{", "the body is not JSON"), (b"[]", "the body must be an object")):
        with pytest.raises(Problem) as refused:
            READ[kind](body)
        assert (refused.value.where, refused.value.detail) == ("", sentence)


@pytest.mark.parametrize("kind", [each for each in POSTS if "version" in POSTS[each]])
def test_a_field_that_is_given_twice_is_refused(kind: str) -> None:
    for name, value in POSTS[kind].items():
        body = (json.dumps(POSTS[kind])[:-1] + "," + json.dumps({name: value})[1:]).encode()

        with pytest.raises(Problem) as refused:
            READ[kind](body)

        assert (refused.value.where, refused.value.detail) == (name, "it must be given once")


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("heartbeats", "beats[0].devices[0].uuid"),
        ("node usage", "uses[0].pods[0].uid"),
        ("bindings", "bindings[0].namespace"),
        ("bindings", "bindings[0].pod"),
        ("ends", "ends[0].pod"),
        ("decisions", "decisions[0].namespace"),
        ("decisions", "decisions[0].figures.source"),
        ("cluster", "nodes[0].cards[0].pods[0].namespace"),
    ],
)
def test_a_name_may_equal_the_name_of_a_field(kind: str, place: str) -> None:
    for name in POSTS[kind]:
        READ[kind](changed(POSTS[kind], place, name))
