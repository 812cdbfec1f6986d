"""What the page on Helm has people type who apply the manifests, against the manifests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


