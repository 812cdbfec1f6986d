"""The table of standings: what it says as it ages, as budgets turn, and while a burst runs."""

import copy
import json
from dataclasses import replace
from typing import Any

import jsonpatch
import orjson
import pytest

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.worlds import (
    POLICY,
    WITHOUT_SIDECAR,
    admitted,
    governed,
    half,
    plain,
    review,
)
from tests.worlds import Json, container
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Sidecar, Standing
from timekeeper.core.admission.protection import cost
from timekeeper.core.admission.table import CLASSES_HOLD_MS, StandingsTable, effective_policy, standing
from timekeeper.core.request.request import parse
from timekeeper.core.standings import NO_CAPS, Cap, Caps, UndecodableStandingsError
from webhook.admission.validation import validate
from webhook.server.reviewer import NotReadyError, Reviewer
from webhook.standings import decode

STALE_AFTER_MS = 30_000
GENERATED = 1_750_000_000_000


def table(now_ms: int = 0, settings: Json | None = None, **namespaces: Json) -> StandingsTable:
    """A table that was read at this moment."""
    return decode(orjson.dumps(standings(settings, "1", **namespaces)), '"1"', now_ms)


def word(of: StandingsTable | None, now_ms: int, namespace: str = "team-a", spent: int = 0) -> str:
    """The standing's word."""
    return standing(of, namespace, spent, now_ms, STALE_AFTER_MS).status


def test_a_namespace_has_its_own_standing_and_another_the_default() -> None:
    heard = table(team_a=entry("OVER_BUDGET", ratio=1000))

    assert standing(heard, "team-a", 0, 0, STALE_AFTER_MS) == Standing(
        "OVER_BUDGET", 1000, 800, remaining=3_600_000_000
    )
    assert word(heard, 0, "elsewhere") == "UNLIMITED"


def test_a_table_never_seen_is_unknown() -> None:
    assert word(None, 0) == "UNKNOWN"


def test_in_budget_becomes_unknown_without_contact_for_too_long() -> None:
    heard = table(team_a=entry("IN_BUDGET"))

    assert word(heard, STALE_AFTER_MS) == "IN_BUDGET"
    assert word(heard, STALE_AFTER_MS + 1) == "UNKNOWN"
    assert word(heard.confirmed(STALE_AFTER_MS), 2 * STALE_AFTER_MS) == "IN_BUDGET"


def test_over_budget_does_not_age() -> None:
    assert word(table(team_a=entry("OVER_BUDGET")), 1_000 * STALE_AFTER_MS) == "OVER_BUDGET"


def test_over_budget_by_the_table_is_no_estimate() -> None:
    spent_up = table(team_a=entry("OVER_BUDGET", remaining=0))

    assert not standing(spent_up, "team-a", 1, 0, STALE_AFTER_MS).by_estimate


def test_no_budget_ages_too_for_one_may_have_come() -> None:
    assert word(table(), STALE_AFTER_MS + 1) == "UNKNOWN"


@pytest.mark.parametrize("before", ["IN_BUDGET", "OVER_BUDGET"])
def test_a_standing_holds_until_its_end_by_the_timekeepers_clock(before: str) -> None:
    """Our own clock of day is not asked: the table was generated when it was read, and time has gone on."""
    heard = table(now_ms=70, team_a=entry(before, validUntil=GENERATED + 500))

    assert word(heard, 70 + 499) == before
    assert word(heard, 70 + 500) == "UNKNOWN"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"generated": "now"},
        {"namespaces": {"a": {"standing": "RICH"}}},
        {"namespaces": {"a": entry("RICH")}},
        {"namespaces": {"a": entry(remaining=1.5)}},
        {"namespaces": []},
        {"settings": {}},
        {"default": None},
    ],
    ids=str,
)
def test_a_body_that_is_no_table_is_rejected(changes: Json) -> None:
    with pytest.raises(UndecodableStandingsError):
        decode(orjson.dumps(standings() | changes), "", 0)


def test_bytes_that_are_no_json_are_no_table() -> None:
    for body in (b"", b"[]", b"<html>"):
        with pytest.raises(UndecodableStandingsError):
            decode(body, "", 0)


