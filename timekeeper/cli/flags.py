"""The flags that commands about a cluster have."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from timekeeper.cli import output, words
from timekeeper.cli.connection import Options
from timekeeper.cli.kubectl import Kubectl
from timekeeper.core.names import NAMESPACE
from timekeeper.edge.clock import now_ms

EVERYWHERE = click.option("-A", "--all-namespaces", is_flag=True, help="every namespace")


def _form(forms: Sequence[str], text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        *("-o", "--output", "form"), type=click.Choice(forms), default="table", show_default=True, help=text
    )


_FORMS = "json and yaml have the API's own fields, a list as items of one object; csv is the wide table"
FORM = _form(output.FORMS, _FORMS)
BILL_FORM = _form((*output.FORMS, output.FOCUS), f"{_FORMS}; focus is FOCUS 1.2 in CSV, by pod and day")


class Time(click.ParamType[str]):
    """A time as the API reads it: RFC 3339, a day, milliseconds since 1970, as a table shows it, or for how
    long ago it is: 7d, 36h."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Called by click."""
        if ago := re.fullmatch(r"([0-9]{1,6})([dh])", value, re.ASCII):
            return str(now_ms() - int(ago[1]) * _UNITS_MS[ago[2]])
        if shown := re.fullmatch(r"(\S{10}) ([0-9:]{5})(:[0-9]{2})?(Z|[+-][0-9:]{5})", value, re.ASCII):
            return f"{shown[1]}T{shown[2]}{shown[3] or ':00'}{shown[4]}"
        return str(value)


_UNITS_MS = {"d": 86_400_000, "h": 3_600_000}
TIME = Time()


