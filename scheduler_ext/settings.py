"""The extender's settings: flags, with ``BURSAR_*`` environment variables as their defaults.

It is the only reader of the environment: flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduler_ext.model.node import ModelNames
from scheduler_ext.scoring.card_points import MODEL_FIGURES, WEIGHTS, Figures, ModelFigures, Scale
from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.request.request import POLICIES
from timekeeper.runtime import prometheus_settings
from timekeeper.runtime.flags import (
    Address,
    Parser,
    UnusableError,
    address,
    choice,
    duration_ms,
    flag,
    group,
    https,
    log_format_flag,
    namespace,
    namespaced,
    optional,
    path_or_none,
    whole_number,
    wrong,
)

MAX_WEIGHT = 1_000
MAX_FIGURE = 10**6

LOCKING = tuple(each.name for each in DIALECTS if each.node_lock)

_DURATION_MS = duration_ms("0ms", "36500d", "90s")


@dataclass(frozen=True, slots=True)
class ReadPortSettings:
    """``listen`` None: there is no such port."""

    listen: Address | None = flag(
        optional(address, None),
        "",
        "address of the read-only port with metrics and simulations, over TLS and with a token, such"
        " as [::]:8447; empty: none",
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


def model_names(text: str) -> ModelNames:
    """The value of ``--model-names``."""
    pairs = [
        re.fullmatch(r"\s*([A-Za-z0-9._-]{1,63})=([^=,]{1,128})", each, re.ASCII) for each in text.split(",")
    ]
    found = tuple((pair[1].lower(), pair[2].strip().lower()) for pair in pairs if pair is not None)
    if len(found) < len(pairs) or not all(part.strip(".") for _, part in found):
        raise wrong(text, "NAME=PART, separated by commas, with names as a label's value can have")
    return found


def weights(text: str) -> tuple[tuple[str, int], ...]:
    """The value of ``--load-weights``."""
    found = _amounts(text, ",", "=", MAX_WEIGHT)
    if found is None or not found.keys() <= set(WEIGHTS) or not any(found.values()):
        allowed = f"NAME=NUMBER, separated by commas, with names out of {', '.join(WEIGHTS)}, each once, and"
        raise wrong(text, f"{allowed} numbers from 0 to {MAX_WEIGHT} that are not all 0")
    return tuple((name, weight) for name, weight in found.items() if weight)


def models(text: str) -> ModelFigures:
    """The value of ``--model-figures``."""
    pairs = [each.rpartition("=") for each in text.split(",")]
    found = [(pattern.strip().lower(), _figures(figures)) for pattern, _, figures in pairs]
    models = tuple((pattern, figures) for pattern, figures in found if pattern and figures)
    if len(models) < len(found):
        allowed = "MODEL=NAME:NUMBER;NAME:NUMBER, separated by commas, with names out of"
        raise wrong(text, f"{allowed} {', '.join(MODEL_FIGURES)} and numbers from 0 to {MAX_FIGURE}")
    return models


def _figures(text: str) -> Figures | None:
    found = _amounts(text, ";", ":", MAX_FIGURE)
    return found if found and found.keys() <= set(MODEL_FIGURES) else None


def _amounts(text: str, between: str, sign: str, most: int) -> dict[str, int] | None:
    """The numbers by name; None for a text of another form, or that has a name twice."""
    parts = [
        re.fullmatch(rf"\s*([a-z-]+){sign}([0-9]{{1,9}})\s*", each, re.ASCII) for each in text.split(between)
    ]
    found = {part[1]: int(part[2]) for part in parts if part is not None}
    return found if len(found) == len(parts) and all(each <= most for each in found.values()) else None


@dataclass(frozen=True, slots=True)
class LoadPrometheus(prometheus_settings.PrometheusSettings):
    """Where it is; without one the timekeeper has the use of cards."""

    url: str = prometheus_settings.url_flag(
        "URL of Prometheus, for the use of cards that the policy load goes by; empty: what node agents report"
        " to the timekeeper"
    )


def _locking(text: str) -> tuple[str, ...]:
    given = tuple(each.strip() for each in text.split(","))
    if any(each not in LOCKING for each in given):
        raise wrong(text, f"dialects, separated by commas, out of {', '.join(LOCKING)}")
    return given


@dataclass(frozen=True, slots=True)
class TLS:
    """Files for mutual TLS: the server's certificate and key, and the CA of permitted clients."""

    certificate: Path
    key: Path
    client_ca: Path


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """How this replica knows whether it leads; names are namespace and name."""

    form: str = choice(
        ("none", "scheduler", "lease"),
        "none",
        "how this replica knows whether it leads: none (a single replica), scheduler (the kube-scheduler"
        " beside it leads) or lease (a Lease of its own)",
        name="--leader-election",
    )
    lease_duration_ms: int = flag(
        duration_ms("2s", "1h", "15s", unit="1s"),
        "15s",
        "lifetime of the extender's own Lease without renewal, in whole seconds",
    )
    identity: str = flag(
        lambda text: text or socket.gethostname(),
        "",
        "this replica's name in the Lease; with scheduler, the host's name as the kube-scheduler beside it"
        " has it; empty: the host's name",
    )
    pod: tuple[str, str] = flag(
        lambda text: namespaced(text) if text else (names.NAMESPACE, socket.gethostname()),
        "",
        "the pod that this process runs in, as NAMESPACE/NAME; with an election the leader's mark is written"
        " there; empty: the host's name, in bursar-system",
    )

    @property
    def lease(self) -> tuple[str, str]:
        """The Lease that elects."""
        return names.NAMESPACE, names.SCHEDULER if self.form == "scheduler" else names.EXTENDER


