"""Static pods: kubelets run them from files of their nodes, and their mirrors are deleted and made again."""

from itertools import count
from random import Random

import pytest

from tests import worlds
from tests.support.profile import examples
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, budgets, lease, node
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.settler.findings import findings


def whole(name: str = "n1", gpus: str = "2") -> Json:
    """A node whose device plugin gives out so many whole cards."""
    offered = {"nvidia.com/gpu": gpus}
    return {"metadata": {"name": name}, "status": {"capacity": offered, "allocatable": offered}}


def mirror(
    uid: str = "m1",
    *,
    gpus: str = "1",
    created_ms: int = T0,
    started_ms: int | None = T0,
    ended_ms: int | None = None,
    since_ms: int | None = None,
    namespace: str = "team-a",
    name: str = "web",
    at: str = "n1",
    file: str = "4f3e",
    annotations: Json | None = None,
) -> Json:
    """The object that the kubelet of a node makes of the static pod in this file. ``since_ms``: since when
    its status says that the pod has its node."""
    pod = worlds.pod(
        worlds.of_resources({"nvidia.com/gpu": gpus}),
        annotations={"kubernetes.io/config.mirror": file} | (annotations or {}),
        nodeName=at,
        terminationGracePeriodSeconds=30,
    )
    pod["metadata"] |= {"name": f"{name}-{at}", "namespace": namespace, "uid": uid}
    pod["metadata"]["creationTimestamp"] = iso(created_ms)
    if started_ms is None:
        return pod
    state = worlds.running(iso(started_ms))
    if ended_ms is not None:
        state = worlds.terminated(iso(started_ms), iso(ended_ms))
    pod["status"] = worlds.status("Running" if ended_ms is None else "Succeeded", main=state)
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(since_ms or started_ms)}
    pod["status"]["conditions"] = [bound]
    return pod


def begin(town: Town, *objects: tuple[str, Json]) -> None:
    nodes = objects or (("nodes", whole()),)
    town.begin(*nodes, ("leases", lease(T0)), ("leases", lease(T0, "n2")))


def minutes(town: Town, namespace: str = "team-a") -> int:
    """Charged, in card-minutes."""
    return round(town.charged(namespace) / GPU / MINUTE)


def sessions(town: Town, namespace: str = "team-a") -> list[Json]:
    found: list[Json] = town.get(f"/v1/sessions?namespace={namespace}").get_json()["sessions"]
    return found


def is_whole(town: Town) -> bool:
    """Whether the ledger follows from its evidence."""
    faults: list[Finding] = []
    with town.store.reading() as connection:
        audit(connection, town.clock(), faults.append)
    assert faults == []
    return True


@pytest.mark.parametrize("mode", ["enforce", "observe", "meter"])
def test_a_static_pod_is_charged_from_its_first_mirror_whatever_its_kubelet_says_of_the_time_before(
    town: Town, mode: str
) -> None:
    begin(town, ("nodes", whole()), ("configmaps", budgets(team_a=f"gpuHours: 9\nmode: {mode}")))
    town.change("pods", mirror(started_ms=None))
    town.change("pods", mirror(started_ms=T0 - 300 * HOUR))
    town.advance(HOUR)

    (session,) = sessions(town)
    assert (minutes(town), session["rateMilli"], session["owner"]) == (60, GPU, "")


@pytest.mark.parametrize("file", ["2 vendors", "7 GPUs of Bursar"])
def test_a_static_pod_that_admission_would_refuse_is_charged_too(town: Town, file: str) -> None:
    begin(town)
    pod = mirror()
    limits = {"nvidia.com/gpu": "1", "google.com/tpu": "0"} if file == "2 vendors" else {}
    pod["spec"]["containers"][0]["resources"]["limits"] = limits or {
        "nvidia.com/gpu": "1",
        "bursar.dev/gpu-percent": "700",
    }
    town.change("pods", pod)
    town.advance(HOUR)

    assert 60 <= minutes(town) <= 120


def test_what_it_says_in_bursars_name_does_not_count(town: Town) -> None:
    """In a namespace that admission leaves alone anything may be written."""
    begin(town)
    devices = '{"version": 1, "containers": {"main": []}}'
    forged = {"bursar.dev/devices": devices, "bursar.dev/standing": "IN_BUDGET"}
    town.change("pods", mirror(annotations=forged))
    town.advance(HOUR)

    assert minutes(town) == 60


@pytest.mark.parametrize("gone_ms", [0, 10 * SECOND, 10 * MINUTE, 3 * HOUR])
@pytest.mark.parametrize("sees", ["each event", "both in one tick", "a list after a restart"])
def test_one_session_goes_on_while_its_mirror_is_deleted_and_made_again(
    town: Town, gone_ms: int, sees: str
) -> None:
    begin(town)
    town.change("pods", mirror())
    town.advance(HOUR)
    again_ms = T0 + HOUR + gone_ms
    if sees == "each event":
        town.change("pods", mirror(), deleted=True)
        town.advance(gone_ms)
        town.change("pods", mirror("m2", created_ms=again_ms, started_ms=None))
        town.change("pods", mirror("m2", created_ms=again_ms))
    elif sees == "both in one tick":
        town.hear("pods", mirror(), deleted=True)
        town.clock.turn(gone_ms)
        town.hear("pods", mirror("m2", created_ms=again_ms, started_ms=None))
        town.hear("pods", mirror("m2", created_ms=again_ms))
        town.tick()
    else:
        town.hear("pods", mirror(), deleted=True, unheard=True)
        town.clock.turn(gone_ms)
        town.hear("pods", mirror("m2", created_ms=again_ms), unheard=True)
        town.resume()
    town.advance(HOUR)

    assert len(sessions(town)) == 1
    assert minutes(town) == 120 + gone_ms // MINUTE
    assert is_whole(town)


