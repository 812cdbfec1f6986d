"""The nine steps. Each prints its command and the real output, and checks a claim."""

import json
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from deploy.local.demo.layout import BUDGETS, SMALL_BUDGET
from deploy.local.demo.run import (
    DemoRun,
    Json,
    card_of,
    check,
    claim_template,
    claiming_pod,
    gpu_pod,
    standing_of,
)
from deploy.local.kwok_nodes import EXAMPLE_DRIVER

GPU_SECONDS = 1_000_000  # milli-GPU x milliseconds


def a_malformed_pod_is_refused(run: DemoRun) -> None:
    """Step 1."""
    run.title("Admission refuses a malformed GPU request and says how to correct it")
    manifest = gpu_pod("typo", "team-a", "big", gpu_percent="150", gpu_memory="8")
    output = run.shown("apply", "-f", "-", manifest=manifest)
    check(
        "denied the request" in output and "multiple of 100" in output,
        "refused, with all errors at once",
        output,
    )


def two_half_cards_share_one(run: DemoRun) -> None:
    """Step 2."""
    run.title("Two pods that request half a card each share one card")
    run.shown("apply", "-f", "-", manifest=gpu_pod("half-1", "team-a", "big", gpu_percent="50"))
    run.until_running("half-1")
    second_half = gpu_pod("half-2", "team-a", "big", gpu_percent="50")
    run.note("The second pod, half-2, is the same but for its name.")
    run.stack.cp.kubectl("apply", "-f", "-", input=json.dumps(second_half))
    run.until_running("half-2")
    columns = (
        "NAME:.metadata.name,NODE:.spec.nodeName,CLASS:.spec.priorityClassName,"
        r"STANDING:.metadata.annotations.bursar\.dev/standing,"
        r"CARD:.metadata.annotations.visible-devices\.bursar\.dev/train"
    )
    run.shown("get", "pods", "-n", "team-a", "-o", f"custom-columns={columns}")
    first, second = run.pod("half-1"), run.pod("half-2")
    check(card_of(first) == card_of(second) != "", "both are on one card", (card_of(first), card_of(second)))
    written = (standing_of(first), first["spec"]["priorityClassName"])
    check(
        written == ("IN_BUDGET", "gpu-default-priority"),
        "team-a is in budget, so its pods get gpu-default-priority",
        written,
    )
    check(first["spec"]["initContainers"][0]["name"] == "bursar-sidecar", "the pod has the sidecar")


def a_third_pod_waits_for_a_card(run: DemoRun) -> None:
    """Step 3, the example of Intel's GPU Aware Scheduling: the node has enough memory in total, but no card
    has."""
    run.title("Two cards of 8 GB and three pods of 5 GB: the node has 6 GB free, but no card has 5 GB")
    run.note("First the pods five-1 and five-2 are created. They are the same as five-3 but for their names.")
    for name in ("five-1", "five-2"):
        manifest = gpu_pod(name, "team-a", "small", gpu_memory="5000")
        run.stack.cp.kubectl("apply", "-f", "-", input=json.dumps(manifest))
        run.until_running(name)
    run.shown("apply", "-f", "-", manifest=gpu_pod("five-3", "team-a", "small", gpu_memory="5000"))
    sentence = "no card has 5000 MiB free"
    run.until("the Event with the reason", lambda: sentence in _events(run, "five-3"))
    output = run.shown("describe", "pod", "five-3", "-n", "team-a", from_line="Events:")
    check(sentence in output, "kubectl describe says why it waits")
    check(card_of(run.pod("five-1")) != card_of(run.pod("five-2")), "the other two pods have a card each")
    run.shown("delete", "pod", "five-1", "-n", "team-a", "--wait=false")
    gone = "/api/v1/namespaces/team-a/pods/five-1"
    run.until("pod five-1 to be deleted", lambda: not run.stack.exists(gone))
    freed = time.monotonic()
    run.until("pod five-3 to be bound", lambda: bool(run.pod("five-3")["spec"].get("nodeName")))
    took = time.monotonic() - freed
    check(took < 1, f"five-3 was bound at most {took:.2f} s after five-1 was deleted", took)


def _events(run: DemoRun, name: str) -> str:
    return run.stack.cp.kubectl(
        "get", "events", "-n", "team-a", "--field-selector", f"involvedObject.name={name}"
    ).stdout


