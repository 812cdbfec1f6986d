"""The timekeeper's settings: flags, with ``BURSAR_*`` environment variables as their defaults.

The only reader of the environment: a flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from timekeeper.core import __version__
from timekeeper.core.names import AUDIENCE, NAMESPACE
from timekeeper.runtime.flags import add_log_format

# The variable that makes prometheus_client add up the figures of several processes, in files of this folder.
FIGURES_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

# The commands that look at a whole ledger; see `timekeeper.operations.audit`.
AUDITING = ("audit", "export", "import", "fold", "backup")
_WITH_FILE = ("export", "import", "backup")
_DAY_MS = 86_400_000

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000}

_EPILOG = """commands:
  serve     run the migrations, then the settler and the serving workers, until SIGTERM (the default)
  settle    the settler alone
  workers   the serving workers alone
  migrate   run the migrations, and end
  audit     recompute the ledger from its evidence, and tell what differs: 0 nothing, 1 something
  export    write the whole ledger into the new FILE, or to standard output (-)
  import    write an exported ledger from FILE, or from standard input (-), into an empty database
  fold      fold the sessions that ended longer ago than --older-than
  backup    copy an SQLite ledger into the new FILE while it is in use

A database is an SQLAlchemy URL; one with an absolute path has four slashes: sqlite:////data/bursar.db
"""


class UnusableError(ValueError):
    """A setting that has the right form and cannot be followed all the same; the text is a sentence for the
    operator: the flag, what is wrong, what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an operator sets. ``kubeconfig`` empty: the cluster that we run in; ``issuer`` empty: that
    of our own token, where we have one.

    ``command`` is what this process runs: a supervisor's children repeat its flags, and ``--as`` tells them
    apart. ``file``, ``output`` and ``older_than_ms`` are of single commands; ``retain_ms`` 0: nothing is
    folded by itself. ``leash``: end when standard input is closed, for the process that started us is gone
    then; ``socket_fd``: a socket that listens already, inherited from it; ``holder``: the settlers' name, of
    which there is one after the other.
    """

    command: str
    host: str
    port: int
    tls_cert: str
    tls_key: str
    ca: str
    database: str
    workers: int
    threads: int
    kubeconfig: str
    namespace: str
    audience: str
    issuer: str
    heartbeat_interval_ms: int
    database_connections: int = 5
    lease_duration_ms: int = 15_000
    leash: bool = False
    socket_fd: int | None = None
    file: str = ""
    output: str = "text"
    older_than_ms: int = 0
    retain_ms: int = 0
    holder: str = ""
    log_format: str = "logfmt"


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings of ``python -m timekeeper``. Exits with 2 and a sentence where one is bad."""
    parser = _parser(environment)
    given = parser.parse_args(arguments)
    host, port = given.listen
    values = vars(given)
    del values["listen"]
    values["heartbeat_interval_ms"] = values.pop("heartbeat_interval")
    values["lease_duration_ms"] = values.pop("lease_duration")
    values["command"] = values.pop("as") or values["command"]
    values["older_than_ms"] = values.pop("older_than")
    values["retain_ms"] = values.pop("retain")
    settings = Settings(host=host, port=port, **values)
    _check_command(parser, settings)
    return settings


