"""A real etcd is put back to what it was a while ago, and its API server is started again: each list and
watch finds it out, though nothing says so."""

import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.limits import LONGEST_S
from tests.support.sources import unnoted
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchEvent, WatchFailed
from timekeeper.runtime.connect import connect

PATH = "/api/v1/namespaces/default/configmaps"
FASTER = 40  # than the real clock: a minute of silence


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """Its etcd is changed, so it is of this test alone."""
    with ControlPlane() as running:
        for name in ("kube-controller-manager", "kwok"):
            running.stop_process(name)
        yield running


def back(plane: ControlPlane) -> None:
    """The API server answers."""
    begun = time.monotonic()
    while not plane.api.answers("/readyz"):
        assert time.monotonic() < begun + LONGEST_S
        time.sleep(0.1)


def make(plane: ControlPlane, name: str) -> None:
    plane.api.call("POST", PATH, {"metadata": {"name": name}})


def changes(source: Iterator[WatchEvent[str]], last: str) -> None:
    """Until the watch shows this one."""
    while next(source) != ObjectChanged(last, False):
        pass


def test_what_etcd_has_forgotten_is_forgotten_and_its_watches_go_on(plane: ControlPlane) -> None:
    def read(item: Mapping[str, Any]) -> str:
        return str(item["metadata"]["name"])

    health = unnoted()
    followed = inform(
        connect(plane.admin_kubeconfig),
        PATH,
        read,
        lambda ms: time.sleep(min(ms, 200) / 1000),
        health,
        watch_s=2,
        now_s=lambda: FASTER * time.monotonic(),
    )
    make(plane, "yesterday")
    plane.stop_process("etcd")
    shutil.copytree(plane.folder / "etcd", plane.folder / "backup")
    plane.restart_process("etcd")
    back(plane)
    assert isinstance(next(followed), ObjectsListed)
    for number in range(20):
        make(plane, f"today-{number}")
    changes(followed, "today-19")

    for name in ("kube-apiserver", "etcd"):
        plane.stop_process(name)
    shutil.rmtree(plane.folder / "etcd")
    shutil.move(plane.folder / "backup", plane.folder / "etcd")
    for name in ("etcd", "kube-apiserver"):
        plane.restart_process(name)
    back(plane)
    make(plane, "afterwards")
    said, listed = [], None
    for event in followed:
        said += [event.sentence] if isinstance(event, WatchFailed) else []
        if isinstance(event, ObjectsListed):
            listed = set(event.items)
            break

    assert listed == {"kube-root-ca.crt", "yesterday", "afterwards"}
    assert any("etcd was restored: its version is" in sentence for sentence in said)
    assert health.restored_ms() is not None
    make(plane, "later")
    changes(followed, "later")
