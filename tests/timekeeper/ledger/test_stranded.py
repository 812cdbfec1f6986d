"""What each namespace stranded over time: the exact sum of what the map showed between posts, by the hour."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import profile
from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0

BOTH_DATABASES = "reports are SQL"
Json = dict[str, Any]

SECOND = 1_000
MOST_MS = 60 * SECOND  # between two posts of a map that is not old
FORGOTTEN_MS = 15 * MINUTE  # a node that is not posted again


@dataclass
class ByHand:
    """The same sums by hand, from what was posted: (namespace, hour) -> milli-GPU x ms, hour -> ms."""

    nodes: dict[str, tuple[int, Json]] = field(default_factory=dict)
    at_ms: int = 0
    amounts: Counter[tuple[str, int]] = field(default_factory=Counter)
    known: Counter[int] = field(default_factory=Counter)

    def posted(self, at_ms: int, changed: dict[str, Json], gone: list[str]) -> None:
        begin_ms, self.at_ms = self.at_ms, max(at_ms, self.at_ms)
        if at_ms - begin_ms <= MOST_MS:
            while begin_ms < at_ms:
                hour_ms = begin_ms - begin_ms % HOUR
                length_ms = min(at_ms, hour_ms + HOUR) - begin_ms
                self.known[hour_ms] += length_ms
                for _, stranded in self.nodes.values():
                    for namespace, milli in stranded.items():
                        self.amounts[namespace, hour_ms] += milli * length_ms
                begin_ms += length_ms
        self.nodes |= {name: (at_ms, stranded) for name, stranded in changed.items()}
        old = [name for name, (posted_ms, _) in self.nodes.items() if posted_ms < at_ms - FORGOTTEN_MS]
        for name in (*gone, *old):
            self.nodes.pop(name, None)


class Posts:
    """Posts of a leader to an API, and the sums by hand."""

    def __init__(self, url: str) -> None:
        self._url, self.books, self.by_hand = url, Books(url), ByHand()

    def restart(self) -> None:
        """The timekeeper's process is another one."""
        clock = self.books.clock
        self.books.close()
        self.books = Books(self._url)
        self.books.clock.turn(clock() - self.books.clock())

    def post(
        self, changed: dict[str, Json] | None = None, gone: list[str] | None = None, term: str = "a-1"
    ) -> int:
        """Its status; the sums by hand have it only if it was taken."""
        nodes = [
            {"name": name, "closed": "", "cards": [], "stranded": stranded}
            for name, stranded in (changed or {}).items()
        ]
        body = {"version": 1, "nodes": nodes, "gone": gone or [], "waiting": None, "term": term}
        status = int(self.books.post("/v1/cluster", body).status_code)
        if status == 200:
            self.by_hand.posted(self.books.clock(), changed or {}, gone or [])
        return status

    def after(self, wait_ms: int, *posted: Any, **more: Any) -> int:
        """Post after a time."""
        self.books.clock.turn(wait_ms)
        return self.post(*posted, **more)

    def rows(self, query: str) -> list[Json]:
        """The rows of a report with what was stranded."""
        return self.books.rows(f"stranded=true&{query}")

    def stranded(self, query: str) -> dict[str, int]:
        """By namespace."""
        return {each["namespace"]: each["stranded"] for each in self.rows(query)}


@pytest.fixture
def posts(database_url: str) -> Iterator[Posts]:
    made = Posts(database_url)
    yield made
    made.books.close()


BEGIN = T0 + DAY  # when the clock of `Books` begins: a full hour


def test_an_hour_has_the_exact_sum_of_what_was_posted_without_gaps(posts: Posts) -> None:
    """hog strands 1,500 for 100 s and 500 for 30 s; 60,001 ms without a post are unknown; then 2,000 for 10 s
    until a node is gone. web strands 7 ms of 3."""
    posts.post({"n1": {"hog": 1_500}, "n2": {}})
    for _ in range(2):
        posts.after(50 * SECOND)
    posts.post({"n1": {"hog": 500}})
    posts.after(30 * SECOND)
    posts.after(60_001, {"n1": {"hog": 2_000}, "n2": {"web": 3}})
    posts.after(7, {"n2": {}})
    posts.after(10 * SECOND - 7, gone=["n1"])
    posts.after(20 * SECOND)

    by_hand = {"hog": 1_500 * 100_000 + 500 * 30_000 + 2_000 * 10_000, "web": 21}
    assert posts.stranded(f"from={BEGIN}") == by_hand
    rows = posts.rows(f"from={BEGIN}&sort=-stranded&limit=1")
    assert rows == [
        {
            **{"namespace": "hog", "posted": 0, "pending": 0, "amount": 0, "gpuHours": "0"},
            **{"stranded": by_hand["hog"], "strandedKnown": 100_000 + 30_000 + 10_000 + 20_000},
        }
    ]


