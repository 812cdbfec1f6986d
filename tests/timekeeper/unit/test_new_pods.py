"""Which pods wait to be judged, and with what."""

import orjson

from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import SECOND, T0
from tests.worlds import Json
from timekeeper.settler.new_pods import NewPods


def raw(uid: str, at_ms: int = T0, **spec: object) -> Json:
    metadata = {"uid": uid, "name": uid, "namespace": "team-a", "creationTimestamp": iso(at_ms)}
    return {"metadata": metadata, "spec": spec}


def uids(pods: NewPods) -> list[str]:
    return [each.uid for each in pods.take(10)]


def test_a_pod_that_is_taken_makes_room_for_the_next() -> None:
    size = len(orjson.dumps(raw("a")))
    pods = NewPods(T0, lambda _: True, most_bytes=size)

    bodies = []
    for uid in "abc":
        pods.offer(raw(uid))
        bodies += [orjson.loads(each.body) for each in pods.take(1)]

    assert bodies == [raw(uid) for uid in "abc"]


def test_a_pod_without_room_waits_without_its_object() -> None:
    pods = NewPods(T0, lambda _: True, most_bytes=len(orjson.dumps(raw("a"))))

    for uid in "ab":
        pods.offer(raw(uid))

    assert [bool(each.body) for each in pods.take(2)] == [True, False]


def test_of_more_pods_than_are_remembered_none_is_added_twice() -> None:
    """The oldest of 50,001 is known by its age alone."""
    is_metered = False
    pods = NewPods(T0, lambda _: is_metered)
    for number in range(50_001):
        pods.offer(raw(f"p{number}", T0 + SECOND * (number > 0)))
    is_metered = True

    pods.offer(raw("p0"))
    pods.offer(raw("new", T0 + SECOND))

    assert uids(pods) == ["new"]


def test_a_judge_reads_neither_who_wrote_which_field_nor_who_looked_into_the_pod() -> None:
    pods = NewPods(T0, lambda _: True)
    told = raw("a", containers=[], ephemeralContainers=[{"name": "shell"}])
    told["metadata"]["managedFields"] = [{"manager": "kubectl"}]

    pods.offer(told)

    (pod,) = pods.take(1)
    assert orjson.loads(pod.body) == raw("a", containers=[])
