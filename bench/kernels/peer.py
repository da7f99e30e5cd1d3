"""Times PyTorch's matrix product for bench/kernels, one request a line.

Request:  {"m","n","k","batch","ta","tb","dtype","threads","seconds"}
Reply:    {"seconds": time of one product, the mean of a burst of about `seconds`}
Operands are kept for as long as the shape stays the same. With one thread the time is
the thread's own, so that other work on the machine does not count.
"""
import json
import sys
import time

import torch

TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}


def operand(batch, rows, cols, transposed, dtype):
    shape = (cols, rows) if transposed else (rows, cols)
    x = torch.randn((batch, *shape) if batch > 1 else shape, dtype=torch.float32).to(dtype)
    return x.transpose(-1, -2) if transposed else x


def main():
    key, call = None, None
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        q = json.loads(line)
        torch.set_num_threads(q["threads"])
        k = tuple(q[x] for x in ("m", "n", "k", "batch", "ta", "tb", "dtype"))
        if k != key:
            a = operand(q["batch"], q["m"], q["k"], q["ta"], TYPES[q["dtype"]])
            b = operand(q["batch"], q["k"], q["n"], q["tb"], TYPES[q["dtype"]])
            c = torch.matmul(a, b)
            key = k
            for _ in range(2):
                torch.matmul(a, b, out=c)
        clock = time.thread_time if q["threads"] == 1 else time.perf_counter
        t = clock()
        torch.matmul(a, b, out=c)
        once = clock() - t
        n = max(1, int(q["seconds"] / max(once, 1e-7)))
        t = clock()
        for _ in range(n):
            torch.matmul(a, b, out=c)
        print(json.dumps({"seconds": (clock() - t) / n}), flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
