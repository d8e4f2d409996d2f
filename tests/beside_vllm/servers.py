"""Real vLLM servers on this machine."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

START_LIMIT = 300.0
"""Seconds; two of them import vLLM several times over on two cores."""


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen
    url: str
    log: Path

    def wait_until_up(self):
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(self.log.read_text()[-5000:]) from None
                time.sleep(0.2)

    def metric(self, name):
        """A number that it counts: `num_requests_running`, `generation_tokens_total`, ..."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_server(folder, log, *options, **environment):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**28)),
        # On a CPU a request with a seed fails as soon as its prompt is cut into chunks.
        *("--block-size", "32", "--no-enable-chunked-prefill"),
        *options,
    ]
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",  # several processes share few cores, and threads would spin
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **environment,
    }
    with open(log, "w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    return Server(process, f"http://127.0.0.1:{port}", log)
