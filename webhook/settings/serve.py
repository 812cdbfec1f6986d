"""The flags of the server (``serve``): each ``--foo-bar`` has the variable ``BURSAR_FOO_BAR`` as its
default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timekeeper.core import __version__, names
from timekeeper.core.admission.policy import (
    AdmissionPolicy,
    PriorityClass,
    Sidecar,
    SidecarImages,
)
from timekeeper.core.names import Mode
from timekeeper.runtime.flags import (
    Address,
    Parser,
    address,
    choice,
    flag,
    https,
    log_format_flag,
    metrics_access_flag,
    path_or_none,
    repeated,
)
from webhook.admission.workloads import TemplatePath
from webhook.settings.flag_values import (
    NATURAL,
    OTHER_SCHEDULERS,
    folder,
    mirrors,
    other_schedulers,
    secret_name,
    sidecar_resources,
    taint_key,
    template_paths,
)

_TRUST = Path("/etc/bursar/tls")
STALE_AFTER_S = 30  # without an answer of the timekeeper; then standings but OVER_BUDGET are UNKNOWN
# the classes that the chart makes, and `maxGracePeriod`, until the timekeeper sends `_settings`
_IN_BUDGET, _OVER_BUDGET = PriorityClass("gpu-default-priority", 0), PriorityClass("gpu-lower-priority", -5)
_MAX_GRACE_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """The settings of `serve`."""

    # where it listens, and where the timekeeper is
    listen: Address = flag(address, "[::]:8443", "address to listen on, HTTPS")
    workers: int = flag(NATURAL, "2", "number of worker processes")
    tls_cert: Path = flag(Path, str(_TRUST / "tls.crt"), "certificate chain, PEM; reread when it changes")
    tls_key: Path = flag(Path, str(_TRUST / "tls.key"), "its private key, PEM")
    ca: Path = flag(
        Path, str(_TRUST / "ca.crt"), "CA bundle of the timekeeper, PEM; also given to the sidecars"
    )
    client_ca: Path | None = flag(
        path_or_none,
        "",
        "CA of the API server's client certificate, PEM; reviews of other callers get 403. Empty: every "
        "caller gets an answer",
    )
    timekeeper_url: str = flag(
        https,
        f"https://bursar-timekeeper.{names.NAMESPACE}.svc",
        "the timekeeper's address, from which standings are polled",
    )
    token_file: Path = flag(
        Path, "/var/run/bursar/token/token", "token for the timekeeper, read before each poll"
    )
    kubeconfig: Path | None = flag(
        path_or_none,
        "",
        "kubeconfig file, for Events and for the tokens of readers of /metrics; empty: the pod's own service"
        " account. Without access no Event is posted, and these readers get 503",
    )
    metrics_access: str = metrics_access_flag()

    # what it writes into pods
    sidecar_image: str = flag(str, f"bursar/sidecar:{__version__}", "image of the injected sidecar")
    sidecar_mirrors: tuple[str, ...] = flag(
        mirrors,
        "",
        "how images of the sidecar may begin beside --sidecar-image, separated by commas, where a cluster "
        "rewrites images; for example registry.example/bursar/sidecar:",
    )
    sidecar_resources: dict[str, str] = flag(
        sidecar_resources,
        "cpu=30m,memory=64Mi,ephemeral-storage=64Mi",
        "requests and limits of each sidecar, in pods that request cpu or memory, and in those that limit "
        "ephemeral-storage; at least cpu=10m,memory=32Mi,ephemeral-storage=32Mi; raise them where a "
        "LimitRange requires more of every container",
    )
    sidecar_user: str = choice(
        ("65532", "none"),
        "65532",
        "user and group of each sidecar; none: what the cluster or the pod gives it, as always in namespaces "
        "of OpenShift; never root",
    )
    sidecar_pull_secret: str = flag(
        secret_name,
        "",
        "Secret in the namespaces of GPU pods that is added to the imagePullSecrets of those with a sidecar; "
        "empty: none",
    )
    other_schedulers: frozenset[str] = flag(
        other_schedulers,
        "",
        "schedulers of other systems that keep their GPU pods, separated by commas, of "
        f"{', '.join(OTHER_SCHEDULERS)}",
    )
    claim_scheduler: str = flag(
        str,
        "default-scheduler",
        "schedulerName of pods with device claims of GPUs: the one scheduler that allocates devices",
    )
    runtime_class: str = flag(str, "", "runtimeClassName for GPU pods without one; empty: none is set")
    gpu_node_taint: str = flag(
        taint_key,
        "",
        "key of the taint of GPU nodes, of which GPU pods get a toleration with the effect NoSchedule; "
        "empty: none",
    )
    mps: str = choice(
        ("off", "on"), "off", "limit GPU containers with NVIDIA's MPS, on nodes that run its daemon"
    )
    mps_pipe_directory: str = flag(
        folder,
        "/tmp/nvidia-mps",  # noqa: S108 (NVIDIA's default; nothing is written there)
        "folder of the MPS pipes in containers; the node's container runtime mounts it",
    )

    # the policy until the first contact with the timekeeper
    mode: Mode = choice(
        ("enforce", "observe"),
        "enforce",
        "*enforce: refuse and demote; observe: only report what would happen",
    )
    placement: str = choice(
        ("on", "off"),
        "on",
        "*on: Bursar's scheduler places GPU pods; off: pods keep their scheduler, and get no cards of Bursar",
    )
    scheduler_name: str = flag(str, names.SCHEDULER, "*schedulerName of GPU pods")
    sidecar: str = choice(
        ("native", "off", "on"),
        "native",
        "*native, or on, injects the sidecar; off injects none, whatever budget entries say",
    )
    log_format: str = log_format_flag()

    template_paths: tuple[TemplatePath, ...] = repeated(
        template_paths,
        "path of the pod templates of another kind, for example "
        "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template; may be repeated (none by default; "
        "BURSAR_TEMPLATE_PATH: several, separated by commas)",
        name="--template-path",
        metavar="GROUP/KIND=PATH",
    )

    @property
    def policy(self) -> AdmissionPolicy:
        """The policy until the first table of standings, without a CA."""
        amounts = self.sidecar_resources
        sidecar = Sidecar(
            image=self.sidecar_image,
            timekeeper_url=self.timekeeper_url,
            ca="",
            cpu=amounts["cpu"],
            memory=amounts["memory"],
            ephemeral_storage=amounts["ephemeral-storage"],
            log_format=self.log_format,
            has_own_user=self.sidecar_user != "none",
            pull_secret=self.sidecar_pull_secret,
        )
        return AdmissionPolicy(
            known=False,
            mode=self.mode,
            scheduler_name=self.scheduler_name,
            in_budget=_IN_BUDGET,
            over_budget=_OVER_BUDGET,
            unknown_standing="inBudget",
            max_grace_s=_MAX_GRACE_S,
            runtime_class=self.runtime_class,
            sidecar=None if self.sidecar == "off" else sidecar,
            sidecar_images=SidecarImages(self.sidecar_image, self.sidecar_mirrors),
            other_schedulers=self.other_schedulers,
            claim_scheduler=self.claim_scheduler,
            mps_pipes=self.mps_pipe_directory if self.mps == "on" else "",
            gpu_node_taint=self.gpu_node_taint,
            places=self.placement == "on",
        )


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> WebhookSettings:
    """The settings of ``python -m webhook``. Exits with 2 and a sentence where one is missing or bad."""
    return flags_of(environment).read(arguments)


def flags_of(environment: Mapping[str, str]) -> Parser[WebhookSettings]:
    """The flags of the webhook; those without a value come from ``BURSAR_`` variables."""
    return Parser(
        WebhookSettings,
        environment,
        prog="bursar-webhook",
        description="Reviews pods for the API server: refuses invalid GPU requests, governs the others.",
        epilog="Flags marked * apply until the first contact with the timekeeper, which sends the settings "
        "of the budget ConfigMap. Other commands, each with its own --help: `bursar-webhook certificates` "
        "creates and renews the certificates; `review` judges manifests without a cluster; `audit` judges "
        "the objects in a cluster; `serve` is the default.",
    )
