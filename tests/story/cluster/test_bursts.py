"""Bursts of creations over two webhook replicas, on a real control plane: no more are admitted than each
worker's estimate allows, and nothing of the rest is lost."""

import http.client
import json
import os
import signal
import ssl
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import gated, pods, running, template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import eventually
from tests.timekeeper.processes import settler_stopped
from tests.webhook.replicas import MANIFESTS, Replica, service
from tests.worlds import Json
from timekeeper.core.budgets.policy import GPU_HOUR

BURST = 500
WORKERS = 2  # of each replica
PAID = 20  # pods: each reserves a sixtieth of a GPU-hour
HOURS = round(PAID / 60 + 0.001, 6)
MAX_OF_A_WORKER = PAID + 1  # it stops once it has itself admitted what remained


@pytest.fixture(scope="module")
def replicas(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    """Two webhooks behind the Service in place of the stack's own; and 80 cards. The API server asks the
    Service's endpoints, each new connection at random."""
    folder: Path = tmp_path_factory.mktemp("replicas")
    cp = stack.cp
    for index in range(10):
        cp.api.call("POST", "/api/v1/nodes", kwok_node(f"burst-{index}", cards=8, memory_mib=16_000))
    kubectl(
        cp, "apply", "--server-side", "--force-conflicts", "-f", f"{MANIFESTS}/webhook-configurations.yaml"
    )
    service(cp)
    stack.stop("webhook")
    kubeconfig = cp.folder / "bursar-webhook.kubeconfig"
    flags = (
        *("--workers", str(WORKERS), "--timekeeper-url", stack.timekeeper_url),
        *("--token-file", f"{stack.folder}/webhook.token", "--kubeconfig", str(kubeconfig)),
        "--metrics-access=open",
    )
    tls = stack.tls / "webhook"
    with Replica(cp, folder, "one", tls, *flags) as one, Replica(cp, folder, "two", tls, *flags) as two:
        yield [one, two]
    stack.start("webhook")
    stack.wait("the stack's own webhook", lambda: stack.is_ready(stack.webhook_url), "webhook")


@dataclass
class Burst:
    """Clients that create pods at once, each until it has its answer: what became of them by name. A failed
    call is made again, as controllers do."""

    stack: Stack
    path: str
    size: int = BURST
    clients: int = 8
    most_at_once: int = 0  # calls under way at one time
    answers: dict[str, str] = field(
        default_factory=dict
    )  # name -> "held", "admitted", "demoted" or "refused"
    under_way: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)
    local: threading.local = field(default_factory=threading.local)
    connections: list[http.client.HTTPSConnection] = field(default_factory=list)

    def create(self, name: str) -> None:
        """One pod of a tenth of a card."""
        body = json.dumps(template() | {"metadata": {"name": name}})
        self.under_way.add(name)
        self.most_at_once = max(self.most_at_once, len(self.under_way))
        try:
            self._create(name, body)
        finally:
            self.under_way.remove(name)

    def _create(self, name: str, body: str) -> None:
        for attempt in count():
            assert attempt < 200, self.failures
            try:
                status, said = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                self.failures[type(error).__name__] += 1
                del self.local.connection
                continue
            if status == 201:
                is_over = said["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
                is_held = bool(said["spec"].get("schedulingGates"))
                self.answers[name] = "held" if is_held else "demoted" if is_over else "admitted"
                return
            webhooks = ("govern.bursar.dev", "check.bursar.dev")
            if status == 403 and any(webhook in said["message"] for webhook in webhooks):
                self.answers[name] = "refused"
                return
            self.failures[f"{status} {said['message'][:300]}"] += 1
            time.sleep(0.05)  # a webhook is away

    def _post(self, body: str) -> tuple[int, Json]:
        cp = self.stack.cp
        if not hasattr(self.local, "connection"):  # one for each client
            address = urlsplit(cp.url)
            context = ssl.create_default_context(cafile=str(cp.ca_file))
            self.local.connection = http.client.HTTPSConnection(
                str(address.hostname), address.port, timeout=LONGEST_S, context=context
            )
            self.connections.append(self.local.connection)
        headers = {"Authorization": f"Bearer {cp.admin_token}", "Content-Type": "application/json"}
        self.local.connection.request("POST", self.path, body, headers)
        with self.local.connection.getresponse() as answer:
            return answer.status, json.loads(answer.read())

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """All of them; ``meanwhile`` is called once they have begun."""
        with ThreadPoolExecutor(self.clients) as clients:
            done = [clients.submit(self.create, f"p{number:03}") for number in range(self.size)]
            meanwhile()
            for each in done:
                each.result()
        for connection in self.connections:
            connection.close()

    def named(self, answer: str) -> set[str]:
        """The names of the pods with this answer."""
        return {name for name, mine in self.answers.items() if mine == answer}


def polls(replica: Replica) -> float:
    """How many answers of the timekeeper its workers have had together."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    url = f"https://{replica.host}:{replica.port}/metrics"
    with urllib.request.urlopen(url, timeout=LONGEST_S, context=trusting) as answer:
        lines = answer.read().decode().splitlines()
    name = 'bursar_webhook_standings_polls_total{outcome="heard"} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def await_polls(replicas: list[Replica]) -> None:
    """Until each worker has what one of them knows now."""
    had = list(map(polls, replicas))
    eventually(
        lambda: all(polls(each) >= before + 3 * WORKERS for each, before in zip(replicas, had, strict=True)),
        "further polls of each worker",
    )


def spend(stack: Stack, replicas: list[Replica], **modes: str) -> None:
    """Budgets of nothing for these namespaces, and then of HOURS; every worker knows them."""
    names = {name: name.replace("_", "-") for name in modes}

    def admitted(name: str, of: int) -> bool:
        dry = Burst(stack, f"/api/v1/namespaces/{names[name]}/pods?dryRun=All", of)
        dry.run()
        return bool(dry.named("admitted"))

    def grant(hours: float) -> None:
        entries = {names[name]: f"gpuHours: {hours}\nonExhausted: {mode}\n" for name, mode in modes.items()}
        set_budgets(stack, **entries)

    one = next(iter(modes))  # one table has them all
    grant(0)
    eventually(lambda: not admitted(one, 24), "no pod to be admitted")
    await_polls(replicas)
    assert not admitted(one, 24)
    grant(HOURS)
    eventually(lambda: all(admitted(name, 1) for name in modes), "a pod to be admitted")
    await_polls(replicas)


BEYOND = {
    "deprioritize": "demoted",
    "reclaim": "demoted",
    "deny": "refused",
    "hold": "held",
    "evict": "held",
}


def test_of_200_pods_at_once_each_worker_lets_through_what_is_paid_and_one_more(
    stack: Stack, replicas: list[Replica]
) -> None:
    """What docs/limits.md says of them. No tick comes meanwhile: two seconds later it ends the counts."""
    paths = {action: create_namespace(stack.cp, f"at-once-{action}") for action in BEYOND}
    spend(stack, replicas, **{f"at-once-{action}": action for action in BEYOND})
    for action, path in paths.items():
        asked = [replica.reviews() for replica in replicas]

        burst = Burst(stack, path, 200, clients=40)
        with settler_stopped(stack.processes["timekeeper"].pid):
            burst.run()

        # on a machine in use a webhook may take too long, and the creation is made again, by the same name
        assert burst.failures.total() <= 20, burst.failures
        assert burst.most_at_once >= 20
        reviewed = [each.reviews() - before for each, before in zip(replicas, asked, strict=True)]
        assert min(reviewed) > 200 // 10
        assert sum(reviewed) >= 2 * 200 or action == "deny"  # which calls /validate for some alone
        admitted, beyond = burst.named("admitted"), burst.named(BEYOND[action])
        assert admitted | beyond == set(burst.answers)
        assert len(burst.answers) == 200
        assert PAID <= len(admitted) <= 2 * WORKERS * MAX_OF_A_WORKER
        stored = {pod["metadata"]["name"]: pod["spec"]["priorityClassName"] for pod in pods(stack, path)}
        assert stored.keys() == (admitted if action == "deny" else admitted | beyond)
        lower = beyond if BEYOND[action] == "demoted" else set()
        assert {pod for pod, given in stored.items() if given == "gpu-lower-priority"} == lower
        with ThreadPoolExecutor(8) as clients:  # each in a call of its own, which takes moments
            list(
                clients.map(lambda url: stack.cp.api.call("DELETE", url), [f"{path}/{pod}" for pod in stored])
            )


@pytest.mark.parametrize("size", [160, pytest.param(BURST, marks=pytest.mark.soak)])
def test_a_burst_under_hold_admits_what_each_worker_may_and_the_rest_waits_for_the_budget(
    stack: Stack, replicas: list[Replica], reader: str, size: int
) -> None:
    name = f"burst-{size}"
    path = create_namespace(stack.cp, name)
    spend(stack, replicas, **{name: "hold"})
    asked = [each.reviews() for each in replicas]

    burst = Burst(stack, path, size)
    burst.run()

    assert burst.failures == {}
    assert all(each.reviews() - before > size // 10 for each, before in zip(replicas, asked, strict=True))
    admitted, held = burst.named("admitted"), burst.named("held")
    # a worker's own admissions count twice once the table has them: it may stop halfway
    assert PAID // 2 <= len(admitted) <= 2 * WORKERS * MAX_OF_A_WORKER
    found = pods(stack, path)
    assert {each["metadata"]["name"] for each in found} == admitted | held
    assert len(found) == size

    def ungated() -> set[str]:
        return {each["metadata"]["name"] for each in pods(stack, path) if not gated([each])}

    def queue() -> set[str]:
        return {each["pod"] for each in stack.get(f"/v1/held?namespace={name}", reader)["held"]}

    def is_spent(granted: int) -> bool:
        """Whether no further pod can be paid of this grant; those that run use ever more of it."""
        found = stack.get(f"/v1/budgets/{name}", reader)
        return bool(found["granted"] == granted and found["remaining"] < GPU_HOUR // 60)

    stack.wait("what is paid", lambda: is_spent(round(HOURS * GPU_HOUR)), "timekeeper")
    stack.wait("the queue", lambda: queue() == held - ungated(), "timekeeper")
    # the timekeeper may release what the last standings allowed, as a worker may admit it
    assert len(ungated()) <= len(admitted) + PAID

    # the budget pays 120 of them; the first of them have used a little before the last is released
    set_budgets(stack, **{name: "gpuHours: 2\nonExhausted: hold\n"})
    stack.wait("what can be paid", lambda: is_spent(2 * GPU_HOUR), "timekeeper")
    stack.wait("it to run", lambda: len(running(pods(stack, path))) == len(ungated()), "timekeeper")
    assert max(len(ungated()) for _ in range(20)) <= 120
    set_budgets(stack, **{name: "gpuHours: 900\nonExhausted: hold\n"})
    stack.wait("all to run", lambda: len(running(pods(stack, path))) == size, "timekeeper")


@pytest.mark.parametrize("size", [250, pytest.param(BURST, marks=pytest.mark.soak)])
def test_a_burst_under_deny_loses_no_answer_though_a_replica_is_killed_in_it(
    stack: Stack, replicas: list[Replica], reader: str, size: int
) -> None:
    name = f"denied-{size}"
    path = create_namespace(stack.cp, name)
    spend(stack, replicas, **{name: "deny"})
    one, _ = replicas
    asked = [each.reviews() for each in replicas]
    answered: list[int] = []

    def kill() -> None:
        stack.wait("the burst to be under way", lambda: len(burst.answers) >= 40)
        master = one.process.pid
        workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        assert len(workers) == WORKERS
        for pid in (master, *map(int, workers)):
            os.kill(pid, signal.SIGKILL)
        assert one.process.wait(LONGEST_S) == -signal.SIGKILL
        answered.append(len(burst.answers))
        one.begin()

    burst = Burst(stack, path, size)
    burst.run(kill)

    assert answered[0] < size
    assert all(each.reviews() > before for each, before in zip(replicas, asked, strict=True))
    admitted, refused = burst.named("admitted"), burst.named("refused")
    assert len(admitted) + len(refused) == size
    assert PAID <= len(admitted) <= 3 * WORKERS * MAX_OF_A_WORKER  # the killed one's workers forget theirs
    assert {each["metadata"]["name"] for each in pods(stack, path)} == admitted

    def recorded() -> set[str]:
        query = f"/v1/decisions?namespace={name}&kind=refused&limit=1000"
        return {each["pod"] for each in stack.get(query, reader)["decisions"]}

    # the killed replica may lose what it had not posted yet: the second before its end
    stack.wait("the records", lambda: len(recorded()) >= len(refused) - answered[0], "timekeeper")
    assert recorded() <= refused
