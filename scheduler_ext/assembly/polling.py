"""What the extender polls: the namespaces' standings, and how busy the cards are."""

from collections.abc import Callable

from scheduler_ext.background import Work
from scheduler_ext.clients.card_load_poller import CardsByNode, Measuring, source_of
from scheduler_ext.clients.timekeeper import Poller
from scheduler_ext.log import Log
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.scoring.load import LoadByCard
from scheduler_ext.settings import ExtenderSettings
from timekeeper.edge.clock import monotonic_ms
from timekeeper.runtime.api_server import Api

Polled = Callable[[str], None]


class Polling:
    """``standings_polled`` and ``loads_polled`` are called after each poll, as `TimekeeperPoller` does."""

    def __init__(
        self,
        settings: ExtenderSettings,
        api: Api,
        cards: CardsByNode,
        standings_polled: Polled,
        loads_polled: Polled,
        log: Log,
    ) -> None:
        wanted, source = settings.timekeeper, source_of(settings, api)
        self._standings = Poller(wanted, monotonic_ms, log, standings_polled) if wanted.url else None
        self.card_loads: Measuring | None = None
        if source is not None:
            always = settings.policy == "load"
            self.card_loads = Measuring(
                *source, cards, settings.scale, monotonic_ms, log, loads_polled, always
            )

    def work(self) -> dict[str, Work]:
        """The threads, by name."""
        work: dict[str, Work] = {}
        if self._standings is not None:
            work["standings"] = self._standings.run
        if self.card_loads is not None:
            work["usage"] = self.card_loads.run
        return work

    def standings(self) -> NamespaceStandings:
        """The timekeeper's last standings; all UNKNOWN without a timekeeper."""
        return UNHEARD if self._standings is None else self._standings.standings()

    def knows_standings(self) -> bool:
        """True once the timekeeper was polled, also without an answer; or without a timekeeper."""
        return self._standings is None or self._standings.was_polled

    def loads(self) -> LoadByCard | None:
        """The last figures of the cards' use; None where there are none."""
        return None if self.card_loads is None else self.card_loads.figures()
