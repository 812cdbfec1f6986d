"""Objects of claims as a real driver, kube-scheduler and kubelet make them, in ``recorded/``: for unit tests
of what reads them. ``cluster/test_claims.py`` proves that they are still made so.

``slices.yaml``: the ResourceSlices of each driver. ``claims.yaml``: the allocated claim of each pod.
``pods.yaml``: what of these pods says which claims they have.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.reading import loaded
from tests.worlds import Json

_FOLDER = Path(__file__).with_name("recorded")
# What each pod's claim costs, in thousandths of a whole device: of its 80Gi and 100 units of compute the
# larger part counts, and an administrator's access nothing.
RATES = {
    **dict.fromkeys(("sharer-0", "sharer-1", "one", "first", "extended", "by-class", "full"), 1000),
    **{"all": 2000, "two": 2000, "admin": 0, "third": 330, "half": 500, "part-0": 500, "part-1": 500},
}
_ANONYMOUS = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z", "TIME"),
    (r"-[bcdfghjklmnpqrstvwxz2456789]{5}(?![0-9a-z-])", "-NAME"),  # that the API server adds to a prefix
    (r"(?<=device: gpu-)[0-9]+", "N"),  # which device it is depends on who was first
)


def pruned(found: Json) -> Json:
    """Without what only the API server's own work needs."""
    left_out = ("managedFields", "resourceVersion")
    metadata = {key: value for key, value in found["metadata"].items() if key not in left_out}
    return {**found, "metadata": metadata}


def claims_of(pod: Json) -> Json:
    """What of a pod says which claims it has."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    linked = ("resourceClaimStatuses", "extendedResourceClaimStatus")
    containers = [{key: each[key] for key in ("name", "resources")} for each in spec["containers"]]
    of_spec = {key: spec[key] for key in ("nodeName", "resourceClaims") if key in spec}
    return {
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "creationTimestamp")},
        "spec": {**of_spec, "containers": containers},
        "status": {key: status[key] for key in linked if key in status},
    }


def file(name: str) -> Path:
    """The path of a recorded file. ``name``: without the ending."""
    return _FOLDER / f"{name}.yaml"


def read(name: str) -> Any:
    """A recorded file's content."""
    (content,) = loaded(file(name).read_text())
    return content


def anonymous(content: Any) -> str:
    """The content with UIDs, times and generated names that are the same in every run."""
    text: str = yaml.safe_dump(content)
    for pattern, word in _ANONYMOUS:
        text = re.sub(pattern, word, text)
    return text
