"""What admission makes of a pod that requests GPUs: its annotations, variables, class and runtime class."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.webhook.governing import ALL, visible
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    admitted,
    env,
    governed,
    half,
    operations,
    patched,
    plain,
    sidecar_of,
    with_class,
)
from tests.worlds import Json, limits_of
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass
from timekeeper.core.wire import StandingWord

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
TENCENT = limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8")
WHOLE = limits_of("main", nvidia_com__gpu="1")


def test_a_governed_pod_whole() -> None:
    raw = admitted(half(env=[{"name": "MODE", "value": "train"}]), plain(env=ALL))

    after = patched(raw, operations(raw))

    expected = copy.deepcopy(raw)
    expected["metadata"] |= {
        "labels": {"bursar.dev/governed": "true"},
        "annotations": {
            "bursar.dev/request": '{"main":{"devices":1,"memory_mib":0,"share_milli":500}}',
            "bursar.dev/standing": "IN_BUDGET",
        },
    }
    del expected["spec"]["priority"], expected["spec"]["preemptionPolicy"]
    expected["spec"] |= {
        "priorityClassName": "gpu-default-priority",
        "schedulerName": "bursar-scheduler",
        "volumes": [
            {
                "name": "bursar-token",
                "projected": {
                    "defaultMode": 0o644,
                    "sources": [
                        {
                            "serviceAccountToken": {
                                "audience": "bursar",
                                "expirationSeconds": 3600,
                                "path": "token",
                            }
                        }
                    ],
                },
            },
            {"name": "bursar-spool", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
        ],
        "initContainers": [
            {
                "name": "bursar-sidecar",
                "image": "example/sidecar:1",
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "sidecar"],
                "restartPolicy": "Always",
                "env": [
                    {"name": "BURSAR_TIMEKEEPER_URL", "value": "https://timekeeper.example"},
                    {"name": "BURSAR_TOKEN_FILE", "value": f"{TOKEN_FOLDER}/token"},
                    {"name": "BURSAR_CA", "value": "-----BEGIN CERTIFICATE-----\n..."},
                    {"name": "BURSAR_SPOOL", "value": "/var/run/bursar/spool"},
                    visible("bursar-sidecar"),
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
                ],
                "volumeMounts": [
                    {"name": "bursar-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
                    {"name": "bursar-spool", "mountPath": "/var/run/bursar/spool"},
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                    "runAsGroup": 65532,
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "resources": {},
            }
        ],
    }
    main, web = expected["spec"]["containers"]
    main["env"] = [{"name": "MODE", "value": "train"}, visible("main")]
    web["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert after == expected


def test_what_is_there_is_added_to_and_not_replaced() -> None:
    raw = admitted(half(), init=[plain("setup")], volumes=[{"name": "data", "emptyDir": {}}])
    raw["metadata"] |= {"labels": {"app": "x"}, "annotations": {"note": "y"}}

    after = governed(raw)

    assert after["metadata"]["labels"] == {"app": "x", "bursar.dev/governed": "true"}
    assert after["metadata"]["annotations"]["note"] == "y"
    assert [each["name"] for each in after["spec"]["volumes"]] == ["data", "bursar-token", "bursar-spool"]
    assert [each["name"] for each in after["spec"]["initContainers"]] == ["bursar-sidecar", "setup"]
    assert env(after["spec"]["initContainers"][1]) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_an_init_container_that_requests_cards_reads_its_own() -> None:
    after = governed(admitted(plain(), init=[half("warm-up")]))

    first = after["spec"]["initContainers"][1]
    assert (
        env(first)["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['visible-devices.bursar.dev/warm-up']"
    )
    assert env(after["spec"]["containers"][0]) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_of_several_entries_of_one_variable_none_is_left_to_win() -> None:
    twice = [*ALL, {"name": "A", "value": "1"}, *ALL, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]

    after = governed(admitted(half(env=twice), plain(env=twice)))

    main, web = (env(each) for each in after["spec"]["containers"])
    assert main["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['visible-devices.bursar.dev/main']"
    assert web == {"NVIDIA_VISIBLE_DEVICES": "void", "A": "1"}


@pytest.mark.parametrize("own", [[], [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]])
def test_capabilities_are_the_users_or_the_images(own: list[Json]) -> None:
    """A value of ours would beat the image's, which admission does not see."""
    (main,) = governed(admitted(half(env=own)))["spec"]["containers"]

    assert main["env"] == [*own, visible("main")]


