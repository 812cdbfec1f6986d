"""Idle pods with cards, and with claims: reports of an agent, claims and their pods in a real settler, an API
server whose answers are told, and a clock turned by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.clocks import iso
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429, Leaving
from tests.timekeeper.ledger.test_budget_evictions import pod
from tests.timekeeper.worlds import (
    MINUTE,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    node,
)
from timekeeper.accounts.claims.claim_sessions import decode_devices
from timekeeper.settler.evictions.rounds import IdleRound
from timekeeper.store import fencing
from timekeeper.store.engine.schema import NODE_USES

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

CLAIMS = "resourceclaims"
UNTIL, RECLAIMABLE = "bursar.dev/idle-until", "bursar.dev/reclaimable"
TERMS = "idleAfter: 10m\nidleGrace: 5m\nidleBelow: 0.05"
DUE = 16  # minutes, in which a pod that is idle from the first report on is warned and leaves


def entries(idle: str, mode: str = "enforce") -> Json:
    return budgets(_settings=f"idle: {idle}\n{TERMS}", team_a=f"gpuHours: 100\nmode: {mode}")


class Devices(Leaving):
    """A node with devices of a driver, of which an agent reports the use each minute."""

    def __init__(self, town: Town, api: FakeApiServer, url: str, folder: Path) -> None:
        super().__init__(town, api, url, folder)
        self.use: dict[str, int | None] = {}  # of a card, where that is not 0; None: unknown
        self.unseen: set[str] = set()  # cards that the agent does not report

    def start(
        self, *objects: Json, idle: str = "evict", mode: str = "enforce", without: tuple[str, ...] = ()
    ) -> None:
        """``without``: devices whose driver publishes no UUID."""
        published = device_slice(*(f"gpu-{place}" for place in range(4)))
        for each in published["spec"]["devices"]:
            named = {} if each["name"] in without else {"uuid": {"string": f"GPU-{each['name']}"}}
            each["attributes"] = each["attributes"] | named
        self.town.begin(
            ("nodes", node(cards=8)),
            ("configmaps", entries(idle, mode)),
            ("resourceslices", published),
            *((CLAIMS if "devices" in each["spec"] else "pods", each) for each in objects),
        )
        self.evictor = IdleRound(self.context())

    def restart(self) -> None:
        """The settler is killed, and another one takes over."""
        self.town.restart()
        self.town.quiet(CLAIMS)
        self.town.tick()
        self.evictor = IdleRound(self.context())

    def turn(self, minutes: int) -> list[str]:
        """The pods that were asked to leave meanwhile."""
        before = len(self.api.evictions)
        for _ in range(minutes):
            self.town.clock.turn(MINUTE)
            self._report()
            self.town.quiet(CLAIMS)
            self.town.node_heard()
            self.town.tick()
            patched = len(self.api.patches)
            self.evictor.step()
            self.apply(self.api.patches[patched:])
            self.town.tick()
        return sorted({name for name in self.asked()[before:] if name not in self.api.refusals})

    def noted(self) -> dict[str, set[str]]:
        """The pods with an annotation of their idleness."""
        pods = self.town.objects["pods"].values()
        found = {each["metadata"]["name"]: each["metadata"]["annotations"].keys() for each in pods}
        return {name: own & {UNTIL, RECLAIMABLE} for name, own in found.items() if own & {UNTIL, RECLAIMABLE}}

    def listed(self) -> list[tuple[str, int]]:
        """Name, and minutes since T0, of the pods of ``/v1/idle``."""
        found = self.town.get("/v1/idle").get_json()["pods"]
        return [(each["pod"], (each["since"] - T0) // MINUTE) for each in found]

    def _report(self) -> None:
        seen = [f"GPU-gpu-{place}" for place in range(4) if f"GPU-gpu-{place}" not in self.unseen]
        whole = [{"uuid": uuid, "utilisation": self.use.get(uuid, 0), "memory_mib": 9} for uuid in seen]
        own = [{"uuid": "GPU-0", "utilisation": self.use.get("GPU-0", 0), "memory_mib": 9}]
        placed = [each for each in self.town.objects["pods"].values() if _is_placed(each)]
        self.report([{"uid": each["metadata"]["uid"], "cards": own} for each in placed], [*whole, *own])


def _is_placed(pod: Json) -> bool:
    return "bursar.dev/devices" in pod["metadata"]["annotations"]


def user(name: str, *claims: str, governed: bool = True, at_ms: int = T0) -> Json:
    """A pod with these claims, that was bound then."""
    made = pod(name)
    made["metadata"]["annotations"] = {"bursar.dev/claims": "1", "bursar.dev/standing": "IN_BUDGET"}
    made["metadata"]["labels"] = {"bursar.dev/governed": "true"} if governed else {}
    made["spec"]["resourceClaims"] = [{"name": each, "resourceClaimName": each} for each in claims]
    made["spec"]["containers"][0]["resources"] = {}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(at_ms)}
    made["status"]["conditions"] = [bound]
    return made


def claim(name: str, *users: str, devices: tuple[str, ...] = ("gpu-0",), **more: Any) -> Json:
    results = [allocated(each, **more) for each in devices]
    return device_claim(name, *results, at_ms=T0, pods=tuple(f"uid-{each}" for each in users))


@pytest.fixture
def world(town: Town, tmp_path: Path) -> Iterator[Devices]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Devices(town, api, url, tmp_path)


def test_a_pod_that_does_not_use_its_card_is_warned_and_then_reclaimable_until_it_does(
    world: Devices,
) -> None:
    """Also across a restart of the settler; the decisions say since when it is idle."""
    world.start(gpu_pod("p", started_ms=T0), idle="reclaim")
    assert (world.turn(10), world.noted()) == ([], {})
    assert (world.turn(1), world.noted()) == ([], {"p": {UNTIL}})

    world.restart()
    assert (world.turn(4), world.noted()) == ([], {"p": {UNTIL}})
    assert (world.turn(1), world.noted()) == ([], {"p": {UNTIL, RECLAIMABLE}})
    marks = world.pod("p")["metadata"]["annotations"]
    assert (marks[UNTIL], marks[RECLAIMABLE]) == ("2026-11-20T10:16:00Z", "idle")
    assert world.turn(10) == []
    told = [(decision.kind, decision.reason, decision.figures["sinceMs"]) for decision in world.decisions]
    assert told == [
        ("warned", "IdleWarning", T0 + MINUTE),
        ("reclaimable", "IdleReclaimable", T0 + MINUTE),
    ]
    assert [event["reason"] for event in world.api.events] == ["IdleWarning", "IdleReclaimable"]

    world.use["GPU-0"] = 5
    assert (world.turn(1), world.noted()) == ([], {})


def test_with_evict_a_disruption_budget_keeps_it_without_end(world: Devices) -> None:
    world.start(gpu_pod("p", started_ms=T0))
    world.api.refusals["p"] = (429, PDB_429)
    world.turn(3 * DUE)
    assert {*world.asked()} == {"p"}
    assert world.api.deletions == []

    world.api.refusals.clear()
    assert world.turn(10) == ["p"]
    assert [event["reason"] for event in world.api.events] == ["IdleWarning", "IdleEviction"]


def test_only_the_newest_settler_evicts(world: Devices) -> None:
    world.start(gpu_pod("p", started_ms=T0))
    world.turn(DUE - 1)
    world.town.resume()
    world.town.clock.turn(MINUTE)

    with pytest.raises(fencing.EpochOverError):
        world.evictor.step()
    assert world.asked() == []


def test_a_pod_whose_device_is_not_used_is_warned_and_leaves(world: Devices) -> None:
    """Another's, which is used, stays."""
    world.use["GPU-gpu-1"] = 5
    world.start(claim("c", "p"), claim("d", "q", devices=("gpu-1",)), user("p", "c"), user("q", "d"))

    assert (world.turn(11), world.noted()) == ([], {"p": {UNTIL}})
    assert world.listed() == [("uid-p", 1)]
    assert world.turn(DUE - 11) == ["p"]
    conditions = [body["status"]["conditions"][0] for _, body in world.api.patches if "status" in body]
    assert [(each["type"], each["status"], each["reason"]) for each in conditions] == [
        ("DisruptionTarget", "True", "BursarIdle")
    ]
    assert {each["reason"] for each in world.api.events} == {"IdleWarning", "IdleEviction"}


