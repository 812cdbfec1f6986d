"""Words that a shell offers for a flag or an argument, read from the cluster. A failure offers none."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from click import Context, Parameter
from click.shell_completion import CompletionItem

from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import CommandError
from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.decisions import KINDS
from timekeeper.core.json_values import mapping
from timekeeper.core.names import NAMESPACE
from timekeeper.core.object_names import owner_of
from timekeeper.edge.mended_json import mended

_WITHIN_S = 3.0  # a shell waits for the answer
_NAMES = ("-o", r"jsonpath={range .items[*]}{.metadata.name}{'\n'}{end}")

_OF_CLAIMS = ("claim", "class", "driver", "device")
COLUMNS = ("namespace", "group", "pod", "owner", "workload", "node", "model", *_OF_CLAIMS, "label:")

Offer = Callable[[Context, Parameter, str], list[CompletionItem]]


def namespaces(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The namespaces of the cluster."""
    return _starting(unfinished, _read(context, "get", "namespaces", *_NAMES))


def contexts(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The contexts of the kubeconfig."""
    return _starting(unfinished, _read(context, "config", "get-contexts", "-o", "name"))


def pods(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The GPU pods of the namespace."""
    return _starting(unfinished, (each["metadata"]["name"] for each in _governed(context)))


def pods_and_controllers(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The GPU pods of the namespace, and their controllers as KIND/NAME."""
    found = [each["metadata"] for each in _governed(context)]
    owners = dict.fromkeys(filter(None, map(owner_of, found)))
    return _starting(unfinished, [*(each["name"] for each in found), *owners])


def nodes(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The nodes of the cluster."""
    return _starting(unfinished, _read(context, "get", "nodes", *_NAMES))


def accounts(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The service accounts of the namespace before the slash, or of the command's namespace."""
    home, slash, _ = unfinished.rpartition("/")
    where = ("-n", home) if home else _home(context)
    found = _read(context, "get", "serviceaccounts", *where, *_NAMES)
    return _starting(unfinished, (f"{home}{slash}{name}" for name in found))


def groups(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The groups that have a budget, for those that may read the ConfigMaps."""
    return _starting(unfinished, _groups(context))


def subjects(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """What can have a budget: the namespaces, and groups as `_group.NAME` once an underscore is typed."""
    if unfinished.startswith("_"):
        return _starting(unfinished, (f"{GROUP}{name}" for name in _groups(context)))
    return namespaces(context, parameter, unfinished)


def kinds(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The kinds of decisions."""
    return _starting(unfinished, KINDS)


def columns(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """What a report can be grouped by, after the commas of those that are there."""
    before, comma, last = unfinished.rpartition(",")
    return [CompletionItem(f"{before}{comma}{each}") for each in COLUMNS if each.startswith(last)]


def files(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """Files, which the shell knows."""
    return [CompletionItem(unfinished, type="file")]


def _read(context: Context, *arguments: str) -> list[str]:
    return _output(context, *arguments).split()


def _output(context: Context, *arguments: str) -> str:
    kubectl = Kubectl(str(context.params.get("kubeconfig") or ""), str(context.params.get("context") or ""))
    try:
        return kubectl.run(*arguments, within_s=_WITHIN_S)
    except CommandError:
        return ""


def _governed(context: Context) -> list[dict[str, Any]]:
    """The pods with a GPU request in the command's namespace."""
    return _items(context, "pods", *_home(context), "-l", "bursar.dev/governed=true")


def _groups(context: Context) -> list[str]:
    home = str(context.params.get("system_namespace") or NAMESPACE)
    listed = _items(context, "configmaps", "-n", home)
    keys = (key for each in listed for key in mapping(each.get("data")) if key.startswith(GROUP))
    return sorted({key.removeprefix(GROUP) for key in keys})


def _home(context: Context) -> tuple[str, ...]:
    """The flag of the command's namespace, if it has one."""
    home = str(context.params.get("namespace") or "")
    return ("-n", home) if home else ()


def _items(context: Context, *arguments: str) -> list[dict[str, Any]]:
    found = _output(context, "get", *arguments, "-o", "json")
    return list(json.loads(mended(found.encode()))["items"]) if found else []


def _starting(unfinished: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(unfinished)]
