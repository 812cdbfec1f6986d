"""What `doctor` says of a cluster: one thing wrong at a time."""

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.deploy import reading
from timekeeper.cli.doctor.checks import WORKLOADS, results
from timekeeper.cli.doctor.cluster_checks import OF_OUR_OWN_FIELDS, POLICIES
from timekeeper.cli.doctor.facts import Facts, Follower, NotReadable, Readiness, _zone, read_followers
from timekeeper.cli.output import CommandError
from timekeeper.core.budgets.modes import EFFECTS
from timekeeper.core.findings import CATALOGUE, RoleFinding, of_classes, of_doubts, of_use, published
from timekeeper.core.names import MODE_LABEL

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


def api_service(name: str, available: str = "True", message: str = "") -> dict[str, Any]:
    condition = {"type": "Available", "status": available, "message": message}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


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
    pod: dict[str, Any] = {"spec": {}}
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "bursar-node"},
        "spec": {"template": pod},
        "status": status,
    }


def node(
    name: str,
    inventory: bool = True,
    capacity: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    closed: str = "",
) -> dict[str, Any]:
    annotations = {"bursar.dev/inventory": "{}"} if inventory else {}
    if closed:
        annotations["bursar.dev/holders"] = json.dumps({"closed": closed})
    metadata = {"name": name, "annotations": annotations, "labels": labels or {}}
    return {"metadata": metadata, "status": {"capacity": capacity or {}}}


def second_scheduler(version: str = "1.37.2") -> dict[str, Any]:
    """The Deployment with kube-scheduler and extender."""
    containers = [{"name": "kube-scheduler", "image": f"registry.k8s.io/kube-scheduler:v{version}"}]
    made = workload("bursar-scheduler")
    return {**made, "spec": {"replicas": 2, "template": {"spec": {"containers": containers}}}}


def configuration(**changes: Any) -> dict[str, Any]:
    """The ConfigMap of that kube-scheduler, as the manifests have it but for changed fields."""
    found = reading.the("ConfigMap", "bursar-scheduler")
    (read,) = reading.loaded(found["data"]["scheduler.yaml"])
    return {**found, "data": {"scheduler.yaml": yaml.safe_dump({**read, **changes})}}


def without(resource: str) -> dict[str, Any]:
    """That ConfigMap with one managed resource less."""
    (read,) = reading.loaded(configuration()["data"]["scheduler.yaml"])
    (entry,) = read["extenders"]
    kept = [each for each in entry["managedResources"] if each["name"] != resource]
    return configuration(extenders=[{**entry, "managedResources": kept}])


def static_pod(node: str, patched: bool, *flags: str, release: str = "1.37.2") -> dict[str, Any]:
    """A kube-scheduler of kubeadm."""
    volumes = [{"name": "kubeconfig"}, *([{"name": "bursar-scheduler"}] if patched else [])]
    container = {"image": f"registry.k8s.io/kube-scheduler:v{release}", "command": ["kube-scheduler", *flags]}
    spec = {"nodeName": node, "volumes": volumes, "containers": [container]}
    return {"kind": "Pod", "metadata": {"name": node}, "spec": spec}


NVIDIA = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}


PERCENT = {"bursar.dev/gpu-percent": "100"}


def named(*names: str) -> dict[str, Any]:
    return listed(*({"metadata": {"name": name}} for name in names))


OTHERS = [workload("bursar-certificates"), workload("bursar-timekeeper")]


def bindings(*lenient: str) -> dict[str, Any]:
    """Of all policies; those that are named only warn."""
    return listed(
        *(
            {
                "metadata": {"name": name},
                "spec": {"validationActions": ["Warn", "Audit"] if name in lenient else ["Deny"]},
            }
            for name in POLICIES
        )
    )


def parameters(default: str = "enforce", **modes: str) -> list[dict[str, Any]]:
    """What the policies read, as the timekeeper writes it."""
    data = {"_initial": "enforce", "_default": default}
    data |= {"_host": "off 2000 32000 274877906944 16000", "team-a.host": "warn 1 1 1 1"}
    data |= {name.replace("_", "-"): mode for name, mode in modes.items()}
    observed = data | {"_judged": "observe"}
    both = {"bursar-modes": data, "bursar-modes-observed": observed}
    return [{"metadata": {"name": name}, "data": each} for name, each in both.items()]


WRITTEN = parameters(team_a="observe")
ROLES = [workload("bursar-webhook"), *OTHERS, second_scheduler()]
GOOD = bundle(NOW + timedelta(days=300))
NPUS = {
    "metadata": {"name": "bursar-budgets"},
    "data": {
        "_settings": "timeZone: Asia/Tokyo\nunknownAccelerators: meter\ndevices: {example.com/npu: Example}",
        "team-a": "gpuHours: 1",
    },
}
CLAIMS = "resourceclaims   resource.k8s.io/v1   true   ResourceClaim\n"  # a row of `kubectl api-resources`
RULES = "devicetaintrules   resource.k8s.io/v1   false   DeviceTaintRule\n"
SURE: dict[str, Any] = {"sessions": 0, "doubts": [], "claims": None}


