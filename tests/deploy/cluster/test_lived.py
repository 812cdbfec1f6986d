"""The main job lived through once, each process with its own account's token, while the API server logs who
calls what: nobody is refused, and every right that the manifests give is used."""

import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import yaml

from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.scheduler import GPU_PROFILE
from deploy.local.stack import Stack
from tests.deploy.reading import AGENTS, NAMESPACE, SAMPLES, Json, container, of_kind
from tests.deploy.rights import Call, Right, granted, logged
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import at_once
from tests.support.worker_control_plane import Lender
from timekeeper.core.budgets import reader as budgets
from timekeeper.core.names import API_SERVICE
from timekeeper.settler.mode_parameters import CONFIG_MAPS
from timekeeper.settler.spent_parameters import CONFIG_MAP as SPENT

# by account: rights that this life does not use; the first are used in tests/scheduler_ext/test_preempting
ELSEWHERE = {
    "bursar-scheduler": (
        Right("create", "pods/eviction"),
        Right("delete", "pods"),
        # gates and marks of gangs: tests/webhook/cluster/test_updates, tests/story/cluster/test_gangs
        Right("patch", "pods"),
        # of a gang that lacks members, and where the API server has PodGroups:
        # tests/story/cluster/test_gang_controllers, tests/story/cluster/test_pod_groups
        Right("get", "jobs", "batch"),
        Right("get", "statefulsets", "apps"),
        *(Right(verb, "podgroups", "scheduling.k8s.io") for verb in ("list", "watch")),
    ),
    "bursar-timekeeper": (
        Right("create", "gpubudgets", "bursar.dev"),  # an apply that creates is logged as a patch
        # pods that an exhausted budget ends: used in tests/story/cluster
        Right("delete", "pods"),
        Right("patch", "pods/status"),
        # of a claim that is not made, and of pods that share one: tests/timekeeper/cluster/test_claims
        Right("list", "events"),
        Right("list", "poddisruptionbudgets", "policy"),
        # the taint of a reclaimed device: tests/webhook/cluster/test_claim_reclaim
        *(Right(verb, "devicetaintrules", "resource.k8s.io") for verb in ("list", "create", "delete")),
        # an apply that creates is logged as a patch
        *(Right("create", "configmaps", "", NAMESPACE, name) for name in (*CONFIG_MAPS, SPENT)),
    ),
    # used in tests/webhook/cluster/test_device_classes
    "bursar-certificates": (
        Right("create", "configmaps", "", NAMESPACE, "bursar-device-classes"),
        # tests/cli/cluster/test_aggregated
        Right("patch", "apiservices", "apiregistration.k8s.io", name=API_SERVICE),
    ),
}
SERVERS = {
    "bursar-webhook/webhook": "webhook_url",
    "bursar-timekeeper/timekeeper": "timekeeper_url",
    "bursar-scheduler/extender": "extender_url",
}
PODS = "/api/v1/namespaces/team-a/pods"


@dataclass(frozen=True, slots=True)
class Lived:
    """A stack in which it all has happened, and the calls that its accounts made meanwhile."""

    stack: Stack
    sample: Json
    calls: list[Call]
    reviews: list[Json]


