"""The health of a source that nobody looks at."""

from timekeeper.edge.source_health import SourceHealth


def unnoted(name: str = "pods") -> SourceHealth:
    """Of a source whose log is dropped, at the moment 0."""
    return SourceHealth(name, lambda *_, **__: None, lambda: 0)
