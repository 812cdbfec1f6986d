"""What every part tells Prometheus while it runs: conventional names, rules and dashboards that find their
series there, and with promtool each alert, once and alone."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.api import AdminApi, ApiError
from deploy.local.build import binaries
from deploy.local.cluster import ControlPlane
from deploy.local.limits import LONGEST_S
from deploy.local.stack import Stack
from deploy.local.tools import PROMTOOL_TOOLS
from tests.docs.monitoring import DASHBOARDS, EXPRESSIONS, MONITORING, RULES, metrics_in, targets
from tests.node.cluster.test_on_api_server import TWO, Agent, World, running
from tests.support.control_plane import kubectl
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.webhook.replicas import own_address

pytestmark = pytest.mark.cluster

BUDGETS = {
    "metadata": {"name": "bursar-budgets"},
    "data": {"team-a": "gpuHours: 1\nperiod: once"},  # so that it will be used up, also at the end of a month
}
POD = {
    "metadata": {"name": "train", "namespace": "team-a"},
    "spec": {
        "containers": [
            {"name": "main", "image": "example", "resources": {"limits": {"bursar.dev/gpu-percent": "50"}}}
        ]
    },
}
REFUSED = {
    "metadata": {"name": "misspelt", "namespace": "team-a", "annotations": {"bursar.dev/idel-until": "1"}},
    "spec": POD["spec"],
}
CONTAINER_ID = "c" * 64
PID = 4242
BASE_UNITS = {"seconds", "bytes", "ratio"}
OTHER_UNITS = {"ms", "milliseconds", "minutes", "hours", "days", "mib", "gib", "percent", "kb", "mb"}


@dataclass(frozen=True)
class Scrape:
    """The pages of metrics, by the job that reads them; what others get; the agent's page through the API
    server."""

    pages: dict[str, str]
    refused: dict[str, list[int]]  # without a token, with one that lacks the right
    through_api_server: str

    def families(self) -> dict[str, Metric]:
        """By name as it is queried."""
        found = [each for page in self.pages.values() for each in text_string_to_metric_families(page)]
        return {each.name + ("_total" if each.type == "counter" else ""): each for each in found}

    def series(self) -> dict[str, float]:
        """Every sample's series with its value; with the job that Prometheus adds."""
        found = {}
        for job, page in self.pages.items():
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name.endswith("_created"):
                        continue
                    labels = {**sample.labels, "job": job, "instance": f"{job}-0"}
                    inner = ",".join(f"{name}={json.dumps(text)}" for name, text in sorted(labels.items()))
                    found[f"{sample.name}{{{inner}}}"] = sample.value
        return found


