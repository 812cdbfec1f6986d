"""``python -m webhook review`` as a process."""

import json
import subprocess
import sys
from pathlib import Path

from tests.webhook.servers import ROOT
from tests.webhook.unit.test_review_command import POD, Review


def test_several_files_and_standard_input_are_read_in_their_order(review: Review, tmp_path: Path) -> None:
    first = review.file(POD.format(percent=50), "first.yaml")
    command = [sys.executable, "-m", "webhook", "review", "-o", "json", first, "-"]

    done = subprocess.run(
        command, cwd=ROOT, env={}, input=POD.format(percent=150), capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert [(each["document"], each["verdict"]) for each in json.loads(done.stdout)["items"]] == [
        (1, "admitted"),
        (2, "refused"),
    ]


def test_it_works_in_any_folder_with_nothing_in_the_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "webhook", "review"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        input=POD.format(percent=50),
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("standard input:1: Pod train: admitted\n")
    assert list(tmp_path.iterdir()) == []


def test_the_report_may_be_cut_off_by_who_reads_it(review: Review) -> None:
    many = review.file("---\n".join([POD.format(percent=50)] * 400))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m webhook review -o json {many} | head -1"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )

    assert (done.stdout, done.stderr) == ("{\n", "")
