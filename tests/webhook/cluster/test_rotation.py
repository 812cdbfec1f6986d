"""Certificates that change while everybody is at work: a real API server, and replicas behind a Service."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509

from deploy.local.cluster import ControlPlane
from tests.support import short_lives
from tests.support.waiting import eventually
from tests.webhook.replicas import (
    NAMESPACE,
    SERVICE,
    Certificates,
    Creators,
    Replica,
    asking_nobody,
    ca_bundles,
    prepared,
    service,
    watching,
)
from webhook.controller.plan import CA_SECRET
from webhook.controller.reading import certificates, is_issued_by

pytestmark = pytest.mark.make_test("speaks HTTP to whoever comes")

ROTATIONS = 3
CREATIONS = 50  # at the least, under each CA
# The API server hears of a CA within the overlap; a Lease is of three checks.
FLAGS, SHORT = ("--every", "5"), short_lives.program(overlap_s=20)


@dataclass(slots=True)
class Seen:
    """What was served, and by whom it was signed, with how many pods had been created by then."""

    cp: ControlPlane
    replicas: list[Replica]
    creators: Creators
    trusted: set[x509.Certificate] = field(default_factory=set)
    leaves: set[x509.Certificate] = field(default_factory=set)
    # by the signing CA: pods created when it was first and last seen
    eras: dict[x509.Certificate, list[int]] = field(default_factory=dict)

    def look(self) -> None:
        """One more look at both replicas."""
        self.trusted |= {ca for text in ca_bundles(self.cp) for ca in certificates(text)}
        for replica in self.replicas:  # a CA is trusted before it signs, so the first look came first
            leaf = replica.certificate()
            self.leaves.add(leaf)
            (signer,) = (ca for ca in self.trusted if is_issued_by(leaf, ca))
            count = self.creators.created().governed
            self.eras.setdefault(signer, [count, count])[1] = count

    def created(self) -> list[int]:
        """How many pods were created under each CA."""
        return [last - first for first, last in self.eras.values()]

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Waits until it is so, or until a creation has failed."""
        eventually(lambda: is_so() or self.creators.created().failures, what)


@pytest.mark.parametrize("rotations", [1, pytest.param(ROTATIONS, marks=pytest.mark.soak)])
def test_rotations_of_ca_and_leaf_under_load_fail_not_one_creation(
    control_plane: ControlPlane, tmp_path: Path, rotations: int
) -> None:
    """Begun by hand, a leaf and then the CA. There are two certificate processes, and the one that leads is
    killed in the middle of the first rotation."""
    cp = control_plane
    with ExitStack() as stack:
        prepared(cp, "priority-classes", "webhook-configurations")
        service(cp)
        one = stack.enter_context(Certificates(cp, tmp_path, "one", *FLAGS, program=SHORT))
        eventually(lambda: "event=written" in one.log(), "the first certificates")
        other = stack.enter_context(Certificates(cp, tmp_path, "other", *FLAGS, program=SHORT))
        replicas = [
            stack.enter_context(Replica(cp, tmp_path, name, one.tls / "webhook", *asking_nobody(tmp_path)))
            for name in ("first", "second")
        ]
        creators = stack.enter_context(Creators(cp, 2, pause_s=0.5))
        seen = Seen(cp, replicas, creators)
        with watching(seen.look, every_s=1.0):
            for rotation in range(rotations):
                seen.until(lambda: seen.eras and min(seen.created()) >= CREATIONS, "pods under this CA")
                known = len(seen.leaves)
                cp.kubectl("delete", "secret", f"{SERVICE}-tls", "-n", NAMESPACE)
                seen.until(lambda known=known: len(seen.leaves) > known, "another leaf")  # type: ignore[misc]
                cp.kubectl("delete", "secret", CA_SECRET, "-n", NAMESPACE)
                seen.until(lambda: len(certificates(ca_bundles(cp)[0])) == 2, "a CA to be staged")
                if rotation == 0:
                    one.process.kill()
                seen.until(lambda: len(seen.eras) > rotation + 1, "the new CA to sign")  # noqa: B023
            seen.until(lambda: min(seen.created()) >= CREATIONS, "pods under the last CA")
    done = creators.created()

    assert done.failures == {}
    assert "event=leading" in other.log()
    assert len(seen.eras) >= rotations + 1
    assert len(seen.leaves) >= 1 + 2 * rotations
    assert min(seen.created()) >= CREATIONS
    assert done.governed >= 2 * CREATIONS * rotations
