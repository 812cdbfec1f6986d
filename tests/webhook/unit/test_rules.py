"""What is refused at admission, each with its sentence; and what must not be."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.cases import REQUEST_RULES, REQUESTS, broken_by
from tests.webhook.rule_examples import PODS, examples
from tests.webhook.worlds import (
    POLICY,
    WITHOUT_SIDECAR,
    admitted,
    governed,
    half,
    plain,
    violations_of,
    with_class,
)
from tests.worlds import Json, container, limits_of, of_resources
from timekeeper.core.admission.rules.catalogue import CATALOGUE
from timekeeper.core.admission.rules.isolation import ephemeral_violations
from timekeeper.core.admission.rules.modes import mode_of
from timekeeper.core.budgets.rule_ids import FIXED, SETTABLE
from timekeeper.core.request.request import parse

# a pod that asks for none, those of which only one can be in a pod, and the annotations of a dialect, which
# are read if all limits can be
APART = (
    "own-scheduler",
    "unreadable-request",
    "sees-cards-without-asking",
    "same-gpu-conflict",
    "empty-constraint",
    "long-constraint",
    "gas-annotation",
)
TOGETHER = {rule: raw for rule, raw in PODS.items() if rule not in APART}

ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def annotated(raw: Json, **metadata: Json | None) -> Json:
    """The pod with annotations or labels."""
    changed = copy.deepcopy(raw)
    changed["metadata"] |= metadata
    return changed


def forged(path: str, got: str) -> str:
    """The sentence on something that only Bursar and the nodes' plugins write."""
    return (
        f'{path}: only Bursar and node plugins write this, got "{got}"; '
        "allowed: the pod without it; for example removing it"
    )


