"""The command of docs/helm.md that names the images, in a shell."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.packaging.checkout import ROOT


def test_the_command_that_sets_the_registry_leaves_no_image_that_cannot_be_pulled(tmp_path: Path) -> None:
    page = (ROOT / "docs/helm.md").read_text()
    (command,) = re.findall(r"sed -i \"s#.*", page)
    for folder in ("manifests", "postgresql"):
        shutil.copytree(ROOT / "deploy" / folder, tmp_path / "deploy" / folder)
    sample = tmp_path / "deploy" / "samples" / "restore-ledger.yaml"
    sample.parent.mkdir()
    shutil.copy(ROOT / "deploy" / "samples" / "restore-ledger.yaml", sample)

    subprocess.run(["bash", "-euc", f"REGISTRY=registry.example.com/b\n{command}"], cwd=tmp_path, check=True)

    texts = [file.read_text() for file in tmp_path.rglob("*.yaml")]
    named = {
        image
        for text in texts
        for image in re.findall(r"^[^#\n]*image[:=] *\"?([^\s\"]+[/:][^\s\"]+)", text, re.MULTILINE)
    }
    assert {image.partition("/")[0] for image in named} == {"registry.example.com", "registry.k8s.io"}
    assert any("--sidecar-mirrors=registry.example.com/b/sidecar:" in text for text in texts)
    assert any("--sidecar-image=registry.example.com/b/sidecar" in text for text in texts)
