"""What admission would have done with a pod of a metered namespace."""

from dataclasses import replace

import pytest

from tests.timekeeper.worlds import MINUTE, T0, gpu_pod
from tests.webhook.rule_examples import SEES_ALL
from tests.webhook.worlds import (
    WITHOUT_SIDECAR,
    admitted,
    half,
    plain,
    with_annotations,
    with_class,
)
from tests.worlds import Json, limits_of
from timekeeper.accounts.exhaustion.evictions import BudgetEvictionMemory
from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.accounts.would import (
    ADMITTED,
    AdmissionTerms,
    CardHolder,
    LeavingMemory,
    Verdict,
    cards_taken,
    leaving,
    verdict,
)
from timekeeper.core.admission.policy import Standing
from timekeeper.core.standings import Cap, Caps

IN_BUDGET, OVER = Standing("IN_BUDGET"), Standing("OVER_BUDGET", 1_000, 800)
DENIES, HOLDS = replace(OVER, on_exhausted="deny"), replace(OVER, on_exhausted="hold")
WAITS = replace(IN_BUDGET, hold="turn")
LOWER = "The namespace has used its GPU budget: the pod would get priority class gpu-lower-priority."
CARDS = admitted(limits_of("main", nvidia_com__gpu="1"))
LONG = admitted(half(), terminationGracePeriodSeconds=601)
DENIED = (
    "Namespace team-a has used its GPU budget (onExhausted: deny). New GPU pods are refused until the budget"
    " is raised. Ask your budget administrator: kubectl bursar budget has names and a text."
)
GATE = "It would wait behind a gate until the namespace's {} lets it through."
GRACE = (
    "spec.terminationGracePeriodSeconds: a GPU pod holds its cards during its grace period, and this one is"
    ' too long, got "601"; allowed: at most 600 seconds; for example terminationGracePeriodSeconds: 30'
)


def judged(raw: Json, now: Standing = IN_BUDGET, is_bound: bool = False) -> Verdict | None:
    return verdict(raw, "team-a", AdmissionTerms(WITHOUT_SIDECAR, now), is_bound)


@pytest.mark.parametrize(
    ("raw", "now", "expected"),
    [
        (CARDS, IN_BUDGET, ADMITTED),
        (CARDS, Standing("UNLIMITED"), ADMITTED),
        (CARDS, Standing("UNKNOWN"), ADMITTED),
        (CARDS, OVER, Verdict("demoted", sentence=LOWER)),
        (with_class(CARDS, "batch", -10), OVER, ADMITTED),
        (CARDS, HOLDS, Verdict("held", sentence=GATE.format("budget"))),
        (CARDS, WAITS, Verdict("held", sentence=GATE.format("turn"))),
        (CARDS, DENIES, Verdict("refused", "budget-exhausted", DENIED)),
        (LONG, IN_BUDGET, Verdict("refused", "grace-period", GRACE)),
        (admitted(plain()), OVER, None),
    ],
)  # fmt: skip
def test_a_pod_has_the_verdict_of_its_request_and_of_the_standing(
    raw: Json, now: Standing, expected: Verdict | None
) -> None:
    assert judged(raw, now) == expected


@pytest.mark.parametrize("now", [DENIES, HOLDS, OVER, WAITS])
def test_a_rule_that_refuses_counts_before_the_budget(now: Standing) -> None:
    found = judged(LONG, now)

    assert found is not None
    assert (found.word, found.rule) == ("refused", "grace-period")


def test_a_rule_that_only_warns_refuses_nothing() -> None:
    lenient = replace(WITHOUT_SIDECAR, rules={"grace-period": "warn"})

    assert verdict(LONG, "team-a", AdmissionTerms(lenient, IN_BUDGET)) == ADMITTED


FOUR = Cap(total_milli=4_000)
CAPS = {
    "team-a": Caps(own=FOUR),
    "team-g": Caps(group="g", of_group=FOUR),
    "team-h": Caps(own=Cap(total_milli=1_000), group="g", of_group=FOUR),
    "team-z": Caps(own=Cap(total_milli=0)),
}


@pytest.mark.parametrize(
    ("namespace", "earlier", "claims", "expected"),
    [
        ("team-a", [("team-a", 3_000)], {}, ""),
        ("team-a", [("team-a", 3_500)], {}, ("namespace team-a", "3.5")),
        ("team-a", [], {"team-a": 4_000}, ("namespace team-a", "4")),
        ("team-a", [], {"team-a": 9_000}, ("namespace team-a", "9")),
        # one of eight cards would never start, and one of four waits while a smaller one goes
        ("team-a", [("team-a", 8_000)], {}, ""),
        ("team-a", [("team-a", 1_000), ("team-a", 4_000), ("team-a", 2_000)], {}, ""),
        ("team-g", [("team-g", 2_000), ("team-h", 1_000)], {}, ""),
        ("team-g", [("team-g", 3_000), ("team-h", 1_000)], {}, ("group g", "4")),
        # the second of team-h waits for its own cap
        ("team-g", [("team-g", 2_000), ("team-h", 1_000), ("team-h", 1_000)], {}, ""),
        ("team-h", [("team-g", 4_000)], {}, ("group g", "4")),
    ],
)
def test_a_pod_above_a_cap_with_earlier_ones_would_wait(
    namespace: str, earlier: list[tuple[str, int]], claims: dict[str, int], expected: tuple[str, str] | str
) -> None:
    holders = [CardHolder(name, at, milli) for at, (name, milli) in enumerate(earlier)]
    taken = cards_taken(reversed(holders), claims, CAPS.__getitem__)
    terms = AdmissionTerms(replace(WITHOUT_SIDECAR, caps=CAPS[namespace]), IN_BUDGET, taken=taken)

    found = verdict(CARDS, namespace, terms)

    assert found == (
        ADMITTED
        if not expected
        else Verdict(
            "held",
            sentence=f"It would wait until cards are released: the budget of {expected[0]} allows 4 at"
            f" one time (maxGPUs), and earlier pods hold {expected[1]}.",
        )
    )