@pytest.fixture(scope="module")
def scrape(lender: Lender, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrape]:
    """Webhook, timekeeper, extender and a node agent on a real API server, with a pod on a card of the
    agent's node. The account that reads has the rights of the sample alone."""
    folder = tmp_path_factory.mktemp("agent")
    proc = folder / "proc"
    (proc / str(PID)).mkdir(parents=True)
    with lender.stack(new_ledger=True) as stack:
        cp = stack.cp
        for name in ("team-a", "monitoring"):
            cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        cp.api.call("POST", "/api/v1/namespaces/bursar-system/configmaps", BUDGETS)
        kubectl(cp, "create", "serviceaccount", "prometheus", "-n", "monitoring")
        kubectl(cp, "apply", "--server-side", "-f", str(MONITORING / "rbac.yaml"))
        world = World(cp)
        world.make_node("n1")
        with running(world, folder, "n1", proc=str(proc)) as agent:
            stack.wait("the inventory", lambda: len(agent.healthy()) == 2)
            cp.api.call("POST", "/api/v1/namespaces/team-a/pods", POD)
            path = "/api/v1/namespaces/team-a/pods/train"
            stack.wait("the binding", lambda: "nodeName" in cp.api.call("GET", path)["spec"])
            pod = cp.api.call("GET", path)
            (placed,) = json.loads(pod["metadata"]["annotations"]["bursar.dev/devices"])["containers"]["main"]
            text = f"0::/kubepods/pod{pod['metadata']['uid']}/{CONTAINER_ID}\n"
            (proc / str(PID) / "cgroup").write_text(text)
            agent.cards(TWO + f"process {placed['uuid']} {PID} 60000 30\n")
            with pytest.raises(ApiError):
                cp.api.call("POST", "/api/v1/namespaces/team-a/pods", REFUSED)
            stack.wait("the container's use", lambda: "bursar_container" in agent.metrics())
            stack.wait("overuse", lambda: "memory_over" in agent.metrics())
            token = kubectl(cp, "create", "token", "prometheus", "-n", "monitoring", "--audience=bursar")
            other = kubectl(cp, "create", "token", "default", "-n", "monitoring", "--audience=bursar")
            accounts = "/v1/metrics"
            stack.wait(
                "a balance",
                lambda: (
                    "exhausted_timestamp_seconds{" in _text(stack, stack.timekeeper_url + accounts, token)
                ),
            )
            parts = {
                "bursar-webhook": stack.webhook_url,
                "bursar-timekeeper": stack.timekeeper_url,
                "bursar-extender": stack.read_url,
            }
            pages = {job: _text(stack, f"{url}/metrics", token) for job, url in parts.items()}
            yield Scrape(
                pages
                | {
                    "bursar-accounts": _text(stack, stack.timekeeper_url + accounts, token),
                    "bursar-node": agent.metrics(),
                },
                {
                    job: [_refusal(stack, f"{url}/metrics", each) for each in ("", other)]
                    for job, url in parts.items()
                },
                _through_api_server(cp, agent),
            )


def _text(stack: Stack, url: str, token: str = "") -> str:
    headers = {"Authorization": f"Bearer {token.strip()}"} if token else {}
    asked = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(asked, timeout=LONGEST_S, context=stack.tls_context()) as answer:
        return str(answer.read().decode())


def _refusal(stack: Stack, url: str, token: str) -> int:
    try:
        _text(stack, url, token)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    return 200


