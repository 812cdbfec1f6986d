"""What the port for the API server believes: its front proxy, by the CA, names and headers of this moment."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.local.identity import LocalAuthority, new_authority
from deploy.local.limits import LONGEST_S
from tests.support.tls import Tls
from timekeeper.runtime.api_server import Answered, Api, Lost
from timekeeper.runtime.auth.front_proxy import FrontProxy, front_proxy_tls, read_front_proxy
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.serving.aggregated import FrontProxyWatch

PROXIES = new_authority("front-proxy")


def data(ca: LocalAuthority = PROXIES, **changes: str) -> dict[str, str]:
    """The ConfigMap's, as kubeadm's API servers write it."""
    return {
        "client-ca-file": "",
        "requestheader-client-ca-file": ca.pem.decode(),
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        **{f"requestheader-{name.replace('_', '-')}": value for name, value in changes.items()},
    }


def test_a_caller_is_read_line_by_line() -> None:
    lines = (
        ("X-REMOTE-USER", "alice"),
        ("X-REMOTE-UID", "7"),
        ("X-REMOTE-GROUP", "a,system:masters"),
        ("X-REMOTE-GROUP", "Verk\u00c3\u00a4ufer"),  # the bytes of UTF-8, read as Latin-1
        ("X-REMOTE-EXTRA-EXAMPLE.COM%2FROLE", "one"),
        ("X-REMOTE-EXTRA-EXAMPLE.COM%2FROLE", "two"),
        ("X-OTHER-USER", "admin"),
    )
    caller = read_front_proxy(data()).caller(lines)

    assert (caller.username, caller.uid, caller.pod) == ("alice", "7", None)
    assert caller.groups == ("a,system:masters", "Verkäufer")
    assert caller.extra == (("example.com/role", ("one", "two")),)


@pytest.mark.parametrize(
    "lines", [(), (("X-REMOTE-USER", ""),), (("X-REMOTE-USER", "a"), ("X-REMOTE-USER", "b"))]
)
def test_a_request_that_does_not_name_one_user_is_refused(lines: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Problem) as refused:
        read_front_proxy(data()).caller(lines)

    assert refused.value.status == 401


def named(*names: str) -> Mapping[str, Any]:
    """A certificate with these common names, as `ssl` shows it."""
    return {"subject": tuple((("commonName", name),) for name in names)}


def test_a_certificate_needs_one_of_the_allowed_names() -> None:
    proxy = read_front_proxy(data())

    assert proxy.is_known(named("front-proxy-client"))
    for other in (None, {}, named(), named("admin"), named("front-proxy-client", "admin")):
        assert not proxy.is_known(other)
    assert read_front_proxy(data(allowed_names="[]")).is_known(named("anything"))


def test_a_ca_that_also_signs_users_needs_names() -> None:
    shared = {"client-ca-file": "a comment\n" + PROXIES.pem.decode()}

    assert read_front_proxy({**data(), **shared}).names
    with pytest.raises(ValueError, match="could name another user"):
        read_front_proxy({**data(allowed_names="[]"), **shared})
    with pytest.raises(ValueError, match="is missing"):
        read_front_proxy(data(client_ca_file=""))
    with pytest.raises(ValueError, match="no JSON array"):
        read_front_proxy(data(allowed_names="{}"))


class PlayedApi(Api):
    """An API server that gives one answer to each call."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def call(self, *_: Any, **__: Any) -> Any:
        return self._answer()


def test_a_new_ca_counts_at_the_next_look_and_a_silent_api_server_changes_nothing(tmp_path: Path) -> None:
    tls, later = Tls(tmp_path), new_authority("front-proxy")
    answers: list[Any] = [
        Answered(200, {"data": data()}),
        Lost("silent"),
        Answered(200, {"data": data(later)}),
    ]
    watch = FrontProxyWatch(PlayedApi(lambda: answers.pop(0)))
    context = front_proxy_tls(Path(tls.file("tls.crt")), Path(tls.file("tls.key")), lambda: watch.now)

    assert context() is None
    for _ in range(2):
        watch.look()
        assert [is_admitted(context, tls, each) for each in (PROXIES, later, None)] == [True, False, False]
    watch.look()
    assert [is_admitted(context, tls, each) for each in (PROXIES, later, None)] == [False, True, False]
    answers.append(Answered(200, {"data": data(client_ca_file="")}))
    watch.look()
    assert (watch.now, context()) == (None, None)


def is_admitted(
    served: Callable[[], ssl.SSLContext | None], tls: Tls, authority: LocalAuthority | None
) -> bool:
    """Whether a handshake succeeds with a certificate of this CA; None: without one."""
    context, client = served(), tls.client()
    assert context is not None
    if authority is not None:
        certificate, key = authority.leaf(["front-proxy-client"], client=True)
        (tls.folder / "client.pem").write_bytes(certificate + key)
        client.load_cert_chain(tls.folder / "client.pem")
    ours, theirs = socket.socketpair()
    ours.settimeout(LONGEST_S)
    theirs.settimeout(LONGEST_S)
    admitted: list[bool] = []

    def serve() -> None:
        try:
            with context.wrap_socket(ours, server_side=True) as accepted:
                admitted.append(FrontProxy.is_known(read_front_proxy(data()), accepted.getpeercert()))
        except OSError:
            admitted.append(False)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(theirs, server_hostname="localhost") as connected:
            connected.recv(1)
    except OSError:
        pass  # the server has ended the handshake
    thread.join()
    return admitted[0]


def test_lists_that_are_no_lists_are_named() -> None:
    with pytest.raises(ValueError, match="requestheader-group-headers"):
        read_front_proxy(data(group_headers=json.dumps({"X": 1})))
