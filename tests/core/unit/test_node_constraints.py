"""On which nodes a pod may run by its own word and the node's, as kube-scheduler reads both."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import Json
from timekeeper.core.kube.node_constraints import (
    has_unread_constraints,
    read_node_constraints,
    read_node_labels,
)

LABELS = {"pool": "gpu", "size": "8"}


def node(*taints: Json, **spec: Any) -> Json:
    """A node with labels and these taints."""
    return {"metadata": {"name": "n", "labels": LABELS}, "spec": {"taints": list(taints), **spec}}


def taint(key: str = "k", value: str = "v", effect: str = "NoSchedule") -> Json:
    """A taint."""
    return {"key": key, "value": value, "effect": effect}


def affinity(*terms: Json) -> Json:
    """A pod with required node affinity."""
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key: str, operator: str, *values: str) -> Json:
    """A term of one expression."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def admits(there: Json, **spec: Any) -> bool:
    """Whether a pod of this spec may run there."""
    return read_node_constraints({"spec": spec}).admit("n", read_node_labels(there))


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "operator": "Equal", "value": "v"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k"}, False),
        ({"key": "j", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"value": "v"}, False),
    ],
)
def test_a_taint_keeps_off_who_does_not_tolerate_it(toleration: Json, tolerated: bool) -> None:
    assert not admits(node(taint()))
    assert admits(node(taint()), tolerations=[toleration]) is tolerated


def test_every_taint_counts_but_those_that_only_prefer() -> None:
    both = node(taint("a"), taint("b", effect="NoExecute"), taint("c", effect="PreferNoSchedule"))
    tolerates = [{"key": "a", "operator": "Exists"}]

    assert not admits(both, tolerations=tolerates)
    assert admits(both, tolerations=[*tolerates, {"key": "b", "operator": "Exists"}])


def test_a_cordoned_node_keeps_off_all_but_who_tolerates_that() -> None:
    cordoned = node(unschedulable=True)

    assert not admits(cordoned)
    assert admits(cordoned, tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"nodeSelector": {"pool": "gpu"}}, True),
        ({"nodeSelector": {"pool": "cpu"}}, False),
        ({"nodeSelector": {"zone": "a"}}, False),
        (affinity(expression("pool", "In", "cpu", "gpu")), True),
        (affinity(expression("pool", "NotIn", "gpu")), False),
        (affinity(expression("zone", "NotIn", "a")), True),
        (affinity(expression("zone", "Exists")), False),
        (affinity(expression("pool", "Exists")), True),
        (affinity(expression("zone", "DoesNotExist")), True),
        (affinity(expression("size", "Gt", "7")), True),
        (affinity(expression("size", "Gt", "8")), False),
        (affinity(expression("size", "Lt", "9")), True),
        (affinity(expression("pool", "Lt", "9")), False),
        (affinity(expression("size", "Gt", "+0007")), True),
        (affinity(expression("size", "Gt", "-7")), True),
        (affinity(expression("size", "Lt", "1_0")), False),
        (affinity(expression("size", "Lt", " 9")), False),
        (affinity(expression("size", "Lt", "\u0669")), False),
        (affinity(expression("size", "Lt", str(2**63 - 1))), True),
        (affinity(expression("size", "Lt", str(2**63))), False),
        (affinity(expression("size", "Lt", "9" * 5_000)), False),
        (affinity(expression("size", "Gt", "5", "6")), False),
        (affinity(expression("zone", "Gt", "7")), False),
        (affinity(expression("pool", "Like", "g")), False),
        (affinity(expression("pool", "In", "cpu"), expression("size", "In", "8")), True),
        (affinity({**expression("pool", "In", "gpu"), **{"matchFields": []}}), True),
        (
            affinity(
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            ),
            True,
        ),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}), False),
        (affinity({}), False),
        (affinity(), False),
    ],
)
def test_a_pod_runs_only_where_it_wants_to(spec: Json, wanted: bool) -> None:
    assert admits(node(), **spec) is wanted


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(ANYTHING, st.sampled_from(["tolerations", "nodeSelector", "affinity", "taints", "labels"]))
def test_reading_never_raises(value: Any, field: str) -> None:
    raw = {"spec": {field: value}, "metadata": {"labels": value}}

    assert read_node_constraints(raw).admit("n", read_node_labels(raw)) in (True, False)


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = {"topologyKey": "zone", "labelSelector": {}}


@pytest.mark.parametrize(
    ("spec", "unread"),
    [
        ({"affinity": {"podAffinity": {REQUIRED: [ZONE]}}}, True),
        ({"affinity": {"podAntiAffinity": {REQUIRED: [ZONE]}}}, True),
        ({"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}, True),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, True),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, True),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, True),
        ({"resourceClaims": [{"name": "r"}]}, True),
        ({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}, True),
        ({"initContainers": [{"ports": [{"hostPort": 80}]}]}, True),
        ({"affinity": {"podAffinity": {PREFERRED: [ZONE]}}}, False),
        ({"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]}, False),
        ({"volumes": [{"name": "v", "configMap": {}}, {"name": "t", "projected": {}}]}, False),
        ({"containers": [{"ports": [{"containerPort": 80}]}]}, False),
        (affinity(expression("pool", "Exists")) | {"nodeSelector": LABELS}, False),
        ({}, False),
        ({"volumes": None, "affinity": None, "containers": [None], "resourceClaims": 1}, False),
    ],
)
def test_constraints_that_are_not_read_are_recognized(spec: Json, *, unread: bool) -> None:
    assert has_unread_constraints({"spec": spec}) is unread
