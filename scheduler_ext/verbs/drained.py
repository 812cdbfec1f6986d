"""What filter says of cards that are kept empty for a gang."""

from collections.abc import Collection, Iterable
from heapq import nsmallest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal, drained
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.drains import Drain, may_pass, without_drain
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.fit_cache import FilterResult, FitKey
from timekeeper.core.object_names import timestamp
from timekeeper.core.values import GPURequest

LOOKS = 16  # nodes of the drain that are looked at for one call, those with the fewest pods first
MAX_KEYS = 128


class DrainedFits:
    """Whether pods would fit on nodes of the drain without it: remembered for each kind of request as long as
    the node stays the same, for a pod that fits nowhere is tried again and again."""

    def __init__(self) -> None:
        self._known: dict[FitKey, dict[str, tuple[NodeInfo, bool]]] = {}

    def first(self, names: Iterable[str], key: FitKey, request: GPURequest, snapshot: Snapshot) -> str | None:
        """The first of these nodes that it would fit on."""
        known = self._of(key)
        for name in names:
            node = snapshot.node(name)
            last = known.get(name)
            if last is None or last[0] is not node:
                fits = not isinstance(fit(request, without_drain(node), key.policy), Refusal)
                known[name] = last = node, fits
            if last[1]:
                return name
        return None

    def _of(self, key: FitKey) -> dict[str, tuple[NodeInfo, bool]]:
        if key not in self._known and len(self._known) >= MAX_KEYS:
            self._known = {}
        return self._known.setdefault(key, {})


def beside_drained(
    found: FilterResult, pod: Pod, key: FitKey, snapshot: Snapshot, now_ms: int, looks: DrainedFits
) -> FilterResult:
    """The result for a pod that fits on no other node. If it declares to end before the drain's expected
    start, it is offered a node where it would fit without the drain; else the drain's nodes say why not."""
    drain = snapshot.drain
    if drain is None or key.request is None:
        return found
    there = [name for name, _ in drain.cards if name in found.refused or name in found.short]
    emptiest = nsmallest(LOOKS, there, lambda name: (len(snapshot.node(name).allocations), name))
    fits = looks.first(emptiest, key, key.request, snapshot)
    if fits is None:
        return found
    if may_pass(pod, drain.starts_ms, now_ms):
        return FilterResult([fits], _but(found.short, {fits}), _but(found.refused, {fits}))
    whys = dict.fromkeys(there, kept(drain, pod.namespace))
    return FilterResult([], _but(found.short, there), {**found.refused, **whys})


def _but(whys: dict[str, Refusal], names: Collection[str]) -> dict[str, Refusal]:
    """Without these names; the same object if it has none of them."""
    if not any(name in whys for name in names):
        return whys
    return {name: why for name, why in whys.items() if name not in names}


def kept(drain: Drain, namespace: str) -> Refusal:
    """Why a pod of this namespace does not get the cards of the drain. The same as long as the drain
    lasts."""
    passes = (
        f"a pod that declares to end before {timestamp(drain.starts_ms)} may use it"
        if drain.starts_ms
        else "it is not known when the gang starts"
    )
    return drained(whose(drain, namespace), drain.text, passes)


def whose(drain: Drain, namespace: str) -> str:
    """For which gang the cards are kept, as pods of this namespace may read it: the names of another
    namespace's gangs are not for them."""
    own = namespace == drain.namespace
    return f"gang {drain.namespace}/{drain.name}" if own else "another namespace's gang"
