"""What is known of the devices that a waiting pod could get from others, and of the nodes where they are."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from urllib.parse import urlencode

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.reclaim.choice import (
    FreeableDevice,
    ReclaimStandings,
    devices_of,
    freeable,
    is_free_whole,
    key_of,
)
from timekeeper.accounts.reclaim.plan import FreeDevice, ReclaimPlan, by_node
from timekeeper.core.claims.devices import PublishedDevice
from timekeeper.core.claims.heirs import (
    MOST_DEVICES,
    DeviceKey,
    TaintRule,
    WantedDevice,
    selectors_by_request,
    selectors_of,
    wanted_devices,
)
from timekeeper.core.claims.likeness import are_alike
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.kube.node_constraints import has_unread_but_claims
from timekeeper.core.kube.node_fit import why_not_on
from timekeeper.core.request.claims import EXPLICIT
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.disruptions import items
from timekeeper.settler.state.tick_view import TickView

_GROUP = "/apis/resource.k8s.io/v1"
Free = Mapping[str, Mapping[DeviceKey, PublishedDevice | None]]  # by node


class KnownDevices:
    """Used by one thread."""

    def __init__(self, context: EvictorContext) -> None:
        self._context, self._view = context, context.view()
        self._free: Free | None = None
        self._met: dict[str, Mapping[str, tuple[str, ...]]] = {}  # by a claim's UID and request

    def look(self, view: TickView) -> None:
        """Begin anew with this view: what was free before may be held by now."""
        self._view, self._free, self._met = view, None, {}

    def freeable(
        self, classes: Collection[str], standings: ReclaimStandings, left: Collection[str]
    ) -> list[FreeableDevice]:
        """The GPUs of these classes that debtors could give up. ``left``: UIDs of pods that may be leaving,
        though the watch does not show it yet."""
        view = self._view

        def is_debtor(pod: LedgerPod) -> bool:
            owes = standings.owes(pod.namespace) or pod.is_reclaimable
            return owes and not view.is_protected(pod) and standings.history.was_enforced(pod)

        def published_gpu(device: DeviceKey) -> PublishedDevice | None:
            found, rule = view.published_device(device), view.cluster.rules.get(device[0])
            return found if rule is not None and rule.is_gpu(found) else None

        return freeable(view.held_claims(), classes, published_gpu, is_debtor, view.units(left).least)

    def free(
        self, node: str, beside: Iterable[FreeableDevice], rules: Sequence[TaintRule]
    ) -> Mapping[DeviceKey, PublishedDevice | None]:
        """The devices of the same drivers that are free on the node, or come free without any eviction, but
        those that one of the rules keeps claims off."""
        if self._free is None:
            self._free = self._read_free()
        drivers = {each.device.driver for each in beside}
        return {
            key: each
            for key, each in self._free.get(node, {}).items()
            if key[0] in drivers and not any(rule.covers(key) for rule in rules)
        }

    def _read_free(self) -> Free:
        """None of a device that is held by pods which leave."""
        found: dict[str, dict[DeviceKey, PublishedDevice | None]] = {}
        for key, published in self._view.unheld().items():
            if not published.is_tainted:
                found.setdefault(published.node, {})[key] = published
        for each in self._view.held_claims():
            if each.claim.allocation is not None and not any(pod.is_staying for pod in each.pods):
                mine = found.setdefault(each.claim.allocation.node, {})
                mine |= dict.fromkeys(map(key_of, devices_of(each.claim)))
        return found

    def beside(
        self, found: Iterable[FreeableDevice], wanted: Sequence[WantedDevice], rules: Sequence[TaintRule]
    ) -> dict[str, list[FreeDevice]]:
        """The free devices of each node, by which fewer pods have to leave. A node is left out if one is
        there of which it is not known whether it would do."""
        terms = {each.device_class: self._expressions(each.device_class, wanted) for each in wanted}
        usable: dict[str, list[FreeDevice]] = {}
        for node, there in by_node(found).items():
            free = self.free(node, there, rules)
            like = [_like(key, it, there, terms, self._view) for key, it in free.items()]
            known = [each for each in like if each is not None]
            if len(known) == len(like):
                usable[node] = known
        return usable

    def _expressions(self, device_class: str, wanted: Iterable[WantedDevice]) -> tuple[str, ...] | None:
        """All selectors that a device of the class must meet for one of these; None: they are not known."""
        raw = self._one(f"{_GROUP}/deviceclasses", device_class)
        spec = mapping(raw.get("spec")) if raw else {}
        own = selectors_of(spec)
        if raw is None or len(own) < len(sequence(spec.get("selectors"))):
            return None
        return (*own, *(it for each in wanted if each.device_class == device_class for it in each.selectors))

    def terms(self, device: FreeableDevice) -> frozenset[str]:
        """The selectors that it met when it was allocated."""
        claim = device.held.claim
        if claim.uid not in self._met:  # a claim holds several devices, and others are like these
            raw = self._one(f"{_GROUP}/namespaces/{claim.namespace}/resourceclaims", claim.name)
            if raw is None:
                return frozenset()
            self._met[claim.uid] = selectors_by_request(raw)
        return frozenset(self._met[claim.uid].get(device.device.request, ()))

    def wanted(self, heir: LedgerPod) -> tuple[WantedDevice, ...]:
        """What its claims ask for, or its limits by claims to come; nothing if that is not known, or no pod
        may be evicted for it."""
        if heir.uses.waits and heir.uses.waits.limits:
            need = heir.uses.waits.by_class(self._view.cluster.classes.served_resources())
            if sum(need.values()) > MOST_DEVICES:
                return ()
            return tuple(WantedDevice(name) for name, number in need.items() for _ in range(number))
        path = f"{_GROUP}/namespaces/{heir.namespace}/resourceclaims"
        found: list[WantedDevice] = []
        for claim in heir.uses.waits.claims if heir.uses.waits else ():
            raw = self._one(path, claim)
            asked = () if raw is None or mapping(raw.get("status")).get("allocation") else wanted_devices(raw)
            if not asked:
                return ()
            found += asked
        return tuple(found) if len(found) <= MOST_DEVICES else ()

    def why_not(self, heir: LedgerPod, plan: ReclaimPlan) -> str:
        """Why the node would not take the heir once the pods have left; "" if it would."""
        raw = self._one(f"/api/v1/namespaces/{heir.namespace}/pods", heir.name)
        node = self._one("/api/v1/nodes", plan.node)
        on_node = urlencode({"fieldSelector": f"spec.nodeName={plan.node}"})
        pods = items(self._context.api, f"/api/v1/pods?{on_node}")
        if raw is None or node is None or isinstance(pods, str):
            return "the API server does not say what is on the node"
        if mapping(raw.get("metadata")).get("uid") != heir.uid or has_unread_but_claims(raw):
            return "it is not known whether the pod fits on the node"
        serves = self._view.cluster.classes.served_resources()
        limits = heir.uses.waits.limits if heir.uses.waits else ()
        served = [name for name, _ in limits if name in serves or name.startswith(EXPLICIT)]
        return why_not_on(node, raw, pods, {pod.uid for pod in plan.pods}, served)

    def _one(self, path: str, name: str) -> Json | None:
        """The object of this name; None: there is none, or it is not known."""
        found = items(self._context.api, f"{path}?{urlencode({'fieldSelector': f'metadata.name={name}'})}")
        return found[0] if found and not isinstance(found, str) else None


def _like(
    key: DeviceKey,
    free: PublishedDevice | None,
    there: Iterable[FreeableDevice],
    terms: Mapping[str, tuple[str, ...] | None],
    view: TickView,
) -> FreeDevice | None:
    """The free device, which meets what one of the others met; None: that is not known."""
    if free is None or not is_free_whole(free):
        return None
    for each in there:
        expressions, other = terms.get(each.device.device_class), view.published_device(each.key)
        if expressions is None or other is None or each.device.driver != key[0]:
            continue
        if are_alike(key[0], free, other, expressions):
            return FreeDevice(key, each.device.device_class, each)
    return None
