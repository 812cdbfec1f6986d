"""Prometheus' series of the use of cards, by exporter: the query for them, and what its answer says.

Sources: the counters of NVIDIA's dcgm-exporter, whose names Bursar's node agent has too; the monitor of HAMi,
also with its older names; the exporter of Genius.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler_ext.scoring.card_points import (
    BUSY,
    DECODER,
    DECODERS,
    ENCODER,
    ENCODERS,
    FREE_MEMORY,
    POWER,
    SMS,
    USED_MEMORY,
    Samples,
    place,
)

WITHIN = "2m"  # a series without a sample within this time is ignored
_MIB = 2**20
_MOST = {BUSY: 100, ENCODER: 100, DECODER: 100, POWER: 10_000}
_MAX_OTHER = 10**9  # more is a value that stands for none
_NEEDED_FOR = {FREE_MEMORY: (FREE_MEMORY, USED_MEMORY)}


class UndecodableSeriesError(ValueError):
    """The answer is not what Prometheus answers to `query`."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """The labels by which an exporter names a card and its node, and its series: the figure of each, and how
    many of its units are one of ours."""

    uuid: str
    node: str
    index: str
    series: tuple[tuple[str, str, int], ...]


EXPORTERS = (
    Exporter(
        "UUID",
        "Hostname",
        "gpu",
        (
            ("DCGM_FI_DEV_GPU_UTIL", BUSY, 1),
            ("DCGM_FI_DEV_ENC_UTIL", ENCODER, 1),
            ("DCGM_FI_DEV_DEC_UTIL", DECODER, 1),
            ("DCGM_FI_DEV_FB_FREE", FREE_MEMORY, 1),
            ("DCGM_FI_DEV_POWER_USAGE", POWER, 1),
        ),
    ),
    Exporter(
        "device_uuid",
        "node",
        "device_index",
        (
            ("hami_host_gpu_utilization_ratio", BUSY, 1),  # per cent, whatever its name says
            ("hami_host_gpu_memory_used_bytes", USED_MEMORY, _MIB),
        ),
    ),
    Exporter(
        "deviceuuid",
        "nodeid",
        "deviceidx",
        (("HostCoreUtilization", BUSY, 1), ("HostGPUMemoryUsage", USED_MEMORY, _MIB)),
    ),
    Exporter(
        "uuid",
        "kubernetes_node",
        "id",
        (
            ("observerward_dynamic_gpu_encoder_utilization", ENCODER, 1),
            ("observerward_dynamic_gpu_decoder_utilization", DECODER, 1),
            ("observerward_dynamic_gpu_free_global_memory_MiB", FREE_MEMORY, 1),
            ("observerward_dynamic_gpu_power_usage_W", POWER, 1),
            ("observerward_static_gpu_multiprocessor_count", SMS, 1),
            ("observerward_static_gpu_shared_encoder_count", ENCODERS, 1),
            ("observerward_static_gpu_shared_decoder_count", DECODERS, 1),
        ),
    ),
)
_SERIES = {name: (each, figure, unit) for each in EXPORTERS for name, figure, unit in each.series}


def query(figures: Iterable[str]) -> str:
    """The PromQL for these figures: one answer has all exporters' series, one of each card."""
    wanted = {name for figure in figures for name in _NEEDED_FOR.get(figure, (figure,))}
    labels = dict.fromkeys(label for each in EXPORTERS for label in (each.uuid, each.node, each.index))
    names = "|".join([name for name, (_, figure, _) in _SERIES.items() if figure in wanted] or _SERIES)
    by = ", ".join(("__name__", *labels))
    return f'max by ({by}) (last_over_time({{__name__=~"{names}"}}[{WITHIN}]))'


def read_answer(answer: object) -> Samples:
    """The figures by card, from the answer in JSON. Of several figures of one card that of the exporter
    listed first counts. Values that are no amount are left out. Raises UndecodableSeriesError."""
    try:
        data = answer["data"]  # type: ignore[index]
        if data["resultType"] != "vector":
            raise UndecodableSeriesError(f"Prometheus answers with a {data['resultType']}, not a vector")
        rows: dict[Exporter, list[tuple[Mapping[str, str], str]]] = {each: [] for each in EXPORTERS}
        for each in data["result"]:
            rows[_SERIES[each["metric"]["__name__"]][0]].append((each["metric"], each["value"][1]))
        found: dict[str, dict[str, int]] = {}
        for exporter in reversed(EXPORTERS):
            for metric, text in rows[exporter]:
                _note(found, exporter, metric, text)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UndecodableSeriesError(f"no answer of Prometheus: {type(error).__name__} {error}") from error
    return found


def _note(found: dict[str, dict[str, int]], exporter: Exporter, metric: Mapping[str, str], text: str) -> None:
    _, figure, unit = _SERIES[metric["__name__"]]
    amount = _amount(figure, text, unit)
    node, index = metric.get(exporter.node, ""), metric.get(exporter.index, "")
    keys = [metric.get(exporter.uuid, "")]
    keys += [place(node, int(index))] if node and index.isdecimal() else []
    for key in keys if amount is not None else ():
        if key and amount is not None:
            found.setdefault(key, {})[figure] = amount


def _amount(figure: str, text: str, unit: int) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    most = _MOST.get(figure, _MAX_OTHER)
    return int(value) // unit if 0 <= value <= most * unit else None  # NaN is no amount either
