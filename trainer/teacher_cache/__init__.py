"""The command that stores a teacher's predictions, so that Stage 3 can be trained without running it.

    PATH/index.json                           the spec of the cache, and its shards
    PATH/rows-00000000-<digest>.safetensors   the predictions for some rows of the stage's text

A row is a sequence of the stage's training text, counted from 0 in the order that the run's seed gives, which
does not depend on the batch size. For each of a row's P = T - 1 predicted tokens the cache holds

    topk_idx, topk_logits [rows, P, K]    the teacher's K likeliest tokens, the likeliest first
    rand_idx, rand_logits [rows, P, R]    negatives, if any
    ids                   [rows, T]       the text itself

as int32, and as float32 or float16. Logits are log probabilities at temperature 1, whatever temperature
softens them later. The code is in `teachers.cached`.
"""
