"""Pods that the schedulers of other systems place: what admission writes, keeps and refuses."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.checkout import ROOT
from tests.webhook.worlds import (
    POLICY,
    admitted,
    env,
    governed,
    mutated,
    operations,
    patched,
    plain,
    review,
    sidecar_of,
    violations_of,
    with_annotations,
)
from tests.worlds import Json, limits_of, of_resources
from timekeeper.cli.doctor.extender_entry import MANAGED_RESOURCES
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.standings import Cap, Caps
from webhook.__main__ import main
from webhook.admission import cel
from webhook.admission.validation import validate
from webhook.settings.serve import read

ALL = frozenset(("kai-scheduler", "koord-scheduler", "vgpu-scheduler", "volcano"))
OTHERS = replace(POLICY, other_schedulers=ALL)


def fraction(**fields: Any) -> Json:
    """A pod of KAI on which KAI's own webhook has run."""
    variable = {
        "name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": {"configMapKeyRef": {"name": "p-abc1234-shared-gpu-0", "key": "NVIDIA_VISIBLE_DEVICES"}},
    }
    containers = (plain("main", env=[variable | fields]), plain("logger"))
    raw = admitted(*containers, schedulerName="kai-scheduler")
    return with_annotations(
        raw, {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": "p-abc1234-shared-gpu"}
    )


def of(limits: Json, scheduler: str) -> Json:
    """A pod with these limits."""
    return admitted(of_resources(limits), schedulerName=scheduler)


WHOLE = {"nvidia.com/gpu": "2"}
KOORDINATOR = {"koordinator.sh/gpu": "50"}
VGPU = {"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-memory": "1000"}

KEPT = {
    "KAI, a fraction": (fraction(), "kai-scheduler"),
    "KAI, whole cards": (of(WHOLE, "kai-scheduler"), "kai-scheduler"),
    "koordinator": (of(KOORDINATOR, "koord-scheduler"), "koord-scheduler"),
    "koordinator, whole cards": (of(WHOLE, "koord-scheduler"), "koord-scheduler"),
    "vgpu-manager": (of(VGPU, "vgpu-scheduler"), "vgpu-scheduler"),
    "vgpu-manager, without a scheduler": (of(VGPU, "default-scheduler"), "vgpu-scheduler"),
    "Volcano, whole cards": (of(WHOLE, "volcano"), "volcano"),
}


@pytest.mark.parametrize("which", KEPT)
def test_its_scheduler_keeps_the_pod_and_bursar_governs_it(which: str) -> None:
    raw, scheduler = KEPT[which]
    assert violations_of(raw, OTHERS) == ()

    after = governed(raw, "OVER_BUDGET", OTHERS)

    assert after["spec"]["schedulerName"] == scheduler
    assert after["spec"]["priorityClassName"] == "gpu-lower-priority"
    assert after["metadata"]["labels"]["bursar.dev/governed"] == "true"
    assert after["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
    assert sidecar_of(after)
    assert "bursar.dev/gpu-placement" not in str(after), "kube-scheduler would call the extender"
    assert operations(after, "OVER_BUDGET", OTHERS) == []
    assert violations_of(after, OTHERS) == ()


def test_the_variable_of_kais_config_map_stays_and_no_other_container_sees_a_card() -> None:
    raw = fraction()

    after = governed(raw, policy=OTHERS)

    assert after["spec"]["containers"][0]["env"] == raw["spec"]["containers"][0]["env"]
    assert env(after["spec"]["containers"][1])["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    "forged",
    [
        {"valueFrom": {"configMapKeyRef": {"name": "mine", "key": "NVIDIA_VISIBLE_DEVICES"}}},
        {"valueFrom": {"configMapKeyRef": {"name": "p-shared-gpu-0", "key": "ALL"}}},
        {"valueFrom": None, "value": "all"},
    ],
)
def test_another_source_of_the_variable_is_refused(forged: Json) -> None:
    assert [each.rule for each in violations_of(fraction(**forged), OTHERS)] == ["visible-devices"]


NOT_KEPT = {
    "KAI, not named by the flag": (fraction(), POLICY),
    "koordinator, not named by the flag": (of(KOORDINATOR, "koord-scheduler"), POLICY),
    "koordinator, left to Bursar": (of(KOORDINATOR, "bursar-scheduler"), OTHERS),
    "vgpu-manager, left to Volcano": (of(VGPU, "volcano"), OTHERS),
}


@pytest.mark.parametrize("which", NOT_KEPT)
def test_a_pod_that_no_scheduler_would_place_is_refused(which: str) -> None:
    raw, policy = NOT_KEPT[which]

    (violation,) = violations_of(raw, policy)

    assert (violation.rule, violation.path) == ("own-scheduler", "spec.schedulerName")


def test_whole_cards_are_bursars_where_the_flag_does_not_name_the_scheduler() -> None:
    raw = of(WHOLE, "volcano")

    assert [each.rule for each in violations_of(raw, POLICY)] == ["foreign-scheduler"]
    assert governed(raw)["spec"]["schedulerName"] == "bursar-scheduler"
    native = admitted(limits_of("main", bursar_dev__gpu_percent="50"), schedulerName="volcano")
    assert governed(native, policy=OTHERS)["spec"]["schedulerName"] == "bursar-scheduler"


@pytest.mark.parametrize(
    "name",
    [
        "received-resource-type",
        "scheduling.koordinator.sh/device-allocated",
        "nvidia.com/pre-allocated",
        "nvidia.com/predicate-node",
    ],
)
def test_no_user_writes_the_placement_of_another_system_at_creation(name: str) -> None:
    (violation,) = violations_of(with_annotations(of(WHOLE, "volcano"), {name: "x"}), OTHERS)

    assert (violation.rule, violation.path) == ("forged-annotation", f"metadata.annotations[{name}]")


@pytest.mark.parametrize(
    "name", ["runai-gpu-group", "runai-gpu-group/0-1", "nvidia.com/assigned-phase", "nvidia.com/metrics-node"]
)
def test_no_user_writes_such_a_label_at_creation(name: str) -> None:
    raw = of(WHOLE, "volcano")
    raw["metadata"]["labels"] = {name: "x"}

    (violation,) = violations_of(raw, OTHERS)

    assert (violation.rule, violation.path) == ("forged-label", f"metadata.labels[{name}]")


def test_a_pod_with_such_an_annotation_or_label_is_reviewed_though_it_requests_no_gpu() -> None:
    others = [each for each in DIALECTS if each.placed_by_others]
    annotations = [name for each in others for name in each.placement_annotations]
    labels = [name for each in others for name in each.placement_labels]

    assert {"received-resource-type", "nvidia.com/real-allocated"} <= {*annotations}
    assert {"runai-gpu-group", "nvidia.com/assigned-phase"} <= {*labels}
    assert all(re.search(cel.reviewed_annotations(), name) for name in annotations)
    assert all(re.search(cel.reviewed_labels(), name) for name in [*labels, "runai-gpu-group/0-1"])
    text = (ROOT / "deploy/manifests/webhook-configurations.yaml").read_text()
    assert text.count(cel.reviewed_labels()) == text.count(cel.reviewed_annotations()) > 0


def test_the_flag_takes_known_schedulers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert read([], {}).policy.other_schedulers == frozenset()
    assert read(["--other-schedulers=volcano, kai-scheduler"], {}).policy.other_schedulers == {
        "volcano",
        "kai-scheduler",
    }
    with pytest.raises(SystemExit):
        read(["--other-schedulers=my-scheduler"], {})
    assert "kai-scheduler or koord-scheduler or vgpu-scheduler or volcano" in capsys.readouterr().err


def test_kube_scheduler_calls_the_extender_for_none_of_their_resources() -> None:
    assert not {*KOORDINATOR, *VGPU} & set(MANAGED_RESOURCES)


def test_review_and_audit_have_the_flag_too(tmp_path: Path) -> None:
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **of(KOORDINATOR, "koord-scheduler")}))

    assert main(["review", str(manifest)]) == 1
    assert main(["review", "--other-schedulers=koord-scheduler", str(manifest)]) == 0


