"""The loop of the certificate process: each look puts back what is absent, old, unreadable or removed."""

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from timekeeper.core.names import API_SERVICE
from timekeeper.edge.lease import LeaseElection, LeaseName, holder_name
from timekeeper.edge.log import log
from timekeeper.runtime.api_server import lease_caller
from timekeeper.runtime.connect import connect
from timekeeper.runtime.end_signals import event_of_end_signals
from webhook.controller import plan
from webhook.controller.cluster import (
    AGENTS_CA,
    KINDS,
    CertificateStore,
    CertificateStoreError,
    NoSuchObjectError,
)
from webhook.controller.device_classes import DeviceClasses
from webhook.controller.issue import new_ca, new_leaf, write_files
from webhook.controller.plan import CA_SECRET, CertificatePair, Leaf, leaves
from webhook.controller.reading import authorities, bundle, is_bundle
from webhook.lifetimes import CertificateLifetimes
from webhook.settings.certificates import CONFIGURATION, CertificateSettings

LEASE = "bursar-certificates"
_LEASE_LOOKS = 3  # the Lease lasts as long as this many looks
_MAX_RACES = 5
_LIVES = CertificateLifetimes()

Clock = Callable[[], datetime]


def run(settings: CertificateSettings) -> int:
    """Runs until SIGTERM or SIGINT and returns 0; with ``once`` looks once, without the Lease, and returns 1
    where something could not be corrected. Raises UnusableError."""
    stop = event_of_end_signals()
    api = connect(settings.kubeconfig)
    cluster = CertificateStore(api, settings.namespace)
    classes = DeviceClasses(api, settings.namespace, log)
    if settings.once:  # safe beside a leader: each write is tied to the version that was read
        return 0 if all((look(cluster, settings, _now), classes.look())) else 1
    me = holder_name(socket.gethostname(), settings.pod_uid, "certificates", secrets.token_hex(4))
    duration_s = _LEASE_LOOKS * settings.every_s
    calls, name = lease_caller(api), LeaseName(settings.namespace, LEASE)
    election = LeaseElection(calls, name, me, duration_s, time.monotonic, log)
    led: bool | None = None  # None before the first look
    while True:
        leads = election.look() is True
        if leads != led:
            log("leading" if leads else "following", holder=me)
        led = leads
        if leads:
            look(cluster, settings, _now)
            classes.look()
        elif settings.folder is not None:
            follow(cluster, settings)
        if stop.wait(settings.every_s):
            election.give_back()
            return 0


def look(cluster: CertificateStore, settings: CertificateSettings, clock: Clock) -> bool:
    """One look at everything; a failure is logged and the rest is still corrected."""
    wanted = leaves(settings.namespace, settings.extra_names)
    troubles: set[type[CertificateStoreError]] = set()

    def publish(trusted: bytes) -> None:
        troubles.clear()
        troubles.update(_publish(cluster, settings, trusted))

    try:
        if settings.issuer == "cert-manager":
            return _publish_issuer_cas(cluster, CONFIGURATION, wanted, clock(), publish) and not troubles
        ca, stored = certified(cluster, wanted, clock, settings.lifetimes, publish)
        if troubles <= {NoSuchObjectError}:  # without a configuration no API server calls us
            _mark(cluster, ca, clock())
    except CertificateStoreError as error:
        log("not-certified", level="error", error=error)
        return False
    written = settings.folder is None or _written(settings.folder, wanted, stored)
    return written and not troubles


def follow(cluster: CertificateStore, settings: CertificateSettings) -> bool:
    """For a process that does not lead: updates its files from the Secrets."""
    wanted = leaves(settings.namespace, settings.extra_names)
    try:
        found = {leaf.secret: cluster.secret(leaf.secret)[0] for leaf in wanted}
    except CertificateStoreError as error:
        log("not-followed", level="error", error=error)
        return False
    stored = {name: pair for name, pair in found.items() if pair is not None}
    present = tuple(leaf for leaf in wanted if leaf.secret in stored)
    return settings.folder is None or _written(settings.folder, present, stored)


