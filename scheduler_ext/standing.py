"""What the timekeeper last said of each namespace, as the extender needs it: who goes first, and who may be
asked to leave."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Word = Literal["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A namespace's standing now. ``on_exhausted``: what its budget says of an exhausted one; ``policy``: the
    placement policy that its budget names, or ""."""

    word: Word
    on_exhausted: str = "deprioritize"
    policy: str = ""

    @property
    def over(self) -> bool:
        """True where its pods stand behind those of others."""
        return self.word == "OVER_BUDGET"


UNKNOWN = Standing("UNKNOWN")


@dataclass(frozen=True, slots=True)
class Standings:
    """One answer of the timekeeper's. ``default``: for a namespace that is not listed. The empty one, before
    the first answer, knows nothing of anybody."""

    listed: Mapping[str, Standing] = field(default_factory=dict)
    default: Standing = UNKNOWN

    def of(self, namespace: str) -> Standing:
        """How the namespace stands."""
        return self.listed.get(namespace, self.default)


UNHEARD = Standings()