def a_budget_runs_out(run: DemoRun) -> None:
    """Step 4."""
    run.title("team-b has a budget of 4 GPU-seconds, granted once; a pod on a whole card uses it up")
    run.shown("get", "configmap", "bursar-budgets", "-n", "bursar-system", "-o", r"jsonpath={.data.team-b}")
    spender = gpu_pod("spender", "team-b", "single", run_for="8s", gpu_percent="100")
    run.shown("apply", "-f", "-", manifest=spender)
    standing = standing_of(run.pod("spender", "team-b"))
    check(standing == "IN_BUDGET", "the pod was admitted in budget", standing)
    run.until_running("spender", "team-b")
    run.until("the budget to be used up", lambda: _budget(run)["standing"] == "OVER_BUDGET")
    budget = run.get("/v1/budgets/team-b")
    spent = budget["posted"] + budget["pending"]
    check(
        spent >= budget["granted"] == SMALL_BUDGET,
        f"posted + pending = {spent} >= granted = {budget['granted']}",
        budget,
    )


def _budget(run: DemoRun, namespace: str = "team-b") -> Json:
    budget: Json = run.stack.get(f"/v1/budgets/{namespace}", run.reader)
    return budget


def the_charge_is_exact(run: DemoRun) -> None:
    """Step 5."""
    run.title("The pod ends; its charge is the time that it held its card x rate")
    run.until(
        "pod team-b/spender to end",
        lambda: run.pod("spender", "team-b")["status"]["phase"] == "Succeeded",
    )
    run.until("the charge to be posted", lambda: _budget(run)["pending"] == 0 and _budget(run)["posted"] > 0)
    status = run.pod("spender", "team-b")["status"]
    (bound,) = (each for each in status["conditions"] if each["type"] == "PodScheduled")
    listed = [*status.get("initContainerStatuses", []), *status["containerStatuses"]]
    finished = max(each["state"]["terminated"]["finishedAt"] for each in listed)
    print(f"   | bound {bound['lastTransitionTime']}  last container finished {finished}")
    held_s = _seconds(finished) - _seconds(bound["lastTransitionTime"])
    charged_s = Decimal(_budget(run)["posted"]) / GPU_SECONDS
    check(
        charged_s == held_s,
        f"charged {charged_s} GPU-seconds for {held_s} s on one whole card",
        charged_s,
    )
    check(
        _beats(run) > 0, "the timekeeper received heartbeats from the pod's sidecar, with the pod's own token"
    )


def _seconds(timestamp: str) -> int:
    return int(time.mktime(time.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ")))


def _beats(run: DemoRun) -> int:
    lines = run.stack.get("/metrics", run.reader).splitlines()
    counted = [line for line in lines if line.startswith("bursar_heartbeats_total")]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in counted))


