"""The sidecar as a process against everything that is broken around it: it stays, says so once, loses
nothing, and ends within a second."""

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.identity import LocalAuthority
from sidecar import spool
from sidecar.disk import node_boot
from tests.nvml import compile_library
from tests.sidecar.worlds import (
    ENDLESS,
    Sidecar,
    Timekeeper,
    beating,
    events,
    fine,
    for_ever,
    spooled,
    variables,
)
from tests.support.waiting import eventually
from timekeeper.edge.outbox import Post

HEAD = b"HTTP/1.1 200 OK\r\n"
BODY = b'{"version": 1, "interval_ms": 200, "in_budget": true}'


def framed(body: bytes) -> bytes:
    """An answer of 200 with this body."""
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


# Answers that are not framed as HTTP: tests.runtime.hostile_servers.
BROKEN: dict[str, tuple[bytes, str]] = {
    "hangs up at once": (b"", "closed without an answer"),
    "no JSON": (framed(b"\x00\xff"), "no heartbeat reply"),
    "JSON without bottom": (framed(b"[" * 200_000), "no heartbeat reply"),
    "a number without end": (framed(b"9" * 200_000), "no heartbeat reply"),
    "more than is read": (HEAD + b"\r\n" + b"x" * 600_000, "too long"),
}


@pytest.mark.parametrize(("answer", "said"), BROKEN.values(), ids=BROKEN)
def test_an_answer_that_is_none_is_reported_once_and_the_post_is_repeated(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, answer: bytes, said: str
) -> None:
    timekeeper.answer = lambda _: [answer]
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 2)
        timekeeper.answer = fine
        timekeeper.wait(lambda: len({each.key for each in timekeeper.arrivals}) >= 2)

        (line,) = [each for each in sidecar.log().splitlines() if "timekeeper-away" in each]
        assert said in line
        assert sidecar.log().count("timekeeper-back") == 1
        code = sidecar.end()
    first, again = timekeeper.arrivals[:2]
    assert first.key == again.key
    assert code == 0


@pytest.mark.parametrize(
    "odd",
    [
        {"interval_ms": -1, "in_budget": "yes", "ca": 7, "over": "no"},
        {"interval_ms": 10**30, "in_budget": None, "ca": "-----BEGIN CERTIFICATE-----\n\ud800"},
        {"interval_ms": 1e308, "in_budget": [], "ca": "\u0151" * 10_000},
    ],
)
def test_odd_words_in_an_answer_change_nothing(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, odd: dict[str, object]
) -> None:
    timekeeper.answer = lambda _: (200, {"version": 1, **odd})
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: timekeeper.arrivals)
        eventually(lambda: spooled(tmp_path) == [], "it counts as an answer all the same")
        timekeeper.hang_up()
        timekeeper.answer = lambda arrival: (200, {**odd, **fine(arrival)[1]})
        code = sidecar.end()

        assert code == 0
        assert "fault" not in sidecar.log()
    sequences = [each.document["sequence"] for each in timekeeper.arrivals]
    assert sequences == list(range(1, len(sequences) + 1))


@pytest.mark.parametrize(
    ("piece", "pause_s"),
    ENDLESS.values(),
    ids=ENDLESS,
)
def test_an_answer_that_never_ends_stops_neither_the_beats_nor_the_end(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, piece: bytes, pause_s: float
) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 2)
        timekeeper.answer = lambda _: for_ever(piece, pause_s)
        eventually(lambda: len(spooled(tmp_path)) >= 4, "beats wait behind the post under way")
        code = sidecar.end()

    assert code == 0