def test_a_device_of_which_a_claim_holds_a_tenth_is_used_by_the_part_of_that_tenth(world: Devices) -> None:
    """4 % of the card are at most 40 % of 8 of its 80 GiB; of another card, held whole, they are 4 %."""
    world.use = {"GPU-gpu-0": 4, "GPU-gpu-1": 4}
    tenth = claim("c", "p", shareID="s", consumedCapacity={"memory": "8Gi"})
    world.start(tenth, claim("d", "q", devices=("gpu-1",)), user("p", "c"), user("q", "d"))
    assert (world.turn(DUE), world.listed()) == (["q"], [("uid-q", 1)])

    world.use["GPU-gpu-0"] = 0
    world.turn(1)
    assert world.listed() == [("uid-p", DUE + 1), ("uid-q", 1)]


def test_a_settler_that_takes_over_goes_on_with_what_the_device_was_used_before(world: Devices) -> None:
    world.start(claim("c", "p"), user("p", "c"))
    assert world.turn(11) == []
    world.restart()

    assert world.turn(DUE - 11) == ["p"]


def test_one_use_of_the_device_ends_it(world: Devices) -> None:
    world.start(claim("c", "p"), user("p", "c"))
    world.turn(11)
    world.use["GPU-gpu-0"] = 5
    world.turn(1)

    assert (world.noted(), world.listed()) == ({}, [])


