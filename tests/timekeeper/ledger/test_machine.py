"""The ledger under everything that can happen to it, on both databases: see machine.py."""

import os
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.postgresql import fresh_postgresql
from tests.timekeeper.machine import Machine
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

pytestmark = pytest.mark.untraced


Url = Callable[[ExitStack], str]
Tell = Callable[[str], None]
STEPS, SOAKED_STEPS = 12, 20
SOAKED, TOGETHER = 5_000, 500  # Hypothesis remembers every history of a run: each run is one part of them
# The histories are the same on both; for what PostgreSQL does otherwise fewer of them suffice.
HISTORIES = {"sqlite": 14, "postgresql": 4}  # test_audit_of_lives.py has others
SEED = 20261120  # one for all runs; a soak takes a new one


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Url:
    """Gives each history an empty ledger of its own."""
    if request.param == "postgresql":
        return lambda stack: stack.enter_context(fresh_postgresql())
    template, used = tmp_path / "template.db", tmp_path / "used"
    store = open_store(f"sqlite:///{template}")
    upgrade(store)
    store.close()

    def copied(stack: ExitStack) -> str:
        used.mkdir()
        stack.callback(shutil.rmtree, used)
        shutil.copy(template, used / "ledger.db")
        return f"sqlite:///{used}/ledger.db"

    return copied


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Tell:
    """Says how far a long test has come."""

    def said(text: str) -> None:
        with capfd.disabled():
            print(text, flush=True)

    return said


def lived(
    fresh: Url,
    histories: int,
    seed: int,
    steps: int = STEPS,
    kind: type[Machine] = Machine,
    tell: Tell = print,
) -> None:
    """So many random histories."""
    tell(f"seed {seed}")
    machine = hypothesis.seed(seed)(type("Machine", (kind,), {"url": staticmethod(fresh)}))
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            max_examples=histories,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fresh", HISTORIES, indirect=True)
def test_whatever_happens_the_ledger_says_what_the_evidence_proves(
    fresh: Url, request: pytest.FixtureRequest
) -> None:
    lived(fresh, HISTORIES[request.node.callspec.params["fresh"]], SEED)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_in_five_thousand_histories_the_ledger_says_what_the_evidence_proves(fresh: Url, tell: Tell) -> None:
    seed = int(os.environ.get("BURSAR_SEED") or random.SystemRandom().randrange(10**9))
    for done in range(0, SOAKED, TOGETHER):
        lived(fresh, TOGETHER, seed + done, SOAKED_STEPS, tell=tell)
        tell(f"{done + TOGETHER} histories")
