"""What a plugin of the node's container runtime reads from a bound pod: the containers' cards, or how much
memory of them each may use.

`fractiond`, of KAI's GPU fractioning, has the driver limit the memory of a container on each of its cards.
Source: kai-scheduler/gpu-fractioning, fractiond/internal/annotations: quantities of at least 1 MiB, one for
all cards; the cards as NVIDIA's runtime reads them.

The NRI plugin of NVIDIA's Container Toolkit adds devices by their names in CDI. Source:
NVIDIA/nvidia-container-toolkit, nvidia-ctk-installer/container/runtime/nri; containerd/nri,
pkg/plugin/annotations.go.

A runtime whose validator is on makes no container if its pod requires a plugin that is away. Source:
containerd/nri, plugins/default-validator.
"""

import json
from collections.abc import Iterable, Sequence

from timekeeper.core.dialects import Dialect
from timekeeper.core.values import WHOLE_MILLI, Card, Placement, Slice

# names under which plugins register with the runtime
OURS = "bursar"  # of the node agent
KAIS = "gpu-fractioning"  # fractiond/internal/plugin.go
NVIDIAS = frozenset({"nvidia-ctk-installer", "nvidia-toolkit"})  # by their programs
FRACTIOND = "nvidia.com/container."
CDI = "nvidia.cdi.k8s.io/container."
CDI_DEVICE = "nvidia.com/gpu="  # the kind of which `nvidia-ctk cdi generate` makes specifications
REQUIRED = "required-plugins.noderesource.dev"
_MAX_NAME = 63  # of an annotation after its domain, in Kubernetes


def read_by(
    plugins: Sequence[str], dialect: Dialect, placement: Placement, cards: Iterable[Card] = ()
) -> dict[str, str]:
    """The annotations that these plugins read, and the one by which the runtime requires them where Bursar's
    is one of them. ``cards``: all of the node.

    With `fractiond` a container that has whole cards gets none: it is alone there, and need not be a client
    of MPS. Neither does one whose name is too long for an annotation: it has its variable alone."""
    whole = {Slice(card.uuid, card.index, WHOLE_MILLI, card.memory_mib) for card in cards}
    written: dict[str, str] = {}
    if OURS in plugins and not dialect.shown_by_plugin:
        written[REQUIRED] = json.dumps(list(plugins))
    for container, slices in placement.containers:
        parts = sorted(slices, key=lambda each: each.index)
        if KAIS in plugins and dialect.limited_by_mps and not whole.issuperset(parts):
            written |= _limited(container, parts)
        if not NVIDIAS.isdisjoint(plugins) and not dialect.shown_by_plugin:
            devices = ",".join(CDI_DEVICE + each.uuid for each in parts)
            written |= _of_valid_name({CDI + container: devices})
    return written


def _limited(container: str, parts: list[Slice]) -> dict[str, str]:
    """The plugin knows one limit for all cards, so it is that of the smallest part. Nothing where parts have
    no memory, but named resources."""
    least_mib = min(each.memory_mib for each in parts)
    if not least_mib:
        return {}
    limit = f"{least_mib}Mi"
    return _of_valid_name(
        {
            f"{FRACTIOND}{container}.gpus.devices": ",".join(each.uuid for each in parts),
            f"{FRACTIOND}{container}.gpu-memory.request": limit,
            f"{FRACTIOND}{container}.gpu-memory.limit": limit,
        }
    )


def _of_valid_name(annotations: dict[str, str]) -> dict[str, str]:
    fits = all(len(name.partition("/")[2]) <= _MAX_NAME for name in annotations)
    return annotations if fits else {}
