"""The flags of the certificate process (``certificates``): each ``--foo-bar`` has the variable
``BURSAR_FOO_BAR`` as its default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from timekeeper.core import names
from timekeeper.runtime.flags import (
    Parser,
    UnusableError,
    argument,
    choice,
    flag,
    log_format_flag,
    path_or_none,
    repeated,
)
from webhook.lifetimes import CertificateLifetimes
from webhook.settings.flag_values import NATURAL, duration

CONFIGURATION = "zz-bursar"  # mutating webhooks are called in the order of these names


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSettings:
    """The settings of `certificates`."""

    # the objects that are kept, and the names in the certificates
    kubeconfig: Path | None = flag(path_or_none, "", "kubeconfig file; empty: the pod's own service account")
    namespace: str = flag(str, names.NAMESPACE, "namespace of the Secrets and Services")
    agents_namespace: str = flag(
        str,
        names.AGENTS_NAMESPACE,
        "namespace of the node agents, which gets the CAs in the ConfigMap bursar-ca; empty: none",
    )
    ca_configmap: str = flag(
        str, "", "ConfigMap in its own namespace that gets the CAs too, such as for a gateway; empty: none"
    )
    configuration: str = flag(
        str,
        CONFIGURATION,
        "name of both webhook configurations; mutating webhooks are called in the order of names",
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

    ca_life: timedelta = flag(duration, "3650d", "lifetime of a CA; it is renewed when a third of it is left")
    leaf_life: timedelta = flag(
        duration, "365d", "lifetime of a server's certificate; renewed in the same way"
    )
    overlap: timedelta = flag(
        duration,
        "7d",
        "how long a new CA is trusted before it signs, and the former CA after its last certificate; "
        "longer than 50 heartbeats, and than a sidecar can be disconnected from the timekeeper",
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

    def __post_init__(self) -> None:
        """Refuses lifetimes that contradict each other."""
        if mistake := self.lifetimes.mistake():
            raise UnusableError(mistake)

    @property
    def lifetimes(self) -> CertificateLifetimes:
        """Those of all certificates."""
        return CertificateLifetimes(self.ca_life, self.leaf_life, self.overlap)


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
