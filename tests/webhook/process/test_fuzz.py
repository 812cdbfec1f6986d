"""Whatever is sent to the webhook, it answers with a reason, serves on, and loses no worker.

Each case follows from a seed and its number alone, and both are told where one fails:
``Case.made(seed, number)`` makes it again.
"""

import random
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from deploy.local.limits import LONGEST_S
from tests.support import profile
from tests.support.hostile_json import WRONG, Place, places, spoilt
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.webhook.good_reviews import BASES
from tests.webhook.servers import Webhook
from tests.webhook.worlds import admitted, half
from tests.worlds import Json

CONNECTIONS = 4
SEED = 20_261_120
LINE = re.compile(r"time=\S+ level=\w+ role=webhook event=")

PATHS = ("/mutate", "/validate", "/templates", "/budgets")


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent: a whole request, and whether the connection can be used again after it."""

    label: str
    sent: bytes
    ends: bool = False
    unanswered: bool = False  # so little is sent that nothing can be said

    @classmethod
    def made(cls, seed: int, number: int) -> "Case":
        """The case of this number."""
        chance = random.Random(f"{seed}/{number}")
        make = chance.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
        return make(chance)


def posted(label: str, path: str, body: bytes, head: str = "Content-Type: application/json\r\n") -> Case:
    """An ordinary post."""
    start = f"POST {path}?timeout=5s HTTP/1.1\r\nHost: webhook\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    return Case(label, start.encode() + body)


def _route(chance: random.Random) -> tuple[str, Json]:
    path = chance.choices(PATHS, (4, 4, 1, 1))[0]
    return path, chance.choice(BASES[path])


def something_else_somewhere(chance: random.Random) -> Case:
    """A good review with one or two values replaced."""
    path, base = _route(chance)
    where, text = chance.choice(list(places(base))), chance.choice(WRONG)
    return posted(f"{path} {where} {text[:40]}", path, spoilt(base, where, text))


def cut_and_mixed(chance: random.Random) -> Case:
    """A good review whose bytes are changed, cut, doubled or moved."""
    path, base = _route(chance)
    body = bytearray(orjson.dumps(base))
    for _ in range(chance.randint(1, 6)):
        at, to = sorted((chance.randrange(len(body) + 1), chance.randrange(len(body) + 1)))
        part = chance.choice(
            [bytes([chance.randrange(256)]), b"", body[at:to], b'"', b"\xff", b"\xed\xa0\x80", b"}", b"1e9"]
        )
        body[at : chance.choice([at, at + 1, to])] = part
    return posted(f"{path} mixed bytes", path, bytes(body))


def any_bytes(chance: random.Random) -> Case:
    """Bytes of no meaning."""
    return posted(
        "any bytes", chance.choice(PATHS), chance.randbytes(chance.choice([0, 1, 10, 1_000, 20_000]))
    )


def any_json(chance: random.Random) -> Case:
    """JSON of no meaning, as a body, a request or an object."""
    path, base = _route(chance)
    where: Place = chance.choice([(), ("request",), ("request", "object"), ("request", "object", "spec")])
    if where[1:] and not isinstance(base["request"]["object"], dict):
        where = ("request",)
    return posted(f"{path} any JSON at {where}", path, spoilt(base, where, _any_json(chance, 5)))


def _any_json(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(WRONG[:30])
    parts = [_any_json(chance, depth - 1) for _ in range(chance.randint(0, 4))]
    if chance.random() < 0.4:
        return "[" + ",".join(parts) + "]"
    return "{" + ",".join(f'"{chance.choice(WORDS)}":{part}' for part in parts) + "}"


WORDS = (
    *("name", "containers", "initContainers", "spec", "metadata", "annotations", "labels", "env", "value"),
    *("resources", "limits", "requests", "bursar.dev/gpu-percent", "nvidia.com/gpu", "volumes", "template"),
)


def doubled_members(chance: random.Random) -> Case:
    """An object that says two things under one name; the last holds, as for the API server."""
    path, base = _route(chance)
    text = orjson.dumps(base)
    members = [match.end() for match in re.finditer(rb"\{", text)]
    at = chance.choice(members)
    word = chance.choice([*WORDS, "uid", "request", "object", "operation"])
    return posted(
        f"{path} doubled {word}",
        path,
        text[:at] + f'"{word}":{chance.choice(WRONG)},'.encode(errors="surrogatepass") + text[at:],
    )


def deep(chance: random.Random) -> Case:
    """Nested as deep as the body allows."""
    path, base = _route(chance)
    depth = chance.choice([500, 1_023, 1_024, 1_025, 5_000, 100_000])
    opened, closed = chance.choice([("[", "]"), ('{"a":', "}")])
    text = opened * depth + "1" + closed * depth
    where: Place = chance.choice([(), ("request",), ("request", "object"), ("request", "oldObject")])
    return posted(f"{path} {depth} deep", path, spoilt(base, where, text))


def odd_head(chance: random.Random) -> Case:
    """A good review under an odd head."""
    path, base = _route(chance)
    head = chance.choice(
        [
            *(
                "",
                "Content-Type: text/plain\r\n",
                "Content-Type: \r\n",
                "Content-Type: a/b; charset=x\r\n",
            ),
            *("Content-Encoding: gzip\r\n", "X: " + "y" * 3_000 + "\r\n", "Accept: */*\r\n" * 50),
            *("Authorization: Bearer x\r\n", "X-Forwarded-For: ::1\r\nX-Forwarded-Proto: http\r\n"),
        ]
    )
    return posted(f"{path} under {head[:30]!r}", path, orjson.dumps(base), head)


def odd_frame(chance: random.Random) -> Case:
    """What is no well-framed request; the connection ends with it."""
    body = orjson.dumps(BASES["/mutate"][0])
    length = len(body)
    heads = {
        "chunked": "Transfer-Encoding: chunked\r\n",
        "chunked, with a length": f"Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n",
        "two lengths": f"Content-Length: {length}\r\nContent-Length: 1\r\n",
        "a negative length": "Content-Length: -1\r\n",
        "no number": "Content-Length: many\r\n",
        "a length in hexadecimals": "Content-Length: 0x10\r\n",
        "an endless length": f"Content-Length: {'9' * 30}\r\n",
        "too long": f"Content-Length: {8 * 1024 * 1024 + 1}\r\n",
        "a folded line": f"X: a\r\n b\r\nContent-Length: {length}\r\n",
        "a name with a blank": f"X Y: a\r\nContent-Length: {length}\r\n",
        "a control character": f"X: \x01\r\nContent-Length: {length}\r\n",
        "too short": "Content-Length: 3\r\n",
        "no length": "",
    }
    label = chance.choice(list(heads))
    method = chance.choice(["POST"] * 4 + ["PUT", "GET", "post", "P\x00ST", "CONNECT"])
    version = chance.choice(["HTTP/1.1"] * 4 + ["HTTP/1.0", "HTTP/9.9", "HTP/1.1", ""])
    start = f"{method} /mutate {version}\r\nHost: webhook\r\nConnection: close\r\n{heads[label]}\r\n"
    return Case(f"{label} {method} {version}", start.encode() + body, ends=True)


def broken_off(chance: random.Random) -> Case:
    """A request of which a part never comes."""
    whole = posted("", "/mutate", orjson.dumps(BASES["/mutate"][0])).sent
    cut = chance.randrange(1, len(whole))
    return Case(f"broken off after {cut}", whole[:cut], ends=True, unanswered=True)


KINDS: tuple[tuple[Callable[[random.Random], Case], int], ...] = (
    (something_else_somewhere, 40),
    (cut_and_mixed, 20),
    (any_json, 15),
    (doubled_members, 8),
    (any_bytes, 5),
    (deep, 3),
    (odd_head, 4),
    (odd_frame, 3),
    (broken_off, 2),
)


class Client:
    """One connection, made anew where it ended."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook, self._tls = webhook, webhook.tls.client()
        self._socket: ssl.SSLSocket | None = None
        self._rest = b""

    def tries(self, case: Case) -> int:
        """Sends a case and returns the status, 0 for none; raises AssertionError where it has no reason."""
        sock = self._connected()
        try:
            sock.sendall(case.sent)
        except OSError:
            assert case.ends, case.label  # it was refused before all of it was sent
        if case.unanswered:
            self.close()
            return 0
        status, head, body = self._answer(sock)
        if case.ends or b"\r\nConnection: close" in head:
            self.close()
        assert status == 200 or 400 <= status < 500, f"{case.label}: {status} {body!r}"
        assert body.strip(), f"{case.label}: {status} without a reason"
        if status == 200:
            well_answered(body, case.label)
        return status

    def close(self) -> None:
        """Ends the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._rest = None, b""

    def _connected(self) -> ssl.SSLSocket:
        if self._socket is None:
            raw = socket.create_connection(("127.0.0.1", self._webhook.port), timeout=LONGEST_S)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = self._tls.wrap_socket(raw, server_hostname="localhost")
        return self._socket

    def _answer(self, sock: ssl.SSLSocket) -> tuple[int, bytes, bytes]:
        received = self._rest
        while b"\r\n\r\n" not in received:
            received += self._more(sock)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        while len(body) < length:
            body += self._more(sock)
        self._rest = body[length:]
        return int(head.split()[1]), head, body[:length]

    def _more(self, sock: ssl.SSLSocket) -> bytes:
        part = sock.recv(65_536)
        assert part, "the connection ended without an answer"
        return part


def well_answered(body: bytes, label: str) -> None:
    """What every 200 holds."""
    response = orjson.loads(body)["response"]
    assert response["uid"], label
    if not response["allowed"]:
        assert response["status"]["code"] == 403, label
        assert response["status"]["message"], label


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory, tls: Tls) -> Iterator[Webhook]:
    """A webhook of two workers whose standings have been heard."""
    with (
        SimulatedTimekeeper(tls, standings(team_a=entry())) as timekeeper,
        Webhook(tmp_path_factory.mktemp("webhook"), tls, timekeeper.url) as running,
    ):
        eventually(lambda: len(running.workers()) == 2, "both workers")
        yield running


def tried(webhook: Webhook, cases: Callable[[int], Case], count: int, seed: int) -> Counter[int]:
    """Tries the cases over a few connections; the statuses. Fails with the number of the case that was
    answered badly, and where a worker was lost."""
    workers = sorted(webhook.workers())

    def share(first: int) -> Counter[int]:
        client = Client(webhook)
        seen: Counter[int] = Counter()
        for number in range(first, count, CONNECTIONS):
            case = cases(number)
            try:
                seen[client.tries(case)] += 1
            except (AssertionError, OSError) as error:
                raise AssertionError(f"seed {seed}, case {number}, {case.label}: {error!r}") from error
        client.close()
        return seen

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        seen = sum(pool.map(share, range(CONNECTIONS)), Counter[int]())
    assert sorted(webhook.workers()) == workers, f"seed {seed}: a worker was lost"
    trouble = webhook.log().partition("Traceback")[2]
    assert not trouble, f"seed {seed}: {trouble[:2000]}"
    forged = [line for line in webhook.log().splitlines() if not LINE.match(line)]
    assert forged == [], f"seed {seed}: {forged[:3]}"
    assert webhook.review("/mutate", admitted(half()))["allowed"] is True
    return seen


def test_five_thousand_spoilt_requests_are_answered_with_a_reason(webhook: Webhook) -> None:
    seen = tried(webhook, lambda number: Case.made(SEED, number), 5_000, SEED)

    came_to_everything(seen, 5_000)


def came_to_everything(seen: Counter[int], count: int) -> None:
    """Fails where so many cases were not answered in all the ways there are: then they would not be random
    enough."""
    assert sum(seen.values()) == count
    assert min(seen[200], seen[400]) > count // 10, seen
    assert {200, 400, 411, 413} <= set(seen), seen


def test_another_type_at_any_place_of_a_review_is_answered_with_a_reason(webhook: Webhook) -> None:
    """At each of all places; which of the wrong things takes its turn."""
    everywhere = [(path, base, where) for path in PATHS for base in BASES[path] for where in places(base)]

    def case(number: int) -> Case:
        path, base, where = everywhere[number]
        text = WRONG[number % len(WRONG)]
        return posted(f"{path} {where} {text[:40]}", path, spoilt(base, where, text))

    seen = tried(webhook, case, len(everywhere), 0)

    assert len(everywhere) > 500
    assert set(seen) == {200, 400}


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_spoilt_requests_are_answered_with_a_reason(
    webhook: Webhook, tmp_path: Path
) -> None:
    seed = profile.seed()

    seen = tried(webhook, lambda number: Case.made(seed, number), 100_000, seed)

    print(f"seed {seed}: {dict(sorted(seen.items()))}")
    came_to_everything(seen, 100_000)
