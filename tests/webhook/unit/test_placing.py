"""Amounts, constraints, schedulers and classes: what is read, what is refused, what is replaced."""

import copy
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_ext.binding.manifest import written_for
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    admitted,
    governed,
    half,
    plain,
    sidecar_of,
    violations_of,
    with_annotations,
    with_class,
)
from tests.worlds import Json, container, limits_of, of_resources
from timekeeper.core.admission.policy import PriorityClass
from timekeeper.core.admission.rules.size import binding_bytes, growth, is_surely_small, weight
from timekeeper.core.dialects import nano
from timekeeper.core.request.request import parse
from timekeeper.core.request.runtime_plugins import KAIS, NVIDIAS
from timekeeper.core.values import Ask, ContainerAsk, GPURequest, Placement, Slice


def broken(raw: Json) -> list[tuple[str, str]]:
    """The rules that the pod breaks, with what it gave."""
    return [(each.rule, each.got) for each in violations_of(raw, POLICY)]


@pytest.mark.parametrize("spelt", ["8000", "8k", "8e3", "8E3", "8000000m", "0.008M", 8000])
def test_every_exact_spelling_of_a_whole_number_is_read(spelt: object) -> None:
    raw = admitted(container(gpu_memory=spelt))

    assert broken(raw) == []
    request = parse(raw).request
    assert request is not None
    assert request.asks[0].ask == Ask(1, 0, 8000)


def test_binary_suffixes_count_in_thousands_of_twenty_four() -> None:
    request = parse(admitted(container(gpu_memory="4Ki"))).request

    assert request is not None
    assert request.asks[0].ask == Ask(1, 0, 4096)


@pytest.mark.parametrize(
    "spelt",
    [
        "0.5",
        "500m",
        "NaN",
        "nan",
        "inf",
        "1e999999",
        "1e30",
        "\u0663",
        "\uff15",
        "1_0",
        " 5",
        "5 ",
        "",
        "0x10",
        "1Mi ",
        0.5,
        True,
        None,
        ["5"],
        {"a": 1},
    ],
    ids=repr,
)
def test_what_is_no_whole_number_is_refused_and_quoted(spelt: object) -> None:
    (found,) = violations_of(admitted(container(gpu_percent=spelt)), POLICY)

    assert found.rule == "amount"
    assert found.got.strip('"') == (spelt if isinstance(spelt, str) else repr(spelt))


def test_a_request_spelt_differently_from_its_limit_is_the_same_amount() -> None:
    for request, limit in (("8k", "8000"), ("8000", "8k"), ("8k", "8k")):
        raw = admitted(container(requests={"bursar.dev/gpu-memory": request}, gpu_memory=limit))

        assert broken(raw) == []


def test_a_request_without_a_limit_is_refused() -> None:
    raw = admitted(container(requests={"bursar.dev/gpu-percent": "50"}))

    assert broken(raw) == [("request-differs-from-limit", 'request "50" and no limit')]


def test_init_containers_and_native_sidecars_may_request_in_our_own_dialect() -> None:
    raw = admitted(half(), init=[half("setup"), half("side", restartPolicy="Always")])

    assert broken(raw) == []


@pytest.mark.parametrize("restart", [None, "Always"], ids=["init container", "native sidecar"])
def test_gpu_manager_serves_no_init_container(restart: str | None) -> None:
    asking = {"tencent_com__vcuda_core": "50", "tencent_com__vcuda_memory": "8"}
    early = limits_of("early", **asking) | ({"restartPolicy": restart} if restart else {})

    found = violations_of(admitted(limits_of("main", **asking), init=[early]), POLICY)

    assert [(each.rule, each.path) for each in found] == [
        ("init-container", "spec.initContainers[0].resources.limits[tencent.com/vcuda-core]"),
        ("init-container", "spec.initContainers[0].resources.limits[tencent.com/vcuda-memory]"),
    ]


