"""Each command of a page is typed by a test. A page that gains a block of commands fails here, until a test
types it or the list says why none can."""

import re
from pathlib import Path

import pytest

from tests.docs.shell import commands
from tests.packaging.checkout import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# Words of a block -> the test that types it, by page.
TYPED = {
    "docs/access.md": {
        "reader.yaml": "docs/cluster/test_access.py",
        "TOKEN=": "docs/cluster/test_access.py",
        "group-lead.yaml": "cli/cluster/test_cli.py",
    },
    "docs/accountants.md": {"audit --month": "timekeeper/process/test_play.py"},
    "docs/login.md": {"kubectl create rolebinding": "docs/cluster/test_access.py"},
    "docs/api.md": {"/dryrun": "scheduler_ext/unit/test_dryrun.py"},
    "docs/budget-settings.md": {
        "kubectl edit": "docs/cluster/test_commands.py",
        "mode.yaml": "docs/cluster/test_commands.py",
    },
    "docs/bypass.md": {
        "noGPUDrivers": "docs/cluster/test_commands.py",
        "bursar.dev/exempt=true": "docs/cluster/test_commands.py",
        "[Warn, Audit] # observing": "webhook/cluster/test_switches.py",
        "admission-node-access.yaml": "webhook/cluster/test_bypass.py",
    },
    "docs/certificates.md": {
        "openssl req": "webhook/cluster/test_callers.py",
        "peers=": "webhook/cluster/test_callers.py",
    },
    "docs/cli.md": {
        "administrator.yaml": "cli/cluster/test_cli.py",
        "kubectl bursar usage": "cli/cluster/test_cli.py",
        "get gpubudgets": "cli/cluster/test_cli.py",
    },
    "docs/coming-from/kueue.md": {"kubectl get localqueues": "story/cluster/test_kueue.py"},
    "docs/cluster-autoscaler.md": {
        "startup-taint.yaml": "docs/cluster/test_commands.py",
        "custom-columns": "webhook/cluster/test_autoscaler_sums.py",
    },
    "docs/dashboard.md": {
        "kubectl bursar dashboard": "cli/cluster/test_cli.py",
        "kubectl create token": "docs/cluster/test_commands.py",
    },
    "docs/databases.md": {
        "create secret": "docs/cluster/test_commands.py",
        "deploy/postgresql": "docs/cluster/test_commands.py",
        "kubectl scale": "docs/cluster/test_commands.py",
        "--cascade=orphan": "docs/cluster/test_helm.py",
    },
    "docs/dependencies.md": {"cyclonedx-py": "docs/process/test_bill.py"},
    "docs/explain.md": {"ask /v1/explain": "docs/cluster/test_access.py"},
    "docs/from-device-plugin.md": {"claimed-device.yaml": "docs/cluster/test_from_device_plugin.py"},
    "docs/gitops.md": {"kubectl delete": "deploy/cluster/test_gitops.py"},
    "docs/helm.md": {
        "images.prefix=REGISTRY\n": "docs/cluster/test_helm.py",
        "--take-ownership": "docs/cluster/test_helm.py",
        "values-ha.yaml": "docs/cluster/test_helm.py",
        "helm upgrade": "docs/cluster/test_helm.py",
        "helm rollback": "docs/cluster/test_helm.py",
        "helm uninstall": "docs/cluster/test_helm.py",
        "delete namespace": "docs/cluster/test_helm.py",
        "kustomize": "docs/cluster/test_commands.py",
        'sed -i "s#': "docs/process/test_image_names.py",
        "mode: observe/'": "docs/cluster/test_install.py",
        "webhook-configurations.yaml": "docs/cluster/test_install.py",
        "mode: enforce/'": "docs/cluster/test_install.py",
    },
    "docs/install.md": {
        "bursar-timekeeper meter": "timekeeper/process/test_meter_process.py",
        "helm install": "docs/cluster/test_helm.py",
        "helm upgrade": "docs/cluster/test_helm.py",
        "bursar.dev/exempt=true": "docs/cluster/test_commands.py",
        "kubectl edit": "docs/cluster/test_commands.py",
        "kubectl label node": "docs/cluster/test_first_hour.py",
        "--dry-run=server": "docs/cluster/test_access.py",
    },
    "docs/kube-scheduler.md": {
        "sed -i": "docs/cluster/test_commands.py",
        "openssl req": "docs/cluster/test_kube_scheduler.py",
        "extender-alone.yaml": "docs/cluster/test_commands.py",
        "KubeSchedulerConfiguration": "docs/cluster/test_kube_scheduler.py",
        "after.yaml": "docs/cluster/test_kube_scheduler.py",
        "component=kube-scheduler": "docs/cluster/test_commands.py",
        "mv /etc": "docs/cluster/test_kube_scheduler.py",
    },
    "docs/leads.md": {
        "budget -n _group.research": "cli/cluster/test_cli.py",
        "kubectl bursar grant": "cli/cluster/test_cli.py",
    },
    "docs/meter.md": {
        "create configmap": "timekeeper/process/test_meter_process.py",
        "bursar-timekeeper meter": "timekeeper/process/test_meter_process.py",
    },
    "docs/node-agent.md": {
        "kubectl label node": "docs/cluster/test_commands.py",
        "bursar.dev/inventory=": "docs/cluster/test_first_hour.py",
        "kubectl create role ": "docs/cluster/test_monitoring.py",
    },
    "docs/nodes.md": {
        "kubectl cordon": "docs/cluster/test_nodes.py",
        "kubectl get pods": "docs/cluster/test_nodes.py",
        "kubectl label node": "docs/cluster/test_nodes.py",
        "kubectl patch node": "docs/cluster/test_nodes.py",
        "kubectl uncordon": "docs/cluster/test_nodes.py",
    },
    "docs/placement.md": {"kubectl taint nodes": "webhook/cluster/test_taint.py"},
    "docs/platforms/gpu-operator.md": {"bursar.dev/exempt=true": "docs/cluster/test_commands.py"},
    "docs/requests.md": {"cordoned-cards": "docs/cluster/test_commands.py"},
    "docs/review.md": {"review train.yaml": "docs/cluster/test_tutorial.py"},
    "docs/static-policy.md": {"mkdir policies": "webhook/cluster/test_static_policy.py"},
    "docs/troubleshooting.md": {
        "kubectl describe pod": "docs/cluster/test_tutorial.py",
        "kubectl annotate node": "docs/cluster/test_commands.py",
        "kubectl delete pod": "scheduler_ext/cluster/test_full_pods.py",
        "bursar-webhook review": "docs/cluster/test_tutorial.py",
        "priorityClassName": "docs/cluster/test_tutorial.py",
        "kubectl bursar held": "docs/cluster/test_tutorial.py",
        "kubectl bursar top": "docs/cluster/test_tutorial.py",
    },
    "docs/tutorial.md": {
        "kubectl get nodes": "docs/cluster/test_tutorial.py",
        "kubectl bursar budget": "docs/cluster/test_tutorial.py",
        "kubectl get pod train": "docs/cluster/test_tutorial.py",
        "kubectl run wrong": "docs/cluster/test_tutorial.py",
        "kubectl bursar map": "docs/cluster/test_tutorial.py",
        "bill.csv": "docs/cluster/test_tutorial.py",
        "OVER_BUDGET": "docs/cluster/test_tutorial.py",
        "kubectl run second": "docs/cluster/test_tutorial.py",
        "delete namespace astronomy": "docs/cluster/test_tutorial.py",
    },
    "docs/uninstall.md": {
        "delete mutatingwebhookconfiguration": "docs/cluster/test_uninstall.py",
        "kubectl bursar save": "docs/cluster/test_uninstall.py",
        "kubectl apply -f saved": "docs/cluster/test_uninstall.py",
        "kubectl delete deployment,statefulset": "docs/cluster/test_uninstall.py",
        "--field-selector": "docs/cluster/test_uninstall.py",
        "kubectl annotate nodes": "docs/cluster/test_uninstall.py",
    },
    "docs/upgrade.md": {
        "kubectl bursar save": "docs/cluster/test_uninstall.py",
        "rbac.yaml": "docs/cluster/test_install.py",
    },
    "docs/users.md": {
        "kubectl bursar dashboard": "cli/cluster/test_cli.py",
        "kubectl bursar explain": "docs/cluster/test_tutorial.py",
    },
}

