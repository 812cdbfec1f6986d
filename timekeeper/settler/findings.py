"""What the settler finds wrong with nodes and with pods that hold cards, for ``GET /v1/findings``."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from timekeeper.accounts.pods import LedgerPod, charged_pods
from timekeeper.accounts.reclaim.choice import devices_of, key_of
from timekeeper.accounts.session import Session
from timekeeper.accounts.usage import figures_of_waste
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.allocation import DeviceClaim
from timekeeper.core.claims.drivers import VENDORS, DriverRule
from timekeeper.core.claims.heirs import DeviceKey
from timekeeper.core.findings import MAX_FIGURE, RoleFinding, some_of
from timekeeper.core.request.inventory import vendor_of
from timekeeper.settler.cluster.known_nodes import KnownNode
from timekeeper.settler.cluster.watched_pods import WatchedPods
from timekeeper.settler.decide.withheld_accounts import Withheld
from timekeeper.settler.state.tick_view import ClusterView

EVERY_MS = 30_000


def findings(
    cluster: ClusterView, settings: BudgetSettings, now_ms: int, more: Iterable[RoleFinding] = ()
) -> Iterator[RoleFinding]:
    """All of them but `of_clocks`, in the order in which to mend them. ``more``: of what the settler alone
    knows."""
    nodes = sorted(cluster.nodes.values(), key=lambda node: node.name)
    if settings.mode == "meter" or settings.placement == "off":  # else the extender says what it cannot use
        yield from _of_cards([node for node in nodes if node.gpus])
    yield from more
    yield from _of_unconfirmed_ends(cluster, now_ms)
    yield from _of_static_pods(cluster)
    yield from _of_givers(cluster, settings, nodes)
    if settings.mode != "meter":  # else nothing is admitted
        yield from _of_left_out(cluster, settings)
    yield from _of_unclassified(settings, nodes)


def of_clocks(wrong: Mapping[str, int], leaseless: Collection[str]) -> Iterator[RoleFinding]:
    """As `ClusterState.wrong_clocks` and `ClusterState.leaseless` have them."""
    if wrong:
        worst = max(wrong, key=lambda name: abs(wrong[name]))
        names = {"nodes": some_of(wrong), "node": worst}
        yield RoleFinding("wrong-clocks", {"seconds": round(wrong[worst] / 1000), **names})
    if leaseless:
        yield RoleFinding("no-lease", {"nodes": some_of(leaseless)})


def of_sidecars(
    pods: WatchedPods, charged: Callable[[str], tuple[LedgerPod, int] | None], now_ms: int
) -> Iterator[RoleFinding]:
    """Of pods that hold cards and wait for their sidecars. ``charged``: the pod of a UID and its rate."""
    uids = sorted(uid for uids in pods.without_sidecar.values() for uid in uids)
    waiting = [found for uid in uids if (found := charged(uid)) is not None and found[0].sidecar_waits]
    if waiting:
        amount = sum(rate * max(0, now_ms - (pod.hold.bound_ms or now_ms)) for pod, rate in waiting)
        names = [f"{pod.namespace}/{pod.name}" for pod, _ in waiting]
        yield RoleFinding("sidecar-waits", figures_of_waste(names, amount, waiting[0][0].sidecar_waits))


def broken_laws(withheld: Withheld) -> Iterator[RoleFinding]:
    """Of accounts of which nothing is written, for that would contradict a law of the ledger."""
    if withheld.breaches:
        first, names = withheld.breaches[0], some_of(sorted(withheld.namespaces))
        yield RoleFinding(
            "broken-law", {"accounts": names, "law": first.law, "fault": first.text[:MAX_FIGURE]}
        )


def given_early(
    freed: Mapping[DeviceKey, Session], held: Iterable[tuple[DeviceClaim, Session | None]]
) -> Iterator[RoleFinding]:
    """Of devices that were given to another claim while pods that were deleted by force might use them.
    ``freed``: `freed_devices`; ``held``: the allocated claims and their sessions."""
    early = [
        f"{'/'.join(key_of(device))} to {now.namespace}/{now.name} after {before.namespace}/{before.name}"
        for claim, now in held
        for device in devices_of(claim)
        if now and (before := freed.get(key_of(device))) and now.bound_ms < before.until_ms
    ]
    if early:
        yield RoleFinding("devices-given-early", {"number": len(early), "devices": some_of(early)})


def _of_cards(nodes: list[KnownNode]) -> Iterator[RoleFinding]:
    """Each node with GPUs describes its cards, in one way."""
    faults = {node.name: fault for node in nodes if (fault := _fault(node))}
    for name, fault in faults.items():
        yield RoleFinding("undescribed-cards", {"node": name, "fault": fault})
    if nodes and not faults:
        yield RoleFinding("described-cards", {"number": len(nodes)})


def _fault(node: KnownNode) -> str:
    if node.fault:
        return f"its description cannot be read ({node.fault})"
    if not node.cards and not all(map(accelerator_of, node.gpus)):
        return "nothing describes its cards"
    return node.rated.doubt


def _of_unconfirmed_ends(cluster: ClusterView, now_ms: int) -> Iterator[RoleFinding]:
    """Of pods that hold their cards until their end is known, though they have failed."""
    for pod in charged_pods(cluster.pods):
        if pod.hold.unconfirmed and (pod.hold.deletion_ms or 0) + pod.hold.grace_ms <= now_ms:
            where = {"namespace": pod.namespace, "pod": pod.name, "node": pod.node}
            yield RoleFinding("unconfirmed-end", where)


def _of_static_pods(cluster: ClusterView) -> Iterator[RoleFinding]:
    """Of pods that hold cards and that kubelets run from files of their nodes."""
    pods = [pod for pod in charged_pods(cluster.pods) if pod.is_static and pod.ended_ms is None]
    if pods:
        where = some_of(f"{pod.namespace}/{pod.name} on {pod.node}" for pod in pods)
        yield RoleFinding("static-pods", {"number": len(pods), "where": where})


def _of_givers(
    cluster: ClusterView, settings: BudgetSettings, nodes: list[KnownNode]
) -> Iterator[RoleFinding]:
    """Of nodes whose cards both a device plugin and device claims give out: neither knows of the other's
    pods."""
    rules, drivers = cluster.rules, dict[str, set[str]]()
    for (driver, *_), device in cluster.devices.every().items():
        rule = rules.get(driver)
        if rule is not None and rule.has_gpus and rule.knows(device) and not device.is_tainted:
            drivers.setdefault(device.node, set()).add(driver)
    for node in nodes:
        both = [
            (resource, driver)
            for resource in node.offers
            for driver in sorted(drivers.get(node.name, ()))
            if VENDORS.get(driver, vendor_of(resource)) == vendor_of(resource)
        ]
        if both:
            resources, given = (" and ".join(dict.fromkeys(words)) for words in zip(*both, strict=True))
            how = f"{resources} by a device plugin, and devices of {given} by claims"
            yield RoleFinding("two-givers", {"node": node.name, "how": how})
    yield from _of_two_drivers(cluster, rules)


def _of_two_drivers(cluster: ClusterView, rules: Mapping[str, DriverRule]) -> Iterator[RoleFinding]:
    """Of cards that two drivers publish, whole or as the parent of a part, by their UUIDs."""
    givers: dict[tuple[str, str], set[str]] = {}
    for (driver, pool, _), device in cluster.devices.every().items():
        if not device.is_tainted and (driver not in rules or rules[driver].is_gpu(device)):
            for uuid in filter(None, (device.attribute("uuid"), device.attribute("parentUUID"))):
                givers.setdefault((device.node or pool, str(uuid)), set()).add(driver)
    twice: dict[tuple[str, str], list[str]] = {}
    for (node, uuid), drivers in givers.items():
        if len(drivers) > 1:
            twice.setdefault((node, " and ".join(sorted(drivers))), []).append(uuid)
    for (node, given), uuids in sorted(twice.items()):
        cards = f"{min(uuids)}{' and others' if len(uuids) > 1 else ''}"  # a figure has 200 characters
        yield RoleFinding("two-givers", {"node": node, "how": f"{cards} by claims of {given}"})


def _of_left_out(cluster: ClusterView, settings: BudgetSettings) -> Iterator[RoleFinding]:
    """Of published devices that an administrator's comparisons leave out, of drivers whose classes admission
    counts."""
    rules = {rule.driver: rule for rule in settings.drivers if rule.where}
    every = cluster.devices.every().items() if rules else ()
    numbers = Counter(
        driver for (driver, *_), device in every if driver in rules and not rules[driver].knows(device)
    )
    for driver, number in sorted(numbers.items()):
        classes = sorted(known.name for known in cluster.classes.classes.values() if known.driver == driver)
        if classes:
            names = {"driver": driver, "classes": some_of(classes)}
            yield RoleFinding("left-out-devices", {"number": number, **names})


def _of_unclassified(settings: BudgetSettings, nodes: list[KnownNode]) -> Iterator[RoleFinding]:
    """Of resources of which no table says whether they are accelerators'."""
    there: dict[str, list[str]] = {}
    for node in nodes:
        for resource in set(node.unclassified) - dict(settings.devices).keys():
            there.setdefault(resource, []).append(node.name)
    for resource, names in sorted(there.items()):
        yield RoleFinding("unclassified", {"resource": resource, "nodes": some_of(names)})