@pytest.mark.parametrize("resource", [name for each in nano.DIALECTS for name in each.resources])
def test_nano_gpus_agents_serve_native_sidecars_and_no_other_init_container(resource: str) -> None:
    """They look for the container in the kubelet's list."""
    raw = admitted(of_resources({resource: "50"}), init=[of_resources({resource: "50"}, "early")])

    (violation,) = violations_of(raw, POLICY)
    raw["spec"]["initContainers"][0]["restartPolicy"] = "Always"

    assert (violation.rule, violation.path) == (
        "init-container",
        f"spec.initContainers[0].resources.limits[{resource}]",
    )
    assert violations_of(raw, POLICY) == ()


def test_intels_plugin_serves_no_init_container() -> None:
    amounts = {"gpu.intel.com/i915": "1", "gpu.intel.com/foo": "1"}

    found = violations_of(admitted(of_resources(amounts), init=[of_resources(amounts, "early")]), POLICY)

    assert [(each.rule, each.path) for each in found] == [
        ("init-container", f"spec.initContainers[0].resources.limits[{name}]") for name in amounts
    ]


@pytest.mark.parametrize(
    "name", ["A100", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3, T4", "RTX 6000 Ada (24G)"]
)
def test_names_of_models_as_inventories_have_them_pass(name: str) -> None:
    assert broken(with_annotations(admitted(half()), {"bursar.dev/gpu-models": name})) == []


@pytest.mark.parametrize("name", ["A100;H100", "A100|H100", '"A100"', "Ä100", "-A100", "A" * 64])
def test_names_that_no_inventory_can_hold_are_refused(name: str) -> None:
    for annotation in ("bursar.dev/gpu-models", "bursar.dev/exclude-gpu-models"):
        found = violations_of(with_annotations(admitted(half()), {annotation: f"T4, {name}"}), POLICY)

        assert [(each.rule, each.path) for each in found] == [
            ("malformed-name", f"metadata.annotations[{annotation}]")
        ]


@pytest.mark.parametrize("uuid", ["0", "gpu-1", "GPU-", "GPU_1", "nvidia0"])
def test_cards_are_named_by_uuid_and_never_by_index(uuid: str) -> None:
    assert [
        rule for rule, _ in broken(with_annotations(admitted(half()), {"bursar.dev/gpu-uuids": uuid}))
    ] == ["malformed-name"]


@pytest.mark.parametrize(
    "uuid", ["GPU-5d1f0000-0000-0000-0000-00000000aaaa", "MIG-GPU-5d1f/7/0", "GPU-a,GPU-b"]
)
def test_uuids_of_cards_and_of_their_instances_pass(uuid: str) -> None:
    assert broken(with_annotations(admitted(half()), {"bursar.dev/gpu-uuids": uuid})) == []


def test_models_of_which_one_is_left_are_no_contradiction() -> None:
    narrowed = {"bursar.dev/gpu-models": "A100,H100", "bursar.dev/exclude-gpu-models": "H100"}

    assert broken(with_annotations(admitted(half()), narrowed)) == []


def test_same_gpu_names_the_first_container_that_requests_nothing() -> None:
    raw = with_annotations(admitted(half("a"), plain("web")), {"bursar.dev/same-gpu": "a, web, gone"})

    assert broken(raw) == [("same-gpu-container", '"web"')]


def test_same_gpu_of_containers_that_request_cards_is_a_constraint_like_others() -> None:
    raw = with_annotations(admitted(half("a"), half("b")), {"bursar.dev/same-gpu": "a,b"})

    assert broken(raw) == []


def test_a_misspelt_constraint_is_reported_with_the_nearest_that_exists() -> None:
    for misspelt, nearest in (
        ("bursar.dev/gpu-model", "bursar.dev/gpu-models"),
        ("bursar.dev/exclude-models", "bursar.dev/exclude-gpu-models"),
        ("bursar.dev/polcy", "bursar.dev/policy"),
    ):
        (found,) = violations_of(with_annotations(admitted(half()), {misspelt: "x"}), POLICY)

        assert (found.rule, found.example) == ("unknown-annotation", nearest)


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "bursar-scheduler"])
def test_our_scheduler_and_the_default_are_no_foreign_ones(scheduler: str) -> None:
    assert broken(admitted(half(), schedulerName=scheduler)) == []


