"""Values that several bodies have."""

from typing import Annotated, Literal

from timekeeper.core import object_names
from timekeeper.wire.forms import like, whole

OLDEST_MS = 30 * 86_400_000  # the age of anything that a post reports
MAX_FIGURE = 2**31
MAX_BEATS = 1_000  # heartbeats in one post, and a node's samples
MAX_BINDINGS = 100  # and ends, in one post
LATEST_MS = 2**53

Version = Literal[1]
Age = Annotated[int, whole(OLDEST_MS)]
# of a pod, or of a run of what posts
Identifier = Annotated[str, like("[A-Za-z0-9._:-]{1,64}", "it must be 1 to 64 letters, digits or . _ : -")]
Sequence = Annotated[int, whole(2**53, "it must be a whole number from 0 on")]
KubernetesName = Annotated[str, like(object_names.NAME, "it must be a name of Kubernetes")]
Subject = Annotated[
    str, like(object_names.SUBJECT, "it must be the name of a namespace, or _group.NAME")
]  # a namespace, or ``_group.NAME``
