"""A checkpoint is never held twice in memory while it is loaded: measured in a process of its own.

Counted is anonymous memory, which a machine cannot take back; pages of the file that are mapped can be dropped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status"),
]

PROGRAM = """
import json, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from trainer.checkpoint.manifest import TENSORS, WEIGHTS
from trainer.checkpoint.parts import MODEL, OPTIMIZER, OptimizerState, Weights, read
from trainer.models.causal_lm import load_pretrained

folder, peaks = Path(sys.argv[1]), {}

def anonymous():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024

def measure(name, size, call):
    before, top, done = anonymous(), [0], threading.Event()
    def watch():
        while not done.is_set():
            top[0] = max(top[0], anonymous())
            time.sleep(0.001)
    thread = threading.Thread(target=watch, daemon=True)  # one that fails ends
    thread.start()
    result = call()
    done.set()
    thread.join()
    peaks[name] = (max(top[0], anonymous()) - before) / size
    return result

def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors.values())

sizes = dict(vocab_size=4000, hidden_size=512, intermediate_size=2048, num_hidden_layers=4)
LlamaForCausalLM(LlamaConfig(num_attention_heads=8, **sizes)).save_pretrained(folder)
load_pretrained(str(folder), dtype="auto", attention="eager")  # what is imported on the way is no copy
size = (folder / "model.safetensors").stat().st_size
model = measure("pretrained", size, lambda: load_pretrained(str(folder), dtype="auto", attention="eager"))

optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
optimizer.step()
optimizer.zero_grad()
weights, moments = Weights(model), OptimizerState([optimizer], model)
kept, state = weights.state().tensors, moments.state()
save_file({name: tensor.detach() for name, tensor in kept.items()}, folder / WEIGHTS)
save_file({f"{OPTIMIZER}/{name}": tensor for name, tensor in state.tensors.items()}, folder / TENSORS)
found = SimpleNamespace(path=folder, manifest=SimpleNamespace(values={OPTIMIZER: state.values}, sharded=False))
sizes = bytes_of(kept), bytes_of(state.tensors)
del kept, state
optimizer.state.clear()
measure("weights", sizes[0], lambda: weights.restore(read(found, MODEL)))
measure("moments", sizes[1], lambda: moments.restore(read(found, OPTIMIZER)))
optimizer.zero_grad()
print(json.dumps(peaks))
"""


def test_loading_holds_a_checkpoint_once(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout.splitlines()[-1])
    # Of the bytes in the file: weights go into those that the model has, moments are made of the file's.
    most = {"pretrained": 1.1, "weights": 0.2, "moments": 1.2}
    assert set(peaks) == set(most)
    assert all(peaks[name] < most[name] for name in most), peaks
