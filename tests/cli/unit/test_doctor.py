"""What `doctor` says of a cluster: one thing wrong at a time."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from timekeeper.cli.doctor.checks import POLICIES, results
from timekeeper.cli.doctor.facts import Facts, NotReadable, Readiness

NOW = datetime(2026, 11, 21, tzinfo=UTC)
MANIFESTS = Path(__file__).parents[3] / "deploy" / "manifests"


def bundle(ends: datetime) -> str:
    """A caBundle with one certificate that ends then."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(NOW - timedelta(days=900)).not_valid_after(ends)
    pem = built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return base64.b64encode(pem).decode()


def webhooks(name: str, ca: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "webhooks": [{"clientConfig": {"caBundle": ca}, "rules": [{"resources": ["pods"]}]}],
    }


def listed(*items: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(items)}


def workload(name: str, ready: int = 2) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 2},
        "status": {"readyReplicas": ready},
    }


def agent(ready: int = 3) -> dict[str, Any]:
    status = {"desiredNumberScheduled": 3, "numberReady": ready}
    return {"kind": "DaemonSet", "metadata": {"name": "bursar-node"}, "status": status}


def node(name: str, inventory: bool = True, capacity: dict[str, str] | None = None) -> dict[str, Any]:
    annotations = {"bursar.dev/inventory": "{}"} if inventory else {}
    return {"metadata": {"name": name, "annotations": annotations}, "status": {"capacity": capacity or {}}}


def named(*names: str) -> dict[str, Any]:
    return listed(*({"metadata": {"name": name}} for name in names))


ROLES = [workload(each) for each in ("bursar-webhook", "bursar-timekeeper", "bursar-scheduler")]
GOOD = bundle(NOW + timedelta(days=300))
CLASSES = [("gpu-default-priority", 1000), ("gpu-lower-priority", 10)]
SOUND = Facts(
    system_namespace="bursar-system",
    version=json.dumps({"major": "1", "minor": "36+"}),
    namespace={"metadata": {"name": "bursar-system"}},
    workloads=[listed(*ROLES), listed(agent())],
    mutating=listed(webhooks("zz-bursar", GOOD), webhooks("istio", GOOD)),
    validating=webhooks("zz-bursar", GOOD),
    policies=named(*POLICIES),
    policy_bindings=named(*POLICIES),
    priority_classes=listed(*({"metadata": {"name": name}, "value": value} for name, value in CLASSES)),
    budgets=listed({"metadata": {"name": "bursar-budgets"}, "data": {"_settings": "", "team-a": ""}}),
    nodes=listed(
        node("g", capacity={"bursar.dev/gpu-percent": "100"}),
        node("cpu", inventory=False, capacity={"cpu": "8"}),
    ),
    readiness=Readiness(200, "ok", 0.2),
    now_s=NOW.timestamp(),
)


def test_a_sound_cluster_has_nothing_to_mend() -> None:
    found = results(SOUND)

    assert {each.level for each in found} == {"ok"}
    assert {each.command for each in found} == {""}
    assert {each.subject for each in found} >= {
        "API server",
        "bursar-webhook",
        "policies",
        "timekeeper",
        "nodes",
    }


CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "unreachable": ({"version": NotReadable("no route")}, "error", "API server", "no route"),
    "old": ({"version": '{"minor": "29"}'}, "error", "API server", "1.29 is older than 1.30"),
    "not installed": ({"namespace": None}, "error", "namespace", "does not exist"),
    "a role is missing": (
        {"workloads": [listed(*ROLES[1:]), listed(agent())]},
        "error",
        "bursar-webhook",
        "not installed",
    ),
    "a role is not ready": (
        {"workloads": [listed(*ROLES[1:], workload("bursar-webhook", 1)), listed(agent())]},
        *("error", "bursar-webhook", "1 of 2 pods"),
    ),
    "an agent is not ready": (
        {"workloads": [listed(*ROLES), listed(agent(2))]},
        "error",
        "bursar-node",
        "2 of 3",
    ),
    "no webhook": ({"mutating": listed()}, "error", "mutating webhooks", "does not exist"),
    "no CA": ({"validating": webhooks("zz-bursar", "")}, "error", "validating webhooks", "caBundle is empty"),
    "a broken CA": (
        {"validating": webhooks("zz-bursar", "eA==")},
        "error",
        "validating webhooks",
        "no readable",
    ),
    "a CA that ended": (
        {"validating": webhooks("zz-bursar", bundle(NOW - timedelta(days=1)))},
        *("error", "validating webhooks", "ended at 2026-11-20"),
    ),
    "a CA that ends soon": (
        {"validating": webhooks("zz-bursar", bundle(NOW + timedelta(days=3)))},
        *("warning", "validating webhooks", "ends at 2026-11-24"),
    ),
    "a later webhook": (
        {"mutating": listed(webhooks("zz-bursar", GOOD), webhooks("zzz-injector", GOOD))},
        *("warning", "other webhooks", "zzz-injector is called after zz-bursar"),
    ),
    "a policy is missing": (
        {"policies": named(*POLICIES[1:])},
        "error",
        "policies",
        f"{POLICIES[0]} is missing",
    ),
    "a policy is not bound": ({"policy_bindings": named()}, "error", "policy bindings", "are missing"),
    "classes upside down": (
        {
            "priority_classes": listed(
                *({"metadata": {"name": name}, "value": -value} for name, value in CLASSES)
            )
        },
        *("error", "priority classes", "not below"),
    ),
    "no classes": ({"priority_classes": listed()}, "warning", "priority classes", "does not exist"),
    "not ready": ({"readiness": Readiness(503, "database away", 0)}, "error", "timekeeper", "database away"),
    "no answer": ({"readiness": NotReadable("no token")}, "unknown", "timekeeper", "no token"),
    "clocks differ": ({"readiness": Readiness(200, "ok", -60.0)}, "warning", "clocks", "by -60 s"),
    "no budget": ({"budgets": listed()}, "warning", "budgets", "every namespace is unlimited"),
    "no GPU": (
        {"nodes": listed(node("cpu", inventory=False, capacity={"cpu": "8"}))},
        "warning",
        "nodes",
        "no node advertises",
    ),
    "no inventory": (
        {"nodes": listed(node("bare", inventory=False, capacity={"nvidia.com/gpu": "2"}))},
        *("warning", "nodes", "no inventory on bare"),
    ),
    "no right to see": ({"policies": NotReadable("forbidden")}, "unknown", "policies", "forbidden"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_named_with_what_mends_it(case: str) -> None:
    changes, level, subject, sentence = CASES[case]

    bad = [each for each in results(replace(SOUND, **changes)) if each.level != "ok"]

    assert [(each.level, each.subject) for each in bad] == [(level, subject)]
    assert sentence in bad[0].sentence
    assert bad[0].command


def test_the_policies_are_those_of_the_manifests() -> None:
    documents = [each for file in MANIFESTS.glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]
    names = {each["metadata"]["name"] for each in documents if each["kind"] == "ValidatingAdmissionPolicy"}

    assert names == set(POLICIES)
    labelled = [
        each["metadata"].get("labels", {}).get("app.kubernetes.io/part-of")
        for each in documents
        if each["kind"].startswith("ValidatingAdmissionPolicy")
    ]
    assert set(labelled) == {"bursar"}


def test_every_command_names_the_namespace_in_which_bursar_runs() -> None:
    elsewhere = replace(SOUND, system_namespace="gpu-budgets")

    commands = {
        each.command
        for changes, *_ in CASES.values()
        for each in results(replace(elsewhere, **changes))
        if each.command
    }

    assert not [each for each in commands if "bursar-system" in each]
    assert {each.split()[3] for each in commands if each.startswith("kubectl logs -n")} == {"gpu-budgets"}
