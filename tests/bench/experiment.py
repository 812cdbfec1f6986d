"""The placement experiment of Weng et al. (USENIX ATC'23): who arrives at which nodes, and what is measured.

Pods arrive one by one, never leave and are not tried again. Whoever places them is given as a function.
"""

import csv
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

WHOLE_MILLI = 1000
MOST = 10**12  # of any figure in a file
POINTS = (95, 100, 130)  # per cent of the GPUs that have arrived
CLASSES = ("cpu", "share", "one", "several")

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")

Json = dict[str, Any]
Row = Mapping[str, str | None]


class InputError(Exception):
    """A file does not hold what it should; the text names the file and the place."""


class NodeRow(NamedTuple):
    """A node: CPU in thousandths of a core, memory in MiB, how many GPUs, and of which model."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class PodRow(NamedTuple):
    """What a pod asks: CPU and memory, and ``gpu_milli`` thousandths of each of ``num_gpu`` GPUs of one of
    these models; of any where there are none. Pods that ask the same are equal."""

    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    models: tuple[str, ...]

    @property
    def asked_milli(self) -> int:
        """GPU in all."""
        return self.num_gpu * self.gpu_milli

    @property
    def whole(self) -> bool:
        """True where it asks for GPUs that are its own."""
        return self.num_gpu > 0 and self.gpu_milli == WHOLE_MILLI

    @property
    def kind(self) -> str:
        """One of ``CLASSES``."""
        if not self.num_gpu:
            return "cpu"
        if self.num_gpu > 1:
            return "several"
        return "one" if self.whole else "share"


@dataclass(frozen=True, slots=True)
class Experiment:
    """``nodes`` in the order that decides ties; ``listed``: the pod list, which shows what is typical;
    ``arrivals``: whom it sends, in order."""

    nodes: tuple[NodeRow, ...]
    listed: tuple[PodRow, ...]
    arrivals: tuple[PodRow, ...]

    @property
    def gpu_milli(self) -> int:
        """All GPUs of all nodes."""
        return WHOLE_MILLI * sum(node.gpus for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``allocation``: per cent of all GPU allocated when so many per cent had arrived, None where it never
    came to that. ``failed``: pods that found no place, by class."""

    allocation: dict[str, float | None]
    failed: dict[str, float]


