"""The webhook's settings: flags, with ``BURSAR_*`` environment variables as their defaults.

The only reader of the environment: a flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from timekeeper.core import __version__, names
from timekeeper.runtime.flags import Parser, address, https, optional, path_or_none, whole_number
from webhook.admission.workloads import TemplatePath
from webhook.policy import AdmissionPolicy, CertificateLifetimes, Sidecar
from webhook.settings.flag_values import (
    duration,
    folder,
    priority_class,
    sidecar_resources,
    template_paths,
)

T = TypeVar("T")

CONFIGURATION = "zz-bursar"  # the last that an API server calls

_NATURAL = whole_number(1, 1_000_000)
_TRUST = Path("/etc/bursar/tls")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What `serve` runs with. ``policy`` hold until the timekeeper tells others, and without a CA in them;
    ``stale_after_ms``: a standing not heard for so long is UNKNOWN; ``template_paths``: where
    kinds beyond the built-in ones keep pod templates."""

    host: str
    port: int
    workers: int
    certificate: Path
    key: Path
    ca: Path
    timekeeper_url: str
    token_file: Path
    stale_after_ms: int
    policy: AdmissionPolicy
    template_paths: tuple[TemplatePath, ...] = ()
    log_format: str = "logfmt"


@dataclass(frozen=True, slots=True)
class CertificateSettings:
    """What `certificates` runs with. ``agents_namespace`` empty: there are no agents to hand the CAs to;
    ``folder`` None writes no files; ``issuer``: `bursar` makes certificates, `cert-manager` only has those of
    another trusted."""

    kubeconfig: Path | None
    namespace: str
    agents_namespace: str
    configuration: str
    extra_names: tuple[str, ...]
    folder: Path | None
    every_s: int
    once: bool
    issuer: str
    lifetimes: CertificateLifetimes
    log_format: str = "logfmt"


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> WebhookSettings:
    """The settings of ``python -m webhook``. Exits with 2 and a sentence where one is missing or bad."""
    given = _serving(environment).parse_args(arguments)
    host, port = given.listen
    cpu, memory = given.sidecar_resources
    sidecar = Sidecar(
        image=given.sidecar_image,
        timekeeper_url=given.sidecar_timekeeper_url or given.timekeeper_url,
        ca="",
        native=given.sidecar != "container",
        cpu=cpu,
        memory=memory,
    )
    return WebhookSettings(
        host=host,
        port=port,
        workers=given.workers,
        certificate=given.tls_cert,
        key=given.tls_key,
        ca=given.ca,
        timekeeper_url=given.timekeeper_url,
        token_file=given.token_file,
        stale_after_ms=1000 * given.stale_after,
        policy=AdmissionPolicy(
            known=False,
            mode=given.mode,
            scheduler_name=given.scheduler_name,
            in_budget=given.in_budget_class,
            over_budget=given.over_budget_class,
            unknown_standing=given.unknown_standing,
            max_grace_s=given.max_grace_period,
            runtime_class=given.runtime_class,
            sidecar=None if given.sidecar == "off" else sidecar,
            mps_pipes=given.mps_pipe_directory if given.mps == "on" else "",
        ),
        template_paths=tuple(given.template_path),
        log_format=given.log_format,
    )


def read_certificates(arguments: Sequence[str], environment: Mapping[str, str]) -> CertificateSettings:
    """The settings of ``python -m webhook certificates``. Exits with 2 and a sentence where one is bad."""
    parser = _certifying(environment)
    given = parser.parse_args(arguments)
    lifetimes = CertificateLifetimes(given.ca_life, given.leaf_life, given.overlap)
    if lifetimes.mistake():
        parser.error(lifetimes.mistake())
    return CertificateSettings(
        kubeconfig=given.kubeconfig,
        namespace=given.namespace,
        agents_namespace=given.agents_namespace,
        configuration=given.configuration,
        extra_names=tuple(name for names in given.extra_name for name in names.split(",") if name),
        folder=given.write,
        every_s=given.every,
        once=given.once,
        issuer=given.issuer,
        lifetimes=lifetimes,
        log_format=given.log_format,
    )


def _serving(environment: Mapping[str, str]) -> Parser:
    parser = Parser(
        environment,
        prog="bursar-webhook",
        description="Reviews pods for the API server: refuses malformed GPU requests, governs the others.",
        epilog="The terms marked * hold until the timekeeper has been heard, which tells those of the budget "
        "ConfigMap. Other commands: `bursar-webhook certificates` makes and renews the certificates (see its "
        "own --help); `bursar-webhook serve` is the same as no command.",
    )
    _served(parser)
    _injected(parser)
    _until_told(parser)
    parser.add_log_format()
    parser.add_argument(
        "--template-path",
        action="extend",
        type=template_paths,
        default=_from_environment(parser, environment),
        metavar="GROUP/KIND=PATH",
        help="where another kind keeps its pod templates, such as "
        "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template; may be repeated (none by default; "
        "BURSAR_TEMPLATE_PATH: several, divided by commas)",
    )
    return parser


