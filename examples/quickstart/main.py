"""One training step of a small model, sent from a trainer to a worker as a patch.

Run it with `scripts/demo`. Everything happens on the CPU, in a temporary folder, in a few seconds.
"""

import filecmp
import shutil
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.rivals import PulseV31  # the paper's format, re-implemented for the benchmarks
from pulsecast import Checkpoint, Journal, State, apply, encode, kernels, open_patch
from pulsecast.testing import synthetic

WIDTH, LAYERS, VOCABULARY = 576, 10, 16_384


def transformer_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of a small decoder, as `save_pretrained` would write them."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        shapes[f"{block}.input_layernorm.weight"] = (WIDTH,)
        for name in "qkvo":
            shapes[f"{block}.self_attn.{name}_proj.weight"] = (WIDTH, WIDTH)
        shapes[f"{block}.mlp.gate_proj.weight"] = (4 * WIDTH, WIDTH)
        shapes[f"{block}.mlp.down_proj.weight"] = (WIDTH, 4 * WIDTH)
    return shapes


def save(state: State, path: Path) -> None:
    """Writes a checkpoint with the safetensors library, so that no code of ours makes the files."""
    tensors = {}
    for spec in state.layout.tensors:
        bits = torch.from_numpy(state.lanes(spec.name).view("int16"))
        tensors[spec.name] = bits.view(torch.bfloat16).reshape(spec.shape)
    save_file(tensors, path)


def row(what: str, size: int, full: int, note: str = "") -> None:
    """Prints one line of the table."""
    print(f"  {what:<34}{size / 1e6:>10.3f} MB {full / size:>8.1f}x   {note}")


def main() -> None:
    """Tells the story, and prints what it measured."""
    with tempfile.TemporaryDirectory(prefix="pulsecast-demo-") as folder:
        trainer, worker = Path(folder, "trainer"), Path(folder, "worker")
        trainer.mkdir()
        worker.mkdir()

        # The trainer: the model before and after one Adam step with FP32 master weights. In BF16
        # about 99 % of the weights keep their bits: the step is smaller than the rounding cell.
        before, after = synthetic.adam_pair(transformer_shapes(), lr=3e-6, seed=1)
        save(before, trainer / "step-0.safetensors")
        save(after, trainer / "step-1.safetensors")
        shutil.copy(trainer / "step-0.safetensors", worker / "model.safetensors")
        full = (trainer / "step-1.safetensors").stat().st_size

        # The patch: what turns step 0 into step 1, bit for bit.
        patch_file = trainer / "step-1.patch"
        reports = {c: encode(before, after, trainer / c, codec=c) for c in ("raw", "pulse")}
        report = encode(before, after, patch_file)
        paper = sum(map(len, PulseV31().encode(before, after)))

        print(f"\n{report.weights:,} weights, {report.changes:,} changed ({report.density:.2%})\n")
        row("full copy", full, full)
        row("raw (ours, for fast links)", reports["raw"].file_bytes, full)
        row("PULSE v3.1 + zstd-1 (the paper)", paper, full)
        row("pulse (ours, the paper's coding)", reports["pulse"].file_bytes, full)
        note = f"{report.bits_per_change:.1f} bits per change, {report.seconds * 1e3:.0f} ms"
        row("weightwise (ours, the default)", report.file_bytes, full, note)

        # The worker: holds step 0 and receives only the patch. All of it is checked before a weight
        # is touched, and the state root afterwards. The file is changed in place under a journal:
        # on any fault, a kill included, the old bits come back.
        patch = open_patch(shutil.copy(patch_file, worker))
        start = time.perf_counter()
        with (
            Checkpoint.open(worker / "model.safetensors", writable=True) as model,
            Journal(model, base=patch.base, target=patch.target) as journal,
        ):
            applied = apply(patch, model.state, log=journal)
        seconds = time.perf_counter() - start
        backend = kernels.status()
        print(f"\napplied {applied.changes:,} changes in {seconds * 1e3:.0f} ms", end=" ")
        print(f"({backend.backend} kernels), new state root {applied.target.hex()[:16]}…")

        # The proof: the two files, written by another library, compared by the standard library.
        same = filecmp.cmp(
            worker / "model.safetensors", trainer / "step-1.safetensors", shallow=False
        )
        print(f"bit-identical: {same}")
        if not same:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