def test_the_tables_terms_go_before_this_processs_flags() -> None:
    classes = {
        "inBudget": {"name": "a", "value": 7},
        "overBudget": {"name": "gpu-lower-priority", "value": None},
        "clusterDefault": {"name": "everyday", "value": 1000, "preemptionPolicy": "PreemptLowerPriority"},
    }
    told = {
        "mode": "observe",
        "schedulerName": "theirs",
        "sidecar": False,
        "priorityClasses": classes,
        "unknownStanding": "overBudget",
        "maxGracePeriodMs": 90_500,
        "unknownAccelerators": "pass",
        "devices": {"example.com/npu": True, "example.com/nic": False},
    }

    policy = effective_policy(replace(POLICY, known=False), table(settings=told))

    assert policy == replace(
        POLICY,
        known=True,
        mode="observe",
        scheduler_name="theirs",
        in_budget=PriorityClass("a", 7),
        over_budget=PriorityClass("gpu-lower-priority", None, absent=True),  # whatever the flags say of it
        cluster_default="everyday",
        unknown_standing="overBudget",
        max_grace_s=90,
        unknown_accelerators="pass",
        devices={"example.com/npu": True, "example.com/nic": False},
        sidecar=None,
    )
    assert effective_policy(POLICY, None) == POLICY


@pytest.mark.parametrize(
    ("flags", "told", "expected"),
    [
        (POLICY, {"sidecar": True}, POLICY.sidecar),
        (POLICY, {"sidecar": False}, None),
        (WITHOUT_SIDECAR, {"sidecar": True}, None),
    ],
)
def test_the_table_turns_the_sidecar_only_further_than_the_flags(
    flags: AdmissionPolicy, told: Json, expected: Sidecar | None
) -> None:
    assert effective_policy(flags, table(settings=told)).sidecar == expected


def test_a_classs_numbers_are_written_only_while_the_timekeeper_has_confirmed_them_of_late() -> None:
    seen = {
        "inBudget": {"name": "gpu-default-priority", "value": 0, "preemptionPolicy": "PreemptLowerPriority"},
        "overBudget": {"name": "gpu-lower-priority", "value": -5, "preemptionPolicy": "Never"},
    }
    world = World(table(settings={"priorityClasses": seen}, team_a=entry("OVER_BUDGET")))

    def numbers() -> list[tuple[str, str]]:
        operations = world.admission.mutate(review(admitted(half()))).operations
        return [(each["op"], each["path"]) for each in operations if each["path"] in NUMBERS]

    while_fresh = numbers()
    world.now_ms = CLASSES_HOLD_MS
    still = numbers()
    world.now_ms = CLASSES_HOLD_MS + 1
    later = numbers()
    world.heard = None
    unheard = numbers()

    assert while_fresh == still == [("add", path) for path in NUMBERS]
    assert later == unheard == [("remove", path) for path in NUMBERS]


@pytest.mark.parametrize("policy", [None, "", "Sometimes", 1])
def test_a_class_of_no_known_preemption_policy_has_no_numbers_to_write(policy: object) -> None:
    classes = {
        "inBudget": {"name": "a", "value": 7, "preemptionPolicy": policy},
        "overBudget": {"name": "b", "value": None, "preemptionPolicy": "Never"},
    }

    settings = table(settings={"priorityClasses": classes}).settings

    absent = PriorityClass("b", None, absent=True)
    assert (settings.in_budget, settings.over_budget) == (PriorityClass("a", 7), absent)


def test_a_class_that_is_absent_stays_so_without_contact_with_the_timekeeper() -> None:
    """Else every pod would be refused for as long."""
    classes = {
        "inBudget": {"name": "gpu-default-priority", "value": None},
        "overBudget": {"name": "gpu-lower-priority", "value": -5},
    }
    heard = table(settings={"priorityClasses": classes})

    for fresh in (True, False):
        missing = PriorityClass("gpu-default-priority", None, absent=True)
        assert effective_policy(POLICY, heard, fresh).in_budget == missing


