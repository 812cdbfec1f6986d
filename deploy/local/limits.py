"""Limits of waits, which are meant for an idle machine."""

import os


def on_this_machine(within_s: float) -> float:
    """The limit while this machine is as busy as it is now: as much longer as it has more that wants to run
    than processors (the load of the last minute)."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return within_s * max(1.0, load)
