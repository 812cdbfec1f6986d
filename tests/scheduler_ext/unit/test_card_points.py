"""The weighted points of cards, Prometheus' series that they come from, and the flags that set them."""

from collections.abc import Mapping, Sequence

import pytest

from scheduler_ext.scoring.card_points import Scale, loads
from scheduler_ext.scoring.load_series import UndecodableSeriesError, query, read_answer
from scheduler_ext.settings import LoadPrometheus, read
from timekeeper.core.values import Card

CARDS = (
    ("a", Card("GPU-0", 0, "NVIDIA A100-SXM4-80GB", 80_000)),
    ("b", Card("GPU-1", 0, "Tesla T4", 16_000)),
)
MODELS = (("a100", {"sms": 108, "bandwidth": 2_000}), ("t4", {"sms": 40, "bandwidth": 300}))


@pytest.mark.parametrize(
    ("weights", "samples", "expected"),
    [
        # half of its time, and none of it
        ({"busy": 1}, {"GPU-0": {"busy": 50}, "GPU-1": {"busy": 0}}, {"GPU-0": 500, "GPU-1": 0}),
        # of 40,000 MiB at most free: the one has all of that, the other a quarter
        (
            {"free-memory": 1},
            {"GPU-0": {"used-memory": 40_000}, "GPU-1": {"free-memory": 10_000}},
            {"GPU-0": 0, "GPU-1": 800},
        ),
        # less power is better
        ({"power": 1}, {"GPU-0": {"power": 400}, "GPU-1": {"power": 40}}, {"GPU-0": 1000, "GPU-1": 100}),
        # (2 x 1000 + 2 x 1000) / 4 against (2 x 200 + 2 x 370) / 4
        ({"memory": 2, "sms": 2}, {"GPU-0": {"busy": 90}, "GPU-1": {"busy": 0}}, {"GPU-0": 0, "GPU-1": 700}),
        # what a card lacks gives it no points: (1000 + 0) / 2
        (
            {"busy": 1, "encoder": 1},
            {"GPU-0": {"busy": 0, "encoder": 0}, "GPU-1": {"busy": 0}},
            {"GPU-0": 0, "GPU-1": 500},
        ),
        # nothing in the cluster draws power or has such a part
        ({"power": 1, "encoders": 1}, {"GPU-0": {"power": 0}}, {"GPU-0": 500}),
        # no figure: no load
        ({"memory": 1}, {"GPU-9": {"busy": 1}}, {}),
    ],
)
def test_points_are_weighted_and_relative_to_the_best_card(
    weights: dict[str, int], samples: Mapping[str, Mapping[str, int]], expected: dict[str, int]
) -> None:
    assert loads(samples, CARDS, Scale(tuple(weights.items()), MODELS)) == expected


def test_a_card_without_a_uuid_of_its_own_is_found_by_its_node_and_index() -> None:
    cards = [(node, Card(f"card{index}", index, "T4", 16_000)) for node in ("a", "b") for index in (0, 1)]

    found = loads({"a/1": {"busy": 70}, "b/0": {"busy": 20}}, cards, Scale())
    assert found == {"a/card1": 700, "b/card0": 200}


