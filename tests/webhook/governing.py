"""Pods as admission gets them, the standings and policies that it governs them by, and what it writes."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.webhook.worlds import OBSERVING, POLICY, WITHOUT_SIDECAR, admitted, with_class
from tests.worlds import Json

WORDS: Any = st.sampled_from(["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"])
EVERY_SIDECAR = [POLICY, WITHOUT_SIDECAR]
LIMITED = replace(POLICY, mps_pipes="/run/nvidia-mps")
TAINTED = replace(LIMITED, runtime_class="nvidia", gpu_node_taint="nvidia.com/gpu")
ALL_POLICIES = st.sampled_from([*EVERY_SIDECAR, OBSERVING, LIMITED, TAINTED])

ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def visible(name: str) -> Json:
    """The variable that reads a container's cards from its annotation."""
    path = f"metadata.annotations['visible-devices.bursar.dev/{name}']"
    return {
        "name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}},
    }


NAMES = st.sampled_from(["a", "b", "c", "main", "setup"])
VARIABLES = st.lists(
    st.sampled_from(
        [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "graphics"},
            {"name": "A", "value": "1"},
            {"name": "B", "value": ""},
        ]
    ),
    max_size=5,
)
LIMITS = {
    "native": st.sampled_from([{}, {"bursar.dev/gpu-percent": "50"}, {"bursar.dev/gpu-count": "2"}]),
    "tencent": st.sampled_from([{}, {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}]),
    "nvidia": st.sampled_from([{}, {"nvidia.com/gpu": "1"}]),
}


@st.composite
def pods(draw: st.DrawFn, dialects: Sequence[str] = tuple(sorted(LIMITS))) -> Json:
    """Good GPU pods of one dialect, with containers of several kinds in any order."""
    limits = LIMITS[draw(st.sampled_from(dialects))]

    def one(name: str) -> Json:
        raw: Json = {"name": name, "image": "x"}
        amounts = draw(limits)
        if amounts:
            raw["resources"] = {"limits": amounts}
        variables = draw(st.none() | VARIABLES)
        if variables is not None:
            raw["env"] = copy.deepcopy(variables)
        return raw

    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    count = draw(st.integers(1, len(names)))
    raw = admitted(*map(one, names[:count]), init=[one(name) for name in names[count:]] or None)
    if draw(st.booleans()):
        raw["metadata"]["annotations"] = draw(
            st.dictionaries(st.sampled_from(["note", "a/b", "c~d"]), st.just("x"))
        )
    if draw(st.booleans()):
        raw = with_class(raw, draw(st.sampled_from(["urgent", "batch"])), draw(st.integers(-9, 9)))
    return raw
