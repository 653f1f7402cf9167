"""Overload, all scenarios against all controls, as tables: `plimsoll bench overload` again and again.

    python3 bench/overload.py --plimsoll BIN --trace azure2023_code.csv --seconds 240 --seeds 1,2,3,4
    python3 bench/overload.py --plimsoll BIN --trace azure2023_code.csv --seconds 120 --real

Simulated unless `--real`; a real run takes as long as it says, and wants a machine that does nothing else. `uniform` is set to the tokens per second that
`plimsoll` admitted in the same scenario with the same seed, so `plimsoll` is always run first. What a run wrote is kept under `--out`, and the
same run of the same executable is not run again: a table that was interrupted goes on where it was.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

CLASSES = ("high", "medium", "low")
CONTROLS = ("plimsoll", "none", "static", "uniform")
# A real run has to start its fleet and to wait for the last answers too.
LONGEST_EXTRA_S = 180


def run(args, scenario, control, seed, tokens_per_s):
    """The report of one run."""
    kind = "real" if args.real else "simulated"
    command = [args.plimsoll, "bench", "overload", "--scenario", scenario, "--control", control]
    command += ["--seconds", str(args.seconds), "--seed", str(seed)]
    command += ["--trace", args.trace] if args.trace else []
    command += [] if args.real else ["--simulated"]
    command += ["--uniform-tokens-per-s", str(tokens_per_s)] if control == "uniform" else []
    built = os.stat(args.plimsoll)
    what = hashlib.sha256(repr((command, built.st_size, built.st_mtime_ns)).encode()).hexdigest()[:12]
    path = args.out / f"{kind}-{scenario}-{control}-{args.seconds}-{seed}-{what}.json"
    if not path.exists():
        print(f"{kind} {scenario} {control} seed {seed}", file=sys.stderr, flush=True)
        beside = path.with_suffix(".part")
        try:
            done = subprocess.run([*command, "--json", str(beside)], capture_output=True, text=True, timeout=args.seconds + LONGEST_EXTRA_S)
        except subprocess.TimeoutExpired:
            sys.exit(f"{' '.join(command)}\nhad not ended after {args.seconds + LONGEST_EXTRA_S} s")
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr[-2000:]}")
        beside.rename(path)
    return json.loads(path.read_text())



def share_fewer(ours, theirs):
    return "-" if theirs == 0 else f"{100 * (1 - ours / theirs):.0f} %"


def row(scenario, control, reports):
    """Medians over seeds; windows are sums."""
    def median(of):
        return statistics.median(of(report) for report in reports)

    in_time = [f"{100 * median(lambda r: r['classes'][of]['slo_attainment']):.1f}" for of in CLASSES]
    least = 100 * min(report["classes"]["high"]["slo_attainment"] for report in reports)
    minutes, tens = (
        " / ".join(str(sum(report["classes"][of][name] for report in reports)) for of in CLASSES)
        for name in ("jitter_minutes", "jitter_10s")
    )
    goodput = 100 * median(lambda r: r["crowd_goodput_of_capacity"])
    wasted = median(lambda r: r["wasted_gpu_s"])
    late = [report["engine_late_steps_ratio"] for report in reports]
    late = "" if None in late else f"{100 * max(late):.2f}"
    name = f"**{control}**" if control == "plimsoll" else control
    return f"| {scenario} | {name} | {' / '.join(in_time)} | {least:.1f} | {minutes} | {tens} | {goodput:.0f} | {wasted:.0f} | {late} |"


def totals(by_control, control):
    """Windows of all scenarios and seeds: ours against another control's."""
    lines = []
    for name, load in (("jitter_minutes", "jitter_minutes_of_load"), ("jitter_10s", "jitter_10s_of_load")):
        def count(control, of):
            return sum(of(report) for report in by_control[control])

        def high(report):
            return report["classes"]["high"][name]

        def beyond(report):
            return max(0, report[name] - sum(report[load].values()))

        for what, of in (("class high", high), ("all, beyond what the load makes", beyond), ("all", lambda r: r[name])):
            ours, theirs = count("plimsoll", of), count(control, of)
            length = "1 min" if name == "jitter_minutes" else "10 s"
            lines.append(f"| {length} | {what} | {ours} | {theirs} | {share_fewer(ours, theirs)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, help="the executable")
    parser.add_argument("--trace", help="azure2023_code.csv; without it lengths are of a fit of its quantiles")
    parser.add_argument("--seconds", type=int, default=240, help="length of a run; half of it is too much")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--scenarios", default="A,B,C,D")
    parser.add_argument("--controls", default="plimsoll,none,static,uniform", help="plimsoll is always among them")
    parser.add_argument("--real", action="store_true", help="processes, in real time")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/out/overload"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = args.controls.split(",")
    if unknown := set(wanted) - set(CONTROLS):
        sys.exit(f"no such control: {', '.join(sorted(unknown))}; there are {', '.join(CONTROLS)}")
    controls = ["plimsoll", *(control for control in CONTROLS[1:] if control in wanted)]
    seeds = [int(seed) for seed in args.seeds.split(",")]

    by_control = {control: [] for control in controls}
    rows = []
    for scenario in args.scenarios.split(","):
        rate = {}
        for control in controls:
            reports = []
            for seed in seeds:
                report = run(args, scenario, control, seed, rate.get(seed))
                if control == "plimsoll":
                    rate[seed] = report["admitted_tokens_per_s"]
                reports.append(report)
            by_control[control] += reports
            rows.append(row(scenario, control, reports))

    day = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    kind = "real processes" if args.real else "simulated"
    print(f"{day}, {kind}, {args.seconds} s, seeds {args.seeds}; {os.cpu_count()} cores, {platform.release()}\n")
    print("| | control | in time, %: high / medium / low | high, worst seed | minutes lost | 10 s windows lost | goodput in the crowd, % of capacity | engine s for late answers | late steps, % |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    for control in controls[1:]:
        print(f"\n| windows | of | plimsoll | {control} | fewer |\n|---|---|---|---|---|")
        print("\n".join(totals(by_control, control)))


if __name__ == "__main__":
    main()
