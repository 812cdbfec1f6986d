"""Which changes of budget entries make admission enforce, or stop it from enforcing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from timekeeper.accounts.budget_history import SETTINGS, BudgetEntry, History, entry_value
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import BudgetSettings

_EFFECT = {
    "enforce": "pods that break a rule are refused, and new pods over budget are demoted",
    "observe": "no pod is refused or demoted any more",
}


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The mode of the cluster (key ``_settings``) or of one entry differs from the one in force before."""

    key: str
    before: str
    now: str

    def sentence(self) -> str:
        """The change and its effect, for the log."""
        return f"{self.key}: the mode changes from {self.before} to {self.now}: {_EFFECT[self.now]}"


def mode_changes(entries: Sequence[BudgetEntry], history: History) -> Iterator[ModeChange]:
    """The changes of mode that ``entries``, new, changed and ended, make to the newest entries of the
    history. An entry without a mode has the cluster's, and is named only where its own mode changes."""
    texts = {each.key: each.text for each in entries}
    cluster_before = _mode(SETTINGS, history.text(SETTINGS)) or BudgetSettings().mode
    cluster_now = (
        (_mode(SETTINGS, texts[SETTINGS]) or BudgetSettings().mode) if SETTINGS in texts else cluster_before
    )
    if cluster_before != cluster_now:
        yield ModeChange(SETTINGS, cluster_before, cluster_now)
    for key in sorted(texts.keys() - {SETTINGS}):
        own_before, own_now = _mode(key, history.text(key)), _mode(key, texts[key])
        before, now = own_before or cluster_before, own_now or cluster_now
        if own_before != own_now and before != now:
            yield ModeChange(key, before, now)


def _mode(key: str, text: str | None) -> str:
    """The mode that an entry names; "" where it names none, or is no valid entry."""
    value = None if text is None else entry_value(key, text)
    return "" if value is None or isinstance(value, EntryError) else value.mode
