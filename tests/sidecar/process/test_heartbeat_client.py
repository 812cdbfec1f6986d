"""The way to the timekeeper: one verified connection, and a sentence for each way it can fail."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deploy.local.identity import LocalAuthority, new_authority
from deploy.local.limits import LONGEST_S
from sidecar import settings, spool
from sidecar.beats import HeartbeatReply
from sidecar.heartbeat_client import Delivered, HeartbeatClient
from sidecar.run import boot_ms
from tests.sidecar.worlds import INTERVAL_MS, Timekeeper, fine, variables
from timekeeper.edge.outbox import NotDelivered, Post

POST = Post("run", 3, (spool.SpooledBeat(boot_ms(), ()),))
FINE = Delivered(HeartbeatReply(INTERVAL_MS, True, None))


class Route:
    """A courier, and what it asked to be remembered."""

    def __init__(
        self, folder: Path, url: str, authority: LocalAuthority, timeout_s: float = LONGEST_S, **more: str
    ) -> None:
        self.remembered: list[tuple[str, str]] = []
        read = settings.read([], variables(folder, url, authority, **more))
        self.client = HeartbeatClient(
            read, boot_ms, None, lambda *pair: self.remembered.append(pair), timeout_s
        )

    def deliver(self) -> Delivered | NotDelivered:
        return self.client.deliver(POST)


@pytest.fixture
def route(tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority) -> Iterator[Route]:
    """The way to a timekeeper that is well."""
    made = Route(tmp_path, timekeeper.url, authority)
    with closing(made.client):
        yield made


def reason(outcome: Delivered | NotDelivered) -> str:
    """Why a post failed."""
    assert isinstance(outcome, NotDelivered)
    return outcome.reason


def test_one_connection_carries_all_posts(route: Route, timekeeper: Timekeeper) -> None:
    assert [route.deliver() for _ in range(5)] == [FINE] * 5
    assert timekeeper.connections == 1
    assert {each.key for each in timekeeper.arrivals} == {("run", 3)}


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, {"detail": "no session yet", "field": "pod"}, "the timekeeper does not know this pod yet"),
        (404, {"error": "no such address"}, 'it answered 404 {"error": "no such address"}'),
        (404, ["pod"], 'it answered 404 ["pod"]'),
        (503, {"field": "pod"}, 'it answered 503 {"field": "pod"}'),
        (200, ["not", "an", "answer"], "it answered 200, but the body is no heartbeat reply"),
    ],
)
def test_any_answer_but_a_heartbeats_is_a_failure_with_its_words(
    route: Route, timekeeper: Timekeeper, status: int, body: object, why: str
) -> None:
    timekeeper.answer = lambda _: (status, body)

    assert reason(route.deliver()) == why


def test_the_bundle_of_an_answer_is_verified_on_a_new_connection_before_it_is_taken_over(
    route: Route, timekeeper: Timekeeper, authority: LocalAuthority
) -> None:
    both = (authority.pem + new_authority("coming").pem).decode()
    timekeeper.answer = lambda arrival: fine(arrival, ca=both)
    route.deliver()
    assert route.remembered == []
    route.deliver()
    route.deliver()

    assert route.remembered == [(authority.pem.decode().strip(), both.strip())]
    assert timekeeper.connections == 2


@pytest.mark.parametrize("bundle", ["-----BEGIN CERTIFICATE-----\nnonsense", "no PEM"])
def test_a_bundle_that_cannot_be_read_is_passed_over(
    route: Route, timekeeper: Timekeeper, bundle: str
) -> None:
    timekeeper.answer = lambda arrival: fine(arrival, ca=bundle)

    assert all(isinstance(route.deliver(), Delivered) for _ in range(3))
    assert route.remembered == []


def test_a_ca_may_be_a_file_and_is_read_again_when_it_changes(
    tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority
) -> None:
    file = tmp_path / "ca.crt"
    route = Route(tmp_path, timekeeper.url, authority, BURSAR_CA=str(file))
    assert "cannot be read (No such file or directory)" in reason(route.deliver())
    file.write_bytes(b"\xff\x00")
    assert reason(route.deliver()) == "the CA bundle holds no readable certificate"
    file.write_bytes(new_authority("another").pem)
    assert "its certificate is not accepted" in reason(route.deliver())
    file.write_bytes(authority.pem)

    with closing(route.client):
        assert route.deliver() == FINE


REMARK = "# F\u0151tan\u00fas\u00edtv\u00e1ny\n"  # as Mozilla's bundle has one


@pytest.mark.parametrize("is_file", [True, False])
def test_remarks_between_certificates_may_be_in_any_language(
    tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority, is_file: bool
) -> None:
    text = REMARK + authority.pem.decode()
    (tmp_path / "ca.crt").write_text(text)
    ca = str(tmp_path / "ca.crt") if is_file else text
    route = Route(tmp_path, timekeeper.url, authority, BURSAR_CA=ca)

    with closing(route.client):
        assert route.deliver() == FINE


@pytest.mark.parametrize("remark", [REMARK, "\ud800", "\x00"])
def test_an_offered_bundle_with_odd_letters_is_not_adopted(
    route: Route, timekeeper: Timekeeper, authority: LocalAuthority, remark: str
) -> None:
    timekeeper.answer = lambda arrival: fine(arrival, ca=remark + authority.pem.decode())

    assert all(isinstance(route.deliver(), Delivered) for _ in range(3))


def test_a_configured_bundle_of_nonsense_is_named(
    tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority
) -> None:
    route = Route(tmp_path, timekeeper.url, authority, BURSAR_CA="-----BEGIN CERTIFICATE-----\nnonsense")

    assert reason(route.deliver()) == "the CA bundle holds no readable certificate"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (b"", "holds no token"),
        (b"a b", "holds no token"),
        (b"a\x00", "holds no token"),
        (b"\xff", "not ASCII"),
    ],
)
def test_a_token_that_no_header_could_carry_is_not_sent(
    route: Route, timekeeper: Timekeeper, tmp_path: Path, token: bytes, why: str
) -> None:
    (tmp_path / "token").write_bytes(token)

    assert why in reason(route.deliver())
    assert timekeeper.arrivals == []


def test_an_unknown_host_name_is_named_in_the_error(tmp_path: Path, authority: LocalAuthority) -> None:
    assert "known" in reason(Route(tmp_path, "https://timekeeper.invalid", authority).deliver())


def test_a_fault_of_the_senders_own_is_a_failure_without_its_words(
    tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority
) -> None:
    def quoting() -> int:
        raise KeyError("Bearer secret")

    read = settings.read([], variables(tmp_path, timekeeper.url, authority))
    with closing(HeartbeatClient(read, quoting, None, lambda *_: None)) as client:
        assert reason(client.deliver(POST)) == "internal error: KeyError"


def test_the_age_of_a_beat_is_taken_after_the_connection_stands(
    timekeeper: Timekeeper, tmp_path: Path, authority: LocalAuthority
) -> None:
    order: list[str] = []
    read = settings.read([], variables(tmp_path, timekeeper.url, authority))

    def clock() -> int:
        order.append("age" if timekeeper.connections else "age too early")
        return boot_ms()

    with closing(HeartbeatClient(read, clock, None, lambda *_: None)) as client:
        client.deliver(POST)

    assert order == ["age"]
