"""The contract of every dialect: what its users write is read, governed, placed, bound, charged and read back
as the rows of `tests/core/dialects` say, a module for each system."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import ModelNames, read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.scoring.policy import BUILT
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.node_info import NodeInfo, node_info_of, with_allocation
from tests.core.dialects.contract import (
    NOW_NS,
    Contract,
    Describes,
    Finds,
    Fits,
    Json,
    Means,
    Refused,
    Takes,
    Writes,
    contracts,
)
from tests.core.dialects.plugins import PLUGINS
from tests.scheduler_ext.worlds import bound, read, rebuilt, request_of
from tests.webhook.worlds import POLICY, env, governed, mutated, violations_of
from tests.worlds import of_resources, pod
from timekeeper.accounts.pods import decode_request, encode_request
from timekeeper.api.resources.bindings import read_bindings
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects import BY_NAME, DIALECTS
from timekeeper.core.dialects.dialect import no_cards, nothing_at_binding, nothing_found
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.request.cards import amounts_by_card
from timekeeper.core.request.foreign import foreign_placement, named_cards
from timekeeper.core.request.inventory import charged_cards, read_cards
from timekeeper.core.request.metered import metered_request
from timekeeper.core.request.request import ParsedRequest, containers, parse
from timekeeper.core.values import Card, Placement, Slice, UndecodableError
from timekeeper.core.wire import binding_asks

DOCS = Path(__file__).parents[3] / "docs"
OTHERS = replace(POLICY, other_schedulers=frozenset(name for each in DIALECTS for name in each.schedulers))
CONTRACTS = contracts()
Row = TypeVar("Row")


def rows(of: Callable[[Contract], Iterable[Row]]) -> pytest.MarkDecorator:
    """Each row of every contract beside it, named by the dialect and the row's number."""
    return pytest.mark.parametrize(
        ("contract", "row"),
        [
            pytest.param(contract, row, id=f"{contract.name} {number}")
            for contract in CONTRACTS.values()
            for number, row in enumerate(of(contract))
        ],
    )


def _of_no_request(contract: Contract) -> list[tuple[Json, bool]]:
    """Pods without a request, and whether admission warns of amounts without a card."""
    return [*((row, False) for row in contract.nothing), *((row, True) for row in contract.cardless)]


def info_of(raw: Json, model_names: ModelNames = ()) -> NodeInfo:
    """The node as the extender has it, without a pod."""
    return node_info_of("n", read_node(raw, model_names=model_names), {})


def uuids(placement: Placement) -> dict[str, list[str]]:
    """Those of each container's cards."""
    return {name: [part.uuid for part in slices] for name, slices in placement.containers}


def of_others(written: dict[str, str]) -> dict[str, str]:
    """The annotations without Bursar's own."""
    return {name: text for name, text in written.items() if "bursar.dev/" not in name}


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_a_contract_says_what_its_dialect_does_without_and_its_page_names_all_its_words(
    contract: Contract,
) -> None:
    dialect = BY_NAME[contract.name]
    does = {
        "annotations": dialect.at_binding is not nothing_at_binding,
        "cards": dialect.cards is not no_cards,
        "read back": dialect.found is not nothing_found,
        "placement": not dialect.placed_by_others,
    }
    page = (DOCS / f"{contract.page}.md").read_text()

    assert contract.gaps == {gap for gap, is_done in does.items() if not is_done}
    assert (contract.name in PLUGINS) == does["annotations"]
    assert bool(contract.writes) == does["placement"]
    for name in (*dialect.resources, *dialect.annotations, *dialect.labels):
        assert name.rpartition("/")[2] in page, name


def test_every_dialect_has_a_contract() -> None:
    assert {*CONTRACTS} == {dialect.name for dialect in DIALECTS}


@rows(lambda contract: contract.means)
def test_a_request_means_the_same_to_parser_webhook_extender_and_ledger(
    contract: Contract, row: Means
) -> None:
    request, asks = row.request, row.request.asks

    assert parse(row.pod) == ParsedRequest(request, ())
    after = governed(row.pod, policy=OTHERS)
    assert violations_of(after, OTHERS) == ()
    assert read(after).request == request
    charged = tuple(replace(ask, ask=replace(ask.ask, sets=())) for ask in asks)  # whole cards, whichever
    assert decode_request(encode_request(request)).asks == charged
    entry = {"uid": "u", "namespace": "n", "pod": "p", "node": "n", "age_ms": 0, "grace_ms": 0}
    entry |= {
        "dialect": contract.name,
        "asks": binding_asks(request),
        "devices": '{"version":1,"containers":{}}',
    }
    (reported,) = read_bindings(json.dumps({"version": 1, "bindings": [entry]}).encode(), 0)
    assert reported.request.asks == charged

    containers = [*after["spec"].get("initContainers", []), *after["spec"]["containers"]]
    users = [container for container in containers if container["name"] != "bursar-sidecar"]
    visible = {container["name"]: env(container).get("NVIDIA_VISIBLE_DEVICES") for container in users}
    added = [
        container["name"]
        for container in users
        if "bursar.dev/gpu-placement" in container["resources"].get("limits", {})
    ]
    with_cards = [ask.container for ask in asks]
    assert [name for name, value in visible.items() if value != "void"] == with_cards
    assert {visible[name] is not None for name in with_cards} == {contract.shown_by_bursar}
    assert added == (with_cards[:1] if contract.has_placement_resource else [])


