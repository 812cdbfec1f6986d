"""Amounts and settings that nothing reads are named with their right place, and zeros are no request."""

from dataclasses import replace
from typing import Any

import pytest

from tests.webhook.unit.test_templates import template, workload
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    UNPLACED,
    env,
    governed,
    mutated,
    object_review,
    violations_of,
)
from tests.worlds import Json, of_resources, pod
from timekeeper.core.admission.rules.bypass import bypass_violations
from timekeeper.core.request.claims import EXPLICIT, KnownClaims
from timekeeper.core.request.device_classes import ClassParameters, DeviceClass
from timekeeper.core.request.devices import device_containers
from timekeeper.core.request.metered import metered_request
from timekeeper.core.request.request import NO_REQUEST, containers, parse, parse_new
from webhook.admission.workloads import judge

METERING = replace(POLICY, mode="meter")
CARD = of_resources({"nvidia.com/gpu": "1"})
KAI = replace(POLICY, other_schedulers=frozenset({"kai-scheduler"}))
IN_LIMITS = "it belongs in resources.limits of a container"


def labelled(raw: Json, labels: Json) -> Json:
    """The pod with labels."""
    return {**raw, "metadata": raw["metadata"] | {"labels": labels}}


@pytest.mark.parametrize(
    ("raw", "path", "says"),
    [
        (
            pod(CARD, annotations={"nvidia.com/gpumem": "4000"}),
            "metadata.annotations[nvidia.com/gpumem]",
            IN_LIMITS,
        ),
        (
            pod(CARD, annotations={"nvidia.com/gpucores": "30%"}),
            "metadata.annotations[nvidia.com/gpucores]",
            IN_LIMITS,
        ),
        (labelled(pod(CARD), {"nvidia.com/gpu": "2"}), "metadata.labels[nvidia.com/gpu]", IN_LIMITS),
        (
            pod({"name": "main"}, annotations={"aliyun.com/gpu-mem": "8"}),
            "metadata.annotations[aliyun.com/gpu-mem]",
            IN_LIMITS,
        ),
        (
            pod(CARD, annotations={"nvidia.com/mig-1g.5gb": "1"}),
            "metadata.annotations[nvidia.com/mig-1g.5gb]",
            IN_LIMITS,
        ),
        (pod(CARD, annotations={"amd.com/gpu": "1"}), "metadata.annotations[amd.com/gpu]", IN_LIMITS),
        (
            pod(CARD, resources={"limits": {"nvidia.com/gpu": "1"}}),
            "spec.resources.limits[nvidia.com/gpu]",
            IN_LIMITS,
        ),
        (
            labelled(pod(CARD), {"nvidia.com/use-gputype": "A100"}),
            "metadata.labels[nvidia.com/use-gputype]",
            "it belongs in metadata.annotations",
        ),
        (
            labelled(pod(CARD), {"gpu-fraction": "0.5"}),
            "metadata.labels[gpu-fraction]",
            "it belongs in metadata.annotations",
        ),
        (
            pod(CARD, annotations={"genius/gpu-number": "1"}),
            "metadata.annotations[genius/gpu-number]",
            "it belongs in metadata.labels",
        ),
        (
            pod(CARD, of_resources({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "4000"}, "side")),
            "spec.containers[1].resources.limits[nvidia.com/gpu]",
            "no card is requested, so nvidia.com/gpumem beside it has no effect",
        ),
    ],
)
def test_what_nothing_reads_is_named_with_its_right_place(raw: Json, path: str, says: str) -> None:
    told = mutated(raw, policy=KAI)
    observed = mutated(raw, policy=OBSERVING)

    assert told.refusal == ""
    for warnings in (told.warnings, observed.warnings):
        assert [each for each in warnings if each.startswith(path) and says in each]
        assert all(len(each.encode()) <= 256 and not each.endswith("...") for each in warnings)
    assert mutated(raw, policy=METERING).warnings == ()


