"""Members of a gang that do not exist yet: which they are, and how the cards that are kept for them end."""

import json
from dataclasses import replace

import pytest

from scheduler_ext.gangs.late_members import followers_of
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.late_cards import LateCards, LatePlace
from scheduler_ext.snapshot.late_changes import (
    expire_late,
    give_back_place,
    keep_late,
    places_for,
    rests,
    take_place,
)
from scheduler_ext.snapshot.snapshot import Snapshot, assume, forget, pod_deleted, pod_updated
from tests.scheduler_ext.worlds import asking, node, on, percent, read, rebuilt
from tests.worlds import Json, card, container
from timekeeper.core.values import Placement

JOBSET = {"jobset.sigs.k8s.io/jobset-name": "train"}
SINCE, UNTIL = 60_000, 360_000


def labelled(raw: Json, labels: Json) -> Json:
    raw["metadata"]["labels"] = {**raw["metadata"]["labels"], **labels}
    return raw


def first(name: str = "driver", *late: tuple[int, Json]) -> Json:
    """The member of a JobSet that comes first, and what it tells of the others."""
    told = json.dumps([{"count": count, "template": template} for count, template in late])
    annotations = {"bursar.dev/gang-size": "1", "bursar.dev/held": "turn"}
    annotations |= {"bursar.dev/gang-late": told} if late else {}
    return labelled(percent(100, name, annotations=annotations), JOBSET)


def worker(name: str, share: int = 100) -> Json:
    """A member that comes later."""
    return labelled(percent(share, name), JOBSET)


def with_gpu(share: int = 100) -> Json:
    return {"spec": {"containers": [container(gpu_percent=str(share))]}}


def without_gpu(cpu: str = "4") -> Json:
    return {"spec": {"containers": [container(requests={"cpu": cpu})]}}


def followers(raw: Json, *there: Json) -> tuple[list[int], list[int]]:
    """The shares of those with GPUs, and the CPU of those without."""
    found = followers_of(read(raw), rebuilt([node("n")], [raw, *there]))
    requests = [pod.request for pod in found.pods if pod.request is not None]
    shares = [each.ask.share_milli for request in requests for each in request.asks]
    return shares, [each.cpu_milli for each in found.without_gpus]


def test_those_that_follow_are_made_from_their_templates() -> None:
    raw = first("driver", (2, with_gpu()), (1, with_gpu(50)), (1, without_gpu()))

    assert followers(raw) == ([1000, 1000, 500], [4000])
    assert followers(first("driver")) == ([], [])
    pods = followers_of(read(raw), rebuilt([node("n")], [raw])).pods
    assert len({each.uid for each in pods}) == 3
    assert {each.gang for each in pods} == {read(raw).gang}  # so they are as near as the others


def test_those_that_exist_are_not_counted_twice() -> None:
    raw = first("driver", (2, with_gpu()), (1, without_gpu()))
    launcher = labelled(asking(container(requests={"cpu": "4"}), name="l"), JOBSET)
    other = labelled(percent(100, "x"), {"jobset.sigs.k8s.io/jobset-name": "other"})
    leaving = worker("w9")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert followers(raw, worker("w0"))[0] == [1000]
    assert followers(raw, on(worker("w0"), "n", "GPU-0"), worker("w1"))[0] == []
    assert followers(raw, worker("w0", 50), percent(100, "single"), other, leaving)[0] == [1000, 1000]
    assert followers(raw, launcher)[1] == []


class Kept:
    """A driver that runs, and two whole cards that are kept for its workers."""

    def __init__(self) -> None:
        raw = on(first("driver", (2, with_gpu())), "n", "GPU-0")
        workers = [worker("w0"), worker("w1")]
        self.snapshot = rebuilt([node("n", card(0), card(1), card(2))], [raw, *workers])
        self.driver, self.worker = self.pod("driver"), self.pod("w0")
        placements = [read(on(worker("w"), "n", f"GPU-{at}")).placement for at in (1, 2)]
        places = [LatePlace(self._late(at), "n", each) for at, each in enumerate(placements) if each]
        where = self.driver.namespace, "jobset/train", SINCE, UNTIL, ("uid-driver",)
        self.snapshot = keep_late(self.snapshot, LateCards(*where, tuple(places)))

    def pod(self, name: str) -> Pod:
        found = self.snapshot.pods.get(f"uid-{name}")
        assert found is not None
        return found

    def _late(self, at: int) -> Pod:
        return replace(read(worker("late")), uid=f"late/{at}")

    def taken(self, name: str = "w0") -> Snapshot:
        """Its place is taken by this pod, which is about to be bound."""
        place = places_for(self.snapshot, self.pod(name))["n"]
        placement: Placement = place.placement
        return take_place(assume(self.snapshot, self.pod(name), "n", placement), self.pod(name), place)