@rows(lambda contract: [row for row in contract.means if row.rate is not None])
def test_a_request_costs_its_part_of_the_cards(contract: Contract, row: Means) -> None:
    if "placement" in contract.gaps:
        demand, cards = Demand(request=row.request), charged_cards(row.node)
        assert rated(demand, NodeCards(cards), BudgetSettings()).rate_milli == row.rate
        return

    placement = fit(row.request, info_of(row.node))

    assert isinstance(placement, Placement), placement
    demand, cards = Demand(uses=amounts_by_card(row.request, placement)), read_node(row.node).cards
    assert rated(demand, NodeCards(cards), BudgetSettings()).rate_milli == row.rate


@rows(lambda contract: contract.refused)
def test_a_mistake_is_one_sentence_that_names_the_field(contract: Contract, row: Refused) -> None:
    parsed = parse(row.pod)

    assert parsed.request is None
    (violation,) = parsed.violations
    sentence = violation.sentence()
    assert (violation.rule, violation.path) == (row.rule, row.path)
    assert row.says in sentence
    assert len(sentence.splitlines()) == 1
    assert sentence.startswith(f"{row.path}: ")
    assert "; allowed: " in sentence
    assert "; for example " in sentence
    assert read(row.pod).malformed == sentence
    if ".limits[" in row.path and row.rule in ("amount", "share-range", "vgpu-range", "whole-cards-only"):
        name, _, amount = violation.example.partition(": ")
        corrected = parse(pod(of_resources({name: json.loads(amount)})))
        assert violation.problem not in [left.problem for left in corrected.violations]


def test_an_amount_without_a_number_of_cards_is_named() -> None:
    (violation,) = parse(pod(of_resources({"volcano.sh/vgpu-memory": "5"}))).violations

    assert violation.problem == "volcano.sh/vgpu-memory requires volcano.sh/vgpu-number"


@rows(lambda contract: _of_no_request(contract))
def test_a_pod_of_no_request_is_left_alone_by_every_role(contract: Contract, row: tuple[Json, bool]) -> None:
    raw, is_cardless = row
    bound = {**raw, "spec": {**raw["spec"], "nodeName": "n"}}

    assert parse(raw) == ParsedRequest(None, ()), contract.name
    assert read_pod(bound) is None
    assert metered_request(bound, parse(bound)) is None
    told = mutated(raw, policy=OTHERS)
    assert (told.refusal, told.operations) == ("", ())
    assert [rule for rule, _ in told.rules] == ["without-effect"] * is_cardless


@rows(lambda contract: contract.nodes)
def test_a_node_has_the_cards_that_its_plugin_describes(contract: Contract, row: Describes) -> None:
    if "placement" in contract.gaps:
        assert charged_cards(row.node) == row.cards
        assert read_cards(row.node) is None
        return

    node = read_node(row.node)

    assert (node.family, node.fault) == (row.family, row.fault)
    assert node.cards == row.cards


@rows(lambda contract: contract.unreadable)
def test_a_description_that_cannot_be_read_closes_the_node(contract: Contract, row: Json) -> None:
    with pytest.raises(UndecodableError):
        charged_cards(row)
    if "placement" not in contract.gaps:
        assert (read_node(row).cards, read_node(row).fault) == ((), "inventory")


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_a_node_whose_plugin_needs_a_lock_is_closed_where_it_may_not_be_locked(contract: Contract) -> None:
    needs_lock = bool(BY_NAME[contract.name].node_lock)

    assert read_node(contract.node).fault == ""
    assert read_node(contract.node, ()).fault == ("not-lockable" if needs_lock else "")


@rows(lambda contract: contract.fits)
def test_a_pod_gets_the_cards_that_it_may_have(contract: Contract, row: Fits) -> None:
    placed = fit(request_of(row.pod), info_of(row.node, row.model_names))

    assert (placed.sentence if isinstance(placed, Refusal) else uuids(placed)) == row.cards


