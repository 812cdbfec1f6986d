"""The extender's settings: flags, with ``BURSAR_*`` environment variables as their defaults.

It is the only reader of the environment: flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

import argparse
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduler_ext import card_settings, read_port_settings
from scheduler_ext.card_settings import PrometheusSettings
from scheduler_ext.model.node import ModelNames
from scheduler_ext.read_port_settings import ReadPortSettings
from scheduler_ext.scoring.card_points import BY_UTILISATION, Scale
from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.ledger.reservation import MAX_MS
from timekeeper.core.request.request import POLICIES
from timekeeper.runtime.flags import (
    Parser,
    address,
    duration_ms,
    https,
    namespace,
    namespaced,
    optional,
    path_or_none,
    whole_number,
    wrong,
)

ELECTIONS = ("none", "scheduler", "lease")
LOCKING = tuple(each.name for each in DIALECTS if each.node_lock)

_DURATION_MS = duration_ms("0ms", "36500d", "90s")
_LEASE_MS = duration_ms("2s", "1h", "15s", unit="1s")


@dataclass(frozen=True, slots=True)
class TLS:
    """Files for mutual TLS: the server's certificate and key, and the CA of permitted clients."""

    certificate: Path
    key: Path
    client_ca: Path


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """How this replica knows whether it leads: ``form`` is ``none`` (a single replica), ``scheduler`` (the
    kube-scheduler beside it leads, by its Lease) or ``lease`` (a Lease of its own). ``lease`` and ``pod``:
    namespace and name. ``identity``: this replica's name."""

    form: str = "none"
    lease: tuple[str, str] = ("", "")
    duration_ms: int = 0
    identity: str = ""
    pod: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Timekeeper:
    """The timekeeper's address, CA bundle and token (both reread), and the age after which standings are
    UNKNOWN."""

    url: str
    ca: Path
    token_file: Path
    stale_after_ms: int


@dataclass(frozen=True, slots=True)
class Preempting:
    """The number of simultaneous preemptions (0: none), how long cards stay reserved beyond the victims'
    longest grace period, and how long a debtor's PodDisruptionBudget is honoured."""

    most: int = 8
    patience_ms: int = 180_000
    pdb_grace_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """The extender's settings. ``kubeconfig`` None: the pod's own service account. ``tls`` None: plain HTTP,
    on loopback only. ``timekeeper`` None: every standing is UNKNOWN. ``most_offered``: maximum number of
    best-fitting nodes returned by filter; 0: all."""

    host: str
    port: int
    threads: int
    kubeconfig: Path | None
    policy: str
    scheduler_name: str
    most_grace_ms: int
    bind_timeout_ms: int
    tls: TLS | None
    election: ElectionSettings = ElectionSettings()
    timekeeper: Timekeeper | None = None
    preempting: Preempting = Preempting()
    most_offered: int = 0
    log_format: str = "logfmt"
    lock_nodes: tuple[str, ...] = ()  # dialects for whose node plugins the extender locks nodes
    unhealthy_lists: str = ""  # namespace with gpushare's lists of unhealthy cards; "": not read
    model_names: ModelNames = ()  # by which pods may request models
    prometheus: PrometheusSettings | None = None  # None: the timekeeper has the use of cards
    scale: Scale = BY_UTILISATION
    read_port: ReadPortSettings | None = None


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> ExtenderSettings:
    """The settings of ``python -m scheduler_ext``. Exits with 2 and a sentence if one is missing or
    invalid."""
    parser = flags_of(environment)
    given = parser.parse_args(arguments)
    host, port = given.listen
    files = (given.tls_cert, given.tls_key, given.client_ca)
    if any(files) and not all(files):
        parser.error("--tls-cert, --tls-key and --client-ca go together")
    if not all(files) and not _is_loopback(host):
        parser.error(
            f"--listen {host}: any client of this address could bind pods; give --tls-cert, --tls-key and "
            "--client-ca, or listen on loopback"
        )
    if given.hold_cards + given.pdb_grace + given.max_grace_period > MAX_MS:
        parser.error(
            "--hold-cards, --pdb-grace and --max-grace-period are more than 1h together, the longest that"
            " cards may be held for a pod"
        )
    try:
        prometheus, scale = card_settings.read(given)
    except ValueError as error:
        parser.error(str(error))
    return ExtenderSettings(
        host=host,
        port=port,
        threads=given.threads,
        kubeconfig=given.kubeconfig,
        policy=given.policy,
        scheduler_name=given.scheduler_name,
        most_grace_ms=given.max_grace_period,
        bind_timeout_ms=given.bind_timeout,
        tls=TLS(*files) if all(files) else None,
        election=_election(given),
        timekeeper=_timekeeper(given) if given.timekeeper_url else None,
        preempting=Preempting(given.most_preemptions, given.hold_cards, given.pdb_grace),
        most_offered=given.most_offered,
        log_format=given.log_format,
        lock_nodes=given.lock_nodes,
        unhealthy_lists=given.unhealthy_lists,
        model_names=given.model_names,
        prometheus=prometheus,
        scale=scale,
        read_port=read_port_settings.read(given),
    )


