"""Random pods of every dialect in the table, good and bad: nothing raises, and webhook and extender agree on
each request."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.node_info import NodeInfo, node_info_of
from tests.support.profile import examples
from tests.webhook.worlds import POLICY, governed, review_of
from tests.worlds import card, inventory, of_resources, pod
from timekeeper.core.dialects import DIALECTS, Dialect
from timekeeper.core.request.cards import mismatch
from timekeeper.core.request.request import parse
from webhook.admission.pods import mutate, validate
from webhook.policy import Standing
from webhook.wire.pod_review import PodReview, read

pytestmark = pytest.mark.untraced


Json = dict[str, Any]

MIG = "nvidia.com/mig-1g.5gb"
RESOURCES = [
    *(name for each in DIALECTS for name in (*each.resources, *each.node_resources, *each.shared)),
    *(MIG, "nvidia.com/mig-3g.20gb.me", "nvidia.com/mig-x", "gpu.intel.com/millicores"),
    *("bursar.dev/gpu-placement", "bursar.dev/gpu-placement", "amd.com/gpu", "cpu"),
]
AMOUNTS = [
    *("1", "1", "2", "8", "30", "50", "100", "200", "4096", "8k"),
    *("0", "-1", "0.5", "500m", "NaN", "inf", "", "x", "9" * 19, "9" * 40, "1e30", "\u0663"),
]
ODD: list[Any] = [None, 1, 1.5, float("nan"), True, [], {}]
TEXTS = st.sampled_from([*AMOUNTS, "A100", "GPU-1,GPU-2", "card0,card1", "..", "a" * 200, "{}", "[", "true"])
ANNOTATIONS = sorted(
    {
        *(name for dialect in DIALECTS for name in (*dialect.annotations, *dialect.owned)),
        *("nvidia.com/use-gputype", "nvidia.com/use-gpuuuid", "nvidia.com/vgpu-mode", "nvidia.com/numa-bind"),
        *("gas-allow", "gas-deny", "gas-same-gpu", "gas-allocate-xelink", "gas-allocate-single-numa"),
        *("bursar.dev/gpu-models", "bursar.dev/gpu-uuids", "bursar.dev/same-gpu", "bursar.dev/topology"),
    }
)
LABELS = sorted({*(name for dialect in DIALECTS for name in dialect.labels), "genius/priority"})
OF_KAI = ("gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name", "received-resource-type")
LEFT_TO_OTHERS = replace(
    POLICY, other_schedulers=frozenset(name for dialect in DIALECTS for name in dialect.schedulers)
)
GROUPS = ("", "gpugrp0/A/", "gpugrp1/A/")
CARDS = [f"resource/group/{group}gpu/{name}/cards" for group in GROUPS for name in "ab"]
DEVICE_REQUESTS: st.SearchStrategy[Json] = st.dictionaries(
    st.sampled_from(
        [*CARDS, "resource/group/gpu/a/memory", *["nvidia.com/gpu"] * 4, "gpu/gpu-generate-topology", "x"]
    ),
    st.sampled_from([0, 1, 2, 65, -1, 2**34, 10**30, 0.5, float("nan"), None, "1", []]),
    max_size=3,
)
DEVICE_INFO = st.builds(
    lambda requests, name, field, whole: json.dumps({field: {name: {"requests": requests}}, **whole}),
    st.one_of(st.sampled_from([{"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}]), DEVICE_REQUESTS),
    st.sampled_from(["a", "a", "b", "nobody"]),
    st.sampled_from(["runningcontainer", "runningcontainer", "initcontainer", "requests"]),
    st.sampled_from([{}, {}, {"requests": {"gpu/gpu-generate-topology": 0}}, {"requests": 7}]),
)


@st.composite
def containers(draw: st.DrawFn, name: str, dialect: Dialect) -> Json:
    """A container with limits that are mostly of this dialect and mostly valid."""
    amounts = dict(dialect.examples) or ({MIG: "1"} if dialect.prefix else {})
    if dialect.name == "gas" or draw(st.integers(0, 3)) == 3:
        amounts = dict(list(amounts.items())[:1])
    elif draw(st.integers(0, 3)) == 3:
        amounts = {each: amount for each, amount in amounts.items() if draw(st.booleans())}
    if draw(st.integers(0, 5)) == 5:
        amounts |= draw(
            st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(AMOUNTS), min_size=1, max_size=2)
        )
    found = of_resources(amounts, name)
    if draw(st.integers(0, 29)) == 29:
        found["resources"]["requests"] = {**amounts, draw(st.sampled_from(RESOURCES)): "1"}
    return found


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """One to three containers and perhaps one before them, mostly of one dialect, with annotations and labels
    of some dialects."""
    dialect = draw(st.sampled_from(DIALECTS))
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    others = draw(st.sampled_from(DIALECTS)) if draw(st.integers(0, 9)) == 9 else dialect
    several = [
        draw(containers(name, others if at else dialect)) for at, name in enumerate(("a", "b", "c")[:count])
    ]
    init = [draw(containers("first", dialect))] if draw(st.integers(0, 7)) == 7 else None
    annotations: Json = {}
    labels: Json = {}
    if draw(st.integers(0, 5)) == 5:
        annotations = draw(st.dictionaries(st.sampled_from(ANNOTATIONS), TEXTS, max_size=2))
    for name in ("KubeDevice/DeviceInfo", "pod.alpha/DeviceInformation"):
        if name in dialect.annotations or draw(st.integers(0, 39)) == 39:
            annotations[name] = draw(DEVICE_INFO)
    if dialect.labels or draw(st.integers(0, 19)) == 19:
        labels = draw(st.dictionaries(st.sampled_from(LABELS), TEXTS, min_size=1, max_size=2))
    if "gpu-fraction" in dialect.annotations:
        annotations |= draw(st.dictionaries(st.sampled_from(OF_KAI), TEXTS, max_size=3))
        annotations["gpu-fraction"] = draw(st.sampled_from(["0.5", "0.25", "1e-9", *AMOUNTS]))
    raw = pod(*several, init=init)
    default = () if dialect.placed_by_others else ("default-scheduler",)
    raw["spec"]["schedulerName"] = draw(st.sampled_from((*default, *default, *dialect.schedulers)))
    raw["metadata"] |= {"annotations": annotations, "labels": labels}
    return raw


def nodes() -> list[NodeInfo]:
    """A node of each dialect that describes its cards by what it advertises, and one with our inventory."""
    ours = {"name": "n", "annotations": {"bursar.dev/inventory": inventory(*map(card, range(4)))}}
    found: list[Json] = [{"metadata": ours}]
    for dialect in DIALECTS:
        names = (*dialect.resources, *dialect.node_resources) or ((MIG,) if dialect.prefix else ())
        few = {name: "400000" if "mem" in name else "400" for name in names}
        few |= {name: "2" for name in names if name.endswith("count")}
        labels = {"nvidia.com/gpu.count": "4", "gpu.intel.com/gpu-numbers": "0.1"}
        found.append({"metadata": {"name": "n", "labels": labels}, "status": {"capacity": few}})
    read_nodes = [node_info_of("n", read_node(each), {}) for each in found]
    return [each for each in read_nodes if each.cards and not each.closed]


def review(raw: Json) -> PodReview:
    """The review of the pod's creation, as the API server sends it."""
    return read(json.dumps(review_of(raw)).encode())


