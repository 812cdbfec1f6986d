"""Words that a shell offers for a flag or an argument, read from the cluster. A failure offers none."""

from collections.abc import Callable

from click import Context, Parameter
from click.shell_completion import CompletionItem

from timekeeper.cli.errors import CommandError
from timekeeper.cli.kubectl import Kubectl

_WITHIN_S = 3.0  # a shell waits for the answer
_NAMES = ("-o", r"jsonpath={range .items[*]}{.metadata.name}{'\n'}{end}")

Offer = Callable[[Context, Parameter, str], list[CompletionItem]]


def namespaces(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The namespaces of the cluster."""
    return _starting(unfinished, _read(context, "get", "namespaces", *_NAMES))


def contexts(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The contexts of the kubeconfig."""
    return _starting(unfinished, _read(context, "config", "get-contexts", "-o", "name"))


def pods(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """The GPU pods of the namespace."""
    home = str(context.params.get("namespace") or "")
    where = ("-n", home) if home else ()
    governed = ("-l", "bursar.dev/governed=true")
    return _starting(unfinished, _read(context, "get", "pods", *where, *governed, *_NAMES))


def files(context: Context, parameter: Parameter, unfinished: str) -> list[CompletionItem]:
    """Files, which the shell knows."""
    return [CompletionItem(unfinished, type="file")]


def _read(context: Context, *arguments: str) -> list[str]:
    kubectl = Kubectl(str(context.params.get("kubeconfig") or ""), str(context.params.get("context") or ""))
    try:
        return kubectl.run(*arguments, within_s=_WITHIN_S).split()
    except CommandError:
        return []


def _starting(unfinished: str, names: list[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(unfinished)]
