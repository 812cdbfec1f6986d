"""nano-gpu-scheduler in its four forms: v0.1, v0.3, its successor elastic-gpu, and qGPU.

Their node agent reads, for each container by name, the indexes of its cards from an annotation, and shows the
container these cards itself. The annotation and label ``assume`` tell that a scheduler has placed the pod.
Sources: nano-gpu-scheduler v0.1.0 and v0.3, elastic-gpu-scheduler, elastic-gpu-agent (`docs/dialects.md`).
"""

from timekeeper.core.dialects.amounts import PodFacts, indexes
from timekeeper.core.dialects.dialect import Dialect, Found, PlacedRequest, nothing_at_admission
from timekeeper.core.dialects.percent import PercentResources
from timekeeper.core.values import GPURequest

NO_CARD = "-1"  # of a container without a GPU


def _dialect(
    name: str, resources: PercentResources, container_stem: str, assumed: str, *, names_all: bool = False
) -> Dialect:
    """``container_stem``: of the annotation of a container; its name follows. ``assumed``: annotation and
    label of a placed pod. ``names_all``: containers without a GPU have an annotation too."""

    def at_binding(placed: PlacedRequest) -> dict[str, str]:
        indexes = {
            container: ",".join(str(each.index) for each in slices)
            for container, slices in placed.placement.containers
        }
        others = dict.fromkeys(placed.containers, NO_CARD) if names_all else {}
        written = {container_stem + each: text for each, text in {**others, **indexes}.items()}
        return {**written, assumed: "true"}

    def found(pod: PodFacts, request: GPURequest) -> Found:
        asking = (each.container for each in request.asks)
        return {name: indexes(pod.annotations.get(container_stem + name)) for name in asking}

    return Dialect(
        name=name,
        resources=resources.resources,
        examples=resources.examples,
        read=resources.read,
        at_admission=nothing_at_admission,
        at_binding=at_binding,
        found=found,
        owned=(f"{assumed.partition('/')[0]}/",),
        plugin_shows=True,
        labels_at_binding={assumed: "true"},
        cards=resources.cards,
    )


DIALECTS = (
    _dialect(
        "nano-v0.1",
        PercentResources(core="nano-gpu.io/gpu-core", memory="nano-gpu.io/gpu-memory", most_cards=1),
        "nano-gpu.io/gpu-",
        "nano-gpu.io/gpu",
    ),
    _dialect(
        "nano-v0.3",
        PercentResources(core="nano-gpu/gpu-percent", most_cards=1),
        "nano-gpu/container-",
        "nano-gpu/assume",
        names_all=True,
    ),
    _dialect(
        "qgpu",
        PercentResources(core="nano-gpu/qgpu-core", memory="nano-gpu/qgpu-memory"),
        "nano-gpu/container-",
        "nano-gpu/assume",
    ),
    _dialect(
        "elastic",
        PercentResources(core="elasticgpu.io/gpu-core", memory="elasticgpu.io/gpu-memory"),
        "elasticgpu.io/container-",
        "elasticgpu.io/assumed",
    ),
)
