"""What is read once of the pods of one template, and what of each of them."""

import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_ext.model.cpu import requested_milli
from scheduler_ext.model.other_resources import requested_others
from scheduler_ext.model.pod import _known_template, read_any
from tests.scheduler_ext.worlds import Json, asking, bound, percent, read
from tests.worlds import container, of_resources
from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.request.request import parse, request_part

READ = sorted(
    {*names.USER_ANNOTATIONS}.union(
        *((*each.annotations, *each.labels, *(each.reads or ())) for each in DIALECTS)
    )
)


def test_pods_of_one_template_share_their_request_and_nothing_else() -> None:
    one, other = percent(50, name="a"), percent(50, name="b", schedulingGates=[{"name": "g"}], priority=7)
    other["metadata"] |= {"labels": {"app": "b", **other["metadata"]["labels"]}, "annotations": {"note": "b"}}

    assert read(one).request is read(copy.deepcopy(other)).request
    assert [(each.uid, each.priority, each.gated) for each in map(read, (one, other))] == [
        ("uid-a", 0, False),
        ("uid-b", 7, True),
    ]


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_a_pod_with_an_annotation_or_label_that_is_read_is_of_another_template(field: str, name: str) -> None:
    plain, marked = percent(50), percent(50)
    marked["metadata"][field] = {name: "1"}

    assert request_part(marked) != request_part(plain)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"restartPolicy": "Always"},
        {"resources": {"limits": {"bursar.dev/gpu-percent": "51"}}},
        {"resources": {"requests": {"bursar.dev/gpu-percent": "50"}}},
    ],
)
def test_a_pod_whose_container_differs_in_what_is_read_is_of_another_template(change: Json) -> None:
    plain = container(gpu_percent="50")

    assert request_part(asking({**plain, **change})) != request_part(asking(plain))
    assert request_part(asking({**plain, "image": "other"})) == request_part(asking(plain))
    assert request_part(asking(init=[plain])) != request_part(asking(plain))
    assert request_part(asking(plain, schedulerName="volcano")) != request_part(asking(plain))


def test_a_malformed_pod_is_read_with_its_own_violation_before_and_after_its_binding() -> None:
    marked = percent(50, annotations={"bursar.dev/topology": "odd"})

    for _ in range(2):  # read, and known
        assert "bursar.dev/topology" in read(marked).malformed
        assert (read(bound(marked, "n", None)).malformed, read(marked).request) == ("", None)


@pytest.mark.parametrize("amount", [2**70, float("nan"), "5" * 5_000])
def test_what_no_json_of_64_bits_holds_and_what_is_long_is_read_too(amount: object) -> None:
    pod = asking(of_resources({"bursar.dev/gpu-percent": amount}))

    assert read(pod).malformed == read(pod).malformed != ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
amounts = st.dictionaries(
    st.sampled_from([name for each in DIALECTS for name in each.resources]),
    st.sampled_from(["1", 1, "50", "0", None]) | json_values,
    max_size=2,
)
marks = st.dictionaries(st.sampled_from([*READ, "app"]), st.sampled_from(["1", "0", "none"]) | json_values)
containers = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"]), "resources": st.fixed_dictionaries({"limits": amounts})},
    optional={"image": st.text(max_size=3), "restartPolicy": st.sampled_from(["Always", None])},
)


@given(
    st.lists(containers | json_values, max_size=3),
    st.lists(containers | json_values, max_size=2),
    marks | json_values,
    marks | json_values,
)
def test_the_part_of_a_pod_requests_what_the_pod_requests(
    listed: object, init: object, annotations: object, labels: object
) -> None:
    pod = {
        "metadata": {"annotations": annotations, "labels": labels},
        "spec": {"containers": listed, "initContainers": init, "schedulerName": "volcano", "nodeName": "n"},
    }

    assert parse(request_part(pod)) == parse(pod)


def test_of_a_long_template_nothing_is_kept() -> None:
    _known_template.cache_clear()
    short, long = (asking(container(name=letter * 900, gpu_percent="3")) for letter in "xy")
    long["spec"]["containers"] *= 3

    assert read(long).containers == ("y" * 900,) * 3
    assert _known_template.cache_info().currsize == 0
    assert read(short).containers == ("x" * 900,)
    assert _known_template.cache_info().currsize == 1


host_amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "2", "3"]), min_size=1
)
host_resources = st.fixed_dictionaries({"requests": host_amounts})
host_containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"]), "resources": host_resources},
        optional={"restartPolicy": st.just("Always")},
    ),
    min_size=1,
    max_size=2,
)
of_status = {"resources": st.none() | host_resources, "allocatedResources": host_amounts}
host_statuses = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["a", "b"])}, optional=of_status), max_size=2
)
resizes = st.sampled_from(
    [[], *([{"type": "PodResizePending", "reason": each}] for each in ("Infeasible", "Deferred"))]
)
host_specs = st.fixed_dictionaries(
    {"containers": host_containers, "initContainers": host_containers, "nodeName": st.just("n")},
    optional={"overhead": host_amounts, "resources": host_resources},
)
pod_statuses = st.fixed_dictionaries(
    {"containerStatuses": host_statuses, "initContainerStatuses": host_statuses, "conditions": resizes},
    optional=of_status,
)


SMALLER, LARGER = ({"requests": {"cpu": cores}} for cores in "12")


@example(
    {"containers": [{"name": "a", "resources": LARGER}], "nodeName": "n"},
    {
        "containerStatuses": [{"name": "a", "resources": SMALLER}],
        "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
    },
)
@given(host_specs, pod_statuses)
def test_of_its_node_a_pod_requests_what_its_template_and_its_resize_say(spec: Json, status: Json) -> None:
    pod = {"metadata": {"uid": "u", "namespace": "team-a", "name": "p"}, "spec": spec, "status": status}

    value = read_any(pod)

    assert (value.cpu_milli, value.others) == (requested_milli(pod), requested_others(pod))
