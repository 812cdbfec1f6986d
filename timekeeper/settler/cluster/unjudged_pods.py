"""The pods that admission held because it did not know what their claims ask for, until that is known."""

from dataclasses import dataclass, field

from timekeeper.accounts.pods import LedgerPod, UnjudgedPod
from timekeeper.core.claims.classes import DEFAULTS, ClassSettings, DeviceClass
from timekeeper.core.claims.requests import KnownClaims, NamespacedName, PodClaims, Requests
from timekeeper.core.request.request import containers

CLASSES, CLAIMS, TEMPLATES = "deviceclasses", "resourceclaims", "resourceclaimtemplates"


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What a claim asks for, or a template of claims. ``source``: CLAIMS or TEMPLATES."""

    source: str
    name: NamespacedName
    requests: Requests


@dataclass(frozen=True, slots=True)
class ClassSettingsRead:
    """What an administrator says of device classes, in a ConfigMap."""

    name: str
    settings: ClassSettings


@dataclass(slots=True)
class UnjudgedPods:
    """Judges each by the objects that are known, in the settler's thread."""

    pods: dict[str, UnjudgedPod] = field(default_factory=dict)  # by UID
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    claims: dict[NamespacedName, Requests] = field(default_factory=dict)
    templates: dict[NamespacedName, Requests] = field(default_factory=dict)
    settings: ClassSettings = DEFAULTS

    def table(self, source: str) -> dict[NamespacedName, Requests]:
        """The claims or the templates."""
        return self.claims if source == CLAIMS else self.templates

    def asked(self, each: UnjudgedPod) -> PodClaims:
        """What the pod asks for, as far as it is known."""
        known = KnownClaims(self.classes, self.claims, self.templates, self.settings)
        return known.asked_by(each.part, each.pod.namespace, containers(each.part)) or PodClaims()

    def judged(self, each: UnjudgedPod, before: LedgerPod | None) -> LedgerPod | None:
        """The pod, once it is known what it asks for. What was known once stays so: a claim's spec does not
        change, and a template may be gone by now."""
        if before is not None and before.request.asks:
            return each.judged(before.request.asks[0].ask.devices)
        asked = self.asked(each)
        if asked.missing or any(violation.rule == "device-claim" for violation in asked.violations):
            return None
        return each.judged(asked.devices)
