"""Plimsoll's placement beside NVIDIA Dynamo's before the same engines: see `bench/README.md`."""

import argparse
import asyncio
import datetime
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import client
import fleet
import stream

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TRIES = 3


@dataclass(frozen=True)
class Contender:
    name: str
    # `round_robin` straight to the engines, a policy of `plimsoll serve`, or Dynamo's selection.
    kind: str
    policy: str = ""
    # Of Dynamo; its default is 1.
    scale: float | None = None


def contenders(scales: list[float]) -> list[Contender]:
    found = [
        Contender("round robin, by the client", "turns"),
        Contender("Dynamo 1.6.1, defaults", "dynamo"),
    ]
    for scale in scales:
        found.append(Contender(f"Dynamo 1.6.1, prefill_load_scale {scale:g}", "dynamo", scale=scale))
    return found + [Contender("plimsoll serve, least_delay", "gateway", "least_delay")]


@dataclass
class Found:
    hit_share: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_mean_ms: float
    believed: float
    offered: float
    decision_ms: float
    most_over_mean: float
    late: float


def measure(args, contender: Contender, seed: int, logs: Path) -> Found:
    processes: list[fleet.Process] = []
    try:
        engines = []
        for nth in range(fleet.ENGINES):
            engines.append(fleet.Engine.start(nth, args.plimsoll, args.timing, args.slow_down, logs))
            processes.append(engines[-1].process)
        ports = [engine.port for engine in engines]
        if contender.kind == "turns":
            to = client.Direct(ports)
        elif contender.kind == "gateway":
            port, process = fleet.gateway(args.plimsoll, contender.policy, seed, engines, logs)
            processes.append(process)
            to = client.Direct([port])
        else:
            port, process = fleet.selection_service(args.dynamo, contender.scale, engines, logs)
            processes.append(process)
            to = client.Selected(port, ports)
        warm_up = args.requests // 5
        requests = stream.requests(seed, warm_up + args.requests, args.rate / args.slow_down, args.prefixes, args.hot)
        counted = asyncio.run(client.run(requests, to))[warm_up:]
        # Share of steps that took longer than the profile allows.
        late = max(engine.metric("plimsoll_engine_timing_late_ratio") for engine in engines)
        served = [engine.metric("sglang:num_requests_total") for engine in engines]
    finally:
        for process in reversed(processes):
            process.end()
    prompt = sum(one.prompt_tokens for one in counted)
    ttft = sorted(one.ttft_s * 1e3 / args.slow_down for one in counted)
    of = lambda values: sum(values) / prompt if None not in values else math.nan
    decisions = [one.decision_s for one in counted if one.decision_s is not None]
    return Found(
        hit_share=sum(one.cached_tokens for one in counted) / prompt,
        ttft_p50_ms=ttft[int((len(ttft) - 1) * 0.5)],
        ttft_p90_ms=ttft[int((len(ttft) - 1) * 0.9)],
        ttft_mean_ms=sum(ttft) / len(ttft),
        believed=of([one.believed_tokens for one in counted]),
        offered=of([one.offered_tokens for one in counted]),
        decision_ms=median(decisions) * 1e3 if decisions else math.nan,
        most_over_mean=max(served) / (sum(served) / len(served)),
        late=late,
    )