def found_of(doubts: dict[str, Any] = SURE, idle: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the timekeeper finds by these answers of its own."""
    own = (*of_doubts(doubts), *(of_use(idle) if idle else ()), RoleFinding("classes", {}))
    return shown(*own, RoleFinding("inventories", {"described": 1, "number": 1}))


def shown(*found: RoleFinding, age_ms: int = 30_000, more: dict[str, int] | None = None) -> dict[str, Any]:
    """The answer to `GET /v1/findings`, as the extender posts its list."""
    roles = [{"role": "timekeeper", "ageMs": 0, "more": {}}]
    roles.append({"role": "extender", "ageMs": age_ms, "more": more or {}})
    return {"roles": roles, "findings": published(found)["findings"]}


def on_nodes(code: str, **figures: str) -> dict[str, Any]:
    """The answer with one finding of the extender's, of nodes a and b."""
    return shown(RoleFinding(code, {"nodes": "a, b", "node": "a"} | figures))


def classes(
    within: int | None, over: int | None, mode: str = "enforce", default: int | None = None
) -> dict[str, Any]:
    """The settings of standings with these values of the classes; None: they are not in the cluster."""
    named = {"inBudget": ("gpu-default-priority", within), "overBudget": ("gpu-lower-priority", over)}
    described = {key: {"name": name, "value": value} for key, (name, value) in named.items()}
    if default is not None:
        described["clusterDefault"] = {"name": "everyday", "value": default}
    return {"mode": mode, "priorityClasses": described}


GPUBUDGETS = api_service("v1alpha1.bursar.dev")
SOUND = Facts(
    system_namespace="bursar-system",
    version=json.dumps({"major": "1", "minor": "37+"}),
    namespace={"metadata": {"name": "bursar-system"}},
    workloads=[listed(*ROLES), listed(agent())],
    api_services=listed(api_service("v1.apps"), GPUBUDGETS, api_service("v1.timekeeper.bursar.dev")),
    mutating=listed(webhooks("zz-bursar", GOOD), webhooks("istio", GOOD)),
    validating=webhooks("zz-bursar", GOOD),
    policies=named(*POLICIES),
    policy_bindings=bindings(),
    budgets=listed(
        {"metadata": {"name": "bursar-budgets"}, "data": {"_settings": "timeZone: Asia/Tokyo", "team-a": ""}},
        configuration(),
        *WRITTEN,
    ),
    nodes=listed(
        node("g", capacity={"bursar.dev/gpu-percent": "100"}),
        node("cpu", inventory=False, capacity={"cpu": "8"}),
    ),
    runtime_classes=listed(NVIDIA),
    static_schedulers=listed(static_pod("cp-1", patched=False)),
    time_zone="Asia/Tokyo",
    findings=found_of(),
    namespaces="namespace/a\nnamespace/team-a\n",
    labelled=listed(),
    modes={"": "enforce", "team-a": "observe", "team-b": "enforce"},
    readiness=Readiness(200, "ok", 0.2),
    now_s=NOW.timestamp(),
    device_resources=CLAIMS + RULES,
    scheduler_role={"rules": [{"resources": ["resourceclaims"]}, {"resources": ["devicetaintrules"]}]},
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


def alone(*nodes: dict[str, Any]) -> Facts:
    """A ledger alone, as the chart installs it, on a cluster with these nodes."""
    made = workload("bursar-timekeeper")
    container = {"name": "timekeeper", "args": ["meter", "--listen=0.0.0.0:8444"]}
    made["spec"]["template"] = {"spec": {"containers": [container]}}
    nothing: dict[str, Any] = {"policies": listed(), "mutating": listed(), "validating": None}
    return replace(SOUND, workloads=[listed(made), listed()], nodes=listed(*nodes), **nothing)


GFD = {
    f"nvidia.com/gpu.{name}": text for name, text in (("product", "T4"), ("count", "1"), ("memory", "15360"))
}


def test_a_ledger_alone_needs_nothing_else() -> None:
    nodes = node("g", False, {"nvidia.com/gpu": "1"}, GFD), node("amd", False, {"amd.com/gpu": "8"})

    found = results(alone(*nodes))

    assert {each.level for each in found} == {"ok"}


def said_of_charges(facts: Facts) -> list[tuple[str, str, str]]:
    about = ("charges", "resource claims")
    return [(each.level, each.subject, each.sentence) for each in results(facts) if each.subject in about]


@pytest.mark.parametrize("where", [SOUND, alone()], ids=["governed", "alone"])
def test_doubts_and_what_is_not_charged_are_counted_and_named(where: Facts) -> None:
    doubts = [{"doubt": f"reason {number}", "sessions": 9 - number} for number in range(7)]
    claims = [{"namespace": "team-a", "pods": 4}, {"namespace": "", "pods": 3}]
    answer = {"sessions": 50, "doubts": doubts, "claims": claims}

    assert said_of_charges(replace(where, findings=found_of(answer))) == [
        *(
            ("warning", "charges", f"the rates of {9 - each} running sessions are not certain: reason {each}")
            for each in range(5)
        ),
        ("warning", "charges", "the rates of 15 running sessions are not certain for other reasons"),
        (
            *("warning", "resource claims"),
            "7 pods hold devices by resource claims alone, uncharged, for claims are not followed:"
            " team-a (4), others (3)",
        ),
    ]


def test_one_is_not_many() -> None:
    answer = {
        "sessions": 1,
        "doubts": [{"doubt": "why", "sessions": 1}],
        "claims": [{"namespace": "a", "pods": 1}],
    }

    assert [sentence for *_, sentence in said_of_charges(replace(SOUND, findings=found_of(answer)))] == [
        "the rate of 1 running session is not certain: why",
        "1 pod holds devices by resource claims alone, uncharged, for claims are not followed: a (1)",
    ]


@pytest.mark.parametrize("where", [SOUND, alone()], ids=["governed", "alone"])
def test_a_watch_that_fails_is_an_error(where: Facts) -> None:
    failing = [{"source": "nodes", "since": 0, "error": "403 nodes is forbidden"}]
    answer = {"sessions": 0, "doubts": [], "claims": [], "watches": failing}

    (found,) = [
        each for each in results(replace(where, findings=found_of(answer))) if each.subject == "watches"
    ]
    assert (found.level, found.sentence) == (
        "error",
        "nodes are not followed since 1970-01-01 00:00Z: 403 nodes is forbidden;"
        " what changes is not known until they are",
    )
    assert found.command.startswith("kubectl logs ")


def test_what_webhook_and_agents_follow_and_does_not_get_on_is_shown_with_its_pod() -> None:
    stuck = "watch of resourceclaims: it has not got on since 2026-11-21T00:00:00.000Z"
    skipped = "watch of pods: 2 objects are skipped"
    away = NotReadable('kubectl get: pods "n-9" is forbidden: no pods/proxy')
    followers = (
        Follower("webhook", {"w-1": "ok\n", "w-2": f"ok\n{stuck}\n"}),
        Follower("node", {"n-1": f"ok\n{skipped}\n{stuck}\n", "n-9": away, "n-8": away}, others=3),
    )

    found = [each for each in results(replace(SOUND, followers=followers)) if each.subject == "watches"]

    assert [(each.level, each.sentence, each.command) for each in found] == [
        ("error", f"w-2: {stuck}", "kubectl logs -n bursar-system w-2 --tail=50"),
        ("error", f"n-1: {skipped}", "kubectl logs -n bursar-node n-1 --tail=50"),
        ("error", f"n-1: {stuck}", "kubectl logs -n bursar-node n-1 --tail=50"),
        ("unknown", "3 more agents were not asked, after 20", "the alert BursarWatchStuck (docs/alerts.md)"),
        ("unknown", away.reason, "use an account that may read it"),
    ]


class Reads:
    """A kubectl of a cluster with a webhook and 22 agents, of which one is not ready, another silent."""

    def __init__(self) -> None:
        self.raw: list[str] = []

    def get(self, kind: str, _n: str, namespace: str, _l: str, selector: str) -> dict[str, Any]:
        assert kind == "pods"
        if selector.endswith("=webhook"):
            return listed(self._pod("w", {"name": "https", "containerPort": 8443}))
        names = [f"n-{number:02}" for number in range(22)]
        ports = {"name": "nri", "containerPort": 1}, {"name": "metrics", "containerPort": 9000}
        return listed(*(self._pod(name, *ports, ready=name != "n-00") for name in names))

    def _pod(self, name: str, *ports: dict[str, Any], ready: bool = True) -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": str(ready)}]
        spec = {"containers": [{"name": "main", "ports": list(ports)}]}
        return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}

    def run(self, verb: str, flag: str, path: str) -> str:
        assert (verb, flag) == ("get", "--raw")
        self.raw.append(path)
        if "n-05" in path:
            raise CommandError("kubectl get: no route")
        return "ok\n"


def test_ready_webhooks_and_agents_are_asked_through_the_api_server_some_of_them() -> None:
    kubectl = Reads()
    options: Any = SimpleNamespace(kubectl=kubectl, system_namespace="sys")

    webhook, agents = read_followers(options, lambda _: None)

    assert webhook == Follower("webhook", {"w": "ok\n"})
    assert kubectl.raw[:2] == [
        "/api/v1/namespaces/sys/pods/https:w:8443/proxy/readyz",
        "/api/v1/namespaces/bursar-node/pods/n-01:9000/proxy/readyz",
    ]
    assert (list(agents.said), agents.others) == ([f"n-{number:02}" for number in range(1, 21)], 1)
    assert agents.said["n-05"] == NotReadable("kubectl get: no route")


def changed(name: str, *arguments: str, variable: str = "") -> list[dict[str, Any]]:
    """The workloads, of which one has these arguments."""
    env = [{"name": variable.partition("=")[0], "value": variable.partition("=")[2]}] if variable else []
    template = {"spec": {"containers": [{"name": "main", "args": list(arguments), "env": env}]}}
    made = {**workload(name), "spec": {"replicas": 2, "template": template}}
    return [listed(*(each for each in ROLES if each["metadata"]["name"] != name), made), listed(agent())]


def test_it_says_whether_the_webhook_tells_the_api_server_from_others() -> None:
    def said(*arguments: str, variable: str = "") -> list[str]:
        facts = replace(SOUND, workloads=changed("bursar-webhook", *arguments, variable=variable))
        return [each.sentence[:4] for each in results(facts) if each.subject == "webhook answers"]

    assert said("--listen=[::]:8443") == ["whoe"]
    assert said("--client-ca=/etc/bursar/callers/ca.crt") == ["only"]
    assert said(variable="BURSAR_CLIENT_CA=/etc/bursar/callers/ca.crt") == ["only"]


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {"type": "Container", "max": {"nvidia.com/gpu": "8"}, "default": {"nvidia.com/gpu": "8"}},
            "a LimitRange of team-a gives 8 nvidia.com/gpu to each container that names none, also of CPU"
            " pods",
        ),
        (
            {"type": "Container", "min": {"amd.com/gpu": "1", "cpu": "1"}, "default": {"amd.com/gpu": "1"}},
            "a LimitRange of team-a demands 1 amd.com/gpu of every container: GPU pods with a sidecar are"
            " refused",
        ),
        ({"type": "Pod", "min": {"nvidia.com/gpu": "1"}}, ""),
        ({"type": "Container", "default": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "0"}}, ""),
    ],
)
def test_a_limit_range_that_gives_or_demands_devices_is_found(limits: dict[str, Any], sentence: str) -> None:
    made = {"metadata": {"name": "l", "namespace": "team-a"}, "spec": {"limits": [limits]}}

    found = [each for each in results(replace(SOUND, limit_ranges=listed(made))) if each.level != "ok"]

    assert [each.sentence for each in found] == ([sentence] if sentence else [])
    if sentence:
        assert found[0].command == "kubectl edit limitrange l -n team-a (docs/governed-pods.md)"


