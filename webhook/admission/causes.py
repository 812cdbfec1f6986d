"""What others did to a pod before its review. Its user reads it first: before the reasons of a refusal, and
before other warnings. A user may forge the marks that say so, so only sentences rest on them."""

import re
from collections.abc import Iterator
from dataclasses import replace

from timekeeper.core.admission.pods import annotations_of
from timekeeper.core.admission.rules.export import is_export
from timekeeper.core.request.request import containers
from timekeeper.core.request.zeros import asked_limits
from timekeeper.core.violation import shown
from webhook.admission.warnings import within_limits
from webhook.wire.pod_review import AdmissionAnswer, PodReview

EXPORTED = (
    "This is the export of a bound pod; delete spec.nodeName, the label bursar.dev/governed, and annotations"
    " under bursar.dev/ and of its node's plugin"
)
# of LimitRanger: "LimitRanger plugin set: cpu, nvidia.com/gpu request for container main; ..."
_LIMIT_RANGER = "kubernetes.io/limit-ranger"
_FILLED_IN = re.compile(r"([^;]+) limit for (?:init )?container ([^;]+)")


def with_causes(answer: AdmissionAnswer, review: PodReview, is_kept: bool) -> AdmissionAnswer:
    """The answer to a new pod, with its causes first. ``answer`` refuses the pod, or speaks of its GPUs;
    ``is_kept``: the marks of an export stay in it."""
    if not (answer.refusal or answer.request):
        return answer
    exported = (EXPORTED,) if is_kept and is_export(review.pod) else ()
    mark = annotations_of(review.pod).get(_LIMIT_RANGER, "")
    if not (exported or mark):
        return answer  # nearly always
    causes = within_limits((*exported, *_of_limit_ranges(review, mark)))
    if not causes:
        return answer
    if answer.refusal:
        return replace(answer, refusal="\n".join((*causes, answer.refusal)))
    return replace(answer, warnings=within_limits((*causes, *answer.warnings)))


def _of_limit_ranges(review: PodReview, mark: str) -> Iterator[str]:
    """Of each device that a LimitRange requests for a container which does not name it."""
    filled_in = {
        (container, resource)
        for resources, container in _FILLED_IN.findall(mark.partition(":")[2])
        for resource in resources.strip().split(", ")
        if "/" in resource
    }
    for container in containers(review.pod):
        for resource, amount in asked_limits(container.raw).items():
            if (container.name, resource) in filled_in:
                yield (
                    f"{container.path}.resources.limits[{resource}]: a LimitRange of namespace"
                    f" {review.namespace} filled in {shown(str(amount))}; for a container without devices"
                    f' write {resource}: "0"'
                )
