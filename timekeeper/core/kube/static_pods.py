"""Static pods, which a kubelet runs from its own files, and their mirrors: the objects in the API server that
the kubelet makes of them. A static pod runs whether its mirror is admitted or not, and goes on while its
mirror is deleted and made again. Source: pkg/kubelet/pod/mirror_client.go."""

import hashlib
from collections.abc import Iterable

from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.object_names import MIRROR

STATIC = "static:"  # how the UID of a static pod begins, in the ledger
KUBELETS, KUBELET = "system:nodes", "system:node:"  # their group, and how the name of each begins


def static_uid(pod: Json) -> str:
    """What tells the static pod of a mirror from all others, and stays the same when the mirror is deleted
    and made again: by its node, namespace and name, and the hash of its file. "": the pod is no mirror. The
    API server admits a mirror only with a node, and no change of the annotation."""
    annotations, node = annotations_of(pod), mapping(pod.get("spec")).get("nodeName")
    if MIRROR not in annotations or not node:
        return ""
    metadata = mapping(pod.get("metadata"))
    parts = node, metadata.get("namespace", ""), metadata.get("name", ""), annotations[MIRROR]
    text = "\n".join(map(str, parts)).encode(errors="replace")
    return STATIC + hashlib.sha256(text).hexdigest()[:32]


def is_own_mirror(pod: Json, user: str, groups: Iterable[str]) -> bool:
    """Whether the kubelet of its own node makes this mirror. A copy by another user is none."""
    node = mapping(pod.get("spec")).get("nodeName")
    return bool(static_uid(pod)) and KUBELETS in groups and user == f"{KUBELET}{node}"