@pytest.mark.parametrize(
    ("address", "listen", "is_named"),
    [
        ("fd00::1", "--listen=0.0.0.0:8443", True),
        ("fd00::1", "--listen=[::]:8443", False),
        ("10.0.0.1", "--listen=0.0.0.0:8443", False),
    ],
)
def test_a_role_that_listens_on_ipv4_alone_is_found_where_nodes_have_ipv6_alone(
    address: str, listen: str, is_named: bool
) -> None:
    there = node("g", capacity={"bursar.dev/gpu-percent": "100"})
    there["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
    facts = replace(SOUND, nodes=listed(there), workloads=changed("bursar-webhook", listen))

    found = [each for each in results(facts) if "0.0.0.0" in each.sentence]

    assert [(each.level, each.subject) for each in found] == (
        [("error", "bursar-webhook")] if is_named else []
    )


def test_an_account_that_may_not_read_doubts_is_told_so() -> None:
    assert said_of_charges(replace(SOUND, findings=NotReadable("forbidden"))) == [
        ("unknown", "charges", "forbidden")
    ]


GPU_CLASS = listed({"metadata": {"name": "gpu"}})


def account(namespace: str = "team-b", **changes: Any) -> dict[str, Any]:
    """Of ``/v1/budgets``."""
    made = {"namespace": namespace, "onExhausted": "reclaim", "granted": 1, "mode": "enforce"}
    return {**made, "placement": "on", **changes}


def reclaiming(**changes: Any) -> list[tuple[str, str]]:
    """What is said where a budget reclaims, in a cluster with a class of devices."""
    there = {"accounts": [account()], "device_classes": GPU_CLASS, "device_resources": CLAIMS}
    found = results(replace(SOUND, **(there | changes)))
    return [(each.level, each.sentence) for each in found if each.subject == "reclaim of devices"]


def test_budgets_that_reclaim_devices_which_no_taint_keeps_are_named() -> None:
    sentence = (
        "pods of team-b leave for the claims of others (onExhausted: reclaim), and the API server serves no"
        " DeviceTaintRules, so another claim may get the device first"
    )
    kept = "a taint keeps a reclaimed device for the claim that waits"

    assert reclaiming() == [("warning", sentence)]
    assert reclaiming(device_resources=CLAIMS + RULES) == [("ok", kept)]
    assert reclaiming(device_classes=NotReadable("forbidden")) == [("unknown", "forbidden")]
    quiet = ({"onExhausted": "evict"}, {"granted": None}, {"mode": "observe"}, {"placement": "off"})
    for each in quiet:
        assert reclaiming(accounts=[account(**each)]) == []
    assert reclaiming(device_classes=listed()) == []
    assert reclaiming(version=json.dumps({"major": "1", "minor": "33"})) == []


@pytest.mark.parametrize(
    ("release", "flags", "is_blind"),
    [
        ("1.37.2", (), False),
        ("1.37.2", ("--v=2", "--feature-gates=DRAAdminAccess=true,DRADeviceTaintRules=false"), True),
        ("1.37.2", ("--feature-gates", "DRADeviceTaintRules=False"), True),
        ("1.36.3", (), True),
        ("1.36.3", ("--feature-gates=AllBeta=true",), False),
        ("1.36.3", ("--feature-gates=AllBeta=true", "--feature-gates=DRADeviceTaintRules=false"), True),
        ("1.36.3", ("--feature-gates=DRADeviceTaintRules=true",), False),
    ],
)
def test_a_kube_scheduler_that_heeds_no_taint_rules_is_named(
    release: str, flags: tuple[str, ...], is_blind: bool
) -> None:
    pods = listed(static_pod("cp-1", False), static_pod("cp-2", False, *flags, release=release))
    found = reclaiming(device_resources=CLAIMS + RULES, static_schedulers=pods)

    sentence = (
        "pods of team-b leave for the claims of others (onExhausted: reclaim), and kube-scheduler on cp-2"
        " heeds no DeviceTaintRules (feature gate DRADeviceTaintRules), so another claim may get the device"
        " first"
    )
    assert [sentence for _, sentence in found if "cp-" in sentence] == ([sentence] if is_blind else [])
    assert [level for level, _ in found] == ["warning" if is_blind else "ok"]


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"device_resources": CLAIMS}, "the API server serves no DeviceTaintRules"),
        (
            {"scheduler_role": {"rules": [{"resources": ["resourceclaims"]}]}},
            "the API server has the feature gate DRADeviceTaintRules off",
        ),
    ],
)
def test_a_gate_of_taint_rules_that_is_half_on_stops_kube_scheduler(
    changes: dict[str, Any], lacks: str
) -> None:
    found = [result for result in results(replace(SOUND, **changes)) if result.level != "ok"]
    old = results(replace(SOUND, **changes, version=json.dumps({"minor": "36"})))

    assert [(result.level, result.subject, result.sentence) for result in found] == [
        (
            "error",
            "device claims",
            f"{lacks}: a kube-scheduler of 1.37 with the feature gate DRADeviceTaintRules on, as unasked,"
            " schedules no pod",
        )
    ]
    assert "device claims" not in {result.subject for result in old}
    ((level, sentence),) = reclaiming(**{"device_resources": CLAIMS + RULES} | changes)
    assert (level, lacks in sentence) == ("warning", True)


def test_an_api_server_that_drops_the_claims_of_pods_is_named() -> None:
    role = {"rules": [{"resources": ["pods"]}]}
    found = results(replace(SOUND, version=json.dumps({"minor": "34"}), scheduler_role=role))

    assert [result.sentence for result in found if result.subject == "device claims"] == [
        "the API server has the feature gate DynamicResourceAllocation off, so it drops the claims of pods,"
        " which start without devices"
    ]


@pytest.mark.parametrize(
    ("served", "sentence"),
    [
        ("", "the API server serves no resource.k8s.io (--runtime-config): no claim can be made"),
        (
            CLAIMS.replace("v1", "v1beta2"),
            "the API server serves v1beta2 of resource.k8s.io, and not v1: pods",
        ),
        (CLAIMS + RULES, None),
        (NotReadable("forbidden"), None),
    ],
)
def test_a_cluster_that_does_not_serve_claims_as_they_are_followed_is_named(
    served: Any, sentence: str | None
) -> None:
    def said(**changes: Any) -> list[str]:
        found = results(replace(SOUND, device_resources=served, **changes))
        return [result.sentence for result in found if result.subject == "device claims"]

    assert [text[: len(sentence or "")] for text in said()] == ([] if sentence is None else [sentence])
    assert said(version=json.dumps({"minor": "33"})) == []


def test_budgets_that_reclaim_devices_of_idle_pods_are_named() -> None:
    unbounded = account("team-c", onExhausted="evict", granted=None, idle="reclaim")
    ((level, sentence),) = reclaiming(accounts=[unbounded])

    assert level == "warning"
    assert sentence.startswith("pods of team-c leave for the claims of others (idle: reclaim), and")
    ((_, both),) = reclaiming(accounts=[account(), unbounded])
    assert both.startswith("pods of team-b, team-c leave for")
    assert "(onExhausted: reclaim and idle: reclaim)" in both
    for each in ({"idle": "evict"}, {"idle": None}, {"mode": "observe"}, {"placement": "off"}):
        assert reclaiming(accounts=[{**unbounded, **each}]) == []


def test_idle_pods_and_what_is_wrong_with_their_measurement_are_named() -> None:
    pod = {"namespace": "team-a", "since": 0, "seen": 3_600_000}
    prometheus = {"measured": 2, "findings": ["1 metered pod is not measured by any series"]}
    answer = {
        "after": 3_600_000,
        "below": 50,
        "pods": [pod, pod, {**pod, "since": 1}],
        "prometheus": prometheus,
    }

    def said(**changed: Any) -> list[tuple[str, str]]:
        found = results(replace(alone(), findings=found_of(idle=answer | changed)))
        return [(each.level, each.sentence) for each in found if each.subject == "use"]

    assert said() == [
        ("warning", "2 pods have used less than 5 % of what they hold for 1h0m or longer: team-a (2)"),
        ("warning", "use of cards by Prometheus: 1 metered pod is not measured by any series"),
    ]
    fine = {"measured": 2, "findings": []}
    assert said(pods=[], prometheus=fine) == [("ok", "Prometheus measures 2 metered pods")]
    assert said(pods=[], prometheus=None) == []


CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "unreachable": ({"version": NotReadable("no route")}, "error", "API server", "no route"),
    "old": (
        {
            "version": '{"minor": "29"}',
            "workloads": [listed(*ROLES[:-1], second_scheduler("1.29.1")), listed(agent())],
        },
        *("error", "API server", "1.29 is older than 1.30, which the manifests need: no policy guards"),
    ),
    "not installed": ({"namespace": None}, "error", "namespace", "does not exist"),
    "a role is missing": (
        {"workloads": [listed(*ROLES[1:]), listed(agent())]},
        "error",
        "bursar-webhook",
        "not installed",
    ),
    "the certificate process is missing": (
        {"workloads": [listed(ROLES[0], *ROLES[2:]), listed(agent())]},
        "error",
        "bursar-certificates",
        "not installed",
    ),
    "no agents": (
        {"workloads": [listed(*ROLES), listed()]},
        "warning",
        "bursar-node",
        "no agent runs, so every inventory must be written by hand",
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
    "an aggregated API away": (
        {
            "api_services": listed(
                GPUBUDGETS, api_service("v1.timekeeper.bursar.dev", "False", "no endpoints")
            )
        },
        *(
            "error",
            "aggregated APIs",
            "v1.timekeeper.bursar.dev is not available (no endpoints), so discovery",
        ),
    ),
    "an aggregated API of others away": (
        {"api_services": listed(GPUBUDGETS, api_service("v1beta1.metrics.k8s.io", "Unknown"))},
        *("error", "aggregated APIs", "no namespace can be deleted"),
    ),
    "GPUBudgets gone": (
        {"api_services": listed(api_service("v1.apps"))},
        *("warning", "aggregated APIs", "the CustomResourceDefinition gpubudgets.bursar.dev is gone"),
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
    "others may write our fields": (
        {"policy_bindings": bindings("bursar-holds", "bursar-sizes")},
        *("error", "policy bindings", "bursar-holds must refuse"),
    ),
    "classes upside down": (
        {"findings": shown(*of_classes(classes(10, 1000)))},
        *("error", "priority classes", "gpu-lower-priority (1000) is not below gpu-default-priority (10)"),
    ),
    "no classes": (
        {"findings": shown(*of_classes(classes(None, None)))},
        *("warning", "priority classes", "gpu-default-priority or gpu-lower-priority does not exist"),
    ),
    "the cluster's default above ours": (
        {"findings": shown(*of_classes(classes(0, -5, default=1)))},
        *(
            "warning",
            "priority classes",
            "everyday (1), the cluster's default, is above gpu-default-priority (0)",
        ),
    ),
    "not ready": ({"readiness": Readiness(503, "database away", 0)}, "error", "timekeeper", "database away"),
    "no answer": ({"readiness": NotReadable("no token")}, "unknown", "timekeeper", "no token"),
    "away": (
        {"readiness": NotReadable("it does not answer.\nPod a is not ready.\nDo: this", is_away=True)},
        *("error", "timekeeper", "it does not answer. Pod a is not ready."),
    ),
    "clocks differ": ({"readiness": Readiness(200, "ok", -60.0)}, "warning", "clocks", "by -60 s"),
    "another time zone": ({"time_zone": "UTC"}, "warning", "time zone", "has timeZone Asia/Tokyo"),
    "no extender": (
        {
            "budgets": listed(
                {"metadata": {"name": "bursar-budgets"}, "data": {"a": ""}},
                configuration(extenders=[]),
                *WRITTEN,
            )
        }
        | {"time_zone": "UTC"},
        *("error", "kube-scheduler's configuration", "the extender is not registered"),
    ),
    "no profile": (
        {
            "budgets": listed(
                {"metadata": {"name": "bursar-budgets"}, "data": {"a": ""}},
                configuration(profiles=[]),
                *WRITTEN,
            )
        }
        | {"time_zone": "UTC"},
        *("error", "kube-scheduler's configuration", "no profile bursar-scheduler"),
    ),
    "a resource is not managed": (
        {
            "budgets": listed(
                {"metadata": {"name": "bursar-budgets"}, "data": {"a": ""}},
                without("nvidia.com/gpu"),
                *WRITTEN,
            )
        }
        | {"time_zone": "UTC"},
        *("error", "kube-scheduler's configuration", "managedResources lacks nvidia.com/gpu"),
    ),
    "a newer kube-scheduler": (
        {"workloads": [listed(*ROLES[:-1], second_scheduler("1.38.0")), listed(agent())]},
        *("error", "versions", "1.38 does not fit the API server 1.37"),
    ),
    "two for one profile": (
        {"static_schedulers": listed(static_pod("cp-1", patched=True))},
        *("error", "kube-scheduler", "share the profile"),
    ),
    "one is not patched": (
        {
            "workloads": [listed(*ROLES[:-1], workload("bursar-extender")), listed(agent())],
            "static_schedulers": listed(static_pod("cp-1", True), static_pod("cp-2", False)),
        },
        *("error", "kube-scheduler", "the static pod of cp-2 is not patched"),
    ),
    "no kube-scheduler": (
        {"workloads": [listed(*ROLES[:-1], workload("bursar-extender")), listed(agent())]},
        *("error", "kube-scheduler", "no kube-scheduler calls the extender"),
    ),
    "no runtime of this name": (
        {
            "workloads": [
                listed(*ROLES),
                listed(agent() | {"spec": {"template": {"spec": {"runtimeClassName": "gone"}}}}),
            ]
        },
        *("error", "runtime", "runtimeClassName gone does not exist"),
    ),
    "no budget": (
        {"budgets": listed(configuration(), *WRITTEN), "time_zone": "UTC"},
        "warning",
        "budgets",
        "every namespace is unlimited",
    ),
    "accelerators that are refused": (
        {"nodes": listed(node("g"), node("amd", inventory=False, capacity={"amd.com/cpx_nps4": "8"}))},
        *("warning", "accelerators", "no dialect reads amd.com/cpx_nps4 (AMD: a GPU, or a partition of one)"),
    ),
    "an accelerator that the webhooks do not see": (
        {
            "nodes": listed(node("g"), node("n", inventory=False, capacity={"example.com/npu": "2"})),
            "budgets": listed(NPUS, configuration(), *WRITTEN),
            "device_pods": listed(),
        },
        *("warning", "accelerators", "the webhooks do not see pods that request example.com/npu"),
    ),
    "no namespace": (
        {"namespaces": "namespace/team-aa"},
        *("warning", "budgets", "team-a has an entry, and there is no such namespace"),
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


def tpu_pod(name: str, labels: dict[str, str], phase: str = "Running") -> dict[str, Any]:
    resources = {"limits": {"google.com/tpu": "4"}}
    return {
        "metadata": {"namespace": "team-a", "name": name, "labels": labels},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("setting", "level", "effect"),
    [
        ("refuse", "warning", "are refused"),
        ("meter", "warning", "are charged for whole devices"),
        ("pass", "warning", "are admitted and not charged"),
    ],
)
def test_nodes_and_pods_with_accelerators_are_named_whatever_the_setting_is(
    setting: str, level: str, effect: str
) -> None:
    pods = listed(
        tpu_pod("paid", {"bursar.dev/governed": "true"}), tpu_pod("free", {}), tpu_pod("over", {}, "Failed")
    )
    text = f"timeZone: Asia/Tokyo\nunknownAccelerators: {setting}"
    settings = {"metadata": {"name": "bursar-settings"}, "data": {"_settings": text}}
    budget = {"metadata": {"name": "bursar-budgets"}, "data": {"team-a": "gpuHours: 1"}}
    nodes = listed(node("g"), node("t1", inventory=False, capacity={"google.com/tpu": "4"}))
    facts = replace(SOUND, nodes=nodes, budgets=listed(settings, budget, configuration()), device_pods=pods)

    (found,) = (each for each in results(facts) if each.subject == "accelerators")

    assert (found.level, effect in found.sentence) == (level, True)
    assert "google.com/tpu (Google: a TPU chip), on t1" in found.sentence
    assert "charged: team-a/paid; pods that hold some, not charged: team-a/free" in found.sentence
    assert found.command
    paid = replace(facts, device_pods=listed(tpu_pod("paid", {"bursar.dev/governed": "true"})))
    (found,) = (each for each in results(paid) if each.subject == "accelerators")
    assert found.level == ("ok" if setting == "meter" else "warning")


@pytest.mark.parametrize(
    ("texts", "level", "said"),
    [
        ({"_settings": "mode: observe"}, "ok", "with mode: observe pods that request it are charged"),
        ({"team-a": "gpuHours: 1\nmode: meter"}, "warning", "are refused; pods that hold some, charged"),
    ],
    ids=["cluster", "namespace"],
)
def test_pods_of_namespaces_that_are_metered_are_charged(
    texts: dict[str, str], level: str, said: str
) -> None:
    maps = [{"metadata": {"name": "bursar-budgets"}, "data": {key: text}} for key, text in texts.items()]
    nodes = listed(node("t1", inventory=False, capacity={"google.com/tpu": "4"}))
    facts = replace(SOUND, nodes=nodes, budgets=listed(*maps), device_pods=listed(tpu_pod("free", {})))

    (found,) = (each for each in results(facts) if each.subject == "accelerators")

    assert (found.level, said in found.sentence) == (level, True), found.sentence
    assert "not charged" not in found.sentence


def test_what_the_settings_and_the_webhooks_name_is_no_finding() -> None:
    conditions = [{"expression": "k in ['example.com/npu']"}]
    ours = webhooks("zz-bursar", GOOD)
    ours["webhooks"][0]["matchConditions"] = conditions
    none = replace_text(NPUS, "{example.com/npu: Example}", "{example.com/npu: Example, rdma/hca: none}")
    nodes = listed(node("g"), node("n", inventory=False, capacity={"example.com/npu": "2", "rdma/hca": "1"}))
    facts = replace(SOUND, nodes=nodes, budgets=listed(none), mutating=listed(ours), device_pods=listed())

    (found,) = (result for result in results(facts) if result.subject == "accelerators")

    assert (found.level, "no dialect reads example.com/npu, on n" in found.sentence) == ("ok", True)


def replace_text(found: dict[str, Any], before: str, after: str) -> dict[str, Any]:
    return json.loads(json.dumps(found).replace(before, after))  # type: ignore[no-any-return]


def test_beside_a_ledger_on_somebodys_machine_nothing_is_missed_in_the_cluster() -> None:
    nothing: dict[str, Any] = {"mutating": listed(), "validating": None, "policies": listed()}
    none = replace(SOUND, namespace=None, workloads=[listed(), listed()], budgets=listed(), **nothing)
    bare = replace(none, nodes=listed(node("g", False, {"nvidia.com/gpu": "1"}, GFD)))

    found = results(replace(bare, is_by_address=True))
    assert {each.level for each in found} == {"ok"}
    assert {each.subject for each in found} >= {"API server", "timekeeper", "charges"}
    assert "bursar-webhook" in {each.subject for each in results(bare) if each.level == "error"}


@pytest.mark.parametrize("governs_nothing", [True, None], ids=["it says so", "it does not answer"])
def test_the_namespace_of_a_budget_on_trial_does_not_make_a_ledger_on_somebodys_machine_installed(
    governs_nothing: bool | None,
) -> None:
    nothing: dict[str, Any] = {"mutating": listed(), "validating": None, "policies": listed()}
    here = replace(SOUND, workloads=[listed(), listed()], is_by_address=True, **nothing)
    amd = replace(here, nodes=listed(node("amd", False, {"amd.com/gpu": "8"})))

    found = results(replace(amd, governs_nothing=governs_nothing))

    assert {each.level for each in found} == {"ok"}
    installed = results(replace(amd, governs_nothing=False))
    assert "bursar-webhook" in {each.subject for each in installed if each.level == "error"}


def test_where_all_of_bursar_runs_beside_the_cluster_no_role_is_missed_in_it() -> None:
    called = [{"clientConfig": {"caBundle": GOOD, "url": "https://127.0.0.1:26001/mutate"}}]
    by_url = listed({"metadata": {"name": "zz-bursar"}, "webhooks": called})
    beside = replace(SOUND, workloads=[listed(), listed()], mutating=by_url, static_schedulers=listed())
    beside = replace(beside, is_by_address=True, governs_nothing=False)

    found = results(beside)

    assert {each.level for each in found} == {"ok"}
    ((level, sentence),) = about(beside, "roles")
    assert (level, sentence.endswith("calls the webhook at 127.0.0.1:26001")) == ("ok", True)
    for other in (replace(beside, is_by_address=False), replace(beside, mutating=SOUND.mutating)):
        assert "bursar-webhook" in {each.subject for each in results(other) if each.level == "error"}


def test_the_ledgers_word_that_it_governs_nothing_counts_before_the_arguments_of_its_workload() -> None:
    said = {
        each.subject for each in results(replace(alone(), governs_nothing=False)) if each.level == "error"
    }
    assert "bursar-webhook" in said
    workload_alone = replace(alone(), workloads=[listed(workload("bursar-timekeeper")), listed()])
    assert {each.level for each in results(replace(workload_alone, governs_nothing=True))} == {"ok"}


@pytest.mark.parametrize(
    "where",
    [
        SOUND,
        alone(),
        replace(SOUND, workloads=[listed(), listed()], is_by_address=True, governs_nothing=True),
    ],
    ids=["governing", "alone", "outside"],
)
def test_each_budget_entry_with_a_mistake_is_an_error(where: Facts) -> None:
    found = about(replace(where, broken=["ConfigMap bursar-budgets: team-a, line 1"]), "budget entries")

    assert found == [("error", "ConfigMap bursar-budgets: team-a, line 1")]


@pytest.mark.parametrize(
    ("changes", "subject", "command"),
    [
        (
            {"broken": ["a mistake: ConfigMap team-budgets: team-a, line 1, gpuHours: it is no number"]},
            "budget entries",
            "kubectl edit configmap team-budgets -n bursar-system",
        ),
        (
            {"findings": NotReadable("Error (Forbidden): it is forbidden")},
            "charges",
            "use an account that may",
        ),
        ({"findings": NotReadable("no account\nMake one")}, "charges", "Make one"),
        ({"findings": NotReadable("away", is_away=True)}, "charges", "mend the timekeeper first"),
        ({"findings": NotReadable("no route")}, "charges", "mend that first"),
    ],
)
def test_a_command_names_what_it_is_about(changes: dict[str, Any], subject: str, command: str) -> None:
    (found,) = [each for each in results(replace(SOUND, **changes)) if each.subject == subject]

    assert found.command.startswith(command)


def test_an_account_that_was_never_made_is_made_by_the_sample() -> None:
    reason = 'kubectl create: failed to create token: serviceaccounts "bursar-admin" not found\nA token'
    (found,) = [
        each
        for each in results(replace(SOUND, readiness=NotReadable(reason)))
        if each.subject == "timekeeper"
    ]

    assert (found.level, found.sentence) == ("unknown", reason.splitlines()[0])
    assert found.command.startswith("kubectl apply --server-side -f deploy/samples/administrator.yaml")


@pytest.mark.parametrize(
    ("minor", "warned", "noted"),
    [
        (
            33,
            ["1.34: the policies on device claims", "1.35: a Binding puts no labels"],
            ["1.36: deploy/samples", "1.37: API servers read no"],
        ),
        (34, ["1.35: a Binding puts no labels"], ["1.36: deploy/samples", "1.37: API servers read no"]),
        (35, [], ["1.36: deploy/samples", "1.37: API servers read no"]),
        (36, [], ["1.37: API servers read no"]),
        (37, [], []),
    ],
)
def test_what_an_older_kubernetes_lacks_is_named(minor: int, warned: list[str], noted: list[str]) -> None:
    workloads = [listed(*ROLES[:-1], second_scheduler(f"1.{minor}.1")), listed(agent())]
    found = results(replace(SOUND, version=json.dumps({"minor": str(minor)}), workloads=workloads))

    lacking = [each for each in found if each.subject == "API server"][1:]
    for level, wanted in (("warning", warned), ("ok", noted)):
        sentences = [each.sentence for each in lacking if each.level == level]
        assert len(sentences) == len(wanted)
        for sentence, text in zip(sentences, wanted, strict=True):
            assert f"it is older than {text}" in sentence
    assert len(lacking) == len(warned) + len(noted)


def test_a_patched_control_plane_needs_no_second_kube_scheduler() -> None:
    found = results(
        replace(
            SOUND,
            workloads=[listed(*ROLES[:-1], workload("bursar-extender")), listed(agent())],
            static_schedulers=listed(static_pod("cp-1", True), static_pod("cp-2", True)),
        )
    )

    assert {each.level for each in found} == {"ok"}
    assert "bursar-scheduler" not in {each.subject for each in found}


def test_an_agent_without_the_driver_gets_the_runtime_class_that_is_there() -> None:
    blind = replace(SOUND, findings=on_nodes("silent-agent"))

    (found,) = [each for each in results(blind) if each.subject == "runtime"]

    body = json.loads(found.command.partition("-p '")[2].rstrip("'"))
    assert body == {"spec": {"template": {"spec": {"runtimeClassName": "nvidia"}}}}


KEY = "nvidia.com/gpu"
TOLERATED = workload("bursar-webhook")
TOLERATED["spec"]["template"] = {"spec": {"containers": [{"args": [f"--gpu-node-taint={KEY}"]}]}}
WITH_TAINT = [listed(TOLERATED, *ROLES[1:]), listed(agent())]


def gpu_node(name: str, *taints: str) -> dict[str, Any]:
    """A node of 64 CPUs and four cards."""
    cards = json.dumps({"cards": [{"uuid": f"GPU-{at}"} for at in range(4)]})
    return {
        "metadata": {"name": name, "annotations": {"bursar.dev/inventory": cards}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule", "value": "present"} for key in taints]},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi"}},
    }


def test_a_gpu_node_without_the_taint_that_gpu_pods_tolerate_is_named_with_the_command() -> None:
    nodes = listed(gpu_node("g", KEY), gpu_node("h"), node("cpu", inventory=False))

    found = {each.subject: each for each in results(replace(SOUND, nodes=nodes, workloads=WITH_TAINT))}
    sound = results(replace(SOUND, nodes=listed(gpu_node("g", KEY)), workloads=WITH_TAINT))

    assert found["taint of GPU nodes"].sentence.startswith(f"no taint {KEY} on h:")
    assert found["taint of GPU nodes"].command.startswith(f"kubectl taint nodes h {KEY}=present:NoSchedule")
    assert {each.level for each in sound} == {"ok"}


def test_a_taint_that_gpu_pods_get_no_toleration_of_is_named() -> None:
    (found,) = [
        each
        for each in results(replace(SOUND, nodes=listed(gpu_node("g", KEY))))
        if each.subject == "taint of GPU nodes"
    ]

    assert found.level == "warning"
    assert "GPU pods get no toleration" in found.sentence


def test_policies_that_only_warn_by_choice_are_named_and_are_no_fault() -> None:
    found = results(replace(SOUND, policy_bindings=bindings("bursar-privileged", "bursar-node-access")))

    assert {each.level for each in found} == {"ok"}
    (said,) = [each.sentence for each in found if each.subject == "policy bindings"]
    assert said.endswith("are there; only warning: bursar-node-access, bursar-privileged")


def test_the_policies_that_must_refuse_are_those_that_no_value_of_the_chart_lets_warn() -> None:
    schema = json.loads((MANIFESTS.parent / "chart" / "values.schema.json").read_text())
    switched = schema["properties"]["policies"]["properties"]["warn"]["items"]["enum"]

    assert sorted([*switched, *OF_OUR_OWN_FIELDS]) == sorted(POLICIES)


def test_the_policies_are_those_of_the_manifests() -> None:
    names = {
        each["metadata"]["name"]
        for each in reading.documents()
        if each["kind"] == "ValidatingAdmissionPolicy"
    }

    assert names == set(POLICIES)
    labelled = [
        each["metadata"].get("labels", {}).get("app.kubernetes.io/part-of")
        for each in reading.documents()
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
    assert {"deployment/bursar-scheduler", "gpu-budgets"} <= {
        word for each in commands for word in each.split()
    }
    assert {each.split()[3] for each in commands if each.startswith("kubectl logs -n")} == {"gpu-budgets"}


def by_helm(each: dict[str, Any]) -> dict[str, Any]:
    """An object of a release of Helm."""
    release = {"meta.helm.sh/release-name": "gpus", "meta.helm.sh/release-namespace": "kube-system"}
    return {**each, "metadata": {**each["metadata"], "annotations": release}}


@pytest.mark.parametrize(
    ("case", "setting"),
    [
        ("a policy is missing", ""),
        ("no webhook", ""),
        ("no classes", ""),
        ("a newer kube-scheduler", " --set scheduler.tag="),
        ("no extender", ""),
    ],
)
def test_where_helm_installed_bursar_helm_mends_it(case: str, setting: str) -> None:
    changes = {"workloads": SOUND.workloads, **CASES[case][0]}
    workloads = [listed(*map(by_helm, each["items"])) for each in changes["workloads"]]

    (bad,) = [
        each for each in results(replace(SOUND, **{**changes, "workloads": workloads})) if each.level != "ok"
    ]

    upgrade = "helm upgrade gpus deploy/chart -n kube-system --reset-then-reuse-values"
    assert bad.command.startswith(upgrade + setting)
    assert "deploy/manifests" not in bad.command


def test_the_name_of_a_release_is_one_word_of_its_command() -> None:
    release = {"meta.helm.sh/release-name": "a;b", "meta.helm.sh/release-namespace": "$(c)"}
    webhook = workload("bursar-webhook")
    webhook["metadata"] |= {"annotations": release}
    workloads = [listed(webhook, *ROLES[1:]), listed(agent())]

    (bad,) = [
        each for each in results(replace(SOUND, workloads=workloads, policies=named())) if each.level != "ok"
    ]
    assert bad.command.startswith("helm upgrade 'a;b' deploy/chart -n '$(c)' ")


def test_nodes_are_labelled_as_the_agents_select_them() -> None:
    own = agent() | {"spec": {"template": {"spec": {"nodeSelector": {"pool": "gpus"}}}}}
    pooled = replace(SOUND, findings=on_nodes("no-agent"), workloads=[listed(*ROLES), listed(own)])

    (bad,) = [each for each in results(pooled) if each.level != "ok"]

    assert bad.sentence == "no inventory on a, b: no agent runs there"
    assert bad.command == "kubectl label node a pool=gpus (docs/node-agent.md)"


@pytest.mark.parametrize("code", CATALOGUE)
def test_each_finding_has_a_command_of_what_its_sentence_names(code: str) -> None:
    kind = CATALOGUE[code]
    figures = {name: name for _, name, _, _ in Formatter().parse(kind.sentence) if name}
    times = dict.fromkeys(figures.keys() & {"since", "until", "after"}, 60_000)
    found = RoleFinding(code, {**figures, "node": "a", **times})

    told = [each for each in results(replace(SOUND, findings=shown(found))) if each.subject == kind.about]

    (mended,) = [each for each in told if each.sentence == found.sentence]
    assert (mended.level, bool(mended.command)) == (kind.level, kind.level != "ok")
    assert "read docs/troubleshooting.md" not in mended.command
    assert set(re.findall(r"{(.*?)}", mended.command)) <= {"resource: MODEL"}


def said_of_nodes(**changes: Any) -> list[tuple[str, str]]:
    found = results(replace(SOUND, **changes))
    return [(each.level, each.sentence) for each in found if each.subject == "nodes"]


def test_nodes_that_may_not_be_read_are_said() -> None:
    found = results(replace(SOUND, nodes=NotReadable("forbidden")))

    assert [(each.level, each.subject) for each in found if each.level != "ok"] == [
        ("unknown", "taint of GPU nodes")
    ]


def test_a_list_that_is_lacking_old_or_cut_is_said() -> None:
    older = {"findings": [row for row in found_of()["findings"] if row["code"] != "inventories"]}
    silent = "the extender has posted no findings: it is older, does not lead, or is away"

    assert said_of_nodes(findings=older) == [("unknown", silent)]
    assert said_of_nodes(findings=older, governs_nothing=True) == []
    assert said_of_nodes(findings=shown(age_ms=120_000)) == []
    assert said_of_nodes(findings=shown(age_ms=180_000)) == [
        ("unknown", "the extender's findings are 3m0s old")
    ]
    assert said_of_nodes(findings=shown(more={"closed-node": 7})) == [
        ("warning", "the same (closed-node) holds 7 times more")
    ]


def test_what_a_newer_role_finds_is_printed() -> None:
    newer = {"code": "new", "level": "warning", "about": "nodes", "figures": {}, "sentence": "x is y"}
    answer = shown() | {"findings": [newer, newer | {"code": "closed-node"}]}

    found = [each for each in results(replace(SOUND, findings=answer)) if each.subject == "nodes"]

    assert [(each.sentence, each.command) for each in found] == [
        ("x is y", "read docs/troubleshooting.md")
    ] * 2


def test_a_mended_configuration_is_read_by_a_restart() -> None:
    found = results(replace(SOUND, **CASES["no extender"][0]))

    (bad,) = [each for each in found if each.level == "error"]
    assert bad.command.endswith("; kubectl rollout restart -n bursar-system deployment/bursar-scheduler")


def test_a_release_of_helm_gets_the_runtime_class_as_a_value() -> None:
    blind = replace(
        SOUND,
        findings=on_nodes("silent-agent"),
        workloads=[listed(*map(by_helm, ROLES)), listed(by_helm(agent()))],
    )

    (found,) = [each for each in results(blind) if each.subject == "runtime"]

    assert found.command.endswith(" --set nodeAgent.runtimeClassName=nvidia")


def test_the_selectors_of_the_commands_are_labels_of_pods_of_the_manifests() -> None:
    labels = {
        f"{key}={value}"
        for each in reading.documents()
        for key, value in each.get("spec", {})
        .get("template", {})
        .get("metadata", {})
        .get("labels", {})
        .items()
    }
    commands = [each.command for changes, *_ in CASES.values() for each in results(replace(SOUND, **changes))]

    selected = {each.partition(" -l ")[2].split()[0].rstrip(";") for each in commands if " -l " in each}
    assert selected == {
        "app.kubernetes.io/component=certificates",
        "app.kubernetes.io/component=timekeeper",
    }
    assert selected <= labels


def test_the_roles_are_the_workloads_of_the_manifests() -> None:
    kinds = ("Deployment", "StatefulSet", "DaemonSet")

    assert {each["metadata"]["name"] for each in reading.documents() if each["kind"] in kinds} == set(
        WORKLOADS
    )


def unplaced(data: dict[str, str], second: bool = False) -> Facts:
    """The cluster with these budgets; ``second``: with the second kube-scheduler."""
    roles = ROLES if second else ROLES[:-1]
    entries = {"metadata": {"name": "bursar-budgets"}, "data": data}
    budgets = listed(entries, *WRITTEN, *([configuration()] if second else []))
    return replace(SOUND, workloads=[listed(*roles), listed(agent())], budgets=budgets, time_zone="UTC")


OFF = {"_settings": "placement: off", "team-a": "gpuHours: 1"}


def test_without_placement_no_scheduler_is_missed() -> None:
    found = results(replace(unplaced(OFF), nodes=listed(node("cpu", inventory=False))))

    assert {each.level for each in found} == {"ok"}
    said = {each.subject: each.sentence for each in found}
    assert said["kube-scheduler"] == "placement is off, so none calls the extender"
    assert (
        said["placement"] == "it is off by _settings: pods keep their scheduler, and get no cards of Bursar"
    )
    assert "bursar-scheduler" not in said


def test_a_namespace_that_is_placed_needs_the_scheduler() -> None:
    data = OFF | {"team-a": "gpuHours: 1\nplacement: on"}

    missed = {each.subject for each in results(unplaced(data)) if each.level == "error"}

    assert missed == {"bursar-scheduler", "kube-scheduler"}
    assert {each.level for each in results(unplaced(data, second=True))} == {"ok"}


def test_what_has_no_effect_without_placement_is_named() -> None:
    data = {"_settings": "timeZone: UTC", "team-a": "gpuHours: 1\nonExhausted: reclaim\nplacement: off"}

    (found,) = [each for each in results(unplaced(data, second=True)) if each.level != "ok"]

    assert (found.level, found.subject) == ("warning", "placement")
    assert found.sentence.startswith("team-a: onExhausted: reclaim acts as deprioritize")


def about(facts: Facts, subject: str) -> list[tuple[str, str]]:
    return [(each.level, each.sentence) for each in results(facts) if each.subject == subject]


def test_the_modes_of_the_cluster_and_of_namespaces_are_named_with_what_follows() -> None:
    assert about(SOUND, "modes") == [
        ("ok", f"enforce where nothing else is said: {EFFECTS['enforce']}"),
        ("ok", f"observe in team-a: {EFFECTS['observe']}"),
    ]
    for unknown in (NotReadable("refused"), None):
        assert about(replace(SOUND, modes=unknown), "modes") == []


@pytest.mark.parametrize("where", [SOUND, alone()], ids=["governing", "alone"])
def test_a_label_that_names_no_mode_is_named_with_its_namespace_and_the_words_that_do(where: Facts) -> None:
    labels = {"team-a": "observe", "team-x": "observed"}
    there = [{"metadata": {"name": name, "labels": {MODE_LABEL: word}}} for name, word in labels.items()]

    (found,) = (each for each in results(replace(where, labelled=listed(*there))) if each.level != "ok")

    assert (found.level, found.subject, found.sentence) == (
        "warning",
        "modes",
        'namespace team-x has the label bursar.dev/mode with "observed", which is no mode and says nothing: '
        "its mode is enforce; allowed: enforce, observe, meter, or no such label",
    )
    assert found.command == (
        "kubectl label namespace team-x bursar.dev/mode=observe --overwrite, or bursar.dev/mode- to remove it"
    )


def with_parameters(*objects: dict[str, Any]) -> Facts:
    """A cluster in which the policies read these."""
    others = [each for each in SOUND.budgets["items"] if "bursar-modes" not in each["metadata"]["name"]]
    return replace(SOUND, budgets=listed(*others, *objects))


MODES, OBSERVED = WRITTEN
DATA = OBSERVED["data"]


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([OBSERVED], "the ConfigMap bursar-modes does not exist, so the policies on what a pod may be judge"),
        ([MODES], "the ConfigMap bursar-modes-observed does not exist, so the policies warn nobody"),
        ([{**MODES, "data": DATA | {"team-a": "obs"}}, OBSERVED], "team-a of the ConfigMap bursar-modes is"),
        ([{**MODES, "data": {"_initial": "enforce"}}, OBSERVED], "nothing is written into the ConfigMap"),
        ([parameters()[0], OBSERVED], "bursar-modes is old: policies judge team-a by another mode"),
        ([parameters(team_a="observe", team_c="meter")[0], OBSERVED], "is old: policies judge team-c by"),
        ([parameters("meter", team_b="enforce", team_a="observe")[0], OBSERVED], "is old: policies judge na"),
        ([MODES, {**OBSERVED, "data": MODES["data"]}], "bursar-modes-observed lacks _judged: observe"),
    ],
)
def test_policies_that_cannot_know_the_modes_of_namespaces_are_an_error(
    objects: list[dict[str, Any]], said: str
) -> None:
    (found,) = (each for each in results(with_parameters(*objects)) if each.level != "ok")

    assert (found.level, found.subject) == ("error", "modes of the policies")
    assert said in found.sentence
    assert "-l app.kubernetes.io/component=timekeeper --tail=-1 | grep modes-" in found.command
    assert ("admission-modes.yaml" in found.command) == ("does not exist" in said)
    assert about(replace(with_parameters(*objects), policies=listed()), found.subject) == []


def maker(kind: str, name: str, namespace: str = "net", **spec: Any) -> dict[str, Any]:
    """A workload whose pods have these fields."""
    template = {"spec": {"containers": [{"name": "main"}], **spec}}
    body: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        body = {"jobTemplate": {"spec": body}}
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": body}


PROC: dict[str, Any] = {"volumes": [{"name": "proc", "hostPath": {"path": "/proc"}}]}
OF_GPUS: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
OF_HALVES: dict[str, Any] = {
    "containers": [{"name": "main", "resources": {"limits": {"bursar.dev/gpu-percent": "150"}}}]
}
EXCLUDES = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["net"]}
BY_VALUE = {"matchConstraints": {"namespaceSelector": {"matchExpressions": [EXCLUDES]}}}


