"""The timekeeper's settings: flags, with ``BURSAR_*`` environment variables as their defaults.

The only reader of the environment: a flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

import argparse
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from timekeeper.core.names import NAMESPACE
from timekeeper.edge.lease import holder_name
from timekeeper.runtime.flags import (
    Address,
    Parser,
    address,
    argument,
    choice,
    duration_ms,
    flag,
    group,
    https,
    lacking,
    log_format_flag,
    metrics_access_flag,
    nonempty,
    optional,
    path_or_none,
    whole_number,
)
from timekeeper.runtime.flags import UnusableError as UnusableError
from timekeeper.runtime.oidc_settings import OidcSettings
from timekeeper.runtime.prometheus_settings import PrometheusSettings, url_flag

_OF_METER = frozenset(
    (
        *("help", "kubeconfig", "listen", "database", "namespace", "prometheus_url", "prometheus_namespace"),
        *("prometheus_ca", "prometheus_token_file", "retain", "retain_decisions", "retain_use"),
        *("workers", "log_format", "adopt"),
    )
)
# Commands that read a whole ledger; see `timekeeper.operations`.
AUDITING = ("audit", "export", "import", "fold", "backup")
_COMMANDS = ("serve", "meter", "settle", "workers", "migrate", *AUDITING)
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
class MeasuringPrometheus(PrometheusSettings):
    """Where it is; without one the use of metered pods is not known."""

    url: str = url_flag("URL of Prometheus, for the use of metered pods' cards; empty: none")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimekeeperSettings:
    """All settings of the timekeeper.

    ``command``: what this process runs. ``retain_ms`` 0: no daily rollup; ``retain_decisions_ms``,
    ``retain_use_ms``, ``retain_cards_ms`` 0: decisions, measured use, cards by the hour are kept for ever.
    """

    command: str = argument("command", nargs="?", choices=_COMMANDS, default="serve", help="see below")
    file: str = argument("file", nargs="?", default="", metavar="FILE", help="for export, import and backup")

    # the REST API: its address, certificates, processes and callers
    listen: Address = flag(address, "[::]:8444", "HOST:PORT of the REST API")
    aggregated_listen: Address | None = flag(
        optional(address, None),
        "",
        "HOST:PORT for the REST API behind the API server, which states the callers; empty: none",
    )
    tls_cert: str = flag(str, "/etc/bursar/tls/tls.crt", "certificate chain, PEM; reread when it changes")
    tls_key: str = flag(str, "/etc/bursar/tls/tls.key", "its private key, PEM")
    ca: str = flag(
        str,
        "/etc/bursar/tls/ca.crt",
        "CA bundle that sidecars must trust, PEM; sent with heartbeat answers",
    )
    workers: int = flag(whole_number(1, 64), "2", "number of serving processes")
    threads: int = flag(whole_number(1, 256), "24", "threads of each serving process")
    metrics_access: str = metrics_access_flag()
    heartbeat_interval_ms: int = flag(
        duration_ms("100ms", "5m", "5s"),
        "5s",
        "shortest interval between a sidecar's heartbeats, such as 5s or 500ms; above 500 pods for each"
        " second of it, sidecars get a longer one",
    )

    # the ledger, the settler that writes it, and the cluster that it follows
    database: str = flag(
        nonempty,
        "sqlite:////var/lib/bursar/bursar.db",
        "the ledger's database: sqlite:////path/of/a/file, or postgresql://USER:PASSWORD@HOST/NAME; a"
        " password belongs in BURSAR_DATABASE",
    )
    database_connections: int = flag(
        whole_number(2, 100), "8", "maximum number of connections of each process to PostgreSQL"
    )
    lease_duration_ms: int = flag(
        duration_ms("2s", "5m", "15s", unit="1s"),
        "15s",
        "on PostgreSQL: time after which another replica replaces a silent settler",
    )
    pod_uid: str = flag(
        str,
        "",
        "UID of its pod, from the downward API: a restarted container takes its own Lease at once; empty: it"
        " waits",
    )
    kubeconfig: Path | None = flag(path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    namespace: str = flag(nonempty, NAMESPACE, "namespace of the budget ConfigMaps")
    adopt: str = flag(
        str, "", "UID of another cluster's namespace kube-system: this one takes over its ledger; empty: none"
    )

    # of single commands
    output: str = choice(("text", "json"), "text", "output format of audit", short="-o")
    cluster: bool = argument(
        "--cluster",
        action="store_true",
        help="for audit: compare the sessions with the API server's pods too; no variable sets it",
    )
    older_than_ms: int = flag(_AGE_MS, "", "for fold: minimum time since a session's end, such as 400d")

    # other processes that the timekeeper calls
    webhook_url: str = flag(
        optional(https, ""),
        "",
        "URL of the webhook, for simulations, such as https://bursar-webhook.bursar-system.svc; there are"
        " none where it is empty or the webhook has --client-ca",
    )
    extender_url: str = flag(
        optional(https, ""),
        "",
        "URL of the extender's read-only port, for simulations, such as"
        " https://bursar-scheduler.bursar-system.svc; empty: they have no placement",
    )
    token_file: Path = flag(
        Path, "/var/run/bursar/token/token", "token for the extender's read-only port, read before each call"
    )
    prometheus: MeasuringPrometheus = group(MeasuringPrometheus)
    oidc: OidcSettings = group(OidcSettings)

    # how long rows are kept
    retain_decisions_ms: int = flag(
        optional(duration_ms("1d", "36500d", "92d", unit="1d"), 0),
        "92d",
        "decisions that were taken longer ago are deleted; empty: never",
    )
    retain_ms: int = flag(
        _AGE_MS,
        "",
        "sessions that ended longer ago, such as 400d, are folded once a day; at least 32d; empty: never",
    )
    retain_use_ms: int = flag(
        _AGE_MS,
        "400d",
        "use that was measured longer ago is deleted, hour by hour; at least 32d; empty: never",
    )
    retain_cards_ms: int = flag(
        _AGE_MS,
        "400d",
        "held, free and waiting cards of hours longer ago are deleted; at least 32d; empty: never",
    )
    log_format: str = log_format_flag()

    # set by the command `meter`: they have no flags
    only_meter: bool = False
    logs_problems: bool = False

    def __post_init__(self) -> None:
        """Refuses arguments that the command needs or does not take."""
        if self.command in _WITH_FILE and not self.file:
            raise UnusableError(f"{self.command}: a FILE is missing, such as `{self.command} ledger.jsonl`")
        if self.command not in _WITH_FILE and self.file:
            raise UnusableError(f"{self.command}: it takes no FILE, such as {self.file}")
        if self.cluster and self.command != "audit":
            raise UnusableError(f"{self.command}: --cluster is for the command audit")
        if self.command == "fold" and not self.older_than_ms:
            raise UnusableError("fold: --older-than is missing, such as --older-than 400d")

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


def exit_code(run: Callable[[], int | None]) -> int:
    """What ``run`` returns, 0 for None; 2, with a sentence, where the settings cannot be used."""
    try:
        return run() or 0
    except UnusableError as error:
        print(f"bursar-timekeeper: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"bursar-timekeeper: {lacking(error, 'timekeeper')}", file=sys.stderr)
    return 2


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> TimekeeperSettings:
    """The settings of ``python -m timekeeper``. Exits with 2 and a sentence where one is bad."""
    is_meter = "meter" in arguments
    parser = meter_flags(environment) if is_meter else flags_of(environment)
    given = parser.read(arguments)
    if given.command == "meter":
        given = replace(given, command="serve", only_meter=True)
    return _on_a_laptop(parser, given, {*arguments, *environment}) if given.is_local else given


def _on_a_laptop(
    parser: Parser[TimekeeperSettings], settings: TimekeeperSettings, given: set[str]
) -> TimekeeperSettings:
    """With other defaults than in a cluster, for what ``given`` does not name. It serves on the loopback
    alone, because its token crosses the network in the clear."""

    def is_given(flag: str) -> bool:
        variable = f"BURSAR_{flag[2:].replace('-', '_').upper()}"
        return variable in given or any(each.split("=")[0] == flag for each in given)

    host, port = settings.listen
    host = host if is_given("--listen") else "127.0.0.1"
    if host not in ("127.0.0.1", "::1", "localhost"):
        parser.error(f"--listen: {host} is not the loopback, where alone meter serves outside of a cluster")
    if settings.oidc.issuer:
        parser.error("--oidc-issuer: meter outside of a cluster has one visitor, who logs in by a token")
    database = settings.database if is_given("--database") else "sqlite:///bursar-meter.db"
    if not database.startswith("sqlite:///"):
        parser.error("--database: meter outside of a cluster keeps its ledger in an SQLite file")
    workers = settings.workers if is_given("--workers") else 1
    local = replace(settings, listen=Address(host, port), database=database, workers=workers)
    return replace(local, logs_problems=not is_given("--log-format"))


def meter_flags(environment: Mapping[str, str]) -> Parser[TimekeeperSettings]:
    """The same; its help shows those alone that somebody sets who meters."""
    parser = flags_of(environment)
    parser.prog, parser.usage = "bursar-timekeeper meter", "bursar-timekeeper meter [FLAG]..."
    parser.description = (
        "Meters and charges GPU time as a ledger alone: it changes nothing in the cluster, and makes its own"
        " certificate. With --kubeconfig it serves on the loopback, and keeps its ledger in bursar-meter.db."
    )
    parser.epilog = (
        "Example:\n  bursar-timekeeper meter --kubeconfig ~/.kube/config\n\n"
        "All flags: bursar-timekeeper --help"
    )
    for action in parser._actions:
        if action.dest not in _OF_METER:
            action.help = argparse.SUPPRESS
    return parser


def flags_of(environment: Mapping[str, str]) -> Parser[TimekeeperSettings]:
    """The flags of the timekeeper; those without a value come from ``BURSAR_`` variables."""
    return Parser(
        TimekeeperSettings,
        environment,
        prog="bursar-timekeeper",
        description="Meters GPU time, charges it to namespaces' budgets, and serves balances and reports.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
