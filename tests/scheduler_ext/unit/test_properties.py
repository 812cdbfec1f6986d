"""Laws of `fit`, against an oracle that tries everything and shares no code with it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit import refusal
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BUILT, Policy
from scheduler_ext.scoring.typical_pods import BUILT_IN
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from tests.scheduler_ext import oracle
from tests.scheduler_ext.oracle import Card, Container, World
from tests.scheduler_ext.worlds import Json, asking, bound, node, read, rebuilt
from tests.support.profile import examples
from tests.worlds import card, container
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement, Slice

pytestmark = pytest.mark.untraced


# few different sizes and amounts, so that cards are often just full
USES = [(0, 0), (0, 0), (0, 4000), (40, 6400), (50, 2000), (70, 64), (100, 16000)]
AMOUNTS = [(100, 0), (50, 0), (30, 0), (20, 0), (30, 6000), (0, 5000), (60, 2000)]


@st.composite
def cards_drawn(draw: st.DrawFn, at: int, most: int, known: bool) -> Card:
    """A card, mostly one that can be had."""
    memory = draw(st.sampled_from([16000, 8000]))
    percent, taken = draw(st.sampled_from(USES))
    links = draw(st.sets(st.integers(0, most - 1))) if known else set()
    state = draw(st.sampled_from(["well", "well", "well", "well", "broken", "cordoned"]))
    return Card(
        memory=memory,
        model=draw(st.sampled_from(["A100", "A100", "T4"])),
        healthy=state != "broken",
        cordoned=state == "cordoned",
        numa=draw(st.sampled_from([0, 0, 1, None])) if known else None,
        links=frozenset(links - {at}) if known else None,
        used_percent=percent,
        used_memory=memory if percent == 100 else min(taken, memory),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A small node, a pod of up to five containers, and now and then a constraint."""
    count, topology = draw(st.integers(1, 4)), draw(st.sampled_from(["", "", "node", "numa", "pair"]))
    far = topology in ("numa", "pair")
    known = draw(st.sampled_from([True, True, True, False])) if far else draw(st.booleans())
    cards = tuple(draw(cards_drawn(at, count, known)) for at in range(count))
    kinds = draw(st.lists(st.sampled_from(["init", "sidecar"]), max_size=2))
    kinds += ["main"] * draw(st.integers(0 if kinds else 1, 3))
    several = [1, 2, 2, 3] if far else [1, 1, 1, 2, 3]
    containers = tuple(draw(containers_drawn(kind, several)) for kind in kinds)
    single = [at for at, each in enumerate(containers) if each.cards == 1]
    same = draw(st.just(set()) | st.sets(st.sampled_from(single), min_size=2)) if single[1:] else set()
    return World(
        cards=cards,
        containers=containers,
        models=draw(st.sampled_from([(), (), (), ("A100",), ("A100", "T4")])),
        exclude=draw(st.sampled_from([(), (), (), ("T4",)])),
        uuids=draw(st.sampled_from([(), (), (), (0,), (0, count - 1)])),
        topology=topology,
        same=tuple(sorted(same)),
    )


@st.composite
def containers_drawn(draw: st.DrawFn, kind: str, several: list[int]) -> Container:
    """A container that asks for one of these numbers of cards."""
    percent, memory = draw(st.sampled_from(AMOUNTS))
    return Container(kind, draw(st.sampled_from(several)), percent, memory)  # type: ignore[arg-type]


def node_info_of(world: World) -> Json:
    """The node's object."""
    listed = [
        card(
            at,
            each.memory,
            each.model,
            healthy=each.healthy,
            numa=each.numa,
            links=None if each.links is None else [f"GPU-{other}" for other in sorted(each.links)],
        )
        for at, each in enumerate(world.cards)
    ]
    cordoned = [f"GPU-{at}" for at, each in enumerate(world.cards) if each.cordoned]
    return node("n", *listed, annotations={"bursar.dev/cordoned-cards": ",".join(cordoned)})


def users_of(world: World) -> list[Json]:
    """Pods that have what the cards' users have."""
    made = []
    for at, each in enumerate(world.cards):
        if each.used_percent or each.used_memory:
            whole = each.used_percent == 100
            used = Container("main", 1, each.used_percent, 0 if whole else each.used_memory)
            raw = asking(_container("main", used), name=f"user-{at}")
            part = Slice(f"GPU-{at}", at, 10 * each.used_percent, each.used_memory)
            made.append(bound(raw, "n", encode_placement(Placement((("main", (part,)),)))))
    return made


def pod_of(world: World) -> Json:
    """The pod's object."""
    raws = [_container(f"c{at}", each) for at, each in enumerate(world.containers)]
    early = [raw for raw, each in zip(raws, world.containers, strict=True) if each.kind != "main"]
    annotations = {
        "bursar.dev/gpu-models": ",".join(world.models),
        "bursar.dev/exclude-gpu-models": ",".join(world.exclude),
        "bursar.dev/gpu-uuids": ",".join(f"GPU-{at}" for at in world.uuids),
        "bursar.dev/topology": world.topology,
        "bursar.dev/same-gpu": ",".join(f"c{at}" for at in world.same),
    }
    given_ones = {name: value for name, value in annotations.items() if value}
    return asking(*raws[len(early) :], init=early, annotations=given_ones)


