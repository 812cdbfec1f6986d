"""What a page lists by hand is what the code declares: no name is missing on it, and none is left over.

The blocks that `python -m tests.reference` writes need no row here. A failure says the page and the names.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from flask import Flask

from scheduler_ext import log as extender_log
from scheduler_ext.fit import refusal
from scheduler_ext.model.node import CLOSED
from scheduler_ext.serving.read_port import create_app as extender_app
from scheduler_ext.serving.read_port import read_app
from scheduler_ext.serving.routes import verb_calls
from scheduler_ext.settings import flags_of
from sidecar import log_events
from sidecar.node import agent, holder_survey
from sidecar.node import settings as agent_settings
from sidecar.node.nvml import cards
from sidecar.node.state import card_events, health, overuse
from sidecar.node.state import mps as mps_use
from tests.docs.agent_metrics import of_holders, of_the_agent, of_use
from tests.docs.monitoring import DASHBOARDS, EXPRESSIONS, RULES, metrics_in
from tests.packaging.checkout import ROOT
from tests.reference import metrics as reference
from tests.runtime.lines import into
from tests.webhook.process_metrics import of_this_process
from timekeeper import log as timekeeper_log
from timekeeper.accounts.card_use import evictions
from timekeeper.accounts.card_use.overuse import FRESH_MS
from timekeeper.api.create_app import ROUTES
from timekeeper.api.http.openapi import document
from timekeeper.api.resources.account_metrics import FAMILIES
from timekeeper.cli.main import cli
from timekeeper.core import names
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.mutation import mps
from timekeeper.core.admission.policy import Sidecar
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.cluster_map import WAITING_STATES
from timekeeper.edge import events as event_recorder
from timekeeper.edge import log_events as edge_events
from timekeeper.settler import budget_entries, claim_notices, pod_notices
from timekeeper.settler.evictions import reasons
from timekeeper.wire.cluster_map import MapCard, MapNode, MapPod, MapWaitingPod
from webhook import log as webhook_log
from webhook.server import simulation
from webhook.server.app import create_app as webhook_app
from webhook.server.app import create_calls
from webhook.server.wiring import metrics_route
from webhook.settings import serve

DOCS = ROOT / "docs"
UNUSED: Any = None  # nothing is called

Find = Callable[[str], set[str]]


def first_column(text: str) -> set[str]:
    """What stands in back quotes in the first cell of each row, up to a space."""
    cells = re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^\s`]+)[^`]*`", cell)}


def matching(pattern: str) -> Find:
    """What matches the pattern, whose groups make one name."""

    def find(text: str) -> set[str]:
        matches = re.finditer(pattern, text, re.MULTILINE)
        return {" ".join(" ".join(match.groups()).split()) for match in matches}

    return find


def metrics(text: str) -> set[str]:
    """The rows of metrics with kind and labels, without what stands in parentheses. "The same" labels are
    those of the row above."""
    listed: set[str] = set()
    labels: list[str] = []
    for name, kind, cell in re.findall(r"^\| `(\w+)` \| (gauge|counter)(.*?) \|", text, re.MULTILINE):
        own = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", cell))
        labels = [*labels, *own] if "the same" in cell else own
        listed.add(metric(name, kind, labels))
    return listed


def metric(name: str, kind: str, labels: Iterable[str]) -> str:
    return " ".join((name, kind, *sorted(labels)))


@dataclass(frozen=True)
class Inventory:
    """Names, and the part of a page that lists them: from a text to another, or to the page's end."""

    page: str
    begins: str
    names: Collection[str]
    find: Find = first_column
    ends: str | None = "\n## "

    def __str__(self) -> str:
        return f"{self.page}: {self.begins.strip()}"

    @property
    def text(self) -> str:
        """That part of the page."""
        _, begins, text = (DOCS / self.page).read_text().partition(self.begins)
        assert begins, f"docs/{self.page} lacks the text {self.begins!r}"
        return text if self.ends is None else text.partition(self.ends)[0]


def table(page: str, head: str, names: Collection[str], find: Find = first_column) -> Inventory:
    """The table whose head begins so."""
    return Inventory(page, head, names, find, "\n\n")


def words(alias: Any) -> set[str]:
    """The words of a Literal, or of several."""
    return {word for part in get_args(alias) for word in (words(part) if get_args(part) else [part])}


