"""When no pod is evicted for the claim of another, because others were a while ago."""

from dataclasses import replace

from timekeeper.accounts.pods import LedgerPod, read_user
from timekeeper.accounts.reclaim.cooldown import (
    AGAIN_MS,
    BACK_MS,
    DEVICE_MS,
    MAX_FRUITLESS,
    REPLACEMENT_MS,
    ReclaimHistory,
)

DEVICE, OTHER = ("gpu.example.com", "n1", "gpu-0"), ("gpu.example.com", "n1", "gpu-1")
AT, ON = 10_000_000, 1_795_168_800_000  # one moment, by either clock


def pod(namespace: str, owner: str = "", created_ms: int = ON) -> LedgerPod:
    made = read_user({"metadata": {"namespace": namespace, "name": "p", "uid": "u"}})
    return replace(made, owner=owner, created_ms=created_ms)


def test_after_unused_evictions_none_follow_for_a_claim_of_that_namespace_on_that_class() -> None:
    history = ReclaimHistory().after_unused("a", "gpu", AT)

    assert history.refuses("a", "gpu", AT + AGAIN_MS - 1)
    assert not history.refuses("a", "gpu", AT + AGAIN_MS)
    assert not history.refuses("a", "other", AT)
    assert not history.refuses("b", "gpu", AT)


def test_after_several_none_follow_for_the_namespace() -> None:
    history = ReclaimHistory()
    for number in range(MAX_FRUITLESS):
        assert not history.refuses("a", "gpu", AT + number)
        history = history.after_unused("a", f"class-{number}", AT + number)

    assert history.refuses("a", "gpu", AT + AGAIN_MS - 1)
    assert not history.refuses("b", "gpu", AT + AGAIN_MS - 1)
    assert not history.refuses("a", "gpu", AT + AGAIN_MS), "until the first is five minutes old"


def test_a_device_rests_after_each_attempt() -> None:
    history = ReclaimHistory().after_trying(DEVICE, AT).after_trying(DEVICE, AT + 10)

    assert history.rests(DEVICE, AT + 10 + DEVICE_MS - 1)
    assert not history.rests(DEVICE, AT + 10 + DEVICE_MS)
    assert not history.rests(OTHER, AT + 10)


def test_the_replacement_of_an_evicted_pod_is_spared_and_its_older_siblings_are_not() -> None:
    history = ReclaimHistory().after_eviction(pod("poor", "ReplicaSet/web"), pod("rich"), AT, ON)
    heir = pod("rich")

    assert history.spares(pod("poor", "ReplicaSet/web", ON + 5), heir, AT + REPLACEMENT_MS - 1)
    assert not history.spares(pod("poor", "ReplicaSet/web", ON + 5), heir, AT + REPLACEMENT_MS)
    assert not history.spares(pod("poor", "ReplicaSet/web", ON - 1_000), heir, AT + 1)
    assert not history.spares(pod("poor", "ReplicaSet/other", ON + 5), heir, AT + 1)


def test_no_pod_of_the_heirs_namespace_leaves_in_return() -> None:
    history = ReclaimHistory().after_eviction(pod("poor"), pod("rich"), AT, ON)
    back = pod("poor")

    assert history.spares(pod("rich", created_ms=0), back, AT + BACK_MS - 1)
    assert not history.spares(pod("rich", created_ms=0), back, AT + BACK_MS)
    assert not history.spares(pod("third", created_ms=0), back, AT + 1)
    assert not history.spares(pod("rich", created_ms=0), pod("third"), AT + 1)
