"""``POST /v1/simulate`` over the real ledger. The webhook's and the extender's own code is called instead of
their processes."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from threading import Event
from typing import Any, cast

import orjson
import pytest
from flask.testing import FlaskClient

from deploy.local.limits import LONGEST_S
from scheduler_ext.model.standing_table import decode as decode_for_extender
from scheduler_ext.model.standing_table import standings_at
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.simulation.simulate import SimulationInput
from scheduler_ext.simulation.simulator import Simulator
from tests.runtime.lines import into
from tests.scheduler_ext.preemption_worlds import of
from tests.scheduler_ext.worlds import node as cards_node
from tests.scheduler_ext.worlds import on, percent, rebuilt
from tests.support.waiting import eventually
from tests.timekeeper.worlds import (
    ADMIN,
    CA,
    HOUR,
    T0,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
    token,
    user_status,
)
from tests.webhook.worlds import POLICY
from tests.worlds import Json, card
from timekeeper.api.create_app import app_of, create_services
from timekeeper.api.http.services import Services
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.texts import LEDGER_ALONE
from timekeeper.edge.http1 import HttpResponse
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.peers import Peer, Peers
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import simulation_call
from webhook.standings import decode as decode_for_webhook

ONE_DATABASE = "arithmetic over statements that other modules read on both"

READER = token("reader")
NO_TIME = repeat(0.0)  # passes


@dataclass(frozen=True, slots=True)
class InProcess(Peer):
    """A role that is called instead of asked."""

    called: Any = None

    def _posted(self, path: str, body: bytes) -> HttpResponse:
        status, answer = self.called(body)
        return HttpResponse(status, {}, answer)


@dataclass
class Planner:
    town: Town
    client: FlaskClient
    services: Services

    def asks(self, manifest: Json, status: int = 200, bearer: str = ADMIN, **more: object) -> Any:
        body = {"version": 1, "namespace": "team-a", "manifest": manifest, **more}
        answer = self.client.post("/v1/simulate", json=body, headers={"Authorization": f"Bearer {bearer}"})
        assert answer.status_code == status, answer.get_data(as_text=True)
        return answer.get_json()

    def standings(self) -> bytes:
        """What webhook and extender poll."""
        answer = self.client.get("/v1/standings", headers={"Authorization": f"Bearer {ADMIN}"})
        return answer.get_data()

    def budget_is(self, text: str, **entries: str) -> None:
        self.town.hear("configmaps", budgets(team_a=text, **{"_settings": "lookahead: 0s\n"} | entries))
        self.town.advance(0)


def planner_of(town: Town, policy: AdmissionPolicy = POLICY, spent_s: Iterator[float] = NO_TIME) -> Planner:
    """A client of the town's ledger, with these peers."""
    peers = peers_of(lambda: asking.standings(), policy, spent_s)
    gate = Gate(town.reviews.post, "bursar", town.clock)
    services = create_services(town.store, gate, town.clock, lambda: CA, 5_000, peers=peers)
    asking = Planner(town, app_of(services).test_client(), services)
    return asking


def peers_of(
    polled: Callable[[], bytes], policy: AdmissionPolicy = POLICY, spent_s: Iterator[float] = NO_TIME
) -> Peers:
    """A webhook with this policy, and an extender with a node of two cards, of which one is a debtor's of
    team-b. ``polled``: the standings; ``spent_s``: what each look at the extender's clock says."""

    def admits(body: bytes) -> tuple[int, bytes]:
        table = decode_for_webhook(polled(), "", 0)
        reviewer = Reviewer(policy, lambda: table, lambda: "ca", lambda: 0, 30_000)
        answer = simulation_call(reviewer, into([]))(body)
        assert isinstance(answer.body, bytes)
        return answer.status, answer.body

    def places(body: bytes) -> tuple[int, bytes]:
        debtor = on(of(percent(100, "debtor"), "team-b"), "a", "a-GPU-0")
        snapshot = rebuilt([cards_node("a", card(0), card(1))], [debtor])
        standings = standings_at(decode_for_extender(polled(), "", 0), 0, 30_000)
        policies = Policies("binpack", lambda: standings, lambda: None, lambda _: None)
        simulated = Simulator(
            lambda: SimulationInput(snapshot=snapshot, standings=standings, policies=policies, now_ms=0),
            into([]),
            lambda: next(spent_s),
        )
        try:
            return 200, simulated(body)
        except Problem as problem:
            return problem.status, problem.body()

    return Peers(
        InProcess("webhook", "x", str, 1, called=admits), InProcess("extender", "x", str, 1, called=places)
    )


