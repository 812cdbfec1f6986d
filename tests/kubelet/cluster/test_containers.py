"""What the containers of governed pods see of a real node's cards."""

import json

from tests.kubelet.worlds import (
    CARDS,
    NAMESPACE,
    NODE,
    SHOWS_CARDS,
    Json,
    World,
    container,
    gpu_pod,
    state,
    status_of,
)

# Notes what it sees in the pod's own volume, for the kubelet keeps no output of a run before; ends badly the
# first time, and shows all the second.
FAILS_ONCE = """
import os, sys
seen = open("/shared/seen", "a+")
seen.write("cards " + repr(os.environ.get("NVIDIA_VISIBLE_DEVICES")) + "\\n")
seen.flush()
seen.seek(0)
runs = seen.readlines()
print(*runs, sep="", end="")
sys.exit(1 if len(runs) == 1 else 0)
"""


def cards_of(pod: Json) -> dict[str, list[str]]:
    """What the placement on the pod gives each container."""
    placed = json.loads(pod["metadata"]["annotations"]["bursar.dev/devices"])["containers"]
    return {name: [each["uuid"] for each in slices] for name, slices in placed.items()}


def shown(uuids: list[str]) -> list[str]:
    """What `SHOWS_CARDS` prints for them."""
    return [f"cards {','.join(uuids)!r}"]


def test_each_container_sees_the_cards_of_its_placement_and_the_others_none(world: World) -> None:
    """The image says ``all``, as CUDA's do."""
    asking = container("whole", SHOWS_CARDS, gpu_count="1"), container("half", SHOWS_CARDS, gpu_percent="50")
    others = {"initContainers": [container("first", SHOWS_CARDS)]}
    world.create(gpu_pod("seen", *asking, container("plain", SHOWS_CARDS), **others))

    pod = world.ended("seen")

    placed = cards_of(pod)
    assert sorted(placed) == ["half", "whole"]
    assert {*placed["half"], *placed["whole"]} == set(CARDS), "two containers, each with a card of its own"
    seen = {name: world.node.output(pod, name) for name in ("first", "whole", "half", "plain")}
    assert seen == {
        "first": ["cards 'void'"],
        "whole": shown(placed["whole"]),
        "half": shown(placed["half"]),
        "plain": ["cards 'void'"],
    }


def test_an_init_container_that_requests_cards_sees_them_too(world: World) -> None:
    first = container("first", SHOWS_CARDS, gpu_percent="30")
    world.create(gpu_pod("early", container("main", SHOWS_CARDS, gpu_percent="20"), initContainers=[first]))

    pod = world.ended("early")

    placed = cards_of(pod)
    assert world.node.output(pod, "first") == shown(placed["first"])
    assert world.node.output(pod, "main") == shown(placed["main"])


def test_a_pod_that_starts_without_a_placement_sees_no_card(world: World) -> None:
    """It came by a way that avoids the extender: admitted nowhere, bound by its author."""
    field = {"fieldPath": "metadata.annotations['visible-devices.bursar.dev/main']"}
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": field}}]
    main = {**container("main", SHOWS_CARDS), "env": env}
    pods = "/api/v1/namespaces/kube-system/pods"
    world.until("the service account", lambda: world.stack.exists(f"{pods[:-5]}/serviceaccounts/default"))
    world.stack.cp.api.call("POST", pods, gpu_pod("unplaced", main, nodeName=NODE))

    def ended() -> bool:
        pod = world.stack.cp.api.call("GET", f"{pods}/unplaced")
        return "terminated" in state(pod, "main")

    world.until("it to end", ended)

    pod = world.stack.cp.api.call("GET", f"{pods}/unplaced")
    assert world.node.output(pod, "main") == ["cards ''"]


def test_a_users_edit_reaches_no_restarted_container(world: World) -> None:
    shared = [{"name": "shared", "mountPath": "/shared"}]
    main = {**container("main", FAILS_ONCE, gpu_percent="50"), "volumeMounts": shared}
    volumes = [{"name": "shared", "emptyDir": {}}]
    kubectl = world.stack.cp.kubectl
    kubectl("create", "rolebinding", "someone", "--clusterrole=edit", "--user=someone", "-n", NAMESPACE)
    world.create(gpu_pod("edited", main, restartPolicy="OnFailure", volumes=volumes))
    world.until("it to be bound", lambda: "nodeName" in world.pod("edited")["spec"])

    edit = ("visible-devices.bursar.dev/main=all", "--overwrite", "--as=someone", "-n", NAMESPACE)
    done = kubectl("annotate", "pod", "edited", *edit)

    pod = world.ended("edited")
    assert "denied request" in done.stderr, done
    assert status_of(pod, "main")["restartCount"] == 1
    assert world.node.output(pod, "main") == 2 * shown(cards_of(pod)["main"])