CAPPED = replace(OTHERS, caps=Caps(Cap(4_000)))


@pytest.mark.parametrize(
    ("raw", "standing", "policy", "held"),
    [
        (fraction(), Standing("IN_BUDGET"), CAPPED, "turn"),
        (of(VGPU, "default-scheduler"), Standing("OVER_BUDGET"), CAPPED, "turn"),
        (fraction(), Standing("OVER_BUDGET", on_exhausted="hold"), CAPPED, "budget"),
        (fraction(), Standing("UNKNOWN"), CAPPED, ""),
        (fraction(), Standing("IN_BUDGET"), replace(CAPPED, mode="observe"), ""),
        (fraction(), Standing("IN_BUDGET"), OTHERS, ""),
        (of({"bursar.dev/gpu-percent": "50"}, "default-scheduler"), Standing("IN_BUDGET"), CAPPED, ""),
    ],
)
def test_where_there_is_a_cap_the_timekeeper_releases_pods_of_other_schedulers(
    raw: Json, standing: Standing, policy: AdmissionPolicy, held: str
) -> None:
    answer = mutated(raw, standing, policy)

    after = patched(raw, list(answer.operations))

    assert answer.audit.get("held", "") == held
    gates = [{"name": "bursar.dev/budget"}] if held else []
    assert after["spec"].get("schedulingGates", []) == gates
    assert validate(review(after), policy).verdict == "valid"


