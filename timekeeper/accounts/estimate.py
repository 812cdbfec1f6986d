"""The time before the ledger, estimated from the series of kube-state-metrics: what pods held, what it would
cost at today's prices, and what today's budgets would have had left.

Pure, and for display only: nothing here is posted, billed or audited. A sample stands for the step that it
begins. Steps without samples are unknown, not zero. Only whole devices are estimated: cards, replicas and MIG
instances as NVIDIA's plugin counts them, accelerators, and devices that the settings name. Source:
kube-state-metrics, docs/metrics/workload/pod-metrics.md; it writes names of resources and labels with ``_``
for each other character.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from timekeeper.accounts.budget_history import History, is_group
from timekeeper.accounts.card_use.prometheus_answers import Series
from timekeeper.core.accelerators import DOMAINS, accelerator_of, cores_of, without_amounts
from timekeeper.core.budgets.policy import BudgetSettings, group_key
from timekeeper.core.dialects.nvidia_parts import MIG, REPLICAS_LABEL, SHARED
from timekeeper.core.dialects.percent import (
    COUNT_LABEL,
    MEMORY_LABEL,
    MODEL_LABEL,
    SLICES_LABEL,
    STRATEGY_LABEL,
)
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.rating.nodes import cards_of_node
from timekeeper.core.rating.rating import Demand, rated, without_constraints
from timekeeper.core.request.inventory import charged_cards
from timekeeper.core.request.metered import charged_request
from timekeeper.core.values import UndecodableError

STEP_MS = 1_800_000
SPAN_MS = 30 * 86_400_000
PART_MS = 5 * 86_400_000  # of one query: Prometheus bounds the samples of each
MAX_DEVICES = 10**6  # of one kind of one namespace; more is no amount

_CARD = "nvidia.com/gpu"
_LABELS = (MODEL_LABEL, MEMORY_LABEL, REPLICAS_LABEL, STRATEGY_LABEL, SLICES_LABEL)
_EMPTY = '""'
_INSTANCE = re.compile(r"nvidia_com_mig_((?:[1-7]c_)?[1-7]g_[0-9]+gb(?:_[a-z]+)*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class EstimateQueries:
    """PromQL. ``held``: devices by namespace, resource and labels of the node; ``known``: a sample where
    there are figures at all."""

    held: str
    known: str


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """What Prometheus says. ``held``: (namespace, resource, labels of the node) -> devices, by the beginning
    of the step; ``known_ms``: the steps with samples; ``findings``: what is missing or left out."""

    span: Interval
    held: Mapping[tuple[str, str, tuple[str, ...]], Mapping[int, int]]
    known_ms: frozenset[int]
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EstimatedRow:
    """What pods of a namespace held of one model, "": not known. ``amount``: weighted, milli-GPU x ms."""

    namespace: str
    group: str
    models: str
    amount: int
    price: str
    currency: str


@dataclass(frozen=True, slots=True)
class EstimatedBudget:
    """What a budget of today would have had left: of its amount for this time, in proportion to its period.
    ``spent_ms``: when it would have been spent; None: not in this time."""

    subject: str
    period: str
    granted: int
    amount: int
    spent_ms: int | None

    @property
    def left(self) -> int:
        """What would have been left; negative: so much would have been over."""
        return self.granted - self.amount


@dataclass(frozen=True, slots=True)
class Estimate:
    """``known_ms``: for how much of the span there are samples."""

    span: Interval
    known_ms: int
    rows: tuple[EstimatedRow, ...]
    budgets: tuple[EstimatedBudget, ...]
    findings: tuple[str, ...]


def span_before(first_ms: int) -> Interval:
    """The time that is estimated: whole steps, the last of which ends at that moment or before it."""
    end_ms = first_ms // STEP_MS * STEP_MS
    return Interval(max(0, end_ms - SPAN_MS), end_ms)


def queries(settings: BudgetSettings) -> EstimateQueries:
    """What to ask. Several kube-state-metrics say the same twice, so everything is first made one."""
    names = [_sanitised(name) for name in (_CARD, SHARED, *settings.device_models)]
    domains = "|".join(map(_sanitised, DOMAINS))
    wanted = "|".join((*dict.fromkeys(names), f"{_sanitised(MIG)}.+", f"({domains})_.+"))
    amounts = f'{{__name__=~"kube_pod_container_resource_(limits|requests)",resource=~"{wanted}"}}'
    phases = 'kube_pod_status_phase{phase=~"Pending|Running|Unknown"}'
    labels = ",".join(map(_label, _LABELS))
    pod = "namespace,pod"
    devices = f"sum by ({pod},resource) (max by ({pod},container,resource) ({_honoured(amounts)}))"
    placed = f"max by ({pod},node) ({_honoured('kube_pod_info{node!=' + _EMPTY + '}', 'node')})"
    alive = f"max by ({pod}) ({_honoured(phases)}) > 0"
    product = _honoured(f"kube_node_labels{{{_label(MODEL_LABEL)}!={_EMPTY}}}", "node", pods=False)
    described = f"topk by (node) (1, max by (node,{labels}) ({product}))"
    return EstimateQueries(
        f"sum by (namespace,resource,{labels}) (({devices} * on ({pod}) group_left(node)"
        f" topk by ({pod}) (1, {placed}) and on ({pod}) {alive}) * on (node) group_left({labels})"
        f" ({described} or on (node) max by (node) ({placed})))",
        'count({__name__=~"kube_pod_container_resource_(limits|requests)",resource=~"cpu|memory"})'
        ' and count(kube_pod_info) and count(kube_pod_status_phase{phase="Running"})',
    )


def parts(span: Interval) -> Iterator[Interval]:
    """The span in parts that are asked for one by one."""
    for start_ms in range(span.start_ms, span.end_ms, PART_MS):
        yield Interval(start_ms, min(start_ms + PART_MS, span.end_ms))


def held_devices(
    span: Interval, held: Iterable[Series], known: Iterable[Series], findings: Iterable[str] = ()
) -> HeldDevices:
    """What the answers to `queries` say, of all parts together. Samples of other moments than asked for, and
    values that are no number of devices, are left out and counted."""
    steps = range(span.start_ms, span.end_ms, STEP_MS)
    known_ms = {at_ms for each in known for at_ms, value in each.samples if value and at_ms in steps}
    found: dict[tuple[str, str, tuple[str, ...]], dict[int, int]] = defaultdict(dict)
    wrong = 0
    for each in held:
        labels = tuple(each.labels.get(_label(name), "") for name in _LABELS)
        key = each.labels.get("namespace", ""), each.labels.get("resource", ""), labels
        for at_ms, value in each.samples:
            if value is None or value > MAX_DEVICES or at_ms not in known_ms:
                wrong += 1
            else:
                found[key][at_ms] = round(value)
    said = [*findings]
    if wrong:
        said.append(f"{wrong} samples are no number of devices, or of a time without others: left out")
    if not known_ms:
        said.append("Prometheus has no series of kube-state-metrics for pods in this time")
    return HeldDevices(span, found, frozenset(known_ms), tuple(dict.fromkeys(said)))


def estimate(devices: HeldDevices, history: History, now_ms: int) -> Estimate:
    """The estimate at the weights, prices, groups and budgets in force at ``now_ms``."""
    settings = history.settings(now_ms)
    amounts: dict[tuple[str, str], int] = defaultdict(int)
    steps: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    findings = list(devices.findings)
    unknown = 0
    held: dict[str, set[str]] = defaultdict(set)
    for namespace, resource, _ in devices.held:
        held[namespace].add(_real_name(resource, settings))
    counted = {namespace: without_amounts(names) for namespace, names in held.items()}
    for (namespace, resource, labels), samples in devices.held.items():
        of_one = _rate(resource, labels, settings)
        if of_one is None or not namespace or _real_name(resource, settings) not in counted[namespace]:
            continue
        rate_milli, models = of_one
        unknown += not models
        for at_ms, count in samples.items():
            amounts[namespace, models] += count * rate_milli * STEP_MS
            for subject in _subjects(namespace, history, now_ms):
                steps[subject][at_ms] += count * rate_milli * STEP_MS
    if unknown:
        findings.append(
            "kube-state-metrics has no labels of some nodes (`kube_node_labels` with"
            " `nvidia.com/gpu.product`): each of their cards counts with weight 1"
        )
    rows = tuple(_row(*key, amount, history, now_ms) for key, amount in sorted(amounts.items()) if amount)
    subjects = sorted(steps.keys() | _limited(history, now_ms))
    budgets = (_budget(each, steps.get(each, {}), devices.span, history, now_ms) for each in subjects)
    known_ms = len(devices.known_ms) * STEP_MS
    return Estimate(devices.span, known_ms, rows, tuple(filter(None, budgets)), tuple(findings))


def _limited(history: History, now_ms: int) -> set[str]:
    keys = (each for each in history.current_keys() if is_group(each) or not each.startswith("_"))
    return {each for each in keys if history.budget(each, now_ms).budget.amount is not None}


def _subjects(namespace: str, history: History, now_ms: int) -> tuple[str, ...]:
    group = history.group(namespace, now_ms)
    return (namespace, group_key(group)) if group else (namespace,)


def _row(namespace: str, models: str, amount: int, history: History, now_ms: int) -> EstimatedRow:
    price, currency = history.price(namespace, now_ms)
    return EstimatedRow(namespace, history.group(namespace, now_ms), models, amount, price, currency)


def _budget(
    subject: str, steps: Mapping[int, int], span: Interval, history: History, now_ms: int
) -> EstimatedBudget | None:
    budget = history.budget(subject, now_ms).budget
    if budget.amount is None:
        return None
    whole_ms = history.account(subject, now_ms).span.length_ms
    granted = budget.amount if budget.period == "once" else budget.amount * span.length_ms // whole_ms
    used, spent_ms = 0, None
    for at_ms in sorted(steps):
        used += steps[at_ms]
        if spent_ms is None and used > granted:
            spent_ms = at_ms + STEP_MS
    return EstimatedBudget(subject, budget.period, granted, used, spent_ms)


@lru_cache(maxsize=4_096)
def _rate(resource: str, labels: tuple[str, ...], settings: BudgetSettings) -> tuple[int, str] | None:
    """The rate of one device on such a node, as a metered pod is charged for it, and its model; None: it is
    no device that is charged."""
    name = _real_name(resource, settings)
    if not name or cores_of(name) == 0:  # of memory nothing says how much a device has
        return None
    limits = {"resources": {"limits": {name: "1"}}, "name": "main"}
    pod = {"metadata": {}, "spec": {"nodeName": "node", "containers": [limits]}}
    request = charged_request(pod, "meter", settings.device_models)
    if request is None:
        return None
    given = {label: text for label, text in zip(_LABELS, labels, strict=True) if text}
    node = {
        "metadata": {"labels": {MEMORY_LABEL: "1"} | given | {COUNT_LABEL: "1"}},
        "status": {"capacity": {name: given.get(REPLICAS_LABEL, "1")}},
    }
    try:
        cards = charged_cards(node)
    except UndecodableError:
        cards = ()
    rating = rated(Demand(request=without_constraints(request)), cards_of_node(node, cards), settings)
    is_known = MODEL_LABEL in given or any(each.ask.device for each in request.asks)
    return rating.rate_milli, rating.models if is_known else ""


def _real_name(resource: str, settings: BudgetSettings) -> str:
    """The name of which kube-state-metrics wrote this; "": of no device that is charged."""
    for name in (_CARD, SHARED, *settings.device_models):
        if resource == _sanitised(name):
            return name
    if instance := _INSTANCE.fullmatch(resource):
        return MIG + instance[1].replace("_", ".")
    for domain in DOMAINS:
        prefix = f"{_sanitised(domain)}_"
        rest = resource.removeprefix(prefix) if resource.startswith(prefix) else ""
        written = (f"{domain}/{rest.replace('_', each)}" for each in "_-." if rest)
        if found := next((each for each in written if accelerator_of(each)), ""):
            return found
    return ""


def _honoured(vector: str, *names: str, pods: bool = True) -> str:
    """A vector with the labels of what kube-state-metrics tells of, also where Prometheus does not honour
    them and has them with the prefix ``exported_``."""
    for name in (*(("namespace", "pod") if pods else ()), *names):
        vector = f'label_replace({vector}, "{name}", "$1", "exported_{name}", "(.+)")'
    return vector


def _label(name: str) -> str:
    return f"label_{_sanitised(name)}"


def _sanitised(name: str) -> str:
    return re.sub("[^a-zA-Z0-9_]", "_", name)
