"""Whether a device that pods give up for a waiting claim is kept for it."""

from collections.abc import Iterator
from typing import Any

from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    items,
    minor_of,
    some_of,
    unknown,
)

_SUBJECT = "reclaim of devices"
_PAGE = "read docs/claims.md#reclaim"
_RULES = "devicetaintrules.resource.k8s.io"
_LEAST_MINOR = 34  # older ones serve no claims that are followed


def reclaimed_devices(facts: Facts) -> Iterator[CheckResult]:
    """Where budgets reclaim and there are classes of devices, the API server serves DeviceTaintRules."""
    if isinstance(facts.readiness, NotReadable) or minor_of(facts) < _LEAST_MINOR:
        return  # said by other checks, or no claim is followed
    for each in (facts.accounts, facts.device_classes, facts.device_resources):
        if isinstance(each, NotReadable):
            yield unknown(_SUBJECT, each)
            return
    reclaiming = [str(each["namespace"]) for each in facts.accounts if _reclaims(each)]
    if not reclaiming or not items(facts.device_classes):
        return
    if _RULES in str(facts.device_resources).split():
        yield CheckResult("ok", _SUBJECT, "a taint keeps a reclaimed device for the claim that waits")
        return
    fields = " and ".join(_fields(facts))
    sentence = (
        f"pods of {some_of(reclaiming)} leave for the claims of others ({fields}), and the"
        " API server serves no DeviceTaintRules, so another claim may get the device first"
    )
    yield CheckResult("warning", _SUBJECT, sentence, _PAGE)


def _fields(facts: Facts) -> Iterator[str]:
    """The fields of the entries for which pods leave."""
    if any(map(_reclaims_spent, facts.accounts)):
        yield "onExhausted: reclaim"
    if any(map(_reclaims_idle, facts.accounts)):
        yield "idle: reclaim"


def _reclaims(account: Any) -> bool:
    """Whether pods of the namespace leave for others: once its budget is exhausted, or while they are
    idle."""
    return _reclaims_spent(account) or _reclaims_idle(account)


def _reclaims_spent(account: Any) -> bool:
    return _is_governed(account) and account["onExhausted"] == "reclaim" and account["granted"] is not None


def _reclaims_idle(account: Any) -> bool:
    return _is_governed(account) and account.get("idle") == "reclaim"


def _is_governed(account: Any) -> bool:
    return bool(account.get("mode") == "enforce" and account.get("placement") != "off")