@pytest.fixture
def planner(town: Town) -> Planner:
    return begun(town)


def begun(town: Town) -> Planner:
    """Of a town that has just begun, with a budget of 100 hours for team-a."""
    settings = "lookahead: 0s\nprice: 2\ncurrency: EUR\nweights: {A100: 1.5}\n"
    town.begin(
        ("nodes", node(cards=8)),
        ("leases", lease(T0)),
        ("configmaps", budgets(team_a="gpuHours: 100\nperiod: month\nonExhausted: hold", _settings=settings)),
    )
    for name, value in (("gpu-default-priority", 0), ("gpu-lower-priority", -5)):
        raw = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"}
        town.hear("priorityclasses", raw)
    town.advance(0)
    return planner_of(town)


def template(share: int, **metadata: Any) -> Json:
    limits = {"limits": {"bursar.dev/gpu-percent": str(share)}}
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "m", "image": "x", "resources": limits}]},
    }


def pod(name: str, share: int = 50) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", **template(share, name=name)}


def web(replicas: int, share: int = 100, **metadata: Any) -> Json:
    """A Deployment of pods of this share of a card."""
    return owner(
        "Deployment", {"replicas": replicas, "template": template(share, **metadata)}, "apps/v1", "web"
    )


def test_pods_get_place_cost_and_the_end_of_the_budget(planner: Planner) -> None:
    answer = planner.asks(web(2))

    one, two = answer["pods"]
    assert (one["standing"], one["held"]) == ("IN_BUDGET", "")
    assert [(pod["name"], pod["outcome"], pod["node"], pod["nodesThatFit"]) for pod in (one, two)] == [
        ("web-0", "fits", "a", 1),
        ("web-1", "waits", "", 0),
    ]
    assert [(why["nodes"], why["kind"]) for why in two["reasons"]] == [(1, "full")]
    # 1.5 x 24 hours for a card, at 2 EUR
    assert (one["cost"]["gpuHoursPerDay"], one["cost"]["price"]) == ("36", "72")
    assert two["cost"]["rateMilli"] == 0
    assert (answer["cost"]["gpuHoursPerDay"], answer["cost"]["price"], answer["note"]) == ("36", "72", "")
    # 100 hours at 1.5 an hour
    assert answer["after"]["now"] == {"rateMilli": 1500, "goneAt": T0 + 240_000_000}
    assert planner.asks(web(2)) == answer


def test_an_extender_without_time_answers_what_it_knows_and_the_note_says_so(planner: Planner) -> None:
    """Its clock says from the second look on that the time is over."""
    late = planner_of(planner.town, spent_s=chain([0.0], repeat(1.0)))

    answer = late.asks(web(2))

    assert outcomes(answer) == [("web-0", "unknown"), ("web-1", "unknown")]
    assert answer["note"].startswith("the extender answers within 100 ms of a processor: it did not look")
    assert answer["cost"]["rateMilli"] == 0