def the_next_pod_is_demoted(run: DemoRun) -> None:
    """Step 6."""
    run.title("The next pod of team-b gets lower priority than pods of namespaces with budget left")
    output = run.shown("apply", "-f", "-", manifest=gpu_pod("late", "team-b", "single", gpu_percent="100"))
    run.until_running("late", "team-b")
    pod = run.pod("late", "team-b")
    check("Warning" in output, "kubectl prints a warning")
    check(
        (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("gpu-lower-priority", -5),
        f"class {pod['spec']['priorityClassName']}, priority {pod['spec']['priority']}",
        pod["spec"],
    )


def an_in_budget_pod_takes_its_place(run: DemoRun) -> None:
    """Step 7."""
    run.title("That pod holds the node's only card; a pod of team-a, which has budget left, preempts it")
    run.shown("apply", "-f", "-", manifest=gpu_pod("urgent", "team-a", "single", gpu_percent="100"))
    run.until_running("urgent")
    output = run.shown(
        "get", "events", "-n", "team-b", "--field-selector", "involvedObject.name=late,reason=Preempted"
    )
    check("Preempted" in output, "the pod of team-b was preempted", output)
    check(not _holds_a_card(run), "it no longer runs")


def _holds_a_card(run: DemoRun) -> bool:
    names = run.stack.cp.kubectl(
        "get", "pods", "-n", "team-b", "--field-selector", "status.phase=Running", "-o", "name"
    )
    return "late" in names.stdout


def a_claim_is_charged_and_the_next_waits(run: DemoRun) -> None:
    """Step 8."""
    run.title("A claim on a device (DRA) is charged while it is allocated; the next one waits for its budget")
    run.note("team-c has 4 GPU-seconds too. Its pods get claims from a template, on a device each.")
    template = claim_template("one-gpu", "team-c", EXAMPLE_DRIVER)
    run.stack.cp.kubectl("apply", "-f", "-", input=json.dumps(template))
    run.shown("apply", "-f", "-", manifest=claiming_pod("first", "team-c", "one-gpu", run_for="6s"))
    run.until_running("first", "team-c")
    (claim,) = run.stack.cp.api.call("GET", _CLAIMS)["items"]
    run.shown("get", "resourceclaims", "-n", "team-c")
    run.until("the budget to be used up", lambda: _budget(run, "team-c")["standing"] == "OVER_BUDGET")
    run.until("a pod to be held", lambda: _is_held(run.dry_run("team-c")))
    run.stack.cp.kubectl(
        "apply", "-f", "-", input=json.dumps(claiming_pod("second", "team-c", "one-gpu", run_for="6s"))
    )
    run.until("the claim to be released", lambda: _ended(run) is not None)
    session = _ended(run) or {}
    allocation = claim["status"]["allocation"]
    event = "allocation" if "allocationTimestamp" in allocation else "creation"  # before Kubernetes 1.36
    since = datetime.fromisoformat(
        allocation.get("allocationTimestamp") or claim["metadata"]["creationTimestamp"]
    )
    held_ms = session["ended"] - session["bound"]
    late_ms = session["bound"] - 1000 * int(since.timestamp())
    check(0 <= late_ms < 5000, f"the charge begins {late_ms} ms after the second of its {event}", session)
    check(
        session["posted"] == 1000 * held_ms,
        f"charged {Decimal(session['posted']) / GPU_SECONDS} GPU-seconds: it was allocated for {held_ms} ms",
        session,
    )
    run.shown("get", "pods", "-n", "team-c")
    check(_is_held(run.pod("second", "team-c")), "the second pod waits behind Bursar's gate")
    patch = json.dumps({"data": {"team-c": "gpuHours: 1\nperiod: once\nonExhausted: hold\n"}})
    run.shown("patch", "configmap", "bursar-budgets", "-n", "bursar-system", "--type=merge", "-p", patch)
    run.until_running("second", "team-c")
    check(True, "with an hour more it is released, and gets a device")


_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team-c/resourceclaims"


def _is_held(pod: Json) -> bool:
    return {"name": "bursar.dev/budget"} in pod["spec"].get("schedulingGates", [])


def _ended(run: DemoRun) -> Json | None:
    """The session of the claim, once it is settled."""
    listed = run.stack.get("/v1/sessions?namespace=team-c", run.reader)["sessions"]
    return next((each for each in listed if (each["kind"], each["state"]) == ("claim", "settled")), None)


def the_report(run: DemoRun) -> None:
    """Step 9."""
    run.title("The usage report over REST: GPU time by namespace")
    run.until("every charge of team-b to be posted", lambda: _budget(run)["pending"] == 0)
    table = run.get("/v1/usage?group=namespace&format=csv")
    rows = [line.split(",") for line in table.strip().splitlines()]
    named = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    amounts = {row["namespace"]: int(row["amount"]) for row in named}
    check(
        amounts["team-b"] == _budget(run)["posted"],
        "the report equals the ledger to the unit",
        amounts,
    )
    check(amounts["team-a"] > 0, "the report has team-a's pods")
    print_table(run)


def print_table(run: DemoRun) -> None:
    """Prints each namespace's budget."""
    print(
        f"\n   {'NAMESPACE':<12}{'STANDING':<14}{'GRANTED':>14}{'POSTED':>14}{'PENDING':>14}   (GPU-seconds)"
    )
    for namespace in BUDGETS:
        budget = run.stack.get(f"/v1/budgets/{namespace}", run.reader)
        figures = "".join(
            f"{Decimal(budget[key] or 0) / GPU_SECONDS:>14.3f}" for key in ("granted", "posted", "pending")
        )
        print(f"   {namespace:<12}{budget['standing']:<14}{figures}")


STEPS: tuple[Callable[[DemoRun], None], ...] = (
    a_malformed_pod_is_refused,
    two_half_cards_share_one,
    a_third_pod_waits_for_a_card,
    a_budget_runs_out,
    the_charge_is_exact,
    the_next_pod_is_demoted,
    an_in_budget_pod_takes_its_place,
    a_claim_is_charged_and_the_next_waits,
    the_report,
)
