"""Flags of every role: a parser with ``BURSAR_*`` environment variables as defaults, and readers of values.

A reader takes the text of a flag. It raises ArgumentTypeError with a sentence: the text, and what is allowed.
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from timekeeper.core import __version__
from timekeeper.runtime.log import FORMATS

T = TypeVar("T")
U = TypeVar("U")

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# what --kubeconfig takes
KUBECONFIG = (
    "it must be a YAML file with clusters, users, contexts and current-context, as kubectl reads it, such as"
    " /etc/kubernetes/admin.conf; or nothing, in a pod that has a service account"
)
_HTTPS = r"https://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?"


class UnusableError(ValueError):
    """A setting of the right form that cannot be used. The text is a sentence for the operator: the flag,
    what is wrong, what is allowed."""


class Parser(argparse.ArgumentParser):
    """Answers a bad flag with one sentence and exit code 2, and ``--version`` with Bursar's version.
    ``environment`` has the defaults of flags."""

    def __init__(self, environment: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._environment = environment or {}
        self.add_argument("--version", action="version", version=f"bursar {__version__}")

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        self.exit(2, f"{self.prog}: {message}\n")

    def add(
        self,
        flag: str,
        reader: Callable[[str], object],
        default: str,
        text: str,
        choices: Sequence[str] | None = None,
        short: str = "",
    ) -> None:
        """Adds ``--foo-bar``, whose default is in BURSAR_FOO_BAR. The help shows the flag's own default: a
        database's URL in the environment may hold a password."""
        name = flag.removeprefix("--").replace("-", "_").upper()
        self.add_argument(
            *([short] if short else []),
            flag,
            type=one_of(choices) if choices else reader,
            default=self._environment.get(f"BURSAR_{name}", default),
            choices=choices,
            metavar=None if choices else name,
            help=f"{text} ({f'default {default}' if default else 'empty by default'}; BURSAR_{name})",
        )

    def add_log_format(self) -> None:
        """Adds ``--log-format``."""
        self.add("--log-format", str, FORMATS[0], "format of the log lines on stderr", FORMATS)

    def add_metrics_access(self) -> None:
        """Adds ``--metrics-access``."""
        about = "token: readers of /metrics show a token and need the right to get that URL; open: all may"
        self.add("--metrics-access", str, "token", about, ("token", "open"))


def optional(reader: Callable[[str], T], empty: U) -> Callable[[str], T | U]:
    """The reader, with a value for the empty text."""
    return lambda text: reader(text) if text else empty


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """One of these words. argparse applies ``choices`` to the command line alone, not to defaults."""

    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {text!r} (choose from {', '.join(map(repr, choices))})"
            )
        return text

    return read


def nonempty(text: str) -> str:
    """Any text but the empty one."""
    if not text:
        raise argparse.ArgumentTypeError("it must not be empty")
    return text


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, an IPv6 address in brackets."""
    match = re.fullmatch(r"(.+):([0-9]{1,5})", text, re.ASCII)
    if match is None or int(match[2]) > 65_535:
        raise wrong(text, "HOST:PORT, such as 0.0.0.0:8443")
    return match[1].strip("[]"), int(match[2])


def https(text: str) -> str:
    """An ``https://`` URL without user, query or fragment."""
    if not re.fullmatch(_HTTPS, text, re.ASCII):
        raise wrong(text, "an https:// URL")
    return text


def namespace(text: str) -> str:
    """The name of a namespace."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text, re.ASCII):
        raise wrong(text, "the name of a namespace")
    return text


def namespaced(text: str) -> tuple[str, str]:
    """``NAMESPACE/NAME``."""
    match = re.fullmatch(r"([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})", text, re.ASCII)
    if match is None:
        raise wrong(text, "NAMESPACE/NAME")
    return match[1], match[2]


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A whole number between these, both included."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise wrong(text, f"a whole number from {least} to {most}")
        return int(text)

    return read


def duration_ms(least: str, most: str, example: str, unit: str = "1ms") -> Callable[[str], int]:
    """A duration such as ``90s``, in milliseconds: between these, both included, a multiple of ``unit``."""
    bounds = range(_ms(least) or 0, (_ms(most) or 0) + 1)
    step = _ms(unit) or 1
    whole = "" if step == 1 else f" in multiples of {unit}"

    def read(text: str) -> int:
        ms = _ms(text)
        if ms is None or ms not in bounds or ms % step:
            raise wrong(text, f"a duration from {least} to {most}{whole}, such as {example}")
        return ms

    return read


def wrong(text: str, wanted: str) -> argparse.ArgumentTypeError:
    """The error for a text that is not what is wanted."""
    return argparse.ArgumentTypeError(f"{json.dumps(text, ensure_ascii=False)} is not {wanted}")


path_or_none = optional(Path, None)


def _ms(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text, re.ASCII)
    return None if match is None else int(match[1]) * _UNITS_MS[match[2]]