@pytest.mark.parametrize(
    ("limits", "annotations", "scheduler"),
    [
        ({"koordinator.sh/gpu": "150"}, {}, "koord-scheduler"),
        ({"nvidia.com/vgpu-cores": "NaN"}, {}, "vgpu-scheduler"),
        ({}, {"gpu-fraction": "500m"}, "kai-scheduler"),
        ({"volcano.sh/vgpu-number": "-1"}, {}, "volcano"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "-1"}, {}, "hami-scheduler"),
    ],
)
def test_a_mistake_in_a_pod_with_its_systems_scheduler_is_one_sentence(
    limits: Json, annotations: Json, scheduler: str
) -> None:
    """It says nothing of the scheduler, which the pod may have."""
    (violation,) = violations_of(with_annotations(of(limits, scheduler), annotations), OTHERS)

    assert violation.rule != "foreign-scheduler"


METERING = replace(OTHERS, unknown_accelerators="meter", runtime_class="nvidia")
TPU = admitted(limits_of("main", google_com__tpu="4"), plain("logger"))


def validated(raw: Json, policy: AdmissionPolicy) -> str:
    """What the second webhook refuses the pod with; empty where it does not."""
    return validate(review(raw), policy).refusal


@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano", "bursar-scheduler", "gke.io/other"])
def test_a_metered_pod_is_governed_and_keeps_its_scheduler_and_its_runtime(scheduler: str) -> None:
    raw = TPU | {"spec": TPU["spec"] | {"schedulerName": scheduler}}

    after = governed(raw, "OVER_BUDGET", METERING)

    assert after["spec"]["schedulerName"] == scheduler
    assert "runtimeClassName" not in after["spec"]
    assert after["spec"]["priorityClassName"] == POLICY.over_budget.name
    assert sidecar_of(after)
    assert "NVIDIA_VISIBLE_DEVICES" not in json.dumps(after["spec"]["containers"][0])
    assert operations(after, "OVER_BUDGET", METERING) == []
    assert validated(after, METERING) == ""
    for word in ("refuse", "pass"):  # the setting changed between the two calls
        policy: AdmissionPolicy = replace(METERING, unknown_accelerators=word)
        assert validated(after, policy) == ""


def test_accelerators_that_the_settings_name_are_recorded_and_stay_what_they_were() -> None:
    naming = replace(METERING, devices={"example.com/npu": True, "example.com/nic": False})
    raw = of({"example.com/npu": "2", "example.com/nic": "1"}, "default-scheduler")

    after = governed(raw, policy=naming)

    assert after["metadata"]["annotations"]["bursar.dev/accelerators"] == "example.com/npu"
    assert operations(after, "IN_BUDGET", naming) == []
    assert validated(after, naming) == validated(after, METERING) == ""
    assert mutated(raw, policy=METERING).operations == ()
    assert (
        "no dialect reads example.com/npu"
        in mutated(raw, policy=replace(naming, unknown_accelerators="refuse")).refusal
    )
    forged = with_annotations(raw, {"bursar.dev/accelerators": "example.com/nic"})
    (violation,) = violations_of(forged, naming)
    assert violation.rule == "forged-annotation"


def test_a_pod_of_tkes_keeps_its_scheduler_without_the_flag() -> None:
    raw = of(
        {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "8"},
        "default-scheduler",
    )

    after = governed(raw)

    assert violations_of(raw, POLICY) == ()
    assert after["spec"]["schedulerName"] == "default-scheduler"
    assert sidecar_of(after)
    assert "bursar.dev/gpu-placement" not in json.dumps(after)


def test_a_metered_pod_that_admission_did_not_govern_is_refused() -> None:
    passing = replace(METERING, unknown_accelerators="pass")

    assert validated(TPU, passing) == ""
    assert "the mode or a setting of the namespace changes at this moment" in validated(TPU, METERING)
    assert "no dialect reads google.com/tpu" in validated(TPU, OTHERS)


def test_a_forged_label_admits_no_accelerator() -> None:
    forged = TPU | {"metadata": TPU["metadata"] | {"labels": {"bursar.dev/governed": "true"}}}

    assert "no dialect reads google.com/tpu" in mutated(forged, policy=OTHERS).refusal


