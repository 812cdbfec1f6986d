"""The timekeeper's settings: flags, with ``BURSAR_*`` environment variables as their defaults.

The only reader of the environment: a flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

import argparse
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from timekeeper.core.kube.lease import holder_name
from timekeeper.core.names import AUDIENCE, NAMESPACE
from timekeeper.runtime.flags import (
    Parser,
    address,
    duration_ms,
    https,
    nonempty,
    optional,
    path_or_none,
    whole_number,
)
from timekeeper.runtime.flags import UnusableError as UnusableError

# Commands that read a whole ledger; see `timekeeper.operations`.
AUDITING = ("audit", "export", "import", "fold", "backup")
_WITH_FILE = ("export", "import", "backup")

# In days: a younger session may still be corrected and is read often. 0: not set.
_AGE_MS = optional(duration_ms("32d", "36500d", "400d", unit="1d"), 0)

_EPILOG = """commands:
  serve     run the migrations, then the settler and the serving workers, until SIGTERM (the default)
  meter     the same as a ledger alone: it changes nothing in the cluster, and makes its own certificate; with
            --kubeconfig it serves on the loopback, and keeps its ledger in the file bursar-meter.db
  settle    the settler alone
  workers   the serving workers alone
  migrate   run the migrations, then exit
  audit     recompute the ledger from its evidence and print the differences; exit code: 0 none, 1 some
  export    write the whole ledger into the new FILE, or to standard output (-)
  import    write an exported ledger from FILE, or from standard input (-), into an empty database
  fold      replace each session that ended longer ago than --older-than by its net charge for each day
  backup    copy an SQLite ledger into the new FILE while it is in use

A database is an SQLAlchemy URL; one with an absolute path has four slashes: sqlite:////data/bursar.db
"""


@dataclass(frozen=True, slots=True)
class TimekeeperSettings:
    """All settings of the timekeeper.

    ``kubeconfig`` empty: the cluster that it runs in. ``issuer`` empty: that of its own token, if any.
    ``command``: what this process runs; a supervisor's children repeat its flags, and ``--as`` selects
    theirs. ``file``, ``output``, ``cluster`` and ``older_than_ms`` belong to single commands. ``retain_ms``
    0: no daily rollup; ``retain_decisions_ms`` 0: decisions are kept for ever. ``leash``: exit when standard
    input closes, because the parent process is gone. ``socket_fd``: an inherited listening socket.
    ``holder``: the name shared by successive settlers. ``aggregated_listen``: where the API server passes
    requests on; ``aggregated_fd``: that socket, inherited.
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
    kubeconfig: Path | None
    namespace: str
    audience: str
    issuer: str
    heartbeat_interval_ms: int
    database_connections: int = 8
    lease_duration_ms: int = 15_000
    leash: bool = False
    socket_fd: int | None = None
    file: str = ""
    output: str = "text"
    cluster: bool = False
    older_than_ms: int = 0
    retain_ms: int = 0
    retain_decisions_ms: int = 92 * 86_400_000
    notification_key: Path | None = None
    webhook_url: str = ""
    extender_url: str = ""
    token_file: Path = Path("/var/run/bursar/token/token")
    holder: str = ""
    pod_uid: str = ""
    aggregated_listen: tuple[str, int] | None = None
    aggregated_fd: int | None = None
    log_format: str = "logfmt"
    metrics_access: str = "token"
    only_meter: bool = False

    @property
    def is_local(self) -> bool:
        """Whether it serves one person on the loopback, without TLS: a ledger alone, outside of a cluster."""
        return self.only_meter and self.kubeconfig is not None

    @property
    def local_token(self) -> Path:
        """The file with that person's token, beside the ledger."""
        return Path(f"{self.database.removeprefix('sqlite:///')}.token")

    def new_holder(self) -> str:
        """A name for the holder of the settler's Lease, with a random word."""
        return holder_name(socket.gethostname(), self.pod_uid, "timekeeper", secrets.token_hex(4))


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> TimekeeperSettings:
    """The settings of ``python -m timekeeper``. Exits with 2 and a sentence where one is bad."""
    parser = flags_of(environment)
    given = parser.parse_args(arguments)
    host, port = given.listen
    values = vars(given)
    del values["listen"]
    values["heartbeat_interval_ms"] = values.pop("heartbeat_interval")
    values["lease_duration_ms"] = values.pop("lease_duration")
    values["only_meter"] = given.command == "meter"
    values["command"] = values.pop("as") or ("serve" if values["only_meter"] else values["command"])
    values["older_than_ms"] = values.pop("older_than")
    values["retain_ms"] = values.pop("retain")
    values["retain_decisions_ms"] = values.pop("retain_decisions")
    settings = TimekeeperSettings(host=host, port=port, **values)
    if settings.is_local:
        settings = _on_a_laptop(parser, settings, {*arguments, *environment})
    _check_command(parser, settings)
    return settings


