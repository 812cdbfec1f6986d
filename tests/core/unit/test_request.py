"""Requests: pods of several containers, constraints, and all violations at once. What the words of each
dialect mean is in `tests/core/dialects`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import Json, container, limits_of, of_resources, pod
from timekeeper.core.request.request import ParsedRequest, canonical, parse
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from timekeeper.core.violation import message


@pytest.mark.parametrize(
    ("limits", "says"), [({}, "no limit"), ({"gpu_percent": "50"}, 'request "40" and limit "50"')]
)
def test_a_request_that_is_no_limit_is_refused_with_its_path(limits: Json, says: str) -> None:
    (violation,) = parse(pod(container(requests={"bursar.dev/gpu-percent": "40"}, **limits))).violations

    assert violation.rule == "request-differs-from-limit"
    assert violation.path == "spec.containers[0].resources.requests[bursar.dev/gpu-percent]"
    assert says in violation.sentence()


def test_all_violations_are_in_one_message() -> None:
    subject = pod(
        container("a", gpu_percent="150"),
        container("b", gpu_memory="8"),
        init=[container("c", gpu_percent="-5")],
        annotations={"bursar.dev/policy": "tetris", "bursar.dev/gpu-models": " , "},
    )

    parsed = parse(subject)

    assert len(parsed.violations) == 5
    text = message(parsed.violations)
    assert text.startswith("5 problems:")
    for path in (
        "spec.containers[0]",
        "spec.containers[1]",
        "spec.initContainers[0]",
        "[bursar.dev/policy]",
        "gpu-models",
    ):
        assert path in text


def test_containers_are_read_by_name_init_containers_and_native_sidecars_too() -> None:
    sidecar = container("side", gpu_memory="1000") | {"restartPolicy": "Always"}
    subject = pod(
        container("plain"),
        container("train", gpu_percent="50"),
        init=[container("prep", gpu_count="1"), sidecar],
    )

    request = parse(subject).request

    assert request is not None
    assert request.asks == (
        ContainerAsk("prep", True, Ask(1, 1000, 0)),
        ContainerAsk("side", False, Ask(1, 0, 1000)),
        ContainerAsk("train", False, Ask(1, 500, 0)),
    )


def test_constraints_come_from_annotations() -> None:
    annotations = {
        "bursar.dev/gpu-models": "H100, A100",
        "bursar.dev/gpu-uuids": "GPU-1",
        "bursar.dev/policy": "spread",
    }

    request = parse(pod(container(gpu_percent="50"), annotations=annotations)).request

    assert request == GPURequest(
        dialect="bursar",
        asks=(ContainerAsk("main", False, Ask(1, 500, 0)),),
        models=("H100", "A100"),
        exclude_models=(),
        uuids=("GPU-1",),
        policy="spread",
    )


@pytest.mark.parametrize("word", ["pair", "numa", "node"])
def test_a_topology_is_one_of_three_words(word: str) -> None:
    request = parse(pod(container(gpu_count="2"), annotations={"bursar.dev/topology": word})).request

    assert request is not None
    assert request.topology == word
    assert words_of({"bursar.dev/topology": "rack"}) == ["unknown-topology"]
    assert words_of({"bursar.dev/topology": ["pair"]}) == ["unknown-topology"]


def words_of(annotations: dict[str, object], *containers: Json, init: list[Json] | None = None) -> list[str]:
    """The rules that a pod with these annotations breaks; it has two containers where none are given."""
    two = (container("a", gpu_percent="50"), container("b", gpu_percent="50"))
    raw = pod(*(containers or two), init=init, annotations=annotations)
    return [violation.rule for violation in parse(raw).violations]


@pytest.mark.parametrize("named", ["", "a", "a,a", " , ", 7])
def test_one_card_for_fewer_than_two_containers_is_malformed(named: object) -> None:
    """GPU Aware Scheduling calls these malformed too."""
    assert words_of({"bursar.dev/same-gpu": named}) == ["same-gpu-container"]


def test_one_card_for_a_container_that_requests_none_is_malformed() -> None:
    assert words_of({"bursar.dev/same-gpu": "a,c"}) == ["same-gpu-container"]


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (({"gpu_percent": "50"}, {"gpu_percent": "50"}), True),
        (({"gpu_percent": "50"}, {"gpu_percent": "51"}), False),
        (({"gpu_memory": "4096"}, {"gpu_percent": "99"}), True),
        (({"gpu_memory": "4096"}, {"gpu_percent": "100"}), False),
        (({"gpu_percent": "50"}, {"gpu_count": "2", "gpu_percent": "20"}), False),
    ],
)
def test_containers_of_one_card_must_be_able_to_share_it(limits: tuple[Json, Json], fits: bool) -> None:
    containers = [container(name, **asked) for name, asked in zip("ab", limits, strict=True)]

    assert words_of({"bursar.dev/same-gpu": "a,b"}, *containers) == ([] if fits else ["same-gpu-conflict"])


def test_an_init_container_may_have_the_whole_card_that_another_container_shares_later() -> None:
    whole, sidecar = container("i", gpu_percent="100"), {**container("s", gpu_percent="1")}
    main = container("a", gpu_percent="50")
    asked: dict[str, object] = {"bursar.dev/same-gpu": "a,i"}

    assert words_of(asked, main, init=[whole]) == []
    before = {**sidecar, "restartPolicy": "Always"}
    assert words_of({"bursar.dev/same-gpu": "a,i,s"}, main, init=[before, whole]) == ["same-gpu-conflict"]
    assert words_of({"bursar.dev/same-gpu": "a,i,s"}, main, init=[whole, before]) == []


def test_a_pod_without_gpus_is_neither_a_request_nor_wrong() -> None:
    assert parse(pod(container())).request is None
    assert parse(pod(container())).violations == ()


def test_the_canonical_request_is_sorted_json_by_container() -> None:
    request = parse(pod(container("b", gpu_percent="50"), container("a", gpu_memory="100"))).request

    assert request is not None
    assert canonical(request) == (
        '{"a":{"devices":1,"memory_mib":100,"share_milli":0},"b":{"devices":1,"memory_mib":0,"share_milli":500}}'
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    ["bursar.dev/gpu-percent", "bursar.dev/gpu-memory", "bursar.dev/gpu-count", "nvidia.com/gpu", "cpu"]
)


@given(json_values)
def test_arbitrary_json_never_raises(value: object) -> None:
    for subject in (
        {"spec": value},
        {"spec": {"containers": value}},
        {"spec": {"containers": [value]}},
        {"metadata": value},
    ):
        parse(subject)


@given(st.dictionaries(keys, json_values), st.dictionaries(keys, json_values))
def test_arbitrary_amounts_give_a_request_or_violations_and_never_both(
    limits: dict[str, object], requests: dict[str, object]
) -> None:
    parsed = parse(pod({"name": "c", "resources": {"limits": limits, "requests": requests}}))

    gpu = [key for key in {**limits, **requests} if key != "cpu"]
    assert (parsed.request is None) or not parsed.violations
    assert bool(gpu) == (parsed.request is not None or bool(parsed.violations))


# lists without end


@pytest.mark.parametrize("name", ["gpu-models", "exclude-gpu-models", "gpu-uuids", "same-gpu"])
@pytest.mark.parametrize(
    "value",
    ["a," * 65, "a" * 129, "a," + "b" * 10_000, "a" + "," * 250_000, ",".join(map(str, range(40_000)))],
)
def test_a_list_is_refused_past_64_names_or_128_characters_a_name_in_one_short_sentence(
    name: str, value: str
) -> None:
    raw = pod(container("a", gpu_percent="50"), annotations={f"bursar.dev/{name}": value})

    (violation,) = parse(raw).violations

    assert violation.rule == "long-constraint"
    sentence = violation.sentence()
    assert sentence.startswith(f"metadata.annotations[bursar.dev/{name}]: it ")
    assert "allowed: 64 names at most, of 128 characters at most" in sentence
    assert len(sentence) < 400


def test_a_list_of_64_names_of_128_characters_with_blanks_passes() -> None:
    listed = tuple(f"{number:0128}" for number in range(64))
    annotations = {"bursar.dev/gpu-models": ", ".join(listed)}

    request = parse(pod(container(gpu_percent="50"), annotations=annotations)).request

    assert request is not None
    assert request.models == listed


def test_a_name_that_is_listed_twice_counts_once() -> None:
    annotations = {"bursar.dev/gpu-models": "H100,A100,H100", "bursar.dev/gpu-uuids": "GPU-1, GPU-1"}

    request = parse(pod(container(gpu_percent="50"), annotations=annotations)).request

    assert request is not None
    assert (request.models, request.uuids) == (("H100", "A100"), ("GPU-1",))
    assert words_of({"bursar.dev/same-gpu": "a,b,a"}) == ["same-gpu-container"]


def test_of_many_unknown_containers_the_first_is_named_beside_20_that_request_cards() -> None:
    asking = [container(f"c{number:04}", gpu_percent="50") for number in range(1000)]
    strangers = ",".join(f"x{number}" for number in range(64))

    parsed = parse(pod(*asking, annotations={"bursar.dev/same-gpu": strangers}))

    (violation,) = parsed.violations
    assert violation.got == '"x0"'
    assert violation.allowed == ", ".join(f"c{number:04}" for number in range(20)) + ", 980 more"


def test_of_many_containers_in_two_dialects_the_first_20_are_named() -> None:
    asking = [container(f"c{number}", gpu_percent="50") for number in range(1000)]

    (violation,) = parse(pod(*asking, limits_of("z", nvidia_com__gpu="1"))).violations

    assert violation.rule == "several-dialects"
    assert violation.got.count(" in container ") == 20
    assert violation.got.endswith(", 981 more")


def test_resources_of_network_cards_are_no_gpus() -> None:
    for name in ("nvidia.com/hostdev", "nvidia.com/rdma_shared_device_a", "nvidia.com/mlnxnics"):
        assert parse(pod(of_resources({name: "1"}))) == ParsedRequest(None, ())


def test_an_amount_is_read_by_its_type_whatever_was_read_before() -> None:
    def is_request(amount: object) -> bool:
        limits = {"bursar.dev/gpu-count": amount}
        pod = {"spec": {"containers": [{"name": "typed", "resources": {"limits": limits}}]}}
        return parse(pod).request is not None

    assert [is_request(each) for each in ("1", 1, True, 1.0, "1.0")] == [True, True, False, False, True]
