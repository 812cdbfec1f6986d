"""Leaving out the pods that need nothing changes no plan: namespaces, pods, notices and clock change at
random, and each look's plan is compared with the plan for all pods."""

from dataclasses import replace
from random import Random

from tests.timekeeper.worlds import SECOND, T0, gpu_pod
from timekeeper.accounts.exhaustion.evictions import (
    NO_NOTICE,
    BudgetEvictionMemory,
    EvictionNotice,
    due,
)
from timekeeper.accounts.exhaustion.quiet import PlanCache
from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.accounts.pods import LedgerPod, read_pod

NAMESPACES = ("a", "b", "c")
LOOKS = 60


def made(number: int, random: Random) -> LedgerPod:
    found = read_pod(gpu_pod(f"pod-{number}", namespace=random.choice(NAMESPACES)))
    assert isinstance(found, LedgerPod)
    return found if random.random() < 0.8 else replace(found, node="")


def terms_at(name: str, now_ms: int, random: Random) -> EvictionTerms:
    since_ms = random.choice((T0, now_ms - random.randrange(60) * SECOND))
    return EvictionTerms(
        subject=name,
        entry=name,
        since_ms=since_ms,
        is_spent=random.random() < 0.7,
        grace_ms=random.choice((0, 10, 60)) * SECOND,
        rate=600,
        pdb_grace_ms=random.choice((0, 20)) * SECOND,
        granted=1,
        spent=1,
        is_observed=random.random() < 0.2,
    )


def changed(pod: LedgerPod, now_ms: int, random: Random) -> LedgerPod:
    """The pod after an event of its own."""
    after_ms = None if random.random() < 0.3 else now_ms + random.randrange(-20, 70) * SECOND
    asked_ms = now_ms if random.random() < 0.1 else None
    delete_ms = after_ms if random.random() < 0.2 else None
    hold = replace(pod.hold, deletion_ms=asked_ms)
    return replace(pod, evict_after_ms=after_ms, delete_after_ms=delete_ms, hold=hold)


def _with(pod: LedgerPod, notice: EvictionNotice | None) -> LedgerPod:
    if notice is None:
        return pod
    return replace(pod, evict_after_ms=notice.evict_after_ms, delete_after_ms=notice.delete_after_ms)


def walk(seed: int) -> tuple[int, int]:
    """One random history; how many pods were looked at, and how many of those were decided about."""
    random, quiet, now_ms, looked, decided = Random(seed), PlanCache(), T0, 0, 0
    pods = [made(number, random) for number in range(30)]
    past = BudgetEvictionMemory(T0)
    exhausted: dict[str, EvictionTerms] = {}
    for _ in range(LOOKS):
        now_ms += random.choice((-30, 0, 1, 1, 5, 30)) * SECOND
        for name in NAMESPACES:
            if random.random() < 0.05:
                exhausted.pop(name, None)
            elif name not in exhausted or random.random() < 0.05:
                exhausted[name] = terms_at(name, now_ms, random)
            else:  # its charges went on
                exhausted[name] = replace(exhausted[name], spent=exhausted[name].spent + 1)
        pods = [changed(each, now_ms, random) if random.random() < 0.05 else each for each in pods]
        if random.random() < 0.1:
            pods.pop(random.randrange(len(pods)))
            pods.append(made(len(pods) + 100, random))
        if random.random() < 0.3:
            chosen, ahead_ms = random.choice(pods), random.randrange(70) * SECOND
            notice = random.choice((NO_NOTICE, EvictionNotice(now_ms + ahead_ms)))
            past = past.after_writing(chosen.uid, notice, now_ms)
        if random.random() < 0.2:  # only those whose standing changed were looked at meanwhile
            some = [each for each in pods if each.namespace == random.choice(NAMESPACES)]
            past = replace(past, void=past.void | due(some, exhausted, past, now_ms, now_ms).void)
        expected = due(pods, exhausted, past, now_ms, now_ms)
        others = list(quiet.pods_to_plan(pods, exhausted, past, now_ms))
        found = due(others, exhausted, past, now_ms, now_ms)
        assert replace(found, noticed=found.noticed + quiet.noticed) == expected
        past = replace(past, void=expected.void)
        shown = {each.pod.uid: each.notice for each in expected.changes if random.random() < 0.7}
        pods = [_with(each, shown.get(each.uid)) for each in pods]
        looked, decided = looked + len(pods), decided + len(others)
    return looked, decided


def test_leaving_out_quiet_pods_changes_no_plan() -> None:
    walks = [walk(seed) for seed in range(60)]
    assert sum(decided for _, decided in walks) < 0.8 * sum(looked for looked, _ in walks)


def test_pods_that_have_their_notice_are_decided_about_again_only_at_its_time() -> None:
    random, quiet = Random(1), PlanCache()
    terms = {
        name: replace(terms_at(name, T0, random), since_ms=T0, grace_ms=60 * SECOND, is_observed=False)
        for name in NAMESPACES
    }
    pods = [replace(made(at, random), node="n", evict_after_ms=T0 + 60 * SECOND) for at in range(30)]
    past = BudgetEvictionMemory(T0)
    decided = [
        len(list(quiet.pods_to_plan(pods, terms, past, T0 + second * SECOND))) for second in (0, 1, 59, 60)
    ]
    assert decided == [0, 0, 0, 30]