NODES = nodes()
STANDING = Standing("IN_BUDGET")


@settings(max_examples=examples(500, soak=50_000), deadline=None)
@given(raw=pods())
def test_nothing_raises_and_webhook_and_extender_agree(raw: Json) -> None:
    parsed = parse(raw)
    for violation in parsed.violations:
        assert violation.path.startswith(("spec.", "metadata."))
        assert len(violation.sentence().splitlines()) == 1
    assert (parsed.request is None) or not parsed.violations

    seen = read_pod(raw)
    if parsed.request is None:
        assert (seen is None) is not bool(parsed.violations)
        assert seen is None or (seen.request is None and seen.malformed == parsed.violations[0].sentence())
    answer = mutate(review(raw), lambda _: STANDING, LEFT_TO_OTHERS)
    assert (answer.request is None) or answer.request == parsed.request
    if parsed.request is None or answer.request is None:
        return
    after = governed(raw, policy=LEFT_TO_OTHERS)
    admitted = read_pod(after)
    assert admitted is not None
    assert admitted.request == parsed.request
    assert validate(review(after), LEFT_TO_OTHERS).rules == ()
    for node in NODES:
        placement = fit(admitted.request, node)
        if not isinstance(placement, Refusal):
            assert mismatch(admitted.request, placement, node.cards) is None


@settings(max_examples=examples(200), deadline=None)
@given(raw=pods(), odd=st.sampled_from(ODD), field=st.integers(0, 5))
def test_values_of_other_types_raise_nothing_either(raw: Json, odd: Any, field: int) -> None:
    """The API server stores none of these; `review` and `audit` read files."""
    where = (
        raw["spec"]["containers"][0]["resources"]["limits"],
        raw["spec"]["containers"][0]["resources"],
        raw["metadata"]["annotations"],
        raw["metadata"]["labels"],
        raw["metadata"],
        raw["spec"],
    )[field]
    for name in list(where) or ["nvidia.com/gpu"]:
        if name not in ("containers", "name", "namespace", "uid"):
            where[name] = odd

    raw["spec"] = {**raw["spec"], "initContainers": raw["spec"].get("containers")}  # repeated names too

    parse(raw)
    read_pod(raw)
