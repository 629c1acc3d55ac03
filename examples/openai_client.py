#!/usr/bin/env python3
"""Talks with a running `tarn serve` over bytes of text through OpenAI's Python client.

    pip install openai
    tarn serve models/text-bytes --store dir:sessions &
    examples/openai_client.py [http://127.0.0.1:8080]
"""

import os
import sys
import uuid

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
client = openai.OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TARN_API_KEY", "none"))
model = client.models.list().data[0].id

# A stream, and what it took.
stream = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Tell me a story."}],
    max_completion_tokens=60, stream=True, stream_options={"include_usage": True})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    elif chunk.usage:
        print(f"\n[{chunk.usage.completion_tokens} tokens]")

# A session: every turn sends its own words, the server keeps the rest, also over a restart. With a
# key a turn that the client repeats, because the answer was lost, is applied once.
session = client.post("/sessions", cast_to=object, body={"ttl_seconds": 3600})
seq = session["seq"]
for words in ("Once upon a time", " there was", " and then"):
    answer = client.completions.create(
        model=model, prompt=words, max_tokens=20,
        extra_body={"session": session["id"], "if_seq": seq},
        extra_headers={"Idempotency-Key": str(uuid.uuid4())})
    seq = answer.tarn["seq"]
    print(f"{words!r}: {answer.choices[0].text!r}, {answer.tarn['tokens_evaluated']} tokens read, "
          f"version {seq} survives: {answer.tarn['durability']}")
client.delete(f"/sessions/{session['id']}", cast_to=object)
