"""What the binder exchanges with its callers and with leadership, as values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scheduler_ext.binding.manifest import Written
from scheduler_ext.model.pod import Pod


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """kube-scheduler's ExtenderBindingArgs: the pod and the node to bind it to."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class ReadPod:
    """A pod as the watch or a read shows it. ``pod`` is None if it asks for no GPU."""

    uid: str
    version: str
    node: str
    pod: Pod | None


@dataclass(frozen=True, slots=True)
class Sending:
    """A Binding in flight: its term of leadership, and its deadline in monotonic seconds."""

    args: BindingArgs
    written: Written
    term: int
    until: float


class Turn(Protocol):
    """Leadership as the binder needs it; binding and leadership do not import each other.

    ``elected``: other replicas exist. ``term``: the number of this replica's term, 0 while it follows.
    """

    elected: bool

    @property
    def term(self) -> int:
        """The number of this term of leadership; 0: this replica does not lead."""

    def opens(self, until_s: Callable[[], float]) -> int:
        """The term; waits for one at most ``until_s()`` seconds."""

    def excludes(self, uid: str) -> bool:
        """True for a pod that this replica must not bind in this term."""
