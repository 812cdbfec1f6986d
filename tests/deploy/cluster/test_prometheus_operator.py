"""The chart's monitors and alerts beside the real Prometheus operator, and what it makes of them."""

import base64
import gzip
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import rendered
from deploy.local.build import binaries, module_file
from deploy.local.cluster import ControlPlane
from deploy.local.launcher import Launcher
from deploy.local.ports import free_port
from deploy.local.tools import OPERATOR_TOOLS, PROMETHEUS_OPERATOR, PROMTOOL_TOOLS
from tests.deploy.reading import MANIFESTS
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import eventually

pytestmark = pytest.mark.soak  # the first build of the operator takes minutes

ROOT = rendered.ROOT
CRDS = (
    *("alertmanagerconfigs", "alertmanagers", "podmonitors", "probes", "prometheusagents", "prometheuses"),
    *("prometheusrules", "scrapeconfigs", "servicemonitors", "thanosrulers"),
)
# kinds of kubernetes_sd_configs -> what a Prometheus lists and watches for them
DISCOVERY = {
    "pod": ("pods",),
    "endpoints": ("pods", "services", "endpoints"),
    "endpointslice": ("pods", "services", "endpointslices.discovery.k8s.io"),
}
TOKEN = "/var/run/bursar/token"


def prometheus() -> dict[str, Any]:
    """A Prometheus that selects every monitor and rule, with what docs/metrics.md adds."""
    page = (ROOT / "docs" / "metrics.md").read_text().partition("### With the Prometheus operator")[2]
    (added,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    kinds = ("serviceMonitor", "podMonitor", "rule")
    all_of: dict[str, object] = {f"{kind}{of}Selector": {} for kind in kinds for of in ("", "Namespace")}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": "main", "namespace": "monitoring"},
        "spec": {"serviceAccountName": "prometheus", **all_of, **yaml.safe_load(added)["spec"]},
    }


@dataclass(frozen=True)
class Written:
    """What the operator has written: the configuration, rule files by name, and the pods of Prometheus."""

    cp: ControlPlane
    configuration: dict[str, Any]
    rules: dict[str, str]
    template: dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    program = binaries(print, OPERATOR_TOOLS)["operator"]
    folder = "example/prometheus-operator-crd/monitoring.coreos.com"
    crds = [module_file(PROMETHEUS_OPERATOR, f"{folder}_{kind}.yaml", print) for kind in CRDS]
    flags = ("--set=monitors.enabled=true", "--set=prometheusRules.enabled=true")
    chart = rendered.rendered(rendered.helm(), *flags)
    log = tmp_path_factory.mktemp("operator") / "log"
    with ControlPlane() as cp, Launcher() as launcher, log.open("wb") as output:
        for name in ("bursar-system", "bursar-node", "monitoring"):
            create_namespace(cp, name)
        for crd in crds:
            kubectl(cp, "create", "-f", str(crd))
        kubectl(cp, "wait", "--for=condition=Established", "crd", "--all", "--timeout=5m")
        kubectl(cp, "create", "serviceaccount", "prometheus", "-n", "monitoring")
        ca = cp.clients.pem.decode()
        kubectl(cp, "create", "configmap", "bursar-ca", "-n", "bursar-node", f"--from-literal=ca.crt={ca}")
        for file in (MANIFESTS / "rbac.yaml", ROOT / "deploy" / "monitoring" / "rbac.yaml"):
            kubectl(cp, "apply", "--server-side", "-f", str(file))
        for name in ("monitors.yaml", "prometheus-rules.yaml"):
            kubectl(cp, "apply", "--server-side", "-f", "-", input=chart[name])
        kubectl(cp, "apply", "--server-side", "-f", "-", input=json.dumps(prometheus()))
        command = [str(program), f"--web.listen-address=127.0.0.1:{free_port()}"]
        launcher.start(command, output, {**os.environ, "KUBECONFIG": str(cp.admin_kubeconfig)})

        def of(kind: str, name: str) -> Any:
            return json.loads(kubectl(cp, "get", kind, name, "-n", "monitoring", "-o", "json"))

        home = "/apis/apps/v1/namespaces/monitoring/statefulsets/prometheus-main"
        eventually(lambda: cp.api.answers(home), f"the operator's StatefulSet: {log}")
        zipped = base64.b64decode(of("secret", "prometheus-main")["data"]["prometheus.yaml.gz"])
        yield Written(
            cp,
            yaml.safe_load(gzip.decompress(zipped)),
            of("configmap", "prometheus-main-rulefiles-0")["data"],
            cp.api.call("GET", home)["spec"]["template"]["spec"],
        )