NO_KUBELET = "it needs a kubelet that runs our images and forwards connections"
# Words of a block -> why no test types it, by page.
NOT_TYPED = {
    "README.md": {
        "make demo": "it starts the tests",
        "pip install": "docs/install.md has the same command",
    },
    "docs/CONTRIBUTING.md": {"make quick": "it starts the tests"},
    "docs/access.md": {
        "kubectl set env": f"{NO_KUBELET}; cli/cluster/test_aggregated.py applies the sample",
        "BURSAR_AGGREGATED_LISTEN-": f"{NO_KUBELET}; cli/cluster/test_aggregated.py deletes the sample",
    },
    "docs/alerts.md": {
        "alerts.yaml": "deploy/cluster/test_prometheus_operator.py (soak) compares what the real operator "
        "takes of the chart with this file, and promtool runs its rules"
    },
    "docs/coming-from/other-schedulers.md": {"--other-schedulers": "a flag, not a command"},
    "docs/cli.md": {
        "pipx install": "it needs a package index; packaging/process/test_extras.py keeps what it installs",
    },
    "docs/install.md": {
        "make images": "kubelet/cluster/test_chart_pods.py builds them; a push needs a registry",
        "pip install": "it needs a package index; packaging/process/test_wheel.py installs what it installs",
    },
    "docs/metrics.md": {"kubectl port-forward": NO_KUBELET},
    "docs/performance.md": {"tests.bench.cost": "a benchmark, which takes minutes"},
    "docs/platforms/aks.md": {
        "helm upgrade": "docs/cluster/test_helm.py types another; deploy/cluster/test_chart.py renders it"
    },
    "docs/platforms/gpu-operator.md": {
        "helm upgrade": "docs/cluster/test_helm.py types another; deploy/cluster/test_chart.py renders it"
    },
    "docs/platforms/openshift.md": {"oc adm policy": "it needs OpenShift"},
    "docs/review.md": {
        "--template-path": "a flag, not a command",
        "bursar-webhook audit": "webhook/cluster/test_audit.py starts it with other budgets",
    },
    "docs/troubleshooting.md": {"proxy/readyz": NO_KUBELET, "kubectl logs": NO_KUBELET},
    "docs/tutorial.md": {"make up": "it runs until Ctrl-C; local/cluster starts what it starts"},
}


def known(page: str) -> dict[str, str]:
    return {**TYPED.get(page, {}), **NOT_TYPED.get(page, {})}


@pytest.mark.parametrize("page", NAMES)
def test_each_block_of_commands_is_typed_by_a_test_or_has_a_reason(page: str) -> None:
    found = {block: [words for words in known(page) if words in block] for block in commands(ROOT / page)}

    assert [block for block, words in found.items() if not words] == []
    assert set(known(page)) == {words for each in found.values() for words in each}, (
        "no entry without a block"
    )


@pytest.mark.parametrize("page", TYPED)
def test_the_named_tests_read_the_page(page: str) -> None:
    name = Path(page).stem.lower()
    for test in set(TYPED[page].values()):
        source = (ROOT / "tests" / test).read_text().lower()
        assert re.search(rf'["/]{name}(\.md)?"|\b{name}s?\b|test_{name}\b', source), (page, test)


def test_no_page_is_in_the_lists_that_is_gone() -> None:
    assert set(TYPED) | set(NOT_TYPED) <= set(NAMES)
