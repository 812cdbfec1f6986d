"""Sets the certificates right, again and again: what is absent, old, unreadable or taken away is put back."""

import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from webhook import log
from webhook.certificates import files
from webhook.certificates.cluster import KINDS, Cluster, UnreachableError
from webhook.certificates.issue import new_ca, new_leaf
from webhook.certificates.plan import CA_SECRET, Leaf, Pair, is_bundle, leaves, plan
from webhook.settings import CertificateSettings

_MOST_RACES = 5

Clock = Callable[[], datetime]


class CannotRunError(Exception):
    """There is no API server to go to; the text is for the person who started us."""


def run(settings: CertificateSettings) -> int:
    """Runs until SIGTERM or SIGINT and returns 0; with ``once`` returns 1 where something could not be set
    right. Raises CannotRunError."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        cluster = Cluster(settings.kubeconfig, settings.namespace)
    except UnreachableError as error:
        raise CannotRunError(str(error)) from error
    while True:
        right = look(cluster, settings, lambda: datetime.now(UTC))
        if settings.once:
            return 0 if right else 1
        if ended.wait(settings.every_s):
            return 0


def look(cluster: Cluster, settings: CertificateSettings, clock: Clock) -> bool:
    """One look at everything; what fails is logged and does not keep the rest from being set right."""
    wanted = leaves(settings.namespace, settings.extra_names)
    try:
        ca, stored = certified(cluster, wanted, clock)
    except UnreachableError as error:
        log.to_stderr("not-certified", error=error)
        return False
    written = settings.folder is None or _written(settings.folder, wanted, stored)
    trusted = [_trusted(cluster, kind, settings.configuration, ca.bundle) for kind in KINDS]
    return written and all(trusted)


def certified(cluster: Cluster, wanted: tuple[Leaf, ...], clock: Clock) -> tuple[Pair, dict[str, Pair]]:
    """The CA and every leaf, by Secret, after what was missing has been made and stored.

    Each write is tied to what was read: where another process was faster, all is read again. Raises
    UnreachableError, also when it loses that race for good.
    """
    for _ in range(_MOST_RACES):
        ca, ca_version = cluster.secret(CA_SECRET)
        found = {leaf.secret: cluster.secret(leaf.secret) for leaf in wanted}
        stored = {name: pair for name, (pair, _) in found.items() if pair is not None}
        now = clock()
        todo = plan(ca, stored, wanted, now)
        if ca is not None and todo.nothing:
            return ca, stored
        if ca is None or todo.new_ca:
            ca = new_ca(todo.old_bundle, now)
            if not _stored(cluster, CA_SECRET, ca, ca_version):
                continue
        made = {leaf.secret: new_leaf(ca, leaf, now) for leaf in todo.new_leaves}
        if all(_stored(cluster, name, pair, found[name][1]) for name, pair in made.items()):
            return ca, stored | made
    raise UnreachableError("another process keeps writing the same Secrets")


def _stored(cluster: Cluster, name: str, pair: Pair, version: str) -> bool:
    stored = cluster.store(name, pair, version)
    log.to_stderr("stored" if stored else "overtaken", secret=name)
    return stored


def _written(folder: Path, wanted: tuple[Leaf, ...], stored: dict[str, Pair]) -> bool:
    try:
        for leaf in wanted:
            if files.write(folder / leaf.server, stored[leaf.secret]):
                log.to_stderr("written", folder=folder / leaf.server)
    except OSError as error:
        log.to_stderr("not-written", folder=folder, error=error)
        return False
    return True


def _trusted(cluster: Cluster, kind: str, name: str, bundle: bytes) -> bool:
    if not is_bundle(bundle):
        raise ValueError("our own CA bundle does not parse")
    try:
        if cluster.trust(kind, name, bundle):
            log.to_stderr("trusted", configuration=f"{kind}/{name}")
    except UnreachableError as error:
        log.to_stderr("not-trusted", configuration=f"{kind}/{name}", error=error)
        return False
    return True