def answer(*rows: tuple[str, Mapping[str, str], str]) -> object:
    """What Prometheus answers: name, labels and value of each series."""
    result = [{"metric": dict(labels, __name__=name), "value": [1.5, text]} for name, labels, text in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def test_the_series_of_each_exporter_are_read_by_their_own_labels_and_units() -> None:
    dcgm, hami = (
        {"UUID": "GPU-0", "Hostname": "a", "gpu": "0"},
        {"device_uuid": "GPU-1", "node": "b", "device_index": "3"},
    )
    old, ward = (
        {"deviceuuid": "GPU-2", "nodeid": "c", "deviceidx": "1"},
        {"uuid": "GPU-3", "kubernetes_node": "d", "id": "0"},
    )
    samples = read_answer(
        answer(
            ("DCGM_FI_DEV_GPU_UTIL", dcgm, "40"),
            ("DCGM_FI_DEV_ENC_UTIL", dcgm, "1"),
            ("DCGM_FI_DEV_DEC_UTIL", dcgm, "2"),
            ("DCGM_FI_DEV_FB_FREE", dcgm, "1000"),
            ("DCGM_FI_DEV_POWER_USAGE", dcgm, "71.9"),
            ("hami_host_gpu_utilization_ratio", hami, "55"),
            ("hami_host_gpu_memory_used_bytes", hami, "3145728"),
            ("HostCoreUtilization", old, "7"),
            ("HostGPUMemoryUsage", old, "1048576"),
            ("observerward_dynamic_gpu_free_global_memory_MiB", ward, "800"),
            ("observerward_static_gpu_multiprocessor_count", ward, "28"),
        )
    )
    first = {"busy": 40, "encoder": 1, "decoder": 2, "free-memory": 1000, "power": 71}
    second, third = {"busy": 55, "used-memory": 3}, {"busy": 7, "used-memory": 1}
    fourth = {"free-memory": 800, "sms": 28}
    assert samples == {
        **{"GPU-0": first, "a/0": first, "GPU-1": second, "b/3": second},
        **{"GPU-2": third, "c/1": third, "GPU-3": fourth, "d/0": fourth},
    }


def test_of_two_exporters_on_a_node_the_first_listed_counts_and_what_is_no_amount_does_not() -> None:
    card = {"UUID": "GPU-0", "device_uuid": "GPU-0"}
    rows = [("DCGM_FI_DEV_GPU_UTIL", card, "40"), ("hami_host_gpu_utilization_ratio", card, "90")]

    assert read_answer(answer(*rows)) == read_answer(answer(*rows[::-1])) == {"GPU-0": {"busy": 40}}
    for text in ("NaN", "+Inf", "-1", "101", "9.223372036854776e+18", "", "x"):
        assert read_answer(answer(("DCGM_FI_DEV_GPU_UTIL", card, text))) == {}


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"data": None},
        {"data": {"resultType": "matrix", "result": []}},
        {"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"]}]}},
        {"data": {"resultType": "vector", "result": [{"metric": {"__name__": "up"}, "value": [1, "2"]}]}},
        {
            "data": {
                "resultType": "vector",
                "result": [{"metric": {"__name__": "HostCoreUtilization"}, "value": []}],
            }
        },
    ],
)
def test_another_answer_is_an_error(body: object) -> None:
    with pytest.raises(UndecodableSeriesError):
        read_answer(body)


def test_only_the_series_of_weighed_figures_are_requested() -> None:
    asked = query(["free-memory"])

    assert "DCGM_FI_DEV_FB_FREE" in asked
    assert "hami_host_gpu_memory_used_bytes" in asked
    assert "UTIL" not in asked
    assert "DCGM_FI_DEV_GPU_UTIL" in query(["memory"])  # else it could not say which cards are measured


def test_the_flags() -> None:
    given = read(
        [
            "--prometheus-url=https://p:9090/base",
            "--prometheus-token-file=/t",
            "--load-weights=busy=10, power=2,sms=0",
            "--model-figures=A100=sms:108;bandwidth:2039,rtx.3090=sms:82",
        ],
        {},
    )

    assert (given.prometheus.url, str(given.prometheus.token_file)) == ("https://p:9090/base", "/t")
    assert given.scale.weights == (("busy", 10), ("power", 2))
    assert given.scale.models == (("a100", {"sms": 108, "bandwidth": 2039}), ("rtx.3090", {"sms": 82}))
    assert read(["--prometheus-namespace=monitoring"], {}).prometheus == LoadPrometheus("", "monitoring")
    assert (read([], {}).prometheus, read([], {}).scale) == (LoadPrometheus(), Scale())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--prometheus-url=ftp://p"], '"ftp://p" is not an http:// or https:// URL'),
        (["--prometheus-namespace=A"], '"A" is not the name of a namespace'),
        (["--prometheus-url=http://p", "--prometheus-namespace=a"], "exclude each other"),
        (["--load-weights=busy"], '"busy" is not NAME=NUMBER, separated by commas'),
        (["--load-weights=busy=1,busy=2"], "each once"),
        (["--load-weights=heat=1"], "out of busy, free-memory, encoder"),
        (["--load-weights=busy=0"], "not all 0"),
        (["--load-weights=busy=1001"], "from 0 to 1000"),
        (["--model-names=a"], '"a" is not NAME=PART, separated by commas'),
        (["--model-names=a=.."], "is not NAME=PART"),
        (["--model-figures=a100"], '"a100" is not MODEL=NAME:NUMBER;NAME:NUMBER'),
        (["--model-figures==sms:1"], "is not MODEL=NAME:NUMBER"),
        (["--model-figures=a100=memory:1"], "out of sms, encoders, decoders, bandwidth"),
    ],
)
def test_a_bad_flag_is_one_sentence(
    flags: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(flags, {})
    assert sentence in capsys.readouterr().err
