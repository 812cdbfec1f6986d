"""What each name of `names` means in an object of Kubernetes; its reference page is made from this."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from timekeeper.core import names

Writer = Literal["user", "administrator", "webhook", "Binding", "extender", "timekeeper", "node agent"]


@dataclass(frozen=True, slots=True)
class ObjectName:
    """``kind``: what it is in the object, such as ``annotation``. ``by``: what writes it."""

    kind: str
    by: Writer
    meaning: str


_BY_CONTAINER = "annotation, a container's name follows"

OBJECT_NAMES: Mapping[str, ObjectName] = {
    names.GPU_PERCENT: ObjectName("resource", "user", "compute of one card, or whole cards"),
    names.GPU_MEMORY: ObjectName("resource", "user", "MiB of a card"),
    names.GPU_COUNT: ObjectName("resource", "user", "number of cards to which the two apply together"),
    names.POLICY: ObjectName("annotation", "user", "placement policy"),
    names.MODELS: ObjectName("annotation", "user", "only cards of these models"),
    names.EXCLUDE_MODELS: ObjectName("annotation", "user", "no cards of these models"),
    names.UUIDS: ObjectName("annotation", "user", "only these cards"),
    names.TOPOLOGY: ObjectName("annotation", "user", "how the cards are connected"),
    names.SAME_GPU: ObjectName("annotation", "user", "containers that share cards"),
    names.MIN_GPU_MEMORY: ObjectName("annotation", "user", "only cards with at least this memory"),
    names.BUDGETS_LABEL: ObjectName("label of a ConfigMap", "administrator", "it has budget entries"),
    names.CORDONED_CARDS: ObjectName(
        "annotation of a node", "administrator", "UUIDs of cards that must not be given out"
    ),
    names.GOVERNED: ObjectName("label", "webhook", "Bursar governs the pod"),
    names.REQUEST: ObjectName("annotation", "webhook", "its request in canonical form"),
    names.STANDING: ObjectName("annotation", "webhook", "the standing of its namespace at its creation"),
    names.HELD: ObjectName(
        "annotation",
        "webhook",
        "why it was created with the scheduling gate; it stays when the gate is removed",
    ),
    names.DECLARED: ObjectName("annotation", "webhook", "seconds that the pod means to run"),
    names.GPU_PLACEMENT: ObjectName(
        "resource",
        "webhook",
        "makes kube-scheduler call the extender for a request in annotations or labels",
    ),
    names.BUDGET_GATE: ObjectName(
        "scheduling gate", "webhook", "it waits for its budget or its turn; the timekeeper removes it"
    ),
    names.DEVICES: ObjectName("annotation", "Binding", "the cards of each container"),
    names.HOST: ObjectName(
        "annotation", "Binding", "what it requests of its node's CPU and memory, and what the node had then"
    ),
    names.VISIBLE: ObjectName(_BY_CONTAINER, "Binding", "the value of `NVIDIA_VISIBLE_DEVICES`"),
    names.MPS_MEMORY: ObjectName(_BY_CONTAINER, "Binding", "MPS's limit of memory"),
    names.MPS_THREADS: ObjectName(_BY_CONTAINER, "Binding", "MPS's limit of threads"),
    names.WAKE_CONDITION: ObjectName("condition", "extender", "kube-scheduler tries the pod again"),
    names.HELD_CONDITION: ObjectName("condition", "extender", "cards are held for the waiting pod"),
    names.LEADS_CONDITION: ObjectName(
        "condition of its own pod", "extender", "this replica takes over from others"
    ),
    names.EVICT_AFTER: ObjectName("annotation", "timekeeper", "the pod is not evicted before this time"),
    names.DELETE_AFTER: ObjectName(
        "annotation", "timekeeper", "its PodDisruptionBudget is respected until then"
    ),
    names.IDLE_UNTIL: ObjectName("annotation", "timekeeper", "it uses no card, and is left alone until then"),
    names.RECLAIMABLE: ObjectName(
        "annotation",
        "timekeeper",
        "`idle`: waiting pods of namespaces in budget may take its cards",
    ),
    names.INVENTORY: ObjectName("annotation", "node agent", "the cards and their health"),
    names.HOLDERS: ObjectName("annotation", "node agent", "which pods use them, and why the node is closed"),
}