def _container(name: str, asks: Container) -> Json:
    limits: Json = {"gpu_count": asks.cards} if asks.cards > 1 else {}
    if asks.percent:
        limits["gpu_percent"] = str(asks.cards * asks.percent)
    if asks.memory:
        limits["gpu_memory"] = str(asks.cards * asks.memory)
    raw = container(name, **limits)
    return raw | {"restartPolicy": "Always"} if asks.kind == "sidecar" else raw


def answer(world: World, policy: Policy) -> Placement | Refusal:
    """What `fit` says; a pod whose constraints contradict each other is refused before."""
    pod = read(pod_of(world))
    if pod.request is None:
        assert "same-gpu" in pod.malformed
        return refusal.malformed(pod.malformed)
    there = rebuilt([node_info_of(world)], users_of(world)).node("n")
    assert there.closed == ""
    return fit(pod.request, there, policy)


POLICIES = {
    policy.name: policy for policy in (*BUILT.values(), fragmentation(FragmentationModel(BUILT_IN), 1000))
}
policies = st.sampled_from(sorted(POLICIES)).map(POLICIES.__getitem__)


@settings(max_examples=examples(250), deadline=None)
@given(worlds(), policies)
def test_a_fit_is_found_exactly_when_there_is_one(world: World, policy: Policy) -> None:
    found = answer(world, policy)

    assert isinstance(found, Placement) == oracle.fits(world)


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), policies)
def test_what_is_given_is_what_was_requested_and_no_card_is_too_full(world: World, policy: Policy) -> None:
    found = answer(world, policy)
    if isinstance(found, Refusal):
        return

    assert [name for name, _ in found.containers] == [f"c{at}" for at in range(len(world.containers))]
    assert oracle.right(world, tuple(tuple(s.index for s in slices) for _, slices in found.containers))
    for each, (_, slices) in zip(world.containers, found.containers, strict=True):
        for part in slices:
            there = world.cards[part.index]
            assert part.uuid == f"GPU-{part.index}"
            assert (part.share_milli, part.memory_mib) == (10 * each.percent, oracle.taken(each, there))


def emptier(world: World, at: int) -> World:
    """The same with nobody on one card."""
    return with_card(world, at, used_percent=0, used_memory=0)


def mended(world: World, at: int) -> World:
    """The same with a card healthy and not cordoned."""
    return with_card(world, at, healthy=True, cordoned=False)


def one_more(world: World, at: int) -> World:
    """The same with another card, linked as this one is."""
    return replace(world, cards=(*world.cards, world.cards[at]))


def better_linked(world: World, at: int) -> World:
    """The same with one card linked to all others, where links are known."""
    if world.cards[at].links is None:
        return world
    return with_card(world, at, links=frozenset(range(len(world.cards))) - {at})


def looser(world: World, _at: int) -> World:
    """The same without a constraint."""
    return replace(world, models=(), exclude=(), uuids=(), topology="", same=())


def fewer(world: World, at: int) -> World:
    """The same pod without one of its containers, which has to be in no group."""
    left = [each for number, each in enumerate(world.containers) if number != at]
    return replace(world, containers=tuple(left)) if left and not world.same else world


def with_card(world: World, at: int, **changed: object) -> World:
    """The same with one card that is different."""
    cards = [replace(each, **changed) if at == number else each for number, each in enumerate(world.cards)]  # type: ignore[arg-type]
    return replace(world, cards=tuple(cards))


EASINGS = (emptier, mended, one_more, better_linked, looser, fewer)


@settings(max_examples=examples(150), deadline=None)
@given(worlds(), st.integers(0, 3), st.sampled_from(EASINGS), policies)
def test_what_makes_it_easier_never_loses_a_fit(
    world: World, at: int, easing: Callable[[World, int], World], policy: Policy
) -> None:
    easier = easing(world, at % len(world.cards))

    if isinstance(answer(world, policy), Placement):
        assert isinstance(answer(easier, policy), Placement)


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), policies)
def test_filter_offers_a_node_exactly_when_bind_could_place_the_pod_there(
    world: World, policy: Policy
) -> None:
    pod = read(pod_of(world))
    if pod.request is None:
        return
    snapshot = rebuilt([node_info_of(world)], users_of(world))

    found = FitCache().partition(fit_key(pod.request, policy, pod.amounts), snapshot.nodes, ["n"])

    at_bind = fit(pod.request, snapshot.node("n"), policy)
    if isinstance(at_bind, Placement):
        assert found.fits == ["n"]
    else:
        assert {**found.short, **found.refused} == {"n": at_bind}


def linked(name: str) -> Json:
    """A node of four cards, linked in pairs, one of them small."""
    return node(
        name,
        *(
            card(at, 8000 if at == 3 else 16000, numa=at // 2, links=[f"{name}-GPU-{at ^ 1}"])
            for at in range(4)
        ),
    )
