"""A teacher behind a server that speaks the OpenAI completions protocol with prompt logprobs, as vLLM does.

`protocol` encodes requests and validates answers, `client` sends and retries them, `request_thread` runs the
client in a thread, `health_check` verifies a server before a run, and `feed` prefetches predictions while a
student trains. Used by `stages.distill`.
"""
