"""What filter says of cards that are kept empty for a gang. Pure."""

from dataclasses import replace

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.drains import Drain, may_pass, without_drain
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.fit_cache import FilterResult
from timekeeper.core.object_names import timestamp
from timekeeper.core.values import GPURequest


def beside_drained(
    found: FilterResult, pod: Pod, request: GPURequest, policy: Policy, snapshot: Snapshot, now_ms: int
) -> FilterResult:
    """The result for a pod that fits on no other node. The nodes where it would fit without the drain are
    offered to it if it declares to end before the drain's expected start; else they say why not."""
    drain = snapshot.drain
    nodes = [node for node, _ in drain.cards] if drain is not None else []
    there = [node for node in nodes if node in found.refused or node in found.short]
    fits = [name for name in there if _fits_without(pod, request, policy, snapshot, name)]
    if drain is None or not fits:
        return found
    if may_pass(pod, drain.starts_ms, now_ms):
        return replace(
            found,
            fits=fits,
            short={name: why for name, why in found.short.items() if name not in fits},
            refused={name: why for name, why in found.refused.items() if name not in fits},
        )
    why = dict.fromkeys(fits, kept(drain, pod.namespace))
    short = {name: each for name, each in found.short.items() if name not in why}
    return replace(found, short=short, refused={**found.refused, **why})


def _fits_without(pod: Pod, request: GPURequest, policy: Policy, snapshot: Snapshot, name: str) -> bool:
    return not isinstance(fit(request, without_drain(snapshot.node(name)), policy), Refusal)


def kept(drain: Drain, namespace: str) -> Refusal:
    """Why a pod of this namespace does not get the cards of the drain. The same as long as the drain lasts.
    What another namespace's gang is called is not for it."""
    whose = (
        f"gang {drain.namespace}/{drain.name}" if namespace == drain.namespace else "another namespace's gang"
    )
    passes = (
        f"a pod that declares to end before {timestamp(drain.starts_ms)} may use it"
        if drain.starts_ms
        else "it is not known when the gang starts"
    )
    return Refusal(f"kept for {whose} {drain.text}; {passes}", "drained")
