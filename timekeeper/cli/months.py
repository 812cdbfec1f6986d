"""``kubectl bursar audit --month`` and ``correct``: a closed month, and entries that correct a bill."""

from urllib.parse import quote

import click

from timekeeper.cli import output, words
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import FORM, MINUS, AmountCommand, ClusterCommand
from timekeeper.cli.output import CommandError, UnprovedError

_OPEN = {
    "future": "it has not begun",
    "before": "the ledger began after it",
    "runs": "it has not ended",
    "waits": "sessions of it are not settled",
    "ended": "the settler closes it an hour after its end at the earliest",
}


@click.command(cls=ClusterCommand, without=("namespace",), short_help="A closed month")
@click.pass_obj
@click.option("--month", required=True, metavar="YYYY-MM", help="the month")
@FORM
def month(options: Options, month: str, form: str) -> None:
    """Whether a closed month is as it was when it was closed, by the hashes of its charges, grants and
    prices. Exit code: 0 closed and unchanged, 1 changed, 2 where nothing is proved: it is not closed, or
    there is no answer."""
    path = f"/v1/months/{quote(month, safe='')}"
    try:
        with connected(options, "") as client:
            sheet, answer = client.answered(form, path)
        output.show(sheet, form)
    except CommandError as error:
        raise UnprovedError(error.message) from error
    if answer["closed"] is None:
        raise UnprovedError(f"{month} is not closed, for {_OPEN[answer['state']]}; nothing is proved")
    if answer["differs"]:
        raise SystemExit(1)


@click.command(cls=AmountCommand, unless=("namespace_",), short_help="Correct a bill by an entry beside it")
@click.pass_obj
@click.argument("namespace_", metavar="NAMESPACE", shell_complete=words.namespaces)
@click.argument("gpu_hours", metavar="GPU_HOURS")
@click.option("--reason", required=True, help="stored with the entry, and in the bill")
@click.option("--month", metavar="YYYY-MM", help="of the wrong charge; the running one without it")
@click.option("--pod", metavar="NAME", shell_complete=words.pods, help="whose charge was wrong")
@click.option("--uid", metavar="UID", help="of the pod or the claim's allocation, where several had the name")
@click.option(
    "--key", default="", metavar="TEXT", help="the key of an earlier try, so that nothing counts twice"
)
@FORM
def correct(
    options: Options,
    namespace_: str,
    gpu_hours: str,
    reason: str,
    month: str | None,
    pod: str | None,
    uid: str | None,
    key: str,
    form: str,
) -> None:
    """Correct a wrong charge: negative GPU-hours take it back. The charge stays, and the bill of this month
    shows the entry, with its reason and author. No budget changes by it: grant has --correction."""
    body = {"namespace": namespace_, "gpuHours": gpu_hours.replace(MINUS, "-"), "reason": reason}
    body |= {name: value for name, value in (("month", month), ("pod", pod), ("uid", uid)) if value}
    with connected(options, "", writes=True) as client:
        sheet = client.post_once(form, "/v1/corrections", body, "corrections", key, "an entry twice")
    output.show(sheet, form)
