"""The flags of ``review`` and ``audit``. Nothing but the program's name is read from the environment, so that
a manifest gets the same result in every folder and on every machine."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from timekeeper.core.admission.policy import PriorityClass
from timekeeper.core.budgets.policy import MODES
from timekeeper.core.names import Mode
from timekeeper.core.wire import StandingWord
from timekeeper.runtime.flags import Parser, argument, group, namespace, path_or_none
from webhook.admission.workloads import TemplatePath
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

    budgets: tuple[str, ...] = argument(
        "--budgets",
        action="append",
        default=[],
        metavar="FILE",
        help="file with budget ConfigMaps, whose settings, rules and budgets apply; may be repeated "
        "(default: no budgets, and default settings)",
    )
    mode: Mode | None = argument(
        "--mode", choices=MODES, help="overrides the mode of --budgets (default enforce)"
    )
    other_schedulers: frozenset[str] = argument(
        "--other-schedulers",
        type=other_schedulers,
        default=frozenset(),
        metavar="NAMES",
        help=f"as the webhook's flag: some of {', '.join(OTHER_SCHEDULERS)}, separated by commas",
    )
    template_paths: tuple[TemplatePath, ...] = argument(
        "--template-path",
        action="extend",
        type=template_paths,
        default=[],
        metavar="GROUP/KIND=PATH",
        help="path of the pod templates of another kind, for example "
        "kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template; may be repeated",
    )


@dataclass(frozen=True, slots=True)
class ReviewSettings:
    """The settings of `review`."""

    files: tuple[str, ...] = argument(
        "files", nargs="*", metavar="FILE", help="YAML or JSON; - or none: standard input"
    )
    output: Format = argument(
        *("-o", "--output"),
        choices=get_args(Format),
        default="text",
        help="text: for people; json: an object with items; yaml: the pods as they would be stored; diff: "
        "the changes of admission (default text)",
    )
    standing_flag: str | None = argument(
        "--standing",
        choices=tuple(STANDINGS),
        help="standing of every namespace (default: in-budget, or unlimited where --budgets contains no "
        "budget for it)",
    )
    namespace: str = argument(
        *("-n", "--namespace"),
        type=namespace,
        default="default",
        help="namespace of objects without one (default default)",
    )
    priority_classes: tuple[PriorityClass, ...] = argument(
        "--priority-class",
        type=priority_class,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a priority class that pods use; may be repeated. Classes in the files and those of "
        "Kubernetes are known",
    )
    given: CommonFlags = group(CommonFlags)

    @property
    def standing(self) -> StandingWord | None:
        """That of every namespace. None: that of the budgets before anything is used."""
        return STANDINGS[self.standing_flag] if self.standing_flag else None

    @property
    def classes(self) -> dict[str, int]:
        """The values of priority classes."""
        return {each.name: each.value for each in self.priority_classes if each.value is not None}


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The settings of `audit`."""

    kubeconfig: Path | None = argument(
        "--kubeconfig",
        type=path_or_none,
        help="kubeconfig file (default: the pod's own service account, else kubectl's default file)",
    )
    context: str = argument(
        "--context", default="", metavar="NAME", help="a context of the kubeconfig (default: its current one)"
    )
    one_namespace: str = argument(
        *("-n", "--namespace"), default="", help="read only this namespace (default: all of them)"
    )
    all_namespaces: bool = argument(
        *("-A", "--all-namespaces"),
        action="store_true",
        help="read all namespaces, as without this flag; -n changes nothing beside it",
    )
    output: Literal["text", "json"] = argument(
        *("-o", "--output"),
        choices=("text", "json"),
        default="text",
        help="text: for people; json: an object with items (default text)",
    )
    is_use: bool = argument(
        "--use",
        action="store_true",
        help="print instead what the running pods hold, by namespace and dialect, and what it would cost in "
        "a month; it needs the verbs get and list on nodes, too. Exit code: 0, or 2 as above",
    )
    given: CommonFlags = group(CommonFlags)

    @property
    def namespace(self) -> str:
        """The one that is read; empty: all are."""
        return "" if self.all_namespaces else self.one_namespace


def read_review(arguments: Sequence[str]) -> ReviewSettings:
    """The settings of ``python -m webhook review``. Exits with 2 and a sentence where one is bad."""
    return review_flags().read(arguments)


def read_audit(arguments: Sequence[str]) -> AuditSettings:
    """The settings of ``python -m webhook audit``. Exits with 2 and a sentence where one is bad."""
    return audit_flags().read(arguments)


def review_flags() -> Parser[ReviewSettings]:
    """The flags of ``bursar-webhook review``."""
    return Parser(
        ReviewSettings,
        prog=program("review"),
        description="Reviews manifests as admission would, without a cluster: pods, workloads with pod "
        "templates, budget ConfigMaps, and lists of these; it skips other objects, but takes the values of "
        "PriorityClasses, device claims and their classes, the labels of Namespaces, and for the rule "
        "host-share the CPU, memory and cards of Nodes. Exit code: 0 everything is admitted, 1 something is "
        "refused, 2 something cannot be read.",
    )


def audit_flags() -> Parser[AuditSettings]:
    """The flags of ``bursar-webhook audit``."""
    return Parser(
        AuditSettings,
        prog=program("audit"),
        description="Lists existing objects that today's rules would refuse or warn about, and pods that "
        "use GPUs but are not governed or charged. It needs the verbs get and list on pods and workloads and "
        "changes nothing. Exit code: 0 no findings, 1 findings, 2 the cluster could not be read.",
    )
