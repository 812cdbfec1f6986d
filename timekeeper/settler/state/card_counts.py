"""How many cards are held, free and waited for, by model, as far as the ledger knows."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from timekeeper.accounts.card_use.figures import cards_of
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.allocation import AllocatedDevice
from timekeeper.core.claims.devices import FoundDevice
from timekeeper.core.dialects.mig import card_model
from timekeeper.core.rating.devices import RatedDevice
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.store.cluster_map import CardCount

Place = tuple[str, str]  # a node, and a model: "", if it is not certain
Milli = Counter[Place]  # thousandths of whole cards


@dataclass(slots=True)
class CardCounter:
    """Keeps what depends on nodes and published devices alone until one of them changes."""

    _versions: tuple[object, ...] = ()
    _offered: Milli = field(default_factory=Counter)  # what takes pods, held or not
    _off: dict[str, dict[str, str]] = field(default_factory=dict)  # node -> UUID and model of other cards
    _sizes: dict[Place, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def counts(
        self, cluster: ClusterState, ledger: LedgerState, settings: BudgetSettings, now_ms: int
    ) -> dict[str, CardCount]:
        """By model: what sessions hold, what is left of the cards that take pods, and what pods without a
        node ask for. A MIG instance is its part of a card. "": of no certain model."""
        versions = cluster.nodes.version, cluster.claims.pools.slices.version, cluster.claims.rules
        if versions != self._versions:
            self._versions = versions
            self._see(cluster)
        on_nodes = self._held(cluster, ledger, settings, now_ms)
        held, free, asked = Counter[str](), Counter[str](), ledger.without_node.asked
        taken = Counter[str]()
        for (node, model), milli in on_nodes.items():
            held[model] += milli
            taken[node] += milli
        on_nodes.subtract(self._on_others(ledger))
        for (node, model), milli in self._offered.items():
            left = max(0, milli - (on_nodes[node, model] if model else taken[node]))
            uncertain = min(left, on_nodes[node, ""]) if model else 0
            free[model] += left - uncertain
            on_nodes[node, ""] -= uncertain
        models = {"", *held, *free, *(model for model, milli in asked.items() if milli)}
        return {model: CardCount(held[model], free[model], asked[model]) for model in models}

    def _see(self, cluster: ClusterState) -> None:
        """What is described of a node counts, else what drivers publish for claims."""
        self._offered, self._off, self._sizes = Counter(), {}, {}
        for node in cluster.nodes.values():
            for card in () if node.apart else node.cards:
                is_usable = card.usable and card.uuid not in node.cordoned
                self._offered[node.name, card_model(card.model)] += is_usable and weight_of(card.model, ())
                if not is_usable:
                    self._off.setdefault(node.name, {})[card.uuid] = card.model
            if node.devices and not node.cards and not node.apart:
                parts = max(node.rated.devices.values(), default=1)  # of one device, that a plugin counts
                self._offered[node.name, ""] = WHOLE_MILLI * node.devices // parts
        others = {node.name for node in cluster.nodes.values() if node.apart or node.devices}
        of_device: dict[tuple[Place, str, str], list[int]] = {}
        for (driver, pool, name), device in cluster.claims.pools.every().items():
            rule, node_name = cluster.claims.rules.get(driver), device.node or pool
            if rule and rule.is_gpu(device) and not device.is_tainted and node_name not in others:
                asked = Demand(device=RatedDevice(AllocatedDevice(driver, pool, name), rule))
                rating = rated(asked, NodeCards(published=FoundDevice(device)), BudgetSettings())
                counters = device.consumed[0][0] if device.consumed else ""
                whole = counters or device.attribute("parentUUID") or device.attribute("uuid") or name
                key = (node_name, rating.models), pool, str(whole)
                of_device.setdefault(key, []).append(rating.requested.share_milli)
        for (place, *_), found in of_device.items():  # its parts may be published beside it
            self._offered[place] += min(sum(found), max(WHOLE_MILLI, *found))

    def _held(
        self, cluster: ClusterState, ledger: LedgerState, settings: BudgetSettings, now_ms: int
    ) -> Milli:
        """What sessions hold, by node and model."""
        held, found = Counter(ledger.table.held(now_ms)), Milli()
        for namespace in settings.reservation_namespaces:  # of their cards other sessions hold the rest
            for session in map(ledger.sessions.__getitem__, ledger.table.sessions_of(namespace)):
                own = session.rate_milli * WHOLE_MILLI // weight_of(session.models, settings.weights)
                held[session.node, session.models] -= max(0, session.requested_milli - own)
        for place, milli in held.items():
            if place not in self._sizes:
                self._sizes[place] = tuple(_sizes(cluster, *place))
            for model, size in self._sizes[place]:
                found[place[0], model] += milli * size // WHOLE_MILLI
        return found

    def _on_others(self, ledger: LedgerState) -> Milli:
        """What sessions hold of cards that take no pods."""
        found = Milli()
        for node, models in self._off.items():
            for session in map(ledger.session, ledger.table.by_witness.get(node, ())):
                shares = cards_of(session.devices, session.requested_milli).shares if session else {}
                for uuid in models.keys() & shares.keys():
                    size = weight_of(models[uuid], ())
                    found[node, card_model(models[uuid])] += shares[uuid] * size // WHOLE_MILLI
        return found


def _sizes(cluster: ClusterState, node: str, models: str) -> Iterator[tuple[str, int]]:
    """Of sessions with these models: each model, and which part of a whole card one counts there."""
    names = models.split(",")
    for model in map(card_model, names):
        there = (card.model for card in cluster.nodes.cards(node) if card_model(card.model) == model)
        yield model, weight_of(next(there, model), ()) // len(names)