def table(all_found: dict[Contender, list[Found]]) -> None:
    ceiling = stream.PREFIX_TOKENS // fleet.BLOCK_TOKENS * fleet.BLOCK_TOKENS / stream.PROMPT_TOKENS
    print(f"| placement | hit share (least to most) | of the ceiling ({ceiling:.1%}) | TTFT p50 ms | TTFT p90 ms (least to most) "
          "| TTFT mean ms | believed | best offered | decision p50 ms | busiest / mean | late steps |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for contender, rounds in all_found.items():
        of = lambda name: [getattr(one, name) for one in rounds]
        shown = lambda value, form: "" if math.isnan(value) else format(value, form)
        hit, p90 = of("hit_share"), of("ttft_p90_ms")
        cells = [
            contender.name,
            f"{median(hit):.1%} ({min(hit):.1%} to {max(hit):.1%})",
            f"{median(hit) / ceiling:.0%}",
            f"{median(of('ttft_p50_ms')):.1f}",
            f"{median(p90):.1f} ({min(p90):.1f} to {max(p90):.1f})",
            f"{median(of('ttft_mean_ms')):.1f}",
            shown(median(of("believed")), ".1%"),
            shown(median(of("offered")), ".1%"),
            shown(median(of("decision_ms")), ".2f"),
            f"{median(of('most_over_mean')):.2f}",
            f"{median(of('late')):.1%}",
        ]
        print(f"| {' | '.join(cells)} |")


def pairs(all_found: dict[Contender, list[Found]]) -> None:
    """Each round's difference to ours, because rounds have different streams."""
    *others, ours = all_found
    for other in others:
        both = list(zip(all_found[ours], all_found[other]))
        hit = [(a.hit_share - b.hit_share) * 100 for a, b in both]
        p90 = [a.ttft_p90_ms - b.ttft_p90_ms for a, b in both]
        print(f"- ours less {other.name}: hit share {median(hit):+.1f} points "
              f"(higher in {sum(one > 0 for one in hit)} of {len(hit)} rounds), "
              f"TTFT p90 {median(p90):+.1f} ms (lower in {sum(one < 0 for one in p90)} of {len(p90)})")


def machine() -> str:
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    return f"{os.cpu_count()} x {cpu}, load {os.getloadavg()[0]:.1f} at the start, {date}, commit {commit or 'unknown'}"


def arguments():
    parser = argparse.ArgumentParser(prog="beside_dynamo", description=__doc__)
    parser.add_argument("--plimsoll", default=str(REPOSITORY / "target/release/plimsoll"), help="binary to measure")
    parser.add_argument("--dynamo", default=os.environ.get("PLIMSOLL_DYNAMO", os.path.expanduser("~/.cache/plimsoll-peers/dynamo")),
                        help="venv that install.sh filled")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=480, help="that count; a fifth more come before")
    parser.add_argument("--rate", type=float, default=12.0, help="requests per second")
    parser.add_argument("--prefixes", type=int, default=24)
    parser.add_argument("--hot", type=float, default=0.0, help="share of requests that all have the first prefix; the others draw from all")
    parser.add_argument("--slow-down", type=float, default=1.0,
                        help="everything takes so many times as long; times are printed as if it were 1")
    parser.add_argument("--seed", type=int, default=0, help="each round adds one")
    parser.add_argument("--timing", default="h100-llama3-8b", help="timing profile of the engines")
    parser.add_argument("--most-late", type=float, default=0.03,
                        help="where a larger share of an engine's steps came too late, the machine was busy: "
                             f"measured again, at most {TRIES} times in all")
    parser.add_argument("--scales", default="4", help="further values of Dynamo's prefill_load_scale (1 unless told), with commas")
    args = parser.parse_args()
    args.dynamo = str(Path(args.dynamo) / "bin/python3")
    for path, how in ((args.plimsoll, "cargo build --release -p plimsoll"), (args.dynamo, "bench/beside_dynamo/install.sh")):
        if not os.path.isfile(path):
            parser.error(f"{path} is missing: run {how}")
    return args


def main() -> None:
    args = arguments()
    on = machine()
    logs = REPOSITORY / "bench/out"
    logs.mkdir(parents=True, exist_ok=True)
    rivals = contenders([float(scale) for scale in args.scales.split(",") if scale])
    found: dict[Contender, list[Found]] = {contender: [] for contender in rivals}
    for round_ in range(args.rounds):
        for place in range(len(rivals)):
            contender = rivals[(place + round_) % len(rivals)]
            for left in reversed(range(TRIES)):
                one = measure(args, contender, args.seed + round_, logs)
                kept = one.late <= args.most_late or left == 0
                print(f"round {round_ + 1}: {contender.name}: {one.hit_share:.1%}, p50 {one.ttft_p50_ms:.1f}, "
                      f"p90 {one.ttft_p90_ms:.1f} ms, {one.late:.1%} of steps late{'' if kept else ': again'}", file=sys.stderr, flush=True)
                if kept:
                    break
            found[contender].append(one)
    table(found)
    print()
    pairs(found)
    print(f"\n{args.rounds} rounds of {args.requests} requests at {args.rate:g} a second, {args.prefixes} prefixes"
          f"{f', one of them in {args.hot:.0%} of the requests' if args.hot else ''}, {args.timing}, "
          f"slowed down {args.slow_down:g} times; {on}")


if __name__ == "__main__":
    main()
