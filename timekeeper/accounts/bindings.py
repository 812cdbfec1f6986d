"""Bindings as the extender reports them: the only witness of a pod that vanished while no settler ran."""

import json
from dataclasses import dataclass

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.request.cards import decode_amounts
from timekeeper.core.request.host import HostShare, decode_host, encode_host
from timekeeper.core.values import Ask, ContainerAsk, GPURequest
from timekeeper.core.wire import binding_asks


@dataclass(frozen=True, slots=True)
class ReportedBinding:
    """A pod that the extender bound. Times in milliseconds."""

    uid: str
    namespace: str
    name: str
    node: str
    bound_ms: int
    request: GPURequest  # what it asks for; constraints on cards have been applied and are left out
    devices: str  # text of the placement annotation
    grace_ms: int
    host: HostShare | None = None  # what it requests of its node, if the ledger charges that


def pod_of(binding: ReportedBinding) -> LedgerPod:
    """The pod as it was when it was bound. Its owner, labels and standing are not known; so it reserves
    nothing."""
    return LedgerPod(
        binding.uid,
        binding.namespace,
        binding.name,
        owner="",
        node=binding.node,
        created_ms=binding.bound_ms,
        request=binding.request,
        standing="",
        devices=binding.devices,
        started_ms=None,
        hold=PodHold(binding.bound_ms, grace_ms=binding.grace_ms),
        others_ended=False,
        fixed_host=binding.host,
    )


def encode_request(request: GPURequest, host: HostShare | None = None) -> str:
    """Dialect and asks as JSON, for the database, and what the pod requests of its node."""
    wire: dict[str, object] = {"dialect": request.dialect, "asks": binding_asks(request)}
    if host is not None:
        wire["host"] = encode_host(host)
    return json.dumps(wire, separators=(",", ":"), sort_keys=True)


def decode_request(text: str) -> GPURequest:
    """The inverse of `encode_request`."""
    raw = json.loads(text)
    return GPURequest(
        raw["dialect"],
        tuple(
            ContainerAsk(
                each["container"],
                each["init"],
                Ask(
                    each["devices"],
                    each["share_milli"],
                    each["memory_mib"],
                    decode_amounts(each.get("resources", {})),
                    each.get("memory_milli", 0),
                ),
            )
            for each in raw["asks"]
        ),
    )


def decode_requested_host(text: str) -> HostShare | None:
    """What the pod requests of its node, from the text of `encode_request`; None if that does not say it."""
    host = json.loads(text).get("host")
    return None if host is None else decode_host(host)
