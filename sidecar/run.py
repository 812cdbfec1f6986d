"""The sidecar's loop: joins the heart to clock, chance, disk, network and NVML."""

from __future__ import annotations

import os
import time

from sidecar.background import errand
from sidecar.disk import Disk, node_boot
from sidecar.event_loop import End, Inbox
from sidecar.heartbeat_client import Courier, Delivered, Failed
from sidecar.log import say
from sidecar.nvml import Gauge
from sidecar.reporter import Heart, Ports
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from sidecar.settings import Settings
    from timekeeper.core.wire import BeatDevice

AFTER_A_FAULT_MS = 5_000


@value
class Posted:
    """The courier came back."""

    outcome: Delivered | Failed


@value
class Gauged:
    """NVML was read."""

    devices: tuple[BeatDevice, ...]


UNTRIED = Posted(Failed("no thread could be started, or the sidecar has a fault"))
UNREAD = Gauged(())


def until_the_end(settings: Settings, inbox: Inbox) -> bool:
    """Beat until SIGTERM is in the inbox, or the pod is over where that ends the sidecar, and the last beat
    was tried; whether a thread did not come back."""
    disk = Disk(settings.spool, node_boot())
    courier = Courier(settings, boot_ms, disk.followed(), disk.follow)
    gauge = Gauge(settings.cards, boot_ms, exclusive=settings.exclusive)
    ports = Ports(
        post=lambda post: errand(inbox, lambda: Posted(courier.deliver(post)), UNTRIED),
        gauge=(lambda: errand(inbox, lambda: Gauged(gauge.read()), UNREAD)) if settings.cards else None,
        keep=disk.keep,
        fraction=fraction,
        say=say,
    )
    say("started", timekeeper=settings.authority, cards=len(settings.cards))
    if not settings.cards:
        say("no-cards", reason="NVIDIA_VISIBLE_DEVICES names no card: beats carry no figures")
    held = disk.load(os.urandom(8).hex(), boot_ms())
    heart = Heart(ports, held, boot_ms(), settings.ends_when_over)
    beat_on(heart, inbox)
    if left := heart.unacknowledged():
        say("unacknowledged", beats=left, reason="the timekeeper may have missed them")
    if heart.waits_for_a_thread():
        return True
    courier.close()
    return False


def beat_on(heart: Heart, inbox: Inbox, after_a_fault_ms: int = AFTER_A_FAULT_MS) -> None:
    """Wait for what comes first, take it in, do what is due; until the heart has ended."""
    faults: set[str] = set()
    wait_ms = 0
    while not heart.ended(boot_ms()):
        try:
            _take(heart, inbox.wait(wait_ms))
            heart.tick(boot_ms())
            wait_ms = max(0, heart.due_ms() - boot_ms())
        except Exception as error:
            # A fault of our own, or no memory: the pod is better off with a sidecar that goes on.
            wait_ms = after_a_fault_ms
            _say_once(faults, f"{type(error).__name__}: {error}")


def boot_ms() -> int:
    """Milliseconds since the node booted: never set back, and the same count for a restarted process."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def fraction() -> float:
    """A number in 0..1 by chance; the ``random`` module would take 0.3 MiB."""
    return int.from_bytes(os.urandom(2), "big") / 65_535


def _take(heart: Heart, event: object) -> None:
    if isinstance(event, End):
        heart.end(boot_ms())
    elif isinstance(event, Posted):
        heart.posted(event.outcome, boot_ms())
    elif isinstance(event, Gauged):
        heart.gauged(event.devices, boot_ms())


def _say_once(said: set[str], fault: str) -> None:
    if fault not in said:
        said.add(fault)
        say("fault", where="loop", reason=fault)