def test_all_sharers_of_a_claim_leave_or_none_and_one_is_busy_by_a_claim_of_its_own(world: Devices) -> None:
    world.use["GPU-gpu-1"] = 50
    world.start(
        claim("c", "p", "q"), claim("d", "q", devices=("gpu-1",)), user("p", "c"), user("q", "c", "d")
    )
    assert (world.turn(3 * DUE), world.noted()) == ([], {})

    world.use["GPU-gpu-1"] = 0
    assert world.turn(10) == []
    assert world.turn(DUE - 10) == ["p", "q"]


def created(made: Json, at_ms: int) -> Json:
    made["metadata"]["creationTimestamp"] = iso(at_ms)
    return made


def test_a_sharer_that_was_created_without_enforcement_keeps_the_others_by_that_claim(
    world: Devices,
) -> None:
    """``p`` also has a claim of its own, which ends: it leaves for that. ``r`` has none."""
    old = user("q", "c", governed=False)
    at_ms = T0 + 10 * MINUTE
    shared, own = claim("c", "p", "q", "r"), claim("d", "p", devices=("gpu-1",))
    world.start(shared, own, old, mode="meter")
    world.turn(5)
    world.town.change("configmaps", entries("evict"))
    world.turn(5)
    for each in (user("p", "c", "d", at_ms=at_ms), user("r", "c", at_ms=at_ms)):
        world.town.hear("pods", created(each, at_ms))

    assert world.turn(11) == []
    assert world.noted() == {"p": {UNTIL}}
    assert world.turn(DUE - 11) == ["p"]


def test_a_sharer_that_came_late_has_its_own_time_and_the_others_wait_for_it(world: Devices) -> None:
    world.start(claim("c", "p"), user("p", "c"))
    assert world.turn(11) == []
    world.town.hear("pods", user("q", "c", at_ms=T0 + 11 * MINUTE))
    world.town.change(CLAIMS, claim("c", "p", "q"))

    assert (world.turn(9), world.noted()) == ([], {"p": {UNTIL}})
    assert (world.turn(5), world.noted()) == ([], {"p": {UNTIL}, "q": {UNTIL}})
    assert world.turn(4) == ["p", "q"]