def free(snapshot: Snapshot) -> list[int]:
    return [each.share_milli for each in snapshot.node("n").free_by_card if each]


def test_a_follower_takes_one_place_and_no_other_pod_any() -> None:
    kept = Kept()
    namespace = kept.driver.namespace
    assert (free(kept.snapshot), kept.snapshot.held.get(namespace)) == ([0, 0, 0], 3000)  # caps count it
    assert places_for(kept.snapshot, read(percent(100, "single"))) == {}
    assert places_for(kept.snapshot, read(worker("small", 50))) == {}
    assert places_for(kept.snapshot, kept.driver) == {}
    elsewhere = replace(kept.worker, namespace="other")
    assert places_for(kept.snapshot, elsewhere) == {}

    after = kept.taken()
    assert (free(after), after.held.get(namespace)) == ([0, 0, 0], 3000)
    (left,) = next(it for _, it in after.late.items()).free
    assert left.pod.uid == "late/1"


def test_what_was_taken_is_kept_again_if_the_pod_was_not_bound() -> None:
    kept = Kept()

    after = give_back_place(forget(kept.taken(), "uid-w0"), "uid-w0")

    assert after.late == kept.snapshot.late
    assert after.node("n").allocations.keys() == kept.snapshot.node("n").allocations.keys()


def test_the_cards_are_kept_until_their_time_is_over() -> None:
    kept = Kept()

    assert expire_late(kept.snapshot, UNTIL - 1) is kept.snapshot
    over = expire_late(kept.snapshot, UNTIL)
    assert (free(over), len(over.late)) == ([0, 1000, 1000], 0)


def test_nothing_is_kept_of_a_gang_that_has_ended() -> None:
    kept = Kept()
    gone = pod_deleted(kept.snapshot, kept.driver, 1_000)
    leaving = pod_updated(kept.snapshot, replace(kept.driver, deleting=True))

    for each in (gone, leaving):
        assert len(expire_late(each, 1_000).late) == 0
    assert free(expire_late(leaving, 1_000)) == [0, 1000, 1000]


def test_what_was_kept_is_followed_by_a_rest_of_ten_times_as_long_in_its_namespace() -> None:
    """Also if the gang was ended just before, and where it began anew meanwhile."""
    kept = Kept()
    namespace = kept.driver.namespace
    (it,) = (each for _, each in kept.snapshot.late.items())
    anew = keep_late(kept.snapshot, replace(it, since_ms=200_000))
    over = expire_late(anew, UNTIL)
    ended = expire_late(pod_deleted(anew, kept.driver, 160_000), 160_000)

    for after, at_ms in ((over, UNTIL + 3_000_000), (ended, 160_000 + 1_000_000)):
        assert rests(after, namespace, at_ms - 1)
        assert not rests(after, namespace, at_ms)
        assert not rests(after, "other", at_ms - 1)
        assert len(expire_late(after, at_ms - 1).late_rests) == 1
        assert len(expire_late(after, at_ms).late_rests) == 0
    assert not rests(kept.snapshot, namespace, UNTIL)


@pytest.mark.parametrize("name", ["w0", "w1"])
def test_nothing_is_left_once_all_places_are_taken(name: str) -> None:
    kept = Kept()
    kept.snapshot = kept.taken()
    kept.snapshot = kept.taken("w1")
    assert len(expire_late(kept.snapshot, 1_000).late) == 1  # one may come back

    for uid, uuid in (("w0", "GPU-1"), ("w1", "GPU-2")):
        if uid != name:
            kept.snapshot = pod_updated(kept.snapshot, read(on(worker(uid), "n", uuid)))
    assert len(expire_late(kept.snapshot, 1_000).late) == 1
    uuid = {"w0": "GPU-1", "w1": "GPU-2"}[name]
    bound = pod_updated(kept.snapshot, read(on(worker(name), "n", uuid)))
    after = expire_late(bound, 1_000)
    assert (free(after), len(after.late)) == ([0, 0, 0], 0)
    assert not rests(expire_late(bound, SINCE), kept.driver.namespace, SINCE)  # it was not kept at all
    late = expire_late(bound, SINCE + 1_000)
    assert rests(late, kept.driver.namespace, SINCE + 10_999)  # the followers may leave at once