def _through_api_server(cp: ControlPlane, agent: Agent) -> str:
    """The agent's page as docs/node-agent.md reads it, once that gave the right."""
    page = (MONITORING.parent.parent / "docs" / "node-agent.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("kubectl create role")]
    pods = "/api/v1/namespaces/bursar-node/pods"
    name = cp.api.call("GET", pods)["items"][0]["metadata"]["name"]
    status = {"status": {"podIP": own_address(), "podIPs": [{"ip": own_address()}]}}
    cp.api.call("PATCH", f"{pods}/{name}/status", status, "application/merge-patch+json")
    token = kubectl(cp, "create", "token", "prometheus", "-n", "monitoring").strip()
    reader, at = AdminApi(cp.url, cp.ca_file, token), f"{pods}/{name}:{agent.port}/proxy/metrics"
    with pytest.raises(ApiError) as refused:
        reader.call("GET", at)
    assert refused.value.status == 403
    for line in lines:
        kubectl(cp, *line.split()[1:])
    eventually(lambda: reader.answers(at), "the right to read it")
    return str(reader.call("GET", at))


def test_metrics_are_refused_without_a_token_and_without_the_right(scrape: Scrape) -> None:
    assert scrape.refused.keys() == {"bursar-webhook", "bursar-timekeeper", "bursar-extender"}
    assert {tuple(statuses) for statuses in scrape.refused.values()} == {(401, 403)}
    assert "bursar_node_cards_healthy 2" in scrape.through_api_server


def test_names_follow_the_conventions(scrape: Scrape) -> None:
    wrong = []
    for name, family in scrape.families().items():
        if name.startswith("DCGM_"):  # NVIDIA's names
            continue
        labels = {label for sample in family.samples for label in sample.labels}
        words = set(name.split("_"))
        if not re.fullmatch(r"bursar_[a-z0-9]+(_[a-z0-9]+)*", name) or not family.documentation:
            wrong.append(name)
        if words & OTHER_UNITS or (family.unit and family.unit not in BASE_UNITS):
            wrong.append(f"{name}: not a base unit")
        if family.type == "histogram" and not name.endswith("_seconds"):
            wrong.append(f"{name}: a histogram without its unit")
        if (family.type == "counter") != name.endswith("_total"):
            wrong.append(f"{name}: {family.type}")
        if family.type == "gauge" and "timestamp" in words and not name.endswith("_timestamp_seconds"):
            wrong.append(f"{name}: a time")
        wrong += [f"{name}: {label}" for label in labels - {"le"} if not re.fullmatch("[a-z][a-z_]*", label)]
    assert wrong == []
    assert {name.split("_")[1] for name in scrape.families() if name.startswith("bursar_")} >= {
        *("webhook", "settler", "account", "extender", "node", "pod", "container")
    }


def test_use_is_reported_by_pod_and_container(scrape: Scrape) -> None:
    (sample,) = scrape.families()["bursar_container_gpu_utilization_ratio"].samples

    assert sample.value == 0.3
    told = {name: sample.labels[name] for name in ("namespace", "pod", "container", "container_id")}
    assert told == {
        "namespace": "team-a",
        "pod": "train",
        "container": "main",
        "container_id": CONTAINER_ID,
    }


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_are_scraped(scrape: Scrape, name: str) -> None:
    families, expression = scrape.families(), EXPRESSIONS[name]

    assert sorted(metrics_in(expression) - families.keys()) == []
    for metric, inner in re.findall(r"\b(bursar_\w+)\{(.*?)\}", expression):
        family = families[re.sub("_bucket$", "", metric)]
        labels = {label for sample in family.samples for label in sample.labels}
        asked = set(re.findall(r"(\w+)=?[=~!]", inner))
        assert not family.samples or asked <= labels, metric
    grouped = {label for part in re.findall(r"\bby \((.*?)\)", expression) for label in part.split(", ")}
    there = {
        label
        for metric in metrics_in(expression)
        for sample in families[metric].samples
        for label in sample.labels
    }
    assert grouped <= there or not there


# Each alert with the series that let it fire: a part of their names, and promtool's notation of values.
TRIGGERS: dict[str, dict[str, str]] = {
    "BursarBudgetNearlySpent": {"bursar_account_used_ratio": "0.9x180"},
    "BursarBudgetExhausted": {"bursar_account_used_ratio": "1.2x180"},
    "BursarBudgetExhaustsSoon": {"bursar_account_exhausted_timestamp_seconds": "20000x180"},
    "BursarBudgetEntryWrong": {"bursar_broken_budgets": "1x180"},
    "BursarTimekeeperNotReady": {"bursar_settler_leads": "0x180"},
    "BursarDatabaseAway": {'bursar_settler_ticks_total{instance="i",outcome="database away"}': "0+60x180"},
    "BursarVolumeFills": {'bursar_database_free_bytes{instance="i",kind="sqlite"}': "2000000000x180"},
    "BursarClockDiffers": {"bursar_clock_offset_seconds": "-5x180"},
    "BursarWatchStuck": {'bursar_findings{instance="i",role="settler",code="watch-fails"}': "1x180"},
    "BursarNodeClockDiffers": {"bursar_node_clock_offset_seconds": "-60x180"},
    "BursarPodsNotCharged": {"bursar_unreadable_pods_total": "0+1x180"},
    "BursarLawBroken": {'bursar_broken_laws_total{law="epochs_rise"}': "0+1x180"},
    "BursarMonthOpen": {'bursar_findings{instance="i",role="settler",code="month-open"}': "1x180"},
    "BursarDecisionsDropped": {'bursar_webhook_decisions_total{instance="i",result="dropped"}': "0+9x180"},
    "BursarWebhookNotReady": {'bursar_webhook_not_ready_total{instance="i",webhook="mutate"}': "0+1x180"},
    "BursarCertificateExpires": {"bursar_webhook_certificate_expiration_timestamp_seconds": "90000x180"},
    "BursarStandingsOld": {"bursar_extender_standings_last_success_timestamp_seconds": "-11+60x180"},
    "BursarReviewsSlow": {
        'bursar_webhook_review_seconds_bucket{instance="i",le="0.1",webhook="mutate"}': "0+1x180",
        'bursar_webhook_review_seconds_bucket{instance="i",le="1.0",webhook="mutate"}': "0+99x180",
        'bursar_webhook_review_seconds_bucket{instance="i",le="+Inf",webhook="mutate"}': "0+99x180",
    },
    "BursarExtenderNotLeading": {"bursar_extender_leads": "0x180"},
    "BursarFenceStuck": {"bursar_extender_fencing_stuck_pods": "1x180"},
    "BursarExtenderStateOld": {'bursar_extender_api_silent_seconds{instance="i",kind="pods"}': "300x180"},
    "BursarBindUnsettled": {'bursar_extender_pods_unsure{held="assumed",instance="i"}': "1x180"},
    "BursarNodesClosed": {'bursar_extender_nodes_closed{instance="i",reason="strangers"}': "1x180"},
    "BursarPodsWaitInBudget": {
        'bursar_extender_pods_waiting{instance="i",standing="IN_BUDGET"}': "3x180",
        "bursar_extender_free_gpus": "8x180",
    },
    "BursarAgentSilent": {"bursar_node_looks_total": "7x180"},
    "BursarReaderSilent": {"bursar_node_nvml_up": "0x180"},
    "BursarCardUnhealthy": {"bursar_node_card_healthy": "0x180"},
    "BursarNodeWritesRefused": {'bursar_node_writes_total{instance="i",result="refused"}': "0+1x180"},
    "BursarMemoryOverused": {"bursar_pod_gpu_memory_over_bytes": "4096x180"},
}
# Series at 0 for what never was, which let an alert fire as well.
NEVER = {
    "bursar_webhook_standings_last_success_timestamp_seconds": "BursarStandingsOld",
    "bursar_extender_standings_last_success_timestamp_seconds": "BursarStandingsOld",
}
# What a healthy cluster looks like where the scraped one is in another state, or its counters must move.
HEALTHY = {
    "bursar_account_used_ratio": "0.5x180",
    "bursar_pod_gpu_memory_over_bytes": "0x180",
    'bursar_settler_ticks_total{instance="i",outcome="nothing new"}': "0+60x180",
    "bursar_node_looks_total": "0+60x180",
    "bursar_webhook_standings_last_success_timestamp_seconds": "-9+60x180",
    "bursar_extender_standings_last_success_timestamp_seconds": "-9+60x180",
    "bursar_extender_nodes_closed": "0x180",
    "bursar_account_exhausted_timestamp_seconds": "1900000000x180",
}


def input_series(scrape: Scrape, changes: dict[str, str]) -> list[dict[str, str]]:
    """The scraped series as promtool reads them, three hours long; changed ones in the place of theirs."""
    found = {series: f"{value:g}x180" for series, value in scrape.series().items()}
    for name, values in {**HEALTHY, **changes}.items():
        own = [series for series in found if series.partition("{")[0] == name]
        assert own or "{" in name, name
        found |= dict.fromkeys(own, values) if "{" not in name else {name: values}
    return [{"series": series, "values": values} for series, values in found.items()]


def is_firing(scrape: Scrape, changes: dict[str, str], fires: str = "") -> dict[str, Any]:
    expected = [{"labels": f'{{alertname="{fires}"}}', "value": 1}] if fires else []
    query = 'count by (alertname) (count by (alertname, alertstate) (ALERTS{alertstate="firing"}))'
    return {
        "name": fires or "healthy",
        "interval": "1m",
        "input_series": input_series(scrape, changes),
        "promql_expr_test": [{"expr": query, "eval_time": "175m", "exp_samples": expected}],
    }


# Accounts, each with its used part and `warnAt`; the end of the first; and what people read of them.
ACCOUNTS = {
    'namespace="team-a"': (0.55, 0.5),
    'cluster="eu",namespace="_group.lab"': (0.9, 0.8),
    'namespace="team-b"': (0.6, 0.8),
    'namespace="team-c"': (1.25, 1),
}
END_S, END = 20_000, "1970-01-01 05:33:20 +0000 UTC"
TEXTS = {
    "BursarBudgetNearlySpent": {
        "team-a": f"team-a has used 55% of its GPU budget. At the present rate it runs out at {END}.",
        "_group.lab": "group lab has used 90% of its GPU budget.",
    },
    "BursarBudgetExhausted": {"team-c": "team-c has used 125% of its GPU budget."},
    "BursarBudgetExhaustsSoon": {"team-a": f"At the present rate team-a runs out of GPU budget at {END}."},
}


def text_cases() -> dict[str, Any]:
    """A test of promtool's: the alerts on budgets with their texts."""
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in RULES}
    series = {f"bursar_account_used_ratio{{{labels}}}": used for labels, (used, _) in ACCOUNTS.items()}
    series |= {f"bursar_account_warn_ratio{{{labels}}}": warn for labels, (_, warn) in ACCOUNTS.items()}
    series['bursar_account_exhausted_timestamp_seconds{namespace="team-a"}'] = END_S

    def alert(name: str, namespace: str, text: str) -> dict[str, Any]:
        cluster = {"cluster": "eu"} if namespace == "_group.lab" else {}
        labels = {"severity": severity[name], "namespace": namespace, **cluster}
        return {"exp_labels": labels, "exp_annotations": {"summary": text}}

    return {
        "name": "texts",
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x180"} for name, value in series.items()],
        "alert_rule_test": [
            {
                "alertname": name,
                "eval_time": "175m",
                "exp_alerts": [alert(name, namespace, text) for namespace, text in texts.items()],
            }
            for name, texts in TEXTS.items()
        ],
    }


