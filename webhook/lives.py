"""How long certificates are good, and how long everybody has to take up a changed one."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Lives:
    """Of a CA, of a leaf, and the overlap: how long a bundle must have been everywhere before a CA in it
    signs, and a leaf before the former CA is dropped.

    The overlap must be longer than a kubelet takes to bring a changed Secret into a pod (minutes), than
    sidecars go without an answer that names the bundle (50 heartbeats), and than any of them is cut off.
    """

    ca: timedelta = timedelta(days=3650)
    leaf: timedelta = timedelta(days=365)
    overlap: timedelta = timedelta(days=7)

    def wrong(self) -> str:
        """Why these lives do not go together, in a sentence; empty where they do."""
        if self.leaf > self.ca:
            return f"--leaf-life ({self.leaf}) must not be longer than --ca-life ({self.ca})"
        if 4 * self.overlap > self.ca:
            return (
                f"--overlap ({self.overlap}) must be at most a quarter of --ca-life ({self.ca}): a CA is "
                "renewed when a third of its life is left, and the new one takes over within that time"
            )
        return ""
