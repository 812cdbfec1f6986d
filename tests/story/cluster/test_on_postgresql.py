"""The stories of all five modes with the ledger in PostgreSQL, also across kills of the timekeeper."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.stack import Stack, Tuning
from tests.postgresql import fresh_postgresql, server
from tests.story.cluster.test_away import (
    test_every_answer_to_a_pods_creator_can_be_looked_up_later,  # deny
)
from tests.story.cluster.test_exhausted_deprioritizes import (
    test_a_spent_budget_lowers_new_pods_until_a_refill_and_no_running_one_leaves_for_its_standing,
)
from tests.story.cluster.test_exhausted_evicts import (
    shop,
    test_an_exhausted_budget_ends_its_pods_and_a_raised_one_brings_them_back,
)
from tests.story.cluster.test_fair_order import (
    test_held_pods_are_released_by_decayed_use_also_across_a_kill,
)
from tests.story.cluster.test_held_pods import (
    test_a_deployment_waits_for_its_budget_and_then_runs,
    test_a_timekeeper_that_is_killed_while_it_releases_releases_no_more_than_can_be_paid,
)
from tests.story.cluster.test_metering import set_budgets
from tests.story.cluster.test_simulated import (
    planner,
    test_what_a_simulation_says_is_what_happens,  # reclaim
)
from tests.support.control_plane import kubectl

__all__ = [
    "planner",
    "shop",
    "test_a_deployment_waits_for_its_budget_and_then_runs",
    "test_a_spent_budget_lowers_new_pods_until_a_refill_and_no_running_one_leaves_for_its_standing",
    "test_a_timekeeper_that_is_killed_while_it_releases_releases_no_more_than_can_be_paid",
    "test_an_exhausted_budget_ends_its_pods_and_a_raised_one_brings_them_back",
    "test_every_answer_to_a_pods_creator_can_be_looked_up_later",
    "test_held_pods_are_released_by_decayed_use_also_across_a_kill",
    "test_what_a_simulation_says_is_what_happens",
]

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    """Every role as a process, ready; a killed timekeeper is the same replica when it starts again."""
    with fresh_postgresql() as url:
        flags = (f"--database={url}", "--pod-uid=the-replica")
        tuning = Tuning(heartbeat_interval="200ms", flags=(("timekeeper", flags),))
        with Stack(control_plane, tuning) as running:
            yield running
        used = server().as_admin("SELECT sum(xact_commit) FROM pg_stat_database WHERE datname LIKE 't%'")
        assert used[0][0] > 100  # these stories were told to this database


@pytest.fixture(autouse=True)
def alone(stack: Stack) -> Iterator[None]:
    """Nothing of a story stays for the next one."""
    yield
    set_budgets(stack)
    kubectl(stack.cp, "delete", "deployments,jobs,pods,nodes", "--all", "--all-namespaces", "--timeout=5m")
