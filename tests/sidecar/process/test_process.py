"""The sidecar as a process, against a timekeeper over TLS: what a pod and its budget may rely on."""

import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.local.identity import LocalAuthority, new_authority
from sidecar.run import boot_ms
from tests.nvml import compile_library
from tests.sidecar.worlds import (
    HANG_UP,
    INTERVAL_MS,
    ROOT,
    SILENCE,
    WITHIN_S,
    Arrival,
    Timekeeper,
    beating,
    fine,
    spooled,
    variables,
)
from tests.support.waiting import eventually


def arrived_once(timekeeper: Timekeeper, moment_ms: int) -> bool:
    """Whether exactly one beat that arrived was at this moment."""
    return timekeeper.moments().count(moment_ms) == 1


def arrived_in_order(timekeeper: Timekeeper) -> bool:
    """Whether no beat arrived twice nor before an earlier one (a repeat of a post counts once)."""
    return all(earlier < later for earlier, later in pairwise(timekeeper.moments()))


def covered_ms(timekeeper: Timekeeper) -> int:
    """The time between neighbouring beats, summed in the order of arrival: the span, if nothing came twice or
    out of order."""
    return sum(abs(later - earlier) for earlier, later in pairwise(timekeeper.moments()))


def another_arrives(timekeeper: Timekeeper) -> None:
    """Wait for the next post."""
    seen = len(timekeeper.arrivals)
    timekeeper.wait(lambda: len(timekeeper.arrivals) > seen)


def first_unanswered(timekeeper: Timekeeper) -> Arrival:
    """Let two posts be answered (so that the sidecar knows its interval), and no more; the first of those."""
    timekeeper.wait(lambda: len(timekeeper.arrivals) >= 2)
    answered: list[Arrival] = []

    def hang_up(arrival: Arrival) -> str:
        answered.append(arrival)
        return HANG_UP

    timekeeper.answer = hang_up
    timekeeper.wait(lambda: answered)
    return answered[0]


def test_beats_arrive_with_the_pods_token_and_in_order(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)):
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 4)

    assert {(each.path, each.token) for each in timekeeper.arrivals} == {("/v1/heartbeats", "first-token")}
    assert [each.document["sequence"] for each in timekeeper.arrivals] == list(
        range(1, len(timekeeper.arrivals) + 1)
    )
    assert {each.document["version"] for each in timekeeper.arrivals} == {1}
    assert len({each.document["boot"] for each in timekeeper.arrivals}) == 1
    assert all(beat["devices"] == [] for each in timekeeper.arrivals for beat in each.document["beats"])
    assert arrived_in_order(timekeeper)


def test_the_connection_is_kept_open_between_beats(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)):
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 4)

        assert timekeeper.connections == 1


def test_a_connection_that_was_closed_while_idle_costs_no_beat_and_no_back_off(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        for _ in range(3):
            another_arrives(timekeeper)
            eventually(lambda: spooled(tmp_path) == [], "it is acknowledged, the connection idle")
            timekeeper.hang_up()
        timekeeper.wait(lambda: timekeeper.connections >= 3)

        assert "timekeeper-away" not in sidecar.log()
    assert arrived_in_order(timekeeper)


def test_a_rotated_token_is_used_at_the_next_post(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)):
        timekeeper.wait(lambda: timekeeper.arrivals)
        (tmp_path / "token").write_text("second-token")

        timekeeper.wait(lambda: timekeeper.arrivals[-1].token == "second-token")


def test_nothing_is_lost_or_counted_twice_while_the_timekeeper_is_away(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 2)
        timekeeper.stop()
        eventually(lambda: len(spooled(tmp_path)) >= 6, "beats are kept while the timekeeper is away")
        missed = spooled(tmp_path)
        timekeeper.start()
        timekeeper.wait(lambda: timekeeper.moments()[-1] > missed[-1] + INTERVAL_MS)

        assert sidecar.log().count("timekeeper-back") == 1
    moments = timekeeper.moments()
    assert all(arrived_once(timekeeper, each) for each in missed)
    assert arrived_in_order(timekeeper)
    assert covered_ms(timekeeper) == moments[-1] - moments[0]


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_refused_post_is_kept_and_repeated_under_its_number(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, status: int
) -> None:
    timekeeper.answer = lambda _: (status, {"error": "not now"})
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: timekeeper.arrivals)
        timekeeper.answer = fine
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 3)

        assert f"it answered {status}" in sidecar.log()
    first, again, then = timekeeper.arrivals[:3]
    assert again.key == first.key
    assert again.moments() == first.moments()
    assert then.document["sequence"] == first.document["sequence"] + 1


