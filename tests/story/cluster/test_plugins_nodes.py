"""An ordinary node of NVIDIA's plugin, without an inventory, and a namespace in `mode: enforce`: its pods of
whole cards are bound by Bursar's scheduler, as many as the plugin has cards, and pay by the node's labels."""

from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import pods, running
from tests.story.cluster.test_metering import set_budgets
from tests.story.cluster.test_unplaced import LABELS, whole
from tests.support.control_plane import create_namespace


def test_whole_cards_of_an_ordinary_node_are_given_out_where_budgets_are_enforced(
    stack: Stack, reader: str
) -> None:
    path = create_namespace(stack.cp, "ordinary")
    call = stack.cp.api.call
    call("POST", "/api/v1/nodes", kwok_node("ordinary-0", capacity=nvidia_capacity(4), labels=LABELS))
    settings = "weights: {A100: 2.5}\nlookahead: 0s\n"
    set_budgets(stack, _settings=settings, ordinary="gpuHours: 100\nmode: enforce\n")

    for name in "abcde":
        call("POST", path, whole(name))

    stack.wait("four to run", lambda: len(running(pods(stack, path))) == 4, "scheduler")
    for pod in running(pods(stack, path)):
        assert (pod["spec"]["schedulerName"], pod["spec"]["nodeName"]) == ("bursar-scheduler", "ordinary-0")
        assert pod["metadata"]["labels"]["bursar.dev/governed"] == "true"
        assert "bursar.dev/devices" not in pod["metadata"]["annotations"]

    def charges() -> set[tuple[int, str, str | None]]:
        sessions = stack.get("/v1/sessions?namespace=ordinary", reader)["sessions"]
        return {(each["rateMilli"], each["models"], each["doubt"]) for each in sessions}

    stack.wait("their charges", lambda: len(charges()) == 1, "timekeeper")
    assert charges() == {(2_500, "NVIDIA-A100-SXM4-40GB", None)}

    # the fifth gets the card of one that leaves
    first = running(pods(stack, path))[0]["metadata"]["name"]
    call("DELETE", f"{path}/{first}")
    stack.wait("the first to be gone", lambda: len(pods(stack, path)) == 4)
    stack.wait("the fifth to run", lambda: len(running(pods(stack, path))) == 4, "scheduler")
