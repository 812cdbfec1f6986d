"""What the kernel keeps for a server's clients."""

from pathlib import Path


def untaken(port: int) -> list[int]:
    """Of each IPv4 connection to this port, also one that the server has closed: how many bytes its client
    has not acknowledged."""
    listed = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listens = "0A"
    return [
        int(fields[4].partition(":")[0], 16)
        for fields in listed
        if fields[1].endswith(f":{port:04X}") and fields[3] != listens
    ]
