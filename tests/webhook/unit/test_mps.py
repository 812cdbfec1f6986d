"""Limits by NVIDIA's MPS: which containers read them, from where, and who may set them."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.webhook.worlds import (
    POLICY,
    admitted,
    env,
    governed,
    half,
    operations,
    plain,
    review,
    sidecar_of,
    violations_of,
)
from tests.worlds import Json, limits_of
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.audit.findings import of_pod

PIPES = "/run/nvidia-mps"
ON = replace(POLICY, mps_pipes=PIPES)
ELSEWHERE = replace(POLICY, mps_pipes="/tmp/nvidia-mps")
OFF = POLICY


def limits(name: str, pipes: str = PIPES) -> list[Json]:
    """The variables of a container that is limited."""
    return [
        {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": pipes},
        annotated("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"mps-memory.bursar.dev/{name}"),
        annotated("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", f"mps-threads.bursar.dev/{name}"),
    ]


def annotated(variable: str, annotation: str) -> Json:
    """A variable that is read from an annotation."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def of_mps(container: Json) -> list[Json]:
    """The variables of MPS, as they stand there."""
    return [each for each in container.get("env", []) if each["name"].startswith("CUDA_MPS_")]


def named(raw: Json) -> dict[str, Json]:
    """The containers by name."""
    return {
        each["name"]: each for each in [*raw["spec"].get("initContainers", []), *raw["spec"]["containers"]]
    }


def broken(raw: Json, policy: AdmissionPolicy = ON) -> list[str]:
    """The rules that the pod breaks."""
    return [each.rule for each in violations_of(raw, policy)]


def test_each_container_with_a_card_reads_its_own_limits_and_no_other_does() -> None:
    helper = half("helper", restartPolicy="Always")
    raw = admitted(
        half("main", env=[{"name": "MODE", "value": "x"}]), plain(), init=[half("prepare"), helper]
    )

    after = governed(raw, policy=ON)

    for name in ("main", "helper", "prepare"):
        assert of_mps(named(after)[name]) == limits(name)
    assert of_mps(named(after)["web"]) == []
    assert of_mps(sidecar_of(after)) == []
    assert env(named(after)["main"])["MODE"] == "x"


def test_where_mps_is_off_nothing_of_it_is_in_the_pod() -> None:
    assert "MPS" not in str(governed(admitted(half(), plain()), policy=OFF))


PLUGINS = {
    "gpu-manager, which limits by itself": limits_of(
        "main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="32"
    ),
    "NVIDIA's, which picks the cards": limits_of("main", nvidia_com__gpu="1"),
}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_where_a_node_plugin_has_its_own_way_it_is_left_alone(plugin: str) -> None:
    raw = admitted(PLUGINS[plugin])

    assert "MPS" not in str(governed(raw, policy=ON))
    forged = copy.deepcopy(raw)
    forged["spec"]["containers"][0]["env"] = limits("main")
    assert of_mps(named(governed(forged, policy=ON))["main"]) == []


@pytest.mark.parametrize(("now", "pipes"), [(ON, PIPES), (ELSEWHERE, "/tmp/nvidia-mps")])
def test_a_pod_made_from_a_governed_one_gets_todays_folder(now: AdmissionPolicy, pipes: str) -> None:
    again = governed(admitted(half(), plain()), policy=ON)

    assert broken(again) == []
    assert of_mps(named(governed(again, policy=now))["main"]) == limits("main", pipes)


def test_a_pod_made_from_a_limited_one_has_no_limits_where_mps_is_off_now() -> None:
    again = governed(admitted(half(), plain()), policy=ON)

    assert broken(again, OFF) == []
    assert governed(again, policy=OFF) == governed(admitted(half(), plain()), policy=OFF)


OWN: dict[str, list[Json]] = {
    "more of the card's compute": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}],
    "a folder without a daemon": [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/nowhere"}],
    "an empty folder beside our limits": [
        {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": ""},
        *limits("main")[1:],
    ],
    "a folder alone, beside one of our limits": limits("main")[:2],
    "another container's limits": [limits("main")[0], *limits("web")[1:]],
    "a limit beside ours": [
        *limits("main"),
        {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": "0=80000M"},
    ],
    "another variable of MPS": [*limits("main"), {"name": "CUDA_MPS_CLIENT_PRIORITY", "value": "0"}],
}


@pytest.mark.parametrize("policy", [ON, OFF], ids=["on", "off"])
@pytest.mark.parametrize("case", OWN)
def test_a_users_own_limits_are_refused(case: str, policy: AdmissionPolicy) -> None:
    assert set(broken(admitted(half(env=OWN[case])), policy)) == {"isolation-variable"}


def test_nor_may_they_stand_in_the_sidecar() -> None:
    raw = governed(admitted(half()), policy=ON)
    sidecar_of(raw)["env"] += limits("bursar-sidecar")

    assert set(broken(raw)) == {"isolation-variable"}


@pytest.mark.parametrize("case", OWN)
def test_where_the_rule_is_off_ours_stand_once_and_a_users_only_where_there_are_none(case: str) -> None:
    names = {each["name"] for each in limits("main")}
    raw = admitted(half(env=OWN[case]))

    after = named(governed(raw, policy=ON))["main"]
    assert [each for each in after["env"] if each["name"] in names] == limits("main")
    assert of_mps(named(governed(raw, policy=OFF))["main"]) == OWN[case] or case == "another variable of MPS"


def test_a_folder_that_a_user_names_beside_our_limits_is_set_right() -> None:
    """It is what a pod made from a governed one looks like, so it is no reason to refuse it."""
    raw = admitted(half(env=limits("main", "/nowhere")))

    assert broken(raw) == []
    assert of_mps(named(governed(raw, policy=ON))["main"]) == limits("main")


# what another webhook has changed since, and replicas of other flags


CHANGES: dict[str, Any] = {
    "a limit taken away": lambda variables: variables[:-1],
    "a limit of its own": lambda variables: [
        *variables[:-1],
        {"name": variables[-1]["name"], "value": "100"},
    ],
    "a limit beside ours": lambda variables: [*variables, {"name": variables[-1]["name"], "value": "100"}],
    "another folder": lambda variables: [{"name": variables[0]["name"], "value": "/nowhere"}, *variables[1:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_webhook_changed_of_the_limits_is_refused(change: str) -> None:
    raw = governed(admitted(half()), policy=ON)
    main = named(raw)["main"]
    others = [each for each in main["env"] if each not in of_mps(main)]
    main["env"] = [*others, *CHANGES[change](of_mps(main))]

    assert validate(review(raw), ON).verdict == "refused"


def test_the_order_of_the_variables_is_no_matter() -> None:
    raw = governed(admitted(half()), policy=ON)
    named(raw)["main"]["env"].reverse()

    assert operations(raw, policy=ON) == []
    assert validate(review(raw), ON).verdict == "valid"


@pytest.mark.parametrize("then", [ON, OFF], ids=["then on", "then off"])
@pytest.mark.parametrize("now", [ON, OFF], ids=["now on", "now off"])
def test_replicas_of_other_flags_find_each_others_pods_valid(
    then: AdmissionPolicy, now: AdmissionPolicy
) -> None:
    raw = governed(admitted(half(), plain()), policy=then)

    answer = mutate(review(raw), lambda _namespace: Standing("IN_BUDGET"), now)

    assert answer.verdict in ("governed", "unchanged")
    assert validate(review(raw), now).verdict == "valid"


def test_a_pod_that_runs_with_limits_is_no_finding_where_mps_is_off_now() -> None:
    assert of_pod(governed(admitted(half(), plain()), policy=ON), OFF) == ()
