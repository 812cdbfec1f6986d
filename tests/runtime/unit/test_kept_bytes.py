"""What roles keep of one object of a tenant is bounded, whatever the object holds, and equal objects are kept
once: a quota of 1,000 objects has room in a role's limit. Names are bounded by the policy `bursar-sizes`."""

import gc
import tracemalloc
from collections.abc import Callable
from itertools import count
from typing import Any

import orjson
import pytest

from scheduler_ext.model.pdb import read_pdb
from scheduler_ext.model.pod import Pod, read_any
from tests.worlds import Json
from timekeeper.core.kube.node_constraints import NO_NODE_LABELS, NOT_READ, read_node_constraints
from timekeeper.settler.cluster.watches import read_any_pod

_SIZE = 200_000  # of what is large in an object; what is kept grew with it
_MOST = 250_000  # bytes that are kept of one
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NUMBERS = count()


def _word() -> str:
    """Another short one."""
    return f"{next(_NUMBERS) % 0x10000:04x}"


def _many(part: Callable[[], object]) -> list[Any]:
    found: list[Any] = []
    size = 0
    while size < _SIZE:
        found.append(part())
        size += len(orjson.dumps(found[-1])) + 1
    return found


def _selector() -> Json:
    return {"matchLabels": {word: _word() for word in _many(_word)}}


def _node_terms(pod: Json) -> None:
    terms = _many(lambda: {"matchExpressions": [{"key": _word(), "operator": "In", "values": [_word()]}]})
    pod["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}


def _node_values(pod: Json) -> None:
    match = {"key": "a", "operator": "NotIn", "values": _many(_word)}
    terms = [{"matchExpressions": [match]}]
    pod["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}


def _apart(pod: Json) -> None:
    term = {"topologyKey": "a", "labelSelector": _selector()}
    pod["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: [term]}}


def _near(pod: Json) -> None:
    terms = _many(lambda: {"topologyKey": _word(), "labelSelector": {"matchLabels": {_word(): _word()}}})
    pod["spec"]["affinity"] = {"podAffinity": {REQUIRED: terms}}


def _spread(pod: Json) -> None:
    pod["spec"]["topologySpreadConstraints"] = _many(
        lambda: {"topologyKey": _word(), "maxSkew": 1, "labelSelector": {"matchLabels": {_word(): _word()}}}
    )


def _tolerations(pod: Json) -> None:
    pod["spec"]["tolerations"] = _many(lambda: {"key": _word(), "operator": "Exists"})


def _node_selector(pod: Json) -> None:
    pod["spec"]["nodeSelector"] = {word: word for word in _many(_word)}


def _ports(pod: Json) -> None:
    pod["spec"]["containers"][0]["ports"] = _many(
        lambda: {"containerPort": 1, "hostPort": next(_NUMBERS) % 60_000 + 1, "hostIP": _word()}
    )


def _claims(pod: Json) -> None:
    pod["spec"]["resourceClaims"] = _many(lambda: {"name": _word(), "resourceClaimName": _word()})


def _group(pod: Json) -> None:
    pod["metadata"]["annotations"]["bursar.dev/gang"] = "g" * 256_000


FILLS = (
    _node_terms,
    _node_values,
    _apart,
    _near,
    _spread,
    _tolerations,
    _node_selector,
    _ports,
    _claims,
    _group,
)


def _pod(fill: Callable[[Json], None], limits: Json, node: str) -> Json:
    """A member of a gang while it has no node."""
    annotations = {} if node else {"bursar.dev/gang": "g", "bursar.dev/gang-key": "bursar.dev/gang/g"}
    pod: Json = {
        "metadata": {"name": _word(), "namespace": "t", "uid": _word(), "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }
    if node:
        pod["spec"]["nodeName"] = node
    fill(pod)
    return pod


def kept(read: Callable[[Json], object], texts: list[bytes]) -> int:
    """Bytes in memory of what is read of these texts."""
    read(orjson.loads(texts[0]))  # what the first one loads stays
    gc.collect()
    tracemalloc.start()
    values = [read(orjson.loads(text)) for text in texts]
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(values) == len(texts)
    return size


def read_by_settler(raw: Json) -> object:
    return read_any_pod(raw, lambda _uid: True)


@pytest.mark.untraced
@pytest.mark.parametrize("read", [read_any, read_by_settler], ids=["extender", "settler"])
@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: fill.__name__.strip("_"))
@pytest.mark.parametrize("node", ["", "n1"])
@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": "1"}, {"cpu": "1"}], ids=["gpu", "cpu"])
def test_of_a_pod_a_bounded_part_is_kept(
    read: Callable[[Json], object], fill: Callable[[Json], None], node: str, limits: Json
) -> None:
    texts = [orjson.dumps(_pod(fill, limits, node)) for _ in range(2)]

    assert kept(read, texts) < _MOST * len(texts)


@pytest.mark.untraced
def test_of_a_budget_for_disruptions_a_bounded_part_is_kept() -> None:
    texts = [
        orjson.dumps({"metadata": {"name": _word(), "namespace": "t"}, "spec": {"selector": _selector()}})
        for _ in range(2)
    ]

    assert kept(read_pdb, texts) < _MOST * len(texts)


@pytest.mark.untraced
def test_equal_constraints_of_many_pods_are_kept_once() -> None:
    terms = [{"matchExpressions": [{"key": "a", "operator": "In", "values": [_word() for _ in range(900)]}]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}

    def alike(pod: Json) -> None:
        pod["spec"]["affinity"] = affinity

    texts = [orjson.dumps(_pod(alike, {"nvidia.com/gpu": "1"}, "")) for _ in range(50)]

    assert kept(read_any, texts) < 50 * 10_000


def test_what_is_too_large_is_not_read_and_the_rest_of_the_pod_is() -> None:
    """kube-scheduler decides where it may run; what it asks for, and so what it costs, is known."""
    raw = _pod(_node_values, {"nvidia.com/gpu": "2"}, "")
    pod = read_any(raw)

    assert isinstance(pod, Pod)
    assert (pod.node_constraints, pod.constrained) == (NOT_READ, True)
    assert dict(pod.amounts) == {"nvidia.com/gpu": 2}
    assert not read_node_constraints(raw).admit("n1", NO_NODE_LABELS)
