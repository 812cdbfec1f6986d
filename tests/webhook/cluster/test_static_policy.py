"""The policy that API servers read from a file, by the commands and files of docs/static-policy.md."""

import base64
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from tests.deploy.reading import documents
from tests.support.control_plane import answer, apply, kubectl
from tests.support.waiting import eventually
from tests.webhook.replicas import CONFIGURATIONS, MANIFESTS, Certificates, ca_bundles, prepared
from tests.webhook.servers import ROOT
from tests.worlds import Json

pytestmark = pytest.mark.kubernetes("1.37")

PAGE = (ROOT / "docs" / "static-policy.md").read_text()
NODE_FOLDER = "/etc/kubernetes/bursar"
INSTALLER = "system:serviceaccount:argocd:argocd-application-controller"  # as the page names it
CERTIFICATES = "system:serviceaccount:bursar-system:bursar-certificates"
OPERATOR = "operator"  # with all rights
MUTATING = f"{CONFIGURATIONS}/mutatingwebhookconfigurations"
POLICIES = f"{CONFIGURATIONS}/validatingadmissionpolicies"
BINDINGS = f"{CONFIGURATIONS}/validatingadmissionpolicybindings"
BY_NAME = "application/strategic-merge-patch+json"  # of a webhook
REFUSAL = "is none of its installers; allowed: a change by an account that static-policy.yaml"
OURS = [manifest for manifest in documents() if manifest["apiVersion"] == "admissionregistration.k8s.io/v1"]


def at(manifest: Json) -> str:
    plural = f"{manifest['kind'].lower()}s".replace("policys", "policies")
    return f"{CONFIGURATIONS}/{plural}/{manifest['metadata']['name']}"


