"""Rotations of the CA, and who follows them: the API server, the webhook's polls of a real timekeeper, and a
sidecar."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack, Tuning
from tests.deploy.reading import ROOT
from tests.support import short_lives
from tests.support.control_plane import create_namespace, kubectl
from tests.webhook.replicas import PODS, Creators, ca_bundles, gpu_pod, served
from webhook.controller.reading import certificates, is_issued_by

COMMAND = "kubectl delete secret bursar-ca -n bursar-system"


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    """All of Bursar, a node with cards, and sidecars that beat ten times a second: they see each bundle."""
    with Stack(control_plane, Tuning(heartbeat_interval="100ms")) as running:
        control_plane.api.call("POST", "/api/v1/nodes", kwok_node("n1", cards=2))
        yield running


@pytest.mark.parametrize("rotations", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_the_polls_and_a_sidecar_follow_each_rotation_and_then_trust_the_last_ca_alone(
    stack: Stack, rotations: int
) -> None:
    """Each begun by hand, by the command of the page, while pods are created."""
    assert f"`{COMMAND}`" in (ROOT / "docs" / "certificates.md").read_text()
    with Sidecars(stack) as sidecars, Creators(stack.cp, 1, pause_s=1.0) as creators:
        pod = running_pod(stack)
        stack.wait("the sidecar", lambda: "event=started" in sidecars.logs())
        stack.renew("--every", "5", program=short_lives.program(overlap_s=20))  # the sidecar beats within it
        stack.wait("the polls to be answered", lambda: heard_last(stack.log("webhook")))
        said_before, seen = stack.log("webhook"), [signer(stack)]
        for number in range(rotations):
            before = creators.created().governed
            kubectl(stack.cp, *COMMAND.split()[1:])
            stack.wait("a leaf of another CA", lambda: signer(stack) not in seen)
            seen.append(signer(stack))
            stack.wait("the former CA to go", lambda: trusted(stack) == (seen[-1],))
            stack.wait(
                "the sidecar to have followed each bundle",
                lambda number=number: sidecars.logs().count("event=ca-followed") >= 2 * (number + 1),  # type: ignore[misc]
            )
            assert creators.created().governed > before
        assert "timekeeper-away" not in sidecars.logs()
        assert "event=standings-failed" not in stack.log("webhook").removeprefix(said_before)

        stack.stop("timekeeper")
        stack.wait("the sidecar to miss it", lambda: "event=timekeeper-away" in sidecars.logs())
        stack.start("timekeeper")
        stack.wait("the sidecar to be answered", lambda: "event=timekeeper-back" in sidecars.logs())
        stack.wait("the polls to be answered", lambda: heard_last(stack.log("webhook")))

    stack.stop("certificates")
    assert creators.created().failures == {}
    assert len(set(seen)) == rotations + 1
    assert "is not accepted" not in sidecars.logs()
    assert "certificate is not accepted" not in stack.log("webhook")
    assert stack.cp.api.call("GET", pod)["status"]["phase"] == "Running"


def running_pod(stack: Stack) -> str:
    """A GPU pod that runs; its path."""
    create_namespace(stack.cp, "team-a")
    stack.cp.api.call("POST", PODS, gpu_pod("steady"))
    path = f"{PODS}/steady"
    stack.wait("the pod", lambda: stack.cp.api.call("GET", path)["status"].get("phase") == "Running")
    return path


def trusted(stack: Stack) -> tuple[x509.Certificate, ...]:
    """The CAs in every caBundle; none while they differ."""
    texts = set(ca_bundles(stack.cp))
    return certificates(texts.pop()) if len(texts) == 1 else ()


def signer(stack: Stack) -> x509.Certificate:
    """The CA of the certificate that the timekeeper serves; a CA is trusted before it signs."""
    port = urlsplit(stack.timekeeper_url).port
    leaf = served("127.0.0.1", int(port or 0))
    (found,) = (ca for ca in certificates(b"".join(ca_bundles(stack.cp))) if is_issued_by(leaf, ca))
    return found


def heard_last(log: str) -> bool:
    """Whether the last that a webhook's polls have said is that they were answered."""
    said = [line for line in log.splitlines() if "event=standings-" in line]
    return bool(said) and "event=standings-updated" in said[-1]
