"""The parts of the admission manifests that follow from the code, so that they cannot drift apart.

CEL, as the API server evaluates it, and who is left out; the manifests' tests compare.
"""

from collections.abc import Iterable

from timekeeper.core import names
from timekeeper.core.dialects import GPU_RESOURCE
from webhook.mutation.visible_devices import VISIBLE_DEVICES
from webhook.rules import OURS, OWNED
from webhook.rules.denylist import DEVICE_ANNOTATIONS

SYSTEM_NAMESPACES = ("kube-system", "gpu-operator", names.NAMESPACE, names.AGENTS_NAMESPACE)
EXEMPT = f"{names.DOMAIN}/exempt"  # on a namespace; a policy tells who may set it

# gpu-manager itself writes this one on a pod that it has begun to run
_PLUGIN_WRITES = frozenset({"tencent.com/gpu-assigned"})


def gpu_pods() -> str:
    """True for the pods that the webhooks must see: that ask for a GPU in any dialect, carry an annotation,
    label or gate of ours or of a node plugin, or set NVIDIA_VISIBLE_DEVICES.

    Our own label comes first, for nothing more is looked at then, and it is there each time but the first."""
    return f"""\
object != null && has(object.spec) && (
  (has(object.metadata.labels) && '{names.GOVERNED}' in object.metadata.labels)
  || (
    (has(object.spec.containers) ? object.spec.containers : [])
    + (has(object.spec.initContainers) ? object.spec.initContainers : [])
    + (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])
  ).exists(c,
    (has(c.resources) && (
      (has(c.resources.limits) && c.resources.limits.exists(k, k.matches(r'{GPU_RESOURCE}')))
      || (has(c.resources.requests) && c.resources.requests.exists(k, k.matches(r'{GPU_RESOURCE}')))
    ))
    || (has(c.env) && c.env.exists(e, e.name == '{VISIBLE_DEVICES}'))
  )
  || (has(object.metadata.annotations)
    && object.metadata.annotations.exists(k, k.matches(r'{written_annotations()}')))
  || (has(object.metadata.labels) && object.metadata.labels.exists(k, k.matches(r'{_either(OURS)}')))
  || (has(object.spec.schedulingGates)
    && object.spec.schedulingGates.exists(g, g.name.matches(r'{_either(OURS)}')))
)
"""


def governed_namespaces() -> dict[str, object]:
    """The selector of the namespaces whose pods are reviewed: all but the system's and the exempt ones."""
    by_name = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(SYSTEM_NAMESPACES)}
    return {"matchExpressions": [by_name, {"key": EXEMPT, "operator": "NotIn", "values": ["true"]}]}


def written_annotations() -> str:
    """The regular expression of the annotations that Bursar or a node plugin writes on a pod."""
    return _either([*OURS, *OWNED])


def immutable_annotations() -> str:
    """The regular expression of the annotations that nobody may change on a pod that is there.

    Those that name devices are among them: kubelets and plugins hand theirs to the runtime, and not to pods.
    """
    return _either([*OURS, *(owned for owned in OWNED if owned not in _PLUGIN_WRITES), DEVICE_ANNOTATIONS])


def immutable_labels() -> str:
    """The regular expression of the labels that nobody may change, and of the gates that only the timekeeper
    may remove."""
    return _either(OURS)


def _either(words: Iterable[str]) -> str:
    """Matches these names; a word that ends in - or / matches all that begin with it."""
    patterns = [word.replace(".", r"\.") + ("" if word[-1] in "-/" else "$") for word in words]
    return f"^({'|'.join(patterns)})"