def _check_command(parser: argparse.ArgumentParser, given: Settings) -> None:
    """What some commands need, and the others have no use for."""
    if given.command in _WITH_FILE and not given.file:
        parser.error(f"{given.command}: a FILE is missing, such as `{given.command} ledger.jsonl`")
    if given.command not in _WITH_FILE and given.file:
        parser.error(f"{given.command}: it takes no FILE, such as {given.file}")
    if given.command == "fold" and not given.older_than_ms:
        parser.error("fold: --older-than is missing, such as --older-than 400d")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence and exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bursar-timekeeper",
        description="Meters GPU time, charges it to namespaces' budgets, and serves balances and reports.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = ("serve", "settle", "workers", "migrate", *AUDITING)
    parser.add_argument("command", nargs="?", choices=commands, default="serve", help="see below")
    parser.add_argument("file", nargs="?", default="", metavar="FILE", help="of export, import and backup")
    parser.add_argument("--version", action="version", version=f"bursar {__version__}")
    _add_flags(parser, environment)
    add_log_format(parser, environment)
    # what a supervisor tells its children
    parser.add_argument("--as", choices=(*commands, "prepare"), help=argparse.SUPPRESS)
    parser.add_argument("--leash", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--socket-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--holder", default="", help=argparse.SUPPRESS)
    return parser


def _add_flags(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    def flag(name: str, default: str, read_text: Callable[[str], Any], told: str) -> None:
        # the help shows the flag's own default: a database's URL in the environment may hold a password
        variable = "BURSAR_" + name.upper().replace("-", "_")
        told = f"{told} (default {default or 'none'}; {variable})"
        short = ("-o",) if name == "output" else ()
        parser.add_argument(
            *short, f"--{name}", default=environment.get(variable, default), type=read_text, help=told
        )

    flag("listen", "0.0.0.0:8444", _address, "HOST:PORT of the REST API")
    flag("tls-cert", "/etc/bursar/tls/tls.crt", str, "certificate chain, PEM; read anew when it changes")
    flag("tls-key", "/etc/bursar/tls/tls.key", str, "its private key, PEM")
    flag(
        "ca",
        "/etc/bursar/tls/ca.crt",
        str,
        "CA bundle that sidecars shall trust, sent with heartbeat answers",
    )
    flag("database", "sqlite:////var/lib/bursar/bursar.db", _text, "where the ledger is")
    flag("database-connections", "5", _between(2, 100), "of each process to PostgreSQL, at most")
    flag("lease-duration", "15s", _lease_ms, "after which another replica settles in place of a silent one")
    flag("workers", "2", _between(1, 64), "serving processes")
    flag("threads", "16", _between(1, 256), "threads of each serving process")
    flag("kubeconfig", "", str, "file with the API server and our credentials; none: in-cluster")
    flag("namespace", NAMESPACE, _text, "namespace of the budget ConfigMaps")
    flag("audience", AUDIENCE, _text, "audience that callers' tokens must be for")
    flag("issuer", "", str, "issuer that callers' tokens must be from; none: that of our own token")
    flag("heartbeat-interval", "5s", _duration_ms, "how often sidecars shall beat, such as 5s or 500ms")
    flag("output", "text", _output, "of audit: text or json")
    flag("older-than", "", _age_ms, "of fold: how long ago a session must have ended, such as 400d")
    flag("retain", "", _age_ms, "sessions that ended longer ago are folded once a day; none: never")


def _address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*):([0-9]{1,5})", text, re.ASCII)
    if match is None or not match[1] or int(match[2]) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is not HOST:PORT, such as 0.0.0.0:8444')
    return match[1].strip("[]"), int(match[2])


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it must not be empty")
    return text


def _output(text: str) -> str:
    if text not in ("text", "json"):
        raise argparse.ArgumentTypeError(f'"{text}" is not text or json')
    return text


def _age_ms(text: str) -> int:
    """In days: what is younger may still be corrected, and is looked at often. 0 where there is none."""
    match = re.fullmatch(r"([0-9]{1,5})d", text, re.ASCII)
    days = int(match[1]) if match else 0
    if text and not 32 <= days <= 36_500:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of days from 32d to 36500d, such as 400d')
    return days * _DAY_MS


def _between(least: int, most: int) -> Callable[[str], int]:
    def read_number(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f'"{text}" is not a whole number from {least} to {most}')
        return int(text)

    return read_number


def _lease_ms(text: str) -> int:
    """In whole seconds, as a Lease has it."""
    match = re.fullmatch(r"([0-9]{1,3})(s|m)", text, re.ASCII)
    ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 2_000 <= ms <= 300_000:
        raise argparse.ArgumentTypeError(f'"{text}" is not a duration from 2s to 5m, such as 15s')
    return ms


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,6})(ms|s|m)", text, re.ASCII)
    ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 100 <= ms <= 300_000:
        raise argparse.ArgumentTypeError(f'"{text}" is not a duration from 100ms to 5m, such as 5s')
    return ms