@pytest.mark.soak  # the first build of promtool takes longer than a minute
def test_promtool_fires_each_alert_alone_and_finds_every_query_answered(
    scrape: Scrape, tmp_path: Path
) -> None:
    program = binaries(lambda line: print(line, file=sys.stderr), PROMTOOL_TOOLS)["promtool"]

    def promtool(*arguments: str, text: str = "") -> str:
        done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=300)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    assert TRIGGERS.keys() == {rule["alert"] for rule in RULES}
    spec = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]
    rules, tests = tmp_path / "rules.yaml", tmp_path / "tests.yaml"
    rules.write_text(yaml.safe_dump(spec))
    panels = [expr for each in DASHBOARDS for expr in targets(each)]
    asked = [
        {
            "expr": f"(count({expr.replace('$__rate_interval', '5m').replace('$namespace', '.+')})) > bool 0",
            "eval_time": "170m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for expr in panels
    ]
    drawn = is_firing(scrape, {})
    drawn["promql_expr_test"] += asked
    cases = [drawn, *(is_firing(scrape, changes, alert) for alert, changes in TRIGGERS.items())]
    cases += [is_firing(scrape, {series: "0x180"}, alert) for series, alert in NEVER.items()]
    cases.append(text_cases())
    tests.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": cases}))

    assert promtool("check", "rules", str(rules)) == ""
    assert promtool("test", "rules", str(tests)) == ""
    for job, page in scrape.pages.items():
        ours = "".join(line for line in page.splitlines(keepends=True) if "DCGM_" not in line)
        assert promtool("check", "metrics", text=ours) == "", job
    assert promtool("check", "config", "--syntax-only", str(MONITORING / "scrape-configs.yaml")) == ""
