"""The workload of a pod: its topmost controller, by the names that controllers give what they make. Nothing
reads owners: `docs/decisions/0102-sizes-follow-their-owner.md`."""

from typing import Any

from sqlalchemy import JSON, ColumnElement, Text, and_, case, cast, func, literal

Expression = ColumnElement[Any]

# a workload of pods that other controllers make -> the label with its name
SETS = {
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/name",
}
BY_LABEL = (*SETS, "RayJob", "Rollout")  # what `workload` knows by labels
# a CronJob names a Job after itself and the minute since 1970 of its schedule; 20261101 is a day
_DIGITS, _LENGTH, _EARLIEST = "0123456789", 8, "24000000"
_OF_RAY = "ray.io/originated-from-cr-name"


def label_of(dialect: str, labels: Expression, name: str) -> Expression:
    """A label's value; empty without one."""
    if dialect == "postgresql":
        value: Expression = cast(labels, JSON).op("->>")(literal(name))
    else:
        value = func.json_extract(labels, literal(f'$."{name}"'))
    return func.coalesce(cast(value, Text), "")


def workload(dialect: str, rows: Any) -> Expression:
    """The workload as ``Kind/name``; where no rule says it, the owner. ``rows``: the columns of sessions, or
    of rolled-up ones."""

    def label(name: str) -> Expression:
        return label_of(dialect, rows.labels, name)

    owner = rows.owner
    found = [(owner == "", owner)]
    found += [(label(key) != "", literal(f"{kind}/") + label(key)) for kind, key in SETS.items()]
    is_rays = and_(label("ray.io/originated-from-crd") == "RayJob", label(_OF_RAY) != "")
    found.append((is_rays, literal("RayJob/") + label(_OF_RAY)))
    end = literal("-") + label("rollouts-pod-template-hash")
    rollout = func.replace(func.substr(owner, 12), end, "")
    is_rollouts = and_(end != "-", owner == literal("ReplicaSet/") + rollout + end)
    found.append((is_rollouts, literal("Rollout/") + rollout))
    return case(*found, else_=func.coalesce(cron_job(owner), owner))


def cron_job(owner: Expression) -> Expression:
    """The CronJob that made the Job ``owner`` on its schedule, as ``CronJob/name``; NULL: none."""
    stem = func.rtrim(owner, _DIGITS)
    name, minute = func.rtrim(stem, "-"), func.substr(owner, func.length(stem) + 1)
    is_its = and_(func.substr(owner, 1, 4) == "Job/", name != stem)
    return case((and_(is_its, func.length(minute) == _LENGTH, minute >= _EARLIEST), literal("Cron") + name))
