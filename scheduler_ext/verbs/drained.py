"""What filter says of cards that are kept empty for a gang. Pure."""

from collections.abc import Container, Mapping
from heapq import nsmallest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal, drained
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.drains import Drain, may_pass, without_drain
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.fit_cache import FilterResult
from timekeeper.core.object_names import timestamp
from timekeeper.core.values import GPURequest

LOOKS = 16  # nodes of the drain that are looked at for one call, those with the fewest pods first


def beside_drained(
    found: FilterResult, pod: Pod, request: GPURequest, policy: Policy, snapshot: Snapshot, now_ms: int
) -> FilterResult:
    """The result for a pod that fits on no other node. If it declares to end before the drain's expected
    start, it is offered a node where it would fit without the drain; else the drain's nodes say why not."""
    drain = snapshot.drain
    there = [name for name, _ in drain.cards if name in found.refused or name in found.short] if drain else []
    emptiest = nsmallest(LOOKS, there, lambda name: (len(snapshot.node(name).allocations), name))
    fits = next((name for name in emptiest if _fits_without(pod, request, policy, snapshot, name)), None)
    if drain is None or fits is None:
        return found
    if may_pass(pod, drain.starts_ms, now_ms):
        return FilterResult([fits], _but(found.short, {fits}), _but(found.refused, {fits}))
    why = dict.fromkeys(there, kept(drain, pod.namespace))
    return FilterResult([], _but(found.short, why), {**found.refused, **why})


def _but(whys: Mapping[str, Refusal], names: Container[str]) -> dict[str, Refusal]:
    return {name: why for name, why in whys.items() if name not in names}


def _fits_without(pod: Pod, request: GPURequest, policy: Policy, snapshot: Snapshot, name: str) -> bool:
    return not isinstance(fit(request, without_drain(snapshot.node(name)), policy), Refusal)


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
