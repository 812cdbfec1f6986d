"""`fairShare: on` from end to end, with a heavy past in the ledger: the order of 100 releases, across a kill
of the timekeeper, and of 100 wake-ups on a full cluster."""

import os
import signal
import time

from sqlalchemy import insert

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import gated, pods, running, template
from tests.story.cluster.test_metering import Json, gpu_pod, set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import at_once
from tests.timekeeper.rows import POSTING, SESSION
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.schema import ENTRIES, POSTINGS, SESSIONS

HOUR, DAY = 3_600_000, 86_400_000
APART_S = 1.5
EACH = 20  # pods of a namespace; each reserves a sixtieth of a GPU-hour
# what each has used, in GPU-hours, and its entry; by what each has used of its weight
PAST = {"idle": 0, "paid": 6, "busy": 3, "calm": 2, "loud": 4}
ENTRY = {"paid": "fairShare: {{weight: 4}}\n", "calm": "group: {}lab\n", "loud": "group: {}lab\n"}
ORDER = ("idle", "paid", "busy", "calm", "loud")


def ledger_of(stack: Stack) -> str:
    flags = dict(stack.tuning.flags).get("timekeeper", ())
    given = [flag.partition("=")[2] for flag in flags if flag.startswith("--database=")]
    return given[0] if given else f"sqlite:///{stack.folder}/bursar.db"


def write_past(stack: Stack, prefix: str, entries: dict[str, str]) -> None:
    """Two days ago, with these entries, each namespace used its hours."""
    from_ms = int(time.time() * 1000) // DAY * DAY - 2 * DAY
    to_ms = from_ms + HOUR
    store = open_store(ledger_of(stack))
    with store.writing() as connection:
        own = {key: text for key, text in entries.items() if key != "_settings"}
        texts = [{"key": key, "text": text, "from_ms": from_ms - DAY} for key, text in own.items()]
        connection.execute(insert(ENTRIES), texts)
        for name, hours in PAST.items():
            if hours:
                uid, namespace = f"past-{prefix}{name}", f"{prefix}{name}"
                of_it = {"uid": uid, "namespace": namespace, "rate_milli": hours * 1000}
                times = dict.fromkeys(("bound_ms", "opened_ms", "started_ms"), from_ms)
                ends = {"ended_ms": to_ms, "settled_ms": to_ms}
                connection.execute(insert(SESSIONS), {**SESSION, **of_it, **times, **ends})
                posting = {"session_uid": uid, "from_ms": from_ms, "to_ms": to_ms, "created_ms": to_ms}
                rate = {"rate_milli": hours * 1000, "amount": hours * 1000 * HOUR, "namespace": namespace}
                connection.execute(insert(POSTINGS), {**POSTING, **posting, **rate})
    store.close()


def budgets_of(prefix: str, first: str) -> dict[str, str]:
    """Entries that begin with this line."""
    of_all = {f"{prefix}{name}": f"{first}\n{ENTRY.get(name, '').format(prefix)}" for name in PAST}
    return {**of_all, "_settings": "fairShare: on", f"_group.{prefix}lab": "gpuHours: unlimited"}


def begin(stack: Stack, prefix: str, first: str) -> dict[str, str]:
    """The past is written while no timekeeper runs, and then the entries; the namespaces' paths."""
    stack.stop("timekeeper", signal.SIGKILL)
    entries = budgets_of(prefix, first)
    write_past(stack, prefix, entries)
    set_budgets(stack, **entries)
    stack.start("timekeeper")
    stack.wait("the timekeeper", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")
    return {name: create_namespace(stack.cp, f"{prefix}{name}") for name in PAST}


def of_age(found: list[Json]) -> list[str]:
    """Their names, the oldest first."""
    found.sort(key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["uid"]))
    return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in found]


def released(stack: Stack, prefix: str) -> list[str]:
    """The pods in the order of their release, as the log has it."""
    found = []
    for line in stack.log("timekeeper").splitlines():
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if fields.get("event") == "pod-release" and fields["namespace"].startswith(prefix):
            found.append(f"{fields['namespace']}/{fields['pod']}")
    return found


