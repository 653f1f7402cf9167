"""Processes on loopback: engines, the gateway, Dynamo's selection service. They die with this one."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ENGINES = 4
BLOCKS = 192
BLOCK_TOKENS = 64
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    def __init__(self, name: str, command: list[str], logs: Path, environment: dict | None = None):
        self.name, self.log = name, logs / f"beside-{name}.log"
        environment = os.environ | (environment or {})
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent)

    def until(self, ready, patience_s: float = 60.0) -> None:
        """Waits until `ready()` is true."""
        ends = time.monotonic() + patience_s
        while not ready():
            if self.child.poll() is not None:
                raise SystemExit(f"{self.name} ended with {self.child.returncode}; see {self.log}")
            if time.monotonic() > ends:
                raise SystemExit(f"{self.name} is not ready after {patience_s} s; see {self.log}")
            time.sleep(0.02)

    def end(self) -> None:
        self.child.kill()
        self.child.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(port: int, path: str, body: dict | None = None) -> tuple[int, bytes]:
    """Status and body; status 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


@dataclass
class Engine:
    port: int
    process: Process

    @staticmethod
    def start(nth: int, program: str, timing: str, slow_down: float, logs: Path) -> "Engine":
        """As `src/constrained_cache.rs` starts them."""
        port = free_port()
        command = [program, "engine", "--listen", f"127.0.0.1:{port}", "--threads", "1"]
        command += ["--timing", timing, "--timing-speedup", str(1.0 / slow_down)]
        command += ["--page-tokens", str(BLOCK_TOKENS), "--kv-tokens", str(BLOCKS * BLOCK_TOKENS)]
        command += ["--kv-events-endpoint", "tcp://127.0.0.1:0", "--kv-events-replay-endpoint", "tcp://127.0.0.1:0"]
        process = Process(f"engine-{nth}", command, logs)
        process.until(lambda: call(port, "/health")[0] == 200)
        return Engine(port, process)

    def info(self) -> dict:
        return json.loads(call(self.port, "/server_info")[1])

    def metric(self, name: str) -> float:
        for line in call(self.port, "/metrics")[1].decode().splitlines():
            if line.startswith((f"{name}{{", f"{name} ")):
                return float(line.rsplit(" ", 1)[1])
        raise SystemExit(f"an engine does not say {name}")


def gateway(program: str, policy: str, seed: int, engines: list[Engine], logs: Path) -> tuple[int, Process]:
    port, admin = free_port(), free_port()
    command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    command += ["--policy", policy, "--set", f"policy.seed={seed}"]
    for engine in engines:
        command += ["--engine", f"http://127.0.0.1:{engine.port}"]
    process = Process("gateway", command, logs)
    process.until(lambda: call(admin, "/readyz")[0] == 200)
    return port, process


def selection_service(python: str, scale: float | None, engines: list[Engine], logs: Path) -> tuple[int, Process]:
    """Dynamo's selection service, subscribed to the KV events of the engines; engine n is worker n."""
    port = free_port()
    # Settings of another Dynamo on this machine are not ours. A request's own `router_config_override` would be nearer, but
    # the service of 1.6.1 takes it without effect.
    for name in [name for name in os.environ if name.startswith("DYN_")]:
        del os.environ[name]
    environment = {} if scale is None else {"DYN_ROUTER_PREFILL_LOAD_SCALE": str(scale)}
    process = Process("dynamo", [python, "-m", "dynamo.select_service", "--port", str(port)], logs, environment)
    process.until(lambda: call(port, "/health")[0] == 200)
    for nth, engine in enumerate(engines):
        info = engine.info()
        events = info["kv_events"]
        status, said = call(port, "/workers", {
            "worker_id": nth,
            "endpoint": f"http://127.0.0.1:{engine.port}",
            "kv_events_endpoint": f"tcp://127.0.0.1:{events['endpoint_port_base']}",
            "replay_endpoint": f"tcp://127.0.0.1:{events['replay_endpoint_port_base']}",
            "block_size": BLOCK_TOKENS,
            "total_kv_blocks": BLOCKS,
            "max_num_batched_tokens": info["chunked_prefill_size"],
        })
        if status != 201:
            raise SystemExit(f"Dynamo does not take a worker: {status} {said.decode()}")
    ready = lambda: json.loads(call(port, "/ready")[1] or b"{}").get("schedulable_workers") == len(engines)
    process.until(ready)
    # It subscribes after it says that it is ready, and what is published before is missed until the next batch.
    process.until(lambda: process.log.read_bytes().count(b"ZMQ listener ready") >= len(engines))
    time.sleep(0.5)
    return port, process
