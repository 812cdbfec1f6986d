"""The warnings that people see in kubectl beside "pod created".

The API server drops a warning with a line break, and cuts all of them once they pass 4096 bytes together.
"""

from collections.abc import Iterable, Iterator

from timekeeper.core import names
from timekeeper.core.budgets.policy import BUILT_ON_EXHAUSTED
from timekeeper.core.dialects import tencent
from timekeeper.core.request.request import BUILT_POLICIES, Json, containers, mapping
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown
from webhook.mutation import govern
from webhook.policy import PriorityClass, Standing, Terms
from webhook.rules.catalogue import CATALOGUE, Answered, answered

LONGEST_BYTES = 256
ALL_BYTES = 4000

UNMETERED = "this pod's GPU request cannot be read, so it runs without being governed or metered"


def notices(
    pod: Json, request: GPURequest, namespace: str, standing: Standing, terms: Terms
) -> tuple[str, ...]:
    """What the user of a pod that is being governed should know, most important first."""
    return fitting((*_of_standing(namespace, standing, terms), *_of_changes(pod, request, standing, terms)))


def of_violations(
    violations: Iterable[Violation], terms: Terms, exempt: bool = False, governed: bool = True
) -> tuple[str, ...]:
    """What is wrong and lets the object through all the same: by the rule's mode, while observing, or because
    the user is exempt. ``governed``: whether Bursar mends what it can."""
    return fitting(
        _of_violation(each, answered(each.rule, terms, exempt), governed and _mends(each.rule, terms))
        for each in violations
    )


def _mends(rule: str, terms: Terms) -> bool:
    return rule != "priority-class" or terms.mode != "observe"


def _of_violation(violation: Violation, how: Answered, mends: bool) -> str:
    if how == "observe":
        return f"would be refused: {violation.sentence()}"
    got = f", got {violation.got}" if violation.got else ""
    instead = CATALOGUE[violation.rule].instead
    if not mends and instead.startswith("replaced"):
        instead = f"would be {instead}"
    exempt = " (you are exempt from this rule)" if how == "exempt" else ""
    return f"{violation.path}: {violation.problem}{got}; {instead}{exempt}"


def fitting(sentences: Iterable[str]) -> tuple[str, ...]:
    """As many sentences as fit the API server's budget, each on one line and cut to its length."""
    fit, left = [], ALL_BYTES
    for sentence in sentences:
        line = _cut(sentence if sentence.isprintable() else _printable(sentence))
        left -= len(line.encode())
        if left < 0:
            break
        fit.append(line)
    return tuple(fit)


def _printable(sentence: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in sentence)


def _cut(line: str) -> str:
    raw = line.encode()
    if len(raw) <= LONGEST_BYTES:
        return line
    return raw[: LONGEST_BYTES - 3].decode(errors="ignore") + "..."


def _of_standing(namespace: str, standing: Standing, terms: Terms) -> Iterator[str]:
    where, ours = f"namespace {namespace}", terms.class_of(standing.word)
    if standing.word == "UNKNOWN":
        yield f"{where}: the GPU budget is not known at the moment{_given('; admitted at', ours)}"
    elif standing.word == "OVER_BUDGET" and terms.mode == "observe":
        later = terms.over_budget.name
        yield f"{where} has used up its GPU budget; once it counts, the pod gets priority class {later}"
    elif standing.word == "OVER_BUDGET" and standing.by_estimate:
        yield f"{where}: pods of the last seconds use up the rest of its GPU budget{_given(';', ours)}"
    elif standing.word == "OVER_BUDGET":
        yield f"{where} has used up its GPU budget{_given('; this pod gets', ours)}"
    if standing.word == "OVER_BUDGET" and standing.on_exhausted not in BUILT_ON_EXHAUSTED:
        yield f"{where}: onExhausted: {standing.on_exhausted} is not built yet and acts as deprioritize"
    if standing.word == "IN_BUDGET" and _nearly_spent(standing):
        whole, tenth = divmod(standing.ratio_milli or 0, 10)
        yield f"{where} has spent {whole}.{tenth} % of its GPU budget"


def _given(words: str, ours: PriorityClass) -> str:
    return "" if ours.absent else f"{words} priority class {ours.name}"


def _nearly_spent(standing: Standing) -> bool:
    spent, warn_at = standing.ratio_milli, standing.warn_at_milli
    return spent is not None and warn_at is not None and spent >= warn_at


def _of_changes(pod: Json, request: GPURequest, standing: Standing, terms: Terms) -> Iterator[str]:
    spec, ours = pod["spec"], terms.class_of(standing.word)
    if ours.absent:
        yield f"priority class {shown(ours.name)} does not exist in the cluster; it is not set"
    if request.policy and request.policy not in BUILT_POLICIES:
        yield f"{names.POLICY}: {request.policy} is not built yet and acts as binpack"
    if request.topology and all(each.ask.devices == 1 for each in request.asks):
        yield f"{names.TOPOLOGY}: {request.topology} changes nothing, for no container asks for several cards"
    yield from _without_effect(pod, request)
    own = spec.get("priorityClassName")
    told = govern.stands_above_budget(spec, terms)  # by the rule of that
    if own and own != ours.name and not told and not govern.keeps_own_class(spec, standing.word, terms):
        most = f"{ours.name}, the highest that the namespace's budget gives"
        yield f"priority class {shown(own)} replaced by {most}"


def _without_effect(pod: Json, request: GPURequest) -> Iterator[str]:
    """Memory beside whole cards, which only this dialect takes: gpu-manager gives them all of it."""
    if request.dialect != tencent.DIALECT.name:
        return
    whole = {each.container for each in request.asks if each.ask.whole}
    for each in containers(pod):
        limits = mapping(mapping(each.raw.get("resources")).get("limits"))
        if each.name in whole and tencent.MEMORY in limits:
            path = f"{each.path}.resources.limits[{tencent.MEMORY}]"
            yield f"{path} has no effect: whole cards come with all of their memory"