def test_a_namespaces_own_rules_and_mode_go_before_the_clusters() -> None:
    cluster = {"mode": "observe", "rules": {"host-pid": "warn", "privileged": "off"}, "exempt": ["admins"]}
    own = entry(mode="enforce", rules={"host-pid": "enforce", "env-from": "off"}, exempt=["ci"])
    heard = table(settings=cluster, team_a=own)

    theirs, others = (effective_policy(POLICY, heard, namespace=each) for each in ("team-a", "team-b"))

    assert (theirs.mode, theirs.rules, theirs.exempt) == (
        "enforce",
        {"host-pid": "enforce", "privileged": "off", "env-from": "off"},
        frozenset({"admins", "ci"}),
    )
    assert (others.mode, others.rules, others.exempt) == (
        "observe",
        {"host-pid": "warn", "privileged": "off"},
        frozenset({"admins"}),
    )


def test_a_timekeeper_of_an_earlier_release_reports_no_rules() -> None:
    whole = standings(team_a=entry())
    del whole["namespaces"]["team-a"]["rules"], whole["namespaces"]["team-a"]["exempt"]

    policy = effective_policy(POLICY, decode(orjson.dumps(whole), "", 0), namespace="team-a")

    assert (policy.mode, policy.rules, policy.exempt) == ("enforce", {}, frozenset())


def test_each_namespace_is_judged_by_its_own_terms() -> None:
    own = entry(rules={"host-pid": "off"}, exempt=["system:serviceaccount:ci:runner"])
    world = World(table(team_a=own, team_b=entry(mode="observe")))
    raw = admitted(half(), hostPID=True)

    answers = {
        each: world.admission.mutate(review(raw, namespace=each)) for each in ("team-a", "team-b", "team-c")
    }

    assert {each: (answer.verdict, answer.rules) for each, answer in answers.items()} == {
        "team-a": ("governed", ()),
        "team-b": ("observed", (("host-pid", "observe"),)),
        "team-c": ("refused", (("host-pid", "enforce"),)),
    }
    again = (world.admission.policy_for(each) for each in ("team-c", "team-d"))
    assert len({id(policy) for policy in again}) == 1  # made once for all that have settled nothing
    world.heard = table(team_a=entry())
    assert world.admission.mutate(review(raw, namespace="team-a")).verdict == "refused"


# the estimate


def test_a_pod_costs_its_share_over_the_lookahead() -> None:
    def costs(raw: Json, lookahead_ms: int | None) -> int:
        request = parse(raw).request
        assert request is not None
        return cost(request, lookahead_ms)

    two = admitted(container("a", gpu_percent="50"), container("b", gpu_percent="25"))
    setup = admitted(container("a", gpu_percent="50"), init=[container("i", gpu_percent="200")])
    memory = admitted(container(gpu_memory="8000"))
    assert costs(two, 600_000) == 750 * 600_000
    assert costs(setup, 1) == 2_000
    assert costs(memory, 1) == 0
    assert costs(two, None) == 750 * 5_000
    assert costs(two, 0) == 0


class World:
    """One worker with a clock that is turned by hand."""

    def __init__(self, heard: StandingsTable | None, ca: str | None = "ca") -> None:
        self.heard, self.ca, self.now_ms = heard, ca, 0
        self.admission = Reviewer(
            POLICY, lambda: self.heard, lambda: self.ca, lambda: self.now_ms, STALE_AFTER_MS
        )

    def creates(self, raw: Json, **request: Any) -> str:
        """The class that the pod gets."""
        answer = self.admission.mutate(review(raw, **request))
        return next(
            str(each["value"]) for each in answer.operations if each["path"] == "/spec/priorityClassName"
        )


def test_a_sidecar_names_no_user_in_a_namespace_whose_users_the_cluster_chooses() -> None:
    heard = table(team_b=entry("IN_BUDGET"))
    chooses = {"team-b", "team-d"}.__contains__
    reviewer = Reviewer(POLICY, lambda: heard, lambda: "ca", lambda: 0, 30_000, chooses_users=chooses)

    def names_a_user(namespace: str) -> bool:
        answer = reviewer.mutate(review(admitted(half()), namespace=namespace))
        return "runAsUser" in json.dumps(answer.operations)

    assert [names_a_user(f"team-{letter}") for letter in "abcdab"] == [True, False, True, False, True, False]
    beside = reviewer.beside((), "team-b").policy_for("team-b").sidecar
    assert beside is not None
    assert not beside.has_own_user