@pytest.mark.parametrize(
    ("makers", "fields", "said"),
    [
        (
            [maker("DaemonSet", "cni", **PROC), maker("CronJob", "scan", hostPID=True)],
            {"modes": {"": "observe"}},
            [
                "those of CronJob scan, DaemonSet cni in net would be refused in mode enforce, also after a"
                " restart (host-path, host-pid)"
            ],
        ),
        (
            [maker("DaemonSet", "cni", **PROC)],
            {},
            ["those of DaemonSet cni in net are refused, also after a restart (host-path)"],
        ),
        ([maker("Deployment", "fine"), maker("Deployment", "gpus", **OF_GPUS)], {}, []),
        (
            [maker("Deployment", "gpus", hostPID=True, **OF_GPUS), maker("CronJob", "bad", **OF_HALVES)],
            {"modes": {"": "observe"}},
            [
                "those of CronJob bad, Deployment gpus in net would be refused in mode enforce, also after a"
                " restart (host-pid, share-range)"
            ],
        ),
        ([maker("DaemonSet", "cni", "kube-system", **PROC)], {}, []),
        ([maker("DaemonSet", "cni", **PROC)], {"exempt": named("net")}, []),
        (
            [maker("DaemonSet", "cni", **PROC)],
            {"policies": listed({"metadata": {"name": "bursar-ways-around"}, "spec": BY_VALUE})},
            [],
        ),
        ([{"kind": "DaemonSet", "metadata": {"name": "odd", "namespace": "net"}}], {}, []),
    ],
)
def test_workloads_whose_next_pods_the_policies_keep_away_are_named(
    makers: list[dict[str, Any]], fields: dict[str, Any], said: list[str]
) -> None:
    found = results(replace(SOUND, makers=listed(*makers), **fields))

    those = [result for result in found if result.subject == "new pods"]
    assert [result.sentence for result in those] == said
    assert all("kubectl label namespace net bursar.dev/exempt=true" in result.command for result in those)
    assert {result.level for result in those} <= {"warning"}


