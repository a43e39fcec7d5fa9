"""The two-stage ternary trainer: `python -m trainer OVERRIDES… run_dir=DIR`.

Read in the order of a run: `__main__` → `compose` (Hydra) → `config` (validated values) → `data.inputs`
(text) → `pipeline` → `stages` (the teacher first), `loop` → `evaluation` → `result`. Other programs come in
through `api` only.
This file imports nothing, so that `import trainer.api` stays cheap.
"""
