"""How many cases the property tests try: few in `make quick` and `make coverage`, more in `make test`, many
in `make soak`.

The environment variable BURSAR_PROFILE names the profile; tests/run.py sets it. But for a soak the cases are
the same in each run, so a change is judged by the cases that its parent was judged by. A soak finds new ones.
"""

import os
import random

import hypothesis
from hypothesis.internal.conjecture import providers

PROFILE = os.environ.get("BURSAR_PROFILE", "test")
IS_SOAK = PROFILE == "soak"

_USUAL = 40  # they are the same in each run, so more of them find nothing new; a soak draws new ones
_SOAK = 5_000
_COVERAGE = 20  # later cases pass few new lines, and tracing triples their time


def examples(usual: int, soak: int | None = None) -> int:
    """The number of cases of one property: `usual` in `make test`, a fifth of it in `make quick`, 20 under
    coverage.

    `soak` is the number in `make soak`; without it a soak tries at least 5,000 cases. Name it where a case is
    slow.
    """
    if PROFILE == "soak":
        return max(usual, _SOAK) if soak is None else soak
    if PROFILE == "coverage":
        return min(usual, _COVERAGE)
    return min(usual, max(10, usual // 5)) if PROFILE == "quick" else usual


def seed() -> int:
    """The seed of a test that draws its cases: BURSAR_SEED, else one for all runs, and in a soak a new one.
    The test names it where it fails."""
    given = os.environ.get("BURSAR_SEED")
    return int(given) if given else random.SystemRandom().randrange(10**9) if IS_SOAK else 20_261_120


def load() -> None:
    """Make the profile Hypothesis's default, for properties that name no number of their own.

    Hypothesis also draws constants of the local modules that happen to be imported, so the cases would
    depend on which files of tests a worker runs, and on each constant of the product. But for a soak it has
    none.
    """
    if not IS_SOAK:
        assert callable(providers._get_local_constants)
        providers._get_local_constants = lambda: providers._local_constants
    hypothesis.settings.register_profile(
        "bursar",
        max_examples=examples(_USUAL),
        deadline=None,
        print_blob=not IS_SOAK,
        derandomize=not IS_SOAK,
    )
    hypothesis.settings.load_profile("bursar")
