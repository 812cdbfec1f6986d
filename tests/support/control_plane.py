"""What tests of several roles do to a real control plane, as its admin."""

from deploy.local.cluster import ControlPlane
from tests.support.waiting import eventually


def kubectl(cp: ControlPlane, *arguments: str, input: str | None = None) -> str:
    """kubectl's output. Fails, with what it says, where kubectl fails."""
    done = cp.kubectl(*arguments, input=input)
    assert done.returncode == 0, done.stderr
    return done.stdout


def create_namespace(cp: ControlPlane, name: str, **labels: str) -> str:
    """A namespace that is ready for pods: its account is there. Returns the path of its pods."""
    cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    path = f"/api/v1/namespaces/{name}"
    eventually(lambda: cp.api.answers(f"{path}/serviceaccounts/default"), f"the account of {name}")
    return f"{path}/pods"
