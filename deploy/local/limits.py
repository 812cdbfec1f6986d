"""Limits of waits, which are meant for an idle machine."""

import os


def on_this_machine(within_s: float) -> float:
    """The limit while this machine is as busy as it was in the last minute."""
    return beside(within_s, os.getloadavg()[0], os.cpu_count() or 1)


def beside(within_s: float, load: float, processors: int) -> float:
    """The limit, as much longer as more wants to run than there are processors."""
    return within_s * max(1.0, load / processors)