def _timekeeper(given: argparse.Namespace) -> Timekeeper:
    return Timekeeper(given.timekeeper_url, given.timekeeper_ca, given.token_file, given.stale_after)


def _election(given: argparse.Namespace) -> ElectionSettings:
    form = given.leader_election
    of_form = names.SCHEDULER if form == "scheduler" else names.EXTENDER
    return ElectionSettings(
        form=form,
        lease=given.lease or (names.NAMESPACE, of_form),
        duration_ms=given.lease_duration,
        identity=given.identity or socket.gethostname(),
        pod=given.pod or (names.NAMESPACE, socket.gethostname()),
    )


def flags_of(environment: Mapping[str, str]) -> Parser:
    """The flags of the extender; those without a value come from ``BURSAR_`` variables."""
    parser = Parser(
        environment,
        prog="bursar-extender",
        description="kube-scheduler's extender: chooses the node and the cards of each GPU pod, binds the"
        " pod to them, and requeues the next pod when a card becomes free. It keeps no state of its own:"
        " everything is read from the API server's objects.",
        epilog="Routes: POST /filter, /prioritize, /preempt, /bind for kube-scheduler; GET /v1/cluster "
        "(cards and the pods on them), /v1/waiting (why pods wait), /livez, /readyz, /metrics. The read-only "
        "port serves the latter, with a token, and POST /v1/simulate.",
    )
    _serving_flags(parser)
    _placement_flags(parser)
    _foreign_node_flags(parser)
    parser.add_log_format()
    _election_flags(parser)
    _standings_flags(parser)
    _preemption_flags(parser)
    card_settings.add_flags(parser)
    read_port_settings.add_flags(parser)
    return parser


