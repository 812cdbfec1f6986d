"""What is promised of each dialect: the rows of the YAML files beside this module, a file a dialect, and the
rules of its node plugin in `plugins`. `tests/core/unit/test_dialects.py` runs every row of all of them.

In the files a name without ``/`` that stands for a resource or a label of a pod is of the file's ``domain``.
A pod is written as the limits of its one container ``main``, or as container -> limits (``init NAME`` for an
init container), over the file's ``pod``; with ``annotations``, ``labels`` and ``scheduler``. A node is
written as what it advertises, with ``annotations`` (objects stand for their JSON), ``labels`` and
``inventory``. ``!times [a, 3]`` is ``aaa``, and ``{}`` in the text is the number of the turn.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.deploy.reading import LOADER
from tests.worlds import card, inventory, of_resources, pod
from timekeeper.core.values import Ask, Card, ContainerAsk, GPURequest, Placement, Slice

Json = dict[str, Any]
ModelNames = tuple[tuple[str, str], ...]
# what a dialect does without
Gap = Literal[
    "annotations",  # its node plugin reads nothing of a bound pod
    "cards",  # its node plugin does not describe the cards of a node
    "read back",  # the cards of a pod that another scheduler bound are not known
    "placement",  # another scheduler places its pods
]

NOW_NS = 1_700_000_000_900_000_007  # of a Binding; NOW_NS and NOW_S stand for it in what is written
MISCOUNTED = ("-1", "0.5", "NaN", "9" * 30, "x")


@dataclass(frozen=True)
class Means:
    """``[pod, ask, rate]``: what a pod requests, and what it costs on the node, by hand; None: not computed.
    An ask is ``[cards, milli, MiB]`` of ``main``, or container -> such. ``node``: in place of the file's.
    Every other key is a field of the request."""

    pod: Json
    request: GPURequest
    rate: int | None
    node: Json


@dataclass(frozen=True)
class Refused:
    """``[pod, rule, path, says]``: a mistake, the field of its sentence (a resource in the limits of the
    first container, an annotation, or a path), and a part of the sentence."""

    pod: Json
    rule: str
    path: str
    says: str = ""


@dataclass(frozen=True)
class Describes:
    """``[node, cards, family, fault]``: a card is ``[UUID, index, model, MiB, further fields]``."""

    node: Json
    cards: tuple[Card, ...]
    family: str
    fault: str = ""


@dataclass(frozen=True)
class Fits:
    """``[pod, UUIDs of each container's cards or the refusal, names of models]``."""

    pod: Json
    cards: dict[str, list[str]] | str
    node: Json
    model_names: ModelNames = ()


@dataclass(frozen=True)
class Takes:
    """``[pod, number, node]``: how many such pods the node has room for."""

    pod: Json
    number: int
    node: Json


@dataclass(frozen=True)
class Writes:
    """``[pod, placement, annotations]``: what a Binding to the node ``n`` writes for the node plugin. A slice
    is ``[UUID, index, milli, MiB, further fields]``."""

    pod: Json
    placement: Placement
    annotations: dict[str, str]


@dataclass(frozen=True)
class Finds:
    """``[pod, annotations, UUIDs of each container's cards]`` of a pod that another scheduler bound. Without
    cards they cannot be of such a pod, so that the node is closed."""

    pod: Json
    annotations: Json
    cards: dict[str, list[str]] | None


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The node plugin of the other system, by rules from its source that import nothing of ours."""

    asks: Callable[[random.Random], Json]  # a pod
    # of the annotations of a bound pod, for each container: what it has of each card
    reads: Callable[[Mapping[str, str], Json], Mapping[str, Sequence[Any]]]
    # what it must read of this slice, of a container with these limits
    of_slice: Callable[[Slice, Json, Card], Any]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The rows of one dialect."""

    name: str
    page: str  # under docs/, without .md; it names each resource, annotation and label of the dialect
    gaps: frozenset[Gap]
    shown_by_bursar: bool  # else the node plugin shows the containers their cards
    limited_by_mps: bool
    has_placement_resource: bool  # admission adds the resource by which the extender is called
    bound_labels: Mapping[str, str]
    node: Json
    roomy_node: Json  # for several pods
    means: list[Means]
    refused: list[Refused]
    nothing: list[Json]  # pods that look like ones of the dialect and request nothing, by zeros among others
    cardless: list[Json]  # the same, of which admission warns: amounts stand beside a number of cards of zero
    nodes: list[Describes]
    unreadable: list[Json]  # nodes that are closed, because their description cannot be read
    fits: list[Fits]
    takes: list[Takes]
    writes: list[Writes]
    finds: list[Finds]


_Loader: Any = type("_Loader", (LOADER,), {})  # with a constructor of its own


def _times(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> str:
    text, count = loader.construct_sequence(node)
    return "".join(text.replace("{}", str(turn)) for turn in range(count))


_Loader.add_constructor("!times", _times)


def contracts() -> dict[str, Contract]:
    """By name, in the order of the files'."""
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    documents = [_Loader(path.read_text()).get_single_data() for path in files]
    return {document["name"]: _contract(document) for document in documents}


def _contract(raw: Json) -> Contract:
    words = _Words(raw)
    node = words.node(raw.get("node", {}))
    return Contract(
        name=raw["name"],
        page=raw["page"],
        gaps=frozenset(raw.get("gaps", ())),
        shown_by_bursar=raw.get("shown_by_bursar", False),
        limited_by_mps=raw.get("limited_by_mps", False),
        has_placement_resource=raw.get("has_placement_resource", False),
        bound_labels=raw.get("bound_labels", {}),
        node=node,
        roomy_node=words.node(raw["roomy_node"]) if "roomy_node" in raw else node,
        means=[words.means(node, *row) for row in raw["means"]],
        refused=[
            *(words.refused(*row) for row in raw.get("refused", ())),
            *(row for counted in raw.get("miscounted", ()) for row in words.miscounted(*counted)),
        ],
        nothing=[words.pod(row) for row in raw.get("nothing", ())],
        cardless=[words.pod(row) for row in raw.get("cardless", ())],
        nodes=[words.describes(*row) for row in raw.get("nodes", ())],
        unreadable=[words.node(row) for row in raw.get("unreadable", ())],
        fits=[words.fits(node, *row) for row in raw.get("fits", ())],
        takes=[words.takes(node, *row) for row in raw.get("takes", ())],
        writes=[words.writes(*row) for row in raw.get("writes", ())],
        finds=[words.finds(*row) for row in raw.get("finds", ())],
    )


class _Words:
    """How the words of one file are read."""

    def __init__(self, raw: Json) -> None:
        self._name: str = raw["name"]
        self._domain: str = raw.get("domain", "")
        self._template: Json = raw.get("pod", {})

    def pod(self, written: Json) -> Json:
        parts = dict(written)
        if self._template or any(isinstance(part, dict) for part in written.values()):
            parts = self._template | parts
        else:
            parts = {"main": parts}
        annotations, labels = parts.pop("annotations", {}), parts.pop("labels", {})
        fields = {"schedulerName": parts.pop("scheduler")} if "scheduler" in parts else {}
        containers: dict[bool, list[Json]] = {True: [], False: []}
        for name, limits in parts.items():
            made = of_resources(self._amounts(limits), name.removeprefix("init "))
            containers[name.startswith("init ")].append(made)
        raw = pod(*containers[False], init=containers[True], annotations=_texts(annotations), **fields)
        raw["metadata"]["labels"] = self._amounts(labels)
        return raw

    def node(self, written: Json) -> Json:
        parts = dict(written)
        annotations, labels = _texts(parts.pop("annotations", {})), parts.pop("labels", {})
        if "inventory" in parts:
            annotations["bursar.dev/inventory"] = inventory(*(card(*row) for row in parts.pop("inventory")))
        amounts = self._amounts(parts)
        metadata = {"name": "n", "annotations": annotations, "labels": labels}
        return {"metadata": metadata, "status": {"capacity": amounts, "allocatable": amounts}}

    def means(
        self, node: Json, written: Json, ask: Any, rate: int | None = None, more: Json | None = None
    ) -> Means:
        raw, fields = self.pod(written), {name: _frozen(field) for name, field in (more or {}).items()}
        node = self.node(fields.pop("node")) if "node" in fields else node
        init = {container["name"] for container in raw["spec"].get("initContainers", [])}
        asks = ask if isinstance(ask, dict) else {"main": ask}
        by_container = tuple(ContainerAsk(name, name in init, self._ask(*row)) for name, row in asks.items())
        return Means(raw, GPURequest(dialect=self._name, asks=by_container, **fields), rate, node)

    def refused(self, written: Json, rule: str, at: str, says: str = "") -> Refused:
        raw = self.pod(written)
        if at in raw["metadata"]["annotations"]:
            at = f"metadata.annotations[{at}]"
        elif not at.startswith(("spec.", "metadata.")):
            at = f"spec.containers[0].resources.limits[{self._full(at)}]"
        return Refused(raw, rule, at, says)

    def miscounted(self, resource: str, beside: Json | None = None) -> list[Refused]:
        """A row for each text that is no amount."""
        return [self.refused({**(beside or {}), resource: text}, "amount", resource) for text in MISCOUNTED]

    def describes(self, written: Json, cards: Any, family: str = "", fault: str = "") -> Describes:
        rows = _alike(*cards["alike"]) if isinstance(cards, dict) else cards
        return Describes(self.node(written), tuple(map(self._card, rows)), family or self._name, fault)

    def fits(self, node: Json, written: Json, cards: Any, names: Json | None = None) -> Fits:
        return Fits(self.pod(written), cards, node, tuple((names or {}).items()))

    def takes(self, node: Json, written: Json, number: int, own: Json | None = None) -> Takes:
        return Takes(self.pod(written), number, self.node(own) if own else node)

    def writes(self, written: Json, placement: Json, annotations: Json) -> Writes:
        slices = {name: tuple(map(self._slice, rows)) for name, rows in placement.items()}
        times = {"NOW_NS": str(NOW_NS), "NOW_S": str(NOW_NS)[:10]}
        texts = {name: times.get(text) or text for name, text in _texts(annotations).items()}
        return Writes(self.pod(written), Placement(tuple(slices.items())), texts)

    def finds(self, written: Json, annotations: Json, cards: Any = None) -> Finds:
        return Finds(self.pod(written), _texts(annotations), cards)

    def _full(self, name: str) -> str:
        return name if "/" in name or not self._domain else f"{self._domain}/{name}"

    def _amounts(self, amounts: Json) -> Json:
        return {self._full(name): str(amount) for name, amount in amounts.items()}

    def _named(self, fields: Json) -> Json:
        """Further fields of an ask, a card or a slice."""
        named = {name: _frozen(field) for name, field in fields.items()}
        if "resources" in named:
            named["resources"] = tuple(
                (self._full(name), amount) for name, amount in named["resources"].items()
            )
        return named

    def _ask(self, cards: int, milli: int, mib: int, more: Json | None = None) -> Ask:
        return replace(Ask(cards, milli, mib), **self._named(more or {}))

    def _card(self, row: Sequence[Any]) -> Card:
        uuid, index, model, mib, *more = row
        return replace(Card(uuid, index, model, mib), **self._named(more[0] if more else {}))

    def _slice(self, row: Sequence[Any]) -> Slice:
        uuid, index, milli, mib, *more = row
        return replace(Slice(uuid, index, milli, mib), **self._named(more[0] if more else {}))


def _alike(count: int, mib: int, model: str = "GPU", more: Json | None = None) -> list[list[Any]]:
    """The cards of a node that only counts them."""
    return [[f"card{index}", index, model, mib, more or {}] for index in range(count)]


def _texts(annotations: Json) -> Json:
    return {
        name: json.dumps(text, separators=(",", ":")) if isinstance(text, dict | list) else text
        for name, text in annotations.items()
    }


def _frozen(field: Any) -> Any:
    return tuple(field) if isinstance(field, list) else field