@contextmanager
def deaf() -> Iterator[str]:
    """The URL of a port whose connections are never taken up: its queue is full, the kernel drops more."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        filling = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
            filling.append(one)
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        for one in filling:
            one.close()


def test_the_end_comes_when_the_connection_is_not_taken_up(authority: LocalAuthority, tmp_path: Path) -> None:
    with deaf() as url, beating(tmp_path, variables(tmp_path, url, authority)) as sidecar:
        eventually(lambda: spooled(tmp_path), "a beat is under way")
        code = sidecar.end()

        assert "timekeeper-away" not in sidecar.log()
    assert code == 0
    assert len(spooled(tmp_path)) == 2


def test_an_unknown_host_name_is_logged_once_and_beats_are_kept(
    authority: LocalAuthority, tmp_path: Path
) -> None:
    environ = variables(tmp_path, "https://timekeeper.invalid", authority)
    with beating(tmp_path, environ) as sidecar:
        eventually(lambda: "timekeeper-away" in sidecar.log(), "it is said")
        eventually(lambda: len(spooled(tmp_path)) >= 2, "another beat is kept")
        code = sidecar.end()

    assert code == 0


@pytest.mark.parametrize(
    ("token", "said"),
    [(b"", "holds no token"), (os.urandom(256) + b"\xff", "token"), (None, "Is a directory")],
    ids=["empty", "random bytes", "a folder"],
)
def test_a_token_that_is_none_is_reported_once_and_waited_for(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, token: bytes | None, said: str
) -> None:
    environ = variables(tmp_path, timekeeper.url, authority)
    file = tmp_path / "token"
    if token is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(token)
    with beating(tmp_path, environ) as sidecar:
        eventually(lambda: said in sidecar.log(), "it is said")
        if token is None:
            file.rmdir()
        file.write_text("late-token")
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 2)

        assert sidecar.log().count("timekeeper-away") == 1
    assert {each.token for each in timekeeper.arrivals} == {"late-token"}


@pytest.mark.parametrize("content", [None, b"", os.urandom(512)], ids=["missing", "empty", "random bytes"])
def test_a_ca_file_that_is_none_is_reported_once_and_waited_for(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_bytes(content)
    environ = variables(tmp_path, timekeeper.url, authority, BURSAR_CA=str(file))
    with beating(tmp_path, environ) as sidecar:
        eventually(lambda: "timekeeper-away" in sidecar.log(), "it is said")
        file.write_bytes(authority.pem)
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 2)

        assert sidecar.log().count("timekeeper-away") == 1


def in_the_way(folder: Path) -> None:
    """A file where the folder should be."""
    folder.write_text("")


def full(folder: Path) -> None:
    """Every byte that is written there is refused for want of room."""
    folder.mkdir()
    (folder / "spool.json.new").symlink_to("/dev/full")


def sealed(folder: Path) -> None:
    """A file system that takes no new files, not even root's."""
    folder.symlink_to("/proc/self")


def scribbled(folder: Path) -> None:
    """Files that nobody can read."""
    folder.mkdir()
    for name in ("spool.json", "followed-ca.json"):
        (folder / name).write_bytes(os.urandom(4_096) + b"\xff")


def occupied(folder: Path) -> None:
    """Folders where the files should be."""
    for name in ("spool.json", "followed-ca.json"):
        (folder / name).mkdir(parents=True)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (in_the_way, "spool-unreadable spool-not-written followed-ca-unreadable"),
        (full, "spool-not-written"),
        (sealed, "spool-not-written"),
        (scribbled, "spool-unreadable followed-ca-unreadable"),
        (occupied, "spool-unreadable spool-not-written followed-ca-unreadable"),
    ],
)
def test_a_spool_folder_that_is_none_is_reported_once_and_beats_go_all_the_same(
    timekeeper: Timekeeper,
    authority: LocalAuthority,
    tmp_path: Path,
    broken: Callable[[Path], None],
    said: str,
) -> None:
    broken(tmp_path / "spool")
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 4)
        code = sidecar.end()

        told = [line.split()[0] for line in events(sidecar.log())]
    assert code == 0
    assert sorted(each for each in told if "spool" in each or "ca" in each.split("-")) == sorted(
        f"event={each}" for each in said.split()
    )
    assert "event=timekeeper-away" not in told


