"""The sidecar's loop: joins the heart to clock, chance, disk, network and NVML."""

from __future__ import annotations

import os
import time

from sidecar.background import run_in_background
from sidecar.disk import SpoolFolder, node_boot
from sidecar.event_loop import End, EventLoop
from sidecar.heartbeat_client import Delivered, HeartbeatClient, NotDelivered
from sidecar.log import say
from sidecar.nvml import PodCardReader
from sidecar.reporter import Reporter, ReporterPorts
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from sidecar.settings import SidecarSettings
    from timekeeper.core.wire import BeatDevice

AFTER_A_FAULT_MS = 5_000


@value
class PostDone:
    """The courier came back."""

    outcome: Delivered | NotDelivered


@value
class CardsRead:
    """NVML was read."""

    devices: tuple[BeatDevice, ...]


UNTRIED = PostDone(NotDelivered("no thread could be started, or the sidecar has a fault"))
UNREAD = CardsRead(())


def until_the_end(settings: SidecarSettings, loop: EventLoop) -> bool:
    """Beat until SIGTERM is in the inbox, or the pod is over where that ends the sidecar, and the last beat
    was tried; whether a thread did not come back."""
    disk = SpoolFolder(settings.spool, node_boot())
    client = HeartbeatClient(settings, boot_ms, disk.followed(), disk.follow)
    gauge = PodCardReader(settings.cards, boot_ms, exclusive=settings.exclusive)
    ports = ReporterPorts(
        post=lambda post: run_in_background(loop, lambda: PostDone(client.deliver(post)), UNTRIED),
        gauge=(lambda: run_in_background(loop, lambda: CardsRead(gauge.read()), UNREAD))
        if settings.cards
        else None,
        keep=disk.keep,
        fraction=fraction,
        say=say,
    )
    say("started", timekeeper=settings.authority, cards=len(settings.cards))
    if not settings.cards:
        say("no-cards", reason="NVIDIA_VISIBLE_DEVICES names no card: beats carry no figures")
    held = disk.load(os.urandom(8).hex(), boot_ms())
    heart = Reporter(ports, held, boot_ms(), settings.ends_when_over)
    beat_on(heart, loop)
    if left := heart.unacknowledged():
        say("unacknowledged", beats=left, reason="the timekeeper may have missed them")
    if heart.waits_for_a_thread():
        return True
    client.close()
    return False


def beat_on(heart: Reporter, loop: EventLoop, after_a_fault_ms: int = AFTER_A_FAULT_MS) -> None:
    """Wait for what comes first, take it in, do what is due; until the heart has ended."""
    faults: set[str] = set()
    wait_ms = 0
    while not heart.ended(boot_ms()):
        try:
            _take(heart, loop.wait(wait_ms))
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


def _take(heart: Reporter, event: object) -> None:
    if isinstance(event, End):
        heart.end(boot_ms())
    elif isinstance(event, PostDone):
        heart.posted(event.outcome, boot_ms())
    elif isinstance(event, CardsRead):
        heart.gauged(event.devices, boot_ms())


def _say_once(said: set[str], fault: str) -> None:
    if fault not in said:
        said.add(fault)
        say("fault", where="loop", reason=fault)