@pytest.fixture(scope="module")
def lived(lender: Lender, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    log = tmp_path_factory.mktemp("audit") / "audit.log"
    before = lender.audit_log.stat().st_size if lender.audit_log.exists() else 0
    with lender.lent() as cp, Stack(cp) as stack:
        sample = live(stack)
        log.write_bytes(lender.audit_log.read_bytes()[before:])
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        reviews = [
            entry for entry in entries if entry.get("objectRef", {}).get("resource") == "subjectaccessreviews"
        ]
        yield Lived(stack, sample, logged(log), [entry["responseObject"] for entry in reviews])


def live(stack: Stack) -> Json:
    """A budget that another ConfigMap has set already, which no review of one object can see; a pod that gets
    half a card, one that waits for that card by policy `load`, gets it, and is evicted for it uses more
    memory than it was given; a report; and certificates renewed; a
    controller whose pods are refused. Gives the sample pod as it was bound."""
    apply(stack, (SAMPLES / "budgets.yaml").read_text())
    apply(stack, yaml.safe_dump(budget_map("mistaken", {"team-a": "gpuHours: 7\n"})))
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("n1", cards=2))
    create_namespace(stack.cp, "team-a")
    stack.wait("an Event about the mistake", lambda: events(stack, "mistaken"))
    apply(stack, (SAMPLES / "half-a-card.yaml").read_text())
    stack.wait("the sample to run", lambda: phase(stack, "half-a-card") == "Running")
    sample: Json = stack.cp.api.call("GET", f"{PODS}/half-a-card")
    # The other card is held too, by more than a half. Each has less free than two thirds, but the node's sums
    # allow them, so that kube-scheduler asks the extender whether or not the webhook knows the cards already.
    apply(stack, yaml.safe_dump(pod("beside", {"bursar.dev/gpu-percent": "60"})))
    stack.wait("the pod beside it to run", lambda: phase(stack, "beside") == "Running")
    apply(stack, yaml.safe_dump(waiter()))
    stack.wait(
        "the second to wait",
        lambda: "no card has" in stack.cp.kubectl("get", "events", "-n", "team-a").stdout,
    )
    stack.wait("the cards' use to be asked for", lambda: "usage-updated" in stack.log("extender"))
    free_the_card(stack)
    stack.wait("the second to run", lambda: phase(stack, "waiter") == "Running")
    evict_for_overuse(stack)
    hold_and_release(stack)
    bind_a_pod_that_is_not_there(stack)
    refuse_a_controllers_pods(stack)
    close_a_node(stack)
    reader = stack.reader_token()
    stack.get("/v1/usage", reader)
    stack.get("/metrics", reader, stack.read_url)
    stack.get("/metrics", reader, stack.webhook_url)
    simulate(stack, reader)
    renew(stack)
    return sample


def simulate(stack: Stack, reader: str) -> None:
    """A pod that does not exist, asked about by the reader."""
    body = {"version": 1, "namespace": "team-a", "manifest": waiter()}
    headers = {"Authorization": f"Bearer {reader}", "Content-Type": "application/json"}
    url = f"{stack.timekeeper_url}/v1/simulate"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=LONGEST_S, context=stack.tls_context()) as answered:
        assert [each["name"] for each in json.loads(answered.read())["pods"]] == ["waiter"]


def budget_map(name: str, data: dict[str, str]) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"bursar.dev/budgets": "true"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def waiter() -> Json:
    """A pod of two thirds of a card's memory."""
    waits = pod("waiter", {"bursar.dev/gpu-memory": "54000"})
    waits["metadata"]["annotations"] = {"bursar.dev/policy": "load"}
    return waits


