"""From a review to its answer: /mutate and /validate, observing, dry runs, warnings."""

import copy
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.webhook.worlds import (
    OBSERVING,
    OVER_BUDGET,
    POLICY,
    SIDECAR,
    WITHOUT_SIDECAR,
    admitted,
    counted,
    governed,
    half,
    mutated,
    patch_of,
    patched,
    plain,
    review,
    with_annotations,
    with_class,
)
from tests.worlds import Json, container, limits_of
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Sidecar, Standing
from timekeeper.core.standings import Cap, Caps
from timekeeper.core.values import GPURequest
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.admission.warnings import within_limits
from webhook.wire.pod_review import AdmissionAnswer, encode

IN_BUDGET = Standing("IN_BUDGET")
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def no_standing(_request: GPURequest) -> Standing:
    """For reviews that must not look at a standing."""
    raise AssertionError("no standing is needed here")


def test_a_good_pod_is_governed_and_then_valid() -> None:
    raw = admitted(half())

    answer = mutated(raw)
    after = governed(raw)

    assert answer.verdict == "governed"
    assert answer.audit == {"standing": "IN_BUDGET"}
    assert (
        patched(raw, patch_of(orjson.loads(encode("u", answer))["response"]))["metadata"] == after["metadata"]
    )
    assert validate(review(after), POLICY).verdict == "valid"


def test_a_malformed_pod_is_refused_by_both_with_every_violation() -> None:
    raw = admitted(container("a", gpu_percent="-2"), container("b", gpu_percent="-1"))

    answer = mutate(review(raw), no_standing, POLICY)

    assert answer.refusal.startswith("2 problems:\n  1. spec.containers[0]")
    assert "  2. spec.containers[1]" in answer.refusal
    assert answer.rules == (("amount", "enforce"),)
    assert validate(review(raw), POLICY).refusal == answer.refusal


def test_more_violations_than_anyone_mends_at_once_are_counted() -> None:
    raw = admitted(*(container(f"c{number}", gpu_percent="-1") for number in range(60)))

    refusal = mutate(review(raw), no_standing, POLICY).refusal

    assert "50. spec.containers[49]" in refusal
    assert "51. " not in refusal
    assert refusal.endswith("and 10 more")


def test_a_pod_without_a_card_passes_unchanged() -> None:
    for answer in (
        mutate(review(admitted(plain())), no_standing, POLICY),
        validate(review(admitted(plain())), POLICY),
    ):
        assert (answer.refusal, answer.operations, answer.warnings) == ("", (), ())


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_only_creations_are_governed(operation: str) -> None:
    raw = None if operation == "DELETE" else admitted(container(gpu_percent="150"))

    assert mutate(review(raw, operation=operation), no_standing, POLICY) == AdmissionAnswer("passed")
    assert validate(review(raw, operation=operation), POLICY) == AdmissionAnswer("passed")


def test_a_resize_passes() -> None:
    raw = governed(admitted(half()))

    answer = validate(review(raw, operation="UPDATE", subResource="resize", oldObject=raw), POLICY)

    assert answer == AdmissionAnswer("passed")


