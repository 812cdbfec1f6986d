"""Kueue's own controller, built from its Go module, on a control plane: with its CustomResourceDefinitions,
their conversion, its webhooks, and certificates that its rotation accepts as they are."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from deploy.local.build import binaries, module_file
from deploy.local.launcher import Launcher
from deploy.local.ports import free_port
from deploy.local.stack import Stack
from deploy.local.tools import KUEUE, KUEUE_TOOLS
from tests.support.control_plane import create_namespace, kubectl
from tests.support.go_programs import KUEUE_CRDS, KUEUE_WEBHOOKS
from tests.worlds import Json

NAMESPACE = "kueue-system"
CONVERTED = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
FRAMEWORKS = ("batch/job", "jobset.x-k8s.io/jobset", "pod")
REVIEWED = ("jobs", "jobsets", "pods", "clusterqueues", "workloads", "resourceflavors", "localqueues")
_LIFE = timedelta(days=365)  # its rotation renews what ends within 90 days


@contextmanager
def kueue(stack: Stack, folder: Path) -> Iterator[None]:
    """It runs, as the administrator, with its webhooks registered; then all of its objects go."""
    program, port = binaries(print, KUEUE_TOOLS)["kueue"], free_port()
    definitions = [definition(path, port) for path in KUEUE_CRDS]
    kubectl(stack.cp, "create", "-f", "-", input=yaml.safe_dump_all(definitions))
    create_namespace(stack.cp, NAMESPACE)
    certificates = folder / "certificates"
    certificates.mkdir()
    files = certify(certificates)
    secret = {
        "metadata": {"name": "kueue-webhook-server-cert"},
        "data": {name: base64.b64encode(text).decode() for name, text in files.items()},
    }
    stack.cp.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    configurations = list(registrations(port, files["ca.crt"]))
    for path, body in configurations:
        stack.cp.api.call("POST", path, body)
    (folder / "configuration.yaml").write_text(yaml.safe_dump(configuration(port, certificates)))
    environment = {
        **stack.environment(),
        "KUBECONFIG": str(stack.cp.admin_kubeconfig),
        "TMPDIR": str(folder),
        "POD_NAMESPACE": NAMESPACE,
    }
    log = folder / "log"
    with Launcher() as launcher, log.open("wb") as output:
        command = [str(program), f"--config={folder}/configuration.yaml", "--zap-log-level=2"]
        process = launcher.start(command, output, environment)

        def serves() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            said = log.read_text()
            return "Serving webhook server" in said and said.count("CA certs are injected to webhooks") == 2

        stack.wait("Kueue to work", serves)
        try:
            yield
        finally:
            for path, body in configurations:
                stack.cp.api.call("DELETE", f"{path}/{body['metadata']['name']}")


def definition(path: str, port: int) -> Json:
    """A CustomResourceDefinition with the conversion that Kueue's installation gives it."""
    found: Json = yaml.safe_load(module_file(KUEUE, path, print).read_text())
    if found["spec"]["names"]["plural"] in CONVERTED:
        client = {"url": f"https://127.0.0.1:{port}/convert"}
        webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
        found["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return found


def registrations(port: int, ca: bytes) -> Iterator[tuple[str, Json]]:
    """Its webhooks for what the tests create, by their address."""
    for document in yaml.safe_load_all(module_file(KUEUE, KUEUE_WEBHOOKS, print).read_text()):
        document["metadata"]["name"] = f"kueue-{document['metadata']['name']}"
        of_tests = []
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            address = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": base64.b64encode(ca).decode()}
            webhook["clientConfig"] = address
            if {name for rule in webhook["rules"] for name in rule["resources"]} & {*REVIEWED}:
                of_tests.append(webhook)
        document["webhooks"] = of_tests
        yield f"/apis/admissionregistration.k8s.io/v1/{document['kind'].lower()}s", document


def configuration(port: int, certificates: Path) -> Json:
    """Its settings, as its installation has them, on ports of this machine."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "leaderElection": {"leaderElect": False},
        "webhook": {"port": port, "certDir": str(certificates)},
        "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "integrations": {"frameworks": [*FRAMEWORKS]},
        "featureGates": {"VisibilityOnDemand": False},
    }


def certify(folder: Path) -> dict[str, bytes]:
    """A CA and a certificate of the server, as files and by their names."""
    ca_key, key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    ca = _certificate("kueue-ca", ca_key, ca_key, "kueue-ca", is_ca=True)
    leaf = _certificate(f"kueue-webhook-service.{NAMESPACE}.svc", key, ca_key, "kueue-ca", is_ca=False)
    files = {
        "ca.crt": ca.public_bytes(serialization.Encoding.PEM),
        "tls.crt": leaf.public_bytes(serialization.Encoding.PEM),
        "ca.key": _pem(ca_key),
        "tls.key": _pem(key),
    }
    for name, text in files.items():
        (folder / name).write_bytes(text)
    return files


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    traditional = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, traditional, serialization.NoEncryption())


def _certificate(
    name: str, key: rsa.RSAPrivateKey, signer: rsa.RSAPrivateKey, issuer: str, *, is_ca: bool
) -> x509.Certificate:
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [x509.DNSName(name)]
    names += [] if is_ca else [x509.IPAddress(ip_address("127.0.0.1"))]
    subject, issued = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, of)]) for of in (name, issuer))
    built = x509.CertificateBuilder(issued, subject, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + _LIFE)
    built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    return built.sign(signer, hashes.SHA256())