def test_the_present_budget_decides_class_hold_and_refusal_and_stays_as_it_is(planner: Planner) -> None:
    planner.town.hear("pods", gpu_pod("p", namespace="team-a", started_ms=T0))
    planner.town.advance(3 * HOUR)  # 4.5 weighted hours

    def foretold(on_exhausted: str) -> Any:
        planner.budget_is(f"gpuHours: 3\nperiod: month\nonExhausted: {on_exhausted}")
        before = planner.town.budget()
        (found,) = planner.asks(pod("one"))["pods"]
        assert planner.town.budget() == before
        return found

    demoted, held, denied = map(foretold, ("deprioritize", "hold", "deny"))

    assert (demoted["standing"], demoted["held"]) == ("OVER_BUDGET", "")
    assert (held["held"], held["outcome"]) == ("budget", "waits")
    assert (denied["outcome"], denied["node"]) == ("refused", "")
    assert "has used its GPU budget" in denied["refusal"]


def test_pods_that_the_budget_protects_are_placed_as_far_as_the_floor_has_room(planner: Planner) -> None:
    """The second has room for half a card more, the third for none; one without the label never has."""
    planner.town.hear("pods", gpu_pod("p", namespace="team-a", started_ms=T0))
    planner.budget_is(
        "gpuHours: 1\nperiod: month\nonExhausted: deny\nprotect: {labels: {tier: serving}, cards: 1}"
    )
    planner.town.advance(3 * HOUR)

    batch = planner.asks(web(1, share=50))["pods"]
    serving = planner.asks(web(3, share=50, labels={"tier": "serving"}))["pods"]

    assert [(each["outcome"], each["standing"], each["protected"]) for each in [*batch, *serving]] == [
        ("refused", "", False),
        ("fits", "IN_BUDGET", True),
        ("fits", "IN_BUDGET", True),
        ("refused", "", False),
    ]


def test_the_budget_that_is_gone_first_may_be_the_groups_and_a_pod_uses_it_until_its_deadline(
    planner: Planner,
) -> None:
    entries = budgets(team_a="gpuHours: 100\nperiod: once\ngroup: lab", _settings="lookahead: 0s\n")
    entries["data"]["_group.lab"] = "gpuHours: 10\nperiod: once\n"
    planner.town.hear("configmaps", entries)
    planner.town.advance(0)
    short = pod("short", 100)
    short["spec"] |= {"activeDeadlineSeconds": 3570}

    endless, ends = planner.asks(pod("endless", 100)), planner.asks(short)

    assert (endless["after"]["namespace"], ends["after"]["namespace"]) == ("_group.lab", "_group.lab")
    now_ms = endless["after"]["now"]["goneAt"] - 10 * HOUR
    assert now_ms in (T0, T0 + 1)  # the ledger's clock went on with the new entries
    assert ends["after"]["now"]["goneAt"] is None
    assert (endless["needs"], ends["needs"]["gpuHours"]) == (None, "1")


def test_who_may_not_simulate_here_is_refused(planner: Planner) -> None:
    planner.town.reviews.tokens[READER] = user_status("reader")
    planner.town.reviews.denied.add(("reader", "create", "simulations", "team-a"))

    problem = planner.asks(pod("one"), status=403, bearer=READER)

    assert problem["detail"] == "reader may not create simulations.bursar.dev in namespace team-a"


def test_who_simulates_all_the_time_lets_others_have_their_turn(planner: Planner) -> None:
    """The first is under way, and more of the same account wait, when another account asks."""
    under_way, go_on, polled = Event(), Event(), planner.standings()
    peers = peers_of(lambda: polled)
    webhook = peers.webhook
    assert isinstance(webhook, InProcess)
    order: list[str] = []

    def admits(body: bytes) -> tuple[int, bytes]:
        order.append(orjson.loads(body)["reviews"][0]["request"]["object"]["metadata"]["name"])
        under_way.set()
        go_on.wait(LONGEST_S)
        return cast("tuple[int, bytes]", webhook.called(body))

    planner.services = replace(
        planner.services, peers=replace(peers, webhook=replace(webhook, called=admits))
    )
    planner.town.reviews.tokens[READER] = user_status("reader")
    with ThreadPoolExecutor(4) as pool:

        def asks(name: str, bearer: str = ADMIN, namespace: str = "team-a") -> "Future[Any]":
            client = replace(planner, client=app_of(planner.services).test_client())
            return pool.submit(client.asks, pod(name), bearer=bearer, namespace=namespace)

        def waits(many: int) -> bool:
            return planner.services.simulations.waiting() == many

        answers = [asks("first")]
        assert under_way.wait(LONGEST_S)
        for waiting, given in enumerate((("again",), ("more",), ("hers", READER, "team-b")), 1):
            answers.append(asks(*given))
            eventually(partial(waits, waiting))
        go_on.set()
        outcomes = [answer.result(LONGEST_S)["pods"][0]["outcome"] for answer in answers]

    assert outcomes == ["fits"] * 4
    assert order == ["first", "hers", "again", "more"]


