"""The flags of the certificate process (``certificates``): each ``--foo-bar`` has the variable
``BURSAR_FOO_BAR`` as its default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from timekeeper.core import names
from timekeeper.runtime.flags import (
    Parser,
    argument,
    choice,
    flag,
    log_format_flag,
    path_or_none,
    repeated,
)
from webhook.lifetimes import CertificateLifetimes
from webhook.settings.flag_values import NATURAL

CONFIGURATION = "zz-bursar"  # mutating webhooks are called in the order of these names


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSettings:
    """The settings of `certificates`."""

    # the objects that are kept, and the names in the certificates
    kubeconfig: Path | None = flag(path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    agents_namespace: str = flag(
        str,
        names.AGENTS_NAMESPACE,
        "namespace of the node agents, which gets the CAs in the ConfigMap bursar-ca; empty: none",
    )
    ca_configmap: str = flag(
        str, "", "ConfigMap in its own namespace that gets the CAs too, such as for a gateway; empty: none"
    )
    issuer: str = choice(
        ("bursar", "cert-manager"),
        "bursar",
        "creator of the certificates; with cert-manager, Bursar only reads its Secrets and adds their CAs "
        "to the webhook configurations",
    )
    extra_names: tuple[str, ...] = repeated(
        lambda text: [name for name in text.split(",") if name],
        "another name or address for the certificates, for example 127.0.0.1; may be repeated "
        "(BURSAR_EXTRA_NAME: several, separated by commas)",
        name="--extra-name",
    )

    log_format: str = log_format_flag()
    pod_uid: str = flag(
        str,
        "",
        "UID of its pod, from the downward API: a restarted container takes its own Lease at once; empty: it "
        "waits",
    )
    every_s: int = flag(
        NATURAL, "10", "seconds between two checks; a leader that misses three is replaced", name="--every"
    )
    folder: Path | None = flag(
        path_or_none, "", "folder to which the certificates are written too; empty: none", name="--write"
    )
    once: bool = argument(
        "--once",
        action="store_true",
        help="check and correct everything once, then exit: 0, or 1 where something failed",
    )

    # they have no flags
    namespace: str = names.NAMESPACE  # of the Secrets and Services
    lifetimes: CertificateLifetimes = field(default_factory=CertificateLifetimes)


def read_certificates(arguments: Sequence[str], environment: Mapping[str, str]) -> CertificateSettings:
    """The settings of ``python -m webhook certificates``. Exits with 2 and a sentence where one is bad."""
    return flags_of(environment).read(arguments)


def flags_of(environment: Mapping[str, str]) -> Parser[CertificateSettings]:
    """The flags of the certificate process; those without a value come from ``BURSAR_`` variables."""
    return Parser(
        CertificateSettings,
        environment,
        prog="bursar-webhook certificates",
        description="Keeps the CA and the certificates of webhook, timekeeper and extender in Secrets, "
        "renews them in time, and writes the CA into the webhook configurations. Runs until SIGTERM, or "
        "once.",
    )
