"""The sidecar is optional evidence: what the kubelet says charges a pod to the millisecond without it."""

import random
from dataclasses import dataclass

from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node

PAIRS, MINUTES = 250, 50


@dataclass(kw_only=True)
class Pair:
    """Two pods with one life, of which the one named ``with-`` has a sidecar. Both end, mostly by a kill,
    ``bound`` and ``ended`` milliseconds after the beginning; the kubelet's word of it comes ``told`` after
    the beginning, in some cases only with the pod's deletion."""

    number: int
    percent: int
    bound: int
    ended: int
    told: int
    phase: str
    is_deleted: bool

    def raws(self, is_over: bool = False) -> tuple[Json, Json]:
        """The pods' objects. What it was charged is computed from the same moments, by hand."""
        one, two = (
            gpu_pod(
                f"{name}-{self.number}",
                namespace=name,
                percent=self.percent,
                card=2 * self.number + at,
                created_ms=T0 + self.bound,
                bound_ms=T0 + self.bound,
                started_ms=T0 + self.bound + SECOND,
                ended_ms=T0 + self.ended if is_over else None,
                phase=self.phase if is_over else "",
            )
            for at, name in enumerate(("with", "without"))
        )
        return one, two


def some(rng: random.Random, number: int) -> Pair:
    bound = rng.randrange(20 * 60) * SECOND
    ended = bound + rng.randrange(1, 20 * 60) * SECOND
    told = ended + rng.choice((0, 5 * SECOND, 2 * MINUTE, 9 * MINUTE))
    phase = rng.choice(("Failed", "Failed", "Succeeded"))
    return Pair(
        number=number,
        percent=rng.randrange(1, 100),
        bound=bound,
        ended=ended,
        told=told,
        phase=phase,
        is_deleted=rng.random() < 0.5,
    )


def test_500_pods_cost_the_same_with_and_without_a_sidecar_through_kills(town: Town) -> None:
    """Containers, sidecars and the settler are killed, the node falls silent for minutes, its words arrive
    late: with the kubelet's word both of a pair cost rate times time, to the unit."""
    rng = random.Random(20261130)
    pairs = [some(rng, number) for number in range(PAIRS)]
    town.begin(("nodes", node("n1", cards=2 * PAIRS)), ("leases", lease(T0)))
    posted, boots = dict.fromkeys(range(PAIRS), 0), dict.fromkeys(range(PAIRS), 1)
    beats = kills = 0

    for minute in range(1, MINUTES + 1):
        town.clock.turn(MINUTE)
        now, before = minute * MINUTE, (minute - 1) * MINUTE
        is_silent = minute % 10 in (6, 7, 8)
        for pair in pairs:
            if before < pair.bound <= now:
                for raw in pair.raws():
                    town.hear("pods", raw)
            if before < pair.told <= now:
                for raw in pair.raws(is_over=True):
                    town.hear("pods", raw, deleted=pair.is_deleted)
        if not is_silent:
            town.node_heard()
        town.tick()
        if minute % 7 == 0:
            town.restart()
            town.tick()
            kills += 1
        for pair in pairs:
            if pair.bound + MINUTE < now <= pair.ended and rng.random() < 0.2:
                if rng.random() < 0.1:  # its sidecar is killed, and begins a new run
                    boots[pair.number], posted[pair.number] = boots[pair.number] + 1, 0
                posted[pair.number] += 1
                sidecar, _ = pair.raws()
                run = f"run-{boots[pair.number]}"
                answer = town.beat(sidecar, posted[pair.number], rng.randrange(30) * SECOND, boot=run)
                assert answer.status_code == 200
                beats += 1
    town.advance(MINUTE)

    assert (beats > 200, kills) == (True, 7)
    for pair in pairs:
        expected = (pair.ended - pair.bound) * 10 * pair.percent
        charged = {
            name: sum(
                (to - since) * rate for since, to, rate, _ in town.postings(f"uid-{name}-{pair.number}")
            )
            for name in ("with", "without")
        }
        assert charged == {"with": expected, "without": expected}, pair
