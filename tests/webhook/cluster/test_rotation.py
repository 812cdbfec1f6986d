"""Certificates that change while everybody is at work: a real API server, replicas behind a Service,
and a real timekeeper and sidecar."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack, Tuning
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.webhook.replicas import (
    AGENTS_NAMESPACE,
    BY_ENDPOINTS,
    CONFIGURATIONS,
    KINDS,
    NAMESPACE,
    PODS,
    Certificates,
    Creators,
    Replica,
    asking_nobody,
    gpu_pod,
    prepared,
    served,
    service,
    watching,
)
from tests.webhook.servers import ROOT
from timekeeper.runtime.connect import connect
from webhook.controller.cluster import CertificateStore
from webhook.controller.issue import new_ca, new_leaf
from webhook.controller.plan import leaves
from webhook.controller.reading import certificates, is_issued_by
from webhook.settings.certificates import CONFIGURATION

pytestmark = pytest.mark.timeout(420)

ROTATIONS = 3
CREATIONS = 50  # at the least, under each CA
LIVES = ("--ca-life", "36s", "--leaf-life", "16s", "--overlap", "5s", "--every", "1")
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
AGENTS_MAPS = f"/api/v1/namespaces/{AGENTS_NAMESPACE}/configmaps"


def ca_bundles(cp: ControlPlane) -> list[bytes]:
    """The caBundle of each of our webhooks."""
    found = [cp.api.call("GET", f"{CONFIGURATIONS}/{kind}/{CONFIGURATION}") for kind in KINDS]
    texts = [each["clientConfig"].get("caBundle", "") for one in found for each in one["webhooks"]]
    return [base64.b64decode(text) for text in texts]


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

    def failed(self) -> bool:
        """Whether there is nothing more to wait for."""
        return bool(self.creators.created().failures)


@pytest.mark.parametrize("rotations", [1, pytest.param(ROTATIONS, marks=pytest.mark.soak)])
def test_rotations_of_ca_and_leaf_under_load_fail_not_one_creation(tmp_path: Path, rotations: int) -> None:
    """Lifetimes of seconds, two certificate processes, and the one that leads is killed in the middle of a
    rotation."""
    with ExitStack() as stack:
        cp = stack.enter_context(ControlPlane(BY_ENDPOINTS))
        prepared(cp, "priority-classes", "webhook-configurations")
        service(cp)
        one = stack.enter_context(Certificates(cp, tmp_path, "one", *LIVES))
        eventually(lambda: "event=written" in one.log(), "the first certificates")
        other = stack.enter_context(Certificates(cp, tmp_path, "other", *LIVES))
        replicas = [
            stack.enter_context(Replica(cp, tmp_path, name, one.tls / "webhook", *asking_nobody(tmp_path)))
            for name in ("first", "second")
        ]
        creators = stack.enter_context(Creators(cp, 3, pause_s=0.1))
        seen = Seen(cp, replicas, creators)
        with watching(seen.look, every_s=0.3):
            eventually(lambda: len(certificates(ca_bundles(cp)[0])) == 2, "a CA to be staged", within_s=90)
            one.process.kill()
            eventually(lambda: len(seen.eras) > rotations or seen.failed(), "the rotations", within_s=240)
            eventually(lambda: min(seen.created()) >= CREATIONS or seen.failed(), "pods under the last CA")
    done = creators.created()

    assert done.failures == {}
    assert "event=leading" in other.log()
    assert len(seen.eras) >= rotations + 1
    assert len(seen.leaves) >= 2 * rotations
    assert min(seen.created()) >= CREATIONS
    assert done.governed >= 2 * CREATIONS * rotations


# who else trusts: the webhook's polls, and sidecars


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    """All of Bursar, a node with cards, and sidecars that beat ten times a second."""
    with Stack(control_plane, Tuning(heartbeat_interval="100ms")) as running:
        control_plane.api.call("POST", "/api/v1/nodes", kwok_node("n1", cards=2))
        yield running


def test_the_polls_and_a_sidecar_follow_three_rotations_and_then_trust_the_last_ca_alone(
    stack: Stack,
) -> None:
    """Each begun by hand: the CA's Secret is deleted."""
    kubeconfig = stack.cp.kubeconfig(stack.token(NAMESPACE, "bursar-certificates"), "rotating")
    flags = ("--overlap", "5s", "--every", "1", "--extra-name", "127.0.0.1", "--extra-name", "localhost")
    with Sidecars(stack) as sidecars, ExitStack() as rotating:
        pod = running_pod(stack)
        stack.wait("the sidecar", lambda: "event=started" in sidecars.logs())
        rotating.enter_context(
            Certificates(stack.cp, stack.folder, "rotating", *flags, kubeconfig=kubeconfig)
        )
        stack.wait("the polls to be answered", lambda: heard_last(stack.log("webhook")))
        said_before, seen = stack.log("webhook"), [signer(stack)]
        for number in range(ROTATIONS):
            stack.cp.api.call("DELETE", f"{SECRETS}/bursar-ca")
            stack.wait("a leaf of another CA", lambda: signer(stack) not in seen)
            seen.append(signer(stack))
            stack.wait("the former CA to go", lambda: trusted(stack) == (seen[-1],))
            stack.wait(
                "the sidecar to have followed each bundle",
                lambda number=number: sidecars.logs().count("event=ca-followed") >= 2 * (number + 1),  # type: ignore[misc]
            )
        assert "timekeeper-away" not in sidecars.logs()
        assert "event=standings-failed" not in stack.log("webhook").removeprefix(said_before)

        stack.stop("timekeeper")
        stack.wait("the sidecar to miss it", lambda: "event=timekeeper-away" in sidecars.logs())
        stack.start("timekeeper")
        stack.wait("the sidecar to be answered", lambda: "event=timekeeper-back" in sidecars.logs())
        stack.wait("the polls to be answered", lambda: heard_last(stack.log("webhook")))

    assert len(set(seen)) == ROTATIONS + 1
    assert "is not accepted" not in sidecars.logs()
    assert "CERTIFICATE_VERIFY_FAILED" not in stack.log("webhook")
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