def _serving_flags(parser: Parser) -> None:
    parser.add(
        "--listen", address, "127.0.0.1:8445", "address to serve on; other than loopback only with TLS"
    )
    parser.add(
        "--threads",
        whole_number(1, 1_000),
        "16",
        "binds at a time; each waits for the API server; other calls do not wait for binds",
    )
    parser.add("--kubeconfig", path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    parser.add("--tls-cert", path_or_none, "", "certificate to serve with, PEM")
    parser.add("--tls-key", path_or_none, "", "its private key, PEM")
    parser.add("--client-ca", path_or_none, "", "CA of permitted clients, PEM")


def _placement_flags(parser: Parser) -> None:
    parser.add(
        "--policy",
        str,
        "fragmentation",
        "placement policy of pods and namespaces without one of their own",
        POLICIES,
    )
    parser.add(
        "--scheduler-name", str, names.SCHEDULER, "schedulerName of the pods that this extender requeues"
    )
    parser.add(
        "--max-grace-period", _DURATION_MS, "10m", "longest time for which an orphaned pod keeps its cards"
    )
    parser.add(
        "--bind-timeout",
        _DURATION_MS,
        "1500ms",
        "time limit of a bind; below kube-scheduler's httpTimeout",
    )
    parser.add(
        "--most-offered",
        whole_number(0, 1_000),
        "0",
        "maximum number of best-fitting nodes returned by filter; kube-scheduler's own preferences"
        " (spreading, preferred affinity) choose among these; with 16 a large cluster binds faster; a"
        " simulation always sees all; 0 = all",
    )


def _foreign_node_flags(parser: Parser) -> None:
    """What other products' nodes need."""
    parser.add(
        "--lock-nodes",
        optional(_locking, ()),
        "",
        f"dialects for whose node plugins the extender locks nodes, out of {', '.join(LOCKING)}; the right to"
        " patch nodes is in deploy/samples/node-locks.yaml; empty: none, and such nodes are closed",
    )
    parser.add(
        "--unhealthy-lists",
        optional(namespace, ""),
        "",
        "namespace with gpushare's ConfigMaps unhealthy-gpu-NODE; the right to read ConfigMaps there is"
        " in deploy/samples/gpushare-health.yaml; empty: they are not read",
    )


def _locking(text: str) -> tuple[str, ...]:
    given = tuple(each.strip() for each in text.split(","))
    if any(each not in LOCKING for each in given):
        raise wrong(text, f"dialects, separated by commas, out of {', '.join(LOCKING)}")
    return given


def _election_flags(parser: Parser) -> None:
    parser.add(
        "--leader-election",
        str,
        "none",
        "how this replica knows whether it leads: none (a single replica), scheduler (the kube-scheduler"
        " beside it leads) or lease (a Lease of its own)",
        ELECTIONS,
    )
    parser.add(
        "--lease",
        optional(namespaced, None),
        "",
        "the Lease that elects, as NAMESPACE/NAME; empty: bursar-system/bursar-scheduler with scheduler,"
        " bursar-system/bursar-extender with lease",
    )
    parser.add(
        "--lease-duration",
        _LEASE_MS,
        "15s",
        "lifetime of the extender's own Lease without renewal, in whole seconds",
    )
    parser.add(
        "--identity",
        str,
        "",
        "this replica's name in the Lease; with scheduler, the host's name as the kube-scheduler beside it"
        " has it; empty: the host's name",
    )
    parser.add(
        "--pod",
        optional(namespaced, None),
        "",
        "the pod that this process runs in, as NAMESPACE/NAME; with an election the leader's mark is written"
        " there; empty: the host's name, in bursar-system",
    )


def _standings_flags(parser: Parser) -> None:
    parser.add(
        "--timekeeper-url",
        optional(https, ""),
        "",
        "URL of the timekeeper, for standings; empty: none, and priority alone decides the order of pods and"
        " their preemption",
    )
    parser.add("--timekeeper-ca", Path, "/etc/bursar/tls/ca.crt", "CA bundle of the timekeeper, PEM; reread")
    parser.add(
        "--token-file", Path, "/var/run/bursar/token/token", "token for the timekeeper, read before each poll"
    )
    parser.add(
        "--stale-after", _DURATION_MS, "30s", "time without the timekeeper after which standings are UNKNOWN"
    )


def _preemption_flags(parser: Parser) -> None:
    parser.add(
        "--most-preemptions",
        whole_number(0, 1_000),
        "8",
        "simultaneous preemptions: pods for which cards are reserved while victims are evicted; 0 = none",
    )
    parser.add(
        "--hold-cards",
        _DURATION_MS,
        "3m",
        "how long cards stay reserved for such a pod, beyond the victims' longest grace period",
    )
    parser.add(
        "--pdb-grace",
        _DURATION_MS,
        "10m",
        "how long the PodDisruptionBudget of an over-budget pod is honoured before the pod is deleted, until"
        " the timekeeper gives pdbGrace; with --hold-cards and --max-grace-period at most 1h",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
