"""Each node's answer to recently used request shapes, updated by what has changed.

Thousands of pods ask for the same few shapes, and few nodes change between two calls. So answers are kept per
shape and node, and before each use only nodes that differ between the two versions of the map are computed
again: a filter over 5,000 nodes is then little more than a lookup of names. Nodes that are alike for a shape
are computed once, and many at a time if the policy can.

An answer takes a few bytes: each node has a row, and each shape a column with a score and a reason per row.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress, repeat

import numpy as np
from numpy.typing import NDArray

from scheduler_ext.fit import refusal
from scheduler_ext.fit.card_sets import MAX_STEPS, Steps
from scheduler_ext.fit.fit import context_for, is_picky, layout_in, score_of, shape_for, spots_of
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Amounts
from scheduler_ext.scoring.policy import NO_FIT, BatchScoring, Policy, Score
from scheduler_ext.scoring.rank import places
from scheduler_ext.snapshot.free import FreeShape
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, is_as_free, is_short
from scheduler_ext.verbs.name_lists import NameList
from timekeeper.core.values import GPURequest

MAX_SHAPES = 512
MAX_KNOWN = 32_768  # answers by node shape, over all keys
MANY = 4  # of fewer changed nodes it is looked whether each answer is known
# search steps per call; the rest is done in the next call
CALL_STEPS = 4 * MAX_STEPS
_FITS, _UNKNOWN = 0, 1  # reasons


@dataclass(frozen=True, slots=True)
class FitKey:
    """What determines a node's answer: the request without container names, the policy, and the pod's amounts
    that kube-scheduler counts. A pod without a request is only scored."""

    request: GPURequest | None
    policy: Policy
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class FilterResult:
    """What filter finds of a call's nodes: those that fit; those that are short of what
    kube-scheduler's totals lack too, so that its own preemption may help (``short``); and those that are
    refused otherwise. Both have reasons."""

    fits: list[str]
    short: dict[str, Refusal]
    refused: dict[str, Refusal]


@lru_cache(maxsize=MAX_SHAPES)
def fit_key(request: GPURequest, policy: Policy, amounts: Amounts) -> FitKey:
    """The key that pods of the same shape share."""
    asks = tuple(replace(each, container=str(at)) for at, each in enumerate(request.asks))
    same = tuple(str(at) for at, each in enumerate(request.asks) if each.container in request.same_gpu)
    return FitKey(replace(request, asks=asks, same_gpu=same, policy=""), policy, amounts)


class FitCache:
    """A bounded cache of answers. It changes no outcome: a node's answer is that of `fit`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: OrderedDict[FitKey, _Column] = OrderedDict()
        self._rows = _NodeRows()
        self._known: dict[Hashable, Score | Refusal] = {}

    def partition(
        self, asked: FitKey, nodes: Map[NodeInfo], names: Sequence[str], steps: Steps | None = None
    ) -> FilterResult:
        """Each node's answer. ``steps``: how many more its caller may search."""
        with self._lock:
            column, rows = self._column(asked, nodes, steps), self._rows_of(names)
            return column.partition(names, rows)

    def scored(
        self, asked: FitKey, nodes: Map[NodeInfo], names: Sequence[str], steps: Steps | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each node's score, NO_FIT if the pod does not fit; and for each a number by which they are ordered
        as their names are, the same for all that are not in the map."""
        with self._lock:
            column, rows = self._column(asked, nodes, steps), self._rows_of(names)
            return column.scores[rows], self._rows.by_text()[rows]

    def _rows_of(self, names: Sequence[str]) -> NDArray[np.int64]:
        if not isinstance(names, NameList):
            return self._rows.of(names)
        if names.rows is None or names.rows[0] is not self._rows:
            rows = self._rows.of(names)
            if not rows.all():  # an unknown node may get a row
                return rows
            names.rows = self._rows, rows
        return names.rows[1]

    def _column(self, asked: FitKey, nodes: Map[NodeInfo], steps: Steps | None) -> "_Column":
        if len(self._rows.names) > 2 * len(nodes) + 1_000:  # mostly rows of deleted nodes
            self._rows = _NodeRows()
            self._columns.clear()
        self._rows.follow(nodes)
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        column = self._columns.pop(asked, None) or _Column(asked, self._rows, self._known)
        self._columns[asked] = column
        if len(self._columns) > MAX_SHAPES:
            self._columns.popitem(last=False)
        column.follow(steps or Steps(CALL_STEPS))
        return column


class _NodeRows:
    """Each node's row, from 1 on (0 stands for unknown nodes), and when it last changed. One version of the
    map serves all columns, however long ago each was used."""

    def __init__(self) -> None:
        self.nodes: Map[NodeInfo] = Map()
        self.by_name: dict[str, int] = {}
        self.names = [""]
        self.moment = 0
        self._changed = np.zeros(1, np.int64)
        self._places = np.zeros(0, np.int64)

    def follow(self, nodes: Map[NodeInfo]) -> None:
        """Take over this version of the nodes."""
        if nodes is self.nodes:
            return
        former = self.nodes
        names = [at for at in nodes.changed_since(former) if not is_as_free(nodes.get(at), former.get(at))]
        self.nodes, self.moment = nodes, self.moment + 1
        for name in names:
            if name not in self.by_name:
                self.by_name[name] = len(self.names)
                self.names.append(name)
        more = len(self.names) - len(self._changed)
        if more > 0:
            self._changed = np.append(self._changed, np.zeros(more + len(self.names) // 8, np.int64))
        self._changed[[self.by_name[name] for name in names]] = self.moment

    def of(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The rows of these nodes."""
        return np.fromiter(map(self.by_name.get, names, repeat(0)), np.int64, len(names))

    def by_text(self) -> NDArray[np.int64]:
        """Each row's place in the order of the names."""
        if len(self._places) != len(self.names):
            self._places = places(self.names)
        return self._places

    def since(self, moment: int) -> list[str]:
        """The nodes that changed after that moment."""
        return [self.names[row] for row in np.flatnonzero(self._changed > moment).tolist()]


class _Column:
    """One key's answers by row, as of a moment of the rows.

    ``rows`` are shared by all columns, and so is ``known``: answers by key and node shape.
    """

    def __init__(self, asked: FitKey, rows: _NodeRows, known: dict[Hashable, Score | Refusal]) -> None:
        self.asked, self.rows, self.known = asked, rows, known
        self.moment = 0
        self.scores = np.zeros(0, np.int64)
        self.reasons = np.zeros(0, np.int16)
        self.short = np.zeros(0, np.bool_)
        self.refusals: dict[Refusal | None, int] = {None: _FITS, refusal.UNKNOWN_NODE: _UNKNOWN}
        self.untried: set[str] = set()
        self.mine = object()  # distinguishes this column's entries in ``known``

    def follow(self, left: Steps) -> None:
        """Recompute the nodes that have changed, as far as these steps go. After an exception they are still
        to be computed."""
        if self.moment == self.rows.moment and not self.untried:
            return
        again = set() if left.are_few else self.untried
        names = {*self.rows.since(self.moment), *again}
        self._widen()
        self._ask({name: self.rows.nodes.get(name) for name in names}, left)
        self.moment = self.rows.moment

    def partition(self, names: Sequence[str], rows: NDArray[np.int64]) -> FilterResult:
        reasons, short = self.reasons[rows], self.short[rows]
        refused = reasons != _FITS
        if not refused.any():
            return FilterResult(self._fitting(names, rows), {}, {})
        refusals = [each or refusal.UNKNOWN_NODE for each in self.refusals]
        return FilterResult(
            fits=self._fitting(compress(names, (~refused).tobytes()), rows[~refused]),
            short=_refusals(names, np.flatnonzero(refused & short), reasons, refusals),
            refused=_refusals(names, np.flatnonzero(refused & ~short), reasons, refusals),
        )

    def _fitting(self, names: Iterable[str], rows: NDArray[np.int64]) -> NameList:
        """The nodes that filter returns come back in prioritize, so their rows are remembered."""
        found = NameList(names)
        found.rows = self.rows, rows
        return found

    def _widen(self) -> None:
        more = len(self.rows.names) - len(self.scores)
        if more > 0:
            more += len(self.rows.names) // 8
            self.scores = np.append(self.scores, np.full(more, NO_FIT, np.int64))
            self.reasons = np.append(self.reasons, np.full(more, _UNKNOWN, np.int16))
            self.short = np.append(self.short, np.zeros(more, np.bool_))

    def _ask(self, changed: dict[str, NodeInfo | None], left: Steps) -> None:
        request, together = self.asked.request, self._together(changed)
        if together and request is not None and len(changed) < MANY:
            self._learn(request, together.values())
            together = {}
        elif together:
            self._note_many(together)
        for name, node in changed.items():
            if name not in together:
                self._note(name, refusal.UNKNOWN_NODE if node is None else self._answer(node, left), node)

    def _together(self, changed: dict[str, NodeInfo | None]) -> dict[str, NodeInfo]:
        """The nodes that can be scored in one batch."""
        request = self.asked.request
        if self._batch_scoring() is None or (request is not None and not _is_plain(request)):
            return {}
        there = ((name, node) for name, node in changed.items() if node is not None)
        if request is None:
            return dict(there)
        named = bool(request.asks[0].ask.resources)
        return {name: node for name, node in there if _is_alike(node, request.dialect, named)}

    def _batch_scoring(self) -> BatchScoring | None:
        per_node = self.asked.policy.per_node
        return per_node.batch if per_node is not None else None

    def _scored(self, nodes: Collection[NodeInfo]) -> list[Score]:
        """The scores of nodes that can be scored in one batch, -1 where the pod does not fit."""
        request, per_node = self.asked.request, self._batch_scoring()
        if per_node is None:
            raise AssertionError("this policy does not weigh many nodes at once")
        cpus = [node.cpu_left for node in nodes]
        if request is None:
            return per_node.score_cpu_only([spots_of(node) for node in nodes], cpus)
        free_by_card, models = [node.shape.free_by_card for node in nodes], [node.model for node in nodes]
        return per_node.score_batch(request.asks[0].ask, free_by_card, models, cpus)

    def _learn(self, request: GPURequest, nodes: Iterable[NodeInfo]) -> None:
        """Has the answers known, those that are not yet by one batch."""
        kinds = {self._kind_of(request, node, node.shape): node for node in nodes}
        new = {kind: node for kind, node in kinds.items() if kind not in self.known}
        short = refusal.not_enough_free(request)
        for kind, score in zip(new, self._scored(new.values()) if new else (), strict=True):
            self.known[kind] = short if score < 0 else score

    def _note_many(self, nodes: dict[str, NodeInfo]) -> None:
        request, scores = self.asked.request, np.array(self._scored(nodes.values()), np.int64)
        rows = np.fromiter(map(self.rows.by_name.__getitem__, nodes), np.int64, len(nodes))
        self.scores[rows] = scores
        self.reasons[rows] = _FITS
        self.short[rows] = False
        self.untried -= nodes.keys()
        if request is not None and (scores < 0).any():
            shortage = refusal.not_enough_free(request)
            for (name, node), score in zip(nodes.items(), scores.tolist(), strict=True):
                if score < 0:
                    self._note(name, shortage, node)

    def _note(self, name: str, answer: Score | Refusal, node: NodeInfo | None) -> None:
        row = self.rows.by_name[name]
        if answer is refusal.NOT_TRIED:
            self.untried.add(name)
        else:
            self.untried.discard(name)
        if not isinstance(answer, Refusal):
            self._set(row, answer, _FITS, short=False)
            return
        reason = self.refusals.setdefault(answer, len(self.refusals))
        short = node is not None and answer.shortage and is_short(node, self.asked.amounts)
        self._set(row, NO_FIT, reason, short=short)

    def _set(self, row: int, score: Score, reason: int, *, short: bool) -> None:
        self.scores[row], self.reasons[row], self.short[row] = score, reason, short

    def _answer(self, node: NodeInfo, left: Steps) -> Score | Refusal:
        request, per_node = self.asked.request, self.asked.policy.per_node
        if request is None:
            together = self._batch_scoring()
            return (
                together.score_cpu_only([spots_of(node)], [node.cpu_left])[0] if together is not None else 0
            )
        shape = shape_for(request, node)
        if isinstance(shape, Refusal):
            return shape
        key = self._kind_of(request, node, shape)
        known = self.known.get(key)
        if known is None:
            if left.are_few:
                return refusal.NOT_TRIED
            here = per_node.for_node(key[2], shape.free_by_card) if per_node is not None else None
            known = self.known[key] = self._look(request, shape, here or self.asked.policy, left)
        return known

    def _kind_of(
        self, request: GPURequest, node: NodeInfo, shape: FreeShape
    ) -> tuple[object, FreeShape, Hashable]:
        """What the answer depends on: the column, the free cards, and what else its policy considers."""
        per_node = self.asked.policy.per_node
        if per_node is None:
            return self.mine, shape, None
        return self.mine, shape, per_node.context_key(context_for(request, node), shape.free_by_card)

    def _look(self, request: GPURequest, shape: FreeShape, policy: Policy, left: Steps) -> Score | Refusal:
        steps = Steps()
        layout = layout_in(request, shape, policy, steps)
        left.left -= MAX_STEPS - steps.left
        return layout if isinstance(layout, Refusal) else score_of(layout, policy)


def _is_plain(request: GPURequest) -> bool:
    """True if it requests cards once, and any cards with enough free will do."""
    return len(request.asks) == 1 and not is_picky(request)


def _is_alike(node: NodeInfo, dialect: str, named: bool) -> bool:
    """True if such requests may use any of its cards, and only what is free on them matters to the policy.
    ``named``: the request names resources, so it prefers some cards."""
    alike = node.serves == dialect and node.model != ""
    return alike and not (named and any(free.preferred for free in node.shape.free_by_card))


def _refusals(
    names: Sequence[str], which: NDArray[np.int64], reasons: NDArray[np.int16], refusals: Sequence[Refusal]
) -> dict[str, Refusal]:
    """Name -> refusal of those nodes, which are given by their places in the list."""
    chosen: Iterable[str] = map(names.__getitem__, which.tolist())
    return dict(zip(chosen, map(refusals.__getitem__, reasons[which].tolist()), strict=True))
