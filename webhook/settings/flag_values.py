"""Parsers of the flags' values. Each raises ArgumentTypeError with a sentence that quotes the value and says
what is allowed."""

import argparse
import re

from timekeeper.core.admission.policy import PriorityClass
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.quantity import integral
from timekeeper.runtime.flags import whole_number, wrong
from webhook.admission.workloads import BadPathError, TemplatePath, read_path

# With less the sidecar would need minutes to start, or run out of memory.
LEAST_CPU_MILLI = 10
LEAST_MEMORY = 32 << 20
NATURAL = whole_number(1, 1_000_000)
OTHER_SCHEDULERS = tuple(sorted({name for dialect in DIALECTS for name in dialect.schedulers}))


def folder(text: str) -> str:
    """An absolute path without ``..``."""
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", text, re.ASCII) or "/../" in f"{text}/":
        raise wrong(text, "an absolute path such as /run/nvidia-mps")
    return text


def mirrors(text: str) -> tuple[str, ...]:
    """The value of ``--sidecar-mirrors``: beginnings of images, each with a whole name of a registry, folder
    or repository."""
    given = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in given:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:-]*[/:@]", each, re.ASCII):
            raise wrong(each, "a beginning that ends in / : or @, such as registry.example/bursar/sidecar:")
    return given


def other_schedulers(text: str) -> frozenset[str]:
    """The value of ``--other-schedulers``: known schedulers of other systems."""
    given = frozenset(each.strip() for each in text.split(",") if each.strip())
    for each in sorted(given):
        if each not in OTHER_SCHEDULERS:
            raise wrong(each, " or ".join(OTHER_SCHEDULERS))
    return given


def secret_name(text: str) -> str:
    """The name of a Secret, or empty."""
    if text and not (len(text) <= 253 and re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", text, re.ASCII)):
        raise wrong(text, "the name of a Secret, or nothing")
    return text


def taint_key(text: str) -> str:
    """The key of a taint, or empty."""
    prefix, slash, name = text.rpartition("/")
    part = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    is_prefix = len(prefix) <= 253 and re.fullmatch(rf"{part}(\.{part})*", prefix, re.ASCII)
    is_name = len(name) <= 63 and re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name, re.ASCII)
    if text and not (is_name and (is_prefix or not slash)):
        raise wrong(text, "the key of a taint, such as nvidia.com/gpu, or nothing")
    return text


def priority_class(text: str) -> PriorityClass:
    """The value of a flag that takes ``NAME=VALUE``."""
    name, _, value = text.partition("=")
    digits = value.removeprefix("-")
    if not name or not digits.isascii() or not digits.isdecimal():
        raise wrong(text, "NAME=VALUE")
    return PriorityClass(name, int(value))


def sidecar_resources(text: str) -> dict[str, str]:
    """The value of ``--sidecar-resources``: quantities by resource."""
    given = dict(each.strip().split("=", 1) for each in text.split(",") if "=" in each)
    amounts = {"ephemeral-storage": "64Mi", **given}
    milli = re.fullmatch(r"([1-9][0-9]{0,5})(m?)", given.get("cpu", ""), re.ASCII)
    enough = milli is not None and int(milli[1]) * (1 if milli[2] else 1000) >= LEAST_CPU_MILLI
    bytes_ = min(integral(given.get("memory", "")) or 0, integral(amounts["ephemeral-storage"]) or 0)
    if amounts.keys() != {"cpu", "memory", "ephemeral-storage"} or not enough or bytes_ < LEAST_MEMORY:
        raise wrong(
            text,
            f"cpu=AMOUNT,memory=AMOUNT,ephemeral-storage=AMOUNT, from {LEAST_CPU_MILLI}m and 32Mi on, such as"
            " cpu=100m,memory=128Mi",
        )
    return amounts


def template_paths(text: str) -> tuple[TemplatePath, ...]:
    """The value of ``--template-path``: one or several, separated by commas."""
    try:
        return tuple(read_path(each.strip()) for each in text.split(",") if each.strip())
    except BadPathError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
