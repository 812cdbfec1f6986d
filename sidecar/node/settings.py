"""What the node agent is told: flags, with ``BURSAR_*`` environment variables as their defaults.

A flag ``--foo-bar`` has the variable ``BURSAR_FOO_BAR``.
"""

from __future__ import annotations

import argparse

from sidecar import settings as of_pods
from sidecar.node.nvml.cards import OF_PROGRAMS
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# name of the flag, default, what it holds
FLAGS = (
    ("node-name", "", "name of the node that the agent runs on; required"),
    ("api-url", "", "URL of the API server; default: that of the pod's own cluster"),
    (
        "api-token-file",
        f"{ACCOUNT}/token",
        "file with the token for the API server, read afresh at each call",
    ),
    ("api-ca", f"{ACCOUNT}/ca.crt", "file with the CA certificates that sign the API server's"),
    (
        "timekeeper-url",
        "",
        "https URL of the timekeeper that use is reported to; default: it is not reported",
    ),
    ("token-file", "/var/run/bursar/token/token", "file with the token for the timekeeper"),
    ("ca", "/etc/bursar/tls/ca.crt", "CA certificates that sign the timekeeper's, PEM or a path to it"),
    ("spool", "/var/run/bursar/spool", "folder for reports that the timekeeper has not acknowledged"),
    ("listen", "0.0.0.0:8446", "address and port for /metrics, /livez and /readyz"),
    ("look-every", "5s", "time between two looks at the cards, 1s to 10s"),
    ("ignore-xids", "", f"XIDs that say nothing against a card, beside {sorted(OF_PROGRAMS)}; such as 92,94"),
    ("proc", "/proc", "the node's /proc"),
    ("cgroups", "/sys/fs/cgroup", "the node's /sys/fs/cgroup"),
    ("pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources socket"),
    ("runtime-configs", "", "files of the container runtime's configuration, parted by commas"),
    (
        "close-on-strangers",
        "on",
        "on: unknown processes on cards close the node for sharing; off: they do not",
    ),
    (
        "trusted-namespaces",
        "kube-system,gpu-operator,bursar-system,bursar-node",
        "namespaces whose pods may use any card without being strangers, parted by commas",
    ),
)


@value
class AgentSettings:
    """``api_url``: scheme, host and port. ``timekeeper``: None where use is not reported."""

    node_name: str
    api_url: str
    api_token_file: str
    api_ca: str
    timekeeper: of_pods.SidecarSettings | None
    host: str
    port: int
    look_every_ms: int
    ignored_xids: frozenset[int]
    proc: str
    cgroups: str
    pod_resources: str
    runtime_configs: tuple[str, ...]
    close_on_strangers: bool
    trusted_namespaces: frozenset[str]


class _AgentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence and exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """The settings of ``python -m sidecar.node``. Exits with 2 and a sentence where one is missing or bad."""
    parser = _parser(environment)
    given = {
        name.replace("_", "-"): text.strip() for name, text in vars(parser.parse_args(arguments)).items()
    }
    try:
        return _settings(given, environment)
    except of_pods.SettingError as wrong:
        parser.error(str(wrong))


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
        OF_PROGRAMS | _numbers(given["ignore-xids"]),
        given["proc"],
        given["cgroups"],
        given["pod-resources"],
        tuple(each.strip() for each in given["runtime-configs"].split(",") if each.strip()),
        _switch(given["close-on-strangers"]),
        frozenset(each.strip() for each in given["trusted-namespaces"].split(",") if each.strip()),
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
        raise of_pods.SettingError(f"--ignore-xids is {text!r}, but must be numbers parted by commas.")
    return frozenset(map(int, words))


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise of_pods.SettingError(f"--close-on-strangers is {text!r}, but must be on or off.")
    return text == "on"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _parser(environment: Mapping[str, str]) -> _AgentParser:
    parser = _AgentParser(
        prog="bursar-node",
        description="The agent of a GPU node: tells its cards, their health, who holds and uses them.",
    )
    for flag, default, about in FLAGS:
        said = environment.get(variable(flag), "") or default
        more = f" [{variable(flag)}; {default or 'none'}]".replace("%", "%%")
        parser.add_argument(
            f"--{flag}", default=said, metavar=flag.rpartition("-")[2].upper(), help=about + more
        )
    return parser
