"""Reads pages of metrics."""

from prometheus_client.parser import text_string_to_metric_families


def sample(page: str, name: str) -> float:
    """The value of the one series of this name."""
    families = text_string_to_metric_families(page)
    (value,) = (each.value for family in families for each in family.samples if each.name == name)
    return value