def routes(*apps: Flask, posts: Iterable[str]) -> set[str]:
    """The routes of the applications, and the paths that are posted to."""
    return {f"POST {path}" for path in posts} | {
        f"{method} {rule.rule}"
        for app in apps
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


def fields(key: str, text: str) -> list[str]:
    """Every field that an entry takes, by the refusal of one that it does not."""
    error = read_entry(key, text)
    assert isinstance(error, EntryError)
    return error.allowed.split(", ")


SHARED = words(edge_events.LogEvent)
OF_EDGE = words(edge_events.OfEvents) | words(edge_events.OfLease) | words(edge_events.OfSources)
WEBHOOK = routes(
    webhook_app(UNUSED), posts=[*create_calls(UNUSED, of_this_process(), into([])), simulation.PATH]
)
EXTENDER = routes(
    extender_app(UNUSED), read_app(UNUSED, UNUSED), posts=verb_calls(UNUSED, UNUSED, UNUSED, into([]))
)
AGENT = of_the_agent() | of_holders() | of_use()
METRICS = {
    *first_column(reference.of_webhook() + reference.of_extender() + reference.of_timekeeper()),
    *AGENT,
    *(f"bursar_account_{name}" for name in FAMILIES),
}
CARDS = {name: labels for name, (_, labels) in AGENT.items() if name.startswith("DCGM_")}
PLAIN_COLUMNS = {"uid", "models", "labels", "pod", "to", "from"}
PLAIN_FIELDS = {
    *("uuid", "name", "namespace", "uid", "index", "model", "healthy", "pods"),
    *("standing", "priority", "age_ms"),
}
SCHEMAS = document(ROUTES)["components"]["schemas"]
GPU_EVENTS = (
    *(card_events.FAULTY, card_events.WELL, holder_survey.STRANGER, holder_survey.OPEN_RUNTIME),
    *(overuse.OVER, overuse.WITHIN, reasons.OVERUSED, reasons.OVERUSE_PROTECTED),
)

LISTED = (
    table(
        "alerts.md",
        "| alert |",
        [f"{rule['alert']} {rule['labels']['severity']} {rule.get('for', 'at once')}" for rule in RULES],
        matching(r"^\| `(Bursar\w+)` \| (\w+) \| (.*?) \|"),
    ),
    table("alerts.md", "| dashboard |", [file.name for file in DASHBOARDS]),
    Inventory(
        "annotations.md",
        "<!-- users:",
        [*names.USER_ANNOTATIONS, *names.GANG_ANNOTATIONS, names.GANG_LATE, names.WANTS_SIDECAR],
        matching(r"^\| `(\S+)` \| annotation \|"),
        "<!-- end",
    ),
    Inventory(
        "api.md",
        "\n## The webhook\n",
        WEBHOOK | {f"GET {metrics_route(UNUSED, True, None).path}"},
        matching(r"`((?:GET|POST)\s+/[\w/]+)`"),
    ),
    Inventory("api.md", "\n## The extender\n", EXTENDER, matching(r"`((?:GET|POST)\s+/[\w/]+)`")),
    Inventory("budget-settings.md", "Fields of a budget:", fields("team-a", "gpuHours: 1\nnothing: 1")),
    Inventory(
        "budget-settings.md", "Fields of `_settings`:", fields("_settings", "nothing: 1"), ends="Durations"
    ),
    table("budget-settings.md", "| Event on a ConfigMap |", words(budget_entries.EntryReason)),
    table("claims.md", "| Event on a claim |", words(claim_notices.ClaimReason)),
    table("cli.md", "| command |", cli.commands),
    table("extender.md", "| `kind` |", refusal.KINDS),
    table("extender.md", "| `reason` |", CLOSED),
    table("extender.md", "| `state` |", WAITING_STATES),
    Inventory("extender.md", "\n## Events\n", words(extender_log.EventReason), matching(r"`([A-Z]\w+)`")),
    table("governed-pods.md", "| `event=` |", words(log_events.OfSidecar)),
    Inventory("metrics.md", "\n### Of every role\n", SHARED, ends="\n### "),
    Inventory("metrics.md", "\n### Of the webhook\n", words(webhook_log.LogEvent) - SHARED),
    Inventory("metrics.md", "Log lines, in the [format above]", words(extender_log.LogEvent) - SHARED),
    Inventory(
        "metrics.md",
        "\n### Log lines of the timekeeper\n",
        words(timekeeper_log.LogEvent) - SHARED,
        ends=None,
    ),
    Inventory("metrics.md", "`GET /v1/metrics` has", FAMILIES, matching(r"`bursar_account_(\w+)`"), "\n### "),
    Inventory(
        "metrics.md",
        "| `bursar_overuse_evictions_total` | counter; `result` |",
        evictions.RESULTS,
        matching(r"`(\w+)`"),
        "([",
    ),
    table("node-agent.md", "| event in the log |", words(log_events.OfNode)),
    table("node-agent.md", "| event | fields |", words(log_events.OfHolders)),
    Inventory("node-agent.md", "# ", GPU_EVENTS, matching(r"`(GPU[A-Z][A-Za-z]+)`"), None),
    Inventory(
        "node-agent.md",
        "# ",
        [metric(name, kind, () if name in CARDS else labels) for name, (kind, labels) in AGENT.items()],
        metrics,
        None,
    ),
    Inventory(
        "node-agent.md",
        "units and labels (",
        {label for labels in CARDS.values() for label in labels},
        matching(r"`(\w+)`"),
        ") of NVIDIA's",
    ),
    table("troubleshooting.md", "| reason | type | when |", words(pod_notices.PodReason)),
)

# Names that a part of a page must have, each in back quotes; it may have others.
EXPLAINED = (
    Inventory(
        "api.md", "\n### Usage\n", SCHEMAS["UsageRow"]["properties"].keys() - PLAIN_COLUMNS, ends="\n### "
    ),
    Inventory("api.md", "\n### Grants\n", SCHEMAS["NewGrant"]["properties"], ends="\n### "),
    Inventory(
        "enforcement.md",
        "# ",
        {*mps.NAMES, VISIBLE_DEVICES, f"{names.MPS_MEMORY}CONTAINER", f"{names.MPS_THREADS}CONTAINER"},
        ends=None,
    ),
    Inventory(
        "extender.md",
        "# ",
        {field for kind in (MapCard, MapPod, MapNode, MapWaitingPod) for field in kind.__annotations__}
        - PLAIN_FIELDS,
        ends=None,
    ),
)

NUMBERS = {2: "two", 5: "five", 10: "ten"}


def seconds(ms: int) -> str:
    return f"{ms // 1000} s"


def minutes(ms: int) -> str:
    return f"{ms // 60_000} minutes"


def in_words(ms: int) -> str:
    return f"{NUMBERS[ms // 60_000]} minutes"


SIDECAR = Sidecar("", "", "")
*XIDS, LAST_XID = sorted(cards.OF_PROGRAMS)
HANGING_MS = agent.HUNG_MS + health.PATIENCE_MS + 5_000
# What a user reads as a promise, with the figures of the code.
PROMISES = (
    ("enforcement.md", f"`{serve.read(['--mps', 'on'], {}).policy.mps_pipes}`, NVIDIA's default"),
    ("extender.md", f"At most {NUMBERS[event_recorder.MAX_PER_OBJECT]} are written"),
    ("extender.md", f"one pod or node in {in_words(event_recorder.SPAN_MS)}, the same text once"),
    ("extender.md", f"{in_words(event_recorder.RETRY_FOR_MS)}, at most {event_recorder.MAX_QUEUED:,}."),
    ("governed-pods.md", f"requests **{SIDECAR.cpu}** cpu and **{SIDECAR.memory}** memory"),
    ("node-agent.md", f"Programs cause the XIDs {', '.join(map(str, XIDS))} and {LAST_XID}."),
    ("node-agent.md", f"after {seconds(health.PATIENCE_MS)} of it, hanging after {seconds(HANGING_MS)} |"),
    ("node-agent.md", f"that no recovery is needed, {minutes(health.CALM_MS)} after the last one"),
    ("node-agent.md", f"NVML is opened again after {seconds(cards.REOPEN_MS)}, then less and less often"),
    ("node-agent.md", f"less often, at last every {cards.MAX_REOPEN_MS // 60_000} min |"),
    ("node-agent.md", f"computed on it through MPS for {seconds(mps_use.BEGINS_AFTER_MS)}, until"),
    ("node-agent.md", f"until {minutes(mps_use.LASTS_MS)} after the last"),
    ("node-agent.md", f"at most one of each kind in {minutes(card_events.QUIET_MS)}"),
    ("node-agent.md", f"`overuseGrace` ({minutes(BudgetSettings().overuse_grace_ms)})"),
    ("node-agent.md", f"is what reports showed in the last {in_words(FRESH_MS)}"),
    ("node-agent.md", f"again after {seconds(evictions.FIRST_PAUSE_MS)}, 1, 2, 4 and 8 minutes, then each"),
    ("node-agent.md", f"then each {minutes(evictions.LONGEST_PAUSE_MS)}"),
    ("node-agent.md", f"{seconds(evictions.SPACE_MS)} between two and {evictions.MAX_IN_AN_HOUR} in an hour"),
)

# A name of one word may be a constant of something else too, so it must be the first argument of a log. A log
# gets these in a variable, or has another name.
IN_VARIABLES = {"filter", "bind", "preempt", "policy", "server"}
# What a role writes, and where; a declared name that nothing writes is left over.
WRITTEN = {
    "scheduler_ext": words(extender_log.LogEvent) - SHARED | words(extender_log.EventReason),
    "sidecar": words(log_events.EventName) - OF_EDGE,
    "sidecar/node": words(log_events.OfNode) - OF_EDGE | words(log_events.OfHolders),
    "timekeeper": words(timekeeper_log.LogEvent) - SHARED,
    "timekeeper/edge": OF_EDGE,
    "timekeeper/runtime": SHARED - OF_EDGE,
    "timekeeper/settler": words(claim_notices.ClaimReason)
    | words(budget_entries.EntryReason)
    | words(pod_notices.PodReason),
    "webhook": words(webhook_log.LogEvent) - SHARED,
}


@pytest.mark.parametrize("inventory", LISTED, ids=str)
def test_a_page_lists_what_the_code_has_and_nothing_else(inventory: Inventory) -> None:
    listed, exist = inventory.find(inventory.text), set(inventory.names)

    assert listed == exist, f"{inventory}: lacks {exist - listed}, and has beside {listed - exist}"


@pytest.mark.parametrize("inventory", EXPLAINED, ids=str)
def test_a_page_explains_each_name(inventory: Inventory) -> None:
    missing = [name for name in sorted(inventory.names) if f"`{name}`" not in inventory.text]

    assert not missing, f"{inventory}: lacks {missing}"


@pytest.mark.parametrize(("page", "sentence"), PROMISES)
def test_a_page_promises_what_the_code_does(page: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / page).read_text().split()), page


