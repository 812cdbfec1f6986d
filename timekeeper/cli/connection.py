"""How the timekeeper is reached: by default through kubectl's port-forward, with a token of an account that
may read, and the CA that Bursar publishes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from timekeeper.cli.away import away
from timekeeper.cli.client import Client
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import AwayError, CommandError, Say, progress, silent, unreadable
from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.names import AGGREGATED_GROUP, AUDIENCE, LEADS

# the accounts that commands use, and the file of deploy/samples that makes them
READER, FINANCE, ADMINISTRATOR = "bursar-reader", "bursar-finance", "bursar-admin"
_SAMPLES = {READER: "reader", FINANCE: "finance", ADMINISTRATOR: "administrator"}
PORT = 8444
_POD, _SERVICE = "pod/bursar-timekeeper-0", "service/bursar-timekeeper"
_SERVICE_PORT = 443
_BY_CONTEXT = " The namespace is that of your context: -n names yours."
_CA_NAMESPACE, _CA = "bursar-node", "bursar-ca"


@dataclass(frozen=True, slots=True)
class Options:
    """What the flags say; "" where one is not given."""

    kubectl: Kubectl
    namespace: str = ""
    account: str = ""  # NAME, or NAMESPACE/NAME
    server: str = ""
    token_file: str = ""
    ca_file: str = ""
    system_namespace: str = "bursar-system"
    aggregated: bool = False

    def one_namespace(self) -> str:
        """The namespace of the flag, or of the kubeconfig's context."""
        return self.namespace or self.kubectl.namespace()

    def scope(self, everywhere: bool) -> str | None:
        """That namespace, or None for all."""
        return None if everywhere else self.one_namespace()

    def accounts_for(self, subject: str, writes: bool = False) -> tuple[tuple[str, str], ...]:
        """Namespaces and names of the accounts whose tokens are tried, the least right first. ``subject``:
        the namespace or `_group.NAME` that is read, "": all."""
        administrator = self.system_namespace, ADMINISTRATOR
        if writes or not subject:
            first = administrator if writes else (self.system_namespace, FINANCE)
        else:
            is_group = subject.startswith(GROUP)
            first = (LEADS, subject.removeprefix(GROUP)) if is_group else (subject, READER)
        if self.account:
            home, _, name = self.account.rpartition("/")
            return ((home or (self.system_namespace if not subject else first[0]), name),)
        return tuple(dict.fromkeys((first, administrator)))


@contextmanager
def connected(
    options: Options, subject: str, is_quiet: bool = False, writes: bool = False
) -> Iterator[Client]:
    """A client of the timekeeper that may read this namespace or group; "": all. ``is_quiet``: without a line
    of progress; ``writes``: it takes the administrator's account alone. Raises CommandError."""
    with ExitStack() as stack:
        say = silent if is_quiet else stack.enter_context(progress())
        stack.enter_context(_said_away(options))
        if options.aggregated:
            client = stack.enter_context(_through_the_api_server(options))
        else:
            say("kubectl creates a token")
            tokens = _tokens(options, options.accounts_for(subject, writes), subject)
            client = stack.enter_context(_connected(options, next(tokens), say))
            client.others = tokens
        client.say = say
        say("the timekeeper answers")
        yield client


@contextmanager
def _said_away(options: Options) -> Iterator[None]:
    """Let an `AwayError` say since when, and what to do. A ledger on this machine is its owner's to look
    after."""
    try:
        yield
    except AwayError as error:
        if _is_on_this_machine(options.server):
            raise
        raise away(options.kubectl, options.system_namespace, error) from error


@contextmanager
def connected_with_token(options: Options, namespace: str) -> Iterator[tuple[Client, str]]:
    """A client of the timekeeper that shows no token, and a token that may read this namespace; "": all.
    Raises CommandError."""
    if options.aggregated:
        raise CommandError("--aggregated: a login at the dashboard needs a token, so leave this flag out")
    token = next(_tokens(options, _of_pages(options, namespace), namespace))
    with _said_away(options), _connected(options, "") as client:
        yield client, token


@contextmanager
def _through_the_api_server(options: Options) -> Iterator[Client]:
    """As the user of the kubeconfig. Raises CommandError."""
    others = {"--server": options.server, "--token-file": options.token_file, "--account": options.account}
    if given := [flag for flag, value in others.items() if value]:
        raise CommandError(f"--aggregated uses the login of your kubeconfig: leave out {', '.join(given)}")
    root = f"/apis/{AGGREGATED_GROUP}"
    with options.kubectl.proxied(root) as path:
        yield Client(f"http://localhost{root}", path=path)