@pytest.mark.parametrize(
    "raw",
    [
        pod(CARD, annotations={"nvidia.com/gpumem": "0"}),
        labelled(pod(CARD), {"nvidia.com/gpu": "true", "nvidia.com/gpu.product": "A100"}),
        pod(CARD, annotations={"huawei.com/Ascend910": "Ascend910-0"}),
        pod(CARD, annotations={"nvidia.com/use-gputype": "A100", "example.com/gpu": "1"}),
    ],
)
def test_what_others_write_beside_a_request_is_left_alone(raw: Json) -> None:
    assert "without-effect" not in [each.rule for each in violations_of(raw, POLICY)]


@pytest.mark.parametrize(
    ("metadata", "allowed"),
    [
        ({"annotations": {"bursar.dev/gpu-percent": "50"}}, "resources.limits of a container"),
        ({"labels": {"bursar.dev/gpu-percent": "50"}}, "resources.limits of a container"),
        ({"labels": {"bursar.dev/policy": "spread"}}, "metadata.annotations"),
        ({"annotations": {"elasticgpu.io/gpu-memory": "8192"}}, "resources.limits of a container"),
        ({"annotations": {"bursar.dev/polcy": "spread"}}, "bursar.dev/policy"),
    ],
)
def test_what_is_refused_in_a_pods_metadata_is_refused_with_its_right_place(
    metadata: Json, allowed: str
) -> None:
    raw = pod(CARD)

    (violation,) = violations_of({**raw, "metadata": raw["metadata"] | metadata}, POLICY)

    assert allowed in violation.allowed


