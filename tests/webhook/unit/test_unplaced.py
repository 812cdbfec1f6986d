"""Pods of namespaces with `placement: off`: they are checked, classed and gated, and keep their scheduler;
Bursar gives them no card, and refuses what only it could give."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.governing import WORDS, pods
from tests.webhook.injector import CHANGES
from tests.webhook.worlds import (
    POLICY,
    UNPLACED,
    admitted,
    env,
    governed,
    half,
    mutated,
    operations,
    patched,
    plain,
    review,
    violations_of,
    with_annotations,
)
from tests.worlds import Json, container, limits_of, of_resources
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.table import effective_policy
from timekeeper.core.request.request import parse
from timekeeper.core.standings import Cap, Caps
from webhook.__main__ import main
from webhook.admission.validation import validate
from webhook.settings.serve import read
from webhook.standings import decode

WHOLE = limits_of("main", nvidia_com__gpu="2")
EVERYTHING = replace(
    UNPLACED, sidecar=POLICY.sidecar, runtime_class="nvidia", mps_pipes="/mps", gpu_node_taint="gpu"
)


def refused(raw: Json, policy: AdmissionPolicy = UNPLACED) -> list[tuple[str, str]]:
    """Rule and path of each violation."""
    return [(each.rule, each.path) for each in violations_of(raw, policy)]


def reviewed(raw: Json, standing: Standing, policy: AdmissionPolicy) -> Any:
    """The answer of /mutate."""
    return mutated(raw, standing, policy)


def test_a_pod_of_whole_cards_gets_class_gate_and_record_and_nothing_else() -> None:
    raw = admitted(WHOLE, plain("logger"), schedulerName="team-scheduler")

    after = governed(raw, "OVER_BUDGET", UNPLACED, "budget")

    assert after["spec"] == raw["spec"] | {
        "priorityClassName": "gpu-default-priority",
        "schedulingGates": [{"name": "bursar.dev/budget"}],
    }
    assert after["metadata"]["labels"] == {"bursar.dev/governed": "true"}
    assert set(after["metadata"]["annotations"]) == {
        *("bursar.dev/request", "bursar.dev/standing", "bursar.dev/held"),
    }
    assert governed(raw, "OVER_BUDGET", UNPLACED)["spec"]["priorityClassName"] == "gpu-lower-priority"


@pytest.mark.parametrize(
    ("asking", "rules"),
    [
        (WHOLE, set()),  # its node's plugin assigns the cards
        (of_resources({"nvidia.com/mig-1g.5gb": "1"}), set()),
        (half(), {"node-name", "placement-off"}),
        (of_resources({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}), {"node-name", "placement-off"}),
    ],
)
def test_a_node_is_named_where_no_scheduler_assigns_cards(asking: Json, rules: set[str]) -> None:
    raw = admitted(asking, nodeName="n1")

    assert {rule for rule, _ in refused(raw)} == rules
    assert "node-name" in {rule for rule, _ in refused(raw, POLICY)}


def test_rules_of_what_bursar_places_and_binds_are_silent_where_it_does_not() -> None:
    wide, named = admitted(WHOLE), admitted(WHOLE)
    wide["metadata"]["annotations"] = {f"example.com/{number}": "a" * 1024 for number in range(200)}
    named["metadata"]["annotations"] = {"bursar.dev/gpu-models": "A100;H100", "bursar.dev/gang": "g"}

    assert [rule for rule, _ in refused(wide, POLICY)] == ["pod-size"]
    assert refused(wide) == []
    assert {rule for rule, _ in refused(named, POLICY)} == {"malformed-name", "gang"}
    assert {rule for rule, _ in refused(named)} == {"placement-off"}


@given(pods(dialects=("nvidia",)).filter(lambda raw: parse(raw).request is not None), WORDS)
def test_governing_is_a_fixed_point_that_validation_agrees_with(raw: Json, word: Any) -> None:
    after = governed(raw, word, UNPLACED)

    assert operations(after, word, UNPLACED) == []
    assert validate(review(after), UNPLACED).refusal == ""
    assert after["spec"]["schedulerName"] == raw["spec"]["schedulerName"]
    assert parse(after).request == parse(raw).request
    request = parse(raw).request
    assert request is not None
    asking = {each.container for each in request.asks}
    for before, each in zip(_containers(raw), _containers(after), strict=True):
        named = {variable["name"] for variable in before.get("env", [])}
        assert set(env(each)) <= named, "a variable was added"
        shows = "NVIDIA_VISIBLE_DEVICES" in named and each["name"] not in asking
        assert env(each).get("NVIDIA_VISIBLE_DEVICES") == ("void" if shows else None)


def _containers(raw: Json) -> list[Json]:
    return [*raw["spec"].get("initContainers", []), *raw["spec"]["containers"]]


OTHERS = st.lists(st.sampled_from(sorted(CHANGES)), max_size=4)


@given(pods(dialects=("nvidia",)).filter(lambda raw: parse(raw).request is not None), WORDS, OTHERS)
def test_what_other_webhooks_change_between_the_calls_is_put_right_or_refused(
    raw: Json, word: Any, others: list[str]
) -> None:
    pod = governed(raw, word, UNPLACED)
    for name in others:
        pod = patched(pod, CHANGES[name](pod))
    needed = operations(pod, word, UNPLACED)

    verdict = validate(review(pod), UNPLACED)

    assert bool(verdict.refusal) == bool(needed)
    assert operations(governed(pod, word, UNPLACED), word, UNPLACED) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            admitted(half()),
            [("placement-off", "spec.containers[0].resources.limits[bursar.dev/gpu-percent]")],
        ),
        (
            admitted(container(gpu_memory="8192")),
            [("placement-off", "spec.containers[0].resources.limits[bursar.dev/gpu-memory]")],
        ),
        (
            admitted(container(gpu_count="1")),
            [("placement-off", "spec.containers[0].resources.limits[bursar.dev/gpu-count]")],
        ),
        (
            admitted(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="32")),
            [
                ("placement-off", f"spec.containers[0].resources.limits[tencent.com/vcuda-{each}]")
                for each in ("core", "memory")
            ],
        ),
        (
            admitted(of_resources({"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "100"})),
            [("placement-off", "spec.containers[0].resources.limits[gpu.intel.com/millicores]")],
        ),
        (
            with_annotations(admitted(WHOLE), {"bursar.dev/gpu-models": "H100"}),
            [("placement-off", "metadata.annotations[bursar.dev/gpu-models]")],
        ),
        (
            admitted(WHOLE, schedulerName="bursar-scheduler"),
            [("placement-off", "spec.schedulerName")],
        ),
        (admitted(of_resources({"koordinator.sh/gpu": "50"})), [("own-scheduler", "spec.schedulerName")]),
    ],
)
def test_what_only_bursars_scheduler_serves_is_refused(raw: Json, expected: list[tuple[str, str]]) -> None:
    assert refused(raw) == expected
    assert refused(raw, POLICY) == [each for each in expected if each[0] == "own-scheduler"]


def test_the_refusal_of_a_share_says_what_to_switch_on() -> None:
    answer = reviewed(admitted(half()), Standing("IN_BUDGET"), UNPLACED)

    assert answer.refusal == (
        "spec.containers[0].resources.limits[bursar.dev/gpu-percent]: placement is off here, and only "
        "Bursar's scheduler serves bursar.dev/gpu-percent, got \"50\"; allowed: whole cards of the node's "
        "device plugin; or an administrator sets placement: on, in the namespace's budget entry or in "
        '_settings; for example nvidia.com/gpu: "1"'
    )


@pytest.mark.parametrize(
    "raw",
    [
        admitted(WHOLE),
        admitted(WHOLE, schedulerName="team-scheduler"),
        admitted(of_resources({"nvidia.com/gpu.shared": "1"})),
        admitted(of_resources({"nvidia.com/mig-1g.5gb": "1"})),
        admitted(of_resources({"gpu.intel.com/i915": "1"})),
        admitted(of_resources({"koordinator.sh/gpu": "50"}), schedulerName="koord-scheduler"),
        admitted(
            of_resources({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}), schedulerName="hami-scheduler"
        ),
        with_annotations(admitted(plain(), schedulerName="kai-scheduler"), {"gpu-fraction": "0.5"}),
    ],
)
def test_what_a_plugin_or_another_systems_scheduler_serves_is_admitted_and_keeps_its_scheduler(
    raw: Json,
) -> None:
    assert refused(raw) == []

    after = governed(raw, policy=UNPLACED)

    assert after["spec"]["schedulerName"] == raw["spec"]["schedulerName"]
    assert after["spec"]["containers"] == raw["spec"]["containers"]
    assert validate(review(after), UNPLACED).refusal == ""


def test_accelerators_of_other_vendors_are_admitted_where_they_are_metered() -> None:
    raw = admitted(limits_of("main", amd_com__gpu="1"))

    assert refused(raw, replace(UNPLACED, unknown_accelerators="meter")) == []
    assert refused(raw) == [("dialect-not-spoken", "spec.containers[0].resources.limits[amd.com/gpu]")]


@pytest.mark.parametrize(
    ("standing", "caps", "held"),
    [
        (Standing("IN_BUDGET"), Caps(), ""),
        (Standing("IN_BUDGET"), Caps(Cap(4_000)), "turn"),
        (Standing("OVER_BUDGET", on_exhausted="hold"), Caps(), "budget"),
        (Standing("OVER_BUDGET", on_exhausted="evict"), Caps(), "budget"),
        (Standing("OVER_BUDGET"), Caps(), ""),
        (Standing("UNKNOWN"), Caps(Cap(4_000)), ""),
    ],
)
def test_budget_and_caps_hold_by_the_gate(standing: Standing, caps: Caps, held: str) -> None:
    answer = reviewed(admitted(WHOLE), standing, replace(UNPLACED, caps=caps))

    assert answer.audit.get("held", "") == held
    assert any("schedulingGates" in each["path"] for each in answer.operations) == bool(held)


def test_a_spent_budget_that_denies_refuses_as_elsewhere() -> None:
    denied = Standing("OVER_BUDGET", on_exhausted="deny")

    assert (
        "has used its GPU budget (onExhausted: deny)" in reviewed(admitted(WHOLE), denied, UNPLACED).refusal
    )


@pytest.mark.parametrize(("first", "second"), [(POLICY, UNPLACED), (UNPLACED, POLICY)])
def test_a_pod_that_was_governed_before_a_flip_is_not_admitted_with_half_of_each(
    first: AdmissionPolicy, second: AdmissionPolicy
) -> None:
    after = governed(admitted(WHOLE), policy=first)

    assert validate(review(after), first).refusal == ""
    assert validate(review(after), second).refusal != ""


def table(**entries: Any) -> Any:
    """What the timekeeper sends."""
    return decode(orjson.dumps(standings(**entries)), "", 0)


def test_the_table_says_where_bursar_places_and_the_flag_until_the_first_table() -> None:
    flags = replace(EVERYTHING, places=True)
    mixed = table(team_a=entry(placement="off"), team_b=entry())

    def of(namespace: str) -> AdmissionPolicy:
        return effective_policy(flags, mixed, True, namespace)

    assert (
        of("team-a").places,
        of("team-a").sidecar,
        of("team-a").runtime_class,
        of("team-a").mps_pipes,
    ) == (
        False,
        None,
        "",
        "",
    )
    assert (of("team-b").places, of("team-b").sidecar) == (True, POLICY.sidecar)
    early = effective_policy(replace(flags, places=False), None)
    assert (early.places, early.sidecar, early.gpu_node_taint) == (False, None, "gpu")
    assert effective_policy(replace(flags, places=False), mixed, True, "team-b").sidecar == POLICY.sidecar
    assert read(["--placement=off"], {}).policy.places is False
    assert read([], {}).policy.places is True


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"team-a": "gpuHours: 1"}, 0),
        ({"team-a": "gpuHours: 1\nplacement: off"}, 1),
        ({"_settings": "placement: off"}, 1),
        ({"_settings": "placement: off", "team-a": "gpuHours: 1\nplacement: on"}, 0),
        ({"_defaults": "gpuHours: 1\nplacement: off"}, 1),
    ],
)
def test_review_reads_the_setting_from_the_budgets(tmp_path: Path, data: Json, code: int) -> None:
    manifest, budgets = tmp_path / "pod.json", tmp_path / "budgets.json"
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **admitted(half())}))
    kind = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bursar-budgets"}, "data": data}
    budgets.write_text(json.dumps(kind))

    assert main(["review", f"--budgets={budgets}", str(manifest)]) == code
