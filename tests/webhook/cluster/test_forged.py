"""What forged reviews leave in the ledger: refusals in namespaces that exist, and in no others."""

import json
from pathlib import Path

from deploy.local.cluster import ControlPlane
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
from tests.webhook.worlds import admitted, plain
from tests.worlds import container


def test_a_refusal_in_a_namespace_that_does_not_exist_is_not_recorded(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    bad = admitted(container(gpu_percent="150"), plain())
    flags = ("--kubeconfig", str(control_plane.admin_kubeconfig))
    with Registered(control_plane, tmp_path, *flags) as world:

        def recorded(namespace: str, name: str) -> bool:
            posts = [json.loads(body) for body in world.timekeeper.posted]
            found = [each for post in posts for each in post["decisions"]]
            return (namespace, name) in [(each["namespace"], each["name"]) for each in found]

        tries = 0

        def only_of_the_one_that_exists() -> bool:
            nonlocal tries
            tries += 1
            for namespace in ("nobody", "No Body", "team-a"):
                world.webhook.review("/mutate", bad, namespace=namespace, name=f"p{tries}")
            eventually(lambda: recorded("team-a", f"p{tries}"), "the decision of the namespace that exists")
            return not any(recorded(namespace, f"p{tries}") for namespace in ("nobody", "No Body"))

        eventually(only_of_the_one_that_exists, "the namespaces to be followed")
        assert only_of_the_one_that_exists()
