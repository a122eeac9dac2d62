"""The documents keep their promises: snippets run, links lead somewhere, figures are filled in."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import page
from pulsecast.patch.state import State
from pulsecast.testing import synthetic

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")


def save(state: State, path: Path) -> None:
    tensors = {}
    for spec in state.layout.tensors:
        bits = torch.from_numpy(state.lanes(spec.name).view("int16"))
        tensors[spec.name] = bits.view(torch.bfloat16).reshape(spec.shape)
    save_file(tensors, path)


def test_the_readme_example_runs(tmp_path: Path) -> None:
    old, new = synthetic.adam_pair({"a": (300, 400), "b": (400,)}, seed=2)
    save(old, tmp_path / "step-0.safetensors")
    save(new, tmp_path / "step-1.safetensors")
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "of 120,400 weights changed" in done.stdout
    assert done.stdout.endswith("bit-identical: True\n")


def test_the_readme_is_short_and_complete() -> None:
    assert len(README.splitlines()) < 200
    assert "FIGURE(" not in README, "a figure that nobody has measured"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_performance_page_is_made_from_the_results() -> None:
    assert page.rendered(page.PAGE.read_text(encoding="utf-8")) == page.PAGE.read_text(
        encoding="utf-8"
    ), "run: python -m benchmarks page"