WRITTEN: dict[str, tuple[str, Json, str]] = {
    "a policy": (
        "Job",
        {"annotations": {"bursar.dev/policy": "spread"}},
        "spec.template.metadata.annotations",
    ),
    "misspelt": (
        "Deployment",
        {"annotations": {"bursar.dev/polcy": "spread"}},
        "spec.template.metadata.annotations, as bursar.dev/policy",
    ),
    "a gang": (
        "StatefulSet",
        {"annotations": {"bursar.dev/gang": "a"}},
        "spec.template.metadata.annotations",
    ),
    "of HAMi": (
        "Job",
        {"annotations": {"nvidia.com/use-gputype": "T4"}},
        "spec.template.metadata.annotations",
    ),
    "of KAI": ("Job", {"annotations": {"gpu-fraction": "0.5"}}, "spec.template.metadata.annotations"),
    "a label": ("Job", {"labels": {"bursar.dev/policy": "spread"}}, "spec.template.metadata.annotations"),
    "of Genius": ("Job", {"labels": {"genius/gpu-number": "1"}}, "spec.template.metadata.labels"),
    "an amount": ("Job", {"annotations": {"nvidia.com/gpumem": "4000"}}, "resources.limits of a container"),
    "of a CronJob": (
        "CronJob",
        {"annotations": {"bursar.dev/policy": "spread"}},
        "spec.jobTemplate.spec.template.metadata.annotations",
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_a_workloads_pods_do_not_get_is_named_with_its_right_place(case: str) -> None:
    kind, metadata, right = WRITTEN[case]
    written = workload(kind, template(CARD))
    misplaced = {**written, "metadata": written["metadata"] | metadata}

    told = judge(object_review(misplaced), POLICY)
    later = judge(object_review(misplaced, written, operation="UPDATE"), POLICY)
    again = judge(object_review(misplaced, misplaced, operation="UPDATE"), POLICY)

    assert told.refusal == ""
    (warning,) = told.warnings
    assert warning.startswith("metadata.")
    assert f"no pod of a {kind} gets it; it belongs in {right}, got" in warning
    assert later.warnings == told.warnings
    assert again.warnings == ()
    assert judge(object_review(misplaced), METERING).warnings == ()


@pytest.mark.parametrize(
    "metadata",
    [{"annotations": {"bursar.dev/policy": "spread"}}, {"annotations": {"example.com/policy": "spread"}}],
)
def test_what_the_template_has_too_or_is_of_others_is_not_named(metadata: Json) -> None:
    of = template(CARD)
    written = workload("Job", {**of, "metadata": of["metadata"] | metadata})

    assert judge(object_review({**written, "metadata": metadata}), POLICY).warnings == ()


def test_a_job_templates_own_metadata_is_not_its_pods_either() -> None:
    written = workload("CronJob", template(CARD))
    written["spec"]["jobTemplate"]["metadata"] = {"annotations": {"bursar.dev/policy": "spread"}}

    (warning,) = judge(object_review(written), POLICY).warnings

    assert warning.startswith("spec.jobTemplate.metadata.annotations[bursar.dev/policy]: no pod of a CronJob")


def zeros(*names: str, **more: Any) -> Json:
    """A container with zeros of these resources."""
    return of_resources(dict.fromkeys(names, "0"), **more)


def test_a_zero_container_of_a_gpu_pod_sees_no_card_and_may_set_what_others_may() -> None:
    steered = {
        **zeros("nvidia.com/gpu", name="side"),
        "env": [{"name": "CUDA_DISABLE_CONTROL", "value": "1"}],
    }

    raw = governed(
        pod(of_resources({"bursar.dev/gpu-percent": "50"}), steered, init=[zeros("nvidia.com/gpu", name="i")])
    )

    side = next(each for each in raw["spec"]["containers"] if each["name"] == "side")
    init = next(each for each in raw["spec"]["initContainers"] if each["name"] == "i")
    assert env(side)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env(init)["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "hami-scheduler"])
def test_a_pod_of_zeros_alone_keeps_scheduler_and_rules(scheduler: str) -> None:
    container = zeros("nvidia.com/gpu", "nvidia.com/gpumem-percentage")
    raw = pod(container, schedulerName=scheduler)
    seeing = pod({**container, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})

    told = mutated(raw)
    assert (told.verdict, told.operations, told.warnings) == ("passed", (), ())
    assert [each.rule for each in violations_of(seeing, POLICY)] == ["sees-cards-without-asking"]


@pytest.mark.parametrize("beside", [{}, {"nvidia.com/gpucores": "30"}, {"nvidia.com/gpumem": "3000"}])
def test_a_percentage_of_zero_reaches_no_plugin(beside: Json) -> None:
    amounts = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "0", "nvidia.com/gpumem": "0", **beside}
    container = of_resources(amounts)
    container["resources"]["requests"] = dict(amounts)

    for policy in (POLICY, UNPLACED):
        raw = governed(pod(container, schedulerName="hami-scheduler"), policy=policy)
        resources = raw["spec"]["containers"][0]["resources"]
        assert [name for part in resources.values() for name in part if "percentage" in name] == []
        assert mutated(raw, policy=policy).operations == ()


def test_zeros_of_classes_accelerators_and_overhead_ask_for_nothing() -> None:
    of_class, served = f"{EXPLICIT}gpu.nvidia.com", "example.com/card"
    raw = pod(zeros(of_class, served, "amd.com/gpu", "nvidia.com/gpu"), overhead={"nvidia.com/gpu": "0"})
    known = KnownClaims({"gpu.nvidia.com": DeviceClass("gpu.nvidia.com", "gpu.nvidia.com")})
    parameters = ClassParameters(refused=(served,))

    for setting in ("refuse", "meter", "pass"):
        assert parse_new(raw, setting, known, "team-a") == NO_REQUEST
    assert device_containers(containers(raw)) == ()
    assert bypass_violations(raw, parse(raw), parameters) == ()


def test_a_pod_of_zeros_alone_is_kept_from_the_ways_around_a_request() -> None:
    raw = pod(zeros("nvidia.com/gpu"), volumes=[{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}])

    assert [each.rule for each in bypass_violations(raw, parse(raw))] == ["host-path"]


@pytest.mark.parametrize(
    ("amounts", "cards"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10Gi"}, 1),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpucores": "300"}, 2),
        ({"nvidia.com/gpu.shared": "10G"}, 1),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpus": "3"}, 3),
    ],
)
def test_of_what_cannot_be_read_amounts_on_a_card_are_no_devices_of_a_metered_pod(
    amounts: Json, cards: int
) -> None:
    raw = pod(of_resources(amounts), nodeName="n")

    metered = metered_request(raw, parse(raw))

    assert metered is not None
    assert [each.ask.devices for each in metered.request.asks] == [cards]
    assert metered.doubt
