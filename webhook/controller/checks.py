"""Whether the API server need ask /validate about a new pod that /mutate has governed.

Both judge by the same rules; /validate is there for what other webhooks do to a pod after /mutate. The API
server calls mutating webhooks in the order of their configurations' names. Then it goes over the pod once
more, its own plugins and those of the policies and webhooks that ask for it; and of these a webhook alone
that was called the first time. So where ours is the last of all that may change a new pod, and nobody else
asks for a second round, in which we may be passed by, ours has been shown each governed pod as others have
left it, and a match condition spares the call to /validate. The condition is a lease: it holds for pods that
are created before a moment that the certificate process keeps ahead of the clock for as long as it sees that
this is so. Pure.

Source: k8s.io/apiserver 1.36, ``admission/configuration/mutating_webhook_manager.go`` and
``admission/plugin/webhook/mutating/dispatcher.go``; docs/decisions/0025.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from timekeeper.core import names

Json = dict[str, Any]

GOVERN, CHECK = "govern.bursar.dev", "check.bursar.dev"
NAME = "changed-since-governed"  # of the match condition
LASTS = timedelta(minutes=5)
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"

_NEW_PODS = {"pods", "pods/*", "*", "*/*"}  # an API server takes no subresource for one of any name
_SAME = ("namespaceSelector", "objectSelector", "matchPolicy")


def condition(until: datetime) -> Json:
    """The match condition by which new pods that carry our label, and are created before this moment, are not
    checked again. A pod that has the label from elsewhere is one that /mutate is asked about."""
    return {
        "name": NAME,
        "expression": f"""\
request.operation != 'CREATE'
|| !has(object.metadata.labels) || !('{names.GOVERNED}' in object.metadata.labels)
|| object.metadata.labels['{names.GOVERNED}'] != 'true'
|| !has(object.metadata.creationTimestamp) || type(object.metadata.creationTimestamp) != string
|| timestamp(object.metadata.creationTimestamp) >= timestamp('{until.astimezone(UTC):{_MOMENT}}')
""",
    }


def spared_until(check: Json) -> datetime | None:
    """Until when the webhook that checks is not asked about governed pods, by its match condition; None
    where it is asked about all."""
    for each in check.get("matchConditions") or ():
        if each["name"] == NAME:
            told = re.search(r"timestamp\('([0-9TZ:-]+)'\)", each["expression"])
            return _moment(told[1]) if told else datetime.min.replace(tzinfo=UTC)
    return None


def renewed(check: Json, now: datetime) -> datetime | None:
    """Until when it is to be spared from now on, where nothing is in the way; None where the present lease
    need not be renewed yet."""
    until = spared_until(check)
    if until is not None and now + LASTS / 2 < until <= now + LASTS:
        return None
    return now + LASTS


def obstacle(configurations: Iterable[Json], own: str, check: Json | None, policies: Iterable[Json]) -> str:
    """Why /validate must be asked about every pod, in words; empty where it need not be.

    ``configurations``: every MutatingWebhookConfiguration that there is; ``own``: the name of ours;
    ``check``: the webhook `CHECK` as it is registered; ``policies``: every MutatingAdmissionPolicy.
    """
    in_order = [
        (configuration["metadata"]["name"], webhook)
        for configuration in sorted(configurations, key=lambda each: str(each["metadata"]["name"]))
        for webhook in configuration.get("webhooks") or ()
        if _may_change_new_pods(webhook.get("rules"))
    ]
    if check is None:
        return f"there is no webhook {CHECK}"
    if not in_order:
        return f"there is no webhook {GOVERN}"
    *others, (name, last) = in_order
    if name != own or last["name"] != GOVERN:
        return f"{last['name']} of {name} is called after {GOVERN}, or without it"
    for name, webhook in others:
        if webhook.get("reinvocationPolicy") == "IfNeeded":
            return f"{webhook['name']} of {name} may be called again where {GOVERN} was not called once"
    for policy in policies:
        rules = (policy["spec"].get("matchConstraints") or {}).get("resourceRules")
        if policy["spec"].get("reinvocationPolicy") == "IfNeeded" and _may_change_new_pods(rules):
            name = policy["metadata"]["name"]
            return f"the policy {name} may act again where {GOVERN} was not called once"
    differing = ", ".join(_differing(last, check))
    return f"{GOVERN} and {CHECK} are not asked alike: {differing} differ" if differing else ""


def _may_change_new_pods(rules: Iterable[Json] | None) -> bool:
    """By the rules alone: what selectors leave out today they may take in tomorrow."""
    return any(
        not {"CREATE", "*"}.isdisjoint(rule.get("operations") or ())
        and not {"", "*"}.isdisjoint(rule.get("apiGroups") or ())
        and not _NEW_PODS.isdisjoint(rule.get("resources") or ())
        for rule in rules or ()
    )


def _differing(govern: Json, check: Json) -> Iterator[str]:
    """What keeps /mutate from being asked about all that /validate is asked about."""
    if govern.get("failurePolicy") != "Fail":
        yield "failurePolicy"
    if govern.get("reinvocationPolicy") != "IfNeeded":
        yield "reinvocationPolicy"
    if _server(govern) != (_server(check)[0], "/mutate"):
        yield "clientConfig"
    if govern.get("rules") != check.get("rules"):
        yield "rules"
    yield from (field for field in _SAME if govern.get(field) != check.get(field))
    if _conditions(govern) != [each for each in _conditions(check) if each[0] != NAME]:
        yield "matchConditions"


def _server(webhook: Json) -> tuple[object, str]:
    """Who is asked, and at which path."""
    how = webhook["clientConfig"]
    if "service" in how:
        service = how["service"]
        return {key: value for key, value in service.items() if key != "path"}, service.get("path", "")
    url, slash, path = str(how.get("url", "")).rpartition("/")
    return url, slash + path


def _conditions(webhook: Json) -> list[tuple[str, str]]:
    given = webhook.get("matchConditions") or ()
    return sorted((each["name"], each["expression"].strip()) for each in given)


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _MOMENT).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
