"""Claims on devices, allocated by the real kube-scheduler and freed by the real controllers: the ledger says
when they were held."""

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.local.worlds import NAMESPACES, NODES, get
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.timekeeper.claims import DRIVER, device_slice
from tests.timekeeper.oracle import moment
from tests.timekeeper.processes import Process, prepared

Json = dict[str, Any]

pytestmark = pytest.mark.kubernetes("1.34")

RESOURCES = "/apis/resource.k8s.io/v1"
SLACK_MS = 2_000  # an allocation is dated to the second, and its end as the watch shows it
_numbers = itertools.count()


@dataclass(frozen=True)
class Row:
    """A session of a claim, as the ledger has it."""

    uid: str
    name: str
    rate: int
    bound: int
    ended: int | None
    posted: int
    consumers: str
    doubt: str | None


class World:
    """A node with devices, kube-scheduler, and a timekeeper."""

    def __init__(self, cp: ControlPlane, timekeeper: Process) -> None:
        self.cp, self.timekeeper = cp, timekeeper

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.cp.api.call(method, path, body)

    def namespace(self) -> str:
        """A new one's name."""
        name = f"claims-{next(_numbers)}"
        create_namespace(self.cp, name)
        return name

    def claim(self, namespace: str, name: str, **exactly: Any) -> Json:
        """A claim on one device of the class, or as ``exactly`` says."""
        request = {"name": "r0", "exactly": {"deviceClassName": "gpu", **exactly}}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        made: Json = self.call("POST", f"{RESOURCES}/namespaces/{namespace}/resourceclaims", body)
        return made

    def pod(self, namespace: str, name: str, *claims: str) -> Json:
        """A pod that uses these claims."""
        container = {
            "name": "main",
            "image": "x",
            "resources": {"claims": [{"name": each} for each in claims]},
        }
        used = [{"name": each, "resourceClaimName": each} for each in claims]
        spec = {"containers": [container], "resourceClaims": used, "terminationGracePeriodSeconds": 1}
        made: Json = self.call(
            "POST", f"{NAMESPACES}/{namespace}/pods", {"metadata": {"name": name}, "spec": spec}
        )
        return made

    def delete_pod(self, namespace: str, name: str, grace_s: int | None = None) -> None:
        options = None if grace_s is None else {"gracePeriodSeconds": grace_s}
        self.call("DELETE", f"{NAMESPACES}/{namespace}/pods/{name}", options)

    def allocated(self, namespace: str, name: str) -> Json:
        """The claim, once it is allocated."""

        def found() -> Json | None:
            raw = get(self.cp.api, f"{RESOURCES}/namespaces/{namespace}/resourceclaims/{name}")
            return raw if raw and raw.get("status", {}).get("allocation") else None

        return eventually(found, f"the allocation of {name}")

    def rows(self, namespace: str) -> list[Row]:
        """The sessions of a namespace's claims."""
        with closing(sqlite3.connect(self.timekeeper.database)) as connection:
            found = connection.execute(
                "SELECT s.uid, s.name, s.rate_milli, s.bound_ms, s.ended_ms, COALESCE(SUM(p.amount), 0),"
                " s.consumers, s.doubt FROM sessions s LEFT JOIN postings p ON p.session_uid = s.uid"
                " WHERE s.namespace = ? AND s.kind = 'claim' GROUP BY s.uid ORDER BY s.bound_ms, s.uid",
                (namespace,),
            )
            return [Row(*row) for row in found]

    def running(self, namespace: str, number: int = 1) -> list[Row]:
        """The sessions, once there are so many."""

        def found() -> list[Row] | None:
            rows = self.rows(namespace)
            return rows if len(rows) == number else None

        return eventually(found, lambda: f"{number} sessions, not {self.rows(namespace)}")

    def settled(self, namespace: str, number: int = 1) -> list[Row]:
        """The same, once all have ended."""

        def found() -> list[Row] | None:
            rows = self.rows(namespace)
            return rows if len(rows) == number and all(row.ended for row in rows) else None

        return eventually(found, lambda: f"{number} ended sessions, not {self.rows(namespace)}")


@pytest.fixture(scope="module")
def world(lender: Lender, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        lender.lent() as cp,
        prepared(tmp_path_factory.mktemp("timekeeper"), cp.admin_kubeconfig, traced=True) as timekeeper,
    ):
        cp.api.call("POST", NAMESPACES, {"metadata": {"name": "bursar-system"}})
        cp.api.call("POST", NODES, kwok_node("n1"))
        device_class = {
            "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
        }
        cp.api.call("POST", f"{RESOURCES}/deviceclasses", device_class)
        cp.api.call("POST", f"{RESOURCES}/resourceslices", device_slice(*(f"gpu-{n}" for n in range(8))))
        cp.start_scheduler()
        timekeeper.start_ready()
        yield World(cp, timekeeper)
        assert timekeeper.end() == 0


def test_an_allocated_claim_is_charged_until_its_release(world: World) -> None:
    home = world.namespace()
    world.claim(home, "c")
    world.pod(home, "p", "c")
    claim = world.allocated(home, "c")

    opened = world.running(home)
    world.delete_pod(home, "p")
    ended = world.settled(home)

    stamp = moment(claim["status"]["allocation"]["allocationTimestamp"]) or 0
    assert opened[0].uid == f"{claim['metadata']['uid']}:claim:{stamp}"
    assert ended[0].rate == 1000
    assert stamp <= ended[0].bound < stamp + SLACK_MS
    assert ended[0].posted == 1000 * ((ended[0].ended or 0) - ended[0].bound) > 0