def test_what_is_no_simulation_is_refused(planner: Planner) -> None:
    assert planner.asks(pod("x"), status=400, budget="gpuHours: 1")["field"] == "budget"
    assert planner.asks(pod("x"), status=400, version=2)["field"] == "version"


def test_a_pod_without_a_gpu_is_not_governed(planner: Planner) -> None:
    plain = {**pod("web"), "spec": {"containers": [{"name": "web", "image": "x"}]}}

    (found,) = planner.asks(plain)["pods"]

    assert (found["name"], found["outcome"], found["cost"]["rateMilli"]) == ("web", "not-governed", 0)


def test_a_role_that_gives_no_answer_is_named() -> None:
    with pytest.raises(Problem) as found:
        Peer("webhook", "https://127.0.0.1:1", lambda: "", 1.0).ask("/simulate", {})

    assert found.value.status == 503
    assert "the webhook cannot be asked" in found.value.detail


def test_a_ledger_alone_simulates_nothing_and_says_why_whatever_the_caller_may_do(town: Town) -> None:
    town.only_meter = True
    town.start_anew()
    town.serve()
    asked = {"version": 1, "namespace": "team-a", "manifest": pod("x")}

    assert town.post("/v1/simulate", asked, token("nobody")).status_code == 401
    refused = town.post("/v1/simulate", asked)
    assert (refused.status_code, refused.get_json()["detail"]) == (501, LEDGER_ALONE)


def owner(kind: str, spec: Json, version: str, name: str = "train") -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(parallelism: int, **annotations: str) -> Json:
    spec = {"parallelism": parallelism, "template": template(100, annotations=annotations)}
    return owner("Job", spec, "batch/v1")


def groups(replicas: int) -> Json:
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template(50)}}
    return owner("LeaderWorkerSet", spec, "leaderworkerset.x-k8s.io/v1")


def outcomes(answer: Any) -> list[tuple[str, str]]:
    return [(each["name"], each["outcome"]) for each in answer["pods"]]


def test_the_pods_of_an_owner_start_together_where_gangs_are_auto(planner: Planner) -> None:
    """On two cards, of which a debtor holds one: singly one pod starts, and of the gang none."""
    alone = planner.asks(job(2))
    planner.budget_is("gpuHours: 100\nperiod: month\ngangs: auto")
    together = planner.asks(job(2))

    assert outcomes(alone) == [("train-0", "fits"), ("train-1", "waits")]
    assert outcomes(together) == [("train-0", "waits"), ("train-1", "waits")]
    assert {each["held"] for each in together["pods"]} == {"turn"}
    (why,) = {each["reasons"][0]["reason"] for each in together["pods"]}
    assert why.startswith("gang train starts whole: 1 of 2 members fit; 1 cards missing")
    generated = {**job(1), "metadata": {"generateName": "train-"}}
    assert [name for name, _ in outcomes(planner.asks(generated))] == ["train--0"]


def test_the_pods_of_an_owner_that_is_refused_are_refused_with_its_sentence(planner: Planner) -> None:
    annotations = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}

    answer = planner.asks(job(3, **annotations))

    assert outcomes(answer) == [(f"train-{at}", "refused") for at in range(3)]
    (sentence,) = {each["refusal"] for each in answer["pods"]}
    assert "this Job creates 3 pods of the template, which would start together" in sentence
    assert answer["cost"]["rateMilli"] == 0


