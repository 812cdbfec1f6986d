"""The flags of ``review`` and ``audit``: nothing is read from the environment, so that a manifest is judged
alike in every folder and on every machine."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from timekeeper.core.wire import StandingWord
from timekeeper.runtime.flags import Parser, path_or_none
from webhook.admission.workloads import TemplatePath
from webhook.policy import Mode
from webhook.settings.flag_values import priority_class, template_paths

Format = Literal["text", "json", "yaml", "diff"]

STANDINGS: dict[str, StandingWord] = {
    "in-budget": "IN_BUDGET",
    "over-budget": "OVER_BUDGET",
    "unlimited": "UNLIMITED",
    "unknown": "UNKNOWN",
}


@dataclass(frozen=True, slots=True)
class CommonFlags:
    """What both commands go by: files with budget ConfigMaps, a mode over theirs, where else templates
    stand."""

    budgets: tuple[str, ...]
    mode: Mode | None
    template_paths: tuple[TemplatePath, ...]


@dataclass(frozen=True, slots=True)
class ReviewSettings:
    """What `review` runs with. ``standing`` None: as the budgets say before anything is spent."""

    files: tuple[str, ...]
    output: Format
    standing: StandingWord | None
    namespace: str
    classes: dict[str, int]
    given: CommonFlags


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What `audit` runs with. An empty ``namespace`` is all of them."""

    kubeconfig: Path | None
    namespace: str
    output: Literal["text", "json"]
    given: CommonFlags


def read_review(arguments: Sequence[str]) -> ReviewSettings:
    """The settings of ``python -m webhook review``. Exits with 2 and a sentence where one is bad."""
    given = _reviewing().parse_args(arguments)
    return ReviewSettings(
        files=tuple(given.files),
        output=given.output,
        standing=STANDINGS[given.standing] if given.standing else None,
        namespace=given.namespace,
        classes={each.name: each.value for each in given.priority_class},
        given=_given(given),
    )


def read_audit(arguments: Sequence[str]) -> AuditSettings:
    """The settings of ``python -m webhook audit``. Exits with 2 and a sentence where one is bad."""
    given = _auditing().parse_args(arguments)
    return AuditSettings(given.kubeconfig, given.namespace, given.output, _given(given))


def _reviewing() -> Parser:
    parser = Parser(
        prog="bursar-webhook review",
        description="Says what admission would say to manifests, without a cluster: pods, workloads with pod "
        "templates, budget ConfigMaps, lists of these; all else is passed over. Exits with 0 where all is "
        "admitted, 1 where something is refused, 2 where something cannot be read.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="YAML or JSON; - or none: standard input")
    parser.add_argument(
        *("-o", "--output"),
        choices=get_args(Format),
        default="text",
        help="text for people; json: a list; yaml: the pods as they would be stored; diff: what admission "
        "changes in them (default text)",
    )
    parser.add_argument(
        "--standing",
        choices=tuple(STANDINGS),
        help="of every namespace (default: in-budget, or unlimited where --budgets gives it no budget)",
    )
    parser.add_argument("--namespace", default="default", help="of objects that name none (default default)")
    parser.add_argument(
        "--priority-class",
        type=priority_class,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a priority class that pods name; may be repeated. Classes among the files are "
        "known, and the API server's own",
    )
    _add_common(parser)
    return parser


def _auditing() -> Parser:
    parser = Parser(
        prog="bursar-webhook audit",
        description="Lists what runs already and would be refused or warned of by today's rules, and pods "
        "that hold GPUs ungoverned. Needs to get and list pods and workloads, and changes nothing. Exits "
        "with 0 where nothing is found, 1 where something is, 2 where the cluster could not be read.",
    )
    parser.add_argument(
        "--kubeconfig",
        type=path_or_none,
        help="kubeconfig file (default: the pod's own service account, else kubectl's own file)",
    )
    parser.add_argument("--namespace", default="", help="look into this one alone (default: into all)")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json: a list (default text)"
    )
    _add_common(parser)
    return parser


def _add_common(parser: Parser) -> None:
    parser.add_argument(
        "--budgets",
        action="append",
        default=[],
        metavar="FILE",
        help="a file with the budget ConfigMaps, whose settings, rules and budgets hold; may be repeated "
        "(default: no budgets, and every setting at its default)",
    )
    parser.add_argument(
        "--mode", choices=("enforce", "observe"), help="over the mode of --budgets (default enforce)"
    )
    parser.add_argument(
        "--template-path",
        action="extend",
        type=template_paths,
        default=[],
        metavar="GROUP/KIND=PATH",
        help="where another kind keeps its pod templates, such as "
        "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template; may be repeated",
    )


def _given(given: argparse.Namespace) -> CommonFlags:
    return CommonFlags(tuple(given.budgets), given.mode, tuple(given.template_path))
