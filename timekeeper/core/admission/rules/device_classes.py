"""Which DeviceClasses allocate no GPUs: judged by the driver that a class requires, not by its name.

A class whose driver is unknown counts as one of GPUs until an administrator lists the driver, or the class,
as no GPU in the ConfigMap `bursar-device-classes`, from which the policies on claims take the result.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from timekeeper.core.dialects import DIALECTS
from timekeeper.core.json_values import Json, mapping, sequence

CONFIG_MAP = "bursar-device-classes"  # in our namespace
DRIVERS_SETTING, CLASSES_SETTING = "noGPUDrivers", "otherNoGPUClasses"  # keys that administrators write

# the drivers of NVIDIA, AMD and Intel that allocate GPUs; no setting makes them anything else
GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")

# the resources for which the webhook governs and charges a pod
_CHARGED = frozenset(name for dialect in DIALECTS for name in dialect.resources)
_LITERAL = re.compile(r"""(?<![A-Za-z0-9_])(?:"([^"\\\n]*)"|'([^'\\\n]*)')""")
_REQUIRES = re.compile(r"\s*device\s*\.\s*driver\s*==\s*(\d+)#\s*|\s*(\d+)#\s*==\s*device\s*\.\s*driver\s*")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class JudgedClasses:
    """The parameters of the policies. ``charged``: classes of GPUs with an extended resource that is charged:
    kube-scheduler may make claims on them. ``refused``: extended resources of all other classes that may be
    of GPUs. ``unjudged``: classes that may be of GPUs, each with the reason."""

    no_gpu: tuple[str, ...] = ()
    charged: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unjudged: tuple[tuple[str, str], ...] = ()

    def data(self) -> dict[str, str]:
        """The keys of the ConfigMap that follow from the classes; the parameters of the policies."""
        return {
            "noGPUClasses": "\n".join(self.no_gpu),
            "chargedClasses": "\n".join(self.charged),
            "refusedResources": "\n".join(self.refused),
            "notJudged": "\n".join(f"{name}: {reason}" for name, reason in self.unjudged),
        }


NONE_LISTED = JudgedClasses()


def judge(classes: Iterable[Json], settings: Mapping[str, str]) -> JudgedClasses:
    """Judges DeviceClasses by the settings, the ConfigMap's data; invalid entries of these have no effect."""
    drivers, listed = (frozenset(entries(settings, key)[0]) for key in (DRIVERS_SETTING, CLASSES_SETTING))
    no_gpu: list[str] = []
    charged: list[str] = []
    refused: set[str] = set()
    unjudged: list[tuple[str, str]] = []
    for each in classes:
        name = str(mapping(each.get("metadata")).get("name", ""))
        spec = mapping(each.get("spec"))
        driver = required_driver(spec)
        if driver not in GPU_DRIVERS and (driver in drivers or name in listed):
            no_gpu.append(name)
            continue
        resource = spec.get("extendedResourceName")
        if resource in _CHARGED:
            charged.append(name)
        elif isinstance(resource, str) and resource:
            refused.add(resource)
        if driver not in GPU_DRIVERS:
            reason = f"driver {driver} is not known" if driver else "no selector requires one driver"
            unjudged.append((name, reason))
        elif name in listed:
            unjudged.append((name, f"it is listed as no GPU, but driver {driver} allocates GPUs"))
    return JudgedClasses(
        tuple(sorted(no_gpu)), tuple(sorted(charged)), tuple(sorted(refused)), tuple(sorted(unjudged))
    )


def entries(settings: Mapping[str, str], key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names in a setting, separated by white space or commas, and the entries that are no names."""
    words = str(settings.get(key) or "").replace(",", " ").split()
    valid = tuple(word for word in words if _NAME.fullmatch(word) and word not in GPU_DRIVERS)
    return valid, tuple(word for word in words if word not in valid)


def required_driver(spec: Json) -> str:
    """The driver that each device of a class has; "" where the selectors do not show one.

    A device must meet every selector, so one that requires a driver is enough. A selector requires it where
    ``device.driver == "NAME"`` is the whole expression, or one of the conditions that && joins at its top."""
    for selector in sequence(spec.get("selectors")):
        expression = mapping(mapping(selector).get("cel")).get("expression")
        if isinstance(expression, str) and (driver := _required(expression)):
            return driver
    return ""


def _required(expression: str) -> str:
    literals: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        literals.append(found[1] if found[1] is not None else found[2])
        return f"{len(literals) - 1}#"

    plain = _LITERAL.sub(numbered, expression)
    if re.search(r"""["'\\]|//|#\s*\d+#""", plain):
        return ""  # a raw or a long literal, an escape, or a comment: not judged
    for condition in _at_the_top(plain):
        if found := _REQUIRES.fullmatch(condition):
            return literals[int(found[1] or found[2])]
    return ""


def _at_the_top(plain: str) -> list[str]:
    """The conditions that && joins outside of brackets; none where the top has an alternative."""
    depth, start = 0, 0
    conditions: list[str] = []
    for index, letter in enumerate(plain):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and (letter == "?" or plain.startswith("||", index)):
            return []
        if depth == 0 and plain.startswith("&&", index):
            conditions.append(plain[start:index])
            start = index + 2
    return [*conditions, plain[start:]]