# what heals, on the API server's own objects


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Path]]:
    """A cluster with webhook configurations and certificates, and a folder for them."""
    folder = tmp_path_factory.mktemp("healing")
    with ControlPlane() as cp:
        prepared(cp, "priority-classes", "webhook-configurations")
        assert certify(cp, folder) == 0
        yield cp, folder


def certify(cp: ControlPlane, folder: Path, *flags: str) -> int:
    """One look; its exit code."""
    with Certificates(cp, folder, "once", "--once", *flags) as once:
        return once.process.wait(timeout=60)


def secret(cp: ControlPlane, name: str) -> dict[str, bytes]:
    """What a Secret holds."""
    found = cp.api.call("GET", f"{SECRETS}/{name}")["data"]
    return {key: base64.b64decode(text) for key, text in found.items()}


def write(cp: ControlPlane, name: str, **data: bytes | None) -> None:
    """Somebody changes keys of a Secret; None takes one away."""
    texts = {
        key.replace("_", "."): None if value is None else base64.b64encode(value).decode()
        for key, value in data.items()
    }
    cp.api.call("PATCH", f"{SECRETS}/{name}", {"data": texts}, "application/merge-patch+json")


def agents_ca(cp: ControlPlane) -> bytes:
    """What the nodes' agents trust; empty where nothing was handed to them."""
    if not cp.api.answers(f"{AGENTS_MAPS}/bursar-ca"):
        return b""
    return str(cp.api.call("GET", f"{AGENTS_MAPS}/bursar-ca")["data"]["ca.crt"]).encode()


def whole(cp: ControlPlane) -> bool:
    """Whether every leaf is of a trusted CA, and one bundle is everywhere."""
    names = ("bursar-webhook-tls", "bursar-timekeeper-tls", "bursar-scheduler-tls")
    leaves = [secret(cp, name) for name in names]
    trusted = {secret(cp, "bursar-ca")["ca.crt"], *ca_bundles(cp), *(leaf["ca.crt"] for leaf in leaves)}
    trusted.add(agents_ca(cp))
    (one,) = trusted if len(trusted) == 1 else (b"",)
    return all(
        any(is_issued_by(certificate, ca) for ca in certificates(one))
        for leaf in leaves
        for certificate in certificates(leaf["tls.crt"])
    )