@pytest.mark.parametrize(
    ("raw", "in_budget", "above"),
    [
        (with_class(admitted(half()), "urgent", 1), 0, True),
        (with_class(admitted(half()), "equal", 0), 0, False),
        (with_class(admitted(half()), "batch", -1), 0, False),
        (with_class(admitted(half()), "gpu-default-priority", 9), 0, False),  # ours, whatever it is worth now
        (with_class(admitted(half()), "gpu-lower-priority", 9), 0, False),
        (with_class(admitted(half()), "urgent", 1), None, False),  # nobody knows what ours is worth
        (with_class(admitted(half()), "urgent", 2_000_000), 1_000_000, True),
        (admitted(half(), priority=5), 0, False),
    ],
)
def test_a_class_stands_above_the_budget_by_its_value(raw: Json, in_budget: int | None, above: bool) -> None:
    policy = replace(POLICY, in_budget=PriorityClass("gpu-default-priority", in_budget))

    assert [each.rule for each in violations_of(raw, policy)] == (["priority-class"] if above else [])


def test_what_is_wrong_is_found_in_every_mode() -> None:
    raw = admitted(half(), hostPID=True)

    assert violations_of(raw, OBSERVING) == violations_of(raw, POLICY) != ()
    assert violations_of(raw, replace(POLICY, rules={"host-pid": "off"})) == violations_of(raw, POLICY)


def test_a_list_without_end_is_one_violation_whatever_its_names_are() -> None:
    endless = {"bursar.dev/gpu-models": "?," * 80_000, "bursar.dev/exclude-gpu-models": "?," * 65}

    rules_broken = [rule for rule, _ in broken(with_annotations(admitted(half()), endless))]

    assert rules_broken == ["long-constraint"] * 2


