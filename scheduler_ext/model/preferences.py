"""Whether a pod says itself which nodes it prefers, so that kube-scheduler's plugins score nodes by that."""

from timekeeper.core.json_values import Json, mapping, sequence

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITIES = ("nodeAffinity", "podAffinity", "podAntiAffinity")


def has_preferences(pod: Json) -> bool:
    """True if it has preferred affinity of any kind, or a soft constraint on its spreading."""
    spec = mapping(pod.get("spec"))
    affinity, spreads = mapping(spec.get("affinity")), sequence(spec.get("topologySpreadConstraints"))
    if not affinity and not spreads:
        return False  # nearly always
    terms = (mapping(affinity.get(name)).get(_PREFERRED) for name in _AFFINITIES)
    return any(map(sequence, terms)) or any(
        each.get("whenUnsatisfiable") == "ScheduleAnyway" for each in map(mapping, spreads)
    )
