"""The policies inside the API server: each is there, is bound, and refuses."""

from collections.abc import Iterator
from typing import Any

from timekeeper.cli.doctor.check_result import CheckResult
from timekeeper.cli.doctor.facts import Facts, NotReadable
from timekeeper.cli.doctor.reading import applying, items, unknown
from timekeeper.core.json_values import mapping, sequence

POLICIES = (  # deploy/manifests, compared by a test
    "bursar-anti-affinity",
    "bursar-bindings",
    "bursar-device-claims",
    "bursar-device-class-limits",
    "bursar-eviction-grace",
    "bursar-exemptions",
    "bursar-gpubudgets",
    "bursar-grace",
    "bursar-growth",
    "bursar-holds",
    "bursar-node-access",
    "bursar-node-agent",
    "bursar-notices",
    "bursar-overhead",
    "bursar-placed-by-others",
    "bursar-privileged",
    "bursar-ranges",
    "bursar-releases",
    "bursar-sidecar",
    "bursar-sizes",
    "bursar-ways-around",
    "bursar-written-once",
)
# These refuse no pod: they say which account writes what is Bursar's own, also while Bursar observes.
OF_OUR_OWN_FIELDS = (
    "bursar-gpubudgets",
    "bursar-holds",
    "bursar-node-agent",
    "bursar-notices",
    "bursar-releases",
)


def policies(facts: Facts) -> Iterator[CheckResult]:
    """Those that only warn by choice are named, and are no fault."""
    yield from _all(facts, "policies", facts.policies)
    lenient = _lenient(facts.policy_bindings)
    yield from _open(facts, lenient)
    warning = f"; only warning: {', '.join(lenient)}" if lenient else ""
    yield from _all(facts, "policy bindings", facts.policy_bindings, warning)


def _all(facts: Facts, subject: str, listed: Any, remark: str = "") -> Iterator[CheckResult]:
    if isinstance(listed, NotReadable):
        yield unknown(subject, listed)
        return
    missing = sorted(set(POLICIES) - {each["metadata"]["name"] for each in items(listed)})
    if missing:
        sentence = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        command = f"{applying(facts)} (docs/bypass.md says what each is for)"
        yield CheckResult("error", subject, sentence, command)
    else:
        yield CheckResult("ok", subject, f"all {len(POLICIES)} are there{remark}")


def _lenient(bindings: Any) -> list[str]:
    """The bindings that do not refuse."""
    return sorted(
        each["metadata"]["name"]
        for each in items(bindings)
        if "Deny" not in sequence(mapping(each.get("spec")).get("validationActions"))
    )


def _open(facts: Facts, lenient: list[str]) -> Iterator[CheckResult]:
    """Without these any account that may write pods or nodes could write fields that Bursar trusts."""
    found = [each for each in lenient if each in OF_OUR_OWN_FIELDS]
    if found:
        sentence = f"{', '.join(found)} must refuse: else other accounts can write what is Bursar's own"
        yield CheckResult("error", "policy bindings", sentence, applying(facts))
