"""A teacher's predictions, computed once and kept, so that Stage 3 can be trained without running it.

    PATH/index.json                        what the cache is of, and its shards
    PATH/rows-00000000-<digest>.safetensors   the predictions of some rows of the stage's text

A row is a sequence of the stage's training text, counted from 0 in the order in which the run's seed
shuffles it; that order does not depend on the batch size. Of each of a row's P = T - 1 predicted tokens the
cache holds

    topk_idx, topk_logits [rows, P, K]    the teacher's K likeliest tokens, the likeliest first
    rand_idx, rand_logits [rows, P, R]    negatives, where there are any
    ids                   [rows, T]       the text itself

as int32, and as float32 or float16. Logits are normalised: they are log probabilities, whatever temperature
softens them later.

`index` is the document, `place` the folder or bucket, `draw` chooses tokens, `build` makes a cache and
`__main__` is its command; `match` says whether a cache is a run's, `read` gives it back, `feed` brings it to
the steps. Used by `stages.distill` and `pipeline`.
"""
