"""How busy the cards of metered pods are, by the series of NVIDIA's dcgm-exporter in a Prometheus.

Pure. A card's figure stands for its pod alone only where no other pod is on the card, or where it is 0. What
Prometheus says is checked against what the ledger knows; what does not fit is left out and counted. Source:
dcgm-exporter, `pkg/exporter` and its default counters. Where Prometheus does not honour an exporter's labels,
those of the pod on the card have the prefix ``exported_``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.card_use.figures import CardSample
from timekeeper.accounts.card_use.overuse import FRESH_MS
from timekeeper.accounts.card_use.prometheus_answers import Series

_LABELS = "UUID, GPU_I_ID, Hostname, namespace, pod, exported_namespace, exported_pod, job, instance"
QUERY = f"max by ({_LABELS}) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[2m]))"
_MOST = 100  # per cent
_DISAGREE = 10  # points between two exporters' figures of a card

Pod = tuple[str, str]  # namespace and name
CardOfPod = tuple[str, Pod]


@dataclass(frozen=True, slots=True)
class PodOnNode:
    """A pod that holds cards. ``cards``: on how many it can be; ``is_metered``: its use is read here;
    ``by_claims``: the use of its claims' cards is."""

    uid: str
    node: str
    cards: int
    is_metered: bool
    by_claims: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredPods:
    """``pods``: UID -> figures of its cards; ``findings``: sentences about what was left out, without names
    of pods; ``cards``: figures of cards that pods have by claims."""

    pods: tuple[tuple[str, tuple[CardSample, ...]], ...]
    findings: tuple[str, ...]
    cards: tuple[CardSample, ...] = ()


@dataclass(slots=True)
class _Left:
    """Numbers of series that were left out."""

    values: int = 0
    old: int = 0
    elsewhere: int = 0
    unknown: int = 0
    crowded: int = 0  # of pods
    cards: set[CardOfPod] = field(default_factory=set)  # of which two exporters disagree

    def findings(self, unmeasured: int) -> Iterator[str]:
        if self.values:
            yield f"{_series(self.values)} of cards no percentage"
        if self.old:
            yield f"{_series(self.old)} of use more than {FRESH_MS // 1000} s old, or of the future"
        if self.elsewhere:
            yield f"{_series(self.elsewhere)} of a pod on another node than the pod's"
        if self.unknown:
            yield f"{_series(self.unknown)} of a pod that holds no card by the ledger"
        if self.crowded:
            pods = "1 pod has" if self.crowded == 1 else f"{self.crowded} pods have"
            yield f"{pods} more cards by the exporter than by the ledger"
        if self.cards:
            yield f"exporters disagree about {len(self.cards)} cards: the higher figure counts"
        if unmeasured:
            pods = "1 metered pod is" if unmeasured == 1 else f"{unmeasured} metered pods are"
            yield f"{pods} not measured by any series"


def measured_pods(series: Iterable[Series], holders: Mapping[Pod, PodOnNode], now_ms: int) -> MeasuredPods:
    """The figures in an answer to `QUERY`. ``holders``: the pods that hold cards of NVIDIA's."""
    left = _Left()
    found: dict[CardOfPod, int] = {}
    strangers = 0
    knows_pods = False  # whether the label ``pod`` names pods on cards, not the exporter's own
    for each in series:
        pod, is_exported = _pod(each.labels)
        holder = holders.get(pod)
        if not pod[1]:
            continue
        if holder is None:
            left.unknown += is_exported
            strangers += not is_exported
            continue
        knows_pods = knows_pods or not is_exported
        is_there = _is_on(each.labels.get("Hostname", ""), holder.node, left)
        value = _value(each, now_ms, left) if is_there else None
        if value is None:
            continue
        card = f"{each.labels.get('UUID', '')}/{each.labels.get('GPU_I_ID', '')}".rstrip("/")
        known = found.get((card, pod))
        if known is not None and abs(known - value) > _DISAGREE:
            left.cards.add((card, pod))
        found[card, pod] = max(value, known or 0)
    left.unknown += strangers if knows_pods else 0
    most = {each.uid: each.cards for each in holders.values() if each.is_metered}
    shown = _by_pod(found, holders)
    pods = tuple((uid, cards) for uid, cards in shown.items() if len(cards) <= most[uid])
    left.crowded = len(shown) - len(pods)
    claimed: dict[str, int] = {}
    for (card, pod), value in found.items():
        if holders[pod].by_claims:  # of the pods that share a claim the busiest counts
            claimed[card] = max(value, claimed.get(card, 0))
    cards = tuple(CardSample(card, value, None, exclusive=True) for card, value in sorted(claimed.items()))
    return MeasuredPods(pods, tuple(left.findings(len(most) - len(shown))), cards)


def _by_pod(
    found: Mapping[CardOfPod, int], holders: Mapping[Pod, PodOnNode]
) -> dict[str, tuple[CardSample, ...]]:
    sharing: dict[str, int] = defaultdict(int)
    for card, _ in found:
        sharing[card] += 1
    pods: dict[str, tuple[CardSample, ...]] = {}
    for (card, pod), value in sorted(found.items()):
        holder = holders[pod]
        if holder.is_metered:
            sample = CardSample(card, value, None, exclusive=sharing[card] == 1 or value == 0)
            pods[holder.uid] = (*pods.get(holder.uid, ()), sample)
    return pods


def _pod(labels: Mapping[str, str]) -> tuple[Pod, bool]:
    """The pod on the card, and whether the labels say that it is not the exporter's own."""
    if exported := labels.get("exported_pod", ""):
        return (labels.get("exported_namespace", labels.get("namespace", "")), exported), True
    return (labels.get("namespace", ""), labels.get("pod", "")), False


def _is_on(host: str, node: str, left: _Left) -> bool:
    """Whether the exporter is on the pod's node, by the host's name, with or without its domain."""
    is_there = not host or host.partition(".")[0] == node.partition(".")[0]
    left.elsewhere += not is_there
    return is_there


def _value(series: Series, now_ms: int, left: _Left) -> int | None:
    if abs(now_ms - series.at_ms) > FRESH_MS:
        left.old += 1
        return None
    if series.value is None or series.value > _MOST:
        left.values += 1
        return None
    return -int(-series.value // 1)  # a little use is use


def _series(number: int) -> str:
    return "1 series is" if number == 1 else f"{number} series are"
