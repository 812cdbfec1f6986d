"""Which decisions are sent where, and what is sent: also the payloads of chats' incoming webhooks.

A message to a chat is plain text: nothing in it is markup, a link or a mention, not even in names and
reasons. Forms and limits are those of their makers' pages: Slack's "Formatting text for app surfaces" and
"Incoming webhooks"; Microsoft's "Create incoming webhooks with Workflows" and the schema of Adaptive Cards
1.4; Mattermost's "Incoming webhooks", which read Slack's markup too.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timekeeper.accounts.budget_history import History, is_group
from timekeeper.accounts.decisions.sentences import sentence, without_other
from timekeeper.core.decisions import EVICTED, PREEMPTED, RECLAIMED, STANDING, WARNED, Decision
from timekeeper.core.object_names import timestamp

ALERTMANAGER = "alertmanager"
_MAX_TOGETHER = 100
_ALWAYS = (EVICTED, PREEMPTED, RECLAIMED)
# what a decision on a standing, or on an idle pod, is called as an alert, and whether it ends that alert
_ALERTS = {
    "OverBudget": ("BursarOverBudget", False),
    "BackInBudget": ("BursarOverBudget", True),
    "BudgetNearlyUsed": ("BursarBudgetNearlyUsed", False),
    "ForecastExhaustion": ("BursarForecastExhaustion", False),
    "PodIdle": ("BursarPodIdle", False),
}

SLACK, TEAMS, MATTERMOST = "slack", "teams", "mattermost"
MAX_LINES = 10  # in one message; with LINE_LENGTH, also escaped, below each chat's limit
LINE_LENGTH = 350


@dataclass(frozen=True, slots=True)
class Destination:
    """Where notifications go, and in which form, one of ``NOTIFY_FORMATS``."""

    url: str
    form: str

    @property
    def key(self) -> str:
        """Its name in the database: one address may get both forms."""
        return f"{self.url}#{self.form}"

    @property
    def max_together(self) -> int:
        """How many notifications one post may have."""
        return MAX_LINES if self.form in FORMS else _MAX_TOGETHER


@dataclass(frozen=True, slots=True)
class Notification:
    """A decision that is sent. ``number``: that of its record."""

    number: int
    decision: Decision


def is_sent(decision: Decision) -> bool:
    """Whether people are notified of it: a standing that changed or is about to, an eviction, and a metered
    pod that is idle."""
    return decision.kind in _ALWAYS or (decision.kind in (STANDING, WARNED) and decision.reason in _ALERTS)


def destinations(history: History, subject: str, at_ms: int) -> tuple[Destination, ...]:
    """Where notifications about a namespace or group go: as its entry says, and its group's."""
    keys = [subject]
    if not is_group(subject) and (group := history.group(subject, at_ms)):
        keys.append(f"_group.{group}")
    budgets = [history.budget(key, at_ms).budget for key in keys]
    found = [Destination(each.notify, each.notify_format) for each in budgets if each.notify]
    return tuple(dict.fromkeys(found))


def all_destinations(history: History, at_ms: int) -> frozenset[Destination]:
    """Every destination of the budgets in force."""
    keys = history.current_keys()
    return frozenset(each for key in keys for each in destinations(history, key, at_ms))


def payload(form: str, sent: Sequence[Notification], sent_ms: int, cluster: str) -> dict[str, Any]:
    """The body of a post. Names of pods of other namespaces are left out. ``cluster``: its name; "": none."""
    if form in FORMS:
        of_it = f"{cluster}: " if cluster else ""
        return message(form, [of_it + _line(each.decision) for each in sent])
    if form == ALERTMANAGER:
        return _alerts(sent, cluster)
    return {**_ours(sent, sent_ms), **({"clusterName": cluster} if cluster else {})}


def _line(decision: Decision) -> str:
    pod = f"Pod {decision.namespace}/{decision.name}: " if decision.name else ""
    return pod + _sentence(decision)


def _ours(sent: Iterable[Notification], sent_ms: int) -> dict[str, Any]:
    return {
        "version": 1,
        "sent": sent_ms,
        "notifications": [
            {
                "id": each.number,
                "kind": each.decision.kind,
                "reason": each.decision.reason,
                "namespace": each.decision.namespace,
                "owner": each.decision.owner,
                "pod": each.decision.name,
                "uid": each.decision.uid,
                "at": each.decision.at_ms,
                "figures": without_other(each.decision.figures),
                "sentence": _sentence(each.decision),
            }
            for each in sent
        ],
    }


def _alerts(sent: Iterable[Notification], cluster: str) -> dict[str, Any]:
    """Alertmanager's payload for webhook receivers, version 4."""
    alerts = [_alert(each, cluster) for each in sent]
    firing = any(each["status"] == "firing" for each in alerts)
    return {
        "version": "4",
        "groupKey": "bursar",
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": "bursar",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": alerts,
    }


def _alert(sent: Notification, cluster: str) -> dict[str, Any]:
    decision = sent.decision
    name, ends = _ALERTS.get(decision.reason, ("BursarEviction", False))
    labels = {"alertname": name, "namespace": decision.namespace, "severity": "warning"}
    if decision.name:
        labels |= {"pod": decision.name, "reason": decision.reason}
    if cluster:
        labels["cluster"] = cluster
    at = timestamp(decision.at_ms)
    return {
        "status": "resolved" if ends else "firing",
        "labels": labels,
        "annotations": {"summary": _sentence(decision)},
        "startsAt": at,
        "endsAt": at if ends else "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": f"{cluster and cluster + '/'}{name}/{decision.namespace}/{decision.uid}",
    }


def _sentence(decision: Decision) -> str:
    return sentence(replace(decision, figures=without_other(decision.figures)))


def message(form: str, lines: Sequence[str]) -> dict[str, Any]:
    """The body of a post to the webhook of a chat. Each line is text of any origin."""
    return FORMS[form]([_plain(line) for line in lines])


def _plain(line: str) -> str:
    """One printable line without the sign of mentions."""
    text = " ".join("".join(each if each.isprintable() else " " for each in line).split())
    text = text.replace("@", "\N{FULLWIDTH COMMERCIAL AT}")
    return text if len(text) <= LINE_LENGTH else f"{text[: LINE_LENGTH - 1]}…"


def _slack(lines: Sequence[str]) -> dict[str, Any]:
    return {"text": "\n".join(map(_entities, lines)), "mrkdwn": False}


def _teams(lines: Sequence[str]) -> dict[str, Any]:
    """A TextRun has no Markdown, unlike a TextBlock."""
    body = [{"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line}]} for line in lines]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}


def _mattermost(lines: Sequence[str]) -> dict[str, Any]:
    escaped = (re.sub(r"([\\`*_~\[\]()#|])", r"\\\1", _entities(line)) for line in lines)
    return {"text": "\n".join(escaped)}


def _entities(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


FORMS: Mapping[str, Callable[[Sequence[str]], dict[str, Any]]] = {
    SLACK: _slack,
    TEAMS: _teams,
    MATTERMOST: _mattermost,
}
