"""Which DeviceClasses allocate GPUs: judged by the driver that a class requires, not by its name.

A class tells no device: that is known once a claim is allocated, and then the ledger looks at the device.
Before that a class is of GPUs, of other devices, or not known, and an administrator says in the ConfigMap
`bursar-device-classes` what the known drivers do not.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from timekeeper.core.dialects import DIALECTS, PREFIXES
from timekeeper.core.json_values import Json, mapping, sequence

CONFIG_MAP = "bursar-device-classes"  # in our namespace
# its keys that administrators write
DRIVERS_SETTING, CLASSES_SETTING = "noGPUDrivers", "otherNoGPUClasses"
GPU_DRIVERS_SETTING, UNKNOWN_SETTING = "gpuDrivers", "unknownClasses"
SETTINGS = (DRIVERS_SETTING, CLASSES_SETTING, GPU_DRIVERS_SETTING, UNKNOWN_SETTING)

# the drivers of NVIDIA, AMD and Intel that allocate GPUs; no setting makes them anything else
GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")
# further ones, which a setting may name otherwise: that of kubernetes-sigs/dra-example-driver
OTHER_GPU_DRIVERS = ("gpu.example.com",)
# drivers beside them whose devices are none: channels between the nodes of a job
NO_GPU_DRIVERS = ("compute-domain.nvidia.com",)

ClassKind = Literal["gpu", "other", "unknown"]
Unknown = Literal["deny", "free"]
UNKNOWN: tuple[Unknown, ...] = ("deny", "free")

_LITERAL = re.compile(r"""(?<![A-Za-z0-9_])(?:"([^"\\\n]*)"|'([^'\\\n]*)')""")
_REQUIRES = re.compile(r"\s*device\s*\.\s*driver\s*==\s*(\d+)#\s*|\s*(\d+)#\s*==\s*device\s*\.\s*driver\s*")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """What an administrator says of drivers and classes; ``unknown``: what becomes of pods with claims on
    classes of which it is not known what they allocate."""

    gpu_drivers: frozenset[str] = frozenset(OTHER_GPU_DRIVERS)
    other_drivers: frozenset[str] = frozenset(NO_GPU_DRIVERS)
    other_classes: frozenset[str] = frozenset()
    unknown: Unknown = "deny"


DEFAULTS = ClassSettings()
NO_DRIVERS: Mapping[str, bool] = {}


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass. ``driver``: "" where its selectors do not show one; ``resource``: its
    ``extendedResourceName``, "" without one; ``created``: when, as the API server wrote it."""

    name: str
    driver: str = ""
    resource: str = ""
    created: str = ""


def read_class(raw: Json) -> DeviceClass:
    """A DeviceClass from the API server's JSON."""
    metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
    resource = spec.get("extendedResourceName")
    return DeviceClass(
        str(metadata.get("name", "")),
        required_driver(spec),
        resource if isinstance(resource, str) else "",
        str(metadata.get("creationTimestamp") or ""),
    )


def read_settings(data: Mapping[str, object]) -> ClassSettings:
    """The settings in the ConfigMap's data; what is not valid in it has no effect."""
    unknown = str(data.get(UNKNOWN_SETTING) or "").strip()
    return ClassSettings(
        frozenset((*OTHER_GPU_DRIVERS, *entries(data, GPU_DRIVERS_SETTING)[0])),
        frozenset((*NO_GPU_DRIVERS, *entries(data, DRIVERS_SETTING)[0])),
        frozenset(entries(data, CLASSES_SETTING)[0]),
        next((each for each in UNKNOWN if each == unknown), DEFAULTS.unknown),
    )


