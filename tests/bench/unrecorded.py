"""``python -m tests.bench.unrecorded ROLE FLAGS``: the role, which decides as always and records nothing."""

import runpy
import sys

from timekeeper.core.decisions import Decision
from timekeeper.runtime.recording.decision_posts import DecisionPosts


def dropped(self: DecisionPosts, decision: Decision) -> None:
    """In place of `DecisionPosts.record`."""


if __name__ == "__main__":
    DecisionPosts.record = dropped  # type: ignore[method-assign]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
