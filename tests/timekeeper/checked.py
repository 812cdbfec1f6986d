"""What must be true of a ledger after every step, and at its end."""

from tests.timekeeper.listed import write_accounts
from tests.timekeeper.lives import TEAMS, Life
from tests.timekeeper.worlds import DAY, SECOND, Json

AHEAD = 100  # changes of one moment take effect one after another, so the ledger is milliseconds ahead
BY_EVENTS = ("posted", "granted", "standing")


class Checked(Life):
    """A history whose ledger can be compared with the oracle and the truth."""

    def look(self) -> None:
        """Each pod's charge and each namespace's account equal the oracle's."""
        if self.away or not hasattr(self, "town"):
            return
        self.failed = True
        now = max(self.town.clock(), self.books.newest)
        rows = self._told(f"/v1/usage?group=pod&from=0&to={now + DAY}")["rows"]
        charged = {row["uid"]: row["amount"] for row in rows if row["amount"]}
        owed = {
            uid: self.written.owed(uid, now, self.beats) for uid in self.written.pods if uid not in self.odd
        }
        known = {uid: amount for uid, amount in charged.items() if _pod(uid) not in self.odd}
        assert known == {uid: amount for uid, amount in owed.items() if amount}, self.written
        self._odd_are_between_nothing_and_their_cards(charged)
        self._nothing_beyond_the_truth(charged)
        self.looked += 1  # an account costs as much time as all the rest: each comes at every fourth look
        if self.looked % 2 == 0:
            self._account_is_right(TEAMS[self.looked // 2 % 2], now)
        self.failed = False

    def _odd_are_between_nothing_and_their_cards(self, charged: dict[str, int]) -> None:
        """What a clock or a restored etcd says that is not so changes no other charge, and that of its own
        pods to no more than they could have held. Of one whose end a watch received, by 12 s at most."""
        now = max(self.now, self.books.newest - self.wrong)
        for pod in self.pods:
            known = self.written.pods.get(pod.uid)
            if pod.uid not in self.odd or known is None or known.terms is None:
                continue
            amount = sum(each for uid, each in charged.items() if _pod(uid) == pod.uid)
            until = now + max(pod.slack, self.wrong) + AHEAD
            assert 0 <= amount <= known.rate * max(0, until - pod.bound), pod
            if pod.uid in self.ends_are_right:
                truly = known.rate * max(0, pod.finished() - pod.bound)
                assert abs(amount - truly) <= known.rate * 12 * SECOND, pod

    def _told(self, path: str) -> Json:
        """The answer. Retried up to three times: on a stalled machine PostgreSQL may close a connection
        during a query."""
        answer = self.town.get(path)
        for _ in range(2):
            if answer.status_code != 503 or self.away:
                break
            answer = self.town.get(path)
        assert self.away or answer.status_code != 503, answer.get_data(as_text=True)
        told: Json = answer.get_json()
        return told

    def _account_is_right(self, team: str, now: int) -> None:
        written = self._told(f"/v1/budgets/{team}") if self.is_fresh else None  # as the settler's tick did
        write_accounts(self.town.store, self.town.clock())
        told = self._told(f"/v1/budgets/{team}")
        since, until = self.books.account(team, now)
        assert (told["period"]["from"], told["period"]["to"] or 253_402_300_799_000) == (since, until)
        mine = [
            uid for uid, pod in self.written.pods.items() if pod.namespace == team and uid not in self.odd
        ]
        owed = sum(self.written.owed(uid, now, self.beats, since, until) for uid in mine)
        if self.odd:
            span = f"from={since}&to={min(until, now + DAY)}"
            rows = self._told(f"/v1/usage?group=pod&namespace={team}&{span}")["rows"]
            owed += sum(row["amount"] for row in rows if _pod(row["uid"]) in self.odd)
        assert told["posted"] + told["pending"] == owed
        granted = self.books.in_force(team, now).amount
        assert told["granted"] == granted
        if written is not None:
            document = self._told("/v1/standings")
            standing = document["namespaces"].get(team, document["default"])["standing"]
            assert standing == written["standing"]
            assert [written[name] for name in BY_EVENTS] == [told[name] for name in BY_EVENTS]
        if granted is not None:
            assert told["remaining"] == granted - owed - told["reserved"]

    def _nothing_beyond_the_truth(self, charged: dict[str, int]) -> None:
        """No pod is charged beyond its true hold of the cards, except for clock errors, and the grace period
        and the listing of vanished pods. Entries of one moment take effect one after another, so the ledger
        may be milliseconds ahead."""
        now = max(self.now, self.books.newest - self.wrong)
        for pod in self.pods:
            known = self.written.pods.get(pod.uid)
            if known is None or known.terms is None or pod.uid in self.odd:
                continue
            end = now if pod.gone is None else max(pod.gone + 600_000, known.last or 0)
            if pod.end is not None:  # without proof, through the first report of it
                end = pod.end if known.end else now
            assert charged.get(pod.uid, 0) <= known.rate * max(0, end + pod.slack - pod.bound)
            if known.end and pod.first and known.start == pod.first:
                # through the last back-off nothing but the phase tells that it holds its cards
                assert charged.get(pod.uid, 0) == known.rate * max(0, pod.finished() - pod.bound)

    def settles(self) -> None:
        """At the end nothing is pending: existing pods are proven, the others have been silent for long
        enough."""
        self.away = self.fuse.away = False
        self.fuse.out()
        self.late = 0
        self.lists()
        for pod in self.living():
            if pod.end is None:
                pod.ends(max(self.now, pod.changed()))
            self.tell(pod)
        for _ in range(2):  # the first tick after a start counts what the agents list until that moment
            self.town.clock.turn(3 * DAY)
            self.tick()
        for _ in 2 * TEAMS:
            self.look()
        self.town.clock.turn(11 * SECOND)
        self.tick()
        assert [self._told(f"/v1/budgets/{team}")["pending"] for team in TEAMS] == [0, 0]
        self._sums_are_sums()

    def _sums_are_sums(self) -> None:
        """Postings are consistent, each is within one day and one account, and the daily rows are their
        sums."""
        with self.town.store.reading() as connection:
            postings = connection.exec_driver_sql(
                "SELECT session_uid, namespace, from_ms, to_ms, rate_milli, amount FROM postings"
            ).all()
            days = {
                (namespace, day): int(amount)
                for namespace, day, amount in connection.exec_driver_sql(
                    "SELECT namespace, day_ms, amount FROM days"
                )
            }
        by_pod: dict[str, int] = {}
        by_day: dict[tuple[str, int], int] = {}
        for uid, namespace, since, until, rate, amount in postings:
            assert amount == rate * (until - since)
            assert since // DAY == (until - 1) // DAY
            pod = _pod(uid)
            by_pod[pod] = by_pod.get(pod, 0) + amount
            key = namespace, since - since % DAY
            by_day[key] = by_day.get(key, 0) + amount
        now = self.town.clock()
        known = self.written.pods.keys() - self.odd
        assert {uid: amount for uid, amount in by_pod.items() if uid not in self.odd} == {
            **dict.fromkeys(by_pod.keys() - self.odd, 0),
            **{uid: owed for uid in known if (owed := self.written.owed(uid, now, self.beats))},
        }
        assert {key: n for key, n in days.items() if n} == {key: n for key, n in by_day.items() if n}


def _pod(session_uid: str) -> str:
    return session_uid.partition(":")[0]
