"""Plans for gangs."""

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.plan import GangPlan, plan
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.snapshot import Snapshot


def plan_of_all(snapshot: Snapshot) -> GangPlan:
    """The plan for all pods of the snapshot."""
    pods = [pod for _, pod in snapshot.pods.items()]
    return plan(pods, PlanInput(snapshot, UNHEARD, lambda _: BINPACK))