NUMBERS = ("/spec/priority", "/spec/preemptionPolicy")
BURST = {"lookaheadMs": 600_000}
HALF = 500 * 600_000  # a pod of half a card, looked ahead
LEFT = HALF * 3


def test_a_burst_does_not_outrun_a_table_that_is_a_second_old() -> None:
    world = World(table(settings=BURST, team_a=entry("IN_BUDGET", remaining=LEFT)))

    classes = [world.creates(admitted(half())) for _ in range(5)]

    assert classes == ["gpu-default-priority"] * 3 + ["gpu-lower-priority"] * 2
    assert world.creates(admitted(half()), namespace="team-b") == "gpu-default-priority"


def test_a_write_of_budgets_asks_the_table_for_standings() -> None:
    world = World(table(team_a=entry("OVER_BUDGET")))
    word = world.admission.standing_word

    assert (word("team-a"), word("")) == ("OVER_BUDGET", world.admission.standing_word("team-b"))
    world.now_ms = STALE_AFTER_MS + 1
    assert (word("team-a"), word("")) == ("OVER_BUDGET", "UNKNOWN")
    assert World(None).admission.standing_word("team-a") == "UNKNOWN"


def test_neither_dry_runs_nor_second_calls_nor_refusals_count() -> None:
    world = World(table(settings=BURST, team_a=entry("IN_BUDGET", remaining=1)))
    for _ in range(3):
        world.creates(admitted(half()), dryRun=True)
    world.admission.mutate(review(admitted(container(gpu_percent="150"))))

    assert world.creates(admitted(half())) == "gpu-default-priority"
    again = governed(admitted(half()))
    again["spec"]["containers"].append(plain("proxy"))
    again["spec"]["initContainers"][0]["env"][2]["value"] = "ca"
    assert world.admission.mutate(review(copy.deepcopy(again))).audit["standing"] == "IN_BUDGET"

    world.heard = table(settings=BURST, team_a=entry("IN_BUDGET", remaining=HALF + 1))
    assert [world.creates(admitted(half())) for _ in range(2)] == [
        "gpu-default-priority",
        "gpu-lower-priority",
    ]


def test_a_pod_that_comes_back_is_not_demoted_by_what_it_cost_itself() -> None:
    world = World(table(settings=BURST, team_a=entry("IN_BUDGET", remaining=1)))
    first, second = (world.admission.mutate(review(admitted(half()))) for _ in range(2))

    back = [
        world.admission.mutate(review(jsonpatch.apply_patch(admitted(half()), list(answer.operations))))
        for answer in (first, second)
    ]

    assert [answer.audit["standing"] for answer in (first, second)] == ["IN_BUDGET", "OVER_BUDGET"]
    assert [answer.audit["standing"] for answer in back] == ["IN_BUDGET", "OVER_BUDGET"]
    assert [answer.operations for answer in back] == [(), ()]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize(
    "fields", [{}, {"volumeMounts": [{"name": "bursar-token"}]}, {"restartPolicy": "Always"}]
)
def test_a_forged_mark_beside_a_container_of_the_sidecars_name_breaks_nothing(
    mode: str, field: str, fields: Json
) -> None:
    world = World(table(team_a=entry(mode=mode)))
    forged = admitted(half())
    forged["metadata"] |= {
        "labels": {"bursar.dev/governed": "true"},
        "annotations": {"bursar.dev/standing": "IN_BUDGET"},
    }
    forged["spec"].setdefault(field, []).append(plain("bursar-sidecar", **fields))

    first = world.admission.mutate(review(forged))
    after = jsonpatch.apply_patch(forged, list(first.operations))

    verdict = "refused" if mode == "enforce" else "observed"
    assert first.verdict == verdict
    assert any(rule == "sidecar-name" for rule, _ in first.rules)
    assert world.admission.mutate(review(after)).verdict == verdict
    policy = world.admission.policy_for("team-a")
    assert validate(review(after), policy).rules[0][0] == "sidecar-name"


