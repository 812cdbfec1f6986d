"""Whatever happens to claims, their pods, slices, watches and the settler: the ledger has the sessions that
an independent oracle computes from the same events, no unit more or less."""

import random

import pytest

from tests.postgresql import fresh_postgresql
from tests.support import profile
from tests.support.profile import examples
from tests.timekeeper.waiting_histories import WaitingBatch
from tests.timekeeper.worlds import Town
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store.engine.upgrade import snapshot

BOTH_DATABASES = "random histories of the whole ledger; each kind has a number of its own"
pytestmark = pytest.mark.untraced

LIVES, STEPS = 20, 160  # a batch
BATCHES = {"sqlite": examples(12, soak=420), "postgresql": examples(3, soak=80)}  # 300 lives, and 10,000


def lived(town: Town, seed: int) -> None:
    """One batch, and what an audit finds of it."""
    chance = random.Random(seed)
    batch = WaitingBatch(town, chance, LIVES, calm=seed % 3 == 0)
    batch.live(STEPS)
    batch.settle()
    assert batch.oracle.charges
    assert batch.truth
    print(f"{seed}: {len(batch.oracle.charges)} allocations, {batch.checked} records, {batch.kills} kills")
    findings: list[Finding] = []
    with snapshot(town.store) as connection:
        audit(connection, town.clock(), findings.append)
    assert findings == []


@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("kind", BATCHES)
def test_the_ledger_has_the_sessions_that_the_oracle_computes(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    seed = profile.seed()
    print(f"seed {seed}")
    for number in range(seed, seed + BATCHES[kind]):
        if kind == "sqlite":
            town = Town(tmp_path_factory.mktemp("batch"))
            lived(town, number)
            town.close()
            continue
        with fresh_postgresql() as url:
            town = Town(url)
            lived(town, number)
            town.close()
