"""The commands of ``kubectl bursar scheduler``."""

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from timekeeper.cli import words
from timekeeper.cli.scheduler import files
from timekeeper.cli.scheduler.configuration import ExtenderTLS, extender

FOLDER = "/etc/kubernetes/bursar"

_FILE = click.argument("file", type=click.Path(path_type=Path), shell_complete=words.files)
_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=FOLDER,
    show_default=True,
    help="where configuration and backup are kept, on this host and in the pod",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="print the difference, and write nothing")


@click.group(short_help="Connect a kube-scheduler to the extender")
def scheduler() -> None:
    """Connect the static pod of a kube-scheduler to the extender, on the machine where it runs."""


def _tls_file(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(name, default="", metavar="FILE", help=text, shell_complete=words.files)


@scheduler.command()
@_FILE
@click.option("--extender-url", required=True, metavar="URL", help="https, or http on loopback")
@_tls_file("--ca", "the CA of the extender's certificate")
@_tls_file("--cert", "kube-scheduler's client certificate, of the extender's --client-ca")
@_tls_file("--key", "its key")
@click.option("--server-name", default=None, metavar="NAME", help="the name in the extender's certificate")
@_FOLDER
@_DRY_RUN
def patch(
    file: Path,
    extender_url: str,
    ca: str,
    cert: str,
    key: str,
    server_name: str | None,
    folder: Path,
    dry_run: bool,
) -> None:
    """Print what changes in the manifest FILE and in the configuration, keep a backup, and write both. The
    kubelet then restarts kube-scheduler."""
    tls = _tls(extender_url, ca, cert, key, server_name, folder)
    _carry_out(files.patch(file, folder, extender(extender_url, tls=tls)), dry_run)


@scheduler.command()
@_FILE
@_FOLDER
@_DRY_RUN
@click.option("--force", is_flag=True, help="also where the manifest was changed after it was patched")
def undo(file: Path, folder: Path, dry_run: bool, force: bool) -> None:
    """Restore the manifest FILE from before the patch."""
    _carry_out(files.undo(file, folder, force), dry_run)


def _carry_out(change: files.Change, dry_run: bool) -> None:
    shown = change.diff()
    click.echo(shown or "Nothing changes.", nl=not shown)
    if shown and not dry_run:
        change.write()


def _tls(url: str, ca: str, cert: str, key: str, server_name: str | None, folder: Path) -> ExtenderTLS | None:
    parts = urlsplit(url)
    given = [each for each in (ca, cert, key) if each]
    if parts.scheme == "https" and len(given) == 3:
        outside = [each for each in given if not Path(each).is_relative_to(folder)]
        if outside:
            raise click.UsageError(f"{outside[0]}: the pod sees the files of {folder} only; put it there")
        return ExtenderTLS(ca, cert, key, server_name)
    if parts.scheme == "http" and not given and _is_loopback(parts.hostname or ""):
        return None
    raise click.UsageError(
        "--extender-url: https with --ca, --cert and --key, for without a CA kube-scheduler verifies nothing;"
        " or http://127.0.0.1:PORT"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
