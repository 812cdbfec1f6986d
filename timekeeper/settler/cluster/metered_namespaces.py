"""Which namespaces are metered alone, and which devices the settings name there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.budget_history import History


@dataclass(frozen=True, slots=True)
class MeteredNamespaces:
    """Those with another mode than `enforce`. ``by_default``: of namespaces without an entry; ``models``: the
    model of each resource that `_settings` names."""

    by_default: bool = False
    named: Mapping[str, bool] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    def meters(self, namespace: str) -> bool:
        """Whether nothing that Bursar's names say of the namespace's pods counts."""
        return self.named.get(namespace, self.by_default)

    def differs(self, before: "MeteredNamespaces", namespace: str) -> bool:
        """Whether the namespace's pods are to be read in another way than before."""
        is_metered = self.meters(namespace)
        return is_metered != before.meters(namespace) or (is_metered and self.models != before.models)


ALL_GOVERNED = MeteredNamespaces()


def metered_namespaces(history: History, at_ms: int) -> MeteredNamespaces:
    """By the entries in force at that time."""
    named = {name: history.is_metered(name, at_ms) for name in history.namespaces()}
    return MeteredNamespaces(history.is_metered("", at_ms), named, history.settings(at_ms).device_models)