HARM: dict[str, tuple[str, dict[str, bytes | None]]] = {
    "a leaf is garbage": ("bursar-webhook-tls", {"tls_crt": b"garbage"}),
    "a leaf's key is garbage": ("bursar-timekeeper-tls", {"tls_key": b"\xff\x00"}),
    "a leaf's bundle is gone": ("bursar-webhook-tls", {"ca_crt": None}),
    "the CA is garbage": ("bursar-ca", {"ca_crt": b"garbage"}),
    "the CA's key is gone": ("bursar-ca", {"ca_key": None}),
    "the CA is empty": ("bursar-ca", {"ca_crt": None, "ca_key": None}),
}


@pytest.mark.parametrize("case", HARM)
def test_garbage_in_a_secret_heals(cluster: tuple[ControlPlane, Path], case: str) -> None:
    cp, folder = cluster
    name, data = HARM[case]
    write(cp, name, **data)
    served_before = certificates((folder / "tls" / "webhook" / "tls.crt").read_bytes())[0]

    assert certify(cp, folder) == 0

    assert whole(cp)
    # who still serves the former leaf is trusted too
    assert any(is_issued_by(served_before, ca) for ca in certificates(ca_bundles(cp)[0]))


def test_a_ca_comes_back_from_its_secret_as_it_was_stored(cluster: tuple[ControlPlane, Path]) -> None:
    cp, _ = cluster
    elsewhere = CertificateStore(connect(cp.admin_kubeconfig), "team-a")
    once = new_ca(b"", datetime.now(UTC))
    ca = replace(once, former_key=new_ca(b"", datetime.now(UTC)).key, trusted_since=datetime.now(UTC))

    assert elsewhere.store("bursar-ca", ca, "")
    stored, version = elsewhere.secret("bursar-ca")
    assert stored == ca
    assert elsewhere.store("bursar-ca", once, version)
    assert elsewhere.secret("bursar-ca")[0] == once
    keys = cp.api.call("GET", "/api/v1/namespaces/team-a/secrets/bursar-ca")["data"]
    assert keys.keys() == {"ca.crt", "ca.key"}


def test_what_others_wrote_into_a_secret_stays(cluster: tuple[ControlPlane, Path]) -> None:
    cp, folder = cluster
    labels = {"metadata": {"labels": {"backup": "yes"}, "annotations": {"note": "x"}}}
    cp.api.call("PATCH", f"{SECRETS}/bursar-webhook-tls", labels, "application/merge-patch+json")
    write(cp, "bursar-webhook-tls", tls_crt=b"garbage")

    assert certify(cp, folder) == 0

    found = cp.api.call("GET", f"{SECRETS}/bursar-webhook-tls")["metadata"]
    assert (found["labels"]["backup"], found["annotations"]) == ("yes", {"note": "x"})