def pod(name: str, limits: dict[str, str], namespace: str = "team-a") -> Json:
    spec = {"containers": [{"name": "main", "image": "example", "resources": {"limits": limits}}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def apply(stack: Stack, text: str) -> None:
    kubectl(stack.cp, "apply", "--server-side", "-f", "-", input=text)


def phase(stack: Stack, name: str) -> str:
    return str(stack.cp.api.call("GET", f"{PODS}/{name}")["status"]["phase"])


def events(stack: Stack, name: str) -> bool:
    about = f"involvedObject.name={name}"
    return bool(
        stack.cp.kubectl("get", "events", "-n", NAMESPACE, f"--field-selector={about}", "-o", "name").stdout
    )


def free_the_card(stack: Stack) -> None:
    """While kube-scheduler is away, or it might try the waiting pod of its own accord before the extender has
    woken it."""
    stack.cp.stop_scheduler("gpu-scheduler")
    stack.cp.kubectl("delete", "pod", "half-a-card", "-n", "team-a", "--grace-period=1")
    stack.wait("the extender to wake the second", lambda: "woken" in stack.log("extender"))
    stack.cp.start_scheduler("gpu-scheduler", profiles=(GPU_PROFILE,), extender_url=stack.extender_url)


def evict_for_overuse(stack: Stack) -> None:
    """By the word of the node's agent that the pod uses more memory of its card than it was given."""
    entry = "gpuHours: unlimited\noveruse: evict\noveruseGrace: 0s\n"
    apply(stack, yaml.safe_dump(budget_map("overuse", {"_defaults": entry})))
    agent = {
        "metadata": {"name": "agent-n1"},
        "spec": {
            "nodeName": "n1",
            "serviceAccountName": "bursar-node",
            "containers": [{"name": "agent", "image": "example"}],
        },
    }
    made = stack.cp.api.call("POST", f"/api/v1/namespaces/{AGENTS}/pods", agent)
    token = stack.token(AGENTS, "bursar-node", audience="bursar", pod=made)
    metadata = stack.cp.api.call("GET", f"{PODS}/waiter")["metadata"]
    (card,) = json.loads(metadata["annotations"]["bursar.dev/devices"])["containers"]["main"]
    over = {"uuid": card["uuid"], "utilisation": 0, "memory_mib": card["memory_mib"] + 1}
    uses = [{"age_ms": 0, "pods": [{"uid": metadata["uid"], "cards": [over]}], "cards": []}]
    body = {"version": 1, "boot": "run", "sequence": 0, "uses": uses}

    def is_evicted() -> bool:
        body["sequence"] = int(str(body["sequence"])) + 1
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(
            f"{stack.timekeeper_url}/v1/nodeusage", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=LONGEST_S, context=stack.tls_context()) as answer:
            assert answer.status == 200
        return "GPUMemoryEviction" in stack.cp.kubectl("get", "events", "-n", "team-a").stdout

    stack.wait("an Event about the eviction", is_evicted, "timekeeper")
    stack.wait("the pod to go", lambda: not stack.exists(f"{PODS}/waiter"))


def hold_and_release(stack: Stack) -> None:
    """A pod that waits for its budget, until there is one."""
    path = create_namespace(stack.cp, "team-e")
    name, entry = "held", "gpuHours: {}\nonExhausted: hold\n"
    asked = pod(name, {"bursar.dev/gpu-memory": "54000"}, "team-e")
    apply(stack, yaml.safe_dump(budget_map("held", {"team-e": entry.format(0)})))

    def is_held(where: str, method: str = "POST") -> bool:
        made = stack.cp.api.call(method, where, asked if method == "POST" else None)
        return bool(made["spec"].get("schedulingGates"))

    stack.wait("both workers to hold", lambda: all(at_once(lambda: is_held(f"{path}?dryRun=All"))), "webhook")
    assert is_held(path)
    apply(stack, yaml.safe_dump(budget_map("held", {"team-e": entry.format(9)})))
    stack.wait("its release", lambda: not is_held(f"{path}/{name}", "GET"), "timekeeper")


def bind_a_pod_that_is_not_there(stack: Stack) -> None:
    """So that the extender has to ask the API server about it."""
    asked = {"PodNamespace": "team-a", "PodName": "nobody", "PodUID": "none", "Node": "n1"}
    request = urllib.request.Request(f"{stack.extender_url}/bind", json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
        assert json.load(answer)["Error"]


def refuse_a_controllers_pods(stack: Stack) -> None:
    """By a budget of nothing: the webhook says so in an Event on the ReplicaSet."""
    apply(stack, yaml.safe_dump(budget_map("spent", {"team-d": "gpuHours: 0\nonExhausted: deny\n"})))
    create_namespace(stack.cp, "team-d")
    token = stack.token(NAMESPACE, "bursar-webhook", audience="bursar")
    stack.wait(
        "the budget to be read",
        lambda: (
            stack.get("/v1/standings", token)["namespaces"].get("team-d", {}).get("standing") == "OVER_BUDGET"
        ),
    )
    labels = {"app": "spender"}
    template = {"metadata": {"labels": labels}, "spec": waiter()["spec"]}
    replicas = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": "spender"}, "spec": replicas}
    stack.cp.api.call("POST", "/apis/apps/v1/namespaces/team-d/replicasets", body)

    def is_told() -> bool:
        """A pod that was created before the webhook's next poll is deleted, so that there is another."""
        stack.cp.kubectl("delete", "pods", "-n", "team-d", "--all", "--wait=false")
        return "OverBudget" in stack.cp.kubectl("get", "events", "-n", "team-d").stdout

    stack.wait("an Event about the refusal", is_told, "webhook")


def close_a_node(stack: Stack) -> None:
    """By an inventory that cannot be read, which the extender tells in an Event on the node."""
    broken = kwok_node("n2", cards=1)
    broken["metadata"]["annotations"]["bursar.dev/inventory"] = "{"
    stack.cp.api.call("POST", "/api/v1/nodes", broken)
    stack.wait(
        "an Event about the node",
        lambda: "CardsClosed" in stack.cp.kubectl("get", "events", "-n", "default").stdout,
    )


def renew(stack: Stack) -> None:
    """The certificates made anew, as when the CA is due."""
    broken = {"data": {"ca.crt": "", "ca.key": ""}}
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/bursar-ca"
    stack.cp.api.call("PATCH", path, broken, "application/merge-patch+json")
    kubeconfig = stack.cp.kubeconfig(stack.token(NAMESPACE, "bursar-certificates"), "renewing")
    command = [sys.executable, "-m", "webhook", "certificates", "--every=1", f"--kubeconfig={kubeconfig}"]
    with (stack.folder / "renewing.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=stack.environment())
    try:
        stack.wait(
            "every Secret to be written",
            lambda: stack.log("renewing").count("event=stored secret=bursar-timekeeper-tls") == 1,
        )
    finally:
        process.terminate()
        assert process.wait(timeout=LONGEST_S) == 0, stack.log("renewing")


def test_no_call_is_refused(lived: Lived) -> None:
    assert [call for call in lived.calls if call.status in (401, 403)] == []


def test_every_call_is_one_that_the_manifests_own_roles_allow(lived: Lived) -> None:
    """Of the extender too, whose account has kube-scheduler's rights beside them."""
    beyond = [
        call for call in lived.calls if not any(right.covers(call.right) for right in granted(call.account))
    ]

    assert beyond == []


@pytest.mark.parametrize("account", ["bursar-certificates", "bursar-timekeeper", "bursar-scheduler"])
def test_every_right_is_used(lived: Lived, account: str) -> None:
    calls = [call.right for call in lived.calls if call.account == account]
    calls += asked(lived, f"system:serviceaccount:{NAMESPACE}:{account}")
    # what is watched is listed where the API server streams no lists: tests/runtime/process/test_large_lists
    calls += [replace(right, verb="list") for right in calls if right.verb == "watch"]
    # kube-scheduler's own, and used by it in test_scheduler
    elsewhere = ELSEWHERE.get(account, ())
    rights = [
        right for right in granted(account) if right.name != "bursar-scheduler" and right not in elsewhere
    ]

    assert calls
    assert [right for right in rights if not any(right.covers(call) for call in calls)] == []


def test_the_webhook_follows_claims_posts_events_asks_who_reads_its_metrics_and_calls_for_nothing_else(
    lived: Lived,
) -> None:
    calls = {call.right for call in lived.calls if call.account == "bursar-webhook"}
    followed = ("deviceclasses", "resourceclaims", "resourceclaimtemplates")

    assert calls == {
        *(Right("watch", resource, "resource.k8s.io") for resource in followed),
        Right("watch", "namespaces"),
        Right("watch", "configmaps", "", NAMESPACE, "bursar-device-classes"),
        Right("create", "events", "events.k8s.io", "team-d"),
        Right("create", "tokenreviews", "authentication.k8s.io"),
        Right("create", "subjectaccessreviews", "authorization.k8s.io"),
    }


def test_a_controller_whose_pods_are_refused_has_an_event_with_the_reason(lived: Lived) -> None:
    shown = lived.stack.cp.kubectl("describe", "replicaset", "spender", "-n", "team-d").stdout

    lines = [line for line in shown.splitlines() if "OverBudget" in line]
    assert lines
    told = "Namespace team-d has used its GPU budget (onExhausted: deny)"
    assert all("Warning" in line and told in line for line in lines)


def test_the_timekeeper_checks_the_webhooks_right_to_the_standings_as_the_role_grants_it(
    lived: Lived,
) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:bursar-webhook"

    assert asked(lived, user) == {right for right in granted("bursar-webhook") if right.group == "bursar.dev"}


def test_the_extender_gets_the_standings_from_the_timekeeper(lived: Lived) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:bursar-scheduler"

    assert Right("get", "standings", "bursar.dev") in asked(lived, user)
    assert "event=standings-updated" in lived.stack.log("extender")


def test_a_person_with_the_viewers_role_reads_a_report(lived: Lived) -> None:
    assert Right("get", "usage", "bursar.dev") in asked(lived, f"system:serviceaccount:{NAMESPACE}:reader")


def asked(lived: Lived, user: str) -> set[Right]:
    """What the timekeeper asked about a caller, and was told yes."""
    allowed = [each["spec"] for each in lived.reviews if each["status"].get("allowed")]
    wanted = [spec.get("resourceAttributes") for spec in allowed if spec["user"] == user]
    return {
        Right(each["verb"], each["resource"], each["group"], each.get("namespace") or "*")
        for each in wanted
        if each
    }


@pytest.mark.parametrize(("name", "url"), SERVERS.items())
@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_probe_gets_its_answer(lived: Lived, name: str, url: str, probe: str) -> None:
    told = container(name)[probe]
    base = getattr(lived.stack, url)

    if "httpGet" in told:
        assert told["httpGet"]["scheme"].lower() == base.partition(":")[0]
        assert status(lived.stack, base + told["httpGet"]["path"]) == 200
    else:
        command = [word.replace("http://127.0.0.1:8445", base) for word in told["exec"]["command"]]
        assert command != told["exec"]["command"]
        done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_probe_of_a_path_that_is_not_there_fails(lived: Lived) -> None:
    for url in SERVERS.values():
        assert status(lived.stack, f"{getattr(lived.stack, url)}/no-such-path") == 404


def test_the_paths_in_the_webhook_configurations_are_routes_of_the_webhook(lived: Lived) -> None:
    configurations = of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    for configuration in configurations:
        for each in configuration["webhooks"]:
            path = each["clientConfig"]["service"]["path"]

            assert status(lived.stack, lived.stack.webhook_url + path, b"{}") == 400, path


def test_the_sample_pod_gets_half_a_card(lived: Lived) -> None:
    annotations = lived.sample["metadata"]["annotations"]
    (half,) = json.loads(annotations["bursar.dev/devices"])["containers"]["train"]

    assert lived.sample["spec"]["schedulerName"] == "bursar-scheduler"
    assert (half["share_milli"], half["memory_mib"]) == (500, 40_960)


def test_the_sample_budgets_are_the_budgets_that_the_timekeeper_answers_with(lived: Lived) -> None:
    (sample,) = yaml.safe_load_all((SAMPLES / "budgets.yaml").read_text())
    written = budgets.read({"bursar-budgets": sample["data"]}).budgets
    token = lived.stack.token(NAMESPACE, "reader", audience="bursar")

    for namespace in ("team-a", "team-b"):
        assert lived.stack.get(f"/v1/budgets/{namespace}", token)["granted"] == written[namespace].amount


def status(stack: Stack, url: str, body: bytes | None = None) -> int:
    """The HTTP status of a GET, or of a POST with a body."""
    context: ssl.SSLContext | None = stack.tls_context() if url.startswith("https") else None
    request = urllib.request.Request(url, body)
    try:
        with urllib.request.urlopen(request, timeout=LONGEST_S, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
