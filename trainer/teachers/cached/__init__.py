"""A teacher's predictions, computed once and stored, so that Stage 3 can be trained without running it.

`index` is a stored cache, and checks it against a run; `sampling` chooses tokens, `build` writes a cache, and
`reader` yields it with the text. Used by `stages.distill` and `pipeline`.
"""
