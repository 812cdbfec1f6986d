"""The flags of the server (``serve``): each ``--foo-bar`` has the variable ``BURSAR_FOO_BAR`` as its
default."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timekeeper.core import __version__, names
from timekeeper.runtime.flags import Parser, address, https, optional, path_or_none
from webhook.admission.workloads import TemplatePath
from webhook.policy import AdmissionPolicy, Sidecar, SidecarImages
from webhook.settings.flag_values import (
    NATURAL,
    OTHER_SCHEDULERS,
    folder,
    mirrors,
    other_schedulers,
    priority_class,
    sidecar_resources,
    taint_key,
    template_paths,
)

_TRUST = Path("/etc/bursar/tls")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The settings of `serve`."""

    host: str
    port: int
    workers: int
    certificate: Path
    key: Path
    ca: Path
    client_ca: Path | None  # signs the certificates of callers; None: reviews are answered to everybody
    timekeeper_url: str
    token_file: Path
    kubeconfig: Path | None  # for Events and reviews of tokens; None: the pod's own service account
    stale_after_ms: int  # without an answer of the timekeeper for so long, standings are UNKNOWN
    policy: AdmissionPolicy  # until the first table of standings; without a CA
    template_paths: tuple[TemplatePath, ...] = ()  # of kinds beside the built-in ones
    log_format: str = "logfmt"
    metrics_access: str = "token"


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> WebhookSettings:
    """The settings of ``python -m webhook``. Exits with 2 and a sentence where one is missing or bad."""
    given = flags_of(environment).parse_args(arguments)
    host, port = given.listen
    cpu, memory = given.sidecar_resources
    sidecar = Sidecar(
        image=given.sidecar_image,
        timekeeper_url=given.sidecar_timekeeper_url or given.timekeeper_url,
        ca="",
        native=given.sidecar != "container",
        cpu=cpu,
        memory=memory,
        log_format=given.log_format,
    )
    return WebhookSettings(
        host=host,
        port=port,
        workers=given.workers,
        certificate=given.tls_cert,
        key=given.tls_key,
        ca=given.ca,
        client_ca=given.client_ca,
        timekeeper_url=given.timekeeper_url,
        token_file=given.token_file,
        kubeconfig=given.kubeconfig,
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
            sidecar_images=SidecarImages(given.sidecar_image, given.sidecar_mirrors),
            other_schedulers=given.other_schedulers,
            mps_pipes=given.mps_pipe_directory if given.mps == "on" else "",
            gpu_node_taint=given.gpu_node_taint,
        ),
        template_paths=tuple(given.template_path),
        log_format=given.log_format,
        metrics_access=given.metrics_access,
    )


def flags_of(environment: Mapping[str, str]) -> Parser:
    """The flags of the webhook; those without a value come from ``BURSAR_`` variables."""
    parser = Parser(
        environment,
        prog="bursar-webhook",
        description="Reviews pods for the API server: refuses invalid GPU requests, governs the others.",
        epilog="Flags marked * apply until the first contact with the timekeeper, which sends the settings "
        "of the budget ConfigMap. Other commands, each with its own --help: `bursar-webhook certificates` "
        "creates and renews the certificates; `review` judges manifests without a cluster; `audit` judges "
        "the objects in a cluster; `serve` is the default.",
    )
    _serving_flags(parser)
    _injection(parser)
    _initial_policy(parser)
    parser.add_log_format()
    parser.add_argument(
        "--template-path",
        action="extend",
        type=template_paths,
        default=_from_environment(parser, environment),
        metavar="GROUP/KIND=PATH",
        help="path of the pod templates of another kind, for example "
        "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template; may be repeated (none by default; "
        "BURSAR_TEMPLATE_PATH: several, separated by commas)",
    )
    return parser


