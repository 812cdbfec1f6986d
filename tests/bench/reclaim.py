"""How soon the extender decides to reclaim after standings have arrived.

``python -m tests.bench.reclaim [--pods N] [--namespaces M] [--nodes K] [--json FILE]``. A full cluster whose
namespaces have all spent their budgets, in this process, and the preemptor's search with its own limits.
``decided_ms``: wall time from standings under which a waiting pod's namespace has some left to the victims;
``cpu_ms``: CPU of that. Medians of 9 pods.
"""

import os
import statistics
import time
from typing import Any

from scheduler_ext.controllers.victim_chooser import VictimChooser
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.active import PreemptionCounts
from scheduler_ext.preemption.cooldown import NOTHING_DONE
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.preemption_queue import PreemptionQueue
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.waiting.order import WaitingPod
from tests.bench.command import arguments, write
from tests.scheduler_ext.preemption_worlds import of, pdbs
from tests.scheduler_ext.worlds import node, on, percent, read, rebuilt
from tests.worlds import card

LIMITS = PreemptionLimits(180_000, 600_000, 8, "bursar-scheduler", False)
OVER = NamespaceStanding("OVER_BUDGET", "reclaim")
RUNS = 9


def measured(nodes: int, pods: int, namespaces: int) -> dict[str, Any]:
    """Both medians."""
    cards = -(-pods // nodes)
    listed = [node(f"n{at}", *(card(index) for index in range(cards))) for at in range(nodes)]
    running = [
        on(
            of(percent(100, f"p{at}"), f"team-{at % namespaces}"),
            f"n{at // cards}",
            f"n{at // cards}-GPU-{at % cards}",
        )
        for at in range(pods)
    ]
    snapshot = rebuilt(listed, running)
    queue = PreemptionQueue(LIMITS)
    queue.follow(snapshot, 0.0)
    chooser = VictimChooser(LIMITS, time.monotonic, time.sleep, PreemptionCounts(), lambda *_, **__: None)
    spent = {f"team-{at}": OVER for at in range(namespaces)}
    took, used = [], []
    for at in range(RUNS):
        pod = read(of(percent(100, f"w{at}", schedulerName="bursar-scheduler"), "team-x"))
        waiting = WaitingPod(pod, BINPACK, None)
        began, cpu = time.monotonic(), time.thread_time()
        standings = NamespaceStandings({**spent, "team-x": NamespaceStanding("IN_BUDGET")})
        context = PreemptionContext(snapshot.pods, standings, 0, pdbs(), NOTHING_DONE)
        choice = chooser.choice(waiting, snapshot, context, queue)
        used.append(1000 * (time.thread_time() - cpu))
        took.append(1000 * (time.monotonic() - began))
        assert choice is not None
        assert len(choice.victims) == 1
    return {"decided_ms": round(statistics.median(took)), "cpu_ms": round(statistics.median(used))}


def main() -> None:
    """Prints the figures and writes the JSON."""
    given = arguments(__doc__, pods=(40_000, ""), namespaces=(1_000, "exhausted"), nodes=(5_000, ""))
    found = {**measured(given.nodes, given.pods, given.namespaces), "load": os.getloadavg()}
    print(found)
    write(given.json, found)


if __name__ == "__main__":
    main()