@dataclass(frozen=True)
class World:
    cp: ControlPlane
    file: Path  # the policy

    def refusal(self, user: str, method: str, path: str, body: object = None, kind: str = "") -> str:
        return answer(self.cp, method, path, body, user=user, kind=kind).refusal

    def write(self, text: str) -> None:
        """Has the API server read this policy, as the page says."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def may_delete(self) -> bool:
        return not self.refusal(OPERATOR, "DELETE", f"{BINDINGS}/bursar-grace", {"dryRun": ["All"]})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("static")
    (folder / "deploy").symlink_to(ROOT / "deploy")
    ((name, text),) = re.findall(
        rf"^   ```yaml\n   # {NODE_FOLDER}/(\S+)\n(.*?)^   ```", PAGE, re.DOTALL | re.M
    )
    (folder / name).write_text(re.sub(r"^   ", "", text, flags=re.M).replace(NODE_FOLDER, str(folder)))
    (commands,) = re.findall(r"^   ```console\n(.*?)^   ```", PAGE, re.DOTALL | re.M)
    subprocess.run(["bash", "-ec", commands], cwd=folder, check=True)
    (flag,) = re.findall(r"`(--admission-control-config-file=\S+)`", PAGE)
    with ControlPlane(Options(api_flags=(flag.replace(NODE_FOLDER, str(folder)),))) as cp:
        prepared(cp, "rbac")
        apply(cp, *OURS)
        for user in (INSTALLER, OPERATOR):
            name = user.rpartition(":")[2]
            kubectl(cp, "create", "clusterrolebinding", name, f"--user={user}", "--clusterrole=cluster-admin")
        eventually(
            lambda: cp.kubectl("auth", "can-i", "*", "*", "--as", OPERATOR).returncode == 0, "the right"
        )
        yield World(cp, folder / "policies" / "static-policy.yaml")


@pytest.mark.parametrize("user", [OPERATOR, ""], ids=["all-rights", "system:masters"])
def test_no_object_of_ours_is_deleted_or_changed_by_others(world: World, user: str) -> None:
    assert len(OURS) > 40
    for manifest in OURS:
        assert REFUSAL in world.refusal(user, "DELETE", at(manifest)), at(manifest)
        labels = {"metadata": {"labels": {"app.kubernetes.io/part-of": None}}}
        assert REFUSAL in world.refusal(user, "PATCH", at(manifest), labels), at(manifest)
    for path in (MUTATING, POLICIES, BINDINGS):
        assert REFUSAL in world.refusal(user, "DELETE", path), path


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (f"{POLICIES}/bursar-ways-around", {"spec": {"failurePolicy": "Ignore"}}),
        (f"{BINDINGS}/bursar-ways-around", {"spec": {"validationActions": ["Warn"]}}),
        (f"{MUTATING}/zz-bursar", {"webhooks": []}),
        (f"{MUTATING}/zz-bursar", {"webhooks": [{"name": "govern.bursar.dev", "failurePolicy": "Ignore"}]}),
        (
            f"{MUTATING}/zz-bursar",
            {"webhooks": [{"name": "govern.bursar.dev", "clientConfig": {"service": {"path": "/livez"}}}]},
        ),
    ],
)
def test_none_is_weakened_not_by_the_certificate_process_either(
    world: World, path: str, change: Json
) -> None:
    of_names = BY_NAME if change.get("webhooks") else ""
    before = world.cp.api.call("GET", path)

    for user in (OPERATOR, CERTIFICATES) if path.startswith(MUTATING) else (OPERATOR,):
        assert REFUSAL in world.refusal(user, "PATCH", path, change, of_names)

    assert world.cp.api.call("GET", path) == before


def test_the_certificate_process_alone_writes_ca_bundles(world: World, tmp_path: Path) -> None:
    bundle = base64.b64encode(world.cp.ca_file.read_bytes()).decode()
    client = {"name": "govern.bursar.dev", "clientConfig": {"caBundle": bundle}}
    more = {**client, "timeoutSeconds": 1}
    for user, webhook in ((OPERATOR, client), (CERTIFICATES, more)):
        change = {"webhooks": [webhook]}
        assert REFUSAL in world.refusal(user, "PATCH", f"{MUTATING}/zz-bursar", change, BY_NAME)

    token = kubectl(world.cp, "create", "token", "bursar-certificates", "-n", "bursar-system").strip()
    own = world.cp.kubeconfig(token, "certificates")
    with Certificates(world.cp, tmp_path, "one", "--once", kubeconfig=own) as certificates:
        assert certificates.process.wait() == 0, certificates.log()
    assert all(ca_bundles(world.cp))


def test_others_configurations_are_free(world: World) -> None:
    hook = {
        "name": "a.example.com",
        "clientConfig": {"url": "https://example.com"},
        "rules": [],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    other = {"metadata": {"name": "other"}, "webhooks": [hook]}

    assert world.refusal(OPERATOR, "POST", MUTATING, other) == ""
    assert world.refusal(OPERATOR, "PATCH", f"{MUTATING}/other", {"webhooks": []}) == ""
    assert world.refusal(OPERATOR, "DELETE", f"{MUTATING}/other") == ""


def test_the_installer_upgrades_and_uninstalls(world: World) -> None:
    text = (MANIFESTS / "webhook-configurations.yaml").read_text()
    newer = text.replace("timeoutSeconds: 10", "timeoutSeconds: 9")
    upgrade = ("apply", "--server-side", "--force-conflicts", "-f", "-")

    assert REFUSAL in world.cp.kubectl(*upgrade, input=newer).stderr
    assert world.cp.kubectl(*upgrade, "--as", INSTALLER, input=newer).returncode == 0
    gone = {"propagationPolicy": "Foreground"}  # the garbage collector removes a finalizer of its own
    assert world.refusal(INSTALLER, "DELETE", f"{BINDINGS}/bursar-sizes", gone) == ""
    eventually(lambda: not world.cp.api.answers(f"{BINDINGS}/bursar-sizes"), "the end of a deletion")


def test_a_changed_file_is_read_and_without_one_nothing_is_refused(world: World) -> None:
    text = world.file.read_text()
    assert not world.may_delete()

    world.write(text.replace(INSTALLER, OPERATOR))
    eventually(world.may_delete, "another installer")
    world.write(text)
    eventually(lambda: not world.may_delete(), "the former one")
    world.file.unlink()
    eventually(world.may_delete, "no policy")
    world.write(text)
    eventually(lambda: not world.may_delete(), "the policy")


def test_with_a_mistake_in_the_file_the_former_policy_holds_and_no_api_server_starts(world: World) -> None:
    text = world.file.read_text()
    mistakes = {
        "must have a name ending with": text.replace("bursar.static.k8s.io", "bursar"),
        "paramKind is not supported": text.replace(
            "  variables:", "  paramKind: {apiVersion: v1, kind: ConfigMap}\n  variables:"
        ),
        "undefined field 'none'": text.replace("variables.installers", "variables.none"),
    }
    for reason, mistake in mistakes.items():
        world.write(mistake)
        eventually(lambda: reason in world.cp.logs("kube-apiserver"), reason)  # noqa: B023
        assert not world.may_delete()
    counter = r'automatic_reloads_total\{.*plugin="ValidatingAdmissionPolicy",status="failure"\} [1-9]'
    assert re.search(counter, world.cp.api.call("GET", "/metrics"))

    world.cp.stop_process("kube-apiserver")
    world.cp.restart_process("kube-apiserver")
    server = world.cp.processes["kube-apiserver"]
    eventually(lambda: server.poll() == 1, "its end")
    assert "failed to load static policy manifests" in world.cp.logs("kube-apiserver")
