"""The cluster of `dashboards.py` with two months of history, beside its short names the longest that people
give: of a group, its namespaces, a node and pods, in every list of the dashboard; and a group that leaves its
members less than they have. `tasks.md` asks of it, and `play.py` serves it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from sqlalchemy import update

from tests.timekeeper.books import Run, days, posting_row
from tests.timekeeper.dashboards import Dashboards, filled, on_node, waits
from tests.timekeeper.rows import insert
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0, Json
from timekeeper.core.cluster_map import not_before
from timekeeper.store import would
from timekeeper.store.engine.schema import ENTRY_ERRORS, POSTINGS, SESSIONS
from timekeeper.store.would import WouldRow

LENGTH = 62  # of a name; a namespace has at most 63 characters
_WORDS = "-of-the-team-for-large-language-models-in-europe-west-and-north"


def long(head: str) -> str:
    """A name of words, `LENGTH` characters long."""
    return f"{head}{_WORDS}"[: LENGTH - 1].rstrip("-").ljust(LENGTH, "1")


NAMESPACE, OTHER, GROUP, NODE = long("research"), "w" * LENGTH, long("group"), long("gpu-node")
POD, WAITS, UNBROKEN = long("train"), long("train-later"), "p" * LENGTH
OWNER = f"StatefulSet/{long('trainer')}"
SENTENCE = f"Evicted: the budget of {NAMESPACE} is used up."


@contextmanager
def stage(folder: Path) -> Iterator[Dashboards]:
    """The pages over the cluster with long names, in this folder."""
    with closing(filled(folder)) as made:
        _budgets(made)
        _history(made)
        _research(made)
        _months(made)
        _now(made)
        _map(made)
        _decisions(made)
        yield made


def _budgets(made: Dashboards) -> None:
    made.books.entries(
        ("_settings", "timeZone: Europe/Berlin\ncurrency: EUR", 0),
        (NAMESPACE, f"gpuHours: 5000\nperiod: month\ngroup: {GROUP}\nprice: 12.5\nonExhausted: evict", 0),
        (OTHER, f"gpuHours: 80\nperiod: week\ngroup: {GROUP}\nmode: meter", 0),
        (f"_group.{GROUP}", f"gpuHours: 6000\nperiod: month\nsplit: {{{NAMESPACE}: 50, {OTHER}: 20}}", 0),
    )
    error = {"key": NAMESPACE, "sentence": f"ConfigMap b: {NAMESPACE}, line 1", "seen_ms": T0}
    with made.books.store.writing() as connection:
        connection.execute(ENTRY_ERRORS.insert(), error)
    grant = {"subject": NAMESPACE, "gpuHours": "2500.125", "reason": f"a sprint of {UNBROKEN}"}
    assert made.books.post("/v1/grants", grant, **{"Idempotency-Key": "long"}).status_code == 200
    passed = {"namespace": NAMESPACE, "gpuHours": "25", "reason": "a sprint"}
    answer = made.books.post(f"/v1/groups/{GROUP}/grants", passed, **{"Idempotency-Key": "passed"})
    assert answer.status_code == 200, answer.text


def _history(made: Dashboards) -> None:
    """A day of each week of this month and of the one before."""
    runs = []
    for at in range(0, 50, 7):
        start = T0 - (50 - at) * DAY
        for namespace, rate in ((NAMESPACE, 8_000), (OTHER, 2_000)):
            name = POD if at % 2 else UNBROKEN
            runs.append(
                Run(f"{namespace[0]}-{at}", namespace, name, OWNER, NODE, "NVIDIA-H100-80GB-HBM3", rate=rate,
                    requested=rate, started_ms=start, posted=days(start, start + 20 * HOUR))
            )  # fmt: skip
    made.books.write(*runs)
    for run in runs[-4:]:
        for hour in range(18):
            hour_ms = run.started_ms // HOUR * HOUR + hour * HOUR
            made.books.used(run.uid, hour_ms, "node", HOUR, HOUR * run.rate // 5)
    correction = {"namespace": NAMESPACE, "gpuHours": "-1.125", "reason": f"the node {NODE} was faulty"}
    answer = made.books.post("/v1/corrections", correction, **{"Idempotency-Key": "correction"})
    assert answer.status_code == 200, answer.text


def _research(made: Dashboards) -> None:
    """A group whose members have more than it leaves them, with a price that changes, use that is measured
    in part, and charges over the end of a month of Berlin."""
    made.books.entries(
        ("speech", "gpuHours: 2000\nperiod: month\ngroup: research\nprice: 3 then 4 from 2026-11-15", 0),
        ("ads", "gpuHours: 10\nperiod: week\ngroup: research\nonExhausted: deny", 0),
        ("_group.research", "gpuHours: 1000\nperiod: month\nleads: [Ada Lovelace, grace@example.com]", 0),
        ("_group.lab", f"gpuHours: 600\nperiod: month\nsplit: {{elsewhere: 5}}\nleads: [{'p' * 100}]", 1),
    )
    for name, namespace, owner, cards, began, hours, used in (
        ("align-0", "speech", "Job/align", 8, time_ms("2026-09-14T06:00Z"), 10, 0),
        ("align-1", "speech", "Job/align", 8, time_ms("2026-10-05T06:00Z"), 20, 0),
        ("rank-1", "ads", "Deployment/rank", 2, time_ms("2026-10-12T08:00Z"), 30, 0),
        ("night-1", "speech", "Job/night", 4, time_ms("2026-10-31T20:00Z"), 8, 0),
        ("align-2", "speech", "Job/align", 8, time_ms("2026-11-09T07:00Z"), 24, 0),
        ("rank-2", "ads", "Deployment/rank", 4, time_ms("2026-11-10T00:00Z"), 40, 25),
        ("align-3", "speech", "Job/align", 8, time_ms("2026-11-16T07:00Z"), 30, 60),
        ("rank-3", "ads", "Deployment/rank", 2, time_ms("2026-11-17T09:00Z"), 10, 50),
        ("notebook-1", "speech", "Deployment/notebook", 2, T0 - 5 * HOUR, 5, 10),
    ):
        runs = began + hours * HOUR == T0
        kept = {"heard_ms": T0, "settled": False} if runs else {"posted": days(began, began + hours * HOUR)}
        rate = 1_000 * cards
        made.books.write(
            Run(f"uid-{name}", namespace, name, owner, "gpu-5", "A100", rate=rate, requested=rate,
                started_ms=began, **kept)
        )  # fmt: skip
        for hour in range(hours if used else 0):
            made.books.used(f"uid-{name}", began + hour * HOUR, "node", HOUR, HOUR * rate * used // 100)
    made.books.clock.at_ms = time_ms("2026-11-17T08:00Z")
    passed = {"namespace": "ads", "gpuHours": "50", "reason": "sprint 4"}
    wrong = {"namespace": "speech", "gpuHours": "-4", "month": "2026-10", "reason": "a card was faulty"}
    for path, body in (("groups/research/grants", passed), ("corrections", wrong)):
        answer = made.books.post(f"/v1/{path}", body, **{"Idempotency-Key": path})
        assert answer.status_code == 200, answer.text
    made.books.clock.at_ms = T0


def time_ms(text: str) -> int:
    """Milliseconds since 1970 of a time such as 2026-11-20T10:00Z."""
    return int(datetime.fromisoformat(text).timestamp()) * 1_000


def _months(made: Dashboards) -> None:
    """September and October are closed as by the settler; later proof takes an hour of September back."""
    made.books.clock.at_ms = time_ms("2026-11-01T02:00Z")
    made.books.close_months()
    made.books.clock.at_ms = T0
    began = time_ms("2026-09-14T06:00Z")
    late = posting_row(Run("uid-align-0", "speech", rate=8_000), 9, began, began + HOUR, -1)
    with made.books.store.writing() as connection:
        connection.execute(POSTINGS.insert(), late | {"created_ms": T0 - DAY})


def _now(made: Dashboards) -> None:
    """What runs, is stuck, waits or is held."""
    running = Run("long-runs", NAMESPACE, POD, OWNER, NODE, "NVIDIA-H100-80GB-HBM3", rate=8_000,
                  started_ms=T0 - 3 * HOUR, heard_ms=T0, settled=False)  # fmt: skip
    other = Run("long-other", OTHER, UNBROKEN, OWNER, NODE, "NVIDIA-H100-80GB-HBM3", rate=2_000,
                started_ms=T0 - 3 * HOUR, heard_ms=T0, settled=False)  # fmt: skip
    ended = Run("long-ended", NAMESPACE, f"{POD[:-1]}2", OWNER, NODE, "NVIDIA-H100-80GB-HBM3", rate=8_000,
                started_ms=T0 - 5 * HOUR, heard_ms=T0 - HOUR, settled=False)  # fmt: skip
    made.books.write(running, other, ended)
    with made.books.store.writing() as connection:
        vanished = update(SESSIONS).where(SESSIONS.c.uid == "long-ended").values(vanished_ms=T0 - HOUR)
        connection.execute(vanished)
        judged = (
            WouldRow("j-1", "refused", OTHER, UNBROKEN, "host-pid", "spec.hostPID must not be set", T0, T0),
            WouldRow("j-2", "held", OTHER, POD, "", f"{OTHER} has nothing left", T0, T0),
        )
        would.record(connection, judged)
    insert(made.books.store, "held_pods", uid="long-held", namespace=NAMESPACE, name=WAITS,
           created_ms=T0 - HOUR, rate_milli=8_000, gang=f"{NAMESPACE}/{long('gang')}")  # fmt: skip
    insert(made.books.store, "held_pods", uid="big", namespace="speech", name="big-1", created_ms=T0 - HOUR,
           rate_milli=4_000, length_ms=100 * HOUR)  # fmt: skip
    insert(made.books.store, "nodes", name=NODE, watermark_ms=T0)


def _map(made: Dashboards) -> None:
    sessions = [Run("long-runs", NAMESPACE, POD), Run("long-other", OTHER, UNBROKEN)]
    node = on_node(NODE, sessions, 8) | {"closed": f"cordoned by {UNBROKEN}"}
    pods = [waits(WAITS) | {"namespace": NAMESPACE, "standing": "OVER_BUDGET"}, waits("train-9")]
    pods[1]["when"] = not_before(T0 + 2 * HOUR)
    pods += [waits("rank-4") | {"namespace": "ads"}, waits("alone-1") | {"namespace": "sandbox"}]
    waiting = {"total": 4, "pods": pods, "more": {}}
    body = {"version": 1, "nodes": [node], "gone": [], "waiting": waiting, "term": "a-1"}
    answer = made.books.post("/v1/cluster", body)
    assert answer.status_code == 200, answer.text


def _decisions(made: Dashboards) -> None:
    def decision(kind: str, reason: str, name: str, at: int, **figures: object) -> Json:
        age_ms = at * MINUTE
        about = {"namespace": NAMESPACE, "owner": OWNER, "name": name, "uid": name, "budget": NAMESPACE}
        return {**about, "kind": kind, "reason": reason, "figures": figures, "count": 1,
                "first_age_ms": age_ms, "last_age_ms": age_ms}  # fmt: skip

    entries = [
        decision("placed", "Bound", POD, 180, node=NODE, cards=f"GPU-{NODE}-0,GPU-{NODE}-1", shareMilli=1000,
                 memoryMib=80000),
        decision("waiting", "TooLittleFree", WAITS, 14, cardsNeeded=16, shareNeededMilli=1000,
                 memoryNeededMib=0, reasons="13 nodes: not enough free GPUs (16 needed)", podsAhead=3,
                 largestHoleNode=NODE, largestHoleMib=40960, largestHoleMilli=500),
        decision("evicted", "BudgetExhausted", UNBROKEN, 5, message=SENTENCE),
        decision("held", "Held", "big-1", 60) | {"namespace": "speech", "uid": "big", "owner": ""},
        decision("held", "Held", "sweep-1", 60) | {"namespace": "team-b", "uid": "uid-held-1", "owner": ""},
    ]  # fmt: skip
    body = {"version": 1, "source": "extender", "decisions": entries}
    answer = made.books.post("/v1/decisions", body)
    assert answer.status_code == 200, answer.text


LONG_PAGES = (
    f"/namespaces/{NAMESPACE}",
    f"/namespaces/{OTHER}",
    f"/groups/{GROUP}",
    f"/map?node={NODE}",
    f"/nodes/{NODE}",
    "/waste?group=pod",
    "/waste?group=namespace%2Cowner",
    "/costs?group=pod",
    "/costs?group=namespace%2Cowner",
    "/costs?month=2026-10",
    "/costs?group=node",
    f"/costs?group=day&namespace={NAMESPACE}",
    "/months/2026-10",
    "/months/2026-11",
    f"/pods/{NAMESPACE}/{POD}",
    f"/pods/{NAMESPACE}/{WAITS}",
    f"/pods/{NAMESPACE}/{OWNER}",
)
