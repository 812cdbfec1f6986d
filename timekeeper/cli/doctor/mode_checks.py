"""In which mode namespaces are, whether labels name modes, and whether the policies follow."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    applying,
    items,
    logs_of,
    named,
)
from timekeeper.core.budgets.modes import EFFECTS
from timekeeper.core.budgets.policy import MODES
from timekeeper.core.findings import some_of
from timekeeper.core.json_values import mapping
from timekeeper.core.names import MODE_LABEL

_SUBJECT = "modes"
_POLICIES = "modes of the policies"
# what the policies on pods read, the second for those that warn
PARAMETERS = ("bursar-modes", "bursar-modes-observed")
_LOST = "does not exist"
_NOTHING = (
    "so the policies on what a pod may be judge nothing: a pod can reach cards that it does not request"
)


def modes(facts: Facts) -> Iterator[CheckResult]:
    """The mode of the cluster, of each namespace with another one, and what follows; and labels that name no
    mode."""
    for each in [] if isinstance(facts.labelled, NotReadable) else items(facts.labelled):
        name, word = each["metadata"]["name"], each["metadata"]["labels"][MODE_LABEL]
        if word not in MODES:
            yield _no_mode(name, str(word), _known(facts))
    if not (known := _known(facts)):
        return  # said by the check of the timekeeper
    default = known[""]
    yield CheckResult("ok", _SUBJECT, f"{default} where nothing else is said: {EFFECTS[default]}")
    for mode in MODES:
        names = sorted(name for name, its in known.items() if name and its == mode != default)
        if names:
            yield CheckResult("ok", _SUBJECT, f"{mode} in {some_of(names)}: {EFFECTS[mode]}")


def left_behind(facts: Facts) -> Iterator[CheckResult]:
    """Of a ledger alone: what another mode of the installation had, such as webhooks and policies."""
    lists = (facts.mutating, facts.policies, facts.policy_bindings, *facts.workloads)
    found = [*filter(mapping, [facts.validating]), *(made for listed in lists for made in items(listed))]
    counts = Counter(str(made.get("kind")) for made in found if _is_ours(mapping(made.get("metadata"))))
    if counts:
        which = ", ".join(f"{number} {kind}" for kind, number in counts.items())
        sentence = f"mode meter installs nothing of this, and it goes on to judge and change pods: {which}"
        yield CheckResult("error", _SUBJECT, sentence, "prune them as docs/gitops.md says")


def _is_ours(metadata: Mapping[str, Any]) -> bool:
    is_part = mapping(metadata.get("labels")).get("app.kubernetes.io/part-of") == "bursar"
    return is_part and metadata.get("name") != "bursar-timekeeper"


def _known(facts: Facts) -> Mapping[str, str]:
    return {} if isinstance(facts.modes, NotReadable) else mapping(facts.modes)


def _no_mode(name: str, word: str, known: Mapping[str, str]) -> CheckResult:
    mode = known.get(name, known.get("", ""))
    sentence = (
        f'namespace {name} has the label {MODE_LABEL} with "{word}", which is no mode and says nothing'
        f"{f': its mode is {mode}' if mode else ''}; allowed: {', '.join(MODES)}, or no such label"
    )
    command = (
        f"kubectl label namespace {name} {MODE_LABEL}=observe --overwrite, or {MODE_LABEL}- to remove it"
    )
    return CheckResult("warning", _SUBJECT, sentence, command)


def parameters(facts: Facts) -> Iterator[CheckResult]:
    """Where policies are installed, both objects say what the ledger says."""
    are_there = not isinstance(facts.policies, NotReadable) and items(facts.policies)
    if not are_there or isinstance(facts.budgets, NotReadable):
        return  # said by the checks of policies and budgets
    faults = [fault for name in PARAMETERS if (fault := _fault(facts, name))]
    reason = f"{logs_of(facts, 'timekeeper', -1)} | grep modes-"
    for fault in faults:
        lost = f"{applying(facts, 'admission-modes.yaml')}; " if _LOST in fault else ""
        yield CheckResult("error", _POLICIES, fault, f"{lost}{reason}")
    if not faults:
        yield CheckResult("ok", _POLICIES, "the policies follow the modes of namespaces")


def _fault(facts: Facts, name: str) -> str:
    """What is wrong with one of the objects; "": nothing."""
    found, writes = named(facts.budgets, name), "the timekeeper writes it anew four times a minute"
    observed = name != PARAMETERS[0]
    nothing = "so the policies warn nobody in observed namespaces" if observed else _NOTHING
    if found is None:
        return f"the ConfigMap {name} {_LOST}, {nothing}; {writes}"
    data = mapping(found.get("data"))
    others = ("_initial", "_judged", "_host")
    said = {key: text for key, text in data.items() if key not in others and "." not in key}
    wrong = sorted(key for key, text in said.items() if text not in MODES)
    if wrong:
        return f"{some_of(wrong)} of the ConfigMap {name} is no mode, {nothing} there; {writes}"
    if observed and data.get("_judged") != "observe":
        return f"the ConfigMap {name} lacks _judged: observe, {nothing}; {writes}"
    return _old(name, said, _known(facts), writes)


def _old(name: str, said: Mapping[str, object], known: Mapping[str, str], writes: str) -> str:
    """Where the object differs from the ledger."""
    if not known:
        return ""
    if "_default" not in said:
        return f"nothing is written into the ConfigMap {name}, so labels and entries do not count; {writes}"
    default = said["_default"]
    names = sorted((known.keys() | said.keys()) - {"", "_default"})
    changed = [each for each in names if said.get(each, default) != known.get(each, known[""])]
    if default == known[""] and not changed:
        return ""
    where = some_of(changed) if changed else "namespaces without an entry"
    return f"the ConfigMap {name} is old: policies judge {where} by another mode than the ledger; {writes}"