@contextmanager
def _connected(options: Options, token: str, say: Say = silent) -> Iterator[Client]:
    say("kubectl connects to the timekeeper")
    if _is_on_this_machine(options.server):
        yield Client(options.server, token)  # a ledger on this machine has no certificate
        return
    ca = _ca(options)
    host = f"bursar-timekeeper.{options.system_namespace}.svc"
    if options.server:
        yield _living(Client(options.server, token, ca))
        return
    target, port = _target(options)
    with ExitStack() as stack:
        path = options.system_namespace, target, port
        try:
            local = stack.enter_context(options.kubectl.forwarded(*path))
        except CommandError as error:
            raise AwayError(error.message) from error
        yield _living(Client(f"https://127.0.0.1:{local}", token, ca, host))


def _living(client: Client) -> Client:
    client.probe()
    return client


def _target(options: Options) -> tuple[str, int]:
    """The pod of the StatefulSet, else the Service: the names of a Deployment's pods change."""
    try:
        options.kubectl.run("get", _POD, "-n", options.system_namespace, "-o", "name")
    except CommandError as error:
        if "NotFound" not in error.message:
            raise
        return _SERVICE, _SERVICE_PORT
    return _POD, PORT


def _of_pages(options: Options, namespace: str) -> tuple[tuple[str, str], ...]:
    """The accounts of a login at the dashboard, whose pages also write; for all namespaces an administrator's
    before the one that reads costs."""
    return options.accounts_for(namespace)[:1] if namespace else options.accounts_for("")[::-1]


def _tokens(options: Options, accounts: Sequence[tuple[str, str]], subject: str) -> Iterator[str]:
    """A token of the first account that has one, then of the others. Raises CommandError where none has."""
    if options.token_file:
        yield _text_of(options.token_file, "--token-file")
        return
    if _is_on_this_machine(options.server):
        raise CommandError(
            f"{options.server} takes no token of the cluster: --token-file, or BURSAR_TOKEN_FILE, names the"
            " file that bursar-timekeeper meter has printed"
        )
    refused, has_one = None, False
    for at, (home, name) in enumerate(accounts):
        try:
            create = "create", "token", name, "-n", home, "--audience", AUDIENCE
            token = options.kubectl.run(*create).strip()
        except CommandError as error:
            refused = refused or error
            if not _is_refused(error):
                break
            continue
        if at:
            click.echo(f"With the account {home}/{name}:", err=True)
        has_one = True
        yield token
    if refused is not None and not has_one:
        raise _no_account(options, accounts, subject, refused)


def _no_account(
    options: Options, accounts: Sequence[tuple[str, str]], subject: str, error: CommandError
) -> CommandError:
    """What is said where no token can be created. ``error``: of the account with the least right."""
    home, name = accounts[0]
    others = " or ".join(f"{there}/{other}" for there, other in accounts)
    sample = "group-lead" if home == LEADS else _SAMPLES.get(name, "reader" if subject else "administrator")
    is_of_context = bool(subject) and not options.namespace and home == options.kubectl.namespace()
    by_context = _BY_CONTEXT if is_of_context and _is_refused(error) else ""
    other = f"leads of {'its' if subject else 'a'} group {LEADS}/NAME"
    if subject.startswith(GROUP):
        other = "administrators bursar-system/bursar-admin"
    return CommandError(
        f"{error.message}\nA token of the account {others} is needed. An administrator makes"
        f" {home}/{name} with deploy/samples/{sample}.yaml (docs/cli.md); --account names another one, for"
        f" {other}.{by_context}"
    )


def _is_refused(error: CommandError) -> bool:
    """Whether there is no such account, or the user may create no token of it."""
    return any(word in error.message.lower() for word in ("notfound", "not found", "forbidden"))


def _is_on_this_machine(server: str) -> bool:
    """Whether it can only be that of `bursar-timekeeper meter`: a forwarded one has TLS."""
    parts = urlsplit(server)
    return parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")


def _ca(options: Options) -> str:
    if options.ca_file:
        return _text_of(options.ca_file, "--ca-file")
    try:
        return _published_ca(options, _CA_NAMESPACE)
    except CommandError as error:
        if not _is_missing(error):
            raise
    try:
        return _published_ca(options, options.system_namespace)  # of a timekeeper that runs alone
    except CommandError as error:
        if not _is_missing(error):
            raise
        places = f"{_CA_NAMESPACE} or {options.system_namespace}"
        raise AwayError(
            f"it has published no CA yet (ConfigMap {_CA} in {places}), as after its start"
        ) from error


def _is_missing(error: CommandError) -> bool:
    return "notfound" in error.message.lower().replace(" ", "")


def _published_ca(options: Options, namespace: str) -> str:
    return options.kubectl.run("get", "configmap", _CA, "-n", namespace, "-o", r"jsonpath={.data.ca\.crt}")


def _text_of(path: str, flag: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(f"{flag}: {path}", error) from error
