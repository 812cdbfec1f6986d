"""What the claims of pods ask for, as far as it is known."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.claims.allocation import DeviceClaim
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.json_values import Json
from timekeeper.core.request.claims import KnownClaims, NamespacedName, PodClaims, Requests, reuses_devices
from timekeeper.core.request.device_classes import (
    DEFAULTS,
    GPU_DRIVERS,
    ClassSettings,
    DeviceClass,
    served_resources,
)
from timekeeper.core.request.request import containers
from timekeeper.core.tables import Table

CLASSES, TEMPLATES = "deviceclasses", "resourceclaimtemplates"
_BOTH = (
    "they ask for {} GPUs, and its containers for cards of a device plugin. No scheduler places both, so it "
    "is never released; delete it, and create a pod for each"
)
MOST_SETTINGS = 64  # of classes, one after another: of the time before these nothing is known


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """What the claims of a template ask for."""

    name: NamespacedName
    requests: Requests


@dataclass(frozen=True, slots=True)
class ClassSettingsRead:
    """What an administrator says of device classes, in a ConfigMap. ``changed_ms``: since when, by the API
    server's clock; 0: it does not say."""

    name: str
    settings: ClassSettings
    changed_ms: int = 0


@dataclass(frozen=True, slots=True)
class KnownClasses:
    """What is known of device classes. ``said``: by an administrator, each since its time; ``drivers``: of
    `_settings`: whether their devices are GPUs."""

    classes: Mapping[str, DeviceClass] = field(default_factory=dict)  # by name
    said: tuple[tuple[int, ClassSettings], ...] = ()
    drivers: Mapping[str, bool] = field(default_factory=dict)

    @property
    def settings(self) -> ClassSettings:
        """What is said of classes now."""
        return self.said[-1][1] if self.said else DEFAULTS

    def gpu_drivers(self) -> set[str]:
        """The drivers whose devices are GPUs."""
        others = {name for name, has_gpus in self.drivers.items() if not has_gpus}
        return {*GPU_DRIVERS, *self.settings.gpu_drivers, *self.drivers} - others

    def served_resources(self) -> dict[str, str]:
        """Extended resource -> the class that serves it."""
        served = served_resources(self.classes.values())
        return {resource: known.name for resource, known in served.items()}


@dataclass(slots=True)
class ClaimRequests:
    """Classes, claims and templates, by which pods are judged whose charge is unknown."""

    changed: set[str] = field(default_factory=set)  # UIDs of pods that are to be told why they wait
    classes: Table[str, DeviceClass] = field(default_factory=Table)
    claims: dict[NamespacedName, Requests] = field(default_factory=dict)
    templates: Table[NamespacedName, Requests] = field(default_factory=Table)
    # of classes and drivers, as `KnownClasses` has it
    said: tuple[tuple[int, ClassSettings], ...] = ()
    drivers: Mapping[str, bool] = field(default_factory=dict)
    due: set[str] = field(default_factory=set)  # namespaces of which something has come
    all_due: bool = False  # a class or the settings have
    reuses: bool = True  # as `KnownClaims` has it

    def read_version(self, said: Json) -> None:
        """As `KnownClaims.read_version`."""
        self.reuses = reuses_devices(said)

    @property
    def known_classes(self) -> KnownClasses:
        """What is known of classes now."""
        return KnownClasses(self.classes, self.said, self.drivers)

    def see_settings(self, settings: ClassSettings, since_ms: int) -> None:
        """What is said of classes since then; 0: since ever."""
        earlier = (each for each in self.said if each[0] < since_ms)
        self.said = (*earlier, (since_ms, settings))[-MOST_SETTINGS:]
        self.all_due = True

    def see_claim(self, claim: DeviceClaim, deleted: bool) -> None:
        """A claim as it is now, or its last state if it was deleted."""
        key = claim.namespace, claim.name
        if deleted:
            self.claims.pop(key, None)
        elif self.claims.get(key) != claim.requests:
            self.claims[key] = claim.requests
            self.due.add(claim.namespace)

    def relist_claims(self, claims: Iterable[DeviceClaim]) -> None:
        """The claims that exist."""
        self.claims.clear()
        for each in claims:
            self.see_claim(each, False)

    def follow(self, drivers: Iterable[DriverRule]) -> None:
        """What `_settings` say of drivers now."""
        found = {each.driver: each.has_gpus for each in drivers}
        self.all_due |= found != self.drivers
        self.drivers = found

    def take_due(self, unknown: Iterable[LedgerPod]) -> list[LedgerPod]:
        """Those to look at again. ``unknown``: all whose charge is."""
        if not (self.due or self.all_due):
            return []
        due, every = self.due, self.all_due
        self.due, self.all_due = set(), False
        return [pod for pod in unknown if every or pod.namespace in due]

    @property
    def known(self) -> KnownClaims:
        """By what claims are read now."""
        return KnownClaims(
            self.classes,
            self.claims,
            self.templates,
            self.known_classes.settings,
            reuses=self.reuses,
            drivers=lambda: self.drivers,
        )

    def asked(self, pod: LedgerPod) -> PodClaims:
        """What the pod asks for, as far as it is known."""
        part = pod.uses.part or {}
        return self.known.asked_by(part, pod.namespace, containers(part)) or PodClaims()

    def reasons(self, pod: LedgerPod) -> tuple[str, ...]:
        """Why the pod is not judged: what is not there, or not decided; or why it is never released."""
        asked = self.asked(pod)
        undecided = (one.sentence() for one in asked.violations if one.rule == "device-claim")
        both = (_BOTH.format(asked.devices),) if pod.has_cards and asked.devices else ()
        return (*both, *(f"{name} is not there" for name in asked.missing), *undecided)

    def judged(self, pod: LedgerPod, before: LedgerPod | None) -> LedgerPod | None:
        """The pod, once it is known what it asks for. What was known once stays so: a claim's spec does not
        change, and a template may be gone by now."""
        if before is not None and before.late_devices is not None:
            return pod.judged(before.late_devices)
        asked = self.asked(pod)
        is_undecided = any(violation.rule == "device-claim" for violation in asked.violations)
        if asked.missing or is_undecided or (pod.has_cards and asked.devices):
            return None
        return pod.judged(asked.devices)