def _served(flags: Parser) -> None:
    """Where it serves, and whom it asks."""
    flags.add("--listen", address, "0.0.0.0:8443", "address to serve on, HTTPS")
    flags.add("--workers", _NATURAL, "2", "processes that review")
    flags.add(
        "--tls-cert", Path, str(_TRUST / "tls.crt"), "certificate to serve with, PEM; reread when it changes"
    )
    flags.add("--tls-key", Path, str(_TRUST / "tls.key"), "its private key, PEM")
    flags.add(
        "--ca", Path, str(_TRUST / "ca.crt"), "CA bundle of the timekeeper, PEM; handed to the sidecars too"
    )
    flags.add(
        "--timekeeper-url",
        https,
        f"https://bursar-timekeeper.{names.NAMESPACE}.svc",
        "where the standings are asked",
    )
    flags.add(
        "--token-file", Path, "/var/run/bursar/token/token", "token for the timekeeper, read before each poll"
    )
    flags.add(
        "--stale-after", _NATURAL, "30", "seconds without the timekeeper after which standings are UNKNOWN"
    )


def _injected(flags: Parser) -> None:
    """What it writes into pods."""
    flags.add("--sidecar-image", str, f"bursar/sidecar:{__version__}", "image of the injected sidecar")
    flags.add(
        "--sidecar-timekeeper-url",
        optional(https, ""),
        "",
        "where sidecars report; empty: as --timekeeper-url",
    )
    flags.add(
        "--sidecar-resources",
        sidecar_resources,
        "cpu=30m,memory=64Mi",
        "what each sidecar requests, and its limits too, in pods that ask for cpu or memory; more where a "
        "LimitRange wants more of every container",
    )
    flags.add("--runtime-class", str, "", "runtimeClassName for GPU pods that name none; empty: none is set")
    flags.add(
        "--mps", str, "off", "limit GPU containers by NVIDIA's MPS, where nodes run its daemon", ("off", "on")
    )
    flags.add(
        "--mps-pipe-directory",
        folder,
        "/tmp/nvidia-mps",  # noqa: S108 (NVIDIA's own default; nothing is written there)
        "where containers find the pipes of MPS; the node's container runtime mounts them",
    )


def _until_told(flags: Parser) -> None:
    """The terms that hold until the timekeeper tells others."""
    flags.add(
        "--mode", str, "enforce", "*refuse and demote, or only tell what would be", ("enforce", "observe")
    )
    flags.add("--scheduler-name", str, names.SCHEDULER, "*schedulerName of GPU pods")
    flags.add(
        "--in-budget-class", priority_class, "gpu-default-priority=0", "*NAME=VALUE of the class in budget"
    )
    flags.add(
        "--over-budget-class",
        priority_class,
        "gpu-lower-priority=-5",
        "*NAME=VALUE of the class over budget",
    )
    flags.add("--unknown-standing", str, "inBudget", "*how UNKNOWN is treated", ("inBudget", "overBudget"))
    flags.add("--max-grace-period", _NATURAL, "600", "*longest terminationGracePeriodSeconds of a GPU pod")
    flags.add(
        "--sidecar",
        str,
        "native",
        "*how the sidecar is injected: as a native sidecar, or, on Kubernetes before 1.29, as a plain "
        "container; on is native; off injects none",
        ("native", "container", "off", "on"),
    )


def _from_environment(parser: Parser, environment: Mapping[str, str]) -> list[TemplatePath]:
    try:
        return list(template_paths(environment.get("BURSAR_TEMPLATE_PATH", "")))
    except argparse.ArgumentTypeError as error:
        parser.error(f"BURSAR_TEMPLATE_PATH: {error}")


def _certifying(environment: Mapping[str, str]) -> Parser:
    parser = Parser(
        environment,
        prog="bursar-webhook certificates",
        description="Keeps the CA and the leaves of webhook and timekeeper in Secrets, renews them in time, "
        "and writes the CA into the webhook configurations. Runs until SIGTERM, or once.",
    )
    parser.add("--kubeconfig", path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    parser.add("--namespace", str, names.NAMESPACE, "namespace of the Secrets and Services")
    parser.add(
        "--agents-namespace",
        str,
        names.AGENTS_NAMESPACE,
        "namespace of the nodes' agents, where the ConfigMap bursar-ca gets the CAs; empty: none",
    )
    _registered(parser)
    parser.add(
        "--issuer",
        str,
        "bursar",
        "who makes the certificates; with cert-manager its Secrets are only read, and their CAs written into "
        "the webhook configurations, beside those that are there",
        ("bursar", "cert-manager"),
    )
    _lives(parser)
    parser.add_log_format()
    parser.add("--every", _NATURAL, "10", "seconds between two looks")
    parser.add("--write", path_or_none, "", "folder that the leaves are written to as well; empty: none")
    parser.add_argument(
        "--extra-name",
        action="append",
        default=[environment["BURSAR_EXTRA_NAME"]] if environment.get("BURSAR_EXTRA_NAME") else [],
        help="another name or address for the leaves, such as 127.0.0.1; may be repeated (BURSAR_EXTRA_NAME: "
        "several, divided by commas)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="set everything right once and exit: 0, or 1 where something is missing",
    )
    return parser


def _registered(flags: Parser) -> None:
    """How the API server is to ask us."""
    flags.add(
        "--configuration",
        str,
        CONFIGURATION,
        "name of both webhook configurations; mutating webhooks are called in the order of these names",
    )


def _lives(flags: Parser) -> None:
    """How long certificates are good."""
    flags.add("--ca-life", duration, "3650d", "life of a CA; it is renewed when a third of it is left")
    flags.add("--leaf-life", duration, "365d", "life of a server's certificate; renewed likewise")
    flags.add(
        "--overlap",
        duration,
        "7d",
        "how long a new CA is trusted before it signs, and the former one after the last leaf of it; longer "
        "than 50 heartbeats, and than a sidecar may be cut off from the timekeeper",
    )
