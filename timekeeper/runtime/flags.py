"""Settings of every role: a dataclass whose fields are flags, and readers of their values.

`flag`, `choice`, `repeated`, `argument` and `group` declare a field. The flag, its ``BURSAR_*`` variable, its
check, its help, its row in the docs and the value follow from it.

A reader takes the text of a flag. It raises ArgumentTypeError with a sentence: the text, and what is allowed.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from timekeeper.core import __version__
from timekeeper.edge.http_client import server_of
from timekeeper.edge.log import FORMATS

S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
Word = TypeVar("Word", bound=str)

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# what --kubeconfig takes
KUBECONFIG = (
    "it must be a YAML file with clusters, users, contexts and current-context, as kubectl reads it, such as"
    " /etc/kubernetes/admin.conf; or nothing, in a pod that has a service account"
)
_OURS = ("timekeeper", "webhook", "scheduler_ext", "sidecar")
_PLACE = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?"


class UnusableError(ValueError):
    """A setting of the right form that cannot be used. The text is a sentence for the operator: the flag,
    what is wrong, what is allowed."""


def lacking(error: ModuleNotFoundError, extra: str) -> str:
    """What to install where a package that only this extra of the distribution needs is missing. Raises the
    error where a module of ours is."""
    if error.name is None or error.name.partition(".")[0] in _OURS:
        raise error
    return (
        f"the Python module {error.name} is missing: install gpu-bursar with its extra {extra}"
        " (docs/dependencies.md)"
    )


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def flag(reader: Callable[[str], T], default: str, text: str, *, name: str = "", short: str = "") -> T:
    """A field that is a flag. A field ``foo_bar`` or ``foo_bar_ms`` is the flag ``--foo-bar``, unless
    ``name`` says otherwise; BURSAR_FOO_BAR has its default. ``default`` is the text that ``reader`` gets
    without both. ``text`` is the help, which goes on with default and variable."""
    return _declared(
        lambda: reader(default), (short, name), True, {"type": reader, "default": default, "help": text}
    )


def choice(words: Sequence[Word], default: Word, text: str, *, name: str = "", short: str = "") -> Word:
    """A field that is a flag, as `flag`, with one of these words."""
    options = {"type": one_of(words), "choices": words, "default": default, "help": text}
    return _declared(lambda: default, (short, name), True, options)


def repeated(
    reader: Callable[[str], Sequence[T]], text: str, *, name: str, metavar: str | None = None
) -> tuple[T, ...]:
    """A field that is a flag which may be repeated. Its variable has several values, which come first. The
    help is ``text`` as it is."""
    options = {"action": "extend", "type": reader, "metavar": metavar, "help": text}
    return _declared(lambda: (), ("", name), True, options)


def argument(*names: str, **options: Any) -> Any:
    """A field that is an argument without a variable; names and options as argparse has them. Several values
    become a tuple."""
    default = options.get("default", False if options.get("action") == "store_true" else None)
    return _declared(lambda: _fixed(default), names, False, options)


def group(settings: type[S]) -> S:
    """A field whose value has flags of its own: a dataclass as these."""
    return field(default_factory=settings, metadata={"group": settings})


def log_format_flag() -> str:
    """The field ``log_format``."""
    return choice(FORMATS, FORMATS[0], "format of the log lines on stderr")


def metrics_access_flag() -> str:
    """The field ``metrics_access``."""
    about = "token: readers of /metrics show a token and need the right to get that URL; open: all may"
    return choice(("token", "open"), "token", about)


class Parser(argparse.ArgumentParser, Generic[S]):
    """Reads these settings. It answers a bad flag with one sentence and exit code 2, and ``--version`` with
    Bursar's version. ``environment`` has the variables."""

    def __init__(
        self, settings: type[S], environment: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._settings, self._environment = settings, environment or {}
        self.add_argument("--version", action="version", version=f"bursar {__version__}")
        for each in _flags(settings):
            more = self._of_variable(each) if each.metadata["variable"] else {}
            self.add_argument(*_names(each), **{**each.metadata["options"], **more})

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        self.exit(2, f"{self.prog}: {message}\n")

    def read(self, arguments: Sequence[str]) -> S:
        """The settings. Exits with 2 and a sentence where one is bad, or the settings cannot be used
        together, for which their ``__post_init__`` raises UnusableError."""
        given = vars(self.parse_args(arguments))
        try:
            return _made(self._settings, given)
        except UnusableError as error:
            self.error(str(error))

    def _of_variable(self, each: "Field[Any]") -> dict[str, Any]:
        """The default that the variable sets. The help shows the flag's own: a database's URL in the
        environment may hold a password."""
        options, name = each.metadata["options"], _destination(each).upper()
        text = self._environment.get(f"BURSAR_{name}")
        if "default" in options:
            default = options["default"]
            shown = f"default {default}" if default else "empty by default"
            return {
                "default": default if text is None else text,
                "metavar": None if "choices" in options else name,
                "help": f"{options['help']} ({shown}; BURSAR_{name})",
            }
        try:
            return {"default": list(options["type"](text or ""))}
        except argparse.ArgumentTypeError as error:
            self.error(f"BURSAR_{name}: {error}")


def _declared(
    default: Callable[[], T], names: Sequence[str], variable: bool, options: Mapping[str, Any]
) -> T:
    given = tuple(filter(None, names))
    return field(default_factory=default, metadata={"names": given, "variable": variable, "options": options})


def _flags(settings: type) -> "Iterator[Field[Any]]":
    """The fields with flags, also those of groups."""
    for setting in fields(settings):
        if "group" in setting.metadata:
            yield from _flags(setting.metadata["group"])
        elif setting.metadata:
            yield setting


def _names(each: "Field[Any]") -> tuple[str, ...]:
    """The names for argparse: short ones, then the long one."""
    given: tuple[str, ...] = each.metadata["names"]
    if any(not name.startswith("-") or name.startswith("--") for name in given):
        return given
    return (*given, f"--{each.name.removesuffix('_ms').replace('_', '-')}")


def _destination(each: "Field[Any]") -> str:
    """Where argparse puts the value."""
    return _names(each)[-1].lstrip("-").replace("-", "_")


def _made(settings: type[S], given: Mapping[str, Any]) -> S:
    return settings(
        **{
            setting.name: _made(setting.metadata["group"], given)
            if "group" in setting.metadata
            else _fixed(given[_destination(setting)])
            for setting in fields(settings)  # type: ignore[arg-type]  # it is a dataclass
            if setting.metadata
        }
    )


def _fixed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


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


def address(text: str) -> Address:
    """``HOST:PORT``, an IPv6 address in brackets."""
    match = re.fullmatch(r"(.+):([0-9]{1,5})", text, re.ASCII)
    if match is None or int(match[2]) > 65_535:
        raise wrong(text, "HOST:PORT, such as [::]:8443")
    return Address(match[1].strip("[]"), int(match[2]))


def https(text: str) -> str:
    """An ``https://`` URL without user, query or fragment."""
    return _url(text, "https://", "an https:// URL")


def http_or_https(text: str) -> str:
    """The same, or an ``http://`` URL."""
    return _url(text, "https?://", "an http:// or https:// URL")


def _url(text: str, scheme: str, wanted: str) -> str:
    if not re.fullmatch(scheme + _PLACE, text, re.ASCII):
        raise wrong(text, wanted)
    try:
        server_of(text)
    except ValueError as error:
        raise wrong(text, f"{wanted}: {error}") from None
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
