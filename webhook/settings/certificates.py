"""The flags of the certificate process (``certificates``): each ``--foo-bar`` has the variable
``BURSAR_FOO_BAR`` as its default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timekeeper.core import names
from timekeeper.runtime.flags import Parser, path_or_none
from webhook.policy import CertificateLifetimes
from webhook.settings.flag_values import NATURAL, duration

CONFIGURATION = "zz-bursar"  # mutating webhooks are called in the order of these names


@dataclass(frozen=True, slots=True)
class CertificateSettings:
    """The settings of `certificates`."""

    kubeconfig: Path | None
    namespace: str
    agents_namespace: str  # gets the CAs in a ConfigMap; empty: there are no agents
    configuration: str
    extra_names: tuple[str, ...]
    folder: Path | None  # gets the leaves as files; None: none are written
    every_s: int
    once: bool
    issuer: str  # bursar: creates certificates; cert-manager: publishes the CAs of its Secrets
    lifetimes: CertificateLifetimes
    log_format: str = "logfmt"
    pod_uid: str = ""


def read_certificates(arguments: Sequence[str], environment: Mapping[str, str]) -> CertificateSettings:
    """The settings of ``python -m webhook certificates``. Exits with 2 and a sentence where one is bad."""
    parser = flags_of(environment)
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
        pod_uid=given.pod_uid,
    )


def flags_of(environment: Mapping[str, str]) -> Parser:
    """The flags of the certificate process; those without a value come from ``BURSAR_`` variables."""
    parser = Parser(
        environment,
        prog="bursar-webhook certificates",
        description="Keeps the CA and the certificates of webhook, timekeeper and extender in Secrets, "
        "renews them in time, and writes the CA into the webhook configurations. Runs until SIGTERM, or "
        "once.",
    )
    _kept_objects(parser, environment.get("BURSAR_EXTRA_NAME", ""))
    _lifetimes(parser)
    parser.add_log_format()
    parser.add(
        "--pod-uid",
        str,
        "",
        "UID of its pod, from the downward API: a restarted container takes its own Lease at once; empty: it "
        "waits",
    )
    parser.add("--every", NATURAL, "10", "seconds between two checks; a leader that misses three is replaced")
    parser.add("--write", path_or_none, "", "folder to which the certificates are written too; empty: none")
    parser.add_argument(
        "--once",
        action="store_true",
        help="check and correct everything once, then exit: 0, or 1 where something failed",
    )
    return parser


def _kept_objects(parser: Parser, extra_name: str) -> None:
    """The objects that are kept, and the names in the certificates."""
    parser.add("--kubeconfig", path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    parser.add("--namespace", str, names.NAMESPACE, "namespace of the Secrets and Services")
    parser.add(
        "--agents-namespace",
        str,
        names.AGENTS_NAMESPACE,
        "namespace of the node agents, which gets the CAs in the ConfigMap bursar-ca; empty: none",
    )
    parser.add(
        "--configuration",
        str,
        CONFIGURATION,
        "name of both webhook configurations; mutating webhooks are called in the order of names",
    )
    parser.add(
        "--issuer",
        str,
        "bursar",
        "creator of the certificates; with cert-manager, Bursar only reads its Secrets and adds their CAs "
        "to the webhook configurations",
        ("bursar", "cert-manager"),
    )
    parser.add_argument(
        "--extra-name",
        action="append",
        default=[extra_name] if extra_name else [],
        help="another name or address for the certificates, for example 127.0.0.1; may be repeated "
        "(BURSAR_EXTRA_NAME: several, separated by commas)",
    )


def _lifetimes(flags: Parser) -> None:
    """Lifetimes of certificates."""
    flags.add("--ca-life", duration, "3650d", "lifetime of a CA; it is renewed when a third of it is left")
    flags.add("--leaf-life", duration, "365d", "lifetime of a server's certificate; renewed in the same way")
    flags.add(
        "--overlap",
        duration,
        "7d",
        "how long a new CA is trusted before it signs, and the former CA after its last certificate; "
        "longer than 50 heartbeats, and than a sidecar can be disconnected from the timekeeper",
    )