def whole(kind: str, namespace: str, **labels: str) -> dict[str, Any]:
    """A workload of whole cards, with variables of a Secret, in a queue of Kueue by its labels."""
    from_secret = [{"secretRef": {"name": "s"}}]
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    raw = maker(kind, "whole", namespace, containers=[container | {"envFrom": from_secret}])
    raw["metadata"]["labels"] = labels
    return raw


QUEUE = {"kueue.x-k8s.io/queue-name": "q"}


def test_what_kueue_counts_needs_a_node_of_the_plugin_where_bursar_takes_whole_cards() -> None:
    takes = listed(
        {"metadata": {"name": "bursar-budgets"}, "data": {"team-a": "gpuHours: 1\nwholeCards: bursar"}},
        *WRITTEN,
    )
    makers = listed(*(whole("Deployment", name, **QUEUE) for name in ("team-a", "team-b")))
    facts = replace(SOUND, budgets=takes, makers=makers, nodes=listed(node("n1")))
    of_plugin = node("n2")
    of_plugin["status"]["capacity"]["nvidia.com/gpu"] = "8"

    def said(facts: Facts) -> list[str]:
        return [
            each.sentence for each in results(facts) if each.level == "warning" and "Kueue" in each.sentence
        ]

    assert said(facts) == [
        "Kueue counts nvidia.com/gpu, so pods of Deployment whole in team-a keep it, and no node advertises"
        " it"
    ]
    assert said(replace(facts, nodes=listed(node("n1"), of_plugin))) == []
    assert said(replace(facts, makers=listed(whole("Deployment", "team-a")))) == []


