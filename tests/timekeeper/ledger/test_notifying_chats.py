"""Notifications to chats over HTTP: the forms that they take, and text that calls nobody, of any origin."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timekeeper.chat_servers import Chats
from tests.timekeeper.ledger.test_decisions import post as report
from tests.timekeeper.ledger.test_decisions import posted
from tests.timekeeper.ledger.test_notifying import World
from tests.timekeeper.worlds import Town, budgets, node
from timekeeper.accounts.decisions.notifications import message
from timekeeper.core.budgets import reader
from timekeeper.runtime.recording.signed_post import post

FORMS = ("slack", "teams", "mattermost")
HOSTILE = (
    "<!here> <!all> <@U1> @channel <at>all</at> *b* _i_ ~s~ `c` [a](http://b.example) <http://b|a> & &lt; #h"
)
SHOWN = HOSTILE.replace("@", "\N{FULLWIDTH COMMERCIAL AT}")


class Sending(World):
    """Posts are sent."""

    def answer(self, url: str, body: bytes, key: bytes) -> int:
        self.posts.append((url, {"notifications": []}))
        return post(url, body, key)


@pytest.fixture
def chats() -> Iterator[tuple[Chats, str]]:
    made = Chats()
    with made.serve() as served:
        yield made, served.url


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_a_chat_takes_what_it_is_sent_and_shows_any_text_as_it_is_and_calls_nobody(
    town: Town, tmp_path: Path, chats: tuple[Chats, str], form: str
) -> None:
    server, url = chats
    entry = f"gpuHours: 1\nnotify: {url}/{form}\nnotifyFormat: {form}"
    entries = budgets(team_a=entry)
    town.begin(("nodes", node()), ("configmaps", entries))
    home = Sending(town, tmp_path / "key", entries)
    evicted = [
        posted(kind="evicted", reason="Overuse", name=f"p-{number}", figures={"message": HOSTILE})
        for number in range(23)
    ]
    long = posted(kind="evicted", reason="Overuse", name="long", figures={"message": "&_" * 400})
    back = posted(kind="standing", reason="BackInBudget", owner="", generate_name="", figures={})
    told = [*evicted, *[{**long, "name": f"long-{number}"} for number in range(10)], back]
    assert report(town, *told) == 200

    posts = [len(home.step(seconds=400)) for _ in range(5)]

    assert (server.refused, server.called) == ([], [])
    lines = server.read[f"/{form}"]
    assert lines[:23] == [f"Pod team-a/p-{number}: {SHOWN}" for number in range(23)]
    assert {len(line) for line in lines[23:33]} == {350}
    assert all(line.endswith("&_…") or line.endswith("&…") for line in lines[23:33])
    assert lines[33:] == ["Standing: BackInBudget."]
    assert posts == [1, 1, 1, 1, 0]


def test_a_text_of_several_lines_is_one_line_of_a_message() -> None:
    assert message("slack", ["a\n\u202e b", "c"])["text"] == "a b\nc"


def test_another_form_is_an_error_that_names_the_field_and_the_forms() -> None:
    read = reader.read(
        {"bursar-budgets": {"team-a": "gpuHours: 1\nnotify: https://a/\nnotifyFormat: discord"}}
    )

    (error,) = read.errors
    assert "notifyFormat" in str(error)
    assert all(form in str(error) for form in FORMS)
