"""The node agent's settings: flags, each with an environment variable as its default.

The variable of ``--foo-bar`` is ``BURSAR_FOO_BAR``.
"""

from __future__ import annotations

import argparse

from sidecar import __version__
from sidecar import settings as of_pods
from sidecar.log import FORMATS
from sidecar.node.nvml.cards import OF_PROGRAMS
from sidecar.node.state.node_patch import STARTUP_TAINT
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# flag, default, meaning
FLAGS = (
    ("node-name", "", "name of the agent's node; required"),
    ("api-url", "", "URL of the API server; default: that of the pod's cluster"),
    (
        "api-token-file",
        f"{ACCOUNT}/token",
        "file with the token for the API server; read again for each call",
    ),
    ("api-ca", f"{ACCOUNT}/ca.crt", "file with the CA certificates that sign the API server's"),
    (
        "timekeeper-url",
        "",
        "https URL of the timekeeper; default: none, use is not reported",
    ),
    ("token-file", "/var/run/bursar/token/token", "file with the token for the timekeeper"),
    (
        "ca",
        "/etc/bursar/tls/ca.crt",
        "CA certificates that sign the timekeeper's, as PEM or a path; a changed CA in the timekeeper's"
        " answers is followed",
    ),
    (
        "spool",
        "/var/run/bursar/spool",
        "folder for reports that the timekeeper has not acknowledged, and for the CA that was followed",
    ),
    (
        "listen",
        "0.0.0.0:8446",
        "address and port for /metrics, /livez and /readyz, which is 200 once the node was written",
    ),
    ("look-every", "5s", "interval between two readings of the cards, 1s to 10s"),
    ("devices", "nvml", "reader of the cards: nvml, or the name of an entry point bursar.devices"),
    (
        "ignore-xids",
        "",
        f"XIDs that do not make a card unhealthy, beside {sorted(OF_PROGRAMS)}; such as 92,94",
    ),
    ("proc", "/proc", "the node's /proc"),
    ("cgroups", "/sys/fs/cgroup", "the node's /sys/fs/cgroup"),
    ("pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources socket"),
    ("runtime-configs", "", "configuration files of the container runtime, separated by commas"),
    (
        "close-on-strangers",
        "on",
        "on: no cards of the node are allocated while unauthorized processes use one; off: they are",
    ),
    (
        "trusted-namespaces",
        "kube-system,gpu-operator,bursar-system,bursar-node",
        "namespaces whose pods may use any card, separated by commas",
    ),
    (
        "startup-taint",
        "off",
        f"on: the taint {STARTUP_TAINT} is removed from the node once its inventory stands; it needs the"
        " right in deploy/samples/startup-taint.yaml",
    ),
    ("log-format", FORMATS[0], f"format of the log lines on stderr: {' or '.join(FORMATS)}"),
)


@value
class AgentSettings:
    """See `FLAGS`."""

    node_name: str
    api_url: str  # scheme, host and port
    api_token_file: str
    api_ca: str
    timekeeper: of_pods.SidecarSettings | None  # None: use is not reported
    host: str
    port: int
    look_every_ms: int
    devices: str  # the reader of the cards
    ignored_xids: frozenset[int]
    proc: str
    cgroups: str
    pod_resources: str
    runtime_configs: tuple[str, ...]
    close_on_strangers: bool
    trusted_namespaces: frozenset[str]
    removes_startup_taint: bool
    log_format: str


class _AgentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence and exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """The settings of ``python -m sidecar.node``. Exits with 2 and a sentence if one is missing or
    invalid."""
    parser = flags_of(environment)
    given = {
        name.replace("_", "-"): text.strip() for name, text in vars(parser.parse_args(arguments)).items()
    }
    try:
        return _settings(given, environment)
    except of_pods.SettingError as error:
        parser.error(str(error))


def variable(flag: str) -> str:
    """The variable of a flag."""
    return "BURSAR_" + flag.upper().replace("-", "_")


def _settings(given: Mapping[str, str], environment: Mapping[str, str]) -> AgentSettings:
    if not given["node-name"]:
        raise of_pods.SettingError(f"--node-name is not set (or {variable('node-name')}).")
    host, port = _listen(given["listen"])
    return AgentSettings(
        given["node-name"],
        given["api-url"] or _in_cluster(environment),
        given["api-token-file"],
        given["api-ca"],
        _timekeeper(given),
        host,
        port,
        _look_every(given["look-every"]),
        given["devices"],
        OF_PROGRAMS | _numbers(given["ignore-xids"]),
        given["proc"],
        given["cgroups"],
        given["pod-resources"],
        tuple(each.strip() for each in given["runtime-configs"].split(",") if each.strip()),
        _switch(given["close-on-strangers"], "--close-on-strangers"),
        frozenset(each.strip() for each in given["trusted-namespaces"].split(",") if each.strip()),
        _switch(given["startup-taint"], "--startup-taint"),
        of_pods.log_format(given["log-format"], "--log-format"),
    )


def _timekeeper(given: Mapping[str, str]) -> of_pods.SidecarSettings | None:
    if not given["timekeeper-url"]:
        return None
    names = ("timekeeper-url", "token-file", "ca", "spool")
    return of_pods.read((), {variable(name): given[name] for name in names})


def _in_cluster(environment: Mapping[str, str]) -> str:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        return "https://kubernetes.default.svc"
    return (
        f"https://{f'[{host}]' if ':' in host else host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"
    )


def _listen(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not _is_number(port) or not 1 <= int(port) <= 65535:
        raise of_pods.SettingError(f"--listen is {text!r}, but must be ADDRESS:PORT such as 0.0.0.0:8446.")
    return host.strip("[]"), int(port)


def _look_every(text: str) -> int:
    number = text.removesuffix("s")
    if not text.endswith("s") or not _is_number(number) or not 1 <= int(number) <= 10:
        raise of_pods.SettingError(f"--look-every is {text!r}, but must be 1s to 10s.")
    return int(number) * 1000


def _numbers(text: str) -> frozenset[int]:
    words = [each.strip() for each in text.split(",") if each.strip()]
    if not all(map(_is_number, words)):
        raise of_pods.SettingError(f"--ignore-xids is {text!r}, but must be numbers separated by commas.")
    return frozenset(map(int, words))


def _switch(text: str, flag: str) -> bool:
    if text not in ("on", "off"):
        raise of_pods.SettingError(f"{flag} is {text!r}, but must be on or off.")
    return text == "on"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def flags_of(environment: Mapping[str, str]) -> _AgentParser:
    """The flags of the node agent; those without a value come from ``BURSAR_`` variables."""
    parser = _AgentParser(
        prog="bursar-node",
        description="The agent of a GPU node: reports its cards, their health, and the pods that hold and use"
        " them.",
    )
    parser.add_argument("--version", action="version", version=f"bursar {__version__}")
    for flag, default, about in FLAGS:
        value = environment.get(variable(flag), "") or default
        more = f" [{variable(flag)}; {default or 'none'}]".replace("%", "%%")
        parser.add_argument(
            f"--{flag}", default=value, metavar=flag.rpartition("-")[2].upper(), help=about + more
        )
    return parser
