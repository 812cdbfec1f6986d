"""Servers that take posts as the incoming webhooks of Slack, Teams and Mattermost do, by their makers' pages
(timekeeper/accounts/decisions/notifications.py), and say what people then read and who is called.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from tests.support.http_server import JsonHandler, Served

Json = Any


class RefusedError(Exception):
    """The chat takes no such body."""


@dataclass
class Chats:
    """``read``: the lines that people see, by path; ``called``: the mentions among them."""

    read: dict[str, list[str]] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def serve(self) -> Served:
        """They listen until the end of the block."""
        chats = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                body = self.rfile.read(size)
                take, status = _CHATS[self.path]
                try:
                    if self.headers["Content-Type"] != "application/json":
                        raise RefusedError("its content is no JSON")
                    lines = take(json.loads(body), size, chats.called)
                except (RefusedError, KeyError, TypeError, ValueError) as error:
                    chats.refused.append(f"{self.path}: {error!r}")
                    self.answer(400, b"invalid_payload")
                else:
                    chats.read.setdefault(self.path, []).extend(lines)
                    self.answer(status, b"ok")

        return Served(Handler)


def _known(body: Json, *names: str) -> None:
    if unknown := body.keys() - set(names):
        raise RefusedError(f"unknown: {unknown}")


def _slack(body: Json, _size: int, called: list[str]) -> list[str]:
    """&, < and > are control characters: what stands between the last two is a link, or a mention."""
    _known(body, "text", "mrkdwn")
    text = body["text"]
    if not 0 < len(text) <= 40_000:
        raise RefusedError("no_text, or cut")
    called += re.findall(r"<[^>]*>?", text)
    if re.search(r"&(?!amp;|lt;|gt;)", text) or ">" in text:
        raise RefusedError("not escaped")
    if body.get("mrkdwn", True) and re.search(r"[*_~`]", text):
        raise RefusedError("people would see it as markup")
    return unescape(text).split("\n")


def _teams(body: Json, size: int, called: list[str]) -> list[str]:
    """28 KB at most; an Adaptive Card, whose TextRuns are no Markdown; a mention needs an entity."""
    _known(body, "type", "attachments")
    ((attachment,), kind) = body["attachments"], body["type"]
    card = attachment["content"]
    _known(attachment, "contentType", "contentUrl", "content")
    _known(card, "$schema", "type", "version", "body")
    shape = kind, attachment["contentType"], card["type"], card["version"] in ("1.2", "1.3", "1.4", "1.5")
    if shape != ("message", "application/vnd.microsoft.card.adaptive", "AdaptiveCard", True) or size > 28_000:
        raise RefusedError(f"no card: {shape}, {size} bytes")
    called += [str(card["msteams"])] if "msteams" in card else []
    lines = []
    for block in card["body"]:
        (run,) = block["inlines"]
        if (block["type"], run["type"], run.keys() - {"type", "text"}) != ("RichTextBlock", "TextRun", set()):
            raise RefusedError(f"another block: {block}")
        lines.append(run["text"])
    return lines


def _mattermost(body: Json, _size: int, called: list[str]) -> list[str]:
    """Slack's calls are read first, then every word behind an @ calls somebody; what is left is Markdown."""
    _known(body, "text")
    text = re.sub(r"<!(\w+)>|<@(\w+)>", r"@\1\2", body["text"])
    if not 0 < len(text) <= 16_383:
        raise RefusedError("too long")
    called += re.findall(r"@\w+|<[^>]+\|[^>]+>", text)
    plain = re.sub(r"\\[\\`*_~\[\]()#|]", "", text)
    if marked := re.findall(r"[`*_~\[\]()#|<>]|&(?!amp;|lt;|gt;)", plain):
        raise RefusedError(f"people would see it as markup: {marked}")
    return unescape(re.sub(r"\\(.)", r"\1", text)).split("\n")


_CHATS: dict[str, tuple[Callable[[Json, int, list[str]], list[str]], int]] = {
    "/slack": (_slack, 200),
    "/teams": (_teams, 202),
    "/mattermost": (_mattermost, 200),
}
