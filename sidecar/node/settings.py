"""The node agent's settings: flags, each with an environment variable as its default.

The variable of ``--foo-bar`` is ``BURSAR_FOO_BAR``.
"""

from __future__ import annotations

import argparse

from sidecar import __version__
from sidecar import settings as of_pods
from sidecar.node.nvml.cards import OF_PROGRAMS
from sidecar.node.state.node_patch import STARTUP_TAINT
from timekeeper.edge.log import FORMATS
from timekeeper.edge.value import TYPE_CHECKING, assigned, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn, TypeVar

    T = TypeVar("T")

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# the token for the timekeeper, its CA, and the folder for unacknowledged reports and the CA that was followed
_FILES = {
    "BURSAR_TOKEN_FILE": "/var/run/bursar/token/token",
    "BURSAR_CA": "/etc/bursar/tls/ca.crt",
    "BURSAR_SPOOL": "/var/run/bursar/spool",
}


def flag(read: Callable[[str, str], T], default: str, about: str) -> T:
    """A field that is a flag with a variable. ``read`` gets the text and the flag's name, and raises
    `SettingError`. ``default``: the text without both."""
    return (read, default, about)  # type: ignore[return-value]  # the reader's value takes its place


def _text(text: str, _: str) -> str:
    return text


def _required(text: str, flag: str) -> str:
    if not text:
        raise of_pods.SettingError(f"{flag} is not set (or {variable(flag.removeprefix('--'))}).")
    return text


def _listen(text: str, flag: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not _is_number(port) or not 1 <= int(port) <= 65535:
        raise of_pods.SettingError(f"{flag} is {text!r}, but must be ADDRESS:PORT such as [::]:8446.")
    return host.strip("[]"), int(port)


def _look_every(text: str, flag: str) -> int:
    number = text.removesuffix("s")
    if not text.endswith("s") or not _is_number(number) or not 1 <= int(number) <= 10:
        raise of_pods.SettingError(f"{flag} is {text!r}, but must be 1s to 10s.")
    return int(number) * 1000


def _words(text: str, _: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _xids(text: str, flag: str) -> frozenset[int]:
    words = _words(text, flag)
    if not all(map(_is_number, words)):
        raise of_pods.SettingError(f"{flag} is {text!r}, but must be numbers separated by commas.")
    return OF_PROGRAMS | frozenset(map(int, words))


def _switch(text: str, flag: str) -> bool:
    if text not in ("on", "off"):
        raise of_pods.SettingError(f"{flag} is {text!r}, but must be on or off.")
    return text == "on"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


@value
class AgentSettings:
    """The flag of a field ``foo_bar`` or ``foo_bar_ms`` is ``--foo-bar``."""

    node_name: str = flag(_required, "", "name of the agent's node; required")
    api_url: str = flag(_text, "", "URL of the API server; default: that of the pod's cluster")
    timekeeper_url: str = flag(
        _text, "", "https URL of the timekeeper; default: none, and use is not reported"
    )
    listen: tuple[str, int] = flag(
        _listen,
        "[::]:8446",
        "address and port for /metrics, /livez and /readyz, which is 200 once the node was written",
    )
    look_every_ms: int = flag(_look_every, "5s", "interval between two readings of the cards, 1s to 10s")
    devices: str = flag(
        _text, "nvml", "reader of the cards: nvml, or the name of an entry point bursar.devices"
    )
    ignore_xids: frozenset[int] = flag(
        _xids, "", f"XIDs that do not make a card unhealthy, beside {sorted(OF_PROGRAMS)}; such as 92,94"
    )
    proc: str = flag(_text, "/proc", "the node's /proc")
    cgroups: str = flag(_text, "/sys/fs/cgroup", "the node's /sys/fs/cgroup")
    pod_resources: str = flag(
        _text, "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's PodResources socket"
    )
    runtime_configs: tuple[str, ...] = flag(
        _words, "", "configuration files of the container runtime, separated by commas"
    )
    nri_socket: str = flag(
        _text, "/var/run/nri/nri.sock", "socket of the container runtime's NRI; without it no plugin runs"
    )
    cdi: tuple[str, ...] = flag(
        _words, "/etc/cdi,/var/run/cdi", "folders of CDI specifications, separated by commas"
    )
    driver_root: str = flag(
        _text, "", "folder with the driver's files, for NVML's library; default: where the loader finds it"
    )
    dev: str = flag(_text, "/dev", "the node's /dev, for cards that no CDI specification names")
    driver_libraries: str = flag(
        _text,
        "",
        "folder on the node with the driver's libraries, for the same cards; default: none is mounted",
    )
    close_on_strangers: bool = flag(
        _switch,
        "on",
        "on: no cards of the node are allocated while a stranger uses one; off: they are",
    )
    trusted_namespaces: frozenset[str] = flag(
        lambda text, flag: frozenset(_words(text, flag)),
        "kube-system,gpu-operator,bursar-system,bursar-node",
        "namespaces whose pods may use any card, separated by commas",
    )
    startup_taint: bool = flag(
        _switch,
        "off",
        f"on: the taint {STARTUP_TAINT} is removed from the node once its inventory stands; it needs the"
        " right in deploy/samples/startup-taint.yaml",
    )
    log_format: str = flag(
        of_pods.log_format, FORMATS[0], f"format of the log lines on stderr: {' or '.join(FORMATS)}"
    )

    @property
    def timekeeper(self) -> of_pods.SidecarSettings | None:
        """How the timekeeper is called; None: use is not reported. Raises `SettingError`."""
        if not self.timekeeper_url:
            return None
        return of_pods.read((), {**_FILES, "BURSAR_TIMEKEEPER_URL": self.timekeeper_url})


# flag, default, meaning
FLAGS = tuple(
    (name.removesuffix("_ms").replace("_", "-"), default, about)
    for name, (_, default, about) in assigned(AgentSettings).items()
)


class _AgentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence and exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """The settings of ``python -m sidecar.node``. Exits with 2 and a sentence if one is missing or
    invalid."""
    parser = flags_of(environment)
    given = vars(parser.parse_args(arguments))
    given["api_url"] = given["api_url"].strip() or _in_cluster(environment)
    try:
        made = AgentSettings(
            **{
                name: read(given[name.removesuffix("_ms")].strip(), f"--{flag}")
                for (name, (read, _, _)), (flag, _, _) in zip(
                    assigned(AgentSettings).items(), FLAGS, strict=True
                )
            }
        )
        made.timekeeper  # noqa: B018  # may raise
    except of_pods.SettingError as error:
        parser.error(str(error))
    return made


def variable(flag: str) -> str:
    """The variable of a flag."""
    return "BURSAR_" + flag.upper().replace("-", "_")


def _in_cluster(environment: Mapping[str, str]) -> str:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        return "https://kubernetes.default.svc"
    return (
        f"https://{f'[{host}]' if ':' in host else host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"
    )


def flags_of(environment: Mapping[str, str]) -> _AgentParser:
    """The flags of the node agent; those without a value come from ``BURSAR_`` variables."""
    parser = _AgentParser(
        allow_abbrev=False,
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
