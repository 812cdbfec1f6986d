"""The timekeeper on PostgreSQL: a real API server accepts the manifests, and the account has the rights that
it needs and no others."""

import time

from deploy.local.cluster import ControlPlane
from deploy.local.limits import LONGEST_S
from tests.deploy.reading import MANIFESTS, NAMESPACE
from tests.deploy.unit.test_postgresql import VARIANT
from timekeeper.runtime.api_server import Answered
from timekeeper.runtime.connect import connect
from timekeeper.settler.process import LEASE, SettlerElection

ACCOUNT = "bursar-timekeeper"


def test_the_api_server_takes_it_all_and_the_account_may_hold_its_lease_and_no_other(
    control_plane: ControlPlane,
) -> None:
    done = control_plane.kubectl("apply", "--server-side", "-f", str(MANIFESTS), "-f", str(VARIANT))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = control_plane.api.call("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    api = connect(control_plane.kubeconfig(token, "settler"))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"

    first, second = (SettlerElection(api, NAMESPACE, name, 15_000, time.monotonic) for name in ("one", "two"))
    assert (first.look(), second.look(), first.look()) == (True, False, True)
    assert control_plane.api.call("GET", f"{leases}/{LEASE}")["spec"]["holderIdentity"] == "one"
    first.give_back()
    assert (second.look(), first.look()) == (True, False)

    for path in (f"{leases}/bursar-certificates", leases):
        reply = api.call("GET", path, timeout_s=LONGEST_S)
        assert isinstance(reply, Answered)
        assert reply.status == 403