def test_an_old_leaders_post_changes_nothing_and_a_tie_counts_once(posts: Posts) -> None:
    posts.post({"n1": {"hog": 1_000}}, term="a-1")
    posts.after(10 * SECOND, {"n1": {"hog": 400}}, term="b-1")
    posts.post({"n1": {"hog": 400}}, term="b-1")
    assert posts.after(10 * SECOND, {"n1": {"hog": 9_000}}, term="a-1") == 409
    posts.restart()
    assert posts.post({}, ["n1"], term="a-1") == 409
    posts.after(10 * SECOND, term="b-1")
    posts.after(10 * SECOND, {"n1": {"hog": 70}}, term="a-2")  # it leads again
    assert posts.after(1, term="b-1") == 409
    posts.after(10 * SECOND - 1, term="a-2")
    posts.books.clock.turn(-5 * SECOND)
    posts.post(term="a-2")  # by a clock that was set back
    posts.after(5 * SECOND, term="a-2")

    assert posts.stranded(f"from={BEGIN}") == {
        "hog": 1_000 * 10_000 + 400 * 30_000 + 70 * 10_000,
    }


def test_an_interval_is_cut_at_the_hour(posts: Posts) -> None:
    posts.books.clock.turn(HOUR - 10 * SECOND)
    posts.post({"n1": {"hog": 300}})
    posts.after(30 * SECOND)

    rows = posts.rows(f"from={BEGIN}&by=hour")
    assert [(each["from"], each["stranded"], each["strandedKnown"]) for each in rows] == [
        (BEGIN, 3_000_000, 10_000),
        (BEGIN + HOUR, 6_000_000, 20_000),
    ]


def test_a_restart_and_any_history_of_posts_leave_the_sums_as_by_hand(posts: Posts) -> None:
    seed = profile.seed()
    chance = random.Random(seed)
    names = [f"t{number}" for number in range(6)]
    for number in range(150):
        changed = {
            f"n{chance.randrange(4)}": {
                name: chance.randint(1, 4_000) for name in chance.sample(names, chance.randrange(4))
            }
            for _ in range(chance.randrange(3))
        }
        gone = [f"n{4 + chance.randrange(2)}", *(["n3"] if "n3" not in changed and number % 9 == 0 else [])]
        posts.after(chance.choice((0, 1, 1_999, 30_000, 59_999, 60_000, 60_001, 700_000)), changed, gone)
        if number % 40 == 39:
            posts.restart()

    found = posts.rows(f"from={BEGIN}&by=hour")
    told = {(each["namespace"], each["from"]): each["stranded"] for each in found}
    known = {each["from"]: each["strandedKnown"] for each in found}
    by_hand = posts.by_hand
    assert told == {key: amount for key, amount in by_hand.amounts.items() if amount}, f"seed {seed}"
    assert known == {hour_ms: by_hand.known[hour_ms] for hour_ms in known}, f"seed {seed}"
    assert len(known) > 2, f"seed {seed}"