def run(experiment: Experiment, place: Callable[[PodRow], object]) -> Outcome:
    """Sends every arrival to ``place``, whose answer is true where the pod found a place.

    The value at a point is the mean over the arrivals whose rounded percentage it is; at the last point, that
    of the last percentage that was reached.
    """
    capacity, arrived, allocated = experiment.gpu_milli, 0, 0
    bins: dict[int, list[int]] = {}
    failed = Counter(dict.fromkeys(CLASSES, 0))
    for pod in experiment.arrivals:
        arrived += pod.asked_milli
        if place(pod):
            allocated += pod.asked_milli
        else:
            failed[pod.kind] += 1
        bins.setdefault((200 * arrived + capacity) // (2 * capacity), []).append(allocated)
    return Outcome({str(at): _value_at(at, bins, capacity) for at in POINTS}, dict(failed))


def _value_at(point: int, bins: Mapping[int, Sequence[int]], capacity: int) -> float | None:
    """A pod so large that a point is leapt over leaves there what was before it."""
    reached = max((at for at in bins if at <= point), default=None)
    if reached is None or (max(bins) < point and point != POINTS[-1]):
        return None
    values = bins[reached]
    return round(100 * sum(values) / len(values) / capacity, 3)


def read_experiment(nodes: Path, pods: Path, replay: Path) -> Experiment:
    """The experiment of these files: two csv lists with the columns of the trace, and a JSON object with
    ``node_order`` and ``pod_rows`` (places in the pod list, from 0). Names that end in .xz are read through
    xz. Raises InputError."""
    there = {node.name: node for node in read_nodes(nodes)}
    listed = read_pods(pods)
    found = _json(replay)
    order, rows = found.get("node_order"), found.get("pod_rows")
    if not isinstance(order, list) or not isinstance(rows, list):
        raise InputError(f"{replay}: must be an object with the lists node_order and pod_rows")
    for at, name in enumerate(order):
        if not isinstance(name, str) or name not in there:
            raise InputError(
                f"{replay}: node_order[{at}]: {name!r} is no node of {nodes} that is not named before"
            )
    if len(set(order)) != len(order) or len(order) != len(there):
        raise InputError(
            f"{replay}: node_order must name every node of {nodes} once; it has {len(order)} names"
        )
    if not rows:
        raise InputError(f"{replay}: pod_rows is empty: nobody arrives")
    for at, row in enumerate(rows):
        if type(row) is not int or not 0 <= row < len(listed):
            raise InputError(
                f"{replay}: pod_rows[{at}]: {row!r} is no row of {pods} (0 to {len(listed) - 1})"
            )
    return Experiment(tuple(there[name] for name in order), listed, tuple(listed[row] for row in rows))


def read_nodes(path: Path) -> tuple[NodeRow, ...]:
    """The nodes of a csv file. Raises InputError."""
    found: dict[str, NodeRow] = {}
    for where, row in _rows(path, NODE_COLUMNS):
        name = (row["sn"] or "").strip()
        if not name or name in found:
            raise InputError(f"{where}, column sn: {name!r}: every node needs a name of its own")
        cpu, memory = (_whole(where, row, column) for column in ("cpu_milli", "memory_mib"))
        gpus = _whole(where, row, "gpu", 0, 1024)
        found[name] = NodeRow(name, cpu, memory, gpus, (row["model"] or "").strip())
    if not any(node.gpus for node in found.values()):
        raise InputError(f"{path}: there is no GPU in column gpu")
    return tuple(found.values())


def read_pods(path: Path) -> tuple[PodRow, ...]:
    """The pods of a csv file; ``gpu_spec`` may be missing. Raises InputError."""
    known: dict[PodRow, PodRow] = {}
    found = []
    for where, row in _rows(path, POD_COLUMNS):
        pod = _pod(where, row)
        found.append(known.setdefault(pod, pod))
    return tuple(found)


def _pod(where: str, row: Row) -> PodRow:
    cpu, memory = (_whole(where, row, column) for column in ("cpu_milli", "memory_mib"))
    count = _whole(where, row, "num_gpu", 0, 1024)
    if count == 0:
        return PodRow(cpu, memory, 0, 0, ())
    least = 1 if count == 1 else WHOLE_MILLI
    share = _whole(where, row, "gpu_milli", least, WHOLE_MILLI)
    models = (word.strip() for word in (row.get("gpu_spec") or "").split("|"))
    return PodRow(cpu, memory, count, share, tuple(word for word in models if word))


def _whole(where: str, row: Row, column: str, least: int = 0, most: int = MOST) -> int:
    text = (row[column] or "").strip()
    value = int(text) if re.fullmatch("[0-9]{1,13}", text) else -1
    if not least <= value <= most:
        allowed = str(least) if least == most else f"a whole number from {least} to {most}"
        raise InputError(f"{where}, column {column}: {text!r} is not {allowed}")
    return value


def _rows(path: Path, columns: Iterable[str]) -> list[tuple[str, Row]]:
    """Each row with where it stands."""
    try:
        with _opened(path) as file:
            reader = csv.DictReader(file, strict=True)
            lacking = [name for name in columns if name not in (reader.fieldnames or ())]
            if lacking:
                raise InputError(
                    f"{path}, line 1: column {lacking[0]} is missing; needed: {', '.join(columns)}"
                )
            rows: list[tuple[str, Row]] = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not rows:
        raise InputError(f"{path}: there are no rows below the columns' names")
    return rows


def _json(path: Path) -> Json:
    try:
        with _opened(path) as file:
            found = json.load(file)
    except (OSError, EOFError, ValueError, RecursionError, lzma.LZMAError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: must be a JSON object")
    return found


def _opened(path: Path) -> TextIO:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")
