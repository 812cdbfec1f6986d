"""Operators' commands: audit, export, import, fold and backup. Each ends with a sentence, or with its
findings."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from timekeeper.accounts.claims.consumers import served_by
from timekeeper.core.claims.allocation import read_claim
from timekeeper.core.claims.devices import read_slice
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.ledger.hold import NODE_LEASES, clock_ahead_ms
from timekeeper.core.request.device_classes import CONFIG_MAP, read_settings
from timekeeper.edge.clock import now_ms
from timekeeper.edge.list_watch import pages
from timekeeper.edge.reflector import ExpiredError, UnreachableError
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.claims import ClaimComparison
from timekeeper.operations.audit.cluster import ClusterComparison, read_compared_pod
from timekeeper.operations.audit.reports import Document, Lines, Report
from timekeeper.operations.migrate import migrate
from timekeeper.runtime.connect import connect
from timekeeper.settings import TimekeeperSettings, UnusableError
from timekeeper.store import fencing
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError, open_store
from timekeeper.store.engine.former import refuse_former
from timekeeper.store.engine.sqlite import beside, file_of
from timekeeper.store.engine.upgrade import snapshot
from timekeeper.store.retention import give_back, roll_up_all
from timekeeper.store.transfer.exporter import back_up, export
from timekeeper.store.transfer.importer import ImportRefusedError, load

_RESOURCES = "/apis/resource.k8s.io/v1"
_MIB = 1 << 20
_STREAM = "-"  # standard input or output


def run(settings: TimekeeperSettings) -> int:
    """Run the command; returns its exit code. Raises UnusableError with a sentence for the operator."""
    commands: dict[str, Callable[[TimekeeperSettings], int]] = {
        "audit": run_audit,
        "export": run_export,
        "import": run_import,
        "fold": run_fold,
        "backup": run_backup,
    }
    return commands[settings.command](settings)


def run_audit(settings: TimekeeperSettings) -> int:
    """Report differences from the evidence: 0 without any, else 1."""
    report: Report = Document(sys.stdout) if settings.output == "json" else Lines(sys.stdout)
    with _ledger(settings) as store, snapshot(store) as connection:
        if not fencing.current(connection).number:
            raise UnusableError(
                f"--database: {store.shown}: it is empty: no settler and no import has ever written to it;"
                " it must be a ledger's"
            )
        report.begin()
        cluster = _cluster(settings) if settings.cluster else None
        checked = audit(connection, now_ms(), report.tell, cluster)
    report.end(checked, cluster)
    return 1 if report.count else 0


def _cluster(settings: TimekeeperSettings) -> ClusterComparison:
    """The pods and claims that exist now, and the nodes whose clocks are wrong. Raises UnusableError."""
    api = connect(settings.kubeconfig)

    def objects(path: str) -> Iterator[Json]:
        return (raw for page, _ in pages(api, path) for raw in page)

    try:
        found, serving = [], set()
        for raw in objects("/api/v1/pods"):
            found.append(read_compared_pod(raw))
            serving.add(served_by(raw))
        clocks = {raw["metadata"]["name"]: clock_ahead_ms(raw) for raw in objects(NODE_LEASES)}
        own = f"/api/v1/namespaces/{settings.namespace}/configmaps"
        claims = _claims(objects, api.clock.now_ms, serving, own) if api.serves(_RESOURCES) else None
    except (UnreachableError, ExpiredError) as error:
        raise UnusableError(f"--cluster: pods, claims and Leases cannot be listed: {error}") from error
    finally:
        api.close()
    wrong = {node: ahead_ms for node, ahead_ms in clocks.items() if ahead_ms}
    return ClusterComparison([pod for pod in found if pod is not None], api.clock.now_ms(), wrong, claims)


def _claims(
    objects: Callable[[str], Iterable[Json]],
    clock: Callable[[], int],
    serving: Set[tuple[str, str]],
    config_maps: str,
) -> ClaimComparison:
    """The claims that exist now. ``serving``: those that serve extended resources of pods; ``config_maps``:
    the path of ours. Raises UnreachableError or ExpiredError."""
    claims = [read_claim(raw) for raw in objects(f"{_RESOURCES}/resourceclaims")]
    slices = [read_slice(raw) for raw in objects(f"{_RESOURCES}/resourceslices")]
    data = (raw.get("data") for raw in objects(config_maps) if raw["metadata"]["name"] == CONFIG_MAP)
    return ClaimComparison(claims, slices, clock(), serving, read_settings(mapping(next(data, None))))


def run_export(settings: TimekeeperSettings) -> int:
    """Write the whole ledger, as of one moment, to a new file or to standard output."""
    with _ledger(settings) as store, _written(settings.file) as out, snapshot(store) as connection:
        for line in export(connection):
            out.write(line)
    return 0


def run_import(settings: TimekeeperSettings) -> int:
    """Write an exported ledger into an empty database: all of it, or nothing."""
    with _read(settings.file) as lines, _new_file_or_none(settings):
        migrate(settings)
        with _ledger(settings) as store:
            try:
                with store.writing() as connection:
                    count = load(connection, lines, now_ms())
            except ImportRefusedError as error:
                raise UnusableError(f"{_named(settings.file)}: {error}; nothing was written") from error
    print(f"{count} rows were written", file=sys.stderr)
    return 0


def run_fold(settings: TimekeeperSettings) -> int:
    """Roll up sessions that ended and were settled long ago, and give the space back to the volume: 1 if some
    sessions were left for an audit."""
    with _ledger(settings) as store:
        total = roll_up_all(store, now_ms, settings.older_than_ms)
        given, stay = (0, 0) if store.is_shared else give_back(store)
    print(f"{total.sessions} sessions were folded into {total.rows} rows")
    if given >= _MIB:
        print(f"{given // _MIB} MiB were given back to the volume")
    if stay >= _MIB:
        print(
            f"{stay // _MIB} MiB that are free in the file stay in it, for an earlier release made it:"
            " `export` it, and `import` it into a new one"
        )
    for uid in total.doubtful:
        print(f"session {uid} was not folded: its postings do not add up to one session's charge; run audit")
    return 1 if total.doubtful else 0


def run_backup(settings: TimekeeperSettings) -> int:
    """Copy a running SQLite ledger to a new file."""
    with _ledger(settings) as store:
        back_up(store, Path(settings.file))
    return 0


@contextmanager
def _ledger(settings: TimekeeperSettings) -> Iterator[Store]:
    """The ledger, which must exist: SQLite would create an empty one for a mistyped name."""
    store = open_store(settings.database)
    try:
        path = store.engine.url.database or ""
        is_file = store.engine.dialect.name == "sqlite" and not path.startswith("file:")
        if is_file and not Path(path).is_file():
            raise UnusableError(f"--database: there is no file {path}; it must be a ledger's")
        refuse_former(store)
        yield store
    except (UnavailableError, ConflictError) as error:
        raise UnusableError(f"--database: {store.shown}: {error}") from error
    finally:
        store.close()


@contextmanager
def _new_file_or_none(settings: TimekeeperSettings) -> Iterator[None]:
    """A database file that did not exist before is removed again where the command fails."""
    store = open_store(settings.database)
    path = file_of(store.engine.url)
    is_new = not store.is_shared and not path.exists()
    store.close()
    try:
        yield
    except BaseException:
        for each in (path, *beside(path)) if is_new else ():
            each.unlink(missing_ok=True)
        raise


@contextmanager
def _written(name: str) -> Iterator[BinaryIO]:
    """Standard output, or a new file that gets its name once it is complete."""
    if name == _STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(name)
    if target.exists():
        raise UnusableError(f"FILE: {target} exists already; an export never overwrites a file")
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        with unfinished.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        unfinished.rename(target)
    except OSError as error:
        raise UnusableError(f"FILE: {target} cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _read(name: str) -> Iterator[BinaryIO]:
    if name == _STREAM:
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as lines:
            yield lines
    except OSError as error:
        raise UnusableError(f"FILE: {name} cannot be read: {error.strerror}") from error


def _named(name: str) -> str:
    return "standard input" if name == _STREAM else name
