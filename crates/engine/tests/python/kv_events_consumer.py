"""Consumes KV events as routers for SGLang and vLLM do: libzmq's sockets, msgspec's typed structs.

    kv_events_consumer.py ENDPOINT REPLAY_ENDPOINT TOPIC FORM

Subscribes and says `ready` once it hears something from the replay socket. Reads one line with the number of batches to
apply, fills what it missed from the replay, and writes one JSON object: the names on each medium, and what it saw.
"""

import json
import sys
from typing import Any, Optional, Union

import msgspec
import zmq

endpoint, replay_endpoint, topic, form = sys.argv[1:]
array = form == "array"


class Event(msgspec.Struct, array_like=array, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str] = None
    metadata: Any = None
    cache_salt: Optional[str] = None
    session_id: Optional[str] = None
    extra_keys: Optional[list[Any]] = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: Optional[str] = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    rank: Optional[int] = None


decoder = msgspec.msgpack.Decoder(Batch)
END = (1 << 64) - 1
context = zmq.Context()
live = context.socket(zmq.SUB)
live.setsockopt(zmq.SUBSCRIBE, topic.encode())
live.connect(endpoint)


def replay(kind, start):
    """All batches from `start` on that are kept, asked for with a DEALER or a REQ socket."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(replay_endpoint)
    question = start.to_bytes(8, "big")
    socket.send_multipart([b"", question] if kind == zmq.DEALER else [question])
    while True:
        if not socket.poll(20000):
            raise SystemExit("the replay socket is silent")
        *_, number, payload = socket.recv_multipart()
        number = int.from_bytes(number, "big")
        if number == END:
            assert payload == b""
            break
        yield number, payload
        if kind == zmq.REQ:
            # A REQ takes one answer only.
            break
    socket.close()


names = {}
seen = {"stored": 0, "removed": 0, "cleared": 0, "salts": [], "sessions": [], "tokens": [], "live": 0, "replayed": 0}
expected = 0


def apply(number, payload):
    global expected
    if number < expected:
        return False
    assert number == expected, f"batch {number}, expected {expected}"
    expected += 1
    for event in decoder.decode(payload).events:
        if isinstance(event, BlockStored):
            seen["stored"] += 1
            assert event.lora_id is None
            assert len(event.token_ids) == event.block_size * len(event.block_hashes)
            seen["tokens"] += event.token_ids
            salt = event.cache_salt or (event.metadata or {}).get("cache_salt")
            if event.extra_keys is not None:
                assert len(event.extra_keys) == len(event.block_hashes)
                salt = salt or (event.extra_keys[0] or [None])[0]
            seen["salts"].append(salt)
            seen["sessions"].append(event.session_id)
            names.setdefault(event.medium, set()).update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            seen["removed"] += 1
            for name in event.block_hashes:
                names[event.medium].remove(name)
        else:
            seen["cleared"] += 1
            names.clear()
    return True


assert list(replay(zmq.DEALER, 0)) == []
print("ready", flush=True)
until = int(sys.stdin.readline())
while expected < until:
    if live.poll(300):
        heard, number, payload = live.recv_multipart()
        assert heard == topic.encode()
        number = int.from_bytes(number, "big")
        if number > expected:
            for missed in replay(zmq.DEALER, expected):
                seen["replayed"] += apply(*missed)
        seen["live"] += apply(number, payload)
    else:
        for missed in replay(zmq.DEALER, expected):
            seen["replayed"] += apply(*missed)
seen["req"] = [number for number, _ in replay(zmq.REQ, 0)]
print(json.dumps({"names": {medium: sorted(all) for medium, all in names.items()}, **seen}))