def test_a_wall_clock_that_is_set_moves_no_beat(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    """Back by ten years and forward by as many: ages come from the boot's clock. While the clock is wrong no
    new connection is verified, and what was beaten then is delivered when it is right again."""
    compile_library((Path(__file__).parents[1] / "moved_clock.c"), tmp_path / "clock.so")
    moved = tmp_path / "moved"
    environ = variables(
        tmp_path,
        timekeeper.url,
        authority,
        LD_PRELOAD=str(tmp_path / "clock.so"),
        BURSAR_MOVED_CLOCK=str(moved),
    )
    with beating(tmp_path, environ) as sidecar:
        timekeeper.wait(lambda: timekeeper.arrivals)
        for seconds, said in ((-315_360_000, "not yet valid"), (315_360_000, "has expired")):
            seen = len(timekeeper.arrivals)
            moved.write_text(str(seconds))
            timekeeper.wait(lambda seen=seen: len(timekeeper.arrivals) >= seen + 3)  # type: ignore[misc]
            timekeeper.hang_up()
            eventually(lambda said=said: said in sidecar.log(), "no certificate is valid now")  # type: ignore[misc]
            moved.write_text("0")
            timekeeper.wait(lambda seen=seen: len(timekeeper.arrivals) >= seen + 6)  # type: ignore[misc]
        assert sidecar.end() == 0
    moments = timekeeper.moments()
    assert moments == sorted(moments)


LIMIT_KIB = 64 * 1024  # of memory, as the webhook writes it; the kernel counts the spool's folder too


def test_the_limit_of_memory_holds_with_the_fullest_spool_and_the_longest_answers(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    figure = {"uuid": "MIG-" + "x" * 36, "utilisation": None, "memory_mib": 80_000, "scope": "shared"}
    most = spool.MAX_FIGURES_WAITING // spool.MAX_CARDS
    beats = tuple(spool.SpooledBeat(at, (figure,) * spool.MAX_CARDS) for at in range(most))
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "spool.json").write_text(
        spool.encode(Post("run", 1, beats[:16]), beats[16:], node_boot())
    )
    padding = {f"k{number}": [number] * 40 for number in range(1_000)}  # nearly a quarter of a MiB
    timekeeper.answer = lambda arrival: fine(arrival, **padding)
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: len({each.key for each in timekeeper.arrivals}) >= 10)
        status = Path(f"/proc/{sidecar.process.pid}/status").read_text()
        (peak,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]

        assert "timekeeper-away" not in sidecar.log()
    assert sum(len(each.document["beats"]) for each in timekeeper.arrivals) >= most
    assert peak + 4 * 1024 < LIMIT_KIB


def named(descriptor: Path) -> str:
    """What an open file is; nothing for one that has been closed meanwhile."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def listening(sidecar: Sidecar) -> tuple[list[str], int]:
    """The sockets that the process could be reached by, and how many sockets it has in all."""
    folder = Path(f"/proc/{sidecar.process.pid}")
    names = map(named, (folder / "fd").iterdir())
    mine = {name.removeprefix("socket:[").rstrip("]") for name in names if name.startswith("socket:")}
    reachable = []
    for table, states in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07"), ("raw", "07")):
        path = folder / "net" / table
        rows: Iterable[list[str]] = map(str.split, path.read_text().splitlines()[1:]) if path.exists() else ()
        reachable += [f"{table} {row[1]}" for row in rows if row[3] == states and row[9] in mine]
    rows = map(str.split, (folder / "net" / "unix").read_text().splitlines()[1:])
    reachable += [f"unix {row[6]}" for row in rows if row[3] == "00010000" and row[6] in mine]
    return reachable, len(mine)


def test_nothing_listens(timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 3)

        assert listening(sidecar) == ([], 1)