def by_columns(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The flag ``--group``: the columns by which charges are summed."""
    return click.option(
        "--group",
        default=default,
        show_default=True,
        metavar="COLUMNS",
        shell_complete=words.columns,
        help="namespace, group, pod, owner, workload, node, model, label:NAME; several with commas",
    )


_FLAGS = (
    (("--kubeconfig",), "FILE", "as kubectl's", ""),
    (("--context",), "NAME", "as kubectl's", ""),
    (("-n", "--namespace"), "NAME", "the context's without it; to read, also _group.NAME", ""),
    (
        ("--account",),
        "[NAMESPACE/]NAME",
        "whose token is used; without it bursar-reader of the namespace, bursar-leads/NAME of a group,"
        " bursar-system/bursar-finance for all; where these do not suffice, and to write,"
        " bursar-system/bursar-admin",
        "",
    ),
    (("--server",), "URL", "the timekeeper's; without it, kubectl port-forward leads to it", ""),
    (("--token-file",), "FILE", "a token for the audience bursar; without it kubectl creates one", ""),
    (("--ca-file",), "FILE", "the CA of the timekeeper's certificate; without it the one in the cluster", ""),
    (("--system-namespace",), "NAME", "where Bursar runs", NAMESPACE),
)
_OFFERS: dict[str, words.Offer] = {
    "kubeconfig": words.files,
    "context": words.contexts,
    "namespace": words.subjects,
    "account": words.accounts,
    "token_file": words.files,
    "ca_file": words.files,
    "system_namespace": words.namespaces,
}


# what a flag sets aside where a variable says it
_INSTEAD_OF = {
    "kubeconfig": ("server", "token_file"),
    "context": ("server", "token_file"),
    "account": ("token_file", "aggregated"),
    "token_file": ("account", "aggregated"),
    "server": ("aggregated",),
    "aggregated": ("server", "token_file", "account"),
}
_AGGREGATED = (
    "--aggregated",
    "as the user of the kubeconfig, through the API server, where the aggregated API is installed",
)


MINUS = "\u2212"  # in place of the sign of a negative amount, which click would take for an option
_NEGATIVE = re.compile(r"^-(?=[0-9.]+$)")


class ClusterCommand(click.Command):
    """A command with these flags: they become `Options`, the context's object. ``without``: the flags that
    change nothing in it. ``unless``: the parameters beside which --namespace would change nothing."""

    def __init__(
        self, *arguments: Any, without: Collection[str] = (), unless: Collection[str] = (), **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._without, self._unless = frozenset(without), unless
        self.params += [
            click.Option(
                names,
                metavar=metavar,
                help=text,
                default=default,
                show_default=bool(default),
                envvar=_variable(names),
                shell_complete=_OFFERS.get(_name(names)),
            )
            for names, metavar, text, default in _FLAGS
            if _name(names) not in self._without
        ]
        name, text = _AGGREGATED
        if _name((name,)) not in self._without:
            self.params.append(click.Option((name,), is_flag=True, help=text, envvar=_variable((name,))))

    def invoke(self, ctx: click.Context) -> Any:
        """Called by click: takes the cluster's flags, and passes `Options` on."""
        every = (*(_name(names) for names, *_ in _FLAGS), "aggregated")
        flags = {name: ctx.params.pop(name) for name in every if name not in self._without}
        set_aside = {
            other
            for name, others in _INSTEAD_OF.items()
            if flags.get(name) and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
            for other in others
            if flags.get(other) and ctx.get_parameter_source(other) is ParameterSource.ENVIRONMENT
        }
        flags |= {name: False if name == "aggregated" else "" for name in set_aside}
        if flags.get("account") and flags.get("token_file"):
            raise click.UsageError("--account and --token-file exclude each other", ctx)
        if flags.get("namespace") and (others := self._in_place_of_namespace(ctx)):
            raise click.UsageError(f"--namespace and {others[0]} exclude each other", ctx)
        kubectl = Kubectl(flags.pop("kubeconfig"), flags.pop("context"))
        ctx.obj = Options(kubectl, **flags)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Called by click: the command's own; `kubectl bursar --help` has those of the connection."""
        every = (option for option in self.get_params(ctx) if isinstance(option, click.Option))
        own = (option.get_help_record(ctx) for option in every if option.name not in _CONNECTION)
        with formatter.section("Options"):
            formatter.write_dl(list(filter(None, own)))
        formatter.write("\nFlags of the connection: kubectl bursar --help\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Called by click: the flags that a shell offers."""
        offered = super().shell_complete(ctx, incomplete)
        refused = ("-n", "--namespace") if self._in_place_of_namespace(ctx) else ()
        return [each for each in offered if each.value not in refused]

    def _in_place_of_namespace(self, ctx: click.Context) -> list[str]:
        given = (each for each in self.params if each.name in self._unless and ctx.params.get(each.name))
        return ["a name" if isinstance(each, click.Argument) else each.opts[0] for each in given]


class ConnectionGroup(click.Group):
    """The group whose help has the flags of the connection, which its commands take."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Called by click."""
        super().format_options(ctx, formatter)
        options = (option for option in ClusterCommand("x").params if option.name in _CONNECTION)
        records = (option.get_help_record(ctx) for option in options)
        with formatter.section("Flags of the connection, of each command about a cluster"):
            formatter.write_dl(list(filter(None, records)))


class AmountCommand(ClusterCommand):
    """A command with an amount, which may be negative: ``-1`` is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Called by click."""
        return super().parse_args(ctx, [_NEGATIVE.sub(MINUS, each) for each in args])


_CONNECTION = frozenset(
    {each[0][-1][2:].replace("-", "_") for each in _FLAGS} - {"namespace"} | {"aggregated"}
)


def _name(names: tuple[str, ...]) -> str:
    return names[-1].removeprefix("--").replace("-", "_")


def _variable(names: tuple[str, ...]) -> str | None:
    """The environment variable with a flag's default; kubectl's own flags have none but KUBECONFIG, which
    kubectl reads itself."""
    name = _name(names)
    return None if name in ("kubeconfig", "context", "namespace") else f"BURSAR_{name.upper()}"