def mistakes(data: Mapping[str, object]) -> tuple[tuple[str, str, str], ...]:
    """What is not valid in the settings: key, entry, and what is allowed."""
    found = []
    for key in (DRIVERS_SETTING, CLASSES_SETTING, GPU_DRIVERS_SETTING):
        allowed = "names of drivers or classes"
        if key != GPU_DRIVERS_SETTING:
            allowed += f", but not {', '.join(GPU_DRIVERS)}"
        found += [(key, entry, allowed) for entry in entries(data, key)[1]]
    unknown = str(data.get(UNKNOWN_SETTING) or "").strip()
    if unknown not in ("", *UNKNOWN):
        found.append((UNKNOWN_SETTING, unknown, " or ".join(UNKNOWN)))
    return tuple(found)


def kind_of(one: DeviceClass, settings: ClassSettings, drivers: Mapping[str, bool] = NO_DRIVERS) -> ClassKind:
    """What the class allocates. ``drivers``: of `_settings`, each with whether its devices are GPUs."""
    if one.driver in drivers:
        return "gpu" if drivers[one.driver] else "other"
    if one.driver in GPU_DRIVERS:
        return "gpu"
    if one.driver in settings.other_drivers or one.name in settings.other_classes:
        return "other"
    return "gpu" if one.driver in settings.gpu_drivers else "unknown"


def why_unknown(one: DeviceClass) -> str:
    """Why it is not known what the class allocates."""
    return f"driver {one.driver} is not known" if one.driver else "no selector requires one driver"


def served_resources(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """Extended resource -> the class that serves it: of several the newest, then the first by name, as
    kube-scheduler takes them (k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache)."""
    served: dict[str, DeviceClass] = {}
    for each in sorted(classes, key=lambda one: one.name):
        known = served.get(each.resource)
        if each.resource and (known is None or each.created > known.created):
            served[each.resource] = each
    return served


def gpu_resources(
    classes: Iterable[DeviceClass], settings: ClassSettings, drivers: Mapping[str, bool] = NO_DRIVERS
) -> frozenset[str]:
    """The extended resources for which kube-scheduler may allocate GPUs."""
    served = served_resources(classes)
    return frozenset(name for name, one in served.items() if kind_of(one, settings, drivers) != "other")


@dataclass(frozen=True, slots=True)
class ClassParameters:
    """The parameters of the policies. ``refused``: extended resources of classes that are of GPUs, or may be,
    by whose names the API server does not ask the webhook about a pod."""

    no_gpu: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()  # classes, each with the reason

    def data(self) -> dict[str, str]:
        """The keys of the ConfigMap that follow from the classes."""
        return {
            "noGPUClasses": "\n".join(self.no_gpu),
            "refusedResources": "\n".join(self.refused),
            "notJudged": "\n".join(f"{name}: {reason}" for name, reason in self.unknown),
        }


NO_CLASSES = ClassParameters()


def parameters(classes: Iterable[DeviceClass], settings: ClassSettings) -> ClassParameters:
    """What the policies need of these classes."""
    every = tuple(classes)
    kinds = {each.name: kind_of(each, settings) for each in every}
    may_be = {"gpu"} if settings.unknown == "free" else {"gpu", "unknown"}
    unknown = [each for each in every if kinds[each.name] == "unknown"]
    return ClassParameters(
        tuple(sorted(name for name, kind in kinds.items() if kind not in may_be)),
        tuple(
            sorted(
                {
                    each.resource
                    for each in every
                    if each.resource and kinds[each.name] in may_be and not is_reviewed(each.resource)
                }
            )
        ),
        tuple(sorted((each.name, why_unknown(each)) for each in unknown)),
    )


def is_reviewed(resource: str) -> bool:
    """Whether the webhook governs pods by the name of this resource alone."""
    return resource.startswith(PREFIXES) or any(resource in dialect.resources for dialect in DIALECTS)


def entries(data: Mapping[str, object], key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names in a setting, separated by white space or commas, and the entries that are no names."""
    words = str(data.get(key) or "").replace(",", " ").split()
    kept = () if key == GPU_DRIVERS_SETTING else GPU_DRIVERS
    valid = tuple(word for word in words if _NAME.fullmatch(word) and word not in kept)
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