@rows(lambda contract: contract.takes)
def test_a_node_takes_as_many_pods_as_its_plugin_can_serve(contract: Contract, row: Takes) -> None:
    node = info_of(row.node)
    for number in range(row.number):
        raw = {**row.pod, "metadata": row.pod["metadata"] | {"uid": f"uid-{number}"}}
        placement = fit(request_of(raw), node)
        assert isinstance(placement, Placement), f"{contract.name}, pod {number}"
        node = with_allocation(node, allocation_of(read(raw), placement, "bound"))

    refusal = fit(request_of(row.pod), node)

    assert isinstance(refusal, Refusal)
    assert refusal.kind == "full"


@rows(lambda contract: contract.writes)
def test_a_bound_pod_has_what_the_plugin_reads(contract: Contract, row: Writes) -> None:
    pod = read(row.pod)
    assert pod.request is not None

    cards = read_node(contract.node).cards
    written = written_for(pod, pod.request, row.placement, "n", NOW_NS, cards, contract.name)

    limits = [name for name in written.annotations if name.startswith("mps-")]
    assert of_others(written.annotations) == row.annotations
    assert written.labels == contract.bound_labels
    assert bool(limits) == contract.limited_by_mps


@rows(lambda contract: contract.finds)
def test_a_pod_that_another_scheduler_bound_has_its_cards_or_closes_the_node(
    contract: Contract, row: Finds
) -> None:
    request, cards = request_of(row.pod), read_node(contract.node).cards
    theirs = {**row.pod, "metadata": row.pod["metadata"] | {"annotations": row.annotations}}

    named = named_cards(theirs, request, containers(theirs))
    found = foreign_placement(request, named, cards)

    assert "" not in [card for _, names in named for card in names]
    assert (None if found is None else uuids(found)) == row.cards
    node = rebuilt([contract.node], [bound(theirs, "n", None)]).node("n")
    assert node.closed == ("unplaced" if row.cards is None else "")


@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize("seed", range(10))
def test_what_bindings_write_reads_back_as_the_cards_that_were_given_and_none_is_given_twice(
    name: str, seed: int
) -> None:
    """Pods in flight on one node: the plugin finds the cards of each container by its own rules, and Bursar
    would, had another scheduler bound the pod."""
    rng, plugin = random.Random(seed), PLUGINS[name]
    node = info_of(CONTRACTS[name].roomy_node)
    cards = {card.uuid: card for card in node.cards}
    given: list[Slice] = []
    for number in range(12):
        raw = plugin.asks(rng)
        raw["metadata"]["uid"] = f"uid-{number}"
        pod, limits = read(raw), limits_of(raw)
        assert pod.request is not None, pod.malformed
        placement = fit(pod.request, node, BUILT[rng.choice(("binpack", "spread"))])
        if isinstance(placement, Refusal):
            continue
        node = with_allocation(node, allocation_of(pod, placement, "assumed"))
        written = of_others(
            written_for(pod, pod.request, placement, "n", NOW_NS, node.cards, name).annotations
        )

        bare = {**raw, "metadata": raw["metadata"] | {"annotations": written}}
        assert plugin.reads(written, raw) == {
            name: [plugin.of_slice(part, limits[name], cards[part.uuid]) for part in slices]
            for name, slices in placement.containers
        }
        # a pod of NVIDIA's plugin is KubeDevice's by what is written on its nodes
        assert replace(request_of(bare), dialect=pod.request.dialect) == pod.request
        assert (
            foreign_placement(pod.request, named_cards(bare, pod.request, containers(bare)), cards.values())
            == placement
        )
        init = {ask.container for ask in pod.request.asks if ask.init}
        given += [part for name, slices in placement.containers if name not in init for part in slices]

    assert len(given) > 1
    for card in cards.values():
        assert_room(card, [part for part in given if part.uuid == card.uuid])


def limits_of(raw: Json) -> dict[str, Json]:
    """Those of each container."""
    containers = [*raw["spec"].get("initContainers", []), *raw["spec"]["containers"]]
    return {container["name"]: container["resources"]["limits"] for container in containers}


def assert_room(card: Card, given: list[Slice]) -> None:
    """No more of the card is given out than it has, and no tile twice."""
    named: Counter[str] = Counter()
    for part in given:
        named.update(dict(part.resources))
    tiles = [tile for part in given for tile in part.tiles]

    assert sum(part.share_milli for part in given) <= 1000
    assert sum(part.memory_mib for part in given) <= card.memory_mib
    assert all(amount <= dict(card.resources)[name] for name, amount in named.items())
    assert len(set(tiles)) == len(tiles)
