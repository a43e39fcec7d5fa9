"""A teacher's predictions, computed once and stored, so that Stage 3 can be trained without running it.

`request` is what a configuration needs of a cache, `index` its document, `location` its folder or bucket;
`sampling` chooses tokens, `build` writes a cache, `compatibility` checks it against a run, and `reader`
yields it with the text. Used by `stages.distill` and `pipeline`.
"""