def large(characters: int, text: str = "x") -> Json:
    """A GPU pod whose arguments have so many characters."""
    return admitted(half(args=[text * (characters // 2)] * 2))


def test_a_gpu_pod_of_more_than_a_mebibyte_is_refused_while_its_status_could_still_be_written() -> None:
    assert broken(large(2**20)) == [("pod-size", '"1026 KiB"')]
    assert broken(large(2**19, "\u00e9")) == [("pod-size", '"1026 KiB"')], "bytes and not characters count"
    assert broken(large(2**20 - 4096)) == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=4), each, max_size=4),
    max_leaves=40,
)


@pytest.mark.untraced
@given(st.dictionaries(st.text(max_size=4), _JSON, max_size=9))
@example({"": [0] * 99})
@example({"": [[], {}, "", None] * 9})
def test_no_pod_weighs_more_than_twice_its_json_so_a_short_one_needs_no_weighing(raw: Json) -> None:
    assert weight(raw) <= 2 * len(json.dumps(raw, ensure_ascii=False, separators=(",", ":")).encode())


def test_what_is_nested_deeper_than_json_is_written_is_weighed_all_the_same() -> None:
    deep: Json = {}
    for _ in range(2_000):
        deep = {"": deep}

    raw = admitted(half())
    raw["spec"]["deep"] = deep

    assert not is_surely_small(raw)
    assert broken(raw) == []


@pytest.mark.untraced
def test_what_a_pod_grows_by_after_it_is_judged_counts_too() -> None:
    """The API server writes an expression for each label key once webhooks have changed the pod, and we
    variables into each container."""
    value = "v" * 63
    labels = {f"k{index}": value for index in range(100)}
    constraint = {"topologyKey": "zone", "maxSkew": 1, "matchLabelKeys": [*labels]}
    spread = admitted(half(), topologySpreadConstraints=[constraint] * 100)
    spread["metadata"]["labels"] = labels
    expressions = [{"key": key, "operator": "In", "values": [value]} for key in labels]
    grown = copy.deepcopy(spread)
    for each in grown["spec"]["topologySpreadConstraints"]:
        each["labelSelector"] = {"matchExpressions": expressions}
    many = admitted(*(half(f"{'n' * 50}-{index:012}") for index in range(2_270)))

    assert weight(spread) < 2**18
    assert weight(spread) + growth(spread) > weight(grown) > 2**20
    assert [rule for rule, _ in broken(spread)] == ["pod-size"]
    assert weight(many) < 2**20 < weight(governed(many))
    assert weight(many) + growth(many) > weight(governed(many)) - weight(sidecar_of(governed(many)))
    assert [rule for rule, _ in broken(many)] == ["pod-size"] * 2, "its Binding is too long too"
    assert growth(governed(admitted(half(), plain()))) == 0
    for each in spread["spec"]["topologySpreadConstraints"]:
        del each["matchLabelKeys"]
    assert broken(spread) == []


def test_annotations_leave_room_for_those_of_a_binding() -> None:
    def annotated(characters: int) -> Json:
        return with_annotations(admitted(half()), {"team.example/a": "é" * characters})

    assert broken(annotated(98 * 1024)) == [("pod-size", '"197 KiB"')]
    assert broken(annotated(95 * 1024)) == []


def test_managed_fields_count_as_the_text_that_etcd_takes() -> None:
    """Six bytes for a control character that a user has forged there."""
    raw = admitted(half())
    names: Json = {f"f:{chr(1) * 1000}{index}": {} for index in range(180)}
    raw["metadata"]["managedFields"] = [{"manager": "tess", "fieldsV1": {"f:metadata": {"f:labels": names}}}]

    assert weight(raw) < 200_000
    assert [rule for rule, _ in broken(raw)] == ["pod-size"]


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=30),
    st.integers(1, 63),
    st.sampled_from([50, 1000]),
    st.sampled_from(["bursar", "hami"]),
    st.sampled_from([(), (KAIS,), ("bursar", KAIS, *sorted(NVIDIAS))]),
)
@example([1] * 30, 34, 50, "bursar", ("bursar", KAIS))
@example([1] * 30, 53, 50, "bursar", ("bursar", "nvidia-ctk-installer"))
@example([30], 53, 50, "bursar", ("bursar", "nvidia-ctk-installer"))
def test_what_a_binding_writes_is_no_more_than_was_counted(
    cards: list[int], name: int, share: int, dialect: str, plugins: tuple[str, ...]
) -> None:
    called = [f"{index:02}".ljust(name, "n")[:63] for index in range(len(cards))]
    request = GPURequest(
        dialect=dialect,
        asks=tuple(
            ContainerAsk(each, False, Ask(count, share, 0)) for each, count in zip(called, cards, strict=True)
        ),
    )
    uuids = [f"MIG-GPU-{index:08}-0000-0000-0000-000000000000/13/0" for index in range(64)]
    placement = Placement(
        tuple(
            (each, tuple(Slice(uuids[index], index, share, 1_048_576) for index in range(count)))
            for each, count in zip(called, cards, strict=True)
        )
    )
    pod: Any = SimpleNamespace(containers=tuple(called), init_containers=())

    written = written_for(pod, request, placement, "n" * 63, 1, plugins=plugins)

    bytes_written = sum(len(key) + len(value) for key, value in written.annotations.items())
    assert bytes_written <= binding_bytes(request)


def test_a_pod_whose_binding_would_be_too_long_is_refused() -> None:
    def cards(count: str, containers: int) -> Json:
        return admitted(*(container(f"c{n}", gpu_count=count, gpu_percent=count) for n in range(containers)))

    assert [rule for rule, _ in broken(cards("64", 5))] == ["pod-size"]
    assert broken(cards("8", 10)) == []


def test_a_large_pod_that_requests_no_gpu_is_none_of_ours() -> None:
    assert broken(admitted(plain(args=["x" * 2**20]))) == []
