"""Whether two devices are the same to the expressions that select devices (CEL). Bursar evaluates none: it
finds what they read.

Source: k8s.io/dynamic-resource-allocation/cel: an expression sees a device's driver, attributes and
capacities, and ``allowMultipleAllocations``, and nothing else of it.
"""

import re
from collections.abc import Iterable, Iterator

from timekeeper.core.claims.devices import PublishedDevice

_TEXT = r"""(?:"([^"\\\n]*)"|'([^'\\\n]*)')"""
# device.attributes["DOMAIN"].NAME, or the same in brackets
_READ = re.compile(
    rf"\bdevice\s*\.\s*(attributes|capacity)\s*\[\s*{_TEXT}\s*\]\s*(?:\.\s*(\w+)|\[\s*{_TEXT}\s*\])"
)
_SAME = re.compile(r"\bdevice\s*\.\s*(?:driver|allowMultipleAllocations)\b")


def are_alike(driver: str, one: PublishedDevice, other: PublishedDevice, expressions: Iterable[str]) -> bool:
    """Whether all that the expressions read is the same of both devices of this driver, so that one meets
    them if the other does. False where it is not known what they read."""
    reads = [each for expression in expressions for each in _reads(expression, driver)]
    if one.is_shared != other.is_shared:
        return False
    return all(each is not None and _value(one, each) == _value(other, each) is not None for each in reads)


def _reads(expression: str, driver: str) -> Iterator[tuple[str, str] | None]:
    """What it reads: attribute or capacity, and its name; None: that is not known."""
    for found in _READ.finditer(expression):
        kind, *texts = found.groups()
        domain, name = texts[0] or texts[1] or "", texts[2] or texts[3] or texts[4] or ""
        yield kind, name if domain == driver else f"{domain}/{name}"
    if re.search(r"\bdevice\b", _SAME.sub("", _READ.sub("", expression))):
        yield None


def _value(device: PublishedDevice, read: tuple[str, str]) -> object:
    kind, name = read
    return dict(device.attributes if kind == "attributes" else device.capacity).get(name)
