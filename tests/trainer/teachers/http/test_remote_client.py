"""Requests to a server: transient failures are retried, others raise at once, and the key never shows."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch
from fake_vllm import (
    VOCABULARY,
    FakeVllm,
    Trouble,
    answers,
    bigrams,
    changes,
    fails,
    hangs_up,
    redirects,
    waits,
)

from trainer.config import HttpTeacherConfig
from trainer.errors import ConfigError, PreemptedError, TeacherServerError, UnreachableError
from trainer.losses.candidates import Candidates
from trainer.teachers.http.feed import RequestThread
from trainer.training.preemption import StopSignal

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
OpenThread = Callable[..., RequestThread]


def ask(request_thread: RequestThread) -> Candidates:
    return request_thread.wait(request_thread.submit(IDS))


def assert_right(answer: Candidates) -> None:
    """Check for K = 3 that the likeliest tokens are there, and that all probabilities add up to 1."""
    logprobs_BPV = bigrams(IDS)[:, :-1]
    top = logprobs_BPV.topk(3, dim=-1)
    found_BPV = torch.full_like(logprobs_BPV, -torch.inf).scatter_reduce(
        -1, answer.ids, answer.logprobs, "amax"
    )
    torch.testing.assert_close(found_BPV.gather(-1, top.indices), top.values)
    total = answer.logprobs.exp().sum(-1) + answer.rest.exp()
    torch.testing.assert_close(total, torch.ones_like(total))


def test_one_request_carries_the_whole_batch(open_thread: OpenThread, server: FakeVllm) -> None:
    assert_right(ask(open_thread()))
    assert [body["prompt"] for body in server.bodies] == [IDS.tolist()]
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_as_people_write_it(open_thread: OpenThread, server: FakeVllm, end: str) -> None:
    assert_right(ask(open_thread(url=server.url + end)))


PASSES: dict[str, list[Trouble]] = {
    "503 twice": [fails(503), fails(503)],
    "429": [fails(429, "slow down")],
    "500": [fails(500)],
    "a page of a proxy": [answers("<html>Bad Gateway</html>", status=502)],
    "no answer": [hangs_up],
    "slow": [waits(60)],
}


@pytest.mark.parametrize("case", PASSES)
def test_what_passes_is_asked_again(open_thread: OpenThread, server: FakeVllm, case: str) -> None:
    server.troubles.extend(PASSES[case])
    assert_right(ask(open_thread(timeout_s=1.0 if case == "slow" else 30.0, patience_s=60.0)))
    assert len(server.bodies) == 1 + len(PASSES[case])


def test_who_never_answers_is_given_up_with_the_last_trouble(
    open_thread: OpenThread, server: FakeVllm
) -> None:
    server.troubles.extend([fails(503, "model is\nloading")] * 1000)
    with pytest.raises(UnreachableError, match=r"0.3 s; .*\d+ requests: 503") as caught:
        ask(open_thread(timeout_s=0.3, patience_s=0.3))
    assert f"{server.url}/v1/completions" in str(caught.value)
    assert str(caught.value).endswith(": model is loading")


def test_no_request_outlasts_the_patience(open_thread: OpenThread, server: FakeVllm) -> None:
    server.troubles.extend([fails(503), waits(60), waits(60)])
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="within 1 s"):
        ask(open_thread(timeout_s=1.0, patience_s=1.0))
    assert time.monotonic() - began < 10


def test_nobody_at_the_address_is_said_so(open_thread: OpenThread) -> None:
    with pytest.raises(UnreachableError, match=r"within 0.2 s; .*[Cc]annot connect"):
        ask(open_thread(url="http://127.0.0.1:9", timeout_s=0.2, patience_s=0.2))


REFUSALS: dict[str, tuple[dict[str, object], str]] = {
    "the model": ({"model": "other"}, "refuses the request: 404 Not Found: The model `other` does not exist"),
    "too many logprobs": (
        {"top_k": 10},
        "400 Bad Request: Requested prompt logprobs of 10, which is greater",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_raises_at_once_in_the_servers_words(case: str, open_thread: OpenThread) -> None:
    changed, message = REFUSALS[case]
    with FakeVllm(bigrams, vocab_size=VOCABULARY, max_logprobs=5) as strict:
        with pytest.raises(TeacherServerError, match=message) as caught:
            ask(open_thread(url=strict.url, **changed))
        assert caught.value.status in (400, 404)
        assert len(strict.bodies) == 1


def test_ids_that_the_servers_model_does_not_have_are_refused(open_thread: OpenThread) -> None:
    with (
        FakeVllm(bigrams, vocab_size=6) as smaller,
        pytest.raises(TeacherServerError, match="Token id 6"),
    ):
        ask(open_thread(url=smaller.url))


WRONG: dict[str, tuple[Trouble, str]] = {
    "garbage": (answers("\x00\x01 garbage"), "answer is not JSON"),
    "empty": (answers(""), "answer is not JSON: ''"),
    "no logprobs": (
        changes(lambda answer: answer["choices"][0].pop("prompt_logprobs")),
        "has no prompt_logprobs",
    ),
    "a larger vocabulary": (
        changes(lambda answer: answer["choices"][0]["prompt_logprobs"][1].update({"99": {"logprob": -9.0}})),
        "names token 99, but the student's vocabulary has 11",
    ),
    "a redirection": (redirects, "refuses the request: 307"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_invalid_answer_raises_at_once(case: str, open_thread: OpenThread, server: FakeVllm) -> None:
    trouble, message = WRONG[case]
    server.troubles.append(trouble)
    with pytest.raises(TeacherServerError, match=message) as caught:
        ask(open_thread())
    assert server.url in str(caught.value)
    assert len(server.bodies) == 1


def test_the_key_is_shown_to_the_server_and_to_nobody_else(
    open_thread: OpenThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TEACHER_KEY", "  s3cr3t-of-mine\n")
    with FakeVllm(bigrams, vocab_size=VOCABULARY, key="s3cr3t-of-mine") as guarded:
        assert_right(ask(open_thread(url=guarded.url, api_key_env="TEACHER_KEY")))
    with (
        FakeVllm(bigrams, vocab_size=VOCABULARY, key="another") as guarded,
        pytest.raises(TeacherServerError, match=r"401 .*: …") as caught,
    ):
        ask(open_thread(url=guarded.url, api_key_env="TEACHER_KEY"))
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "s3cr3t" not in caplog.text


@pytest.mark.parametrize(
    ("value", "message"), [(None, "is not set here"), ("  ", "is not set"), ("a\nb", "no HTTP header")]
)
def test_missing_api_key_is_a_config_error(
    value: str | None,
    message: str,
    configure: Callable[..., HttpTeacherConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if value is not None:
        monkeypatch.setenv("TEACHER_KEY", value)
    with pytest.raises(ConfigError, match=f"stage3.teacher.api_key_env: .*{message}") as caught:
        RequestThread(configure(api_key_env="TEACHER_KEY"), vocab_size=VOCABULARY, stop=StopSignal())
    assert "TEACHER_KEY" not in str(caught.value)  # it may be the key, in the wrong place


def test_closing_does_not_wait_for_a_server_that_hangs(open_thread: OpenThread, server: FakeVllm) -> None:
    server.troubles.extend([waits(60)] * 8)
    opened = open_thread(timeout_s=300.0, patience_s=300.0)
    answers_to_come = [opened.submit(IDS) for _ in range(4)]
    while len(server.bodies) < 4:
        time.sleep(0.01)
    began = time.monotonic()
    opened.close()
    assert time.monotonic() - began < 5
    assert all(answer.done() for answer in answers_to_come)
    opened.close()


def test_a_signal_ends_the_wait_for_a_server_that_hangs(open_thread: OpenThread, server: FakeVllm) -> None:
    server.troubles.append(waits(60))
    stop, before = StopSignal(), signal.getsignal(signal.SIGTERM)
    stop.install()
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(PreemptedError, match="stopped by SIGTERM"), stop.hold("step 1 of stage3"):
            ask(open_thread(stop=stop, timeout_s=300.0, patience_s=300.0))
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
