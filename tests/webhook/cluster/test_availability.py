"""Two replicas of the webhook behind its Service, and that their upgrade is noticed by nobody."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.ports import free_port
from tests.support.waiting import eventually
from tests.webhook.replicas import Creators, Replica, certify, prepared, service

CREATIONS = 40  # at the least, in each part of a replica's end and beginning


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ControlPlane, list[Replica]]]:
    """A cluster whose webhook has two replicas behind its Service."""
    folder, cp = tmp_path_factory.mktemp("served"), control_plane
    prepared(cp, "priority-classes", "webhook-configurations")
    service(cp)
    assert certify(cp, folder)
    (folder / "token").write_text("none")
    tls = folder / "tls" / "webhook"
    nobody = f"https://127.0.0.1:{free_port()}"
    flags = ("--workers", "2", "--timekeeper-url", nobody, "--token-file", f"{folder}/token")
    with (
        Replica(cp, folder, "first", tls, *flags) as one,
        Replica(cp, folder, "second", tls, *flags) as two,
    ):
        yield cp, [one, two]


def test_two_replicas_share_the_reviews(served: tuple[ControlPlane, list[Replica]]) -> None:
    cp, replicas = served

    with Creators(cp, 4) as creators:
        eventually(lambda: all(each.reviews() > 20 for each in replicas), "both to be asked")

    assert creators.created().failures == {}


def test_a_replica_is_ready_with_its_certificate_and_the_ca_bundle_and_needs_no_timekeeper(
    served: tuple[ControlPlane, list[Replica]], tmp_path: Path
) -> None:
    cp, (one, _) = served
    replica = Replica(cp, tmp_path, "third", tmp_path, *one.flags)
    replica.start()
    with contextlib.closing(replica):
        eventually(lambda: "event=serving" in replica.log(), "it to listen")
        assert (replica.status("/livez"), replica.status("/readyz")) == (0, 0)

        for name in ("tls.key", "tls.crt"):
            shutil.copy(one.tls / name, tmp_path / name)
        eventually(lambda: replica.status("/livez") == 200, "its certificate")
        # a worker that has not seen the certificate yet gives no answer
        assert next(filter(None, (replica.status("/readyz") for _ in range(1_000)))) == 503

        shutil.copy(one.tls / "ca.crt", tmp_path / "ca.crt")
        eventually(lambda: replica.status("/readyz") == 200, "the CA bundle")


def test_an_upgrade_of_two_replicas_one_after_the_other_fails_not_one_creation(
    served: tuple[ControlPlane, list[Replica]],
) -> None:
    """As a rolling update does it: the old one serves on (preStop) until the API server has heard that it
    goes, and is then told to end; the new one is heard of when it is ready."""
    cp, replicas = served
    during: list[int] = []
    with Creators(cp, 4, pause_s=0.05) as creators:
        for replica in replicas:
            creators.more(CREATIONS)
            before = creators.created().governed

            replica.announce(ready=False)
            creators.more(CREATIONS)  # the while that preStop gives
            reviewed = replica.reviews()
            assert replica.terminate() == 0
            creators.more(CREATIONS)
            replica.begin()

            assert reviewed > 0
            during.append(creators.created().governed - before)
        creators.more(CREATIONS)
    done = creators.created()

    assert done.failures == {}
    assert min(during) >= 2 * CREATIONS
    assert done.governed >= 7 * CREATIONS
