"""A teacher behind a server that speaks the OpenAI completions protocol with prompt logprobs, as vLLM does.

`protocol` says what is asked and checks what is answered, `client` asks until there is an answer, `asker`
does so in a thread; `look` is the first look at a server, `feed` asks ahead while a student trains. Used by
`stages.distill`.
"""
