"""Every node's answer to every shape of request asked lately, kept up to date by what has changed.

Thousands of pods ask the same few things, and between two of them few nodes change. So a shape's answers are
kept beside the nodes they are for, and before each use only those nodes are asked anew that the two versions
of the map do not share: a filter over 5,000 nodes is then little more than looking their names up. Nodes
whose cards have the same rooms are answered once.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_ext import refusal
from scheduler_ext.fit import layout_in, score_of, shape_for
from scheduler_ext.layout import MOST_STEPS, Steps
from scheduler_ext.nodes import Node
from scheduler_ext.persistent import Map
from scheduler_ext.pods import Amounts
from scheduler_ext.policy import Policy, Score
from scheduler_ext.refusal import Refusal
from scheduler_ext.rooms import Shape
from timekeeper.core.values import GPURequest

MOST_QUESTIONS = 64
MOST_SHAPES = 4096
# of one call; what is left over is looked for in the next one
CALL_STEPS = 4 * MOST_STEPS


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of every node: the request without its containers' names, by which policy, and what
    kube-scheduler itself counts of the pod."""

    request: GPURequest
    policy: Policy
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Sorted:
    """The nodes asked about: those that fit; those refused for want of room that kube-scheduler finds short
    as well, so that its own preemption may help; and those refused for good. With the reasons."""

    fits: list[str]
    short: dict[str, str]
    refused: dict[str, str]


def question(request: GPURequest, policy: Policy, amounts: Amounts) -> Question:
    """The question that pods of the same shape share."""
    asks = tuple(replace(each, container=str(at)) for at, each in enumerate(request.asks))
    return Question(replace(request, asks=asks, policy=""), policy, amounts)


class Answers:
    """A bounded memory of answers. It changes no outcome: a node's answer is that of `fit`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boards: OrderedDict[Question, _Board] = OrderedDict()

    def sort(self, asked: Question, nodes: Map[Node], names: Sequence[str]) -> Sorted:
        """What each of these nodes answers."""
        with self._lock:
            return self._board(asked, nodes).sort(names)

    def scores(self, asked: Question, nodes: Map[Node], names: Sequence[str]) -> list[Score | None]:
        """How good each of these nodes is, None where the pod does not fit."""
        with self._lock:
            fits = self._board(asked, nodes).fits
            return [fits.get(name) for name in names]

    def _board(self, asked: Question, nodes: Map[Node]) -> "_Board":
        board = self._boards.pop(asked, None) or _Board(asked)
        self._boards[asked] = board
        if len(self._boards) > MOST_QUESTIONS:
            self._boards.popitem(last=False)
        board.follow(nodes)
        return board


class _Board:
    """One question's answers; ``nodes`` is the version of the map that they are for."""

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        self.nodes: Map[Node] = Map()
        self.fits: dict[str, Score] = {}
        self.refused: dict[str, str] = {}
        self.short: set[str] = set()
        self.untried: set[str] = set()
        self.by_shape: dict[Shape, Score | Refusal] = {}

    def follow(self, nodes: Map[Node]) -> None:
        """Ask anew those nodes that are not as they were."""
        if nodes is self.nodes and not self.untried:
            return
        names = {*nodes.changed_since(self.nodes), *self.untried}
        self.nodes, self.untried = nodes, set()
        left = Steps(CALL_STEPS)
        for name in names:
            self._note(name, nodes.get(name), left)

    def sort(self, names: Sequence[str]) -> Sorted:
        fits, refused, short = self.fits, self.refused, self.short
        unknown = refusal.UNKNOWN_NODE.sentence
        left = {name: refused.get(name, unknown) for name in names if name not in fits}
        return Sorted(
            fits=[name for name in names if name in fits],
            short={name: why for name, why in left.items() if name in short},
            refused={name: why for name, why in left.items() if name not in short} if short else left,
        )

    def _note(self, name: str, node: Node | None, left: Steps) -> None:
        self.fits.pop(name, None)
        self.refused.pop(name, None)
        self.short.discard(name)
        if node is None:
            return
        answer = self._answer(node, left)
        if not isinstance(answer, Refusal):
            self.fits[name] = answer
            return
        self.refused[name] = answer.sentence
        if answer is refusal.NOT_TRIED:
            self.untried.add(name)
        if answer.room and is_short(node, self.asked.amounts):
            self.short.add(name)

    def _answer(self, node: Node, left: Steps) -> Score | Refusal:
        shape = shape_for(self.asked.request, node)
        if isinstance(shape, Refusal):
            return shape
        known = self.by_shape.get(shape)
        if known is None:
            if left.left < MOST_STEPS:
                return refusal.NOT_TRIED
            known = self._look(shape, left)
        return known

    def _look(self, shape: Shape, left: Steps) -> Score | Refusal:
        steps = Steps()
        layout = layout_in(self.asked.request, shape, self.asked.policy, steps)
        left.left -= MOST_STEPS - steps.left
        answer = layout if isinstance(layout, Refusal) else score_of(layout, self.asked.policy)
        if len(self.by_shape) >= MOST_SHAPES:
            self.by_shape.clear()
        self.by_shape[shape] = answer
        return answer


def is_short(node: Node, amounts: Amounts) -> bool:
    """True where kube-scheduler's own sums are short too, though not for good: a node it would not have
    offered, and where its own preemption can make room. For every other want of room it would find nobody to
    preempt, and try again at once, for ever."""
    if node.facts is None:
        return False
    allocatable, left = dict(node.facts.allocatable), dict(node.left)
    over = [resource for resource, amount in amounts if amount > left.get(resource, 0)]
    return bool(over) and all(amount <= allocatable.get(resource, 0) for resource, amount in amounts)
