"""The extender's settings: flags, with ``BURSAR_*`` environment variables as their defaults.

The only reader of the environment: a flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

import argparse
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from timekeeper.core import names
from timekeeper.core.request import POLICIES

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@dataclass(frozen=True, slots=True)
class TLS:
    """Files for mutual TLS: what we serve with, and the CA of whoever may call."""

    certificate: Path
    key: Path
    client_ca: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """What the extender runs with. ``kubeconfig`` None: the pod's own service account. ``tls`` None: plain
    HTTP, on loopback alone."""

    host: str
    port: int
    threads: int
    kubeconfig: Path | None
    policy: str
    scheduler_name: str
    most_grace_ms: int
    bind_timeout_ms: int
    tls: TLS | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence and exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings of ``python -m scheduler_ext``. Exits with 2 and a sentence where one is missing or
    bad."""
    parser = _parser(environment)
    given = parser.parse_args(arguments)
    host, port = given.listen
    files = (given.tls_cert, given.tls_key, given.client_ca)
    if any(files) and not all(files):
        parser.error("--tls-cert, --tls-key and --client-ca go together")
    if not all(files) and not _is_loopback(host):
        parser.error(
            f"--listen {host}: who reaches this address could bind pods; give --tls-cert, --tls-key and "
            "--client-ca, or listen on loopback"
        )
    return Settings(
        host=host,
        port=port,
        threads=given.threads,
        kubeconfig=given.kubeconfig,
        policy=given.policy,
        scheduler_name=given.scheduler_name,
        most_grace_ms=given.max_grace_period,
        bind_timeout_ms=given.bind_timeout,
        tls=TLS(*files) if all(files) else None,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bursar-extender",
        description="kube-scheduler's extender: decides which card of which node a GPU pod gets, binds the "
        "pod with that, and wakes the next one when a card frees. It keeps no state of its own: everything "
        "is read from the API server's objects.",
        epilog="Routes: POST /filter, /prioritize, /bind for kube-scheduler; GET /v1/cluster (cards and who "
        "sits where), /livez, /readyz, /metrics.",
    )

    def add(
        flag: str,
        read_as: Callable[[str], object],
        default: str,
        text: str,
        choices: Sequence[str] | None = None,
    ) -> None:
        variable = "BURSAR_" + flag.removeprefix("--").replace("-", "_").upper()
        shown = f"default {default}" if default else "empty by default"
        parser.add_argument(
            flag,
            type=read_as,
            default=environment.get(variable, default),
            choices=choices,
            metavar=None if choices else flag.removeprefix("--").replace("-", "_").upper(),
            help=f"{text} ({shown}; {variable})",
        )

    add("--listen", _address, "127.0.0.1:8445", "address to serve on; other than loopback only with TLS")
    add("--threads", _natural, "16", "calls answered at a time; a bind waits for the API server")
    add("--kubeconfig", _path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    add("--policy", str, "binpack", "which card and node is best, where a pod does not say", POLICIES)
    add("--scheduler-name", str, names.SCHEDULER, "schedulerName of the pods that are woken")
    add("--max-grace-period", _duration, "10m", "longest that a vanished pod is reckoned with")
    add(
        "--bind-timeout",
        _duration,
        "1500ms",
        "longest that a bind may take; below kube-scheduler's httpTimeout",
    )
    add("--tls-cert", _path_or_none, "", "certificate to serve with, PEM")
    add("--tls-key", _path_or_none, "", "its private key, PEM")
    add("--client-ca", _path_or_none, "", "CA of those who may call, PEM")
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 0 <= int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 1000")
    return int(text)


def _duration(text: str) -> int:
    """Milliseconds."""
    match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 1500ms, 90s, 10m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def _path_or_none(text: str) -> Path | None:
    return Path(text) if text else None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