@pytest.mark.parametrize(
    ("raw", "caps", "now", "word"),
    [
        (admitted(limits_of("main", nvidia_com__gpu="5")), CAPS["team-a"], IN_BUDGET, "refused"),
        (CARDS, CAPS["team-z"], IN_BUDGET, "refused"),
        (CARDS, Caps(own=Cap(pod_milli=999)), IN_BUDGET, "refused"),
        (CARDS, CAPS["team-a"], OVER, "held"),
        (CARDS, CAPS["team-a"], DENIES, "refused"),
    ],
)  # fmt: skip
def test_a_pod_that_is_above_a_cap_alone_would_be_refused(
    raw: Json, caps: Caps, now: Standing, word: str
) -> None:
    full = dict.fromkeys(("team-a", "team-z"), 4_000)
    terms = AdmissionTerms(replace(WITHOUT_SIDECAR, caps=caps), now, taken=full)

    found = verdict(raw, "team-a", terms)

    assert found is not None
    assert found.word == word


def test_a_way_to_cards_without_a_request_would_be_refused() -> None:
    found = [judged(admitted(plain(env=SEES_ALL))), judged(admitted(plain(), runtimeClassName="nvidia"))]

    assert [each and (each.word, each.rule) for each in found] == [
        ("refused", "sees-cards-without-asking"),
        ("refused", "runtime-class"),
    ]


def test_what_schedulers_and_plugins_wrote_since_is_no_violation() -> None:
    bound = with_annotations(CARDS, {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,50:;"})
    bound["spec"]["nodeName"] = "n1"
    ours = with_annotations(bound, {"visible-devices.bursar.dev/main": "GPU-7"})

    words = [each and each.word for each in (judged(bound), judged(bound, is_bound=True))]
    assert words == ["refused", "admitted"]
    assert judged(with_annotations(bound, {"bursar.dev/devices": "{}"}), is_bound=True) == ADMITTED
    assert judged(ours, is_bound=True) == ADMITTED


def test_a_sentence_has_one_line_of_at_most_500_characters_and_says_what_else_is_wrong() -> None:
    raw = with_annotations(LONG, {f"bursar.dev/no-such-{number}": "x" for number in range(3)})
    raw["spec"]["terminationGracePeriodSeconds"] = 10**600

    found = judged(raw)

    assert found is not None
    assert len(found.sentence) <= 500
    assert found.sentence.isprintable()
    assert found.sentence.endswith(" (3 more problems)")


def test_a_pod_of_another_form_is_not_judged() -> None:
    broken = {"metadata": {"name": "p"}, "spec": {"containers": "none"}}

    assert judged(broken) == Verdict("unjudged", sentence="pod.spec.containers: must be an array")


TERMS = EvictionTerms(
    subject="team-a",
    entry="team-a",
    since_ms=0,
    is_spent=True,
    grace_ms=MINUTE,
    rate=6,
    pdb_grace_ms=0,
    granted=1,
    spent=2,
    is_observed=True,
)


def running(name: str, priority: int = 0) -> LedgerPod:
    found = read_pod(gpu_pod(name, started_ms=T0))
    assert isinstance(found, LedgerPod)
    return replace(found, is_metered=True, priority=priority)


def lived(pods: list[LedgerPod], seconds: int, terms: EvictionTerms = TERMS) -> list[tuple[int, str]]:
    """Second -> who would have left, with a look each second."""
    memory, gone = LeavingMemory(BudgetEvictionMemory(0)), []
    for second in range(seconds):
        found, memory = leaving(pods, {"team-a": terms}, memory, T0 + 1_000 * second, 1_000 * second)
        for each in found:
            memory = memory.after(each, 1_000 * second)
            gone.append((second, each.pod.name))
    return gone


def test_pods_would_leave_once_each_after_their_grace_by_priority_and_in_the_budgets_pace() -> None:
    pods = [running("high", 5), running("low"), running("mid", 3)]

    assert lived(pods, 200) == [(60, "low"), (70, "mid"), (80, "high")]


def test_nobody_would_leave_before_charges_have_spent_the_budget() -> None:
    assert lived([running("low")], 200, replace(TERMS, is_spent=False)) == []


def test_a_pod_that_would_not_be_there_takes_nobodys_turn() -> None:
    memory = LeavingMemory(BudgetEvictionMemory(0)).without({"uid-low"})
    pods = [running("low"), running("mid", 3)]
    _, memory = leaving(pods, {"team-a": TERMS}, memory, T0, 0)

    found, _ = leaving(pods, {"team-a": TERMS}, memory, T0 + MINUTE, MINUTE)

    assert [each.pod.name for each in found] == ["mid"]


def test_the_notice_of_a_pod_that_ended_is_forgotten() -> None:
    memory = LeavingMemory(BudgetEvictionMemory(0))
    _, memory = leaving([running("low"), running("mid", 3)], {"team-a": TERMS}, memory, T0, 0)
    before = set(memory.notices)

    _, memory = leaving([running("mid", 3)], {"team-a": TERMS}, memory, T0 + 1_000, 1_000)

    assert (before, set(memory.notices)) == ({"uid-low", "uid-mid"}, {"uid-mid"})
