"""Sends the stream and measures what comes back. Nobody waits for an earlier answer."""

import asyncio
import itertools
import json
import re
import time
from dataclasses import dataclass

from fleet import BLOCK_TOKENS
from stream import OUTPUT_TOKENS, Request

# Longest that one answer may take, and most bytes of one.
PATIENCE_S = 120.0
MOST_BYTES = 4 << 20
CACHED = re.compile(rb'"cached_tokens":(\d+)')
PROMPT = re.compile(rb'"prompt_tokens":(\d+)')
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Answered:
    """Of one request: tokens as the engine counts them; times from the moment it was due to be decided on."""

    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    decision_s: float | None = None
    # Tokens that the decision believed its engine to have, and the most that any engine was believed to have.
    believed_tokens: int | None = None
    offered_tokens: int | None = None


class Direct:
    """Everything to one port, or to several in turn."""

    def __init__(self, ports: list[int]):
        self.turns = itertools.cycle(ports)

    async def answer(self, tokens: str) -> Answered:
        return await ask(next(self.turns), tokens, time.perf_counter())


class Selected:
    """Dynamo decides; the request then goes straight to the engine, and what a frontend reports is reported."""

    def __init__(self, port: int, ports: list[int]):
        self.service, self.ports = KeptAlive(port), ports
        self.numbers = itertools.count()

    async def answer(self, tokens: str) -> Answered:
        began, name = time.perf_counter(), f"r{next(self.numbers)}"
        body = f'{{"selection_id":"{name}","token_ids":{tokens}}}'
        chosen = json.loads(await self.service.call("POST", "/select_and_reserve", body))
        decided = time.perf_counter()
        # Beside the request, so that asking does not count: what the best engine had to offer.
        offer = asyncio.create_task(self.service.call("POST", "/overlap_scores", f'{{"token_ids":{tokens}}}'))
        first = None

        def at_first() -> None:
            nonlocal first
            first = asyncio.create_task(self.service.call("POST", f"/reservations/{name}/prefill_complete", ""))

        answered = await ask(self.ports[chosen["worker_id"]], tokens, began, at_first)
        await first
        await self.service.call("DELETE", f"/reservations/{name}", "")
        answered.decision_s = decided - began
        answered.believed_tokens = chosen["overlap"]["gpu"]
        workers = json.loads(await offer)["workers"]
        answered.offered_tokens = max(one["device_blocks"] for one in workers) * BLOCK_TOKENS
        return answered


class KeptAlive:
    """Small HTTP/1.1 calls over connections that stay open, as many as are in use at once."""

    def __init__(self, port: int):
        self.port, self.idle = port, []

    async def call(self, method: str, path: str, body: str) -> bytes:
        stream = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = stream
        writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        said = await reader.readexactly(int(LENGTH.search(head)[1]))
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"{method} {path}: {head.splitlines()[0]!r} {said[:300]!r}")
        self.idle.append(stream)
        return said


async def ask(port: int, tokens: str, began: float, at_first=lambda: None) -> Answered:
    body = (
        f'{{"prompt":{tokens},"max_tokens":{OUTPUT_TOKENS},"temperature":0,"ignore_eos":true,"stream":true,'
        '"stream_options":{"include_usage":true}}'
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    )
    said, first = b"", None
    while read := await reader.read(16 * 1024):
        said += read
        if len(said) > MOST_BYTES:
            raise RuntimeError("an answer is endless")
        if first is None and b"data:" in said:
            first = time.perf_counter()
            at_first()
    writer.close()
    if not said.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in said:
        raise RuntimeError(f"a bad answer: {said[:300]!r}")
    prompt, cached = PROMPT.findall(said), CACHED.findall(said)
    return Answered(int(prompt[-1]), int(cached[-1]) if cached else 0, first - began)


async def run(stream: list[Request], to: Direct | Selected) -> list[Answered]:
    """Answers in the order of their requests."""
    prompts = [json.dumps(one.tokens, separators=(",", ":")) for one in stream]
    began, running = time.perf_counter() + 0.2, []
    for one, prompt in zip(stream, prompts):
        await asyncio.sleep(max(0.0, began + one.at_s - time.perf_counter()))
        running.append(asyncio.create_task(asyncio.wait_for(to.answer(prompt), PATIENCE_S)))
    return await asyncio.gather(*running)
