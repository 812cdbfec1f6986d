"""What the certificate process puts back, on the API server's own objects."""

import base64
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from deploy.local.cluster import ControlPlane
from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually
from tests.webhook.replicas import (
    AGENTS_NAMESPACE,
    CONFIGURATIONS,
    KINDS,
    NAMESPACE,
    SECRETS,
    Certificates,
    ca_bundles,
    certify,
    prepared,
)
from tests.webhook.servers import ROOT
from timekeeper.runtime.connect import connect
from webhook.controller.cluster import CertificateStore
from webhook.controller.issue import new_ca, new_leaf
from webhook.controller.plan import leaves
from webhook.controller.reading import certificates, is_issued_by
from webhook.settings.certificates import CONFIGURATION

AGENTS_MAPS = f"/api/v1/namespaces/{AGENTS_NAMESPACE}/configmaps"


@pytest.fixture(scope="module")
def cluster(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ControlPlane, Path]:
    """A cluster with webhook configurations and certificates, and a folder for them."""
    folder = tmp_path_factory.mktemp("healing")
    prepared(control_plane, "priority-classes", "webhook-configurations")
    assert certify(control_plane, folder)
    return control_plane, folder


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

    assert certify(cp, folder)

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

    assert certify(cp, folder)

    found = cp.api.call("GET", f"{SECRETS}/bursar-webhook-tls")["metadata"]
    assert (found["labels"]["backup"], found["annotations"]) == ("yes", {"note": "x"})


def test_a_secret_that_was_there_before_us_with_another_type_is_filled(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster
    cp.api.call("DELETE", f"{SECRETS}/bursar-webhook-tls")
    cp.api.call("POST", SECRETS, {"metadata": {"name": "bursar-webhook-tls"}, "data": {}})

    assert certify(cp, folder)

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
        with Certificates(cp, folder, "once", "--once") as once:
            assert once.process.wait(timeout=LONGEST_S) == 1
        (said,) = (line for line in once.log().splitlines() if "event=not-certified" in line)
        assert "cannot write Secret bursar-webhook-tls: " in said
        assert "immutable" in said
    finally:
        cp.api.call("DELETE", f"{SECRETS}/bursar-webhook-tls")
    assert certify(cp, folder)
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

        eventually(lambda: set(ca_bundles(cp)) == before, "the CA to be written again")


def test_what_the_agents_trust_comes_back_and_what_others_wrote_beside_it_stays(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster
    theirs = {"data": {"ca.crt": "garbage", "other.crt": "theirs"}}
    cp.api.call("PATCH", f"{AGENTS_MAPS}/bursar-ca", theirs, "application/merge-patch+json")

    assert certify(cp, folder)
    assert whole(cp)
    found = cp.api.call("GET", f"{AGENTS_MAPS}/bursar-ca")
    assert found["data"]["other.crt"] == "theirs"
    assert certify(cp, folder)
    again = cp.api.call("GET", f"{AGENTS_MAPS}/bursar-ca")
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
    cp.api.call("DELETE", f"{AGENTS_MAPS}/bursar-ca")
    assert certify(cp, folder)
    assert whole(cp)


def test_a_cluster_without_the_agents_namespace_gets_its_certificates(
    cluster: tuple[ControlPlane, Path],
) -> None:
    cp, folder = cluster

    assert certify(cp, folder, "--agents-namespace", "nowhere")
    assert whole(cp)


def test_a_leader_that_ends_in_order_is_followed_at_once(cluster: tuple[ControlPlane, Path]) -> None:
    cp, folder = cluster
    cp.kubectl("delete", "lease", "bursar-certificates", "-n", NAMESPACE)
    with Certificates(cp, folder, "leader", "--every", "100") as leader:
        eventually(lambda: "event=leading" in leader.log(), "the first to lead")
        with Certificates(cp, folder, "follower", "--every", "1") as follower:
            eventually(lambda: "event=following" in follower.log(), "the second to follow")

            leader.process.terminate()

            assert leader.process.wait(timeout=LONGEST_S) == 0
            # long before the Lease of the first would have run out
            eventually(lambda: "event=leading" in follower.log(), "the second to lead")


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

    assert certify(cp, folder, "--issuer", "cert-manager")

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
