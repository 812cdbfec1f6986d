"""Whether device claims and a device plugin give out the same cards, and whether a device that pods give up
for a waiting claim is kept for it."""

from collections.abc import Iterator
from typing import Any

from timekeeper.cli.doctor.accelerator_checks import parsed_entries
from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    items,
    minor_of,
    some_of,
    unknown,
)
from timekeeper.core.claims.devices import DevicePools, read_slice
from timekeeper.core.claims.drivers import VENDORS, rules_of
from timekeeper.core.json_values import mapping
from timekeeper.core.request.inventory import gpu_amounts, vendor_of

_SUBJECT = "reclaim of devices"
_PAGE = "read docs/claims.md#reclaim"
_GIVERS, _MOVE = "givers of cards", "docs/from-device-plugin.md"
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


def givers(facts: Facts) -> Iterator[CheckResult]:
    """No node's cards are given out both by a device plugin and by device claims: neither knows of the
    other's pods."""
    if any(isinstance(fact, NotReadable) for fact in (facts.nodes, facts.budgets, facts.version)):
        return  # said by other checks
    if isinstance(facts.device_slices, NotReadable):
        if minor_of(facts) >= _LEAST_MINOR:
            yield unknown(_GIVERS, facts.device_slices)
        return
    drivers = _drivers_by_node(facts)
    for node in items(facts.nodes):
        name = str(node["metadata"]["name"])
        offered = gpu_amounts(mapping(mapping(node.get("status")).get("allocatable")))
        both = [
            (resource, driver)
            for resource in sorted(offered)
            for driver in sorted(drivers.get(name, ()))
            if VENDORS.get(driver, vendor_of(resource)) == vendor_of(resource)
        ]
        if both:
            resources, given = (" and ".join(dict.fromkeys(words)) for words in zip(*both, strict=True))
            sentence = (
                f"{name} gives out its cards twice: {resources} by a device plugin, and devices of {given} by"
                " claims, so pods of both may get one card"
            )
            yield CheckResult("error", _GIVERS, sentence, f"stop one of both on {name} ({_MOVE})")


def _drivers_by_node(facts: Facts) -> dict[str, set[str]]:
    """The drivers that publish GPUs of each node which claims can get."""
    pools, rules = DevicePools(), rules_of(parsed_entries(facts).settings.drivers)
    for raw in items(facts.device_slices):
        pools.put(read_slice(raw))
    drivers: dict[str, set[str]] = {}
    for (driver, *_), device in pools.every().items():
        if driver in rules and rules[driver].is_gpu(device) and not device.is_tainted:
            drivers.setdefault(device.node, set()).add(driver)
    return drivers


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
