"""Whether the API server is new enough, and what of Bursar an older one does not have."""

from collections.abc import Iterator
from dataclasses import dataclass

from timekeeper.cli.doctor.check_result import CheckResult, Level
from timekeeper.cli.doctor.facts import Facts, NotReadable
from timekeeper.cli.doctor.reading import minor_of

LEAST_MINOR = 30
_SUBJECT = "API server"
_PAGE = "see docs/versions.md"


@dataclass(frozen=True, slots=True)
class NewerFeature:
    """Something that needs a newer Kubernetes than the least one. A warning: without it more is admitted."""

    minor: int
    level: Level
    missing: str  # what does not work, as a clause


NEWER_FEATURES = (
    NewerFeature(
        34, "warning", "the policies on device claims do not apply, for there is no resource.k8s.io/v1"
    ),
    NewerFeature(
        35,
        "warning",
        "a Binding puts no labels on pods, so those of nano-gpu, elastic-gpu and HAMi lack the label of a"
        " placed pod",
    ),
    NewerFeature(36, "ok", "deploy/samples/void-for-everyone.yaml cannot be applied"),
)


def version(facts: Facts) -> Iterator[CheckResult]:
    """The API server answers, is new enough, and what falls away because it is older than the newest."""
    if isinstance(facts.version, NotReadable):
        yield CheckResult("error", _SUBJECT, facts.version.reason, "kubectl version")
        return
    minor = minor_of(facts)
    if minor < LEAST_MINOR:
        sentence = f"Kubernetes 1.{minor} is older than 1.{LEAST_MINOR}, which the manifests need"
        yield CheckResult("error", _SUBJECT, sentence, _PAGE)
        return
    yield CheckResult("ok", _SUBJECT, f"Kubernetes 1.{minor}")
    for each in NEWER_FEATURES:
        if minor < each.minor:
            sentence = f"it is older than 1.{each.minor}: {each.missing}"
            yield CheckResult(each.level, _SUBJECT, sentence, "" if each.level == "ok" else _PAGE)
