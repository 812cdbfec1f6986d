"""An independent oracle of when one pod holds its cards: from the story of its objects, to "held" or not.

It imports nothing of the product. It keeps the whole story, and decides anew each time.
"""

import itertools
from dataclasses import dataclass, field

MAX_S = 600


@dataclass
class Story:
    """What the extender has received, in order. Times in seconds."""

    spec_grace_s: int = 30
    deletions_s: list[int] = field(
        default_factory=list
    )  # grace periods of the requested deletions that it saw
    phase: str = "Running"
    running: dict[str, bool] = field(default_factory=dict)  # container -> whether it runs
    gone_s: int | None = None  # when the removal was seen
    in_gap: bool = False  # found missing in a list
    looks: list[str] = field(default_factory=list)  # since the removal: listed, absent, looking, none, dark
    boot: int = 1  # of the node, as its Node object says
    ended_in: int = 0  # the boot in which its phase became terminal while it ran; 0: it is not so
    is_listed_now: bool = False  # by the last report, while the object is there
    was_left: bool = False  # its object was removed when it held nothing any more

    def changes(self) -> None:
        """The pod's object has changed."""
        runs_on = self.phase in ("Succeeded", "Failed") and any(self.running.values())
        self.ended_in = (self.ended_in or self.boot) if runs_on else 0

    def is_left_behind(self) -> bool:
        """Its phase is terminal, and the machine that ran it has booted since."""
        return self.was_left or (0 < self.ended_in < self.boot and not self.is_listed_now)

    def is_held(self, now_s: int) -> bool:
        """Whether the cards may not be given away now."""
        if self.phase in ("Succeeded", "Failed") and not any(self.running.values()):
            return False
        if self.is_left_behind():
            return False
        if self.gone_s is None:
            return True
        if self.has_left():
            return False
        if self.looks and self.looks[-1] == "dark":
            return True
        return self.is_listed() or now_s < self.gone_s + self.grace_s()

    def grace_s(self) -> int:
        """How long the kubelet may run it."""
        if self.in_gap:
            return MAX_S
        return min(MAX_S, max([self.spec_grace_s, *self.deletions_s]))

    def has_left(self) -> bool:
        """A complete report did not list it, after one that did, and no silence between them."""
        told = [look for look in self.looks if look != "looking"]
        return ("listed", "absent") in itertools.pairwise(told)

    def is_listed(self) -> bool:
        """By the last report that says anything."""
        for look in reversed(self.looks):
            if look in ("listed", "absent", "none", "dark"):
                return look == "listed"
        return False
