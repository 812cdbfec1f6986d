"""``python -m deploy.release [FOLDER]`` writes the files of a release of the last commit into a folder, by
default ``dist``, and prints their SHA-256. With ``--page`` it writes docs/dependencies.md anew instead.
"""

import argparse
import sys
from pathlib import Path

from deploy.release import archives, bill, dependencies, krew
from deploy.release.archives import ROOT, Commit, ReleaseError
from deploy.release.cli_file import cli_file
from deploy.release.images import images
from deploy.release.notes import notes
from deploy.release.provenance import sha256, statement


def main() -> int:
    """The exit code. An error is one sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="(%(default)s)")
    parser.add_argument(
        "--downloads", default="", metavar="URL", help="the folder where krew's archive will be published"
    )
    parser.add_argument("--page", action="store_true", help="write docs/dependencies.md anew")
    arguments = parser.parse_args()
    try:
        if arguments.page:
            dependencies.PAGE.write_text(dependencies.page())
        else:
            _release(arguments.folder, arguments.downloads)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _release(folder: Path, downloads: str) -> None:
    dependencies.demand_allowed_licences()
    if changed := archives.uncommitted():
        print(
            f"note: {changed[0]} and {len(changed) - 1} more files differ from the commit, and the release"
            " has what is committed; commit first what belongs to it",
            file=sys.stderr,
        )
    folder.mkdir(parents=True, exist_ok=True)
    with archives.committed() as commit:
        there = images(folder / "images", commit)
        files = {file.name: file for file in _made(commit, folder, downloads)}
    if not there:
        print(f"note: {folder}/images has none, so the release has no images: make images", file=sys.stderr)
    files |= there
    stated = folder / "provenance.intoto.json"
    stated.write_text(statement(files, commit, downloads, dependencies.dependencies()))
    lines = [f"{sha256(file)}  {name}\n" for name, file in sorted({**files, stated.name: stated}.items())]
    (folder / "SHA256SUMS").write_text("".join(lines))
    print("".join(lines), end="")


def _made(commit: Commit, folder: Path, downloads: str) -> list[Path]:
    """All files but the images."""
    wheel = archives.wheel(commit, folder)
    version = wheel.name.split("-")[1]
    cli = cli_file(wheel, commit, folder)
    packed = krew.archive(cli, commit, version, folder)
    bom = folder / f"{wheel.name.partition('-py3')[0]}.cdx.json"
    bom.write_text(bill.bill_of_materials(wheel, commit.epoch_s))
    news = folder / "RELEASE_NOTES.md"
    news.write_text(notes((commit.checkout / "CHANGELOG.md").read_text(), version))
    return [
        wheel,
        archives.source(commit, folder),
        archives.chart(commit, folder, version),
        cli,
        packed,
        krew.manifest(packed, cli, version, downloads, folder),
        bom,
        news,
    ]


if __name__ == "__main__":
    sys.exit(main())
