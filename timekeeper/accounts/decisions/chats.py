"""Notifications as messages for people: the payloads of chats' incoming webhooks.

A message is plain text: nothing in it is markup, a link or a mention, not even in names and reasons. Forms
and limits are those of their makers' pages: Slack's "Formatting text for app surfaces" and "Incoming
webhooks"; Microsoft's "Create incoming webhooks with Workflows" and the schema of Adaptive Cards 1.4;
Mattermost's "Incoming webhooks", which read Slack's markup too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SLACK, TEAMS, MATTERMOST = "slack", "teams", "mattermost"
MAX_LINES = 10  # in one message; with LINE_LENGTH, also escaped, below each chat's limit
LINE_LENGTH = 350


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
