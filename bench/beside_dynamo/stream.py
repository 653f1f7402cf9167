"""The stream of requests: the same draws as `src/constrained_cache/client.rs`, so that a seed names the same arrivals and prompts."""

import math
from dataclasses import dataclass

PREFIX_TOKENS = 1_500
SUFFIX_TOKENS = 224
OUTPUT_TOKENS = 60
PROMPT_TOKENS = PREFIX_TOKENS + SUFFIX_TOKENS
# Words of the engine's tiny model.
FIRST_WORD, END_OF_WORDS = 300, 1_000
MASK = (1 << 64) - 1


class Draws:
    """xorshift64*."""

    def __init__(self, seed: int):
        self.state = (((seed + 1) * 0x9E37_79B9_7F4A_7C15) & MASK) | 1

    def next(self) -> int:
        self.state ^= self.state >> 12
        self.state = (self.state ^ (self.state << 25)) & MASK
        self.state ^= self.state >> 27
        return (self.state * 0x2545_F491_4F6C_DD1D) & MASK

    def share(self) -> float:
        """From 0 to below 1."""
        return (self.next() >> 11) / (1 << 53)

    def tokens(self, count: int) -> list[int]:
        return [FIRST_WORD + self.next() % (END_OF_WORDS - FIRST_WORD) for _ in range(count)]


@dataclass(frozen=True)
class Request:
    at_s: float
    tokens: list[int]


def requests(seed: int, count: int, rate: float, prefixes: int, hot: float) -> list[Request]:
    """A Poisson stream of `count` requests, `rate` a second; each has one of the prefixes, equally likely but for the share
    `hot` that has the first, and a suffix of its own."""
    known = [Draws(1_000_000 + nth).tokens(PREFIX_TOKENS) for nth in range(prefixes)]
    draws = Draws(seed)
    at_s, made = 0.0, []
    for _ in range(count):
        at_s -= math.log(1.0 - draws.share()) / rate
        prefix = known[0] if hot and draws.share() < hot else known[int(draws.share() * prefixes)]
        made.append(Request(at_s, prefix + draws.tokens(SUFFIX_TOKENS)))
    return made