def test_of_a_train_job_is_said_what_its_runtime_leaves_open(planner: Planner) -> None:
    trainer: Json = {"numNodes": 1, "resourcesPerNode": {"limits": {"bursar.dev/gpu-percent": "100"}}}
    train = owner(
        "TrainJob", {"runtimeRef": {"name": "torch"}, "trainer": trainer}, "trainer.kubeflow.org/v1alpha1"
    )

    answer = planner.asks(train)

    assert outcomes(answer) == [("train-0-0-0", "fits")]
    assert answer["note"].startswith("of TrainJob train the runtime torch is not read: other requests")
    del trainer["resourcesPerNode"]
    problem = planner.asks(train, status=400)
    assert (problem["field"], "resourcesPerNode is absent" in problem["detail"]) == ("manifest", True)


def with_spec(**fields: object) -> Json:
    one = pod("one")
    return {**one, "spec": {**one["spec"], **fields}}


def deep(levels: int) -> Json:
    return {"a": deep(levels - 1)} if levels else {}


def test_a_claim_that_is_nested_too_deep_is_refused_by_its_field(planner: Planner) -> None:
    problem = planner.asks(pod("one"), status=400, claims=[{}, {"spec": deep(300)}])

    assert problem["field"] == "claims[1]"
    assert planner.asks(pod("one"), claims=[{"spec": deep(90)}])["pods"][0]["outcome"] == "fits"


@pytest.mark.parametrize(
    ("manifest", "field", "said"),
    [
        (job(51), "manifest", "at most 50 pods are simulated"),
        (web(10**9), "manifest", "at most 50 pods are simulated"),
        (groups(10**15), "manifest", "at most 50 pods are simulated"),
        (with_spec(priority=2**70), "manifest.spec.priority", "it must be a number of 64 bits"),
        (with_spec(activeDeadlineSeconds=10**30), "manifest.spec.activeDeadlineSeconds", "of 64 bits"),
        (with_spec(activeDeadlineSeconds=1e30), "manifest.spec.activeDeadlineSeconds", "of 64 bits"),
        (
            with_spec(volumes=[{}, {"emptyDir": {"sizeLimit": -(2**70)}}]),
            "manifest.spec.volumes[1].emptyDir.sizeLimit",
            "of 64 bits",
        ),
        (with_spec(affinity=deep(300)), "manifest", "not be nested more than 100 levels deep"),
        (
            with_spec(priority="high"),
            "manifest",
            "the webhook says: malformed simulation: request.object.spec.priority",
        ),
        (job(0), "manifest", "it has no pods"),
        ({"apiVersion": "v1", "kind": "Service"}, "manifest", "Pod of v1, Deployment of apps"),
        ({"apiVersion": "v1", "kind": "List", "items": []}, "manifest", "its kind must be one of these"),
        ({**job(1), "apiVersion": "example.com/v1"}, "manifest", "its kind must be one of these"),
        ({**job(1), "metadata": 7}, "manifest.metadata", "it must be an object"),
        ({**job(1), "metadata": {"name": 7}}, "manifest.metadata.name", "at most 253 characters"),
        (
            {**job(1), "metadata": {"name": "a", "namespace": "b"}},
            "manifest.metadata.namespace",
            "it must be team-a, or absent",
        ),
        ({**pod("x"), "spec": {}}, "manifest.spec", "with containers"),
        ({**web(1), "spec": {"template": "t"}}, "manifest.spec", "with containers"),
        ({**web(1), "spec": 3}, "manifest.spec", "with containers"),
    ],
)
def test_a_manifest_that_cannot_be_simulated_is_refused_with_its_field(
    planner: Planner, manifest: Json, field: str, said: str
) -> None:
    problem = planner.asks(manifest, status=400)

    assert problem["field"] == field
    assert said in problem["detail"]
