"""The sidecar's main loop: connects `Reporter` to the clock, randomness, the disk, the network and NVML."""

from __future__ import annotations

import os
import time

from sidecar import spool
from sidecar.background import run_in_background
from sidecar.disk import SpoolFolder, node_boot
from sidecar.event_loop import End, EventLoop
from sidecar.heartbeat_client import Delivered, HeartbeatClient
from sidecar.log import log
from sidecar.nvml import PodCardReader
from sidecar.reporter import Reporter, ReporterPorts
from timekeeper.edge.outbox import NotDelivered
from timekeeper.edge.saved_outbox import OutboxPorts
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from typing import Any

    from sidecar.settings import SidecarSettings

AFTER_A_FAULT_MS = 5_000


@value
class PostDone:
    """A post ended."""

    outcome: Delivered | NotDelivered


@value
class CardsRead:
    """NVML was read."""

    devices: tuple[dict[str, Any], ...]


UNTRIED = PostDone(NotDelivered("no thread could be started, or an internal error", False))
UNREAD = CardsRead(())


def until_the_end(settings: SidecarSettings, loop: EventLoop) -> bool:
    """Send heartbeats until SIGTERM and the last post has ended. True if a thread is still blocked."""
    disk, boot = SpoolFolder(settings.spool), node_boot()
    client = HeartbeatClient(settings, boot_ms, disk.followed(), disk.follow)
    reader = PodCardReader(settings.cards, boot_ms, exclusive=settings.exclusive)
    ports = ReporterPorts(
        outbox=OutboxPorts(
            post=lambda post: run_in_background(loop, lambda: PostDone(client.deliver(post)), UNTRIED),
            save=lambda post, waiting: disk.replace(spool.FILE, spool.encode(post, waiting, boot)),
        ),
        read_cards=(lambda: run_in_background(loop, lambda: CardsRead(reader.read()), UNREAD))
        if settings.cards
        else None,
        fraction=fraction,
        log=log,
    )
    log("started", timekeeper=settings.server.authority, cards=len(settings.cards))
    if not settings.cards:
        log("no-cards", reason="NVIDIA_VISIBLE_DEVICES names no card: heartbeats carry no figures")
    left = disk.load(spool.FILE, lambda text: spool.decode(text, boot, boot_ms()), "spool-unreadable")
    reporter = Reporter(ports, os.urandom(8).hex(), boot_ms(), left)
    run_loop(reporter, loop)
    if beats := reporter.unacknowledged():
        log(
            "unacknowledged", level="warning", beats=beats, reason="the timekeeper may not have received them"
        )
    if reporter.waits_for_a_thread():
        return True
    client.close()
    return False


def run_loop(reporter: Reporter, loop: EventLoop, after_a_fault_ms: int = AFTER_A_FAULT_MS) -> None:
    """Wait for an event or the next due moment, handle it, do what is due; until the reporter has ended."""
    faults: set[str] = set()
    wait_ms = 0
    while not reporter.ended(boot_ms()):
        try:
            _handle(reporter, loop.wait(wait_ms))
            reporter.tick(boot_ms())
            wait_ms = max(0, reporter.due_ms() - boot_ms())
        except Exception as error:
            # A defect of ours, or no memory: a sidecar that goes on serves the pod better than one that
            # exits.
            wait_ms = after_a_fault_ms
            fault = f"{type(error).__name__}: {error}"
            if fault not in faults:
                faults.add(fault)
                log("fault", level="error", where="loop", reason=fault)


def boot_ms() -> int:
    """Milliseconds since the node booted. Never goes back, and a restarted process continues the count."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def fraction() -> float:
    """A random number from 0 to 1. The ``random`` module would take 0.3 MiB."""
    return int.from_bytes(os.urandom(2), "big") / 65_535


def _handle(reporter: Reporter, event: object) -> None:
    if isinstance(event, End):
        reporter.end(boot_ms())
    elif isinstance(event, PostDone):
        reporter.on_posted(event.outcome, boot_ms())
    elif isinstance(event, CardsRead):
        reporter.on_cards_read(event.devices, boot_ms())
