"""The two-stage ternary trainer: `python -m trainer OVERRIDES… run_dir=DIR`.

Read in the order of a run: `__main__` → `compose` (Hydra) → `config` (validated values) → `teachers.local`
(text and teacher) → `pipeline` → `stages`, `loop` → `evaluation` → `result`. Other programs come in through
`api` only.
This file imports nothing, so that `import trainer.api` stays cheap.
"""