def test_a_pod_that_a_user_marked_halfway_counts_like_any_other() -> None:
    world = World(table(settings=BURST, team_a=entry("IN_BUDGET", remaining=1)))
    world.creates(admitted(half()))
    forged = admitted(half())
    forged["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    forged["metadata"]["annotations"] = {"bursar.dev/standing": "IN_BUDGET"}

    assert world.creates(forged) == "gpu-lower-priority"


def test_the_first_pod_of_an_exact_rest_is_in_budget() -> None:
    """What nobody has admitted here turns nothing, however little is left: that is the timekeeper's to
    say."""
    world = World(table(settings=BURST, team_a=entry("IN_BUDGET", remaining=0)))

    assert world.creates(admitted(half())) == "gpu-default-priority"


def test_without_a_ca_nothing_is_governed() -> None:
    world = World(table(), ca=None)

    assert world.admission.unready() == "the CA bundle for sidecars is not loaded yet"
    with pytest.raises(NotReadyError):
        world.admission.mutate(review(admitted(half())))


def test_a_worker_is_not_ready_before_it_has_requested_the_standings_once() -> None:
    asked = False
    admission = Reviewer(POLICY, lambda: None, lambda: "ca", lambda: 0, STALE_AFTER_MS, lambda: asked)

    assert admission.unready() == "no poll of the standings was attempted yet"
    asked = True
    assert admission.unready() == ""


def test_an_absent_table_is_no_reason_to_be_unready() -> None:
    world = World(None)

    assert world.admission.unready() == ""
    assert world.creates(admitted(half())) == "gpu-default-priority"


def test_the_sidecar_gets_the_ca_of_this_moment() -> None:
    world = World(table(), ca="newer")

    answer = world.admission.mutate(review(admitted(half())))

    (sidecar,) = (each["value"][0] for each in answer.operations if each["path"] == "/spec/initContainers")
    assert {"name": "BURSAR_CA", "value": "newer"} in sidecar["env"]


# caps


def test_a_namespaces_caps_are_its_own_its_groups_and_kept_while_the_standing_is_unknown() -> None:
    heard = table(
        team_a=entry(
            group="lab", caps={"total": 4_000, "pod": None}, groupCaps={"total": None, "pod": 1_500}
        ),
        team_b=entry(validUntil=GENERATED - 1, caps={"total": 0, "pod": 0}),
    )

    assert effective_policy(POLICY, heard, namespace="team-a").caps == Caps(
        Cap(4_000, None), "lab", Cap(None, 1_500)
    )
    assert word(heard, 0, "team-b") == "UNKNOWN"
    assert effective_policy(POLICY, heard, namespace="team-b").caps == Caps(Cap(0, 0))
    assert effective_policy(POLICY, heard, namespace="elsewhere").caps == NO_CAPS


@pytest.mark.parametrize("raw", [{"total": "4", "pod": None}, {"total": 1.5, "pod": None}])
def test_a_cap_that_is_no_whole_number_is_no_table(raw: Json) -> None:
    with pytest.raises(UndecodableStandingsError):
        table(team_a=entry(caps=raw))


@pytest.mark.parametrize(
    ("flag", "cluster", "own", "has_one"),
    [
        (POLICY, True, None, True),
        (POLICY, True, "off", False),
        (POLICY, False, None, False),
        (POLICY, False, "on", True),
        (WITHOUT_SIDECAR, True, "on", False),  # where the flag is off, the flag decides
    ],
)
def test_a_budget_says_whether_its_pods_get_a_sidecar(
    flag: AdmissionPolicy, cluster: bool, own: str | None, has_one: bool
) -> None:
    heard = table(settings={"sidecar": cluster}, team_a=entry(**({"sidecar": own} if own else {})))

    policy = effective_policy(flag, heard, namespace="team-a")

    assert policy.sidecar == (flag.sidecar if has_one else None)
    assert policy.requires_sidecar is (own == "on")
    assert effective_policy(flag, heard, namespace="team-b").sidecar == (flag.sidecar if cluster else None)