@pytest.mark.parametrize("folder", WRITTEN)
def test_each_declared_name_is_written(folder: str) -> None:
    code = "\n".join(file.read_text() for file in sorted((ROOT / folder).rglob("*.py")))
    without_declarations = re.sub(r"(Literal\[|frozenset\()[^\])]*", "", code)
    first = {name for name in WRITTEN[folder] if name.isalpha() and name.islower()} - IN_VARIABLES
    logged = set(re.findall(r'log(?:_exception)?\(\s*"(\w+)"', without_declarations))
    left_over = sorted(first - logged)
    left_over += [name for name in sorted(WRITTEN[folder]) if f'"{name}"' not in without_declarations]

    assert not left_over, f"nothing in {folder} writes {left_over}"


def test_every_metric_that_a_page_an_alert_or_a_dashboard_names_exists() -> None:
    texts = {page.name: page.read_text() for page in sorted(DOCS.glob("*.md"))} | EXPRESSIONS
    named = {(place, name) for place, text in texts.items() for name in metrics_in(text)}

    unknown = sorted((place, name) for place, name in named if name not in METRICS)
    assert not unknown, f"no metrics of ours: {unknown}"


def test_every_alert_and_panel_reads_a_metric_of_ours_and_every_alert_says_what_it_means() -> None:
    assert [name for name, expression in EXPRESSIONS.items() if not metrics_in(expression)] == []
    assert [rule["alert"] for rule in RULES if not rule["annotations"]["summary"]] == []


def test_every_flag_that_the_dashboard_and_the_chapter_on_holders_name_exists() -> None:
    templates = "".join(file.read_text() for file in (ROOT / "timekeeper/dashboard/templates").glob("*.html"))
    chapter = (DOCS / "node-agent.md").read_text().partition("## Which pods use which cards\n")[2]
    of_dashboard = set(re.findall(r"<code>(--[a-z-]+)</code>", templates))
    of_chapter = set(re.findall(r"--([a-z]+(?:-[a-z]+)+|proc|cgroups)\b", chapter.partition("\n## ")[0]))

    of_extender = {flag for action in flags_of({})._actions for flag in action.option_strings}

    assert of_dashboard - of_extender == set()
    assert of_chapter - {flag for flag, _, _ in agent_settings.FLAGS} == set()
    assert of_dashboard
    assert of_chapter
