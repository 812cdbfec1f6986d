"""``python -m webhook review``: manifests judged without a cluster, as a cluster judges them."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.cases import SUSPECT
from tests.webhook.rule_examples import PODS
from tests.webhook.servers import ROOT
from tests.webhook.unit.test_configmaps import BAD as BAD_BUDGET
from tests.webhook.unit.test_configmaps import GOOD as GOOD_BUDGET
from tests.webhook.unit.test_configmaps import config_map
from tests.webhook.unit.test_templates import BAD, GOOD, RESOURCES, workload
from tests.webhook.worlds import POLICY, admitted, half, operations, plain
from tests.worlds import Json, limits_of
from timekeeper.core.admission.json_patch import patched
from webhook.__main__ import main
from webhook.dryrun.judge import objects
from webhook.dryrun.judge.assumed_cluster import AssumedCluster

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
spec:
  containers:
    - name: main
      image: registry.example/app:1
      resources:
        limits:
          bursar.dev/gpu-percent: {percent}
"""


def write(content: object, path: Path) -> Path:
    """A file of this text, or of these objects; its path."""
    if not isinstance(content, str | bytes):
        documents = content if isinstance(content, list) else [content]
        content = yaml.safe_dump_all(documents, sort_keys=False)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


class Review:
    """The command, run in this process on files of one folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def file(self, content: object, name: str = "m.yaml") -> str:
        """A file of this text, or of these objects."""
        return str(write(content, self.folder / name))

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        code = main(["review", *arguments])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def json(self, content: object, *flags: str) -> list[Json]:
        """The report on this content as JSON."""
        _, out, _ = self("-o", "json", *flags, self.file(content))
        return list(json.loads(out)["items"])


def test_the_json_report_is_as_documented(review: Review) -> None:
    text = POD.format(percent=150) + "---\n" + POD.format(percent=50)
    code, out, err = review("-o", "json", review.file(text))
    refused, good = json.loads(out)["items"]

    assert (code, err) == (1, "")
    assert refused == {
        "document": 1,
        "kind": "Pod",
        "name": "train",
        "verdict": "refused",
        "violations": [
            {
                "rule": "share-range",
                "path": "spec.containers[0].resources.limits[bursar.dev/gpu-percent]",
                "got": '"150"',
                "allowed": "1 to 100 for a share of one card, or a multiple of 100 for whole cards",
                "example": 'bursar.dev/gpu-percent: "200"',
            }
        ],
        "warnings": [],
        "pods": [],
        "patched": None,
    }
    assert (good["document"], good["verdict"], good["violations"], good["warnings"]) == (
        2,
        "admitted",
        [],
        [],
    )
    assert good["patched"]["metadata"]["labels"] == {"bursar.dev/governed": "true"}
    assert good["patched"]["spec"]["priorityClassName"] == "gpu-default-priority"
    assert list(good) == list(refused)


def test_the_report_in_the_docs_is_the_one_that_is_given(review: Review) -> None:
    page = (ROOT / "docs" / "review.md").read_text()
    (shown,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)

    assert json.loads(shown)["items"] == review.json(POD.format(percent=150))


def test_people_read_the_file_and_line_of_what_is_wrong(review: Review) -> None:
    file = review.file(POD.format(percent=50) + "---\n" + POD.format(percent=150) + "  nodeName: a\n")

    code, out, err = review(file)

    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert lines[0] == f"{file}:1: Pod train: admitted"
    assert lines[1].startswith(
        "  governed: IN_BUDGET assumed: what is used is not known here, priority class gpu-default-priority,"
        " request {"
    )
    assert lines[2] == f"{file}:13: Pod train: refused"
    assert lines[3].startswith(
        f"  {file}:23: spec.containers[0].resources.limits[bursar.dev/gpu-percent]: more "
    )
    assert lines[4].startswith(f"  {file}:24: spec.nodeName: ")
    assert lines[5:] == ["2 objects: 1 admitted, 1 refused"]


def test_the_items_of_a_list_have_their_own_verdicts_and_lines(review: Review) -> None:
    pods = "\n".join(
        f"- apiVersion: v1\n  kind: Pod\n  metadata: {{name: p{percent}}}\n  spec:\n    containers:\n"
        f"    - name: a\n      resources: {{limits: {{bursar.dev/gpu-percent: {percent}}}}}"
        for percent in (50, 150)
    )
    text = f"apiVersion: v1\nkind: List\nitems:\n{pods}\n"

    found = review.json(text)
    _, out, _ = review(review.file(text))

    assert [(each["document"], each["name"], each["verdict"]) for each in found] == [
        (1, "p50", "admitted"),
        (1, "p150", "refused"),
    ]
    assert "m.yaml:17: spec.containers[0].resources.limits[bursar.dev/gpu-percent]: " in out


def test_a_mistake_in_a_budget_is_reported_with_its_line_in_the_file(review: Review) -> None:
    text = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bursar-budgets}\ndata:\n"
        "  team-a: |\n    gpuHours: 10\n    period: fortnight\n  team-b: {gpuHours: 1}\n"
    )

    _, out, _ = review(review.file(text))

    assert (
        'm.yaml:7: data[team-a], line 2, period: "fortnight" is not a valid value; allowed: hour, day, '
        in out
    )
    assert "m.yaml:8: data[team-b]: not text; allowed: the fields as text, after |; for example " in out


def test_a_key_in_two_of_the_config_maps_is_found_when_both_are_shown(review: Review) -> None:
    label = {"bursar.dev/budgets": "true"}
    more = config_map({"team-a": GOOD_BUDGET, "team-b": GOOD_BUDGET}, "more", labels=label)

    found = review.json([more, config_map({"team-a": GOOD_BUDGET})])

    assert [(each["name"], each["verdict"]) for each in found] == [
        ("more", "refused"),
        ("bursar-budgets", "admitted"),
    ]
    assert [each["path"] for each in found[0]["violations"]] == ["data[team-a]"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [1\nb: 2\n", "m.yaml:2: not YAML: "),
        (b"a: \xff", "m.yaml:1: not UTF-8"),
        ("kind: Pod\n---\nb: \x07", "m.yaml:3: the character U+0007 is not allowed in a manifest"),
    ],
    ids=["syntax", "encoding", "control character"],
)
def test_a_file_that_cannot_be_read_is_reported_with_its_line(
    review: Review, content: str | bytes, said: str
) -> None:
    code, _, err = review(review.file(content))

    assert code == 2
    assert err.startswith("bursar-webhook review: ")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("content", ["", "\n", "# only this\n", "---\n---\n# and that\n"])
def test_an_empty_input_is_an_error_because_its_writer_has_failed(review: Review, content: str) -> None:
    empty = review.file(content, "empty.yaml")

    for form in ("text", "json"):
        assert review("-o", form, empty) == (
            2,
            "",
            "bursar-webhook review: nothing to review: no object in the input\n",
        )
    assert review(empty, review.file(POD.format(percent=50)))[0] == 0


def test_an_empty_list_is_something_that_was_reviewed(review: Review) -> None:
    assert review(review.file({"apiVersion": "v1", "kind": "List", "items": []})) == (0, "0 objects\n", "")


def test_a_file_that_is_not_there_is_reported_and_the_others_are_reviewed(review: Review) -> None:
    code, out, err = review("no-such-file.yaml", review.file(POD.format(percent=50)))

    assert (code, err) == (2, "bursar-webhook review: no-such-file.yaml: No such file or directory\n")
    assert "Pod train: admitted" in out


@pytest.mark.parametrize(
    ("content", "path", "line"),
    [
        ("just text", "", 1),
        ("kind: Pod", "", 1),
        ("apiVersion: v1\nkind: Pod\nmetadata: []", "metadata", 3),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: 5}", "spec.containers", 4),
        (
            "apiVersion: v1\nkind: Pod\n"
            "spec:\n  containers:\n  - name: a\n    env:\n    - {name: A, value: 1}",
            "spec.containers[0].env[0].value",
            7,
        ),
        ("apiVersion: v1\nkind: Pod\nkind: Pod", "", 3),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bursar-budgets}\ndata: 7", "data", 4),
        ("apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: 5}}}", "", 3),
    ],
)
def test_what_is_no_object_that_the_api_takes_is_unreadable(
    review: Review, content: str, path: str, line: int
) -> None:
    code, out, _ = review("-o", "json", review.file(content))
    _, text, _ = review(review.file(content))

    (found,) = json.loads(out)["items"]
    assert (code, found["verdict"]) == (2, "unreadable")
    assert found["violations"][0]["rule"] == "unreadable"
    assert found["violations"][0]["path"] == (path or found["violations"][0]["path"])
    assert f"m.yaml:{line}: " in text.splitlines()[1]


def test_a_device_class_beside_a_request_is_reported_where_the_request_is_valid(review: Review) -> None:
    found = {
        percent: review.json(text_of(f"bursar.dev/gpu-percent: {percent}", DEVICE_CLASS))[0]
        for percent in (10, 150)
    }

    assert {percent: each["verdict"] for percent, each in found.items()} == {10: "refused", 150: "refused"}
    assert [(each["rule"], each["path"]) for each in found[10]["violations"]] == [
        ("several-dialects", "spec.containers")
    ]
    assert [each["rule"] for each in found[150]["violations"]] == ["share-range"]
    assert found[10]["patched"] is None


def test_the_standing_decides_the_class_and_the_warnings(review: Review) -> None:
    told = {}
    for standing in ("in-budget", "over-budget", "unlimited", "unknown"):
        (found,) = review.json(POD.format(percent=50), "--standing", standing)
        told[standing] = (found["patched"]["spec"]["priorityClassName"], found["warnings"])

    assert told == {
        "in-budget": ("gpu-default-priority", []),
        "over-budget": (
            "gpu-lower-priority",
            ["Namespace default has used its GPU budget. This pod gets priority class gpu-lower-priority."],
        ),
        "unlimited": ("gpu-default-priority", []),
        "unknown": (
            "gpu-default-priority",
            [
                "Budget service unreachable; budget status of namespace default unknown. "
                "This pod gets priority class gpu-default-priority."
            ],
        ),
    }


BUDGETS = {
    "team-a": "gpuHours: 1\nonExhausted: deny\n",
    "team-b": "gpuHours: 1\nrules: {grace-period: 'off'}\n",
    "_settings": "maxGracePeriod: 5m\nschedulerName: other\nsidecar: off\nrules: {node-name: enforce}\n",
}


def test_the_budgets_of_a_file_are_gone_by(review: Review) -> None:
    budgets = review.file(config_map(BUDGETS), "budgets.yaml")
    slow = POD.format(percent=50) + "  terminationGracePeriodSeconds: 400\n"

    (plain_one,) = review.json(slow)
    (strict,) = review.json(slow, "--budgets", budgets, "--namespace", "team-a")
    (off,) = review.json(slow, "--budgets", budgets, "--namespace", "team-b")
    (denied,) = review.json(
        POD.format(percent=50), "--budgets", budgets, "--namespace", "team-a", "--standing", "over-budget"
    )
    (unlimited,) = review.json(POD.format(percent=50), "--budgets", budgets, "--namespace", "team-c")

    assert plain_one["verdict"] == "admitted"
    assert [each["rule"] for each in strict["violations"]] == ["grace-period"]
    assert (off["verdict"], off["patched"]["spec"]["schedulerName"]) == ("admitted", "other")
    assert unlimited["patched"]["spec"]["schedulerName"] == "other"
    assert "initContainers" not in off["patched"]["spec"]
    assert [each["rule"] for each in denied["violations"]] == ["budget-exhausted"]
    assert unlimited["patched"]["metadata"]["annotations"]["bursar.dev/standing"] == "UNLIMITED"


def test_a_mode_on_the_command_line_is_over_that_of_the_budgets(review: Review) -> None:
    budgets = review.file(config_map({"_settings": "mode: observe"}), "budgets.yaml")

    (observed,) = review.json(POD.format(percent=150), "--budgets", budgets)
    (enforced,) = review.json(POD.format(percent=150), "--budgets", budgets, "--mode", "enforce")

    assert (observed["verdict"], enforced["verdict"]) == ("admitted", "refused")
    assert any(
        each.startswith("Observe mode: this would be refused: spec.containers[0].resources")
        for each in observed["warnings"]
    )


HOST_PID = admitted(plain(), hostPID=True)
EIGHT = workload("Deployment", {"spec": {"containers": [limits_of("main", nvidia_com__gpu="8")]}})
ONE = admitted(limits_of("main", nvidia_com__gpu="1"), hostPID=True)
AMD = admitted(limits_of("main", amd_com__gpu="2"))
PART = admitted(limits_of("main", nvidia_com__gpu="0.5"))
NONE = workload("Deployment", {"spec": {"containers": [plain()]}})
AROUND = workload("DaemonSet", {"spec": {"containers": [plain()], "hostPID": True}})


@pytest.mark.parametrize(
    ("raw", "mode", "code", "said"),
    [
        (HOST_PID, "enforce", 1, ("refused", [])),
        (HOST_PID, "observe", 0, ("admitted", ["Observe mode: this would be refused: spec.hostPID"])),
        (HOST_PID, "meter", 0, ("admitted", [])),
        (AROUND, "enforce", 0, ("admitted", ["spec.template: its pods would be refused: spec.hostPID"])),
        (AROUND, "observe", 0, ("admitted", ["spec.template: Observe mode: this would be refused: spec.h"])),
        (AROUND, "meter", 0, ("admitted", [])),
        (ONE, "observe", 0, ("admitted", ["Observe mode: this would be refused"])),
        (ONE, "meter", 0, ("admitted", [])),
        (SUSPECT["the memory of devices"].bad, "enforce", 0, ("admitted", ["spec.volumes"])),
        (SUSPECT["the memory of devices"].bad, "observe", 0, ("admitted", ["spec.volumes"])),
        (SUSPECT["the memory of devices"].bad, "meter", 0, ("admitted", [])),
        (PODS["share-range"], "meter", 0, ("admitted", [])),
    ],
)  # fmt: skip
def test_what_the_policies_find_refuses_warns_or_is_silent_by_the_namespaces_mode(
    review: Review, raw: Json, mode: str, code: int, said: tuple[str, list[str]]
) -> None:
    label = {"bursar.dev/mode": mode}
    labelled = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": label}}]
    by_entry = review.file(config_map({"team-a": f"gpuHours: 1\nmode: {mode}\n"}), "budgets.yaml")
    verdict, warnings = said

    for flags, beside in ((("--mode", mode), []), (("--budgets", by_entry), []), ((), labelled)):
        flags = ("--namespace", "team-a", *flags)
        *_, found = review.json([*beside, raw], *flags)
        assert (found["verdict"], len(found["warnings"])) == (verdict, len(warnings)), found
        assert all(map(str.startswith, found["warnings"], warnings))
        assert review(*flags, review.file([*beside, raw]))[0] == code


@pytest.mark.parametrize(
    ("raw", "mode", "line"),
    [
        (EIGHT, "enforce", '  spec.template: governed: request {"main":{"devices":8,"memory_mib":0,"sha'),
        (EIGHT, "observe", '  spec.template: observed: request {"main":{"devices":8,"memory_mib":0,"sha'),
        (EIGHT, "meter", '  spec.template: metered: request {"main":{"devices":8,"memory_mib":0,"share_'),
        (NONE, "enforce", "  spec.template: not governed"),
        (NONE, "meter", "  spec.template: not governed"),
        (workload("CronJob", GOOD), "enforce", "  spec.jobTemplate.spec.template: governed: request {"),
        (admitted(plain()), "enforce", "  not governed"),
        (admitted(limits_of("main", nvidia_com__gpu="1")), "observe", '  observed: request {"main":{"dev'),
        (admitted(half()), "meter", '  metered: request {"main":{"devices":1,"memory_mib":0,"share_mil'),
        # the ledger charges what admission would refuse
        (
            admitted(limits_of("main", amd_com__gpu="2")),
            "meter",
            '  metered: request {"main":{"device":"amd.c',
        ),
        (
            admitted(limits_of("main", amd_com__gpu="2")),
            "observe",
            '  observed: request {"main":{"device":"amd',
        ),
        (
            admitted(limits_of("main", nvidia_com__gpu="0.5")),
            "meter",
            '  metered: request {"main":{"devices":1',
        ),
    ],
)
def test_each_template_is_shown_with_its_request_or_as_not_governed(
    review: Review, raw: Json, mode: str, line: str
) -> None:
    _, out, _ = review("--mode", mode, review.file(raw))
    (found,) = review.json(raw, "--mode", mode)

    assert any(printed.startswith(line) for printed in out.splitlines())
    (shown,) = found["pods"]
    assert (shown["effect"] == "not-governed") == (shown["request"] is None)
    assert line.strip().startswith(f"{shown['path']}: " if shown["path"] else shown["effect"][:3])


@pytest.mark.parametrize("mode", ["meter", "observe"])
def test_what_is_charged_by_an_assumption_has_its_reason(review: Review, mode: str) -> None:
    (assumed,), (read,) = (review.json(raw, "--mode", mode) for raw in (PART, admitted(half())))

    assert assumed["pods"][0]["reason"].startswith("spec.containers[0].resources.limits[nvidia.com/gpu]")
    assert read["pods"][0]["reason"] == ""


CARD = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "image": "x"}
BY_PODS = "It requests GPUs in {}; its pods are reviewed when they are created, not here."


KSERVE = "serving.kserve.io/v1beta1"
CARDS = {"containers": [CARD]}
NO_FLAG: dict[str, tuple[str, str, Json]] = {
    "template.spec.containers.0": ("v1", "PodTemplate", {"template": {"spec": CARDS}}),
    "spec.predictor.model": (KSERVE, "InferenceService", {"spec": {"predictor": {"model": CARD}}}),
    "spec.predictor.containers.0": (KSERVE, "InferenceService", {"spec": {"predictor": CARDS}}),
    "spec.a b.template.spec.containers.0": (
        KSERVE,
        "Engine",
        {"spec": {"a b": {"template": {"spec": CARDS}}}},
    ),
    "spec.containers.0": ("serving.kserve.io/v1alpha1", "ServingRuntime", {"spec": CARDS}),
    "spec.template.spec.containers.0": (
        *("serving.knative.dev/v1", "Service"),
        {"spec": {"template": {"spec": CARDS}}},  # of a container without a name
    ),
    "": ("example.com/v1", "Engine", {"spec": {"limits": {"memory": "1Gi", "rdma/ib": "1"}}}),
}


@pytest.mark.parametrize("at", NO_FLAG)
def test_an_object_whose_pods_no_flag_leads_to_says_so_in_one_line(review: Review, at: str) -> None:
    version, kind, fields = NO_FLAG[at]

    (found,) = review.json({"apiVersion": version, "kind": kind, "metadata": {"name": "o"}, **fields})

    assert found["verdict"] == "not-reviewed"
    assert found["warnings"] == ([BY_PODS.format(f"{at}.resources.limits")] if at else [])


@pytest.mark.parametrize(
    ("version", "kind", "said"),
    [
        ("apps/v1", "Pod", "apiVersion: apps/v1 has no Pod; write v1"),
        (
            "extensions/v1beta1",
            "Deployment",
            "apiVersion: extensions/v1beta1 has no Deployment; write apps/v1",
        ),
        ("v1", "Job", "apiVersion: v1 has no Job; write batch/v1"),
        ("batch.volcano.sh/v1alpha1", "Job", ""),
        ("v1", "Service", ""),
    ],
)
def test_a_kind_of_another_group_cannot_be_created(
    review: Review, version: str, kind: str, said: str
) -> None:
    raw = {"apiVersion": version, "kind": kind, "metadata": {"name": "o"}, "spec": {}}

    code, out, _ = review(review.file(raw))

    assert (code, said in out) == (2 if said else 0, True)


def test_a_template_that_cannot_be_read_has_its_path(review: Review) -> None:
    _, out, _ = review(review.file(workload("CronJob", {"spec": {"containers": [{"name": 7}]}})))

    assert "spec.jobTemplate.spec.template.spec.containers[0].name: must be a string" in out


def test_what_is_not_governed_names_what_no_list_has(review: Review) -> None:
    _, out, _ = review(review.file(admitted(limits_of("main", nvshare_com__gpu="1"))))

    assert "  not governed; nothing says whether nvshare.com/gpu is an accelerator" in out


def test_of_accelerators_of_no_dialect_nothing_is_said_that_would_not_help(review: Review) -> None:
    raw = admitted(limits_of("main", google_com__tpu="4"), schedulerName="volcano")

    _, out, _ = review(review.file(raw))

    assert ("foreign-scheduler" in out, "bursar-scheduler" in out, "gpu-percent" in out) == (False,) * 3
    assert "unknownAccelerators: meter in _settings" in out


def test_a_class_whose_value_is_not_known_is_not_said_to_be_replaced(review: Review) -> None:
    raw = admitted(half(), priorityClassName="urgent")
    del raw["spec"]["priority"]  # which the API server resolves

    (found,) = review.json(raw)

    unknown = [warning for warning in found["warnings"] if "urgent" in warning]
    assert unknown == ['The value of priority class "urgent" is not known here; admission will know it.']


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_violation_of_metered_devices_stands_once(review: Review, mode: str) -> None:
    raw = admitted(limits_of("main", amd_com__gpu="1"))
    raw["metadata"]["annotations"] = {"cdi.k8s.io/x": "amd.com/gpu=0"}
    metering = review.file(config_map({"_settings": f"unknownAccelerators: meter\nmode: {mode}"}), "b.yaml")

    _, out, _ = review("--budgets", metering, review.file(raw))

    assert out.count("metadata.annotations[cdi.k8s.io/x]") == 1


@pytest.mark.parametrize(("mode", "says"), [("enforce", True), ("observe", True), ("meter", False)])
def test_a_setting_on_a_workload_is_named_with_its_place_in_the_template(
    review: Review, mode: str, says: bool
) -> None:
    job = workload("Job", GOOD)
    job["metadata"] |= {"annotations": {"bursar.dev/policy": "spread"}}
    (found,) = review.json(job, "--mode", mode)

    place = "it belongs in spec.template.metadata.annotations"
    assert any(place in warning for warning in found["warnings"]) == says


def test_a_template_whose_pods_would_be_refused_is_shown_without_a_request(review: Review) -> None:
    refused, admitted_ones = review.json([workload("Job", BAD), AROUND])

    assert (refused["pods"], admitted_ones["pods"]) == ([], [])


def devices(kind: str, count: object, device_class: str = "gpu.nvidia.com") -> Json:
    """A claim, or a template of claims, on devices of a class."""
    exactly = {"deviceClassName": device_class, "count": count}
    spec: Json = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "gpus"},
        "spec": spec if kind == "ResourceClaim" else {"spec": spec},
    }


def device_class(driver: str, name: str = "fast") -> Json:
    """A DeviceClass of the driver."""
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors, "extendedResourceName": "example.com/fast"},
    }


OF_BETA = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaim",
    "metadata": {"name": "gpus"},
    "spec": {"devices": {"requests": [{"name": "g", "deviceClassName": "gpu.nvidia.com", "count": 4}]}},
}
BY_TEMPLATE = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "gpus"}]}
BY_NAME = {"resourceClaims": [{"name": "g", "resourceClaimName": "gpus"}]}
TEMPLATES = "ResourceClaimTemplate"


@pytest.mark.parametrize(
    ("claims", "beside", "verdict", "asked"),
    [
        (BY_TEMPLATE, [devices(TEMPLATES, 2)], "admitted", 2),
        (BY_NAME, [devices("ResourceClaim", 3)], "admitted", 3),
        (BY_TEMPLATE, [devices(TEMPLATES, 1, "mig.nvidia.com")], "admitted", 1),
        (BY_TEMPLATE, [devices(TEMPLATES, 2, "fast"), device_class("gpu.amd.com")], "admitted", 2),
        (BY_TEMPLATE, [devices(TEMPLATES, 1, "fast"), device_class("net.example.com")], "refused", None),
        (BY_TEMPLATE, [devices(TEMPLATES, 33)], "refused", None),
        (BY_TEMPLATE, [devices(TEMPLATES, 1, "compute-domain-daemon.nvidia.com")], "admitted", "none"),
        (
            BY_TEMPLATE,
            [
                devices(TEMPLATES, 1, "fast"),
                device_class("net.example.com"),
                config_map({"noGPUDrivers": "net.example.com"}, "bursar-device-classes"),
            ],
            "admitted",
            "none",
        ),
        (BY_TEMPLATE, [devices(TEMPLATES, 1, "fast")], "admitted", "unknown"),
        (BY_NAME, [devices(TEMPLATES, 2)], "admitted", "unknown"),
        (BY_NAME, [OF_BETA], "admitted", 4),
        (BY_TEMPLATE, [{**devices(TEMPLATES, 2), "metadata": {"name": "gpus", "namespace": "else"}}],
         "admitted", "unknown"),
    ],
)  # fmt: skip
def test_claims_are_read_from_what_stands_beside_them(
    review: Review, claims: Json, beside: list[Json], verdict: str, asked: object
) -> None:
    pod = admitted(plain(), **claims)
    in_template = workload("Job", {"spec": {"containers": [plain()], **claims}})
    of_the_pod, of_the_job, *_ = review.json([pod, in_template, *beside], "--namespace", "team-a")

    assert (of_the_pod["verdict"], of_the_job["verdict"]) == (verdict, verdict)
    for outcome in (of_the_pod, of_the_job) if verdict == "admitted" else ():
        (shown,) = outcome["pods"]
        known = (shown["request"] or {}).get("spec.resourceClaims", {}).get("devices")
        assert (known or ("none" if shown["request"] is None else "unknown")) == asked
        assert any("held until it is known" in warning for warning in outcome["warnings"]) == (
            asked == "unknown"
        )


def test_a_limit_that_a_device_class_of_the_file_serves_is_refused(review: Review) -> None:
    pod = admitted(limits_of("main", example_com__fast="1"))

    served, _ = review.json([pod, device_class("gpu.amd.com")])
    (alone,) = review.json(pod)

    assert [violation["rule"] for violation in served["violations"]] == ["device-claim"]
    assert alone["verdict"] == "admitted"


def test_a_namespace_that_is_exempt_by_a_label_of_the_file_is_not_reviewed(review: Review) -> None:
    labels = {"bursar.dev/exempt": "true"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": labels}}

    _, found = review.json([namespace, HOST_PID])

    assert found["verdict"] == "not-reviewed"


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("spec.pytorchReplicaSpecs.*.template", 0, ""),
        ("spec.pytorchReplicaSpecs.Master.template", 2, "in any of 1 objects of this kind"),
        ("spec.pytorchReplicaSpecs.Worker", 2, "in any of 1 objects of this kind"),
    ],
)
def test_a_path_that_leads_to_no_template_is_an_error(
    review: Review, path: str, code: int, said: str
) -> None:
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": GOOD}}}
    written = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "p"}, "spec": spec}
    flag = f"kubeflow.org/PyTorchJob={path}"

    ended, out, err = review("--template-path", flag, review.file(written))
    both = review(
        "--template-path", flag, "--template-path", "kubeflow.org/MPIJob=spec.a", review.file(written)
    )

    assert (ended, said in err, bool(err)) == (code, True, bool(code))
    assert ("PyTorchJob p: not reviewed" in out) == bool(code)
    assert (both[0], "kubeflow.org/MPIJob=spec.a: " in both[2]) == (2, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (config_map({"team-a": BAD_BUDGET}), "the budgets are not valid:\n  team-a, line 2, period: "),
        (admitted(half()), "budgets.yaml: contains no ConfigMap with budgets"),
        ("a: [", "budgets.yaml:1: not YAML: "),
        ("a: 1\na: 2", "budgets.yaml:2: the key a is duplicate"),
    ],
    ids=["a mistake", "none", "syntax", "twice"],
)
def test_budgets_that_cannot_be_used_are_reported(review: Review, content: object, said: str) -> None:
    code, out, err = review("--budgets", review.file(content, "budgets.yaml"), review.file("a: 1"))

    assert (code, out) == (2, "")
    assert said in err


def test_priority_classes_are_known_from_flags_and_from_the_files(review: Review) -> None:
    named = POD.format(percent=50) + "  priorityClassName: mine\n"
    low = "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: mine}\nvalue: -3\n"

    (unknown,) = review.json(named)
    (flagged,) = review.json(named, "--priority-class", "mine=-7")
    by_file, _ = review.json(named + low)

    assert unknown["warnings"][-1] == (
        'The value of priority class "mine" is not known here; admission will know it.'
    )
    assert [each["patched"]["spec"]["priorityClassName"] for each in (flagged, by_file)] == ["mine", "mine"]


def test_templates_of_kinds_of_ones_own_are_found_by_their_path(review: Review) -> None:
    written = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"template": BAD}}},
    }

    (passed,) = review.json(written)
    (found,) = review.json(
        written, "--template-path", "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template"
    )

    at = "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.Worker.template"
    assert passed["warnings"] == [f"Its pods request GPUs; --template-path '{at}' reviews this template."]
    assert passed["verdict"] == "not-reviewed"
    assert [each["path"] for each in found["violations"]] == [
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources.limits[bursar.dev/gpu-percent]"
    ]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"workerGroupSpecs": [{"template": GOOD}, {"template": GOOD}]}, "spec.workerGroupSpecs.*.template"),
        ({"a": {"template": GOOD}, "b": {"template": AROUND["spec"]["template"]}}, "spec.a.template"),
        ({"template": {"spec": {"containers": [plain()]}}}, ""),
        ({"a.b": {"template": GOOD}}, "spec.*.template"),
        ({"template": {"spec": {"containers": "none"}}}, ""),
    ],
)
def test_templates_of_other_kinds_that_request_gpus_are_named(review: Review, spec: Json, path: str) -> None:
    written = {"apiVersion": "ray.example/v1", "kind": "Cluster", "metadata": {"name": "c"}, "spec": spec}

    (outcome,) = review.json(written)

    flag = f"--template-path 'ray.example/Cluster={path}'"
    expected = [f"Its pods request GPUs; {flag} reviews this template."] if path else []
    assert (outcome["verdict"], outcome["warnings"]) == ("not-reviewed", expected)


def test_the_differences_are_what_admission_adds_and_nothing_else(review: Review) -> None:
    code, out, _ = review("-o", "diff", review.file(POD.format(percent=50)))

    removed = [line for line in out.splitlines() if line.startswith("-")]
    assert code == 0
    assert removed == ["--- Pod/train as written", "-  schedulerName: default-scheduler"]
    assert "+    bursar.dev/governed: 'true'" in out
    assert "+  schedulerName: bursar-scheduler" in out


def test_what_would_be_stored_is_admitted_again_without_a_change(review: Review) -> None:
    _, stored, _ = review(
        "-o", "yaml", review.file(POD.format(percent=50) + "---\n" + POD.format(percent=150))
    )

    (again,) = review.json(stored)

    assert (again["verdict"], again["warnings"], again["patched"]) == ("admitted", [], None)


def test_a_name_cannot_move_the_terminals_cursor(review: Review) -> None:
    evil = admitted(half())
    evil["metadata"]["name"] = "a\x1b[2Jb"

    _, out, _ = review(review.file(json.dumps(evil)))

    assert "\x1b" not in out
    assert "Pod a?[2Jb: admitted" in out


def test_flags_that_are_wrong_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["review", "--standing", "rich"])

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("bursar-webhook review: argument --standing: invalid choice: 'rich'")
    assert len(said.splitlines()) == 1


values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(
        ["50", "150", "8k", "NVIDIA_VISIBLE_DEVICES", "all", "bursar.dev/hold", "bursar-sidecar"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    *("spec", "template", "metadata", "containers", "initContainers", "name", "resources"),
                    *("limits", "requests", "env", "envFrom", "annotations", "labels", "value", "valueFrom"),
                    *("volumes", "volumeMounts", "schedulingGates", "bursar.dev/gpu-percent", "data"),
                    *("bursar.dev/policy", "priorityClassName", "securityContext", "hostPath", "items"),
                    *("resourceClaims", "namespace", "nvidia.com/gpu", "priority", "ownerReferences"),
                )
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)
kinds = st.sampled_from(["Pod", "Deployment", "CronJob", "ConfigMap", "List", "Thing"]) | values


@given(kinds, values, values, st.sampled_from(["v1", "apps/v1", "batch/v1", "x.example/v1", 7]))
def test_no_object_whatever_it_holds_makes_the_command_fail(
    kind: Any, metadata: Any, spec: Any, version: Any
) -> None:
    world = AssumedCluster(flags=POLICY)
    whole = {
        "apiVersion": version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
        "data": spec,
        "items": spec,
    }

    for _, each in objects.objects(whole):
        assert objects.judged(each, world).verdict in ("admitted", "refused", "not-reviewed", "unreadable")


WHOLE = (*PODS.values(), *(workload(kind, GOOD) for kind in RESOURCES), config_map({"team-a": GOOD_BUDGET}))


@given(st.data(), st.sampled_from(WHOLE), values)
def test_a_good_object_with_any_one_value_replaced_makes_nothing_fail(
    data: st.DataObject, whole: Json, value: Any
) -> None:
    changed: Any = copy.deepcopy(whole)
    place, key = data.draw(st.sampled_from(list(places(changed))))
    place[key] = value

    outcome = objects.judged(changed, AssumedCluster(flags=POLICY))

    assert outcome.verdict in ("admitted", "refused", "not-reviewed", "unreadable")
    assert all(each.path or each.rule == "unreadable" for each in outcome.violations)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every collection inside a value with each of its keys or indexes."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@given(st.lists(st.booleans(), min_size=4, max_size=4), st.integers(0, 3))
def test_the_operations_do_what_jsonpatch_does(present: list[bool], containers: int) -> None:
    raw = admitted(half(env=[{"name": "A", "value": "b"}]), *(plain(f"c{i}") for i in range(containers)))
    raw["spec"] |= {"initContainers": [plain("i")]} if present[0] else {}
    raw["spec"] |= {"volumes": [{"name": "v", "emptyDir": {}}]} if present[1] else {}
    raw["metadata"] |= {"labels": {"a/b~c": "d"}} if present[2] else {}
    raw["metadata"] |= {"annotations": {"x": "y"}} if present[3] else {}
    before = copy.deepcopy(raw)

    after = patched(raw, operations(raw))

    assert after == jsonpatch.apply_patch(raw, json.loads(json.dumps(operations(raw))))
    assert raw == before


# against a real API server


def text_of(limit: str, *more: str) -> str:
    """A pod with a limit as it is written, and further lines."""
    return POD.replace("bursar.dev/gpu-percent: {percent}", limit) + "".join(f"{line}\n" for line in more)


DEVICE_CLASS = "          deviceclass.resource.kubernetes.io/gpu.nvidia.com: 8"


CAPPED = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: bursar-budgets, namespace: bursar-system}
data:
  team-a: "gpuHours: 100\\nmaxGPUsPerPod: 1\\ngroup: lab"
  _group.lab: "gpuHours: 100\\nmaxGPUsPerPod: 3"
"""


@pytest.mark.parametrize(("cards", "caps"), [(1, []), (2, ["at most 1"]), (4, ["at most 1", "at most 3"])])
@pytest.mark.parametrize("kind", ["Pod", "Deployment", "DaemonSet"])
def test_caps_of_budgets_are_judged_of_pods_and_of_templates(
    review: Review, kind: str, cards: int, caps: list[str]
) -> None:
    limits = {"bursar.dev/gpu-count": str(cards)}
    spec = {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}
    labels = {"app": "a"}
    template = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    made = {
        "apiVersion": "v1" if kind == "Pod" else "apps/v1",
        "kind": kind,
        "metadata": {"name": "a", "namespace": "team-a"},
        "spec": spec if kind == "Pod" else template,
    }

    (judged,) = review.json(json.dumps(made), "--budgets", review.file(CAPPED, "budgets.yaml"))

    assert judged["verdict"] == ("refused" if caps else "admitted")
    assert [violation["allowed"] for violation in judged["violations"]] == caps
    assert {violation["rule"] for violation in judged["violations"]} <= {"above-cap"}