@dataclass(frozen=True, slots=True)
class Timekeeper:
    """The timekeeper's address, CA bundle and token. ``url`` empty: every standing is UNKNOWN."""

    url: str = flag(
        optional(https, ""),
        "",
        "URL of the timekeeper, for standings; empty: none, and priority alone decides the order of pods and"
        " their preemption",
        name="--timekeeper-url",
    )
    ca: Path = flag(
        Path,
        "/etc/bursar/tls/ca.crt",
        "CA bundle of the timekeeper, PEM; reread",
        name="--timekeeper-ca",
    )
    token_file: Path = flag(
        Path, "/var/run/bursar/token/token", "token for the timekeeper, read before each poll"
    )
    stale_after_ms: int = 30_000  # without an answer, until standings are UNKNOWN; it has no flag


@dataclass(frozen=True, slots=True)
class GangSettings:
    """How gangs start."""

    deadline_ms: int = flag(
        duration_ms("5s", "30m", "60s"),
        "60s",
        "how long a gang may take to start: by then as many of its pods as it needs have a node, or none"
        " keeps one",
        name="--gang-deadline",
    )
    ready_for_ms: int = flag(
        duration_ms("0s", "24h", "30m"),
        "0s",
        "how long after its start a pod of a gang may stay Pending, as without its image, before the gang"
        " leaves; 0s: for ever",
        name="--gang-ready-for",
    )
    drain_after_ms: int = flag(
        duration_ms("0s", "7d", "2m"),
        "2m",
        "how long a gang waits before cards that become free are kept for it",
        name="--gang-drain-after",
    )
    drain_for_ms: int = flag(
        duration_ms("0s", "24h", "15m"),
        "15m",
        "how long at most in a gang's first drain; its next is twice as long, up to 4 times; 0s: never",
        name="--gang-drain-for",
    )
    autoscale: str = choice(
        ("off", "on"),
        "off",
        "whether a gang that lacks cards is shown to an autoscaler, one at a time: where a pool may be empty",
        name="--gang-autoscale",
    )