def test_a_post_whose_answer_was_lost_is_repeated_with_the_same_beats(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)):
        unanswered = first_unanswered(timekeeper)
        eventually(lambda: len(spooled(tmp_path)) >= 4, "further beats wait behind the post")
        timekeeper.answer = fine
        timekeeper.wait(lambda: timekeeper.arrivals[-1].document["sequence"] > unanswered.key[1] + 1)

    repeats = [each for each in timekeeper.arrivals if each.key == unanswered.key]
    assert len(repeats) >= 2
    assert {len(each.document["beats"]) for each in repeats} == {1}
    assert arrived_in_order(timekeeper)


def test_a_restarted_process_replays_what_the_killed_one_had_spooled(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    environ = variables(tmp_path, timekeeper.url, authority)
    with beating(tmp_path, environ) as sidecar:
        unanswered = first_unanswered(timekeeper)
        eventually(lambda: len(spooled(tmp_path)) >= 4, "beats are on disk")
        sidecar.kill()
    missed = spooled(tmp_path)
    eventually(lambda: boot_ms() > missed[-1] + INTERVAL_MS, "a beat's time has passed without a sidecar")
    timekeeper.answer = fine
    with beating(tmp_path, environ):
        timekeeper.wait(lambda: timekeeper.moments()[-1] > missed[-1] + INTERVAL_MS)

    boots = list(dict.fromkeys(each.document["boot"] for each in timekeeper.arrivals))
    assert len(boots) == 2
    assert [each.key for each in timekeeper.arrivals].count(unanswered.key) >= 2
    assert all(arrived_once(timekeeper, each) for each in missed)
    assert arrived_in_order(timekeeper)


def test_a_ca_that_the_timekeeper_names_is_followed_also_by_a_restarted_process(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    coming = new_authority("coming")
    both = (authority.pem + coming.pem).decode()
    environ = variables(tmp_path, timekeeper.url, authority)
    timekeeper.answer = lambda arrival: fine(arrival, ca=both)
    with beating(tmp_path, environ) as sidecar:
        eventually(lambda: "ca-followed" in sidecar.log(), "the bundle of both is taken over")
        timekeeper.show(coming)
        timekeeper.hang_up()
        seen = len(timekeeper.arrivals)
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= seen + 2)
        sidecar.kill()
    seen = len(timekeeper.arrivals)
    with beating(tmp_path, environ):
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= seen + 2)

    assert timekeeper.handshakes_failed == 0


def test_a_bundle_that_does_not_sign_the_timekeeper_is_not_adopted(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    mistaken = new_authority("mistaken").pem.decode()
    timekeeper.answer = lambda arrival: fine(arrival, ca=mistaken)
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: timekeeper.handshakes_failed and len(timekeeper.arrivals) >= 4)

        assert "ca-followed" not in sidecar.log()


def test_a_timekeeper_of_another_name_gets_no_token(tmp_path: Path, authority: LocalAuthority) -> None:
    timekeeper = Timekeeper(tmp_path, authority, ["another.example"])
    timekeeper.start()
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: timekeeper.handshakes_failed >= 2)

        assert "its certificate is not accepted: IP address mismatch" in sidecar.log()
    timekeeper.stop()
    assert timekeeper.arrivals == []


def test_a_timekeeper_of_another_authority_gets_no_token(tmp_path: Path, authority: LocalAuthority) -> None:
    timekeeper = Timekeeper(tmp_path, new_authority("another"))
    timekeeper.start()
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: timekeeper.handshakes_failed >= 2)

        assert "its certificate is not accepted" in sidecar.log()
    timekeeper.stop()
    assert timekeeper.arrivals == []


def test_the_end_of_the_pod_sends_a_last_beat(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    timekeeper.answer = lambda arrival: (200, {**fine(arrival)[1], "interval_ms": 300_000})
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: timekeeper.arrivals)
        eventually(lambda: spooled(tmp_path) == [], "the first beat is acknowledged")
        code = sidecar.end()

    assert code == 0
    assert len(timekeeper.moments()) == 2
    assert spooled(tmp_path) == []


def unanswering(timekeeper: Timekeeper) -> None:
    timekeeper.answer = lambda _: SILENCE


def absent(timekeeper: Timekeeper) -> None:
    timekeeper.stop()