def certified(
    cluster: CertificateStore,
    wanted: tuple[Leaf, ...],
    clock: Clock,
    lifetimes: CertificateLifetimes = _LIVES,
    publish: Callable[[bytes], None] = lambda _: None,
) -> tuple[CertificatePair, dict[str, CertificatePair]]:
    """The CA and every leaf, by Secret, after missing ones were created and stored. ``publish`` writes the
    bundle to its places before a leaf is stored.

    Each write requires the version that was read; where another process was faster, everything is read again.
    Raises CertificateStoreError, also when it loses this race _MAX_RACES times.
    """
    for _ in range(_MAX_RACES):
        present, ca_version = cluster.secret(CA_SECRET)
        found = {leaf.secret: cluster.secret(leaf.secret) for leaf in wanted}
        stored = {name: pair for name, (pair, _) in found.items() if pair is not None}
        now = clock()
        ca = _ca(plan.authority(present, stored, wanted, now, lifetimes), present, now, lifetimes)
        if ca != present and not _stored(cluster, CA_SECRET, ca, ca_version):
            continue
        publish(ca.bundle)
        by = plan.signer(ca, now, lifetimes)
        made = plan.trusting(ca, stored) | {
            leaf.secret: new_leaf(by, leaf, now, lifetimes.leaf)
            for leaf in plan.due(ca, stored, wanted, now, lifetimes)
        }
        if all(_stored(cluster, name, pair, found[name][1]) for name, pair in made.items()):
            return ca, stored | made
    raise CertificateStoreError("another process keeps writing the same Secrets")


def _ca(
    wanted: plan.AuthorityPlan,
    present: CertificatePair | None,
    now: datetime,
    lifetimes: CertificateLifetimes,
) -> CertificatePair:
    """The CA to store."""
    if wanted.new:
        return replace(new_ca(wanted.bundle, now, lifetimes.ca), former_key=wanted.former_key)
    since = present.trusted_since if present else None
    if since is not None and since > now:  # written by a clock that was ahead of ours
        since = None
    first = wanted.bundle  # its first certificate is the CA's own
    return CertificatePair(first, wanted.key, wanted.bundle, wanted.former_key, since)


def _mark(cluster: CertificateStore, ca: CertificatePair, now: datetime) -> None:
    """Records in the CA's Secret that its bundle is everywhere from now on."""
    if ca.trusted_since is None:
        present, version = cluster.secret(CA_SECRET)
        if present is not None and (present.bundle, present.key) == (ca.bundle, ca.key):
            _stored(cluster, CA_SECRET, replace(present, trusted_since=now), version)


def _publish_issuer_cas(
    cluster: CertificateStore,
    configuration: str,
    wanted: tuple[Leaf, ...],
    now: datetime,
    publish: Callable[[bytes], None],
) -> bool:
    """Publishes the CAs in another issuer's Secrets together with those that are trusted already; False where
    no Secret contains one."""
    names = (CA_SECRET, *(leaf.secret for leaf in wanted))
    pairs = [pair for name in names if (pair := cluster.secret(name)[0]) is not None]
    named = [ca for pair in pairs for ca in authorities(pair.bundle, now)]
    if not named:
        log("no-ca", level="error", secrets=",".join(names))
        return False
    for kind in KINDS:
        try:
            found = cluster.bundles(kind, configuration)
        except NoSuchObjectError:
            continue  # reported when it is written
        named += [ca for text in found.values() for ca in authorities(text, now)]
    publish(bundle(named))
    return True


def _stored(cluster: CertificateStore, name: str, pair: CertificatePair, version: str) -> bool:
    stored = cluster.store(name, pair, version)
    log("stored" if stored else "overtaken", secret=name)
    return stored


def _written(folder: Path, wanted: tuple[Leaf, ...], stored: dict[str, CertificatePair]) -> bool:
    try:
        for leaf in wanted:
            if write_files(folder / leaf.server, stored[leaf.secret]):
                log("written", folder=folder / leaf.server)
    except OSError as error:
        log("not-written", level="error", folder=folder, error=error)
        return False
    return True


def _publish(
    cluster: CertificateStore, settings: CertificateSettings, bundle: bytes
) -> set[type[CertificateStoreError]]:
    """Writes the bundle to every place that needs it; returns the kinds of failures, which are logged."""
    if not is_bundle(bundle):
        raise ValueError("our own CA bundle does not parse")
    places: dict[str, Callable[[], bool]] = {
        f"{kind}/{CONFIGURATION}": partial(cluster.trust, kind, CONFIGURATION, bundle) for kind in KINDS
    }
    places[f"apiservices/{API_SERVICE}"] = partial(cluster.trust_api_service, API_SERVICE, bundle)
    if settings.agents_namespace:
        agents = settings.agents_namespace
        places[f"configmaps/{agents}/{AGENTS_CA}"] = partial(cluster.hand_out, agents, bundle)
    if name := settings.ca_configmap:
        own = settings.namespace
        places[f"configmaps/{own}/{name}"] = partial(cluster.hand_out, own, bundle, name)
    troubles = set()
    for place, write in places.items():
        try:
            if write():
                log("trusted", configuration=place)
        except CertificateStoreError as error:
            log("not-trusted", level="error", configuration=place, error=error)
            troubles.add(type(error))
    return troubles


def _now() -> datetime:
    return datetime.now(UTC)