def test_where_a_disruption_budget_keeps_one_of_the_sharers_none_leaves(world: Devices) -> None:
    world.start(claim("c", "p", "q"), user("p", "c"), user("q", "c"))
    world.api.refusals["q"] = (429, PDB_429)

    assert world.turn(2 * DUE) == []
    assert world.api.evictions == []


@pytest.mark.parametrize("unknown", ["no uuid", "no figure", "no card"])
def test_a_device_that_nothing_measures_keeps_the_pods_of_its_claim(world: Devices, unknown: str) -> None:
    """The other device of the claim is idle."""
    if unknown == "no figure":
        world.use["GPU-gpu-1"] = None
    if unknown == "no card":
        world.unseen.add("GPU-gpu-1")
    both = claim("c", "p", devices=("gpu-0", "gpu-1"))
    world.start(both, user("p", "c"), without=("gpu-1",) if unknown == "no uuid" else ())

    assert (world.turn(3 * DUE), world.noted(), world.listed()) == ([], {}, [])


def test_a_pod_with_a_card_of_its_own_is_idle_by_that_too(world: Devices) -> None:
    both = gpu_pod("p", started_ms=T0)
    both["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    world.use["GPU-0"] = 50
    world.start(claim("c", "p"), both)
    assert (world.turn(2 * DUE), world.noted()) == ([], {})

    world.use["GPU-0"] = 0
    assert world.turn(DUE) == ["p"]


def test_the_card_of_a_pod_with_a_placement_is_no_device_of_a_claim(world: Devices) -> None:
    """The agent's figures of it are that pod's, whatever a driver publishes."""
    world.start(claim("c", "p"), user("p", "c"), gpu_pod("q", started_ms=T0))
    world.turn(1)

    with world.town.store.reading() as connection:
        (row,) = connection.execute(select(NODE_USES.c.idle)).all()
    assert "card/GPU-gpu-0" in row.idle
    assert "card/GPU-0" not in row.idle


def test_access_for_administrators_is_no_use_and_its_pod_stays(world: Devices) -> None:
    world.start(claim("c", "p", adminAccess=True), user("p", "c"))

    assert (world.turn(2 * DUE), world.noted()) == ([], {})


def test_with_reclaim_the_pod_is_marked_and_its_session_names_the_device(world: Devices) -> None:
    world.start(claim("c", "p"), user("p", "c"), idle="reclaim")

    assert (world.turn(2 * DUE), world.noted()) == ([], {"p": {UNTIL, RECLAIMABLE}})
    (session,) = world.town.settler.ledger.sessions.values()
    assert [(each.driver, each.uuid) for each in decode_devices(session.devices)] == [
        (DRIVER, "GPU-gpu-0"),
    ]


# whose pods these are

NOTEBOOK, APPS = "kubeflow.org/v1", "apps/v1"
CONSENT = {"bursar.dev/idle": "scale"}
IN_TEAM_A = "namespaces/team-a"
SCALERS = f"/apis/autoscaling/v2/{IN_TEAM_A}/horizontalpodautoscalers"


def reference(version: str, kind: str, name: str) -> list[Json]:
    made = {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{kind}", "controller": True}
    return [made]


def path_of(version: str, kind: str, name: str) -> str:
    return f"/apis/{version}/{IN_TEAM_A}/{kind.lower()}s/{name}"


Chain = list[tuple[str, str, str]]  # of controllers from the pod on: apiVersion, kind and name
OF_NOTEBOOK: Chain = [(APPS, "StatefulSet", "nb"), (NOTEBOOK, "Notebook", "nb")]
OF_DEPLOYMENT: Chain = [(APPS, "ReplicaSet", "web-5f"), (APPS, "Deployment", "web")]
OF_STATEFUL_SET: Chain = [(APPS, "StatefulSet", "db")]
OF_JOB: Chain = [("batch/v1", "Job", "train")]
OF_SERVICE: Chain = [*OF_DEPLOYMENT, ("serving.knative.dev/v1", "Revision", "llm")]


class Owned:
    """Objects above pods, which the API server answers with. ``top``: metadata of the last of them."""

    def __init__(self, chain: Chain, top: Json | None = None, scalers: list[Json] | int = 200) -> None:
        self.chain, self.scalers, self.unreadable = chain, scalers, set[str]()
        self.objects: dict[str, Json] = {}
        for place, (version, kind, name) in enumerate(chain):
            above = reference(*chain[place + 1]) if place + 1 < len(chain) else []
            metadata = {"name": name, "uid": f"uid-{kind}", "resourceVersion": "7", "ownerReferences": above}
            metadata |= (top or {}) if not above else {}
            self.objects[path_of(version, kind, name)] = {"metadata": metadata, "spec": {"replicas": 3}}

    def answer(self, method: str, path: str, _body: Json) -> tuple[int, Json] | None:
        if path.startswith(SCALERS):
            status = 200 if isinstance(self.scalers, list) else self.scalers
            return status, {"items": self.scalers if isinstance(self.scalers, list) else [], "message": "no"}
        return (200, self.objects[path]) if path in self.objects and path not in self.unreadable else None

    def pods(self, world: Devices, *cards: int) -> list[Json]:
        """A pod on each of these cards."""
        made = [gpu_pod(f"p{card}", started_ms=T0, card=card) for card in cards]
        for owned in made:
            owned["metadata"]["ownerReferences"] = reference(*self.chain[0])
            owned["metadata"].setdefault("labels", {})["pod-template-hash"] = "5f"
            world.api.named[owned["metadata"]["name"]] = owned
        world.api.others = self.answer
        return made


def said(world: Devices) -> list[tuple[str, str]]:
    """The Events on pods: reason, and text."""
    return [(event["reason"], event["note"]) for event in world.api.events]


@pytest.mark.parametrize(
    ("chain", "path", "body", "again"),
    [
        (
            OF_NOTEBOOK,
            path_of(NOTEBOOK, "Notebook", "nb"),
            {"annotations": {"kubeflow-resource-stopped": "2026-11-20T10:16:00Z"}},
            "kubectl annotate notebook nb -n team-a kubeflow-resource-stopped-",
        ),
        (
            OF_DEPLOYMENT,
            f"{path_of(APPS, 'Deployment', 'web')}/scale",
            {"replicas": 0},
            "kubectl scale deployment web -n team-a --replicas=3",
        ),
        (
            OF_STATEFUL_SET,
            f"{path_of(APPS, 'StatefulSet', 'db')}/scale",
            {"replicas": 0},
            "kubectl scale statefulset db -n team-a --replicas=3",
        ),
    ],
    ids=["Notebook", "Deployment", "StatefulSet"],
)
def test_with_scale_the_topmost_owner_of_an_idle_pod_is_scaled_to_zero_with_its_users_consent(
    world: Devices, chain: Chain, path: str, body: Json, again: str
) -> None:
    owned = Owned(chain, {"annotations": CONSENT}, scalers=[])
    world.start(*owned.pods(world, 0), idle="scale")

    assert world.turn(DUE + 2) == []

    sent = [patch for patch in world.api.patches if "/pods/" not in patch[0]]
    named = f"{chain[-1][1]} {chain[-1][2]}"
    assert [to for to, _ in sent] == [path]
    assert sent[0][1]["metadata"]["resourceVersion"] == "7"
    assert body.items() <= (sent[0][1]["metadata"] | sent[0][1].get("spec", {})).items()
    (warned, first), (done, second) = said(world)
    assert (warned, done) == ("IdleWarning", "IdleScaledToZero")
    assert first.endswith(f"{named} is scaled to zero.")
    assert second.endswith(f"Bursar scaled {named} to zero. To start it again: {again}")
    assert [(decision.kind, decision.reason) for decision in world.decisions][-1] == (
        "evicted",
        "IdleScaledToZero",
    )


ARGO = {"argocd.argoproj.io/tracking-id": "web:apps/Deployment:team-a/web"}
FLUX = {"kustomize.toolkit.fluxcd.io/name": "team-a"}
HPA = {"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}}}


NO_SCALE = "Bursar cannot read it, or cannot scale its kind"


@pytest.mark.parametrize(
    ("owned", "cards", "why"),
    [
        (Owned(OF_DEPLOYMENT, {}, []), (0,), "it has no annotation bursar.dev/idle: scale"),
        (Owned(OF_DEPLOYMENT, {"annotations": CONSENT | ARGO}, []), (0,), "a repository keeps it as it is"),
        (
            Owned(OF_DEPLOYMENT, {"annotations": CONSENT, "labels": FLUX}, []),
            (0,),
            "a repository keeps it as it is",
        ),
        (Owned(OF_DEPLOYMENT, {"annotations": CONSENT}, [HPA]), (0,), "an autoscaler keeps it"),
        (
            Owned(OF_DEPLOYMENT, {"annotations": CONSENT}, 403),
            (0,),
            "it is not known whether an autoscaler keeps it: no",
        ),
        (Owned(OF_DEPLOYMENT, {"annotations": CONSENT}, []), (0, 1), "other pods of it use their cards"),
        (Owned(OF_SERVICE, {"annotations": CONSENT}, []), (0,), NO_SCALE),
        (Owned(OF_JOB, {"annotations": CONSENT}, []), (0,), NO_SCALE),
    ],
)  # fmt: skip
def test_an_owner_that_another_keeps_or_that_did_not_consent_is_not_scaled_and_its_pod_is_evicted(
    world: Devices, owned: Owned, cards: tuple[int, ...], why: str
) -> None:
    world.start(*owned.pods(world, *cards), idle="scale")

    assert world.turn(DUE + 2) == ["p0"]

    assert [patch for patch in world.api.patches if "/pods/" not in patch[0]] == []
    reasons, texts = zip(*said(world), strict=True)
    assert reasons == ("IdleWarning", "IdleEviction")
    assert f"creates it again; it is not scaled to zero: {why}. To free its cards: " in texts[-1]


def test_an_owner_that_changes_meanwhile_is_not_scaled(world: Devices) -> None:
    owned = Owned(OF_STATEFUL_SET, {"annotations": CONSENT}, scalers=[])
    world.start(*owned.pods(world, 0), idle="scale")
    world.turn(DUE - 1)
    world.api.patch_answer = 409

    assert world.turn(2) == ["p0"]
    assert said(world)[-1][0] == "IdleEviction"


@pytest.mark.parametrize(
    ("chain", "unreadable", "named", "helps"),
    [
        (OF_NOTEBOOK, "", "Notebook nb", "kubectl annotate notebook nb -n team-a kubeflow-resource-stopped="),
        (OF_NOTEBOOK, "Notebook", "Notebook nb", "kubectl annotate notebook nb -n team-a kubeflow-"),
        (OF_NOTEBOOK, "StatefulSet", "StatefulSet nb", "kubectl scale statefulset nb -n team-a --replicas=0"),
        (OF_DEPLOYMENT, "", "Deployment web", "kubectl scale deployment web -n team-a --replicas=0"),
        (OF_DEPLOYMENT, "ReplicaSet", "Deployment web", "kubectl scale deployment web -n team-a"),
        (OF_SERVICE, "", "Revision llm", "stop Revision llm"),
        (OF_JOB, "", "Job train", "kubectl delete job train -n team-a"),
    ],
)  # fmt: skip
def test_the_warning_names_the_topmost_owner_and_what_frees_its_cards(
    world: Devices, chain: Chain, unreadable: str, named: str, helps: str
) -> None:
    owned = Owned(chain)
    owned.unreadable = {path_of(*owner) for owner in chain if owner[1] == unreadable}
    world.start(*owned.pods(world, 0), idle="evict")

    world.turn(DUE - 1)

    ((reason, note),) = said(world)
    assert reason == "IdleWarning"
    assert f" {named} creates it again. To free its cards: {helps}" in note
