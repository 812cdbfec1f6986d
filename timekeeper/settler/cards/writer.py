"""What is free of the cluster's cards: looked at every few seconds and written where it has changed, in every
mode, also without an extender; and how many were held, free and waited for, added to their hours."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event

from timekeeper.core.dialects.mig import card_model
from timekeeper.core.free_cards import NodeFree
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.values import WHOLE_MILLI, Card
from timekeeper.log import log_exception
from timekeeper.settler.cards.claim_devices import NO_DEVICES, ClaimDevices, devices_from_ms, devices_of
from timekeeper.settler.cards.free_of_node import FreeOfNode, Holder, free_of
from timekeeper.settler.settler import Settler
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import cluster_map, role_findings
from timekeeper.store.cluster_map import CardCount
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError, Written, write_all
from timekeeper.store.fencing import EpochOverError, FencedStore

EVERY_S = 5.0
MOST_VALUES = 100  # of a label; one with more tells single nodes apart, and is left out
_COUNTED = {"pods", "nodes", "resourceclaims", "resourceslices"}  # without one of these no cards are counted


class FreeWriter:
    """Looks and writes, in a thread of its own."""

    def __init__(self, store: Store, settler: Settler, now_ms: Callable[[], int]) -> None:
        self._store, self._settler, self._now_ms = store, settler, now_ms
        self._fenced = FencedStore(store, settler.epoch)
        self._written: tuple[Counter[NodeFree], int] | None = None
        self._known: dict[
            str, tuple[object, FreeOfNode]
        ] = {}  # node -> what it was seen by, and what followed
        self._devices: tuple[object, dict[str, ClaimDevices]] = (None, {})  # likewise of all claims
        self._counted: tuple[int, Mapping[str, CardCount]] = 0, {}  # when, and what by model

    def keep(self, stop: Event) -> None:
        """Until ``stop``."""
        while not stop.wait(EVERY_S):
            try:
                self.step()
            except EpochOverError:
                return
            except (UnavailableError, ConflictError):
                continue  # the tick says it
            except Exception as error:
                log_exception("free-not-written", error)

    def step(self) -> None:
        """Look once. Raises UnavailableError, ConflictError, EpochOverError."""
        view, now_ms = self._settler.view, self._now_ms()
        if view.statements is None:  # nothing is decided yet
            return
        held = list(_holders(view, now_ms))
        self._look(view, held)
        found = self._nodes(), devices_from_ms(view, self._devices[1].values(), now_ms)
        counted, hours = self._counted, list[Written]()
        if abs(view.decided_ms - counted[0]) >= cluster_map.EVERY_MS:  # one that stands still adds nothing
            hours = list(cluster_map.added_hours(*counted, view.decided_ms))
            counted = view.decided_ms, self._counts(view, held)
        if found != self._written or hours:
            self._counted = view.decided_ms, {}  # what was written, and not answered, is not added again
            with self._fenced.writing() as connection:
                if found != self._written:
                    role_findings.record_free(connection, *found, now_ms)
                write_all(connection, hours)
        self._written, self._counted = found, counted

    def _look(self, view: TickView, held: Iterable[Holder]) -> None:
        with self._store.reading() as connection:
            closed, kept = cluster_map.closed(connection), cluster_map.kept_empty(connection)
        on_nodes: dict[str, list[Holder]] = defaultdict(list)
        for holder in held:
            if holder.session.charge in ("pod", "reserved"):
                on_nodes[holder.session.node].append(holder)
        its = view.cluster.devices.slices, view.cluster.allocated, view.freed, view.cluster.rules
        if self._devices[0] != its:
            self._devices = its, devices_of(view)
        known, devices = {}, self._devices[1]
        for name, node in view.cluster.nodes.items():
            seen = (
                node,
                on_nodes.get(name, []),
                devices.get(name, NO_DEVICES),
                name in closed,
                kept.get(name, ()),
            )
            was = self._known.get(name)
            known[name] = was if was is not None and was[0] == seen else (seen, free_of(*seen))
        self._known = known

    def _nodes(self) -> Counter[NodeFree]:
        """How many nodes there are of each kind, with the labels that do not tell single nodes apart."""
        nodes = [free.node for _, free in self._known.values()]
        pairs = {pair for labels in {node.labels for node in nodes} for pair in labels}
        values = Counter(key for key, _ in pairs)
        return Counter(
            node._replace(labels=tuple(pair for pair in node.labels if values[pair[0]] <= MOST_VALUES))
            for node in nodes
            if node.models
        )

    def _counts(self, view: TickView, held: Iterable[Holder]) -> Mapping[str, CardCount]:
        """By model: what sessions hold, what is free, and what pods without a node ask for, in thousandths of
        whole cards. A MIG instance is its part of a card. "": of no certain model. Empty while it is not
        known."""
        if view.cluster.failing & _COUNTED:
            return {}
        places, holds, free = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
        for session, _, covered_milli in held:
            places[session.node, session.models] += session.requested_milli - covered_milli
        for (node, models), milli in places.items():
            for model, size in _sizes(view.cluster.cards(node), models):
                holds[model] += milli * size // WHOLE_MILLI
        names = dict(view.history.settings(view.decided_ms).devices)
        for _, its in self._known.values():
            for model, milli in its.milli.items():
                free[names.get(model, model)] += milli
        every = {"", *holds, *free, *view.asked}
        return {model: CardCount(holds[model], free[model], view.asked.get(model, 0)) for model in every}


def _holders(view: TickView, now_ms: int) -> Iterator[Holder]:
    """The sessions that hold cards now; those of removed pods hold them until their grace is over."""
    settings = view.history.settings(now_ms)
    for session in view.sessions.values():
        has_left = session.vanished_ms is not None and session.until_ms <= now_ms
        is_over = session.is_earlier or session.ended_ms is not None or has_left
        if is_over or session.charge == "host" or session.bound_ms > now_ms:
            continue
        own_milli = session.requested_milli
        if session.namespace in settings.reservation_namespaces:
            weight = weight_of(session.models, settings.weights)
            own_milli = min(own_milli, session.rate_milli * WHOLE_MILLI // weight)
        yield Holder(session, view.pod(session.owner_uid), session.requested_milli - own_milli)


def _sizes(cards: Iterable[Card], models: str) -> Iterator[tuple[str, int]]:
    """Of sessions with these models: each model, and which part of a whole card one counts there."""
    names = models.split(",")
    for model in map(card_model, names):
        there = (card.model for card in cards if card_model(card.model) == model)
        yield model, weight_of(next(there, model), ()) // len(names)
