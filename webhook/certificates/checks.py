"""Whether the API server need ask /validate about a new pod that /mutate has governed.

Both judge by the same rules; /validate is there for what other webhooks do to a pod after /mutate. The API
server calls mutating webhooks in the order of their configurations' names, and once more each that asks for
it and after whose call the pod was changed; then it asks the validating ones. So where ours is the last of
all that may change a new pod, it has been shown each governed pod as it will be stored, and a match condition
spares the call to /validate. The condition is a lease: it holds for pods that are created before a moment
that the certificate process keeps ahead of the clock for as long as it sees that nobody comes after us. Pure.

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

_SAME = ("namespaceSelector", "objectSelector", "matchPolicy")


def condition(until: datetime) -> Json:
    """The match condition by which new pods that carry our label, and are created before this moment, are not
    checked again. Nobody but /mutate sets the label: it is asked about every pod that comes with it."""
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


def obstacle(configurations: Iterable[Json], own: str, check: Json | None) -> str:
    """Why /validate must be asked about every pod, in words; empty where it need not be.

    ``configurations``: every MutatingWebhookConfiguration that there is; ``own``: the name of ours;
    ``check``: the webhook `CHECK` as it is registered.
    """
    last: tuple[str, Json] | None = None
    for configuration in sorted(configurations, key=lambda each: str(each["metadata"]["name"])):
        for webhook in configuration.get("webhooks") or ():
            if _may_change_new_pods(webhook):
                last = configuration["metadata"]["name"], webhook
    if check is None:
        return f"there is no webhook {CHECK}"
    if last is None or last[0] != own or last[1]["name"] != GOVERN:
        after = f"{last[1]['name']} of {last[0]} comes after it" if last else "no webhook changes pods"
        return f"{GOVERN} of {own} is not the last that may change a new pod: {after}"
    differing = ", ".join(_differing(last[1], check))
    return f"{GOVERN} and {CHECK} are not asked alike: {differing} differ" if differing else ""


def _may_change_new_pods(webhook: Json) -> bool:
    """By its rules alone: what its selectors leave out today they may take in tomorrow."""
    return any(
        _holds(rule, "operations", "CREATE")
        and _holds(rule, "apiGroups", "")
        and (_holds(rule, "resources", "pods") or "*/*" in rule["resources"])
        for rule in webhook.get("rules") or ()
    )


def _holds(rule: Json, field: str, value: str) -> bool:
    given = rule.get(field) or ()
    return value in given or "*" in given


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
    if _conditions(govern) != _conditions(check):
        yield "matchConditions"


def _server(webhook: Json) -> tuple[object, str]:
    """Who is asked, and at which path."""
    how = webhook["clientConfig"]
    if "service" in how:
        service = how["service"]
        return {key: value for key, value in service.items() if key != "path"}, service.get("path", "")
    url, slash, path = str(how.get("url", "")).rpartition("/")
    return url, slash + path


def _conditions(webhook: Json) -> dict[str, str]:
    given = webhook.get("matchConditions") or ()
    return {each["name"]: each["expression"].strip() for each in given if each["name"] != NAME}


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _MOMENT).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
