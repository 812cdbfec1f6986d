"""kube-scheduler's extender protocol: parses its bodies and writes its answers.

Source: k8s.io/kube-scheduler/extender/v1. The types have no JSON tags, so keys are Go's field names; Go reads
keys in any case, and so does this module.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from scheduler_ext.binding.outcome import Outcome, sentence
from scheduler_ext.binding.values import BindingArgs
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.verbs.fit_cache import FilterResult
from scheduler_ext.verbs.name_lists import KnownLists, NameList
from scheduler_ext.verbs.preempt_verb import NodeVictims
from timekeeper.core.json_values import Json, mapping
from timekeeper.edge.mended_json import mending

MAX_BODY_BYTES = 32 * 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}", re.ASCII)
_BEGIN, _BETWEEN, _LAST = '[{"Host":"', '","Score": 0},{"Host":"', '","Score": 0}]'
_ZERO, _ONE, _CLOSE = b"01}"
_decoded = mending(orjson.loads)


class MalformedArgsError(ValueError):
    """A body or query that does not follow the protocol; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A pod and its candidate nodes. ``nodes``: the Node objects by name, if kube-scheduler sent objects
    instead of names."""

    pod: Json
    names: list[str]
    nodes: Mapping[str, Json] | None


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A pod, and kube-scheduler's victims on each candidate node."""

    pod: Json
    nodes: Mapping[str, NodeVictims]


def read_extender_args(body: bytes, lists: KnownLists) -> ExtenderArgs:
    """The body of filter and prioritize. Raises MalformedArgsError."""
    shorter, known = lists.split(body)
    if known is not None:
        whole = _object(shorter)
        keys = _lower(whole)
        if len(keys) == len(whole):  # else one key occurs in several cases
            return ExtenderArgs(_pod_of(keys), known, None)
    keys = _keys(body)
    pod = _pod_of(keys)
    names, nodes = keys.get("nodenames"), keys.get("nodes")
    if names in (None, []) and nodes is not None:
        by_name = _by_name(nodes)
        return ExtenderArgs(pod, list(by_name), by_name)
    names = [] if names is None else names
    if not isinstance(names, list) or not set(map(type, names)) <= {str}:
        raise MalformedArgsError("NodeNames must be an array of texts")
    return ExtenderArgs(pod, names, None)


def read_binding_args(body: bytes) -> BindingArgs:
    """The body of bind. Raises MalformedArgsError."""
    keys = _keys(body)
    texts = {key: keys.get(key.lower()) for key in ("PodNamespace", "PodName", "PodUID", "Node")}
    for key, value in texts.items():
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise MalformedArgsError(f"{key} must be a Kubernetes name")
    return BindingArgs(*(str(value) for value in texts.values()))


def read_preemption_args(body: bytes) -> PreemptionArgs:
    """The body of preempt, with victims as UIDs or as pods. Raises MalformedArgsError."""
    keys = _keys(body)
    pod = _pod_of(keys)
    named, whole = keys.get("nodenametometavictims"), keys.get("nodenametovictims")
    if not isinstance(named, dict | None) or not isinstance(whole, dict | None):
        raise MalformedArgsError("NodeNameToVictims and NodeNameToMetaVictims must be objects")
    if named:
        return PreemptionArgs(pod, {name: _leaving(each, _uid_of_meta) for name, each in named.items()})
    return PreemptionArgs(pod, {name: _leaving(each, _uid_of_pod) for name, each in (whole or {}).items()})


def preempt_answer(leaving: Mapping[str, NodeVictims]) -> bytes:
    """The nodes that remain candidates, with their victims."""
    nodes = {
        name: {"Pods": [{"UID": uid} for uid in each.uids], "NumPDBViolations": each.violations}
        for name, each in leaving.items()
    }
    return orjson.dumps({"NodeNameToMetaVictims": nodes})


def filter_answer(
    asked: ExtenderArgs, sorted_nodes: FilterResult, lists: KnownLists, **more: object
) -> bytes:
    """The fitting nodes, and the others with reasons. Fields beyond the protocol are ignored by
    kube-scheduler."""
    answer = b'{"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""' % (
        lists.written(sorted_nodes.fits),
        _sentences(sorted_nodes.short),
        _sentences(sorted_nodes.refused),
    )
    if asked.nodes is not None:
        more["Nodes"] = {"items": [asked.nodes[name] for name in sorted_nodes.fits]}
    return b"%b,%b" % (answer, orjson.dumps(more)[1:]) if more else answer + b"}"