REFUSED: dict[str, tuple[Json, str, str]] = {
    "a share above a card": (
        admitted(container(gpu_percent="150")),
        "share-range",
        "spec.containers[0].resources.limits[bursar.dev/gpu-percent]: "
        'more than one card, but not a multiple of 100, got "150"; '
        "allowed: 1 to 100 for a share of one card, or a multiple of 100 for whole cards; for example "
        'bursar.dev/gpu-percent: "200"',
    ),
    "placement annotations of a pod copied with kubectl": (
        annotated(admitted(half()), annotations={"visible-devices.bursar.dev/main": "GPU-7"}),
        "forged-annotation",
        forged("metadata.annotations[visible-devices.bursar.dev/main]", "GPU-7"),
    ),
    "a placement that no one decided": (
        annotated(admitted(half()), annotations={"bursar.dev/devices": "{}"}),
        "forged-annotation",
        forged("metadata.annotations[bursar.dev/devices]", "{}"),
    ),
    "a request other than the pod's own": (
        annotated(admitted(half()), annotations={"bursar.dev/request": '{"main":{}}'}),
        "forged-annotation",
        forged("metadata.annotations[bursar.dev/request]", '{"main":{}}'),
    ),
    "a standing that is no standing": (
        annotated(admitted(half()), annotations={"bursar.dev/standing": "RICH"}),
        "forged-annotation",
        forged("metadata.annotations[bursar.dev/standing]", "RICH"),
    ),
    "what gpu-admission would write": (
        annotated(admitted(half()), annotations={"tencent.com/predicate-gpu-idx-0": "0"}),
        "forged-annotation",
        forged("metadata.annotations[tencent.com/predicate-gpu-idx-0]", "0"),
    ),
    "a cap that is no number": (
        annotated(
            admitted(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8")),
            annotations={"tencent.com/vcuda-core-limit": "-1"},
        ),
        "forged-annotation",
        forged("metadata.annotations[tencent.com/vcuda-core-limit]", "-1"),
    ),
    "a cap of another system": (
        annotated(admitted(half()), annotations={"tencent.com/vcuda-core-limit": "50"}),
        "forged-annotation",
        forged("metadata.annotations[tencent.com/vcuda-core-limit]", "50"),
    ),
    "a label of ours": (
        annotated(admitted(half()), labels={"bursar.dev/governed": "false"}),
        "forged-label",
        forged("metadata.labels[bursar.dev/governed]", "false"),
    ),
    "a gate of ours": (
        admitted(half(), schedulingGates=[{"name": "example.com/wait"}, {"name": "bursar.dev/hold"}]),
        "forged-gate",
        forged("spec.schedulingGates[1]", "bursar.dev/hold"),
    ),
    "a node named by hand": (
        admitted(half(), nodeName="n1"),
        "node-name",
        "spec.nodeName: a GPU pod that names its node bypasses the scheduler that assigns cards, "
        'got "n1"; allowed: spec.nodeSelector or affinity; '
        "for example spec.nodeSelector: {kubernetes.io/hostname: node-a}",
    ),
    "a grace period above the longest": (
        admitted(half(), terminationGracePeriodSeconds=601),
        "grace-period",
        "spec.terminationGracePeriodSeconds: "
        "a GPU pod holds its cards during its grace period, and this one is too long, "
        'got "601"; allowed: at most 600 seconds; for example terminationGracePeriodSeconds: 30',
    ),
    "a container of the sidecar's name": (
        admitted(half(), plain("bursar-sidecar")),
        "sidecar-name",
        "spec.containers[1].name: this name is reserved for the container that Bursar adds, "
        'got "bursar-sidecar"; '
        "allowed: another name; for example name: my-container",
    ),
    "a volume of the sidecar's name": (
        admitted(half(), volumes=[{"name": "bursar-token", "emptyDir": {}}]),
        "sidecar-volume",
        'spec.volumes[0].name: this name is reserved for the volume that Bursar adds, got "bursar-token"; '
        "allowed: another name; for example name: my-volume",
    ),
    "a pod that asks for no card and would see all": (
        admitted(plain(env=ALL)),
        "sees-cards-without-asking",
        "spec.containers[0].env[0]: the pod requests no GPU, so no GPU may be visible to it, "
        'got NVIDIA_VISIBLE_DEVICES="all"; allowed: void, or a GPU request in resources.limits; for example '
        'bursar.dev/gpu-percent: "50"',
    ),
    "a pod that asks for no card and passes for a governed one": (
        annotated(admitted(plain()), labels={"bursar.dev/governed": "true"}),
        "forged-label",
        forged("metadata.labels[bursar.dev/governed]", "true"),
    ),
    "a pod that asks for no card and names some": (
        annotated(admitted(plain()), annotations={"visible-devices.bursar.dev/web": "GPU-1"}),
        "forged-annotation",
        forged("metadata.annotations[visible-devices.bursar.dev/web]", "GPU-1"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_a_sentence_that_says_how_to_mend_it(case: str) -> None:
    raw, rule, sentence = REFUSED[case]

    found = violations_of(raw, POLICY)

    assert [(each.rule, each.sentence()) for each in found] == [(rule, sentence)]


PASSED: dict[str, Json] = {
    "half a card": admitted(half()),
    "a pod without a card": admitted(plain()),
    "a pod without a card that sees none": admitted(
        plain("a", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]),
        plain("b", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]),
        plain("c", env=[{"name": "NVIDIA_VISIBLE_DEVICES"}]),
    ),
    "a pod without a card, of a long grace period, on a node of its choice": admitted(
        plain(), nodeName="n1", terminationGracePeriodSeconds=86_400
    ),
    "constraints that users write": annotated(
        admitted(half()),
        annotations={
            "bursar.dev/policy": "spread",
            "bursar.dev/gpu-models": "H100",
            "example.com/bursar.dev": "x",
        },
    ),
    "annotations of a domain that only ends like ours": annotated(
        admitted(half()), annotations={"local.bursar.dev/run-for": "5s"}, labels={"notbursar.dev/a": "b"}
    ),
    "all that gpu-manager's cap may be": annotated(
        admitted(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8")),
        annotations={"tencent.com/vcuda-core-limit": "50"},
    ),
    "a cap that govern will write over": annotated(
        admitted(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8")),
        annotations={"tencent.com/vcuda-core-limit": "100"},
    ),
    "a standing that govern will write over": annotated(
        admitted(half()), annotations={"bursar.dev/standing": "UNLIMITED"}
    ),
    "gates of others": admitted(half(), schedulingGates=[{"name": "example.com/wait"}]),
    "the longest grace period": admitted(half(), terminationGracePeriodSeconds=600),
    "maps that are null": annotated(admitted(half(), volumes=None), annotations=None, labels=None),
}


@pytest.mark.parametrize("case", PASSED)
def test_what_is_allowed_passes(case: str) -> None:
    assert violations_of(PASSED[case], POLICY) == ()


@pytest.mark.parametrize("word", ["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"])
def test_a_governed_pod_breaks_no_rule_when_it_is_reviewed_again(word: Any) -> None:
    raw = admitted(half(), plain(), init=[plain("setup")])

    assert violations_of(governed(raw, word), POLICY) == ()
    assert violations_of(governed(raw, word), WITHOUT_SIDECAR) == ()


def test_our_sidecar_passes_with_what_other_webhooks_and_the_api_server_add_to_it() -> None:
    raw = governed(admitted(half()))
    ours = raw["spec"]["initContainers"][0]
    ours["image"] = "mirror.example/sidecar:1"
    ours["env"].append({"name": "HTTP_PROXY", "value": "http://proxy.example"})
    ours["volumeMounts"].append({"name": "kube-api-access", "mountPath": "/var/run/secrets"})
    ours["resources"]["limits"] = {"memory": "1Gi"}
    ours["terminationMessagePath"] = "/dev/termination-log"
    raw["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["extra"] = "later"

    assert violations_of(raw, POLICY) == ()


@pytest.mark.parametrize(
    "difference",
    [
        {"command": ["sh"]},
        {"args": ["--evil"]},
        {"restartPolicy": None},
        {"volumeMounts": []},
        {"image": "tenant.example/free:1"},
        {"image": f"{POLICY.sidecar_images.image}-of-mine"},
        {"image": "mirror.example.tenant.example/sidecar:1"},
    ],
    ids=[
        *("another command", "arguments", "not native", "without its token", "another image"),
        *("a longer tag", "no mirror of ours"),
    ],
)
def test_a_sidecar_of_our_name_that_is_another_is_refused(difference: Json) -> None:
    raw = governed(admitted(half()))
    raw["spec"]["initContainers"][0] |= difference

    assert [each.rule for each in violations_of(raw, POLICY)] == ["sidecar-name"]


def test_a_second_sidecar_of_ours_is_refused() -> None:
    raw = governed(admitted(half()))
    raw["spec"]["initContainers"].append(copy.deepcopy(raw["spec"]["initContainers"][0]))

    assert [each.path for each in violations_of(raw, POLICY)] == ["spec.initContainers[1].name"]


@pytest.mark.parametrize("rule", CATALOGUE)
def test_each_rule_of_the_catalogue_has_an_object_that_breaks_it_and_no_other(rule: str) -> None:
    found = violations_of(PODS[rule], POLICY) if rule in PODS else (examples()[rule],)

    assert [each.rule for each in found] == [rule]


def test_every_rule_that_the_code_names_is_in_the_catalogue_and_in_the_core() -> None:
    root = Path(__file__).parents[3]
    folders = (root / "webhook" / "rules", root / "timekeeper" / "core")
    files = (
        *(root / "webhook" / "admission" / f"{name}.py" for name in ("pods", "validation")),
        *(file for each in folders for file in each.rglob("*.py") if file.name != "bypass.py"),  # of policies
    )
    code = "\n".join(file.read_text() for file in files)
    named = set(re.findall(r'Violation\(\s*(?:rule=)?"([a-z-]+)"', code))

    assert len(named) > 20
    assert named <= set(CATALOGUE)
    assert set(CATALOGUE) == {*SETTABLE, *FIXED}
    assert not set(SETTABLE) & set(FIXED)


@pytest.mark.parametrize("beside", [{}, {"gpu.intel.com/i915": "1"}], ids=["alone", "beside a card"])
def test_a_resource_that_shows_all_cards_is_refused_with_or_without_a_request(beside: Json) -> None:
    monitor = of_resources({"gpu.intel.com/i915_monitoring": "1"}, "monitor")

    found = violations_of(admitted(*([of_resources(beside)] if beside else []), monitor), POLICY)

    where = f"spec.containers[{len(beside)}].resources.limits[gpu.intel.com/i915_monitoring]"
    assert [(each.rule, each.path) for each in found] == [("sees-cards-without-asking", where)]


@given(st.lists(st.sampled_from(sorted(TOGETHER)), unique=True, min_size=2))
def test_a_violation_that_is_found_alone_is_found_beside_others(together: list[str]) -> None:
    found = {each.rule for each in violations_of(merged([TOGETHER[each] for each in together]), POLICY)}

    assert found >= set(together)


def merged(pods: list[Json]) -> Json:
    """One pod with the containers, volumes, annotations and fields of them all; containers are renamed
    apart, but those whose name is what is wrong."""
    whole = admitted()
    for place, raw in enumerate(copy.deepcopy(pods)):
        for field in ("initContainers", "containers", "volumes", "schedulingGates"):
            for each in raw["spec"].pop(field, None) or []:
                if each["name"] in ("main", "setup", "web", "a", "b"):
                    each["name"] += f"-{place}"
                whole["spec"].setdefault(field, []).append(each)
        for field in ("annotations", "labels"):
            mine = raw["metadata"].get(field) or {}
            whole["metadata"].setdefault(field, {}).update(mine)
        whole["spec"] |= {
            key: value for key, value in raw["spec"].items() if admitted()["spec"].get(key) != value
        }
    return whole


@pytest.mark.parametrize("mode", ["enforce", "warn", "off"])
@pytest.mark.parametrize("rule", SETTABLE)
def test_a_rules_mode_is_what_was_settled(rule: str, mode: str) -> None:
    assert mode_of(rule, replace(POLICY, rules={rule: mode})) == mode


@pytest.mark.parametrize("rule", FIXED)
def test_a_fixed_rule_is_enforced_whatever_a_table_says(rule: str) -> None:
    for mode in ("warn", "off", "sometimes"):
        assert mode_of(rule, replace(POLICY, rules={rule: mode})) == "enforce"


def test_a_mode_that_is_none_leaves_the_default() -> None:
    policy = replace(POLICY, rules={"host-pid": "sometimes", "env-from": ""})

    assert (mode_of("host-pid", policy), mode_of("env-from", policy)) == ("enforce", "warn")


def test_everything_wrong_is_reported_at_once() -> None:
    raw = annotated(
        admitted(
            container("a", gpu_percent="-5"),
            limits_of("b", nvidia_com__gpu="0.5"),
            nodeName="n1",
            terminationGracePeriodSeconds=9_999,
            schedulingGates=[{"name": "bursar.dev/hold"}],
        ),
        annotations={"bursar.dev/devices": "{}", "bursar.dev/policy": "best"},
        labels={"bursar.dev/governed": "yes"},
    )

    found = [each.rule for each in violations_of(raw, POLICY)]

    assert found == [
        "amount",
        "whole-cards-only",
        "several-dialects",
        "unknown-policy",
        "forged-annotation",
        "forged-label",
        "forged-gate",
        "node-name",
        "grace-period",
    ]


def test_the_longest_grace_period_is_the_operators() -> None:
    raw = admitted(half(), terminationGracePeriodSeconds=61)

    assert [each.rule for each in violations_of(raw, replace(POLICY, max_grace_s=60))] == ["grace-period"]


def test_a_class_of_ones_own_is_no_violation() -> None:
    assert violations_of(with_class(admitted(half()), "batch", -100), POLICY) == ()


def debug(name: str, **fields: Any) -> Json:
    """An ephemeral container."""
    return {"name": name, "image": "registry.example/debug:1"} | fields


def test_an_ephemeral_container_may_not_show_itself_a_card() -> None:
    before = admitted(half())
    after = copy.deepcopy(before)
    after["spec"]["ephemeralContainers"] = [debug("a"), debug("b", env=ALL)]

    (found,) = ephemeral_violations(after, before)

    assert found.rule == "ephemeral-sees-cards"
    assert found.path == "spec.ephemeralContainers[1].env[NVIDIA_VISIBLE_DEVICES]"


def test_an_existing_ephemeral_container_forbids_no_other() -> None:
    before = admitted(half(), ephemeralContainers=[debug("old", env=ALL)])
    after = copy.deepcopy(before)
    after["spec"]["ephemeralContainers"].append(
        debug("new", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
    )

    assert list(ephemeral_violations(after, before)) == []


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_breaks_the_rules_that_the_table_names(case: str) -> None:
    pod, broken = REQUESTS[case]

    assert broken_by(pod, parse(pod).violations) == broken
    of_request = (each for each in violations_of(pod, POLICY) if each.rule in REQUEST_RULES)
    assert broken_by(pod, of_request) == broken


def test_the_page_names_the_rules_on_requests_that_pass_without_the_webhook() -> None:
    page = (Path(__file__).parents[3] / "docs" / "bypass.md").read_text()
    (rules,) = re.findall(r" the thirteen on requests: (.*?)\.", page, re.DOTALL)

    assert set(re.findall(r"`([a-z-]+)`", rules)) == REQUEST_RULES
    assert len(REQUEST_RULES) == 13