def test_variables_of_a_secret_beside_whole_cards_that_bursar_gives_are_no_fault() -> None:
    takes = listed(
        {"metadata": {"name": "bursar-budgets"}, "data": {"team-a": "gpuHours: 1\nwholeCards: bursar"}},
        *WRITTEN,
    )
    makers = (
        whole("Deployment", "team-a"),
        whole("Deployment", "team-b"),
        whole("StatefulSet", "team-a", **QUEUE),
    )

    found = results(replace(SOUND, budgets=takes, makers=listed(*makers)))

    assert [re.split(" are | would ", each.sentence)[0] for each in found if each.subject == "new pods"] == [
        "those of StatefulSet whole in team-a",
        "those of Deployment whole in team-b",
    ]


def test_a_ledger_alone_names_what_would_be_refused_and_finds_no_fault_in_it() -> None:
    many = [maker("DaemonSet", "cni", f"net-{number}", **PROC) for number in range(7)]
    metering = replace(alone(), makers=listed(*many), modes={"": "meter"})

    those = [result for result in results(metering) if result.subject == "new pods"]
    found = [(result.level, result.sentence) for result in those]

    assert [level for level, _ in found] == ["ok"] * 6
    assert found[-1][1] == "the same holds in 2 more namespaces"


def test_the_time_zone_is_that_of_an_account_with_a_period() -> None:
    """An account without one, as that of Bursar's namespace, is in UTC."""
    unlimited = {"period": {"timeZone": "UTC", "to": None}}
    monthly = {"period": {"timeZone": "Asia/Tokyo", "to": 1}}

    assert _zone({"budgets": [unlimited, monthly], "groups": []}) == "Asia/Tokyo"
    assert _zone({"budgets": [unlimited], "groups": [monthly]}) == "Asia/Tokyo"
    assert _zone({"budgets": [unlimited], "groups": []}) is None
    assert about(replace(SOUND, time_zone=None), "time zone") == []


