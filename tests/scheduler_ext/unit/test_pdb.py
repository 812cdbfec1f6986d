"""PodDisruptionBudgets and the selectors that match them."""

import pytest

from scheduler_ext.cache.pdb_cache import PDBCache
from scheduler_ext.model.labels import by_key, labels_of
from scheduler_ext.model.pdb import read_pdb
from tests.scheduler_ext.preemption_worlds import budget, of, pdbs
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import Json, percent, read
from timekeeper.core.kube.selectors import read_selector

WEB = {"app": "web", "tier": "front"}

SELECTORS: dict[str, tuple[Json | None, bool]] = {
    "none matches nothing": (None, False),
    "an empty one matches everything": ({}, True),
    "equal labels": ({"matchLabels": {"app": "web"}}, True),
    "another label": ({"matchLabels": {"app": "web", "tier": "back"}}, False),
    "in": ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]}, True),
    "not in": ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
    "not in, absent": ({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["web"]}]}, True),
    "in, absent": ({"matchExpressions": [{"key": "x", "operator": "In", "values": ["web"]}]}, False),
    "exists": ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
    "exists, absent": ({"matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
    "does not exist": ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
    "does not exist, absent": ({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, True),
    "all must hold": (
        {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]},
        False,
    ),
    "an operator that nobody knows": ({"matchExpressions": [{"key": "app", "operator": "Gt"}]}, False),
}


@pytest.mark.parametrize("case", SELECTORS)
def test_a_selector_matches_as_the_eviction_api_has_it(case: str) -> None:
    raw, matches = SELECTORS[case]
    selector = read_selector(raw)

    assert (selector is not None and selector.matches(WEB)) is matches


def test_a_budget_covers_its_own_namespace_alone_and_not_who_is_granted_already() -> None:
    promised = pdbs(budget("other", 1, {}, granted="2027-01-01T00:00:00Z"))

    assert promised.over(read(of(percent(50, "p"), "other")))
    assert not promised.over(read(of(percent(50, "p"), "another")))
    assert not promised.over(read(of(percent(50, "granted"), "other")))


def test_a_pod_whose_labels_have_changed_is_looked_at_anew() -> None:
    promised = pdbs(budget("other", 1, {"matchLabels": {"app": "web"}}))

    assert promised.over(read(of(percent(50, "p"), "other", labels=WEB)))
    assert not promised.over(read(of(percent(50, "p"), "other", labels={"app": "api"})))


def test_which_budgets_cover_a_pod_is_worked_out_once() -> None:
    pod = read(of(percent(50, "p"), "other", labels=WEB))
    promised = pdbs(*(budget("other", 1, {}, f"b{at}") for at in range(3)))

    assert promised.over(pod) is promised.over(pod)


def test_a_pod_under_two_budgets_uses_up_both() -> None:
    pods = [read(of(percent(50, f"p{at}"), "other", labels=WEB)) for at in range(3)]
    promised = pdbs(budget("other", 2, {"matchLabels": {"app": "web"}}, "one"), budget("other", 1, {}, "two"))

    assert promised.violations(pods) == 2
    assert promised.violations(pods[1:], before=pods[:1]) == 2
    assert promised.violations(pods[:1]) == 0


def test_labels_of_replicas_are_kept_once() -> None:
    first, second = (labels_of({"metadata": {"labels": dict(WEB)}}) for _ in range(2))

    assert by_key(first) == WEB
    assert by_key(labels_of({})) == {}
    assert first is second


def test_the_books_follow_lists_changes_and_ends() -> None:
    cache = PDBCache()
    pod = read(of(percent(50, "p"), "other"))
    first = read_pdb(budget("other", 0, {}))

    cache.listed([first])
    assert cache.now().violations([pod]) == 1
    cache.seen(read_pdb(budget("other", 1, {})))
    assert cache.now().violations([pod]) == 0
    cache.gone(first)
    assert cache.now().over(pod) == ()
    cache.listed([first])
    cache.listed([])
    assert cache.now().over(pod) == ()


def test_the_running_extender_follows_the_api_servers_budgets(running: Stepped) -> None:
    pod = read(of(percent(50, "p"), "other"))

    running.api.put("poddisruptionbudgets", budget("other", 0, {}))

    running.catches_up()
    assert running.extender.pdbs.now().violations([pod]) == 1
    running.api.delete("poddisruptionbudgets", "pdb", "other")
    running.catches_up()
    assert not running.extender.pdbs.now().over(pod)
