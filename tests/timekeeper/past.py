"""A ledger with a history: pods that ended, were corrected, left, or still run; grants and figures."""

from sqlalchemy import insert

from tests.timekeeper.rows import SESSION
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store.engine.schema import FIGURES, GRANTS, POSTINGS, SESSIONS
from timekeeper.store.engine.upgrade import snapshot

MIDNIGHT = T0 - T0 % DAY  # of the first day
LABELS = {"app": '=cmd("x")', "team.example/cost": "a,b;c", "release": "pr\u00fcfung-\U0001f40d"}


def live(town: Town) -> None:
    """Five days of two teams, from T0 on."""
    month, day = "gpuHours: 100\nperiod: month", "gpuHours: 30\nperiod: day"
    town.begin(("nodes", node(cards=8)), ("configmaps", budgets(team_a=month, team_b=day)))
    running = _pod("running", "team-b", started_ms=T0, card=1)
    town.hear("pods", running)
    town.hear("pods", _pod("long", "team-a", started_ms=T0 + MINUTE))
    town.hear("pods", _pod("corrected", "team-a", started_ms=T0 + 7, percent=50, card=2))
    town.hear(
        "pods", _pod("left", "team-b", bound_ms=T0 + 10 * MINUTE, started_ms=T0 + HOUR, percent=33, card=3)
    )
    town.tick()
    beaten = _pod("corrected", "team-a")
    town.clock.turn(3 * HOUR)
    assert town.beat(beaten, 1).status_code == 200
    nothing = _pod("nothing", "team-b", card=4, bound_ms=town.clock(), phase="Failed")
    town.change("pods", nothing)
    town.change("pods", nothing, deleted=True)
    town.clock.turn(2 * HOUR)
    town.tick()  # nobody has heard of it since: posted on its last evidence
    ended = _pod("corrected", "team-a", started_ms=T0 + 7, ended_ms=T0 + 2 * HOUR, percent=50, card=2)
    town.hear("pods", ended)
    town.advance()
    town.change(
        "pods",
        _pod("left", "team-b", bound_ms=T0 + 10 * MINUTE, started_ms=T0 + HOUR, percent=33, card=3),
        deleted=True,
    )
    town.advance(5 * MINUTE, heard=False)
    town.clock.turn(T0 + 4 * DAY - town.clock())
    town.hear("pods", _pod("long", "team-a", started_ms=T0 + MINUTE, ended_ms=T0 + 3 * DAY + 11))
    town.node_heard()
    assert town.beat(running, 1).status_code == 200
    town.tick()
    _older(town)
    _figures_and_grants(town)
    town.resume()


def _pod(name: str, namespace: str, **more: object) -> Json:
    body = gpu_pod(name, namespace=namespace, **more)  # type: ignore[arg-type]
    body["metadata"]["labels"] = LABELS | body["metadata"].get("labels", {})
    return body


def _older(town: Town) -> None:
    """A session that began two days before T0, with a correction of an hour."""
    start, end = T0 - 2 * DAY, T0 + 12 * HOUR
    session = {
        **SESSION,
        "uid": "uid-older",
        "namespace": "team-a",
        "name": "older",
        "owner": "Job/older",
        "node": "n1",
        "models": "A100",
        "rate_milli": 300,
        "bound_ms": start,
        "opened_ms": start,
        "started_ms": start,
        "ended_ms": end - HOUR,
        "settled_ms": end,
    }
    pieces = (
        (0, start, MIDNIGHT - DAY, 300, "settled"),
        (1, MIDNIGHT - DAY, MIDNIGHT, 300, "settled"),
        (2, MIDNIGHT, end, 300, "settled"),
        (3, end - HOUR, end, -300, "correction"),
    )
    postings = [
        {
            "session_uid": "uid-older",
            "sequence": sequence,
            "namespace": "team-a",
            "from_ms": from_ms,
            "to_ms": to_ms,
            "rate_milli": rate,
            "amount": rate * (to_ms - from_ms),
            "kind": kind,
            "reason": "the kubelet's timestamps",
            "created_ms": end,
        }
        for sequence, from_ms, to_ms, rate, kind in pieces
    ]
    with town.store.writing() as connection:
        connection.execute(insert(SESSIONS).values(session))
        connection.execute(insert(POSTINGS), postings)


def _figures_and_grants(town: Town) -> None:
    figures = [
        {
            "session_uid": uid,
            "hour_ms": T0 + hour * HOUR,
            "source": "node",
            "covered_ms": HOUR,
            "used_milli_ms": 400 * HOUR,
            "memory_mib_ms": 9_000 * HOUR,
        }
        for uid in ("uid-long", "uid-running")
        for hour in range(3)
    ]
    grant = {
        "subject": "team-b",
        "period_start_ms": MIDNIGHT + 4 * DAY,
        "period_end_ms": MIDNIGHT + 5 * DAY,
        "amount": 3_600_000_000,
        "kind": "manual",
        "reason": "a deadline",
        "actor": "admin",
        "idempotency_key": "manual/team-b/1",
        "created_ms": T0 + 4 * DAY,
    }
    with town.store.writing() as connection:
        connection.execute(insert(FIGURES), figures)
        connection.execute(insert(GRANTS).values(grant))


def differences(town: Town) -> list[str]:
    """The audit's findings."""
    findings: list[Finding] = []
    with snapshot(town.store) as connection:
        audit(connection, town.clock(), findings.append)
    return [each.sentence() for each in findings]
