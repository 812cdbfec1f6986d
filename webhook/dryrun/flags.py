"""The flags of ``review`` and ``audit``. Nothing but the program's name is read from the environment, so that
a manifest gets the same result in every folder and on every machine."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from timekeeper.core.wire import StandingWord
from timekeeper.runtime.flags import Parser, path_or_none
from webhook.admission.workloads import TemplatePath
from webhook.policy import Mode
from webhook.settings.flag_values import OTHER_SCHEDULERS, other_schedulers, priority_class, template_paths

Format = Literal["text", "json", "yaml", "diff"]

STANDINGS: dict[str, StandingWord] = {
    "in-budget": "IN_BUDGET",
    "over-budget": "OVER_BUDGET",
    "unlimited": "UNLIMITED",
    "unknown": "UNKNOWN",
}


PROGRAM = "BURSAR_PROGRAM"  # set by a program that runs one of these commands under another name


def program(command: str) -> str:
    """What messages call the program that runs this command."""
    return os.environ.get(PROGRAM) or f"bursar-webhook {command}"


@dataclass(frozen=True, slots=True)
class CommonFlags:
    """The flags of both commands."""

    budgets: tuple[str, ...]  # files with budget ConfigMaps
    mode: Mode | None  # overrides the mode of the budgets
    template_paths: tuple[TemplatePath, ...]
    other_schedulers: frozenset[str] = frozenset()  # as the webhook's flag has them


@dataclass(frozen=True, slots=True)
class ReviewSettings:
    """The settings of `review`. ``standing`` None: that of the budgets before anything is used."""

    files: tuple[str, ...]
    output: Format
    standing: StandingWord | None
    namespace: str
    classes: dict[str, int]
    given: CommonFlags


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The settings of `audit`. An empty ``namespace`` means all."""

    kubeconfig: Path | None
    context: str  # of the kubeconfig; "": its current one
    namespace: str
    output: Literal["text", "json"]
    given: CommonFlags
    is_use: bool  # print what the pods hold and would cost, not findings


def read_review(arguments: Sequence[str]) -> ReviewSettings:
    """The settings of ``python -m webhook review``. Exits with 2 and a sentence where one is bad."""
    given = review_flags().parse_args(arguments)
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
    given = audit_flags().parse_args(arguments)
    return AuditSettings(
        kubeconfig=given.kubeconfig,
        context=given.context,
        namespace="" if given.all_namespaces else given.namespace,
        output=given.output,
        given=_given(given),
        is_use=given.use,
    )


def review_flags() -> Parser:
    """The flags of ``bursar-webhook review``."""
    parser = Parser(
        prog=program("review"),
        description="Reviews manifests as admission would, without a cluster: pods, workloads with pod "
        "templates, budget ConfigMaps, and lists of these; it skips other objects, but takes the values of "
        "PriorityClasses, and for the rule host-share the CPU, memory and cards of Nodes. Exit code: 0 "
        "everything is admitted, 1 something is refused, 2 something cannot be read.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="YAML or JSON; - or none: standard input")
    parser.add_argument(
        *("-o", "--output"),
        choices=get_args(Format),
        default="text",
        help="text: for people; json: a list; yaml: the pods as they would be stored; diff: the changes of "
        "admission (default text)",
    )
    parser.add_argument(
        "--standing",
        choices=tuple(STANDINGS),
        help="standing of every namespace (default: in-budget, or unlimited where --budgets contains no "
        "budget for it)",
    )
    parser.add_argument(
        *("-n", "--namespace"),
        default="default",
        help="namespace of objects without one (default default)",
    )
    parser.add_argument(
        "--priority-class",
        type=priority_class,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a priority class that pods use; may be repeated. Classes in the files and those of "
        "Kubernetes are known",
    )
    _add_common(parser)
    return parser


def audit_flags() -> Parser:
    """The flags of ``bursar-webhook audit``."""
    parser = Parser(
        prog=program("audit"),
        description="Lists existing objects that today's rules would refuse or warn about, and pods that "
        "use GPUs but are not metered. It needs the verbs get and list on pods and workloads, and changes "
        "nothing. Exit code: 0 no findings, 1 findings, 2 the cluster could not be read.",
    )
    parser.add_argument(
        "--kubeconfig",
        type=path_or_none,
        help="kubeconfig file (default: the pod's own service account, else kubectl's default file)",
    )
    parser.add_argument(
        "--context", default="", metavar="NAME", help="a context of the kubeconfig (default: its current one)"
    )
    parser.add_argument(
        *("-n", "--namespace"), default="", help="read only this namespace (default: all of them)"
    )
    parser.add_argument(
        *("-A", "--all-namespaces"),
        action="store_true",
        help="read all namespaces, as without this flag; -n changes nothing beside it",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default="text",
        help="text: for people; json: a list (default text)",
    )
    parser.add_argument(
        "--use",
        action="store_true",
        help="print instead what the running pods hold, by namespace and dialect, and what it would cost in "
        "a month; it needs the verbs get and list on nodes, too. Exit code: 0, or 2 as above",
    )
    _add_common(parser)
    return parser


def _add_common(parser: Parser) -> None:
    parser.add_argument(
        "--budgets",
        action="append",
        default=[],
        metavar="FILE",
        help="file with budget ConfigMaps, whose settings, rules and budgets apply; may be repeated "
        "(default: no budgets, and default settings)",
    )
    parser.add_argument(
        "--mode", choices=("enforce", "observe"), help="overrides the mode of --budgets (default enforce)"
    )
    parser.add_argument(
        "--other-schedulers",
        type=other_schedulers,
        default=frozenset(),
        metavar="NAMES",
        help=f"as the webhook's flag: some of {', '.join(OTHER_SCHEDULERS)}, separated by commas",
    )
    parser.add_argument(
        "--template-path",
        action="extend",
        type=template_paths,
        default=[],
        metavar="GROUP/KIND=PATH",
        help="path of the pod templates of another kind, for example "
        "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template; may be repeated",
    )


def _given(given: argparse.Namespace) -> CommonFlags:
    return CommonFlags(tuple(given.budgets), given.mode, tuple(given.template_path), given.other_schedulers)
