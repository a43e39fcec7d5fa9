"""A teacher behind a server that speaks the OpenAI completions protocol with prompt logprobs, as vLLM does.

`protocol` encodes requests and validates answers, `client` sends and retries them, and `feed` runs the client
in a thread: once before a run depends on the server, and ahead of the batches while a student trains. Used by
`stages.distill`.
"""