def test_held_pods_are_released_by_decayed_use_also_across_a_kill(stack: Stack, reader: str) -> None:
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("many", cards=16, memory_mib=16_000, model="T4"))
    paths = begin(stack, "r-", "gpuHours: 0\nonExhausted: hold")

    def is_held(path: str) -> bool:
        made = stack.cp.api.call("POST", f"{path}?dryRun=All", template() | {"metadata": {"name": "dry"}})
        return bool(made["spec"].get("schedulingGates"))

    for path in paths.values():
        stack.wait("both workers to hold", lambda path=path: all(at_once(lambda: is_held(path))))  # type: ignore[misc]
    for number in range(EACH):
        for name in reversed(ORDER):
            stack.cp.api.call("POST", paths[name], template() | {"metadata": {"name": f"p{number:02}"}})
    expected = [pod for name in ORDER for pod in of_age(pods(stack, paths[name]))]
    assert len(expected) == 100
    stack.wait(
        "the past to be read", lambda: stack.get("/v1/budgets/r-loud", reader)["fairShare"], "timekeeper"
    )
    standings = {name: stack.get(f"/v1/budgets/r-{name}", reader)["fairShare"]["rank"] for name in ORDER}
    assert [name for name, _ in sorted(standings.items(), key=lambda item: item[1])] == [*ORDER]

    def left() -> int:
        return sum(len(gated(pods(stack, path))) for path in paths.values())

    set_budgets(stack, **budgets_of("r-", "gpuHours: 1000\nonExhausted: hold"))
    stack.wait("the first releases", lambda: left() < 80, "timekeeper")
    os.killpg(stack.processes["timekeeper"].pid, signal.SIGKILL)
    stack.processes.pop("timekeeper").wait()
    before = len(released(stack, "r-"))
    stack.start("timekeeper")
    stack.wait("all to be released", lambda: left() == 0, "timekeeper")

    found = released(stack, "r-")
    unlogged = [pod for pod in expected if pod not in found]
    assert 0 < before < 100
    assert len(unlogged) <= 25, "calls of the step in which it was killed"
    assert found == [pod for pod in expected if pod not in unlogged]


def woken(stack: Stack, prefix: str) -> list[str]:
    """The pods in the order in which they were woken first, as the extender's log has it."""
    lines = [line for line in stack.log("extender").splitlines() if " event=woken " in line]
    parts = (part for line in lines for part in line.split())
    found = dict.fromkeys(part.removeprefix("pod=") for part in parts if part.startswith("pod="))
    return [pod for pod in found if pod.startswith(prefix)]


def test_waiting_pods_are_woken_by_decayed_use_when_cards_get_free(stack: Stack) -> None:
    """All have the same priority, and the ones that have used most are the oldest. Cards get free when the
    grace period of a pod is over whose object is gone: by then kube-scheduler has tried all others in vain,
    also those that its own backoff of ten seconds kept."""
    for number in range(EACH):
        node = kwok_node(f"full-{number}", cards=1, memory_mib=16_000, model="T4", labels={"of": "full"})
        stack.cp.api.call("POST", "/api/v1/nodes", node)
    paths = begin(stack, "w-", "gpuHours: 1000")
    fillers = create_namespace(stack.cp, "w-filler")

    def made(name: str) -> Json:
        pod = gpu_pod(name, 100, "1h")
        pod["spec"] |= {"nodeSelector": {"of": "full"}, "terminationGracePeriodSeconds": 15}
        return pod

    for number in range(EACH):
        stack.cp.api.call("POST", fillers, made(f"f{number}"))
    stack.wait("full nodes", lambda: len(running(pods(stack, fillers))) == EACH, "extender")
    for name in reversed(ORDER):
        for number in range(EACH):
            stack.cp.api.call("POST", paths[name], made(f"p{number:02}"))

    def refused() -> int:
        every = [pod for path in paths.values() for pod in pods(stack, path)]
        conditions = [line for pod in every for line in pod["status"].get("conditions", ())]
        return sum(condition.get("reason") == "Unschedulable" for condition in conditions)

    stack.wait("all to be refused", lambda: refused() == 100, "extender")

    leaving, bound = [f"w-filler/f{number}" for number in range(EACH)], list[str]()

    def more() -> list[str]:
        every = [pod for path in paths.values() for pod in pods(stack, path) if "nodeName" in pod["spec"]]
        bound.extend(name for name in of_age(every) if name not in bound)
        return leaving + bound

    for number in range(100):
        began = time.monotonic()
        stack.wait("a pod to leave", lambda number=number: len(more()) > number, "extender")  # type: ignore[misc]
        namespace, name = more()[number].split("/")
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        stack.cp.api.call("DELETE", path, {"gracePeriodSeconds": 0})
        # the cards of one get free after those of the other
        stack.wait("the next moment", lambda began=began: time.monotonic() - began > APART_S)  # type: ignore[misc]
    stack.wait("all to be bound", lambda: len(more()) == 120, "extender")

    places = [ORDER.index(pod.split("/")[0].removeprefix("w-")) for pod in woken(stack, "w-")]
    pairs = [
        (place, later) for at, place in enumerate(places) for later in places[at + 1 :] if place != later
    ]
    turned = sum(place > later for place, later in pairs)
    # kube-scheduler tries pods by its own queue, too, when any pod goes; by age nearly all pairs are turned
    assert len(places) >= 40, places
    assert turned <= len(pairs) // 4, (turned, len(pairs), places)
