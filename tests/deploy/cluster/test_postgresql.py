"""The timekeeper on PostgreSQL: a real API server accepts the manifests, and the account has the rights that
it needs and no others."""

import time

import pytest

from deploy.local.cluster import ControlPlane
from tests.deploy.reading import MANIFESTS, NAMESPACE
from tests.deploy.unit.test_postgresql import VARIANT
from timekeeper.api_server import RefusedError, connect
from timekeeper.settler.election import LEASE, Election

ACCOUNT = "bursar-timekeeper"


def test_the_api_server_takes_it_all_and_the_account_may_hold_its_lease_and_no_other(
    control_plane: ControlPlane,
) -> None:
    done = control_plane.kubectl("apply", "--server-side", "-f", str(MANIFESTS), "-f", str(VARIANT))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = control_plane.api.call("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    api = connect(str(control_plane.kubeconfig(token, "settler")))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"

    first, second = (Election(api, NAMESPACE, name, 15_000, time.monotonic) for name in ("one", "two"))
    assert (first.looks(), second.looks(), first.looks()) == (True, False, True)
    assert control_plane.api.call("GET", f"{leases}/{LEASE}")["spec"]["holderIdentity"] == "one"
    first.give_back()
    assert (second.looks(), first.looks()) == (True, False)

    with pytest.raises(RefusedError, match="403"):
        api.get(f"{leases}/bursar-certificates")
    with pytest.raises(RefusedError, match="403"):
        api.get(leases)
