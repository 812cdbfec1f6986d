"""Who should lead, by a Lease; and an extender that follows what it says, over HTTP."""

import http.client
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from scheduler_ext.leadership.election import OwnLease, SchedulersLease
from tests.scheduler_ext.apiserver import ApiServer, Fault
from tests.scheduler_ext.conftest import Start
from tests.scheduler_ext.machine import mute
from tests.scheduler_ext.preempting import unscheduled
from tests.scheduler_ext.processes import Process
from tests.scheduler_ext.worlds import mib, node, percent
from tests.support.clock import SecondsClock
from tests.support.kubeconfig import kubeconfig
from tests.support.simulated_timekeeper import SimulatedTimekeeper
from tests.support.tls import Tls
from tests.support.waiting import eventually
from timekeeper.edge.lease import LeaseName
from timekeeper.runtime.api_server import lease_caller
from timekeeper.runtime.connect import connect

PLACE = LeaseName("bursar-system", "bursar-extender")


@pytest.fixture
def clock() -> SecondsClock:
    return SecondsClock()


@pytest.fixture
def elector(api: ApiServer, tmp_path: Path, clock: SecondsClock) -> Callable[[str], OwnLease]:
    config = kubeconfig(tmp_path, api.url)
    return lambda name: OwnLease(lease_caller(connect(config)), PLACE, name, 15, clock, mute)


def test_the_first_that_looks_leads_until_it_renews_no_more(
    elector: Callable[[str], OwnLease], clock: SecondsClock
) -> None:
    a, b = elector("a"), elector("b")

    assert (a.look(), b.look()) == (True, False)
    clock.s = 14.0
    assert (a.look(), b.look()) == (True, False)
    clock.s = 28.9
    assert b.look() is False
    clock.s = 29.0
    assert (b.look(), a.look()) == (True, False)


def test_after_one_ends_another_leads_at_once(elector: Callable[[str], OwnLease]) -> None:
    a, b = elector("a"), elector("b")
    assert (a.look(), b.look()) == (True, False)

    b.give_back()  # not its own
    assert b.look() is False
    a.give_back()

    assert b.look() is True


def test_leadership_is_unknown_while_the_api_server_fails_and_lost_after_the_leases_duration(
    api: ApiServer, elector: Callable[[str], OwnLease], clock: SecondsClock
) -> None:
    a = elector("a")
    assert a.look() is True

    # a call that is cut off is made again
    faults = (Fault("lease", status=500), Fault("lease", how="reset"), Fault("lease", status=503))
    api.faults += [*faults, Fault("lease", status=503)]
    clock.s = 3.0
    assert a.look() is None
    clock.s = 14.9
    assert a.look() is None
    clock.s = 15.0
    assert a.look() is False
    assert a.look() is True


def test_of_two_that_write_at_once_one_has_it(api: ApiServer, elector: Callable[[str], OwnLease]) -> None:
    api.faults += [Fault("lease", status=404), Fault("lease", status=404)]  # both see that there is none
    found: list[bool | None] = []
    both = [threading.Thread(target=lambda n=n: found.append(elector(n).look())) for n in "ab"]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert sorted(map(str, found)) == ["False", "True"]


def test_the_extender_of_the_kube_scheduler_that_holds_their_lease_leads(
    api: ApiServer, tmp_path: Path
) -> None:
    config = kubeconfig(tmp_path, api.url)
    place = LeaseName("bursar-system", "bursar-scheduler")
    mine, similar = (SchedulersLease(connect(config), place, host) for host in ("host-1", "host"))
    assert mine.look() is False

    spec = {"holderIdentity": "host-1_5f0c", "leaseDurationSeconds": 15}
    api.lease("POST", place.path.rpartition("/")[0], {"metadata": {"name": place.name}, "spec": spec})

    assert mine.look() is True
    assert similar.look() is False
    api.faults.append(Fault("lease", status=500))
    assert mine.look() is None


def own_pod(api: ApiServer, name: str) -> None:
    metadata = {"name": name, "namespace": "bursar-system", "uid": f"uid-{name}"}
    api.put("pods", {"metadata": metadata, "spec": {"containers": []}, "status": {}})


def flags(name: str) -> list[str]:
    return [
        "--leader-election=lease",
        "--lease-duration=15s",
        f"--identity={name}",
        f"--pod=bursar-system/{name}",
    ]