def test_metered_devices_count_toward_caps_and_get_a_gate_where_there_is_one() -> None:
    within = replace(METERING, caps=Caps(Cap(total_milli=4000)))
    beyond = replace(METERING, caps=Caps(Cap(total_milli=3999)))

    held = mutated(TPU, policy=within)
    refused = mutated(TPU, policy=beyond)

    assert held.audit == {"standing": "IN_BUDGET", "held": "turn"}
    assert "the budget of the namespace allows no pod so much" in refused.refusal


# gangs of other systems

VGPUS = {"volcano.sh/vgpu-number": "1"}
OPERATED = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "name": "train",
    "uid": "u",
    "controller": True,
}


def member(limits: Json, scheduler: str, mark: str, **annotations: str) -> Json:
    """A pod that another system starts with others, as an operator makes it."""
    raw = of(limits, scheduler)
    field = "labels" if "kueue" in mark else "annotations"
    raw["metadata"] |= {"ownerReferences": [OPERATED], field: {mark: "train", **annotations}}
    return raw


@pytest.mark.parametrize(
    ("scheduler", "mark"),
    [
        ("volcano", "scheduling.k8s.io/group-name"),
        ("kai-scheduler", "pod-group-name"),
        ("yunikorn", "yunikorn.apache.org/task-group-name"),
        ("koord-scheduler", "gang.scheduling.koordinator.sh/name"),
    ],
)
def test_a_pod_of_anothers_gang_is_left_to_it_or_refused_and_never_moved(scheduler: str, mark: str) -> None:
    raw = member(
        WHOLE, scheduler, mark, **{"bursar.dev/gang-size": "8"}
    )  # which admission wrote at the owner
    named = replace(POLICY, other_schedulers=frozenset((scheduler,)))

    kept = patched(raw, list(mutated(raw, policy=named).operations))
    refusal = mutated(raw).refusal

    assert mutated(raw, policy=replace(POLICY, takes_whole_cards=True)).refusal == refusal
    assert kept["spec"]["schedulerName"] == scheduler
    assert "schedulingGates" not in kept["spec"]
    assert validate(review(kept), named).refusal == ""
    said = (
        f"metadata.annotations[{mark}] leaves the start of these pods to {scheduler}, and Bursar would start"
    )
    assert refusal == (
        f'spec.schedulerName: {said} each by itself, got "{scheduler}"; allowed: the pod as it is, where the'
        f" webhook's flag --other-schedulers names {scheduler}; or the pod without the mark, and"
        f" bursar.dev/gang-size; for example --other-schedulers={scheduler}"
    )


def test_parts_of_cards_in_anothers_gang_are_refused_with_what_may_stay() -> None:
    refusal = mutated(member(VGPUS, "volcano", "scheduling.k8s.io/group-name"), policy=OTHERS).refusal

    assert (
        "allowed: whole cards in nvidia.com/gpu, where the webhook's flag --other-schedulers names volcano"
        in refusal
    )


@pytest.mark.parametrize("scheduler", ["volcano", "hami-scheduler"])
def test_a_pod_without_a_mark_or_in_a_queue_of_kueue_is_placed_as_ever(scheduler: str) -> None:
    limits = VGPUS if scheduler == "volcano" else WHOLE
    queued = member(limits, scheduler, "kueue.x-k8s.io/queue-name")

    for raw in (of(limits, scheduler), queued):
        after = patched(raw, list(mutated(raw).operations))
        assert after["spec"]["schedulerName"] == "bursar-scheduler"


def test_a_queue_of_kueue_hides_no_mark_of_the_pods_scheduler() -> None:
    queued = member(WHOLE, "kai-scheduler", "kueue.x-k8s.io/queue-name", **{"kai.scheduler/queue": "q"})

    assert "[kai.scheduler/queue] leaves the start of these pods to kai-scheduler" in mutated(queued).refusal


def test_a_size_that_a_user_wrote_beside_anothers_mark_is_refused() -> None:
    alone = member(WHOLE, "volcano", "scheduling.k8s.io/group-name", **{"bursar.dev/gang-size": "8"})
    del alone["metadata"]["ownerReferences"]
    named = member(
        WHOLE,
        "volcano",
        "scheduling.k8s.io/group-name",
        **{"bursar.dev/gang": "g", "bursar.dev/gang-size": "8"},
    )

    for raw in (alone, named):
        assert "leaves the start of these pods to another system" in mutated(raw, policy=OTHERS).refusal
