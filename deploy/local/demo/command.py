"""Runs the demo on a control plane of its own."""

import sys
import time

from deploy.local.build import Say
from deploy.local.cluster import ControlPlane
from deploy.local.demo.layout import lay_out
from deploy.local.demo.run import DemoRun, StepError, standing_of
from deploy.local.demo.steps import STEPS
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack


def main(say: Say) -> int:
    """``make demo``: returns 0 if every step passed, else 1 after one sentence."""
    try:
        demo(say)
    except StepError as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def demo(say: Say) -> None:
    """Runs all steps. Raises StepError at the first claim that is false."""
    began = time.monotonic()
    with ControlPlane(say=say) as cp, Stack(cp) as stack, Sidecars(stack) as sidecars:
        say(f"Bursar is up on Kubernetes at {cp.url} after {time.monotonic() - began:.0f} s")
        lay_out(stack)
        run = DemoRun(stack, sidecars)
        run.until("every webhook worker to have the budgets", lambda: budgets_are_known(run))
        for step in STEPS:
            step(run)
    print(f"\nAll {len(STEPS)} steps passed in {time.monotonic() - began:.0f} s.")


def budgets_are_known(run: DemoRun) -> bool:
    """Whether the workers have both budgets, by five dry-run reviews for each namespace."""
    return all(standing_of(run.dry_run(namespace)) == "IN_BUDGET" for namespace in 5 * ("team-a", "team-b"))