def test_where_a_device_plugin_chooses_the_cards_its_own_variable_is_left_alone() -> None:
    after = governed(admitted(WHOLE | {"env": ALL}, plain(env=ALL)))

    main, web = after["spec"]["containers"]
    assert env(main) == {}
    assert env(web) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert env(sidecar_of(after))["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_gpu_manager_finds_its_cap() -> None:
    annotations = governed(admitted(TENCENT))["metadata"]["annotations"]

    assert annotations["tencent.com/vcuda-core-limit"] == "50"
    assert {
        "op": "add",
        "path": "/metadata/annotations/tencent.com~1vcuda-core-limit",
        "value": "50",
    } in operations(admitted(TENCENT) | {"metadata": {"annotations": {"a": "b"}}})


def test_a_standing_that_a_user_forged_is_written_over_with_its_class() -> None:
    forged = governed(admitted(half()), "UNLIMITED")

    after = governed(forged, "OVER_BUDGET")

    assert after["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
    assert after["spec"]["priorityClassName"] == "gpu-lower-priority"


CLASSES: dict[str, tuple[Json, Any, str]] = {
    "none": (admitted(half()), "IN_BUDGET", "gpu-default-priority"),
    "none, over budget": (admitted(half()), "OVER_BUDGET", "gpu-lower-priority"),
    "unlimited": (admitted(half()), "UNLIMITED", "gpu-default-priority"),
    "unknown": (admitted(half()), "UNKNOWN", "gpu-default-priority"),
    "a lower one of the user's": (with_class(admitted(half()), "batch", -100), "IN_BUDGET", "batch"),
    "one of the same value": (with_class(admitted(half()), "zero", 0), "IN_BUDGET", "zero"),
    "a higher one": (with_class(admitted(half()), "urgent", 1), "IN_BUDGET", "gpu-default-priority"),
    "a lower one, still too high": (
        with_class(admitted(half()), "low", -4),
        "OVER_BUDGET",
        "gpu-lower-priority",
    ),
    "one whose value nobody resolved": (
        admitted(half(), priorityClassName="urgent", priority=None),
        "IN_BUDGET",
        "gpu-default-priority",
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_of_ones_own_stays_where_it_gives_no_more_than_the_standing(case: str) -> None:
    raw, word, expected = CLASSES[case]

    assert governed(raw, word)["spec"]["priorityClassName"] == expected


def test_a_new_class_takes_the_numbers_of_the_old_one_away_where_they_are_present() -> None:
    raw = admitted(half())
    del raw["spec"]["preemptionPolicy"]

    removed = [each["path"] for each in operations(raw) if each["op"] == "remove"]

    assert removed == ["/spec/priority"]


SEEN = replace(
    POLICY,
    in_budget=replace(POLICY.in_budget, preemption_policy="PreemptLowerPriority"),
    over_budget=replace(POLICY.over_budget, preemption_policy="Never"),
)


def test_a_class_that_the_timekeeper_sees_is_written_with_its_numbers() -> None:
    """So that the API server has nothing left to set, and asks for no second review."""
    fresh, urgent = admitted(half()), with_class(admitted(half()), "urgent", 1_000)

    numbers = {
        (name, word): {
            each["path"]: each["value"]
            for each in operations(raw, word, SEEN)
            if each["path"].startswith("/spec/pr")
        }
        for name, raw in (("fresh", fresh), ("urgent", urgent))
        for word in ("IN_BUDGET", "OVER_BUDGET")
    }

    ours, lower = "gpu-default-priority", "gpu-lower-priority"
    demoted = {"/spec/priorityClassName": lower, "/spec/priority": -5, "/spec/preemptionPolicy": "Never"}
    assert numbers == {
        ("fresh", "IN_BUDGET"): {"/spec/priorityClassName": ours},
        ("fresh", "OVER_BUDGET"): demoted,
        ("urgent", "IN_BUDGET"): {"/spec/priorityClassName": ours, "/spec/priority": 0},
        ("urgent", "OVER_BUDGET"): demoted,
    }


def test_beside_a_class_of_unknown_value_no_class_of_the_users_stays() -> None:
    policy = replace(POLICY, in_budget=PriorityClass("gpu-default-priority", None))

    after = governed(with_class(admitted(half()), "batch", -100), policy=policy)

    assert after["spec"]["priorityClassName"] == "gpu-default-priority"


def test_a_missing_priority_class_is_not_set_and_raises_no_pod_above_its_budget() -> None:
    """The API server would refuse every pod that names it."""
    missing = PriorityClass("typo", None, absent=True)
    no_lower = replace(POLICY, over_budget=missing)
    none = replace(no_lower, in_budget=missing)
    fresh = admitted(half())
    pods = (fresh, with_class(fresh, "batch", -1), with_class(fresh, "urgent", 7))

    def classes(policy: AdmissionPolicy, word: StandingWord) -> list[str | None]:
        return [patched(raw, operations(raw, word, policy))["spec"].get("priorityClassName") for raw in pods]

    assert classes(no_lower, "OVER_BUDGET") == [None, "batch", "gpu-default-priority"]
    assert classes(no_lower, "IN_BUDGET") == ["gpu-default-priority", "batch", "gpu-default-priority"]
    assert classes(none, "IN_BUDGET") == classes(none, "OVER_BUDGET") == [None, "batch", "urgent"]
    assert classes(replace(none, mode="observe"), "OVER_BUDGET") == [None, "batch", "urgent"]
    for raw in pods:
        once = patched(raw, operations(raw, "OVER_BUDGET", no_lower))
        assert operations(once, "OVER_BUDGET", no_lower) == []


def test_unknown_is_what_the_operator_says_it_is() -> None:
    policy = replace(POLICY, unknown_standing="overBudget")

    assert governed(admitted(half()), "UNKNOWN", policy)["spec"]["priorityClassName"] == "gpu-lower-priority"


def test_in_observe_mode_no_pod_is_demoted() -> None:
    fresh, urgent = admitted(half()), with_class(admitted(half()), "urgent", 1_000)

    assert governed(fresh, "OVER_BUDGET", OBSERVING)["spec"]["priorityClassName"] == "gpu-default-priority"
    assert governed(urgent, "OVER_BUDGET", OBSERVING)["spec"]["priorityClassName"] == "urgent"


@pytest.mark.parametrize("scheduler", ["default-scheduler", "genius-scheduler", "bursar-scheduler", "mine"])
def test_in_observe_mode_a_pod_keeps_its_scheduler_and_gets_no_resource_that_this_one_cannot_place(
    scheduler: str,
) -> None:
    raw = admitted(plain("main"), schedulerName=scheduler)
    raw["metadata"]["labels"] = {"genius/gpu-number": "1"}

    spec = governed(raw, policy=OBSERVING)["spec"]

    assert spec["schedulerName"] == scheduler
    limits = spec["containers"][0]["resources"].get("limits", {})
    assert ("bursar.dev/gpu-placement" in limits) is (scheduler == "bursar-scheduler")
    assert governed(raw)["spec"]["schedulerName"] == "bursar-scheduler"


@pytest.mark.parametrize(
    ("before", "added"),
    [
        ([], True),
        ([{"key": "example.com/x", "operator": "Exists"}], True),
        ([{"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}], True),
        ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}], True),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], False),
        ([{"operator": "Exists"}], False),
    ],
)
def test_a_gpu_pod_tolerates_the_taint_of_gpu_nodes(before: list[Json], added: bool) -> None:
    policy = replace(POLICY, gpu_node_taint="nvidia.com/gpu")
    ours = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    raw = admitted(half(), **({"tolerations": before} if before else {}))

    assert governed(raw, policy=policy)["spec"].get("tolerations", []) == [*before, *([ours] * added)]
    assert governed(raw)["spec"].get("tolerations", []) == before


def test_a_runtime_class_is_set_where_the_settings_name_one_and_the_pod_none() -> None:
    policy = replace(POLICY, runtime_class="nvidia")

    assert governed(admitted(half()), policy=policy)["spec"]["runtimeClassName"] == "nvidia"
    assert (
        governed(admitted(half(), runtimeClassName="kata"), policy=policy)["spec"]["runtimeClassName"]
        == "kata"
    )
