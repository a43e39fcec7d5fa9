"""Valid and invalid answers of a server, and the messages of the errors."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch

from trainer.losses.candidates import NOTHING
from trainer.teachers.http.protocol import AnswerError, body, problem, read

IDS = [[1, 2, 3], [4, 0, 4]]


def entry(**logprobs: float) -> dict[str, dict[str, Any]]:
    return {name[1:]: {"logprob": value, "rank": 1, "decoded_token": "x"} for name, value in logprobs.items()}


def answer() -> dict[str, Any]:
    """An answer for K = 2 of five tokens; the last position's own token is a third one."""
    half, quarter = math.log(0.5), math.log(0.25)
    return {
        "choices": [
            {"index": 0, "prompt_logprobs": [None, entry(t2=half, t4=quarter), entry(t3=half, t1=quarter)]},
            {
                "index": 1,
                "prompt_logprobs": [None, entry(t0=half, t1=half), entry(t4=-9999.0, t0=half, t1=quarter)],
            },
        ]
    }


def test_the_request_is_vllms() -> None:
    assert json.loads(body("m", IDS, top_k=7)) == {
        "model": "m",
        "prompt": IDS,
        "prompt_logprobs": 7,
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
    }


def test_candidates_are_in_the_order_of_the_prompts() -> None:
    document = answer()
    document["choices"].reverse()
    candidates = read(json.dumps(document).encode(), IDS, top_k=2, vocab_size=5)
    assert candidates.ids.tolist() == [[[2, 4, 2], [3, 1, 3]], [[0, 1, 0], [4, 0, 1]]]
    half, quarter = math.log(0.5), math.log(0.25)
    expected = [
        [[half, quarter, NOTHING], [half, quarter, NOTHING]],
        [[half, half, NOTHING], [-9999.0, half, quarter]],
    ]
    torch.testing.assert_close(candidates.logprobs, torch.tensor(expected))
    torch.testing.assert_close(candidates.rest, torch.tensor([[quarter, quarter], [NOTHING, quarter]]))


def test_a_whole_vocabulary_leaves_no_rest_whatever_the_rounding() -> None:
    document = {"choices": [{"index": 0, "prompt_logprobs": [None, entry(t0=-0.7, t1=-0.7)]}]}
    candidates = read(json.dumps(document).encode(), [[0, 1]], top_k=2, vocab_size=2)
    assert candidates.ids.shape == (1, 1, 2)
    assert candidates.rest.tolist() == [[pytest.approx(NOTHING)]]


def changed(change: str) -> bytes:
    """The answer changed by one statement on `choices`."""
    document = copy.deepcopy(answer())
    exec(change, {"choices": document["choices"], "document": document, "entry": entry})
    return json.dumps(document).encode()


WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON: ''"),
    "a page": (b"<html>Welcome to nginx</html>", "is not JSON: '<html>Welcome"),
    "not UTF-8": (b"\xff\xfe{", "is not JSON"),
    "a list": (b"[]", r"has no choices: '\[\]'"),
    "an error in 200": (b'{"error": "no"}', "has no choices"),
    "choices of another kind": (b'{"choices": [1]}', "has no choices"),
    "one choice too few": (changed("del choices[0]"), "answered 1 choice to 2 prompts"),
    "two answers to one prompt": (changed("choices[0]['index'] = 1"), "answered 2 choices to 2 prompts"),
    "no index": (changed("del choices[0]['index']"), "answered 2 choices to 2 prompts"),
    "plain OpenAI": (changed("del choices[0]['prompt_logprobs']"), "no prompt_logprobs; it must be a server"),
    "null": (changed("choices[0]['prompt_logprobs'] = None"), "no prompt_logprobs"),
    "a token added": (
        changed("choices[0]['prompt_logprobs'].append(entry(t1=-1.0))"),
        "answers 4 tokens where 3 were",
    ),
    "a position of null": (changed("choices[0]['prompt_logprobs'][1] = None"), "prompt_logprobs hold 'null'"),
    "plain numbers": (changed("choices[0]['prompt_logprobs'][1] = {'2': -1.0}"), r"""hold '\{"2": -1.0\}'"""),
    "words for ids": (changed("choices[0]['prompt_logprobs'][1] = {'the': {'logprob': -1}}"), "prompt_logprobs hold"),
    "another vocabulary": (
        changed("choices[0]['prompt_logprobs'][1]['50256'] = {'logprob': -3.0}"),
        "names token 50256, but the student's vocabulary has 5: another tokenizer",
    ),
    "a negative id": (changed("choices[0]['prompt_logprobs'][1]['-1'] = {'logprob': -3.0}"), "names token -1"),
    "another text": (
        changed("choices[0]['prompt_logprobs'][1] = entry(t1=-1.0, t3=-2.0)"),
        "has no logprob of token 2, which was sent",
    ),
    "fewer than asked": (
        changed("choices[0]['prompt_logprobs'][1] = entry(t2=-1.0)"),
        "names 1 token instead of 2: a smaller vocabulary",
    ),
    "more than asked": (
        changed("choices[0]['prompt_logprobs'][1] = entry(t0=-2.0, t1=-2.0, t2=-2.0, t3=-2.0)"),
        "names 4 tokens instead of 2",
    ),
    "probabilities": (
        changed("choices[0]['prompt_logprobs'][1] = entry(t2=0.5, t1=0.2)"),
        "answers 0.5 for a log probability",
    ),
    "NaN": (changed("choices[0]['prompt_logprobs'][1] = entry(t2=float('nan'), t1=-1.0)"), "answers nan for a log"),
    "infinity": (changed("choices[0]['prompt_logprobs'][1] = entry(t2=float('-inf'), t1=-1.0)"), "answers -inf for"),
    "more than one": (
        changed("choices[0]['prompt_logprobs'][1] = entry(t2=-0.1, t1=-0.1)"),
        "probabilities of one token add up to 1.81",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_an_answer_that_is_none_is_told_in_one_line(case: str) -> None:
    given, message = WRONG[case]
    with pytest.raises(AnswerError, match=message) as caught:
        read(given, IDS, top_k=2, vocab_size=5)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"object": "error", "message": "too long", "code": 400}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "overloaded"}', "overloaded"),
        (b"upstream timed out", "upstream timed out"),
        (b'{"error": {"code": 1}}', '{"error": {"code": 1}}'),
        (b"[1]", "[1]"),
        (b"", ""),
    ],
)
def test_what_an_error_says(body: bytes, message: str) -> None:
    assert problem(body) == message