def test_a_secret_that_was_there_before_us_with_another_type_is_filled(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster
    cp.api.call("DELETE", f"{SECRETS}/bursar-webhook-tls")
    cp.api.call("POST", SECRETS, {"metadata": {"name": "bursar-webhook-tls"}, "data": {}})

    assert certify(cp, folder) == 0

    assert cp.api.call("GET", f"{SECRETS}/bursar-webhook-tls")["type"] == "Opaque"
    assert whole(cp)


def test_a_secret_that_may_not_be_changed_is_reported_in_a_sentence(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster
    write(cp, "bursar-webhook-tls", tls_crt=b"garbage")
    fixed = {"immutable": True}
    cp.api.call("PATCH", f"{SECRETS}/bursar-webhook-tls", fixed, "application/merge-patch+json")
    try:
        assert certify(cp, folder) == 1
        said = (folder / "certificates-once.log").read_text().splitlines()[-1]
        assert "event=not-certified" in said
        assert "cannot write Secret bursar-webhook-tls: " in said
        assert "immutable" in said
    finally:
        cp.api.call("DELETE", f"{SECRETS}/bursar-webhook-tls")
    assert certify(cp, folder) == 0
    assert whole(cp)


def test_garbage_in_a_ca_bundle_is_replaced_within_a_look(cluster: tuple[ControlPlane, Path]) -> None:
    cp, folder = cluster
    before = set(ca_bundles(cp))
    garbage = base64.b64encode(b"garbage").decode()
    patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": garbage}]
    with Certificates(cp, folder, "healing", "--every", "1") as process:
        eventually(lambda: "event=leading" in process.log(), "the process to lead")
        for kind in KINDS:
            path = f"{CONFIGURATIONS}/{kind}/{CONFIGURATION}"
            broken = cp.api.call("PATCH", path, patch, "application/json-patch+json")
            assert broken["webhooks"][0]["clientConfig"]["caBundle"] == garbage

        eventually(lambda: set(ca_bundles(cp)) == before, "the CA to be written again", within_s=10)


def test_what_the_agents_trust_comes_back_and_what_others_wrote_beside_it_stays(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster
    theirs = {"data": {"ca.crt": "garbage", "other.crt": "theirs"}}
    cp.api.call("PATCH", f"{AGENTS_MAPS}/bursar-ca", theirs, "application/merge-patch+json")

    assert certify(cp, folder) == 0
    assert whole(cp)
    found = cp.api.call("GET", f"{AGENTS_MAPS}/bursar-ca")
    assert found["data"]["other.crt"] == "theirs"
    assert certify(cp, folder) == 0
    again = cp.api.call("GET", f"{AGENTS_MAPS}/bursar-ca")
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
    cp.api.call("DELETE", f"{AGENTS_MAPS}/bursar-ca")
    assert certify(cp, folder) == 0
    assert whole(cp)


def test_a_cluster_without_the_agents_namespace_gets_its_certificates(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster

    assert certify(cp, folder, "--agents-namespace", "nowhere") == 0
    assert whole(cp)


def test_a_leader_that_ends_in_order_is_followed_at_once(cluster: tuple[ControlPlane, Path]) -> None:
    cp, folder = cluster
    cp.kubectl("delete", "lease", "bursar-certificates", "-n", NAMESPACE)
    with Certificates(cp, folder, "leader", "--every", "100") as leader:
        eventually(lambda: "event=leading" in leader.log(), "the first to lead")
        with Certificates(cp, folder, "follower", "--every", "1") as follower:
            eventually(lambda: "event=following" in follower.log(), "the second to follow")

            leader.process.terminate()

            assert leader.process.wait(timeout=20) == 0
            # long before the Lease of the first would have run out
            eventually(lambda: "event=leading" in follower.log(), "the second to lead", within_s=20)


# certificates of cert-manager


def test_the_cas_of_cert_managers_secrets_are_trusted_and_nothing_else_is_touched(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster
    former = certificates(ca_bundles(cp)[0])
    names = ("bursar-ca", "bursar-webhook-tls", "bursar-timekeeper-tls", "bursar-scheduler-tls")
    theirs = new_ca(b"", datetime.now(UTC))
    for name, leaf in zip(names, (None, *leaves(NAMESPACE, ())), strict=True):
        pair = theirs if leaf is None else new_leaf(theirs, leaf, datetime.now(UTC))
        data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.bundle}
        body = {
            "metadata": {"name": name},
            "type": "kubernetes.io/tls",
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        cp.api.call("DELETE", f"{SECRETS}/{name}")
        cp.api.call("POST", SECRETS, body)
    before = [cp.api.call("GET", f"{SECRETS}/{name}") for name in names]

    assert certify(cp, folder, "--issuer", "cert-manager") == 0

    assert {certificates(text) for text in ca_bundles(cp)} == {(*certificates(theirs.bundle), *former)}
    assert [cp.api.call("GET", f"{SECRETS}/{name}") for name in names] == before


def test_the_objects_for_cert_manager_make_the_secrets_and_names_that_are_used() -> None:
    text = (ROOT / "deploy" / "samples" / "cert-manager.yaml").read_text()
    made = {
        each["spec"]["secretName"]: tuple(each["spec"].get("dnsNames", ()))
        for each in yaml.safe_load_all(text)
        if each["kind"] == "Certificate"
    }

    assert made == {"bursar-ca": ()} | {leaf.secret: leaf.names for leaf in leaves(NAMESPACE, ())}