@pytest.mark.parametrize("restarts", [False, True])
def test_one_whose_containers_began_anew_is_not_charged_for_the_time_between(
    town: Town, restarts: bool
) -> None:
    begin(town)
    town.change("pods", mirror())
    town.advance(HOUR)
    town.change("pods", mirror(), deleted=True)
    town.advance(3 * HOUR)
    again_ms = town.clock()
    town.change("pods", mirror("m2", created_ms=again_ms, started_ms=None))
    town.resume() if restarts else town.advance()
    town.change("pods", mirror("m2", created_ms=again_ms, started_ms=again_ms))
    town.advance(HOUR)

    assert minutes(town) == 60 + 60
    assert len(sessions(town)) == 2
    assert is_whole(town)


def test_another_file_is_another_session_and_an_end_that_is_proved_stands(town: Town) -> None:
    begin(town)
    town.change("pods", mirror())
    town.advance(30 * MINUTE)
    town.change("pods", mirror(ended_ms=T0 + 20 * MINUTE))
    town.change("pods", mirror(), deleted=True)
    town.change("pods", mirror("m2", created_ms=town.clock(), started_ms=town.clock(), file="77aa"))
    town.advance(40 * MINUTE)

    assert (minutes(town), len(sessions(town))) == (20 + 40, 2)
    assert is_whole(town)


@pytest.mark.parametrize(
    ("gpus", "offered", "cards"),
    [("100", whole(), 2), ("100", node(), 2), ("1", whole(gpus="0"), 0), ("2", node(cards=1), 1)],
    ids=["counted", "described", "no-cards", "one-card"],
)
def test_it_is_charged_at_most_the_cards_of_its_node(
    town: Town, gpus: str, offered: Json, cards: int
) -> None:
    begin(town, ("nodes", offered))
    town.change("pods", mirror(gpus=gpus))
    town.advance(MINUTE)

    (session,) = sessions(town)
    assert (session["rateMilli"], minutes(town)) == (cards * GPU, cards)


@pytest.mark.parametrize("seed", range(examples(4)))
def test_all_static_pods_of_a_node_together_are_charged_at_most_its_cards(town: Town, seed: int) -> None:
    """Whoever has stolen a node's credentials may write any mirror of it."""
    random = Random(seed)
    begin(town, ("nodes", whole()), ("nodes", whole("n2", gpus="1")))
    uids, there = count(), dict[str, Json]()
    for _ in range(30):
        name, at, namespace = f"w{random.randrange(4)}", random.choice(["n1", "n2"]), random.choice("ab")
        key = f"{namespace}/{name}-{at}"
        if key in there:
            town.change("pods", there.pop(key), deleted=True)
        else:
            there[key] = mirror(
                f"m{next(uids)}",
                gpus=str(random.randint(1, 9)),
                created_ms=town.clock(),
                started_ms=T0 - random.randrange(HOUR),
                namespace=f"team-{namespace}",
                name=name,
                at=at,
                file=random.choice(["f1", "f2"]),
            )
            town.change("pods", there[key])
        town.clock.turn(random.randrange(MINUTE))
        town.node_heard("n2")
        town.advance()
        rates = {"n1": 0, "n2": 0}
        for session in town.settler.ledger.sessions.values():
            rates[session.node] += 0 if session.is_over else session.rate_milli
        assert rates["n1"] <= 2 * GPU
        assert rates["n2"] <= GPU

    assert is_whole(town)


@pytest.mark.parametrize("ended", [False, True])
def test_what_an_earlier_release_charged_by_the_uid_of_the_mirror_is_charged_once(
    town: Town, ended: bool
) -> None:
    """That release knew no mirrors: to it this was a pod like any other, in a namespace that is metered."""

    def of_then(**times: int) -> Json:
        pod = mirror(**times)  # type: ignore[arg-type]
        del pod["metadata"]["annotations"]
        return pod

    metered = budgets(team_a="gpuHours: 9\nmode: meter")
    begin(town, ("nodes", whole()), ("configmaps", metered))
    town.change("pods", of_then())
    town.advance(HOUR)
    done = {"ended_ms": T0 + HOUR} if ended else {}
    town.change("pods", of_then(**done))
    town.advance()
    town.objects["pods"] = {"m1": mirror(**done)}  # type: ignore[arg-type]
    town.resume()
    town.advance(HOUR)

    assert minutes(town) == (60 if ended else 120)
    assert len(sessions(town)) == (1 if ended else 2)
    assert is_whole(town)


def test_doctor_names_it_and_explain_the_node_whose_kubelet_chose_the_namespace(town: Town) -> None:
    begin(town)
    town.change("pods", mirror())
    town.advance(HOUR)

    (found,) = findings(town.settler.view.cluster, BudgetSettings(), town.clock())
    (charge,) = town.get("/v1/explain/team-a/web-n1").get_json()["charges"]
    assert (found.code, found.sentence) == (
        "static-pods",
        "1 static pod holds GPUs, charged to a namespace that its kubelet chose; no budget holds or evicts"
        " it: team-a/web-n1 on n1",
    )
    assert charge["sentence"].startswith("Charged 1 GPU-hours: held cards of node n1")
    assert "the kubelet of n1 chose this namespace" in charge["sentence"]


def test_nothing_holds_or_evicts_it(town: Town) -> None:
    spent = "gpuHours: 0\nonExhausted: evict\nmaxGPUs: 0"
    begin(town, ("nodes", whole()), ("configmaps", budgets(team_a=spent)))
    town.change("pods", mirror())
    town.advance(HOUR)

    (pod,) = town.settler.cluster.pods.values()
    assert town.standing() == "OVER_BUDGET"
    assert not town.settler.ledger.history.was_enforced(pod)
