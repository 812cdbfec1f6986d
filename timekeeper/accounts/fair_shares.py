"""What accounts have used of late, beside their shares: who of those that wait goes next."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from timekeeper.accounts.budget_history import DEFAULTS, GROUP, History, is_group
from timekeeper.core.ledger.fair_share import Share, carried, decayed, ranks
from timekeeper.core.ledger.metering import FOREVER_MS, Interval

GRID_MS = 600_000  # ranks change at multiples of it, and with an entry


class Terms(NamedTuple):
    """Of an account."""

    weight_milli: int
    half_life_ms: int


@dataclass(frozen=True, slots=True)
class PostedUse:
    """What is left at a moment of what was posted for an account, in milli-GPU x milliseconds."""

    value: float
    at_ms: int
    half_life_ms: int

    def at(self, moment_ms: int) -> float:
        """The same at another moment."""
        return carried(self.value, self.at_ms, moment_ms, self.half_life_ms)

    def with_charge(self, rate: float, during: Interval, now_ms: int) -> "PostedUse":
        """With a charge of this rate, as of now. Moments do not go back."""
        at_ms = max(now_ms, self.at_ms)
        more = decayed(rate, during.start_ms, during.end_ms, at_ms, self.half_life_ms)
        return PostedUse(self.at(at_ms) + more, at_ms, self.half_life_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairStanding:
    """Where an account stands. ``rank``: 1 goes first, of ``of``; ``share_milli``, ``used_milli``: its part
    of the weights and of the use of its siblings; ``use``: in milli-GPU x milliseconds, with what is
    reserved."""

    rank: int
    of: int
    share_milli: int
    used_milli: int
    use: int
    weight_milli: int
    half_life_ms: int

    def text(self) -> str:
        """As a row has it."""
        return json.dumps(asdict(self), separators=(",", ":"))


def read_standing(text: str | None) -> FairStanding | None:
    """What `FairStanding.text` gives."""
    return None if text is None else FairStanding(**json.loads(text))


def terms_of(history: History, now_ms: int) -> dict[str, Terms]:
    """Of each account that has a share: namespaces with an entry, `DEFAULTS` for all others together, and the
    groups of these."""
    leaves = [key for key in history.current_keys() if not key.startswith("_")] + [DEFAULTS]
    groups = {GROUP + group for leaf in leaves if (group := _group(history, leaf, now_ms))}
    return {subject: Terms(*history.fair_share(subject, now_ms)) for subject in (*leaves, *groups)}


def _group(history: History, leaf: str, now_ms: int) -> str:
    return history.group("" if leaf == DEFAULTS else leaf, now_ms)


def parts_of(history: History, namespace: str) -> tuple[tuple[str, Interval], ...]:
    """Whose use charges of the namespace are, and of which time: its own, while it was in a group the
    group's, and while it had no entry that of `DEFAULTS`."""
    groups = ((GROUP + group, during) for during, group in history.memberships(namespace))
    rest = ((DEFAULTS, during) for during in history.without_entry(namespace))
    return ((namespace, Interval(0, FOREVER_MS)), *groups, *rest)


def standings_of(
    history: History, terms: Mapping[str, Terms], uses: Mapping[str, float], now_ms: int
) -> dict[str, FairStanding]:
    """Of each account; a group's rank is among its siblings."""
    shares = {subject: Share(of.weight_milli, uses[subject]) for subject, of in terms.items()}
    groups = {subject: share for subject, share in shares.items() if is_group(subject)}
    leaves = {subject: share for subject, share in shares.items() if not is_group(subject)}
    group_of = {leaf: GROUP + group for leaf in leaves if (group := _group(history, leaf, now_ms))}
    found = ranks(leaves, groups, group_of)
    if groups:
        beside = {leaf: share for leaf, share in leaves.items() if leaf not in group_of}
        top = ranks({**beside, **groups}, {}, {})
        found |= {group: top[group] for group in groups}
    return {
        subject: FairStanding(
            rank=rank.rank,
            of=rank.of,
            share_milli=round(1000 * rank.share),
            used_milli=round(1000 * rank.used),
            use=max(0, round(uses[subject])),
            **terms[subject]._asdict(),
        )
        for subject, rank in found.items()
    }


def accounts_of(
    history: History, terms: Mapping[str, Terms], namespaces: Iterable[str], now_ms: int
) -> dict[str, tuple[str, ...]]:
    """As `FairOrder` has it."""
    found: dict[str, tuple[str, ...]] = {}
    for namespace in namespaces:
        leaf = namespace if namespace in terms else DEFAULTS
        group = _group(history, leaf, now_ms)
        found[namespace] = (GROUP + group, leaf) if group else (leaf,)
    return found
