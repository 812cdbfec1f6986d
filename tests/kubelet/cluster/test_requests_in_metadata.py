"""Pods whose request is in labels or an annotation alone, on a real kubelet: its node does not advertise the
resource for which kube-scheduler calls the extender."""

import json

from tests.kubelet.worlds import (
    CARDS,
    SHOWS_CARDS,
    Json,
    World,
    bound_ms,
    container,
    gpu_pod,
    held_ms,
    runs_for,
    state,
)

DEVICE_INFO = "KubeDevice/DeviceInfo"


def test_they_are_placed_run_with_their_cards_and_are_charged(world: World) -> None:
    program = f"{SHOWS_CARDS}; {runs_for(2)}"
    genius = gpu_pod("by-labels", container("main", program), schedulerName="genius-scheduler")
    genius["metadata"]["labels"] = {"genius/gpu-number": "1", "genius/gpu-memory-each": "8000"}
    kube = gpu_pod("by-annotation", container("main", program))
    wanted = {"runningcontainer": {"main": {"requests": {"nvidia.com/gpu": 1}}}}
    kube["metadata"]["annotations"] = {DEVICE_INFO: json.dumps(wanted)}
    for each in (genius, kube):
        world.create(each)

    ended = [world.ended(name) for name in ("by-labels", "by-annotation")]

    cards = [seen(world, pod) for pod in ended]
    begin, end = zip(*((bound_ms(pod), bound_ms(pod) + held_ms(pod)) for pod in ended), strict=True)
    assert set(cards) <= set(CARDS)
    assert len(set(cards)) == 2 or max(begin) >= min(end), "two pods had one card at the same time"
    for pod, card in zip(ended, cards, strict=True):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"bursar.dev/gpu-placement": "1"}
        devices = json.loads(pod["metadata"]["annotations"]["bursar.dev/devices"])["containers"]
        assert [each["uuid"] for each in devices["main"]] == [card]
        assert world.charged(pod) == held_ms(pod) * 1_000
    told = json.loads(ended[1]["metadata"]["annotations"][DEVICE_INFO])["runningcontainer"]["main"]
    (place,) = told["allocatefrom"].values()
    assert place.endswith(f"/gpu/{cards[1]}/cards")


def seen(world: World, pod: Json) -> str:
    """The card that the container saw, from its output."""
    assert state(pod, "main")["terminated"]["exitCode"] == 0
    (line,) = (each for each in world.node.output(pod, "main") if each.startswith("cards "))
    return line.removeprefix("cards ").strip("'")
