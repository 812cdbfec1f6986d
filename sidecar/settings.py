"""What the sidecar is told: four variables that the webhook sets, flags that shadow them for use by hand, and
the cards that the container runtime was told of."""

from __future__ import annotations

import re

from sidecar import trust
from sidecar.spool import MOST_CARDS
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# name, what it holds (the flag is the name without BURSAR_, in small letters with dashes)
VARIABLES = (
    (
        "BURSAR_TIMEKEEPER_URL",
        "https URL of the timekeeper, such as https://bursar-timekeeper.bursar-system.svc",
    ),
    ("BURSAR_TOKEN_FILE", "file with the service account token to send, read afresh at each post"),
    ("BURSAR_CA", "CA certificates that sign the timekeeper's, as PEM text or as a path to a PEM file"),
    ("BURSAR_SPOOL", "folder for the beats that the timekeeper has not acknowledged"),
)
# Set where the sidecar is a plain container of a pod whose containers can end: no kubelet ends it then, and
# the pod would run for ever.
ENDS = "BURSAR_ENDS"
WHEN_OVER = "over"
# Set where the pod's cards are its own as a whole.
SHARING = "BURSAR_CARDS"
EXCLUSIVE = "exclusive"
CARDS = "NVIDIA_VISIBLE_DEVICES"
# The kubelet sets it in every container.
IN_A_POD = "KUBERNETES_SERVICE_HOST"

_URL = re.compile(
    r"https://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?((?:/[A-Za-z0-9._~%-]+)*)/*"
)
_CARD = re.compile(r"(GPU|MIG)-[A-Za-z0-9/_-]{1,90}")


class SettingError(ValueError):
    """A setting is missing or cannot be; the text is one sentence for whoever runs the sidecar."""


@value
class SidecarSettings:
    """``authority`` is host and port as the URL wrote them; ``prefix`` the URL's path without a last slash;
    ``ends_when_over``: the sidecar ends by itself once the pod's other containers have ended; ``exclusive``:
    nobody else is on the pod's cards."""

    authority: str
    host: str
    port: int
    prefix: str
    token_file: str
    ca: str
    spool: str
    cards: tuple[str, ...]
    ends_when_over: bool
    exclusive: bool


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> SidecarSettings:
    """The settings. Raises `SettingError` for a bad one, `SystemExit` for ``--help`` and unknown flags."""
    given = {name: environ.get(name, "") for name, _ in VARIABLES}
    if arguments:
        given |= _flags(arguments)
    missing = [name for name, _ in VARIABLES if not given[name].strip()]
    if missing:
        flags = ", ".join(map(_flag, missing))
        raise SettingError(f"not set: {', '.join(missing)} (as flags: {flags}).")
    authority, host, port, prefix = _url(given["BURSAR_TIMEKEEPER_URL"].strip())
    return SidecarSettings(
        authority,
        host,
        port,
        prefix,
        given["BURSAR_TOKEN_FILE"],
        _ca(given["BURSAR_CA"]),
        given["BURSAR_SPOOL"],
        cards(environ.get(CARDS, "")),
        ends_when_over(environ),
        environ.get(SHARING, "").strip() == EXCLUSIVE,
    )


def ends_when_over(environ: Mapping[str, str]) -> bool:
    """Whether the sidecar ends by itself. Raises `SettingError` unless the variable is ``over`` or empty."""
    told = environ.get(ENDS, "").strip()
    if told not in ("", WHEN_OVER):
        raise SettingError(f"{ENDS} is {told!r}, but must be {WHEN_OVER} or not set.")
    return bool(told)


def by_hand(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether someone at a terminal started the sidecar, rather than a kubelet: with flags, or with none of
    our variables outside a pod."""
    return bool(arguments) or not (IN_A_POD in environ or any(name in environ for name, _ in VARIABLES))


def cards(listed: str) -> tuple[str, ...]:
    """The UUIDs in ``NVIDIA_VISIBLE_DEVICES``, as many as a beat may have figures of; ``void``, ``none``,
    ``all`` and bare indices name no card of the pod's."""
    names = (each.strip() for each in listed.split(","))
    return tuple(dict.fromkeys(each for each in names if _CARD.fullmatch(each)))[:MOST_CARDS]


def _flag(name: str) -> str:
    return "--" + name.removeprefix("BURSAR_").lower().replace("_", "-")


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    import argparse  # 0.4 MiB that a pod, which gives no flags, does not pay

    parser = argparse.ArgumentParser(
        prog="bursar-sidecar",
        description="Beats for the pod it runs in: says to the timekeeper that the pod runs, with NVML's"
        " figures for its cards. Runs until SIGTERM; keeps what the timekeeper has not acknowledged.",
        epilog=f"{CARDS} names the cards by UUID, as the container runtime is told; without any, beats carry"
        f" no figures. {ENDS}={WHEN_OVER} ends the sidecar when the timekeeper says that the pod's other"
        " containers have ended, or says nothing for 10 minutes. Without flags, and in a pod, a wrong setting"
        " is said once and the process waits for SIGTERM: an exit would have it restarted for ever and take"
        " the pod out of its Services.",
    )
    for name, about in VARIABLES:
        parser.add_argument(_flag(name), dest=name, metavar=name.rpartition("_")[2], help=f"{about} [{name}]")
    chosen = vars(parser.parse_args(arguments))
    return {name: text for name, text in chosen.items() if text is not None}


def _url(text: str) -> tuple[str, str, int, str]:
    match = _URL.fullmatch(text)
    port = int(match[2] or 443) if match else 0
    if not match or not 1 <= port <= 65535:
        raise SettingError(
            f"BURSAR_TIMEKEEPER_URL is {text!r}, but must be an https URL such as https://timekeeper.example:8444."
        )
    authority = match[1] if match[2] is None else f"{match[1]}:{port}"
    return authority, match[1].strip("[]"), port, match[3]


def _ca(text: str) -> str:
    if trust.PEM not in text and "\n" in text.strip():
        raise SettingError(f"BURSAR_CA holds several lines, but none of them is {trust.PEM}.")
    return text
