"""The settings of the read-only port."""

from dataclasses import dataclass
from pathlib import Path

from timekeeper.core.names import AUDIENCE
from timekeeper.runtime.flags import Address, address, duration_ms, flag, nonempty, optional


@dataclass(frozen=True, slots=True)
class ReadPortSettings:
    """``listen`` None: there is no such port."""

    listen: Address | None = flag(
        optional(address, None),
        "",
        "address of the read-only port with metrics, pages and simulations, over TLS and with a token, such"
        " as 0.0.0.0:8447; empty: none",
        name="--read-listen",
    )
    tls_cert: Path = flag(
        Path,
        "/etc/bursar/scheduler-tls/tls.crt",
        "certificate of the read-only port, PEM; reread. Without the file the port takes no connection, and"
        " the verbs are served",
        name="--read-tls-cert",
    )
    tls_key: Path = flag(
        Path, "/etc/bursar/scheduler-tls/tls.key", "its private key, PEM", name="--read-tls-key"
    )
    audience: str = flag(
        nonempty, AUDIENCE, "required audience of the tokens of the read-only port's callers"
    )
    simulation_timeout_ms: int = flag(
        duration_ms("100ms", "60s", "10s"),
        "10s",
        "longest time of a simulation, after which its process is killed",
    )
