"""What the timekeeper last said of each namespace, as the extender needs it: who goes first, and who may be
asked to leave."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Word = Literal["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"]


@dataclass(frozen=True, slots=True)
class NamespaceStanding:
    """A namespace's standing now. ``on_exhausted``: what its budget says of an exhausted one; ``policy``: the
    placement policy that its budget names, or "". ``watched``: where a budget is only watched (mode
    observe), the standing that ``word`` would be."""

    word: Word
    on_exhausted: str = "deprioritize"
    policy: str = ""
    watched: Word | None = None

    @property
    def over(self) -> bool:
        """True where its pods stand behind those of others."""
        return self.word == "OVER_BUDGET"


UNKNOWN = NamespaceStanding("UNKNOWN")


@dataclass(frozen=True, slots=True)
class NamespaceStandings:
    """One answer of the timekeeper's. ``default``: for a namespace that is not listed; ``pdb_grace_ms``: how
    long PodDisruptionBudgets of debtors are honoured, None where it was not said. The empty one, before the
    first answer, knows nothing of anybody."""

    listed: Mapping[str, NamespaceStanding] = field(default_factory=dict)
    default: NamespaceStanding = UNKNOWN
    pdb_grace_ms: int | None = None

    def of(self, namespace: str) -> NamespaceStanding:
        """How the namespace stands."""
        return self.listed.get(namespace, self.default)

    @property
    def watches(self) -> bool:
        """True where there are budgets that are only watched."""
        return any(each.watched is not None for each in (self.default, *self.listed.values()))


UNHEARD = NamespaceStandings()


def as_if_enforced(standings: NamespaceStandings) -> NamespaceStandings:
    """What they would be were no budget only watched; itself where none is."""
    if not standings.watches:
        return standings

    def enforced(standing: NamespaceStanding) -> NamespaceStanding:
        return standing if standing.watched is None else replace(standing, word=standing.watched)

    listed = {namespace: enforced(each) for namespace, each in standings.listed.items()}
    return replace(standings, listed=listed, default=enforced(standings.default))
