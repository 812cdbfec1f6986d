"""Lists of names that are known by their bytes: a call is read as it would be without them."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.refusal import UNKNOWN_NODE
from scheduler_ext.model.node import read_node
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BINPACK, Policy
from scheduler_ext.scoring.typical_pods import BUILT_IN
from scheduler_ext.snapshot.snapshot import node_updated
from scheduler_ext.verbs.fit_cache import FilterResult, FitCache, fit_key
from scheduler_ext.verbs.name_lists import FEWEST_NAMES, MAX_LISTS, KnownLists, NameList
from scheduler_ext.verbs.protocol import (
    ExtenderArgs,
    MalformedArgsError,
    filter_answer,
    prioritize_answer,
    read_extender_args,
)
from tests.scheduler_ext.worlds import node, percent, read, rebuilt, with_used
from tests.support.profile import examples
from tests.worlds import card

POD = {"metadata": {"name": "p"}}
NAMES = [f"node-{at}" for at in range(FEWEST_NAMES)]


def compact(**keys: Any) -> bytes:
    return orjson.dumps(keys)


def outcome(body: bytes, lists: KnownLists) -> tuple[Any, list[str], Any] | None:
    """What the body says; None for a malformed one."""
    try:
        args = read_extender_args(body, lists)
    except MalformedArgsError:
        return None
    return args.pod, list(args.names), args.nodes


# bytes before the list that make it mean something else, or nothing
BEFORE = [
    b'{"Pod":{"metadata":{}}',
    b'{"Pod":{"metadata":{}},"Nodes":null',
    b'{"Pod":{"metadata":{}},"nodenames":["other"]',
    b'{"NodeNames":["first"],"nodenames":["other"],"Pod":{"metadata":{}}',
    b'{"Pod":{"metadata":{}},"NodeNames":["other"]',
    b'{"Nodes":{"items":[{"metadata":{"name":"object"}}]},"Pod":{"metadata":{}}',
    b'{"Pod":{"metadata":{"name":"',
    b'{"Pod":{"metadata":{"name":"\\',
    b'{"Pod":{"metadata":{}',
    b'{"Pod":{"metadata":{}},"x":[1',
    b'{"Pod":7',
    b"",
    b"[1",
]


@given(st.sampled_from(BEFORE), st.binary(max_size=12), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_call_with_a_known_list_is_read_as_without_it(before: bytes, noise: bytes, noisy: bool) -> None:
    known = KnownLists()
    known.written(NAMES)
    end = b',"NodeNames":' + orjson.dumps(NAMES) + b"}"
    body = before + (noise if noisy else b"") + end

    assert known.split(body)[1] == NAMES
    assert outcome(body, known) == outcome(body, KnownLists())


@pytest.mark.parametrize(
    "body",
    [
        compact(Pod=POD, NodeNames=NAMES),
        compact(NodeNames=NAMES, Pod=POD),
        compact(Pod=POD, NodeNames=NAMES, Nodes=None),
        compact(Pod=POD)[:-1] + b',"x\\"NodeNames":' + orjson.dumps(NAMES) + b"}",
        compact(Pod=POD, NodeNames=["a", "b"])[:-1] + b',"x\\",\\"NodeNames":' + orjson.dumps(NAMES) + b"}",
        compact(Pod=POD, x={"NodeNames": NAMES}),
        compact(Pod=POD, NodeNames=NAMES) + b"\n",
    ],
)
def test_what_one_call_says_is_nothing_that_another_says(body: bytes) -> None:
    known = KnownLists()
    other = compact(Pod={"metadata": {"name": "q"}}, NodeNames=NAMES[::-1])
    known.written(NAMES)

    assert outcome(body, known) == outcome(body, KnownLists())
    assert outcome(other, known) == ({"metadata": {"name": "q"}}, NAMES[::-1], None)


def test_the_last_lists_are_known_and_no_more() -> None:
    known = KnownLists()
    lists = [[f"{at}-{name}" for name in NAMES] for at in range(MAX_LISTS + 1)]
    bodies = [compact(Pod=POD, NodeNames=each) for each in lists]

    for each in lists:
        known.written(each)

    assert known.split(bodies[0])[1] is None
    assert [known.split(body)[1] for body in bodies[1:]] == lists[1:]
    assert [read_extender_args(each, known).names for each in bodies] == lists


def test_the_names_that_filter_answers_are_known_when_they_come_back() -> None:
    known = KnownLists()
    asked = ExtenderArgs(POD, [*NAMES, "x"], None)
    answer = orjson.loads(filter_answer(asked, FilterResult(NAMES, {}, {"x": UNKNOWN_NODE}), known))
    back = compact(Pod=POD, Nodes=None, NodeNames=answer["NodeNames"])

    assert answer == {
        "NodeNames": NAMES,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"x": UNKNOWN_NODE.sentence},
        "Error": "",
    }
    assert isinstance(read_extender_args(back, known).names, NameList)
    assert known.split(back)[0] == compact(Pod=POD, Nodes=None, NodeNames=[])


NAME = st.from_regex(r"[a-z0-9.-]{1,9}", fullmatch=True)
STRANGE = st.one_of(st.sampled_from(['a"b', "a\\b", "a}b", "\u00e4"]), st.text())


@given(st.one_of(st.lists(NAME, max_size=20), st.lists(st.one_of(NAME, STRANGE), max_size=4)), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_ranks_are_written_for_each_name_in_order(names: list[str], data: st.DataObject) -> None:
    names = [each for each in names if not any("\ud800" <= char <= "\udfff" for char in each)]
    ranks = data.draw(st.lists(st.integers(0, 10), min_size=len(names), max_size=len(names)))

    for listed in (names, NameList(names)):
        written = prioritize_answer(listed, np.array(ranks, np.int64))
        assert orjson.loads(written) == [
            {"Host": name, "Score": rank} for name, rank in zip(names, ranks, strict=True)
        ]


def test_a_known_list_with_an_unknown_node_fits_once_the_node_is_there() -> None:
    """Nodes are added between two calls with the same bytes."""
    known, cache = KnownLists(), FitCache()
    body = compact(Pod=POD, NodeNames=NAMES)
    pod = read(percent(50))
    assert pod.request is not None
    key = fit_key(pod.request, BINPACK, pod.amounts)
    snapshot = rebuilt([node(name, card(0)) for name in NAMES[1:]], [])
    found = []
    known.written(NAMES)

    for at in range(4):
        if at == 2:
            snapshot = node_updated(snapshot, read_node(node(NAMES[0], card(0))))
        found.append(cache.partition(key, snapshot.nodes, read_extender_args(body, known).names).fits)

    assert found == [NAMES[1:], NAMES[1:], NAMES, NAMES]


def test_the_names_that_fit_are_scored_as_any_list_of_them_is() -> None:
    names = [f"n{at}" for at in range(6)]
    snapshot = with_used(**{name: [at % 3 * 40] for at, name in enumerate(names)})
    pod = read(percent(30))
    assert pod.request is not None
    key, cache = fit_key(pod.request, BINPACK, pod.amounts), FitCache()

    fits = cache.partition(key, snapshot.nodes, names).fits
    scores = [cache.scored(key, snapshot.nodes, each)[0].tolist() for each in (fits, [*fits])]

    assert (fits, len(set(scores[0]))) == (["n1", "n2", "n4", "n5"], 2)
    assert scores[0] == scores[1]


@pytest.mark.parametrize("policy", [BINPACK, fragmentation(FragmentationModel(BUILT_IN), 2_000)])
@given(changes=st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 2), max_size=6), max_size=8))
@example(changes=[{0: 1}, {0: 0}])
@settings(max_examples=examples(60), deadline=None)
def test_a_result_is_what_a_fresh_cache_finds_whatever_has_changed(
    policy: Policy, changes: list[dict[int, int]]
) -> None:
    """A node's two cards are by turns free, used so that none has room, and used so that their sum is short
    as well; of six nodes any number changes at once, so one by one and together."""
    names = NameList(f"n{at}" for at in range(6))
    pod = read(percent(60))
    assert pod.request is not None
    key, cache = fit_key(pod.request, policy, pod.amounts), FitCache()
    free = {name: [100, 100] for name in names}

    for change in [{}, *changes]:
        free |= {names[at]: [[100, 100], [30, 30], [30, 20]][state] for at, state in change.items()}
        snapshot = with_used(**free)
        found = cache.partition(key, snapshot.nodes, names)
        assert found == FitCache().partition(key, snapshot.nodes, [*names])