def test_reports_add_it_to_charges_by_step_group_and_page(posts: Posts) -> None:
    """lab: hog from the second hour on; idle strands but holds no card, quiet is charged but strands none."""
    books = posts.books
    books.entries(("hog", "gpuHours: 9\ngroup: lab", BEGIN + HOUR))
    held = days(BEGIN, BEGIN + 2 * HOUR)
    for namespace in ("hog", "quiet"):
        books.write(Run(f"u-{namespace}", namespace, started_ms=BEGIN, posted=held))
    there = {"n1": {"hog": 1_000, "idle": 500}}
    posts.post(there)
    for _ in range(180):
        posts.after(MINUTE, there)  # a node that is not posted again is forgotten

    charged, hour = 2 * HOUR * 1_000, 1_000 * HOUR

    def shown(query: str, *columns: str) -> list[tuple[Any, ...]]:
        return [tuple(each[name] for name in columns) for each in posts.rows(f"from={BEGIN}&{query}")]

    figures = ("amount", "stranded", "strandedKnown")
    whole = [
        ("hog", charged, 3 * hour, 3 * HOUR),
        ("idle", 0, 3 * hour // 2, 3 * HOUR),
        ("quiet", charged, 0, 3 * HOUR),
    ]
    assert shown("", "namespace", *figures) == whole
    assert shown("use=true", "namespace", *figures) == whole
    assert shown("sort=-stranded&limit=2", "namespace", *figures) == whole[:2]
    assert shown(f"to={BEGIN + DAY}&by=day", "namespace", *figures) == whole
    assert shown("namespace=idle", *figures) == [whole[1][1:]]
    assert shown("group=group", "group", *figures) == [
        ("", charged // 2 + charged, hour + 3 * hour // 2, 3 * HOUR),
        ("lab", charged // 2, 2 * hour, 3 * HOUR),
    ]
    assert shown("namespace=_group.lab", "namespace", *figures) == [("hog", charged // 2, 2 * hour, 3 * HOUR)]
    by_hour = shown("namespace=hog&by=hour", "from", *figures)
    assert by_hour == [
        (BEGIN, charged // 2, hour, HOUR),
        (BEGIN + HOUR, charged // 2, hour, HOUR),
        (BEGIN + 2 * HOUR, 0, hour, HOUR),
    ]

    pages: list[str] = []
    follows: str | None = ""
    while follows is not None:
        page = books.get(f"/v1/usage?stranded=true&from={BEGIN}&by=hour&limit=2{follows}").get_json()
        pages += [f"{each['from']}/{each['namespace']}" for each in page["rows"]]
        follows = None if page["next"] is None else f"&after={page['next']}"
    assert pages == [f"{each['from']}/{each['namespace']}" for each in posts.rows(f"from={BEGIN}&by=hour")]
    assert len(pages) == 3 + 3 + 2

    csv = books.get(f"/v1/usage?stranded=true&from={BEGIN}&namespace=idle&format=csv").text.splitlines()
    assert csv[0].endswith(",cost,stranded,strandedKnown,strandedGpuHours")
    assert csv[1].endswith(f",,{3 * hour // 2},{3 * HOUR},1.5")


@pytest.mark.parametrize(
    ("query", "field", "allowed"),
    [
        ("stranded=true&group=namespace,pod", "stranded", "group must be namespace, group or both"),
        ("stranded=true&format=focus", "stranded", "FOCUS rows have columns of their own"),
        ("stranded=yes", "stranded", "one of false, true"),
        ("sort=-stranded", "sort", "-stranded needs stranded=true"),
        ("stranded=true&sort=-stranded&by=hour", "sort", "cannot be combined with by"),
    ],
)
def test_what_cannot_be_told_is_refused_with_what_can(
    books_of_nothing: Books, query: str, field: str, allowed: str
) -> None:
    answer = books_of_nothing.get(f"/v1/usage?{query}")

    assert (answer.status_code, answer.get_json()["field"]) == (400, field)
    assert allowed in answer.get_json()["detail"]


@pytest.fixture
def books_of_nothing(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    yield made
    made.close()


def test_names_of_pods_and_of_fields_are_not_confused(posts: Posts) -> None:
    """Nobody keeps a node from being posted by the name of a pod."""
    pod = {"namespace": "waiting", "name": "nodes", "uid": "gone", "share_milli": 1, "memory_mib": 1}
    card = {"uuid": "version", "index": 0, "model": "term", "memory_mib": 1, "healthy": True}
    card |= {"cordoned": False, "used_share_milli": 1, "used_memory_mib": 1, "more_pods": 0}
    node = {"name": "n", "closed": "", "cards": [card | {"pods": [pod | {"held": "bound"}]}]}
    body = {"version": 1, "nodes": [node], "gone": [], "waiting": None, "term": "a-1"}

    assert posts.books.post("/v1/cluster", body).status_code == 200
    assert posts.books.post("/v1/cluster", body | {"term": 7}).get_json()["field"] == "term"