def quota(name: str = "gpus", of: str = "requests.nvidia.com/gpu", **spec: Any) -> dict[str, Any]:
    """A ResourceQuota of team-a."""
    return {"metadata": {"name": name, "namespace": "team-a"}, "spec": {"hard": {of: "2"}, **spec}}


def scoped(operator: str, *values: str, scope: str = "PriorityClass") -> dict[str, Any]:
    term = {"scopeName": scope, "operator": operator} | ({"values": list(values)} if values else {})
    return {"scopeSelector": {"matchExpressions": [term]}}


NORMAL, LOWER = "gpu-default-priority", "gpu-lower-priority"


@pytest.mark.parametrize(
    ("quotas", "passing", "named"),
    [
        ([quota(**scoped("DoesNotExist"))], f"{NORMAL} or {LOWER}", "gpus"),
        ([quota(**scoped("In", "batch"))], f"{NORMAL} or {LOWER}", "gpus"),
        ([quota(of="requests.bursar.dev/gpu-percent", **scoped("In", NORMAL))], LOWER, "gpus"),
        ([quota(**scoped("NotIn", NORMAL))], NORMAL, "gpus"),
        ([quota(**scoped("In", "batch")), quota("all")], f"{NORMAL} or {LOWER}", "gpus"),
        ([quota("a", **scoped("In", NORMAL)), quota("b", **scoped("In", LOWER))], "", ""),
        ([quota(**scoped("In", "batch", NORMAL, LOWER))], "", ""),
        ([quota(**scoped("Exists"))], "", ""),
        ([quota(scopes=["PriorityClass"])], "", ""),
        ([quota()], "", ""),
        ([quota(of="pods", **scoped("In", "batch"))], "", ""),
        ([quota(**scoped("Exists", scope="BestEffort"))], "", ""),
    ],
)
def test_a_quota_that_gpu_pods_pass_by_the_class_that_they_get_is_named(
    quotas: list[dict[str, Any]], passing: str, named: str
) -> None:
    found = [said for said in results(replace(SOUND, quotas=listed(*quotas))) if said.level != "ok"]

    assert [said.sentence for said in found] == (
        [
            f"GPU pods of team-a get the class {passing} in mode enforce, and pass the ResourceQuota {named},"
            " for its scopeSelector leaves the class out"
        ]
        if passing
        else []
    )
    if passing:
        assert found[0].command == (
            "name the class there, or priorityClasses: keep in the budget's entry"
            " (docs/governed-pods.md#resourcequotas)"
        )


@pytest.mark.parametrize(
    ("entries", "passing"),
    [
        ({"team-a": "gpuHours: 1\npriorityClasses: keep"}, ""),
        ({"_defaults": "gpuHours: 1\npriorityClasses: keep"}, ""),
        ({"team-a": "gpuHours: 1\ngroup: lab", "_group.lab": "gpuHours: 1\npriorityClasses: keep"}, ""),
        ({"_settings": "timeZone: Asia/Tokyo\npriorityClasses: {inBudget: batch, overBudget: batch}"}, ""),
        ({"team-a": "gpuHours: 1\npriorityClasses: {inBudget: batch}"}, LOWER),
    ],
)
def test_the_classes_of_the_entry_are_compared_with_its_quotas(entries: dict[str, str], passing: str) -> None:
    data = {"_settings": "timeZone: Asia/Tokyo", "a": "gpuHours: 1"} | entries
    made = {"metadata": {"name": "bursar-budgets"}, "data": data}
    facts = replace(SOUND, budgets=listed(made, configuration(), *WRITTEN))

    found = results(replace(facts, quotas=listed(quota(**scoped("In", "batch")))))

    assert [said.sentence.split(" in mode")[0] for said in found if said.level != "ok"] == (
        [f"GPU pods of team-a get the class {passing}"] if passing else []
    )


def test_a_pod_that_is_refused_for_want_of_a_quota_of_its_class_is_shown_in_the_api_servers_words() -> None:
    words = (
        'pods "w-x" is forbidden: insufficient quota to match these scopes:'
        " [{PriorityClass In [gpu-default-priority]}]"
    )
    events = [
        {"metadata": {"name": str(number), "namespace": "team-a"}, "message": f"Error creating: {text}"}
        for number, text in enumerate(("exceeded quota: gpus", words, words))
    ]

    found = [said for said in results(replace(SOUND, failed_creates=listed(*events))) if said.level != "ok"]

    assert [(said.level, said.sentence) for said in found] == [
        ("warning", f"refused in team-a: Error creating: {words}")
    ]
    exempt = replace(SOUND, exempt=named("team-a"), quotas=listed(quota(**scoped("DoesNotExist"))))
    assert [said.level for said in results(exempt) if said.level != "ok"] == []
    away = NotReadable('resourcequotas is forbidden: User "bo" cannot list')
    assert [said.level for said in results(replace(SOUND, quotas=away)) if said.level != "ok"] == ["unknown"]


def test_config_maps_of_budgets_that_do_not_count_are_named() -> None:
    """A generated name without the label; and of two generations the older one."""

    def made(name: str, created: str, **labels: str) -> dict[str, Any]:
        metadata = {"name": name, "creationTimestamp": created, "labels": labels}
        return {"kind": "ConfigMap", "metadata": metadata, "data": {"team-a": "gpuHours: 1"}}

    read = {"bursar.dev/budgets": "true"}
    maps = [
        made("bursar-budgets-7h2k", "2026-11-01T00:00:00Z"),
        made("teams-9m4f7b2c5k", "2026-11-02T00:00:00Z", **read),
        made("teams-2c7b8d9f4g", "2026-11-03T00:00:00Z", **read),
        made("teams", "2026-11-01T00:00:00Z", **read),
        {"metadata": {"name": "bursar-settings"}, "data": {"_settings": "mode: observe"}},
    ]
    known = replace(SOUND, budgets=listed(*maps), namespaces="namespace/team-a")

    said = [(result.sentence, result.command) for result in results(known) if result.subject == "budgets"]

    page = "(docs/budget-settings.md)"
    assert said[:3] == [
        (
            "ConfigMap bursar-budgets-7h2k is not read: give it the label bursar.dev/budgets=true, or a"
            " name without ending (bursar-mode, bursar-settings, bursar-budgets)",
            f"kubectl label configmap bursar-budgets-7h2k -n bursar-system bursar.dev/budgets=true {page}",
        ),
        (
            "ConfigMap teams-9m4f7b2c5k does not count: one with another ending of this name is newer",
            "kubectl delete configmap teams-9m4f7b2c5k -n bursar-system",
        ),
        (
            "_settings: mode: it is of the ConfigMap bursar-mode now; here it counts only until that one has"
            " taken effect",
            "kubectl edit configmap bursar-settings -n bursar-system",
        ),
    ]


def test_what_mode_meter_should_not_have_is_named() -> None:
    ours = {"labels": {"app.kubernetes.io/part-of": "bursar"}}

    def there(kind: str, *names: str) -> list[dict[str, Any]]:
        return [{"kind": kind, "metadata": {"name": name, **ours}} for name in names]

    foreign = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "others"}}
    metering = alone()
    left = replace(
        metering,
        mutating=listed(*there("MutatingWebhookConfiguration", "bursar"), foreign),
        validating=there("ValidatingWebhookConfiguration", "zz-bursar")[0],
        policies=listed(*there("ValidatingAdmissionPolicy", "bursar-a", "bursar-b")),
        policy_bindings=NotReadable("forbidden"),
        workloads=[*metering.workloads, listed(*there("DaemonSet", "bursar-node"))],
    )

    before = results(metering)
    assert [
        (result.level, result.sentence, result.command) for result in results(left) if result not in before
    ] == [
        (
            "error",
            "mode meter installs nothing of this, and it goes on to judge and change pods: 1"
            " ValidatingWebhookConfiguration, 1 MutatingWebhookConfiguration, 2 ValidatingAdmissionPolicy, 1"
            " DaemonSet",
            "prune them as docs/gitops.md says",
        )
    ]
