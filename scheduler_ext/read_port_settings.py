"""The settings of the read-only port."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from timekeeper.core.names import AUDIENCE
from timekeeper.runtime.flags import Parser, address, duration_ms, nonempty, optional


@dataclass(frozen=True, slots=True)
class ReadPortSettings:
    """Address and files of the read-only port, the audience of its callers' tokens, and the time that a
    simulation may take."""

    host: str
    port: int
    certificate: Path
    key: Path
    audience: str = AUDIENCE
    simulation_ms: int = 10_000


def read(given: Namespace) -> ReadPortSettings | None:
    """The settings; None without an address."""
    if given.read_listen is None:
        return None
    host, port = given.read_listen
    return ReadPortSettings(
        host, port, given.read_tls_cert, given.read_tls_key, given.audience, given.simulation_timeout
    )


def add_flags(parser: Parser) -> None:
    """Add the flags."""
    parser.add(
        "--read-listen",
        optional(address, None),
        "",
        "address of the read-only port with metrics, pages and simulations, over TLS and with a token, such"
        " as 0.0.0.0:8447; empty: none",
    )
    parser.add(
        "--read-tls-cert",
        Path,
        "/etc/bursar/scheduler-tls/tls.crt",
        "certificate of the read-only port, PEM; reread. Without the file the port takes no connection, and"
        " the verbs are served",
    )
    parser.add("--read-tls-key", Path, "/etc/bursar/scheduler-tls/tls.key", "its private key, PEM")
    parser.add(
        "--audience", nonempty, AUDIENCE, "required audience of the tokens of the read-only port's callers"
    )
    parser.add(
        "--simulation-timeout",
        duration_ms("100ms", "60s", "10s"),
        "10s",
        "longest time of a simulation, after which its process is killed",
    )