def _on_a_laptop(parser: Parser, settings: TimekeeperSettings, given: set[str]) -> TimekeeperSettings:
    """With other defaults than in a cluster, for what ``given`` does not name. It serves on the loopback
    alone, because its token crosses the network in the clear."""

    def is_given(flag: str) -> bool:
        variable = f"BURSAR_{flag[2:].replace('-', '_').upper()}"
        return variable in given or any(each.split("=")[0] == flag for each in given)

    host = settings.host if is_given("--listen") else "127.0.0.1"
    if host not in ("127.0.0.1", "::1", "localhost"):
        parser.error(f"--listen: {host} is not the loopback, where alone meter serves outside of a cluster")
    database = settings.database if is_given("--database") else "sqlite:///bursar-meter.db"
    if not database.startswith("sqlite:///"):
        parser.error("--database: meter outside of a cluster keeps its ledger in an SQLite file")
    workers = settings.workers if is_given("--workers") else 1
    return replace(settings, host=host, database=database, workers=workers)


def _check_command(parser: Parser, given: TimekeeperSettings) -> None:
    """Arguments that some commands need and others reject."""
    if given.command in _WITH_FILE and not given.file:
        parser.error(f"{given.command}: a FILE is missing, such as `{given.command} ledger.jsonl`")
    if given.command not in _WITH_FILE and given.file:
        parser.error(f"{given.command}: it takes no FILE, such as {given.file}")
    if given.cluster and given.command != "audit":
        parser.error(f"{given.command}: --cluster is for the command audit")
    if given.command == "fold" and not given.older_than_ms:
        parser.error("fold: --older-than is missing, such as --older-than 400d")


