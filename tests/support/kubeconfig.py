"""Kubeconfig files for simulated API servers."""

import json
from pathlib import Path


def kubeconfig(folder: Path, url: str) -> Path:
    """A kubeconfig file for the API server at this URL."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "simulated", "cluster": {"server": url}}],
        "users": [{"name": "own", "user": {"token": "own"}}],
        "contexts": [{"name": "here", "context": {"cluster": "simulated", "user": "own"}}],
        "current-context": "here",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))  # JSON is YAML too
    return path
