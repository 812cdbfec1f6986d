"""Reviews straight over TLS: our webhook beside a minimal one in Go, which does nothing of what an admission
has to do but decode a review and answer with a small patch.

``python -m tests.bench.admission_tls [--reviews N] [--rounds N] [--json FILE]``. Kept-alive HTTP/1.1
connections; each waits for its answer before it posts again. The rows of all rounds are taken in turn, and
the median of each is told. CPU is that of all the webhook's processes, by the review.
"""

import tempfile
from pathlib import Path
from typing import Any

from tests.bench import pods
from tests.bench.command import arguments
from tests.bench.contestants import Contestant, Load, compiled, minimal_go, ours
from tests.bench.table import medians, tell
from tests.support.simulated_timekeeper import SimulatedTimekeeper
from tests.support.tls import Tls

Json = dict[str, Any]
CONNECTIONS = (1, 8)
COLUMNS = {
    "review": ("size", ""),
    "connections": ("connections", "d"),
    "webhook": ("webhook", ""),
    "reviews/s": ("per_s", ".0f"),
    "p50 ms": ("p50_ms", ".2f"),
    "p99 ms": ("p99_ms", ".2f"),
    "CPU us": ("cpu_us", ".0f"),
}


def main() -> None:
    """Prints the table and writes the JSON."""
    given = arguments(__doc__, reviews=(6_000, "reviews a row and round"), rounds=(3, ""))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load, program = compiled(folder)
        tls = Tls(folder / "tls")
        with (
            SimulatedTimekeeper(tls) as timekeeper,
            minimal_go(program, tls, folder) as go,
            ours(tls, timekeeper.url, folder) as bursar,
        ):
            rows = measured(load, (go, bursar), tls, folder, given.reviews, given.rounds)
            memory = {each.name: each.pss_mib() for each in (go, bursar)}
    tell(rows, COLUMNS, memory, given.json)


def measured(
    load: Load, contestants: tuple[Contestant, ...], tls: Tls, folder: Path, reviews: int, rounds: int
) -> list[Json]:
    """A row for each size of pod, number of connections, and webhook."""
    bodies = {
        name: _file(folder, name, pods.review(pods.written(*size))) for name, size in pods.SIZES.items()
    }
    keys = [
        (size, connections, each) for size in bodies for connections in CONNECTIONS for each in contestants
    ]
    taken: dict[tuple[str, int, str], list[Json]] = {}
    for _ in range(rounds):
        for size, connections, each in keys:
            count = reviews if size == "10 KB" else reviews // 5
            figures = _one(load, each, tls, bodies[size], connections, count)
            taken.setdefault((size, connections, each.name), []).append(figures)
    return [
        {"size": size, "bytes": bodies[size].stat().st_size, "connections": connections, "webhook": each.name}
        | medians(taken[size, connections, each.name])
        for size, connections, each in keys
    ]


def _one(load: Load, each: Contestant, tls: Tls, body: Path, connections: int, count: int) -> Json:
    url, ca = f"https://127.0.0.1:{each.port}/mutate", tls.folder / "ca.crt"
    load.run(url, ca, body, connections, 20 * connections)
    before = each.cpu_s()
    figures = load.run(url, ca, body, connections, count)
    spent_s = each.cpu_s() - before
    return figures | {"cpu_us": 1e6 * spent_s / (count + connections)}


def _file(folder: Path, name: str, body: bytes) -> Path:
    file = folder / f"{name.replace(' ', '-')}.json"
    file.write_bytes(body)
    return file


if __name__ == "__main__":
    main()
