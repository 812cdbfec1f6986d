"""README's first screen, and a page for each kind of reader: short, said in one place, and with the
answers to the tasks of who is new (`tests/timekeeper/tasks.md`)."""

import json
import re
from itertools import pairwise

import pytest

from tests.packaging.checkout import ROOT

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
FIRST_SCREEN = "\n".join(README.splitlines()[:40]).partition("\n## A pod, before and after")[0]
DOORS = ("users", "leads", "accountants")
TASKS = (ROOT / "tests" / "timekeeper" / "tasks.md").read_text().partition("## A newcomer's hour")[2]
# Words of a task's question -> where the answer stands, and what it says.
ANSWERS = {
    "In which order": (
        "README.md",
        ["1. [meter]", "2. observe", "3. enforce, first for one namespace", "4. fractions, node by node",
         "5. by [entry]"],
    ),
    "Which process alone": (
        "README.md",
        ["A right charge needs the timekeeper alone", "Only the extender knows pods that came and went"],
    ),
    "What do I lose": (
        "README.md",
        ["no fractions (unless you write the inventory), health of cards, strangers, or measured use",
         "no idle pods (or by [Prometheus]", "and no overuse", "deleted by force is charged [by a rule]"],
    ),
    "My pod was evicted": (
        "docs/users.md",
        ["was evicted", "`explain` says which", "an administrator's `kubectl bursar grant"],
    ),
}  # fmt: skip


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("asked", re.findall(r"^\| (.*?) \|", TASKS, re.MULTILINE)[1:])
def test_the_answer_to_each_task_of_who_is_new_stands_where_one_looks_first(asked: str) -> None:
    ((page, answers),) = [answer for begins, answer in ANSWERS.items() if asked.startswith(begins)]
    text = words(FIRST_SCREEN if page == "README.md" else (ROOT / page).read_text())
    places = [text.find(answer) for answer in answers]

    assert -1 not in places, [answer for answer, place in zip(answers, places, strict=True) if place < 0]
    assert places == sorted(places)


def test_the_steps_are_those_of_the_chart_and_of_the_page_that_installs() -> None:
    schema = json.loads((ROOT / "deploy" / "chart" / "values.schema.json").read_text())
    steps = re.findall(r"^\| (\d)\. \[?(\w+)", FIRST_SCREEN, re.MULTILINE)
    install = (DOCS / "install.md").read_text()
    places = [
        install.find(text)
        for text in ("## Meter", "**Observe.**", "**Enforce for one namespace**", "## Fractions")
    ]

    assert [number for number, _ in steps] == ["1", "2", "3", "4", "5"]
    assert {name for _, name in steps[:3]} == {*schema["properties"]["mode"]["enum"]}
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("door", DOORS)
def test_a_page_for_a_kind_of_reader_is_short_and_ends_with_the_next_questions(door: str) -> None:
    text = (DOCS / f"{door}.md").read_text()
    *_, last = re.split(r"^## ", text, flags=re.MULTILINE)
    heading, *questions = [line for line in last.splitlines() if line]

    assert len(text.split()) <= 300
    assert f"(docs/{door}.md)" in FIRST_SCREEN
    assert heading == "Your next question"
    assert [line for line in questions if not re.match(r"- [A-Z].*\? .*\]\([\w-]+\.md", line)] == []


@pytest.mark.parametrize("door", DOORS)
def test_what_it_says_stands_nowhere_else(door: str) -> None:
    """But for single commands of the list in cli.md, which a test types."""
    others = [ROOT / "README.md", *DOCS.glob("*.md")]
    texts = {page.name: words(page.read_text()) for page in others if page.stem != door}
    lines = [
        line for line in (DOCS / f"{door}.md").read_text().splitlines() if not line.startswith("kubectl ")
    ]
    runs = [" ".join(run) for run in runs_of(words("\n".join(lines)).split(), 9)]

    assert [(name, run) for name, text in texts.items() for run in runs if run in text] == []


def runs_of(parts: list[str], length: int) -> list[list[str]]:
    return [parts[at : at + length] for at in range(len(parts) - length + 1)]


def test_the_pages_lead_to_each_other() -> None:
    for door, after in pairwise(DOORS):
        assert f"({after}.md" in (DOCS / f"{door}.md").read_text(), door