def _sentences(refused: Mapping[str, Refusal]) -> bytes:
    """Node -> sentence, as JSON."""
    return orjson.dumps({name: why.sentence for name, why in refused.items()})


def filter_error(text: str) -> bytes:
    """kube-scheduler shows this text to the user; it would hide the text of an answer other than 200."""
    return orjson.dumps(
        {"NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": _plain(text)}
    )


def prioritize_answer(names: list[str], ranks: NDArray[np.int64]) -> bytes:
    """A rank from 0 to 10 for each node. Ranks are written in place, each over a space and a digit."""
    listed = names.text if isinstance(names, NameList) else orjson.dumps(names)
    if not names or b"\\" in listed or b"}" in listed:  # a name may not stand in it as it is
        pairs = zip(names, ranks.tolist(), strict=True)
        return orjson.dumps([{"Host": name, "Score": rank} for name, rank in pairs])
    written = np.frombuffer(bytearray(f"{_BEGIN}{_BETWEEN.join(names)}{_LAST}".encode()), np.uint8)
    digits = np.flatnonzero(written == _CLOSE) - 1
    written[digits] = _ZERO + ranks % 10
    written[digits[ranks >= 10] - 1] = _ONE
    return written.tobytes()


def bind_answer(outcome: Outcome) -> bytes:
    """ExtenderBindingResult: why the pod was not bound, "" if it was."""
    return orjson.dumps({"Error": _plain(sentence(outcome))})


def _plain(text: str) -> str:
    """Without percent signs: kube-scheduler takes the message of its Event for a format."""
    return text.replace("%", " percent")


def _pod_of(keys: Mapping[str, Any]) -> Json:
    pod = keys.get("pod")
    if not isinstance(pod, dict) or not isinstance(pod.get("metadata"), dict):
        raise MalformedArgsError("Pod must be an object with metadata")
    return pod


def _keys(body: bytes) -> dict[str, Any]:
    return _lower(_object(body))


def _object(body: bytes) -> dict[str, Any]:
    try:
        whole = _decoded(body)
    except orjson.JSONDecodeError as error:
        raise MalformedArgsError(f"not JSON: {error}") from error
    if not isinstance(whole, dict):
        raise MalformedArgsError("the body must be an object")
    return whole


def _by_name(nodes: object) -> dict[str, Json]:
    lower = {key.lower(): value for key, value in mapping(nodes).items()}
    items = lower.get("items")
    if not isinstance(nodes, dict) or not isinstance(items, list | None):
        raise MalformedArgsError("Nodes must be a list of Node objects")
    found = {}
    for each in items or []:
        name = mapping(mapping(each).get("metadata")).get("name")
        if not isinstance(name, str):
            raise MalformedArgsError("Nodes.items must be Node objects with names")
        found[name] = each
    return found


def _leaving(raw: object, uid_of: Callable[[Json], object]) -> NodeVictims:
    """Null means no victims, as everywhere in Go."""
    if not isinstance(raw, dict | None):
        raise MalformedArgsError("victims must be an object with Pods and NumPDBViolations")
    keys = _lower(mapping(raw))
    pods, violations = keys.get("pods"), keys.get("numpdbviolations", 0)
    pods = [] if pods is None else pods
    if not isinstance(pods, list) or not isinstance(violations, int) or isinstance(violations, bool):
        raise MalformedArgsError("Pods must be an array and NumPDBViolations a number")
    uids = tuple(uid_of(mapping(each)) for each in pods)
    if not all(isinstance(uid, str) and uid for uid in uids):
        raise MalformedArgsError("each of Pods must have a UID")
    return NodeVictims(tuple(map(str, uids)), violations)


def _uid_of_meta(raw: Json) -> object:
    return _lower(raw).get("uid")


def _uid_of_pod(raw: Json) -> object:
    return mapping(raw.get("metadata")).get("uid")


def _lower(raw: Json) -> dict[str, Any]:
    return {key.lower(): value for key, value in raw.items()}
