"""qGPU of Tencent's TKE: per cent of a card and GiB of its memory, which TKE's own extender of kube-scheduler
places.

What its node plugin reads of a bound pod is not published, so Bursar places none. Source: Tencent Kubernetes
Engine, qGPU (`docs/dialects.md`).
"""

from timekeeper.core.dialects.dialect import Dialect, nothing_at_admission, nothing_at_binding
from timekeeper.core.dialects.percent import PercentResources

RESOURCES = PercentResources(
    core="tke.cloud.tencent.com/qgpu-core",
    memory="tke.cloud.tencent.com/qgpu-memory",
    unit_mib=1024,
    step=5,
)

DIALECT = Dialect(
    name="tke",
    resources=RESOURCES.resources,
    examples=RESOURCES.examples,
    read=RESOURCES.read,
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    plugin_shows=True,
    plugin_limits=True,
    placed_by_others=True,
    charged_cards=RESOURCES.cards,
)