def _serving_flags(flags: Parser) -> None:
    """Where it listens, and where the timekeeper is."""
    flags.add("--listen", address, "0.0.0.0:8443", "address to listen on, HTTPS")
    flags.add("--workers", NATURAL, "2", "number of worker processes")
    flags.add(
        "--tls-cert", Path, str(_TRUST / "tls.crt"), "serving certificate, PEM; loaded again when it changes"
    )
    flags.add("--tls-key", Path, str(_TRUST / "tls.key"), "its private key, PEM")
    flags.add(
        "--ca", Path, str(_TRUST / "ca.crt"), "CA bundle of the timekeeper, PEM; also given to the sidecars"
    )
    flags.add(
        "--client-ca",
        path_or_none,
        "",
        "CA of the API server's client certificate, PEM; reviews of other callers get 403. Empty: every "
        "caller gets an answer",
    )
    flags.add(
        "--timekeeper-url",
        https,
        f"https://bursar-timekeeper.{names.NAMESPACE}.svc",
        "the timekeeper's address, from which standings are polled",
    )
    flags.add(
        "--token-file", Path, "/var/run/bursar/token/token", "token for the timekeeper, read before each poll"
    )
    flags.add(
        "--kubeconfig",
        path_or_none,
        "",
        "kubeconfig file, to post Events and to review the tokens of readers of /metrics; empty: the pod's"
        " own service account; without access to the API server, no Event is posted and these readers get"
        " 503",
    )
    flags.add_metrics_access()
    flags.add(
        "--stale-after",
        NATURAL,
        "30",
        "seconds without an answer of the timekeeper after which standings are UNKNOWN; OVER_BUDGET does not "
        "age",
    )


def _injection(flags: Parser) -> None:
    """What it writes into pods."""
    flags.add("--sidecar-image", str, f"bursar/sidecar:{__version__}", "image of the injected sidecar")
    flags.add(
        "--sidecar-mirrors",
        mirrors,
        "",
        "how images of the sidecar may begin beside --sidecar-image, separated by commas, for clusters that "
        "rewrite images; for example registry.example/bursar/sidecar:",
    )
    flags.add(
        "--sidecar-timekeeper-url",
        optional(https, ""),
        "",
        "the timekeeper's address for sidecars; empty: the same as --timekeeper-url",
    )
    flags.add(
        "--sidecar-resources",
        sidecar_resources,
        "cpu=30m,memory=64Mi",
        "requests and limits of each sidecar, in pods that request cpu or memory; at least "
        "cpu=10m,memory=32Mi; raise them where a LimitRange requires more of every container",
    )
    flags.add(
        "--other-schedulers",
        other_schedulers,
        "",
        "schedulers of other systems that keep their GPU pods, separated by commas, of "
        f"{', '.join(OTHER_SCHEDULERS)}; their pods are governed and charged, and Bursar does not place them",
    )
    flags.add("--runtime-class", str, "", "runtimeClassName for GPU pods without one; empty: none is set")
    flags.add(
        "--gpu-node-taint",
        taint_key,
        "",
        "key of the taint of GPU nodes, which keeps pods without GPUs off them; GPU pods get a toleration of "
        "it, with the effect NoSchedule; empty: none",
    )
    flags.add(
        "--mps",
        str,
        "off",
        "limit GPU containers with NVIDIA's MPS, on nodes that run its daemon",
        ("off", "on"),
    )
    flags.add(
        "--mps-pipe-directory",
        folder,
        "/tmp/nvidia-mps",  # noqa: S108 (NVIDIA's default; nothing is written there)
        "folder of the MPS pipes in containers; the node's container runtime mounts it",
    )


def _initial_policy(flags: Parser) -> None:
    """The policy until the first contact with the timekeeper."""
    flags.add(
        "--mode",
        str,
        "enforce",
        "*enforce: refuse and demote; observe: only report what would happen",
        ("enforce", "observe"),
    )
    flags.add("--scheduler-name", str, names.SCHEDULER, "*schedulerName of GPU pods")
    flags.add(
        "--in-budget-class",
        priority_class,
        "gpu-default-priority=0",
        "*NAME=VALUE of the priority class in budget",
    )
    flags.add(
        "--over-budget-class",
        priority_class,
        "gpu-lower-priority=-5",
        "*NAME=VALUE of the priority class over budget",
    )
    flags.add(
        "--unknown-standing",
        str,
        "inBudget",
        "*how the standing UNKNOWN is treated",
        ("inBudget", "overBudget"),
    )
    flags.add("--max-grace-period", NATURAL, "600", "*longest terminationGracePeriodSeconds of a GPU pod")
    flags.add(
        "--sidecar",
        str,
        "native",
        "*how the sidecar is injected: native; or container, for Kubernetes before 1.29; on means native; "
        "off injects none; _settings can only change it to a plain container, or off",
        ("native", "container", "off", "on"),
    )


def _from_environment(parser: Parser, environment: Mapping[str, str]) -> list[TemplatePath]:
    try:
        return list(template_paths(environment.get("BURSAR_TEMPLATE_PATH", "")))
    except argparse.ArgumentTypeError as error:
        parser.error(f"BURSAR_TEMPLATE_PATH: {error}")
