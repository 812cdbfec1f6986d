"""What the page on Helm has people type who apply the manifests, against the manifests."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