@pytest.mark.parametrize("state", [unanswering, absent])
def test_the_end_comes_whatever_the_timekeeper_does(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, state: object
) -> None:
    assert callable(state)
    state(timekeeper)
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        eventually(lambda: len(spooled(tmp_path)) >= 1, "a beat is under way")
        code = sidecar.end()

    assert code == 0
    assert len(spooled(tmp_path)) == 2


def test_the_end_comes_when_the_handshake_hangs(authority: LocalAuthority, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        with beating(tmp_path, variables(tmp_path, url, authority)) as sidecar:
            accepted, _ = listening.accept()
            code = sidecar.end()
            accepted.close()

    assert code == 0


def test_the_end_comes_when_the_name_lookup_hangs(authority: LocalAuthority, tmp_path: Path) -> None:
    compile_library((Path(__file__).parents[1] / "stuck_resolver.c"), tmp_path / "stuck.so")
    environ = variables(
        tmp_path, "https://timekeeper.example", authority, LD_PRELOAD=str(tmp_path / "stuck.so")
    )
    with beating(tmp_path, environ) as sidecar:
        eventually(lambda: "looking up timekeeper.example" in sidecar.log(), "the lookup hangs")
        code = sidecar.end()

    assert code == 0
    assert len(spooled(tmp_path)) == 2


def test_the_folder_of_the_spool_may_be_missing_or_full(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    environ = variables(tmp_path, timekeeper.url, authority, BURSAR_SPOOL=str(tmp_path / "file" / "spool"))
    with beating(tmp_path, environ) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 3)

        assert sidecar.log().count("spool-not-written") == 1


def test_a_missing_token_is_reported_and_waited_for(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    environ = variables(tmp_path, timekeeper.url, authority)
    (tmp_path / "token").unlink()
    with beating(tmp_path, environ) as sidecar:
        eventually(lambda: "the token file" in sidecar.log(), "the missing token is said")
        (tmp_path / "token").write_text("late-token")
        timekeeper.wait(lambda: timekeeper.arrivals)

    assert timekeeper.arrivals[0].token == "late-token"


def test_no_line_of_the_log_holds_a_token(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    environ = variables(tmp_path, timekeeper.url, authority)
    (tmp_path / "token").write_text("secret\r\nX-Injected: secret")
    with beating(tmp_path, environ) as sidecar:
        eventually(lambda: "holds no token" in sidecar.log(), "the malformed token is said")

        assert "secret" not in sidecar.log()
    assert timekeeper.arrivals == []


@pytest.mark.parametrize("closed", [False, True])
def test_an_unread_log_stops_nothing(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, closed: bool
) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sidecar"]
    if closed:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    environ = variables(tmp_path, timekeeper.url, authority)
    with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=write) as process:
        os.close(write)
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 3)
        process.terminate()

    assert process.returncode == 0


def test_in_a_pod_a_missing_setting_is_reported_once_and_the_process_stays(tmp_path: Path) -> None:
    with beating(tmp_path, {"BURSAR_SPOOL": str(tmp_path)}) as sidecar:
        eventually(lambda: "No heartbeat is sent from this pod." in sidecar.log(), "the sentence is said")

        assert sidecar.process.poll() is None
        assert sidecar.end() == 0
        assert "not set: BURSAR_TIMEKEEPER_URL, BURSAR_TOKEN_FILE, BURSAR_CA " in sidecar.log()
        assert sidecar.log().count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "not set: BURSAR_TIMEKEEPER_URL, BURSAR_TOKEN_FILE, BURSAR_CA, BURSAR_SPOOL"),
        (["--spool=/tmp/s"], "not set: BURSAR_TIMEKEEPER_URL, BURSAR_TOKEN_FILE, BURSAR_CA"),
        (["--interval=3"], "unrecognized arguments: --interval=3"),
    ],
)
def test_by_hand_a_wrong_setting_is_a_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "sidecar", *arguments],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )

    assert run.returncode == 2
    assert sentence in run.stderr


def test_flags_shadow_the_variables(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    environ = variables(tmp_path, "https://127.0.0.1:1", authority)
    command = [sys.executable, "-m", "sidecar", f"--timekeeper-url={timekeeper.url}/base/"]
    with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL) as process:
        timekeeper.wait(lambda: timekeeper.arrivals)
        process.terminate()

    assert process.returncode == 0
    assert timekeeper.arrivals[0].path == "/base/v1/heartbeats"


def test_a_spool_of_nonsense_is_reported_once_and_begun_anew(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "spool.json").write_text('{"version": 1, "waiting": [[Infinity, {}]]')
    with beating(tmp_path, variables(tmp_path, timekeeper.url, authority)) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 2)

        assert sidecar.log().count("spool-unreadable") == 1