@dataclass(frozen=True, slots=True)
class Preempting:
    """Limits of preemption."""

    most_preemptions: int = flag(
        whole_number(0, 1_000),
        "8",
        "simultaneous preemptions: pods for which cards are reserved while victims are evicted; 0 = none",
    )
    # they have no flags; with `--max-grace-period` they are at most `MAX_MS`
    hold_cards_ms: int = 180_000  # how long cards stay reserved beyond the victims' longest grace period
    pdb_grace_ms: int = 600_000  # until the timekeeper gives `pdbGrace`


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings:
    """The extender's settings."""

    listen: Address = flag(
        address, "127.0.0.1:8445", "address to serve on; other than loopback only with TLS"
    )
    threads: int = flag(
        whole_number(1, 1_000),
        "16",
        "binds at a time; other calls do not wait for them",
    )
    kubeconfig: Path | None = flag(path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    tls_cert: Path | None = flag(path_or_none, "", "certificate to serve with, PEM")
    tls_key: Path | None = flag(path_or_none, "", "its private key, PEM")
    client_ca: Path | None = flag(path_or_none, "", "CA of permitted clients, PEM")

    policy: str = choice(
        POLICIES, "fragmentation", "placement policy of pods and namespaces without one of their own"
    )
    scheduler_name: str = flag(str, names.SCHEDULER, "schedulerName of the pods that this extender requeues")
    touch: str = choice(
        ("all", "own"),
        "all",
        "whose waiting pods a new leader touches: those of all schedulers, or of --scheduler-name alone,"
        " where the kube-scheduler has no other profile",
    )
    max_grace_period_ms: int = flag(
        duration_ms("0ms", "47m", "90s"), "10m", "longest time for which an orphaned pod keeps its cards"
    )
    bind_timeout_ms: int = flag(
        _DURATION_MS, "1500ms", "time limit of a bind; below kube-scheduler's httpTimeout"
    )
    most_offered: int = flag(
        whole_number(0, 1_000),
        "0",
        "maximum number of best-fitting nodes returned by filter, among which kube-scheduler's own"
        " preferences choose; 16 makes a large cluster faster; 0 = all, as in a simulation",
    )

    # what other products' nodes need
    lock_nodes: tuple[str, ...] = flag(
        optional(_locking, ()),
        "",
        f"dialects for whose node plugins the extender locks nodes, out of {', '.join(LOCKING)}; the right to"
        " patch nodes is in deploy/samples/node-locks.yaml; empty: none, and such nodes are closed",
    )
    unhealthy_lists: str = flag(
        optional(namespace, ""),
        "",
        "namespace with gpushare's ConfigMaps unhealthy-gpu-NODE; the right to read ConfigMaps there is"
        " in deploy/samples/gpushare-health.yaml; empty: they are not read",
    )

    log_format: str = log_format_flag()
    election: ElectionSettings = group(ElectionSettings)
    timekeeper: Timekeeper = group(Timekeeper)
    preempting: Preempting = group(Preempting)
    gangs: GangSettings = group(GangSettings)

    model_names: ModelNames = flag(
        optional(model_names, ()),
        "",
        "names by which pods may request models, each with a part of the model's own name, such as"
        " a100-80=A100-SXM4-80GB; a dot stands for any character",
    )
    prometheus: LoadPrometheus = group(LoadPrometheus)
    load_weights: tuple[tuple[str, int], ...] = flag(
        weights,
        "busy=1",
        f"what each figure of a card counts for the policy load, out of {', '.join(WEIGHTS)}",
    )
    model_figures: ModelFigures = flag(
        optional(models, ()),
        "",
        f"figures of models, out of {', '.join(MODEL_FIGURES)}, such as a100=sms:108;bandwidth:2039",
    )
    read_port: ReadPortSettings = group(ReadPortSettings)

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other."""
        files = (self.tls_cert, self.tls_key, self.client_ca)
        if any(files) and not all(files):
            raise UnusableError("--tls-cert, --tls-key and --client-ca go together")
        if not all(files) and not _is_loopback(self.listen.host):
            raise UnusableError(
                f"--listen {self.listen.host}: any client of this address could bind pods; give --tls-cert,"
                " --tls-key and --client-ca, or listen on loopback"
            )

    @property
    def tls(self) -> TLS | None:
        """None: plain HTTP, on loopback only."""
        if self.tls_cert and self.tls_key and self.client_ca:
            return TLS(self.tls_cert, self.tls_key, self.client_ca)
        return None

    @property
    def scale(self) -> Scale:
        """What the figures of cards count."""
        return Scale(self.load_weights, self.model_figures)


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> ExtenderSettings:
    """The settings of ``python -m scheduler_ext``. Exits with 2 and a sentence if one is missing or
    invalid."""
    return flags_of(environment).read(arguments)


def flags_of(environment: Mapping[str, str]) -> Parser[ExtenderSettings]:
    """The flags of the extender; those without a value come from ``BURSAR_`` variables."""
    return Parser(
        ExtenderSettings,
        environment,
        prog="bursar-extender",
        description="kube-scheduler's extender: chooses the node and the cards of each GPU pod, binds the"
        " pod to them, and requeues the next pod when a card becomes free. It keeps no state of its own:"
        " everything is read from the API server's objects.",
        epilog="Routes: POST /filter, /prioritize, /preempt, /bind for kube-scheduler; GET /livez, /readyz, "
        "/metrics. The read-only port serves the latter, with a token, and POST /v1/simulate.",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
