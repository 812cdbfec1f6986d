"""Random pods of every dialect in the table, good and bad: nothing raises, and webhook and extender agree on
each request.

Hypothesis draws a seed, and `random` makes the pod of it, because Hypothesis takes twice the test's own time
to draw a pod in parts. A failure prints the seed, and ``random_pod(random.Random(SEED))`` is its pod.
"""

import json
import random
from collections.abc import Sequence
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
from tests.webhook.worlds import POLICY, patched, review_of
from tests.worlds import Json, card, inventory, of_resources, pod
from timekeeper.core.admission.policy import Standing
from timekeeper.core.dialects import DIALECTS, Dialect
from timekeeper.core.request.cards import mismatch
from timekeeper.core.request.request import parse
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.wire.pod_review import PodReview, read

pytestmark = pytest.mark.untraced


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
TEXTS = [*AMOUNTS, "A100", "GPU-1,GPU-2", "card0,card1", "..", "a" * 200, "{}", "[", "true"]
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
# annotation of the two versions of KubeDevice -> what names of cards begin with, and what counts cards
VERSIONS = {
    "KubeDevice/DeviceInfo": ("resource/group", "nvidia.com/gpu"),
    "pod.alpha/DeviceInformation": ("alpha/grpresource", "alpha.gpu/numgpu"),
}
GROUPS = ("", "gpugrp0/A/", "gpugrp1/A/")
DEVICE_AMOUNTS: list[Any] = [0, 1, 2, 65, -1, 2**34, 10**30, 0.5, float("nan"), None, "1", []]
WHOLE: list[Json] = [{}, {}, {"requests": {"gpu/gpu-generate-topology": 0}}, {"requests": 7}]


def several(rng: random.Random, names: Sequence[str], values: Sequence[Any], least: int, most: int) -> Json:
    """From ``least`` to ``most`` of these names, each with a value; fewer where one is drawn twice."""
    return {rng.choice(names): rng.choice(values) for _ in range(rng.randint(least, most))}


def device_info(rng: random.Random, annotation: str) -> str:
    """KubeDevice's annotation; half of them request cards by number or by name, without a mistake."""
    prefix, count = VERSIONS[annotation]
    cards = [f"{prefix}/{group}gpu/{name}/cards" for group in GROUPS for name in "ab"]
    memory = f"{prefix}/gpu/a/memory"
    if rng.random() < 0.5:
        valid = ({count: 1}, {count: 2}, dict.fromkeys(rng.sample(cards, 2), 1), {cards[0]: 1, memory: 2**34})
        return json.dumps({"runningcontainer": {"a": {"requests": rng.choice(valid)}}})
    names = [*cards, memory, *[count] * 4, "gpu/gpu-generate-topology", "x"]
    field = rng.choice(("runningcontainer", "runningcontainer", "initcontainer", "requests"))
    requests = several(rng, names, DEVICE_AMOUNTS, 0, 3)
    container = {rng.choice(("a", "a", "b", "nobody")): {"requests": requests}}
    return json.dumps({field: container, **rng.choice(WHOLE)})


def random_container(rng: random.Random, name: str, dialect: Dialect) -> Json:
    """A container with limits that are mostly of this dialect and mostly valid."""
    amounts = dict(dialect.examples) or ({MIG: "1"} if dialect.prefix else {})
    if dialect.name == "gas" or rng.random() < 0.25:
        amounts = dict(list(amounts.items())[:1])
    elif rng.random() < 0.25:
        amounts = {each: amount for each, amount in amounts.items() if rng.random() < 0.5}
    if rng.random() < 1 / 6:
        amounts |= several(rng, RESOURCES, AMOUNTS, 1, 2)
    found = of_resources(amounts, name)
    if rng.random() < 1 / 30:
        found["resources"]["requests"] = {**amounts, rng.choice(RESOURCES): "1"}
    return found


def random_pod(rng: random.Random) -> Json:
    """One to three containers and perhaps one before them, mostly of one dialect, with annotations and labels
    of some dialects."""
    dialect = rng.choice(DIALECTS)
    others = rng.choice(DIALECTS) if rng.random() < 0.1 else dialect
    names = ("a", "b", "c")[: rng.choice((1, 1, 1, 2, 3))]
    containers = [random_container(rng, name, others if at else dialect) for at, name in enumerate(names)]
    init = [random_container(rng, "first", dialect)] if rng.random() < 1 / 8 else None
    raw = pod(*containers, init=init)
    default = () if dialect.placed_by_others and dialect.schedulers else ("default-scheduler",)
    raw["spec"]["schedulerName"] = rng.choice((*default, *default, *dialect.schedulers))
    raw["metadata"] |= {"annotations": random_annotations(rng, dialect), "labels": {}}
    if dialect.labels or rng.random() < 0.05:
        raw["metadata"]["labels"] = several(rng, LABELS, TEXTS, 1, 2)
    return raw


def random_annotations(rng: random.Random, dialect: Dialect) -> Json:
    """Those in which pods of the dialect request cards, and now and then any others."""
    found = several(rng, ANNOTATIONS, TEXTS, 0, 2) if rng.random() < 1 / 6 else {}
    for name in VERSIONS:
        if name in dialect.annotations or rng.random() < 1 / 40:
            found[name] = device_info(rng, name)
    if "gpu-fraction" in dialect.annotations:
        found |= several(rng, OF_KAI, TEXTS, 0, 3)
        found["gpu-fraction"] = rng.choice((*["0.5"] * 9, "0.25", "1e-9", *AMOUNTS))
    return found


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
SEEDS = st.integers(0, 2**64 - 1)


@settings(max_examples=examples(2_000, soak=50_000), deadline=None)
@given(seed=SEEDS)
def test_nothing_raises_and_webhook_and_extender_agree(seed: int) -> None:
    raw = random_pod(random.Random(seed))
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
    assert (answer.admission is None) or answer.admission.request == parsed.request
    if parsed.request is None or answer.admission is None:
        return
    after = patched(raw, list(answer.operations))
    admitted = read_pod(after)
    assert admitted is not None
    assert admitted.request == parsed.request
    # of KAI's fractions in a pod of another scheduler
    assert dict(validate(review(after), LEFT_TO_OTHERS).rules).keys() <= {"without-effect"}
    for node in NODES:
        placement = fit(admitted.request, node)
        if not isinstance(placement, Refusal):
            assert mismatch(admitted.request, placement, node.cards) is None


@settings(max_examples=examples(200), deadline=None)
@given(seed=SEEDS)
def test_values_of_other_types_raise_nothing_either(seed: int) -> None:
    """The API server stores none of these; `review` and `audit` read files."""
    rng = random.Random(seed)
    raw, odd = random_pod(rng), rng.choice(ODD)
    where = (
        raw["spec"]["containers"][0]["resources"]["limits"],
        raw["spec"]["containers"][0]["resources"],
        raw["metadata"]["annotations"],
        raw["metadata"]["labels"],
        raw["metadata"],
        raw["spec"],
    )[rng.randrange(6)]
    for name in list(where) or ["nvidia.com/gpu"]:
        if name not in ("containers", "name", "namespace", "uid"):
            where[name] = odd

    raw["spec"] = {**raw["spec"], "initContainers": raw["spec"].get("containers")}  # repeated names too

    parse(raw)
    read_pod(raw)
