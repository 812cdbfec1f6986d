"""Whether device claims are served, and whether a device that pods give up for a waiting claim is kept for
it."""

import re
from collections.abc import Iterator
from typing import Any

from timekeeper.cli.doctor.facts import (
    RELEASE,
    CheckResult,
    Facts,
    NotReadable,
    items,
    minor_of,
    unknown,
)
from timekeeper.core.findings import some_of
from timekeeper.core.json_values import Json, mapping, sequence

_SUBJECT = "reclaim of devices"
_PAGE = "read docs/claims.md#reclaim"
_PAGE_OF_CLAIMS = "read docs/claims.md"
_LEAST_MINOR = 34  # older ones serve no claims that are followed
_RULES, _GATE = "DeviceTaintRules", "DRADeviceTaintRules"
_RULES_MINOR = 37  # from which on the gate is on unasked
_FLAG = re.compile(r"--feature-gates[= ](\S+)")


def served_claims(facts: Facts) -> Iterator[CheckResult]:
    """The API server serves device claims in the version that is followed, and what kube-scheduler waits for
    before it schedules any pod."""
    if isinstance(facts.device_resources, NotReadable) or minor_of(facts) < _LEAST_MINOR:
        return  # said by other checks
    version, lacks = _served(facts, "resourceclaims"), _lacks_rules(facts)
    if version == "v1":
        if not _may_read(facts, "resourceclaims"):
            sentence = (
                "the API server has the feature gate DynamicResourceAllocation off, so it drops the claims of"
                " pods, which start without devices"
            )
            yield CheckResult("warning", "device claims", sentence, _PAGE_OF_CLAIMS)
        elif lacks and minor_of(facts) >= _RULES_MINOR:
            follows = (
                f"a kube-scheduler of 1.37 with the feature gate {_GATE} on, as unasked, schedules no pod"
            )
            command = f"turn {_GATE} on, or off, in kube-apiserver and each kube-scheduler alike"
            yield CheckResult("error", "device claims", f"{lacks}: {follows}", command)
        return
    if version:
        lacks = f"serves {version} of resource.k8s.io, and not v1"
        follows = "pods with device claims are refused, and what other namespaces' claims hold is not charged"
    else:
        lacks = "serves no resource.k8s.io (--runtime-config)"
        follows = "no claim can be made, and pods with device claims are refused"
    command = "add --runtime-config=resource.k8s.io/v1=true to kube-apiserver, or use no claims"
    yield CheckResult("warning", "device claims", f"the API server {lacks}: {follows}", command)


def reclaimed_devices(facts: Facts) -> Iterator[CheckResult]:
    """Where budgets reclaim and there are classes of devices, the API server serves DeviceTaintRules, and
    kube-scheduler heeds them."""
    if isinstance(facts.readiness, NotReadable) or minor_of(facts) < _LEAST_MINOR:
        return  # said by other checks, or no claim is followed
    for each in (facts.accounts, facts.device_classes, facts.device_resources, facts.static_schedulers):
        if isinstance(each, NotReadable):
            yield unknown(_SUBJECT, each)
            return
    reclaiming = [str(each["namespace"]) for each in facts.accounts if _reclaims(each)]
    if not reclaiming or not items(facts.device_classes):
        return
    blind = [str(pod["spec"].get("nodeName", "")) for pod in items(facts.static_schedulers) if _is_blind(pod)]
    lacks = _lacks_rules(facts)
    if not lacks and blind:
        lacks = f"kube-scheduler on {some_of(blind)} heeds no {_RULES} (feature gate {_GATE})"
    if not lacks:
        yield CheckResult("ok", _SUBJECT, "a taint keeps a reclaimed device for the claim that waits")
        return
    fields = " and ".join(_fields(facts))
    sentence = (
        f"pods of {some_of(reclaiming)} leave for the claims of others ({fields}), and {lacks}, so another"
        " claim may get the device first"
    )
    yield CheckResult("warning", _SUBJECT, sentence, _PAGE)


def _served(facts: Facts, resource: str) -> str:
    """The version in which the API server serves a resource of device claims, the newest; "": in none."""
    rows = (line.split() for line in str(facts.device_resources).splitlines())
    versions = {row[0]: word.partition("/")[2] for row in rows for word in row if "/" in word}
    return versions.get(resource, "")


def _lacks_rules(facts: Facts) -> str:
    """What the API server lacks of DeviceTaintRules; "": nothing. With the feature gate off that of 1.37
    serves them, and does not let kube-scheduler read them."""
    if not _served(facts, _RULES.lower()):
        return f"the API server serves no {_RULES}"
    return "" if _may_read(facts, _RULES.lower()) else f"the API server has the feature gate {_GATE} off"


def _may_read(facts: Facts, resource: str) -> bool:
    """Whether the API server lets kube-scheduler read a resource, which it does not with the feature gate
    off; True where that is not known."""
    rights = sequence(mapping(facts.scheduler_role).get("rules"))
    return not rights or any(resource in sequence(right.get("resources")) for right in rights)


def _is_blind(pod: Json) -> bool:
    """Whether this kube-scheduler has the feature gate of DeviceTaintRules off."""
    (container, *_) = sequence(mapping(pod.get("spec")).get("containers")) or [{}]
    flags = " ".join(map(str, (*sequence(container.get("command")), *sequence(container.get("args")))))
    pairs = (pair.partition("=") for flag in _FLAG.findall(flags) for pair in flag.split(","))
    gates = {name: value for name, _, value in pairs}
    release = RELEASE.search(str(container.get("image", "")))
    is_old = release is not None and int(release[1]) < _RULES_MINOR
    unasked = gates.get("AllBeta", "false") if is_old else "true"
    return gates.get(_GATE, unasked).lower() not in ("true", "t", "1")


def _fields(facts: Facts) -> Iterator[str]:
    """The fields of the entries for which pods leave."""
    if any(map(_reclaims_spent, facts.accounts)):
        yield "onExhausted: reclaim"
    if any(map(_reclaims_idle, facts.accounts)):
        yield "idle: reclaim"


def _reclaims(account: Any) -> bool:
    """Whether pods of the namespace leave for others: once it is over budget, or while they are
    idle."""
    return _reclaims_spent(account) or _reclaims_idle(account)


def _reclaims_spent(account: Any) -> bool:
    return _is_governed(account) and account["onExhausted"] == "reclaim" and account["granted"] is not None


def _reclaims_idle(account: Any) -> bool:
    return _is_governed(account) and account.get("idle") == "reclaim"


def _is_governed(account: Any) -> bool:
    return bool(account.get("mode") == "enforce" and account.get("placement") != "off")