def test_only_the_leader_is_ready_and_binds_and_another_follows_it_once_it_ends(
    api: ApiServer, start: Start
) -> None:
    own_pod(api, "x")
    own_pod(api, "y")
    first = start(*flags("x"))
    first.put_node(node("a"))
    second = start(*flags("y"), wait=False)
    raw = first.put_pod(percent(50))
    eventually(lambda: not second.extender.incomplete())
    second.hears(api.pod("p"))

    assert (first.client.get("/readyz").status_code, second.client.get("/readyz").status_code) == (200, 503)
    assert (first.extender.sends_away(), second.extender.sends_away()) == (False, True)
    assert second.bind(raw, "a") == "this extender is not the leader; another replica binds"
    assert first.bind(raw, "a") == ""

    other = first.put_pod(percent(50, "other"))
    first.extender.stop()
    assert first.bind(other, "a") == "this extender is not the leader; another replica binds"
    eventually(second.extender.leadership.leads)
    second.hears(api.pod("other"))
    assert second.bind(other, "a") == ""
    assert second.client.get("/readyz").status_code == 200
    assert "bursar_extender_leads 1.0" in second.client.get("/metrics").text
    assert "bursar_extender_takeovers_total 1.0" in second.client.get("/metrics").text


def test_a_bind_makes_one_that_has_become_leader_look_at_once(api: ApiServer, start: Start) -> None:
    own_pod(api, "host-1")
    place = LeaseName("bursar-system", "bursar-scheduler")
    world = start(
        "--leader-election=scheduler",
        "--identity=host-1",
        "--pod=bursar-system/host-1",
        "--bind-timeout=60s",
        wait=False,
    )
    world.put_node(node("a"))
    raw = world.put_pod(percent(50))
    eventually(lambda: len(api.made("lease")) > 0)
    spec = {"holderIdentity": "host-1_5f0c", "leaseDurationSeconds": 15}
    api.lease("POST", place.path.rpartition("/")[0], {"metadata": {"name": place.name}, "spec": spec})

    assert world.bind(raw, "a") == ""


def test_a_follower_sends_its_callers_away_and_a_leader_that_ends_gives_its_lease_back(
    api: ApiServer, tmp_path: Path
) -> None:
    config = kubeconfig(tmp_path, api.url)
    api.put("nodes", node("a"))
    own_pod(api, "x")
    own_pod(api, "y")
    leader, follower = (
        Process(tmp_path, f"--kubeconfig={config}", *flags(name), traced=True) for name in "xy"
    )
    leader.start_ready()
    follower.start()
    eventually(lambda: follower.answers("/livez"))
    eventually(lambda: (follower.get("/readyz")[0], leader.get("/readyz")[0]) == (503, 200))

    assert [kept(each) for each in (leader, follower)] == [True, False]
    assert leader.end() == 0
    eventually(lambda: follower.get("/readyz")[0] == 200)
    assert api.leases[PLACE.path]["spec"]["holderIdentity"] == "y"
    follower.kill()


def test_a_follower_leaves_it_to_the_leader_to_record_why_kube_scheduler_refuses_a_pod(
    api: ApiServer, start: Start, tls: Tls
) -> None:
    """All replicas see its condition, and only the one that filter asked knows more."""
    own_pod(api, "y")
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 3600}
    api.lease("POST", PLACE.path.rpartition("/")[0], {"metadata": {"name": PLACE.name}, "spec": spec})
    with SimulatedTimekeeper(tls) as timekeeper:
        world = start(*flags("y"), *timekeeper.flags, wait=False)
        eventually(lambda: not world.extender.incomplete())
        world.put_node(node("a"))
        world.put_pod(unscheduled("seen", 60))
        world.filter(world.put_pod(mib(10**6, "asked-for")), "a")

        eventually(lambda: b"asked-for" in b"".join(timekeeper.posted))
        assert not world.extender.leadership.leads()
        assert b'"seen"' not in b"".join(timekeeper.posted)


def kept(process: Process) -> bool:
    """Whether a caller may ask again on the same connection."""
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=LONGEST_S)
    try:
        connection.request("POST", "/filter", json.dumps({"Pod": percent(50), "NodeNames": ["a"]}))
        response = connection.getresponse()
        response.read()
        return not response.will_close
    finally:
        connection.close()
