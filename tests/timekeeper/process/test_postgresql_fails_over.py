"""Two real timekeepers on two PostgreSQL servers: the primary fails over under them, and all goes on."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.failover import servers
from tests.timekeeper.fake_api_server import serving
from tests.timekeeper.process.test_failover import LEASE_S, Pair, api_server
from tests.timekeeper.processes import prepared

pytestmark = pytest.mark.make_all("PostgreSQL")


def test_after_a_synchronous_failover_both_are_ready_again_and_every_pod_is_charged_exactly(
    tmp_path: Path,
) -> None:
    api = api_server()
    with ExitStack() as stack:
        two = stack.enter_context(servers())
        two.wait_for_each_other()
        replicas = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            config = kubeconfig(tmp_path / name, stack.enter_context(serving(api)))
            replicas.append(
                stack.enter_context(prepared(tmp_path / name, config, f"--lease-duration={LEASE_S}s"))
            )
            replicas[-1].url = two.url
        pair = Pair(api, replicas, two.url)
        pair.begin()
        replicas[0].wait("a charge", lambda: pair.postings() > 5)

        two.address.leads_to = two.standby.port  # first the standby: nothing can be written there
        two.primary.stop()
        for replica in replicas:
            replica.wait("its word", lambda replica=replica: replica.call("GET", "/readyz")[0] == 503)  # type: ignore[misc]
        two.standby.promote()
        for replica in replicas:
            replica.wait_ready()

        charged = pair.postings()
        replicas[0].wait("more charges", lambda: pair.postings() > charged)
        pair.assert_exact(replicas[0])
        assert "Traceback" not in replicas[0].log() + replicas[1].log()
        for replica in replicas:
            assert replica.end() == 0
