"""The sidecar's settings: four variables that the webhook sets, flags of the same names that override them
for use at a terminal, and the cards that the container runtime makes visible."""

from __future__ import annotations

import re

from sidecar import __version__
from sidecar.spool import MAX_CARDS
from timekeeper.edge.http_client import PEM, server_of
from timekeeper.edge.log import FORMATS
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from timekeeper.edge.http_client import Server

# name, meaning; the flag is the name without BURSAR_, in small letters with dashes
VARIABLES = (
    (
        "BURSAR_TIMEKEEPER_URL",
        "https URL of the timekeeper, such as https://bursar-timekeeper.bursar-system.svc",
    ),
    ("BURSAR_TOKEN_FILE", "file with the service account token to send; read again for each post"),
    ("BURSAR_CA", "CA certificates that sign the timekeeper's, as PEM text or as the path of a PEM file"),
    ("BURSAR_SPOOL", "folder for heartbeats that the timekeeper has not acknowledged"),
)
# Set to "exclusive" if the pod requests whole cards only.
SHARING = "BURSAR_CARDS"
EXCLUSIVE = "exclusive"
CARDS = "NVIDIA_VISIBLE_DEVICES"
LOG_FORMAT = "BURSAR_LOG_FORMAT"
# The kubelet sets this in every container.
IN_A_POD = "KUBERNETES_SERVICE_HOST"

_URL = re.compile(r"https://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~%-]+)*/*")
_CARD = re.compile(r"(GPU|MIG)-[A-Za-z0-9/_-]{1,90}")


class SettingError(ValueError):
    """A setting is missing or invalid. The text is one sentence for the user."""


@value
class SidecarSettings:
    """See `VARIABLES`."""

    server: Server  # the timekeeper
    token_file: str
    ca: str  # PEM text, or a path
    spool: str
    cards: tuple[str, ...]  # UUIDs
    exclusive: bool  # no other pod uses the pod's cards
    log_format: str


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> SidecarSettings:
    """The settings. Raises `SettingError` for a bad one, `SystemExit` for ``--help`` and unknown flags."""
    given = {name: environ.get(name, "") for name, _ in VARIABLES}
    if arguments:
        given |= _flags(arguments)
    missing = [name for name, _ in VARIABLES if not given[name].strip()]
    if missing:
        flags = ", ".join(map(_flag, missing))
        raise SettingError(f"not set: {', '.join(missing)} (as flags: {flags}).")
    return SidecarSettings(
        _server(given["BURSAR_TIMEKEEPER_URL"].strip()),
        given["BURSAR_TOKEN_FILE"],
        _ca(given["BURSAR_CA"]),
        given["BURSAR_SPOOL"],
        cards(environ.get(CARDS, "")),
        environ.get(SHARING, "").strip() == EXCLUSIVE,
        log_format(environ.get(LOG_FORMAT, "").strip() or FORMATS[0], LOG_FORMAT),
    )


def log_format(text: str, name: str) -> str:
    """The format of log lines. Raises `SettingError` for an unknown one; ``name``: of the setting."""
    if text not in FORMATS:
        raise SettingError(f"{name} is {text!r}, but must be {' or '.join(FORMATS)}.")
    return text


def by_hand(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a person rather than a kubelet started the sidecar: with flags, or outside of a pod and without
    any of our variables."""
    return bool(arguments) or not (IN_A_POD in environ or any(name in environ for name, _ in VARIABLES))


def cards(listed: str) -> tuple[str, ...]:
    """The UUIDs in ``NVIDIA_VISIBLE_DEVICES``, at most `MAX_CARDS`. ``void``, ``none``, ``all`` and indices
    do not name the pod's cards."""
    names = (each.strip() for each in listed.split(","))
    return tuple(dict.fromkeys(each for each in names if _CARD.fullmatch(each)))[:MAX_CARDS]


def _flag(name: str) -> str:
    return "--" + name.removeprefix("BURSAR_").lower().replace("_", "-")


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    import argparse  # 0.4 MiB; a pod passes no flags

    parser = argparse.ArgumentParser(
        prog="bursar-sidecar",
        description="Sends heartbeats for its pod to the timekeeper, with the utilisation and memory of the"
        " pod's cards as NVML reports them. Runs until SIGTERM. Stores heartbeats until the timekeeper"
        " acknowledges them.",
        epilog=f"{CARDS} names the cards by UUID, as for the container runtime; without any, heartbeats carry"
        f" no figures. In a pod and without flags, a wrong"
        " setting is logged once and the process waits for SIGTERM: after an exit the kubelet would restart"
        " it again and again and take the pod out of its Services.",
    )
    parser.add_argument("--version", action="version", version=f"bursar {__version__}")
    for name, about in VARIABLES:
        parser.add_argument(_flag(name), dest=name, metavar=name.rpartition("_")[2], help=f"{about} [{name}]")
    chosen = vars(parser.parse_args(arguments))
    return {name: text for name, text in chosen.items() if text is not None}


def _server(text: str) -> Server:
    try:
        if not _URL.fullmatch(text):
            raise ValueError
        return server_of(text)
    except ValueError:
        raise SettingError(
            f"BURSAR_TIMEKEEPER_URL is {text!r}, but must be an https URL such as https://timekeeper.example:8444."
        ) from None


def _ca(text: str) -> str:
    if PEM not in text and "\n" in text.strip():
        raise SettingError(f"BURSAR_CA has several lines, but none of them is {PEM}.")
    return text