KUBELET = {"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]}
MIRROR = {"kubernetes.io/config.mirror": "4f3e"}


def mirror(*containers: Json, annotations: Json | None = None, **fields: Any) -> Json:
    """As the kubelet of node n1 makes it of a static pod, of one with a whole card if no containers are
    given."""
    asked = containers or (limits_of("main", nvidia_com__gpu="1"),)
    return admitted(*asked, nodeName="n1", annotations=MIRROR | (annotations or {}), **fields)


def both(raw: Json, policy: AdmissionPolicy = POLICY, **user: Any) -> tuple[AdmissionAnswer, ...]:
    """What /mutate and /validate answer to this user's new pod."""
    seen = review(raw, userInfo=user or KUBELET)
    return mutate(seen, no_standing, policy), validate(seen, policy)


@pytest.mark.parametrize("policy", [POLICY, OBSERVING], ids=["enforce", "observe"])
@pytest.mark.parametrize(
    "asked",
    [
        limits_of("main", nvidia_com__gpu="1"),
        limits_of("main", nvidia_com__gpu="100"),
        limits_of("main", nvidia_com__gpu="1", google_com__tpu="1"),
    ],
    ids=["one", "too-many", "two-dialects"],
)
def test_the_mirror_of_a_kubelets_own_static_pod_is_admitted_as_it_is_with_a_warning(
    asked: Json, policy: AdmissionPolicy
) -> None:
    tight = replace(policy, caps=Caps(own=Cap(total_milli=0)), requires_duration=True)

    changed, valid = both(
        mirror(asked, priorityClassName="system-node-critical", priority=2_000_001_000), tight
    )

    (warning,) = changed.warnings
    assert (changed.refusal, changed.operations, valid.refusal) == ("", (), "")
    assert warning.startswith("This is the mirror of a static pod")


@pytest.mark.parametrize(
    "user",
    [
        {"username": "tess", "groups": ["system:authenticated"]},
        {"username": "tess", "groups": ["system:nodes"]},
        {"username": "system:node:n2", "groups": ["system:nodes"]},
        {"username": "system:node:n1", "groups": ["system:authenticated"]},
    ],
    ids=["a-person", "a-person-among-nodes", "another-node", "a-node-without-its-group"],
)
def test_a_copy_of_a_mirror_by_anybody_else_is_refused_as_any_pod_that_names_its_node(user: Json) -> None:
    changed, valid = both(mirror(), **user)

    assert "spec.nodeName" in changed.refusal
    assert "spec.nodeName" in valid.refusal


def test_a_kubelets_pod_that_is_no_mirror_is_refused_as_any_other() -> None:
    raw = mirror()
    del raw["metadata"]["annotations"]

    assert "spec.nodeName" in both(raw)[0].refusal


@pytest.mark.parametrize(
    ("forged", "rule"),
    [
        ({"annotations": {"bursar.dev/standing": "IN_BUDGET"}}, "forged-annotation"),
        ({"annotations": {"bursar.dev/devices": "{}"}}, "forged-annotation"),
        ({"labels": {"bursar.dev/governed": "true"}}, "forged-label"),
        ({"schedulingGates": [{"name": "bursar.dev/budget"}]}, "forged-gate"),
    ],
    ids=["standing", "devices", "label", "gate"],
)
def test_what_only_bursar_writes_is_refused_in_a_mirror_too(forged: Json, rule: str) -> None:
    raw = mirror(annotations=forged.get("annotations"))
    raw["metadata"] |= {"labels": forged.get("labels", {})}
    raw["spec"] |= {"schedulingGates": forged.get("schedulingGates", [])}

    for answer in both(raw):
        assert answer.rules == ((rule, "enforce"),)
        assert answer.refusal != ""


def test_a_mirror_without_a_request_is_admitted_in_silence_whatever_it_shows_itself() -> None:
    shown = {"nvidia.com/container.web.gpus.devices": "all"}
    raw = mirror(plain(env=ALL), annotations=shown)

    assert both(raw) == (AdmissionAnswer("passed"), AdmissionAnswer("valid"))
    assert both(raw, username="tess", groups=["system:nodes"])[1].verdict == "refused"


def test_an_ephemeral_container_that_shows_itself_cards_is_refused() -> None:
    before = governed(admitted(half()))
    after = copy.deepcopy(before)
    after["spec"]["ephemeralContainers"] = [plain("debug", env=ALL)]

    answer = validate(
        review(after, operation="UPDATE", subResource="ephemeralcontainers", oldObject=before), POLICY
    )

    assert answer.rules == (("ephemeral-sees-cards", "enforce"),)
    assert answer.refusal.startswith("spec.ephemeralContainers[0].env[NVIDIA_VISIBLE_DEVICES]: ")


def test_a_dry_run_is_answered_like_any_other_and_is_no_admission() -> None:
    dry = review(admitted(half()), dryRun=True)
    wet = review(admitted(half()))

    answer = mutate(dry, lambda _: Standing("IN_BUDGET"), POLICY)

    assert answer == mutate(wet, lambda _: Standing("IN_BUDGET"), POLICY)
    assert counted(answer) is not None  # of which `Reviewer` counts the wet one


def test_a_forged_mark_hides_no_admission() -> None:
    forged = admitted(half())
    forged["metadata"] |= {
        "labels": {"bursar.dev/governed": "true"},
        "annotations": {"bursar.dev/standing": "IN_BUDGET"},
    }

    assert counted(mutated(forged)) is not None


# /validate: what the mutator sets, the validator checks

DIFFERENCES: dict[str, tuple[list[Any], str]] = {
    "the label": ([{"op": "remove", "path": "/metadata/labels/bursar.dev~1governed"}], "/metadata/labels"),
    "the standing": (
        [{"op": "remove", "path": "/metadata/annotations/bursar.dev~1standing"}],
        "/metadata/annotations/bursar.dev~1standing",
    ),
    "the class": (
        [
            {"op": "replace", "path": "/spec/priorityClassName", "value": "urgent"},
            {"op": "replace", "path": "/spec/priority", "value": 1},
        ],
        "/spec/priorityClassName",
    ),
    "the scheduler": ([{"op": "remove", "path": "/spec/schedulerName"}], "/spec/schedulerName"),
    "the sidecar": ([{"op": "remove", "path": "/spec/initContainers"}], "/spec/initContainers"),
    "the sidecar's token": ([{"op": "remove", "path": "/spec/volumes"}], "/spec/volumes"),
    "the cards' variable": (
        [{"op": "replace", "path": "/spec/containers/0/env/0", "value": ALL[0]}],
        "/spec/containers/0/env/0",
    ),
    "void elsewhere": ([{"op": "remove", "path": "/spec/containers/1/env"}], "/spec/containers/1/env"),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_what_another_webhook_took_away_is_refused(case: str) -> None:
    changes, path = DIFFERENCES[case]
    raw = patched(governed(admitted(half(), plain())), changes)

    answer = validate(review(raw), POLICY)

    assert ("not-governed", "enforce") in answer.rules
    assert f"{path}: another webhook or a race changed what Bursar wrote here" in answer.refusal


def test_a_pod_that_a_worker_metered_while_another_enforces_is_refused_with_one_sentence() -> None:
    """Nothing tells it from a pod whose request another webhook added after us."""
    answer = mutated(admitted(half()), policy=replace(POLICY, mode="meter"))
    metered = patched(admitted(half()), list(answer.operations))

    assert validate(review(metered), POLICY).refusal == (
        "/metadata/labels: Bursar wrote nothing here: the mode or a setting of the namespace changes at this"
        " moment, or another webhook changed the pod; allowed: what Bursar writes; for example creating the"
        " pod again; if the error stays, ask the administrator of the cluster's webhooks"
    )


def test_a_pod_is_measured_by_the_standing_that_was_recorded_in_it() -> None:
    """The standing may turn between the two calls; the second one has no table to look at."""
    for word in ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"):
        assert validate(review(governed(admitted(half()), word)), POLICY).verdict == "valid"
    lifted = governed(admitted(half()), "OVER_BUDGET")
    lifted["spec"] |= {"priorityClassName": "gpu-default-priority", "priority": 0}
    assert validate(review(lifted), POLICY).rules == (("not-governed", "enforce"),)


def test_a_lower_class_of_the_users_own_is_valid() -> None:
    assert validate(review(governed(with_class(admitted(half()), "batch", -100))), POLICY).verdict == "valid"


def test_replicas_with_other_flags_or_a_newer_ca_find_each_others_pods_valid() -> None:
    other = replace(
        POLICY,
        sidecar=Sidecar("example/sidecar:2", "https://elsewhere.example", "newer"),
        runtime_class="nvidia",
        gpu_node_taint="nvidia.com/gpu",
    )

    assert validate(review(governed(admitted(half()))), other).verdict == "valid"


SIDECARS = {"on": POLICY, "off": WITHOUT_SIDECAR}


@pytest.mark.parametrize("now", SIDECARS)
@pytest.mark.parametrize("then", SIDECARS)
def test_replicas_that_differ_in_how_they_inject_find_each_others_pods_valid(then: str, now: str) -> None:
    """Flags are changed replica by replica, and not all hear a changed setting in the same moment."""
    raw = governed(admitted(half(), restartPolicy="Never"), policy=SIDECARS[then])
    deaf = replace(SIDECARS[now], known=False)

    assert validate(review(raw), SIDECARS[now]).verdict == "valid"
    assert validate(review(raw), deaf).verdict == "valid"
    newer = replace(SIDECARS[now], sidecar=replace(SIDECAR, ca="newer"))
    assert validate(review(raw), newer).verdict == "valid"


def test_a_worker_without_a_table_trusts_the_decision_of_one_that_has_it() -> None:
    told = replace(
        POLICY,
        in_budget=PriorityClass("theirs", 1_000_000),
        over_budget=PriorityClass("theirs-lower", 10_000),
        scheduler_name="theirs",
        sidecar=None,
    )
    deaf = replace(POLICY, known=False)

    checked = validate(review(governed(admitted(half()), "OVER_BUDGET", told)), deaf)
    assert replace(checked, admission=None) == AdmissionAnswer("valid")


# observing


def test_while_observing_a_malformed_pod_is_admitted_ungoverned_with_a_warning() -> None:
    raw = admitted(container(gpu_percent="150"))

    answer = mutate(review(raw), no_standing, OBSERVING)

    assert (answer.refusal, answer.operations, answer.verdict) == ("", (), "observed")
    assert answer.warnings[1].startswith(
        "Observe mode: this would be refused: spec.containers[0].resources.limits[bursar.dev/gpu-percent]"
    )
    assert answer.rules == (("share-range", "observe"),)
    assert validate(review(raw), OBSERVING).refusal == ""


def test_while_observing_the_exhausted_are_reported_and_not_demoted() -> None:
    answer = mutated(admitted(half()), Standing("OVER_BUDGET"), OBSERVING)

    assert answer.warnings == (
        "Namespace team-a has used its GPU budget. Observe mode: with enforcement on, this pod would get "
        "priority class gpu-lower-priority.",
        "Observe mode: the pod is not changed, so its containers see no cards of bursar.dev/ resources.",
    )
    assert (answer.verdict, answer.operations) == ("observed", ())


# warnings

WARNINGS: dict[str, tuple[Json, Standing, tuple[str, ...]]] = {
    "nothing to say": (admitted(half()), Standing("IN_BUDGET", 799, 800), ()),
    "no budget": (admitted(half()), Standing("UNLIMITED"), ()),
    "nearly spent": (
        admitted(half()),
        Standing("IN_BUDGET", 855, 800),
        ("Namespace team-a has used 85.5 % of its GPU budget.",),
    ),
    "demoted": (
        admitted(half()),
        Standing("OVER_BUDGET", 1_000, 800),
        ("Namespace team-a has used its GPU budget. This pod gets priority class gpu-lower-priority.",),
    ),
    "demoted for the group": (
        admitted(half()),
        Standing("OVER_BUDGET", 1_000, 800, group="_group.lab"),
        (
            "_group.lab (the group of namespace team-a) has used its GPU budget. This pod gets priority class"
            " gpu-lower-priority.",
        ),
    ),
    "demoted by a burst": (
        admitted(half()),
        Standing("OVER_BUDGET", 900, 800, by_estimate=True),
        (
            "Namespace team-a: pods admitted in the last few seconds will use the remaining GPU budget. "
            "This pod gets priority class gpu-lower-priority.",
        ),
    ),
    "not known": (
        admitted(half()),
        Standing("UNKNOWN"),
        (
            "Budget service unreachable; budget status of namespace team-a unknown. This pod gets priority "
            "class gpu-default-priority.",
        ),
    ),
    "another scheduler": (
        admitted(half(), schedulerName="volcano"),
        Standing("IN_BUDGET"),
        ('spec.schedulerName: only bursar-scheduler assigns cards, got "volcano"; replaced',),
    ),
    "a higher class": (
        with_class(admitted(half()), "urgent", 7),
        Standing("IN_BUDGET"),
        (
            'spec.priorityClassName: its value is above the class of pods in budget, got "urgent" of value 7;'
            " replaced by the highest class that the namespace's budget allows",
        ),
    ),
    "a class above the lower one": (
        with_class(admitted(half()), "middle", -1),
        Standing("OVER_BUDGET"),
        (
            "Namespace team-a has used its GPU budget. This pod gets priority class gpu-lower-priority.",
            'Priority class "middle" is replaced by gpu-lower-priority, '
            "the highest that the namespace's budget allows.",
        ),
    ),
    **{
        f"the policy {policy}": (
            with_annotations(admitted(half()), {"bursar.dev/policy": policy}),
            Standing("IN_BUDGET"),
            (),
        )
        for policy in ("fragmentation", "binpack", "spread", "random", "load")
    },
    "memory beside whole cards": (
        admitted(
            limits_of("a", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8"),
            limits_of("b", tencent_com__vcuda_core="200", tencent_com__vcuda_memory="8"),
        ),
        Standing("IN_BUDGET"),
        (
            "spec.containers[1].resources.limits[tencent.com/vcuda-memory] has no effect: a whole card "
            "includes all of its memory.",
        ),
    ),
    "another cap than the request": (
        with_annotations(
            admitted(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8")),
            {"tencent.com/vcuda-core-limit": "80"},
        ),
        Standing("IN_BUDGET"),
        (
            "metadata.annotations[tencent.com/vcuda-core-limit] is replaced by 50, the largest "
            "tencent.com/vcuda-core of a container.",
        ),
    ),
    "a topology of one card": (
        with_annotations(admitted(half("a"), half("b")), {"bursar.dev/topology": "pair"}),
        Standing("IN_BUDGET"),
        ("bursar.dev/topology: pair has no effect: no container requests several GPUs.",),
    ),
    "a topology of two cards": (
        with_annotations(admitted(container(gpu_count="2")), {"bursar.dev/topology": "pair"}),
        Standing("IN_BUDGET"),
        (),
    ),
    "cards by hand": (
        admitted(half(env=ALL), plain("web", env=ALL), plain("db", env=[{"name": "NVIDIA_VISIBLE_DEVICES"}])),
        Standing("IN_BUDGET"),
        (
            *(
                f"spec.containers[{index}].env[0]: the scheduler decides which cards a container "
                'sees, got NVIDIA_VISIBLE_DEVICES="all"; '
                "replaced: a container sees the cards that are assigned to it"
                for index in (0, 1)
            ),
        ),
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_people_are_warned(case: str) -> None:
    raw, standing, expected = WARNINGS[case]

    assert mutated(raw, standing).warnings == expected


def test_a_governed_pod_is_warned_of_nothing_that_was_done() -> None:
    raw = governed(admitted(half(env=ALL), schedulerName="volcano"))

    assert mutated(raw).warnings == ()


def test_warnings_keep_the_api_servers_limits() -> None:
    many = within_limits(f"{number}: line\nbreak and {'ü' * 300}" for number in range(100))

    assert all("\n" not in each and len(each.encode()) <= 256 for each in many)
    assert sum(len(each.encode()) for each in many) < 4096
    assert len(many) == 15
    assert many[0].startswith("0: line?break and üü")
    assert many[0].endswith("ü...")


LACKING = 'Priority class "typo" does not exist in the cluster; it is not set.'


@pytest.mark.parametrize(
    ("standing", "told"),
    [
        (Standing("IN_BUDGET"), ()),
        (Standing("OVER_BUDGET"), ("Namespace team-a has used its GPU budget.",)),
        (
            Standing("OVER_BUDGET", by_estimate=True),
            ("Namespace team-a: pods admitted in the last few seconds will use the remaining GPU budget.",),
        ),
        (Standing("UNKNOWN"), ("Budget service unreachable; budget status of namespace team-a unknown.",)),
    ],
)
@pytest.mark.parametrize("own", [None, "urgent"])
def test_a_class_that_the_cluster_lacks_is_reported_and_the_pod_without_it_is_valid(
    standing: Standing, told: tuple[str, ...], own: str | None
) -> None:
    missing = PriorityClass("typo", None, absent=True)
    policy = replace(POLICY, in_budget=missing, over_budget=missing)
    raw = with_class(admitted(half()), own, 7) if own else admitted(half())

    answer = mutated(raw, standing, policy)
    after = patched(raw, list(answer.operations))

    assert answer.warnings == (*told, LACKING)
    assert after["spec"].get("priorityClassName") == own
    assert replace(validate(review(after), policy), admission=None) == AdmissionAnswer("valid")


def test_the_lower_class_is_named_as_it_is_called_here() -> None:
    policy = replace(POLICY, over_budget=replace(OVER_BUDGET, name="leftovers"))

    (warning,) = mutated(admitted(half()), Standing("OVER_BUDGET"), policy).warnings

    assert warning.endswith("This pod gets priority class leftovers.")