def test_every_part_is_a_target_with_its_path_its_name_and_the_token_that_is_mounted(
    written: Written,
) -> None:
    jobs = written.configuration["scrape_configs"]
    secured = [job for job in jobs if job.get("scheme") == "https"]

    assert sorted((job["tls_config"]["server_name"], job["metrics_path"]) for job in secured) == [
        ("bursar-scheduler.bursar-system.svc", "/metrics"),
        ("bursar-timekeeper.bursar-system.svc", "/metrics"),
        ("bursar-timekeeper.bursar-system.svc", "/v1/metrics"),
        ("bursar-webhook.bursar-system.svc", "/metrics"),
    ]
    assert {job["bearer_token_file"] for job in secured} == {TOKEN}
    assert all(job["honor_labels"] and job["tls_config"]["ca_file"] for job in secured)
    (plain,) = (job for job in jobs if job not in secured)
    assert (plain.get("scheme", "http"), plain["metrics_path"], plain["honor_labels"]) == (
        "http",
        "/metrics",
        True,
    )

    (container,) = (each for each in written.template["containers"] if each["name"] == "prometheus")
    (mount,) = (each for each in container["volumeMounts"] if TOKEN.startswith(f"{each['mountPath']}/"))
    (volume,) = (each for each in written.template["volumes"] if each["name"] == mount["name"])
    (source,) = volume["projected"]["sources"]
    token = source["serviceAccountToken"]
    assert (token["audience"], f"{mount['mountPath']}/{token['path']}") == ("bursar", TOKEN)


def test_two_targets_of_one_pod_have_two_jobs(written: Written) -> None:
    jobs = written.configuration["scrape_configs"]
    last = {
        job["metrics_path"]: [each for each in job["relabel_configs"] if each.get("target_label") == "job"][
            -1
        ]
        for job in jobs
        if "timekeeper" in job["job_name"]
    }

    assert last["/v1/metrics"]["replacement"] == "bursar-accounts"
    assert last["/metrics"]["replacement"] != "bursar-accounts"


def test_the_account_of_prometheus_may_find_every_target(written: Written) -> None:
    asked = {
        (namespace, resource)
        for job in written.configuration["scrape_configs"]
        for found in job["kubernetes_sd_configs"]
        for namespace in found["namespaces"]["names"]
        for resource in DISCOVERY[found["role"]]
    }

    assert {namespace for namespace, _ in asked} == {"bursar-system", "bursar-node"}
    account = "--as=system:serviceaccount:monitoring:prometheus"
    for namespace, resource in asked:
        for verb in ("list", "watch"):
            said = written.cp.kubectl("auth", "can-i", verb, resource, "-n", namespace, account)
            assert said.stdout.strip() == "yes", (verb, namespace, resource)


def test_the_operator_takes_every_alert(written: Written) -> None:
    source = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text())["spec"]
    taken = [group for text in written.rules.values() for group in yaml.safe_load(text)["groups"]]

    def alerts(groups: list[dict[str, Any]]) -> list[str]:
        return sorted(rule["alert"] for group in groups for rule in group["rules"])

    assert alerts(taken) == alerts(source["groups"])
    assert written.configuration["rule_files"]


def test_promtool_takes_the_configuration(written: Written, tmp_path: Path) -> None:
    """With the rule files and the other files at places of this machine."""
    program = binaries(print, PROMTOOL_TOOLS)["promtool"]
    text = yaml.safe_dump(written.configuration)
    for path in re.findall(r"_file: (\S+)", text):
        place = tmp_path / path.removeprefix("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(written.cp.clients.pem)
    for pattern in written.configuration["rule_files"]:
        place = tmp_path / pattern.removeprefix("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        for name, rules in written.rules.items():
            (place.parent / name).write_text(rules)
        text = text.replace(pattern, str(place))
    text = re.sub(r"_file: (/\S+)", rf"_file: {tmp_path}\1", text)
    (tmp_path / "prometheus.yaml").write_text(text)

    done = subprocess.run(
        [program, "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {sum(len(group['rules']) for group in groups(written))} rules found" in done.stdout


def groups(written: Written) -> list[dict[str, Any]]:
    return [group for text in written.rules.values() for group in yaml.safe_load(text)["groups"]]


def test_the_page_has_a_route_that_the_operator_takes_in_a_namespace(written: Written) -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    (route,) = re.findall(r"```yaml\n(apiVersion: .*?)```", page, re.DOTALL)
    create_namespace(written.cp, "team-a")

    kubectl(written.cp, "create", "--validate=strict", "-f", "-", input=route)
