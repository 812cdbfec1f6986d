"""The running extender follows PodDisruptionBudgets."""

from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.preemption_worlds import budget, of
from tests.scheduler_ext.worlds import percent, read
from tests.support.waiting import eventually


def test_the_running_extender_follows_the_api_servers_budgets(running: Running) -> None:
    pod = read(of(percent(50, "p"), "other"))

    running.api.put("poddisruptionbudgets", budget("other", 0, {}))

    eventually(lambda: running.extender.pdbs.now().violations([pod]) == 1)
    running.api.delete("poddisruptionbudgets", "pdb", "other")
    eventually(lambda: not running.extender.pdbs.now().over(pod))
