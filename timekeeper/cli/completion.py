"""``kubectl_complete-bursar``, which kubectl runs for the words that a shell offers after ``kubectl bursar``.

kubectl's protocol for plugins: the arguments are the words so far, the last one unfinished. Each line of the
answer is a word, with an optional description behind a tab; the last line is a number of cobra's directives.
"""

import sys
from collections.abc import Sequence

from click.shell_completion import CompletionItem, ShellComplete

from timekeeper.cli.main import cli

_FILES, _FOLDERS, _WORDS = 0, 16, 4  # cobra: Default, FilterDirs, NoFileComp


def answer(words: Sequence[str]) -> list[str]:
    """The lines that kubectl reads; ``words``: those after ``kubectl bursar``, the last one unfinished."""
    *before, unfinished = words or ("",)
    offered = ShellComplete(cli, {}, "kubectl bursar", "").get_completions(before, unfinished)
    return [*(_line(each) for each in offered if each.type == "plain"), f":{_directive(offered)}"]


def main() -> None:
    """Print the answer to this process's arguments. What cannot be looked up offers nothing."""
    print("\n".join(answer(sys.argv[1:])))


def _line(item: CompletionItem) -> str:
    about = " ".join((item.help or "").split())
    return f"{item.value}\t{about}" if about else str(item.value)


def _directive(offered: Sequence[CompletionItem]) -> int:
    kinds = {each.type for each in offered}
    return _FILES if "file" in kinds else _FOLDERS if "dir" in kinds else _WORDS


if __name__ == "__main__":
    main()
