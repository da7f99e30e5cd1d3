"""What the training-step peers share: the conversation with the benchmark, and memory.

A peer is started with one argument, a JSON object of the model and recipe (see
bench/step), says {"ready": …} on stdout once the step has been compiled, then
answers each line "N" on stdin with {"ms": [N times], "loss": …, …} and ends at
"quit" or end of file. Everything else that it prints goes to stderr.
"""

import json
import os
import re
import sys
import time


def arguments():
    cfg = json.loads(sys.argv[1])
    # Pinning is what limits every library in the same way, XLA included, and it has to
    # happen before the library counts the processors.
    cpus = sorted(os.sched_getaffinity(0))[: cfg["threads"]]
    os.sched_setaffinity(0, cpus)
    for var in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[var] = str(cfg["threads"])
    return cfg


def status(field):
    """A size of /proc/self/status in bytes."""
    with open("/proc/self/status") as f:
        return int(re.search(rf"^{field}:\s+(\d+) kB", f.read(), re.M).group(1)) * 1024


def forget_peak():
    """Makes VmHWM start again from the present resident size, where the kernel lets us."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass


def say(**fields):
    sys.__stdout__.write(json.dumps(fields) + "\n")
    sys.__stdout__.flush()


def serve(name, step, base_rss, **ready):
    """Runs the conversation. step() runs one step to its end and returns the loss."""
    sys.stdout = sys.stderr
    first = time.perf_counter()
    loss = step()
    ready["first_step_s"] = time.perf_counter() - first
    say(ready=True, name=name, loss=loss, import_rss_bytes=base_rss, **ready)
    for line in sys.stdin:
        line = line.strip()
        if line == "quit":
            break
        ms = []
        for _ in range(int(line)):
            t = time.perf_counter()
            loss = step()
            ms.append(1e3 * (time.perf_counter() - t))
        say(ms=ms, loss=loss, peak_rss_bytes=status("VmHWM"), step_bytes=max(0, status("VmHWM") - base_rss))


def schedule(cfg, step):
    """Learning rate of a step, counted from 0: as in frontend/nn."""
    import math

    lr, warm, total, low = cfg["lr"], cfg["warmup"], cfg["steps"], cfg["min_lr"]
    if step < warm:
        return lr * (step + 1) / warm
    t = min(1.0, (step - warm) / max(1, total - warm))
    return low + 0.5 * (lr - low) * (1 + math.cos(math.pi * t))