def flags_of(environment: Mapping[str, str]) -> Parser:
    """The flags of the timekeeper; those without a value come from ``BURSAR_`` variables."""
    parser = Parser(
        environment,
        prog="bursar-timekeeper",
        description="Meters GPU time, charges it to namespaces' budgets, and serves balances and reports.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = ("serve", "meter", "settle", "workers", "migrate", *AUDITING)
    parser.add_argument("command", nargs="?", choices=commands, default="serve", help="see below")
    parser.add_argument("file", nargs="?", default="", metavar="FILE", help="for export, import and backup")
    _serving_flags(parser)
    _ledger_flags(parser)
    _command_flags(parser)
    _peer_flags(parser)
    _retention_flags(parser)
    parser.add_log_format()
    # set by the supervisor for its children
    parser.add_argument("--as", choices=(*commands, "prepare"), help=argparse.SUPPRESS)
    parser.add_argument("--leash", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--socket-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--aggregated-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--holder", default="", help=argparse.SUPPRESS)
    return parser


def _serving_flags(parser: Parser) -> None:
    """The REST API: its address, certificates, processes and callers."""
    parser.add("--listen", address, "0.0.0.0:8444", "HOST:PORT of the REST API")
    parser.add(
        "--aggregated-listen",
        optional(address, None),
        "",
        "HOST:PORT for the REST API behind the API server, which states the callers; empty: none",
    )
    parser.add("--tls-cert", str, "/etc/bursar/tls/tls.crt", "certificate chain, PEM; reread when it changes")
    parser.add("--tls-key", str, "/etc/bursar/tls/tls.key", "its private key, PEM")
    parser.add(
        "--ca",
        str,
        "/etc/bursar/tls/ca.crt",
        "CA bundle that sidecars must trust, PEM; sent with heartbeat answers",
    )
    parser.add("--workers", whole_number(1, 64), "2", "number of serving processes")
    parser.add("--threads", whole_number(1, 256), "24", "threads of each serving process")
    parser.add("--audience", nonempty, AUDIENCE, "required audience of callers' tokens")
    parser.add_metrics_access()
    parser.add(
        "--issuer",
        str,
        "",
        "required issuer of callers' tokens; empty: the issuer of the timekeeper's own token",
    )
    parser.add(
        "--heartbeat-interval",
        duration_ms("100ms", "5m", "5s"),
        "5s",
        "shortest interval between a sidecar's heartbeats, such as 5s or 500ms; above 500 pods for each"
        " second of it, sidecars get a longer one",
    )


def _ledger_flags(parser: Parser) -> None:
    """The ledger, the settler that writes it, and the cluster that it follows."""
    parser.add(
        "--database",
        nonempty,
        "sqlite:////var/lib/bursar/bursar.db",
        "the ledger's database: sqlite:////path/of/a/file, or postgresql://USER:PASSWORD@HOST/NAME; a"
        " password belongs in BURSAR_DATABASE",
    )
    parser.add(
        "--database-connections",
        whole_number(2, 100),
        "8",
        "maximum number of connections of each process to PostgreSQL",
    )
    parser.add(
        "--lease-duration",
        duration_ms("2s", "5m", "15s", unit="1s"),
        "15s",
        "on PostgreSQL: time after which another replica replaces a silent settler",
    )
    parser.add(
        "--pod-uid",
        str,
        "",
        "UID of its pod, from the downward API: a restarted container takes its own Lease at once; empty: it"
        " waits",
    )
    parser.add("--kubeconfig", path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    parser.add("--namespace", nonempty, NAMESPACE, "namespace of the budget ConfigMaps")


def _command_flags(parser: Parser) -> None:
    """Flags of single commands."""
    parser.add("--output", str, "text", "output format of audit", ("text", "json", "prometheus"), short="-o")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="for audit: compare the sessions with the API server's pods too; no variable sets it",
    )
    parser.add("--older-than", _AGE_MS, "", "for fold: minimum time since a session's end, such as 400d")


def _retention_flags(parser: Parser) -> None:
    """How long rows are kept."""
    parser.add(
        "--retain-decisions",
        optional(duration_ms("1d", "36500d", "92d", unit="1d"), 0),
        "92d",
        "decisions that were taken longer ago are deleted; empty: never",
    )
    parser.add(
        "--retain",
        _AGE_MS,
        "",
        "sessions that ended longer ago, such as 400d, are folded once a day; at least 32d; empty: never",
    )


def _peer_flags(parser: Parser) -> None:
    """Other processes that the timekeeper calls."""
    parser.add(
        "--notification-key",
        path_or_none,
        "",
        "file with the key that notifications are signed with (HMAC-SHA256); empty: none are sent",
    )
    parser.add(
        "--webhook-url",
        optional(https, ""),
        "",
        "URL of the webhook, for simulations, such as https://bursar-webhook.bursar-system.svc; empty: there"
        " are none; a webhook with --client-ca answers the API server alone, so there are none either",
    )
    parser.add(
        "--extender-url",
        optional(https, ""),
        "",
        "URL of the extender's read-only port, for simulations, such as"
        " https://bursar-scheduler.bursar-system.svc; empty: they have no placement",
    )
    parser.add(
        "--token-file",
        Path,
        "/var/run/bursar/token/token",
        "token for the extender's read-only port, read before each call",
    )
