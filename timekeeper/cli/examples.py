"""An example of each command, which its ``--help`` ends with."""

import click

EXAMPLES = {
    "audit": "audit -n team-a --use",
    "budget": "budget --all-namespaces",
    "check": "check deploy/samples/half-a-card.yaml",
    "correct": 'correct team-a -1 --reason "lost with its node"',
    "dashboard": "dashboard -n team-a --no-browser",
    "decisions": "decisions -n team-a --kind evicted --from 7d",
    "doctor": "doctor",
    "explain": "explain train-7 -n team-a",
    "free": "free -l pool=h100",
    "grant": 'grant team-a 10 --reason "paper deadline"',
    "grants": "grants _group.lab",
    "held": "held -n team-a",
    "map": "map --node gpu-1",
    "node charges": "node charges gpu-1 --from 36h --all-namespaces",
    "report": "report --all-namespaces --month 2026-11",
    "save": "save before-upgrade",
    "simulate": "simulate -f deploy/samples/half-a-card.yaml -n team-a",
    "top": "top -n team-a --once",
    "usage": "usage -n team-a --group owner --by day",
    "waiting": "waiting train-9 -n team-a",
    "would": "would team-a --from 7d",
}


def add_examples(group: click.Group, path: str = "") -> None:
    """To every command of the group."""
    for command in group.commands.values():
        name = f"{path}{command.name}"
        if isinstance(command, click.Group):
            add_examples(command, f"{name} ")
        else:
            command.epilog = f"\b\nExample:\n  kubectl bursar {EXAMPLES[name]}"
