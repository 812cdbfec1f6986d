"""What may be written behind the flags, read as values. Each reader raises ArgumentTypeError with a sentence
that names what was given and what is allowed."""

import argparse
import re
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from timekeeper.core.quantity import integral
from webhook.admission.workloads import BadPathError, TemplatePath, read_path
from webhook.policy import PriorityClass

# With less the sidecar would start for minutes, or be killed for its memory.
LEAST_CPU_MILLI = 10
LEAST_MEMORY = 32 << 20
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 36_500 * 86_400


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 <= int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def natural(text: str) -> int:
    """A whole number from 1 to 1,000,000."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def duration(text: str) -> timedelta:
    """A time such as ``12h``, from a second to a hundred years."""
    match = re.fullmatch(r"([0-9]{1,10})([smhd])", text, re.ASCII)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 1 <= seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration from 1s to 36500d, such as 12h or 365d")
    return timedelta(seconds=seconds)


def https(text: str) -> str:
    """An ``https://`` URL."""
    address = urlsplit(text)
    if address.scheme != "https" or not address.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no https:// URL")
    return text


def https_or_empty(text: str) -> str:
    """An ``https://`` URL, or nothing."""
    return https(text) if text else ""


def folder(text: str) -> str:
    """An absolute path without ``..``."""
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", text, re.ASCII) or "/../" in f"{text}/":
        raise argparse.ArgumentTypeError(f"{text!r} is no absolute path such as /run/nvidia-mps")
    return text


def path_or_none(text: str) -> Path | None:
    """A path, None for no text."""
    return Path(text) if text else None


def priority_class(text: str) -> PriorityClass:
    """The value of a flag that takes ``NAME=VALUE``."""
    name, _, value = text.partition("=")
    digits = value.removeprefix("-")
    if not name or not digits.isascii() or not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return PriorityClass(name, int(value))


def sidecar_resources(text: str) -> tuple[str, str]:
    """The value of ``--sidecar-resources``: cpu and memory as quantities."""
    given = dict(each.strip().split("=", 1) for each in text.split(",") if "=" in each)
    cpu, memory = given.get("cpu", ""), given.get("memory", "")
    milli = re.fullmatch(r"([1-9][0-9]{0,5})(m?)", cpu, re.ASCII)
    enough = milli is not None and int(milli[1]) * (1 if milli[2] else 1000) >= LEAST_CPU_MILLI
    if len(given) != 2 or not enough or (integral(memory) or 0) < LEAST_MEMORY:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not cpu=AMOUNT,memory=AMOUNT, from {LEAST_CPU_MILLI}m and 32Mi on, such as "
            "cpu=100m,memory=128Mi"
        )
    return cpu, memory


def template_paths(text: str) -> tuple[TemplatePath, ...]:
    """The value of ``--template-path``: one or several, divided by commas."""
    try:
        return tuple(read_path(each.strip()) for each in text.split(",") if each.strip())
    except BadPathError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
