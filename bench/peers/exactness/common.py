"""What the rows of the comparison share: a row is a function that returns what it measured.

`python torch_rows.py ROW` (or jax_rows.py) runs one row and prints one JSON object,
{"row", "version", "measured": {…}, "says": one sentence}. Bits are compared by hash; nothing
is compared with a tolerance. A row runs in a process of its own, since thread counts and
compilation caches belong to the process.
"""

import hashlib
import json
import os
import sys
import traceback


def use_cpus(n):
    """Keeps this process, and what it starts, on n processors."""
    cpus = sorted(os.sched_getaffinity(0))[:n]
    os.sched_setaffinity(0, cpus)
    for var in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[var] = str(n)
    return len(cpus)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def differ(a, b):
    """How many of two dicts of (hash, array) differ in bits, and the largest relative difference."""
    assert a.keys() == b.keys()
    import numpy as np

    count, worst = 0, 0.0
    for name in a:
        if a[name][0] == b[name][0]:
            continue
        count += 1
        x, y = (np.asarray(v[name][1], np.float64) for v in (a, b))
        scale = np.linalg.norm(x)
        worst = max(worst, float(np.linalg.norm(x - y) / (scale if scale else 1.0)))
    return {"differ": count, "of": len(a), "relative": worst}


def say(d):
    """A comparison in words."""
    if d["differ"] == 0:
        return f"equal ({d['of']})"
    return f"{d['differ']} of {d['of']} differ (relative {d['relative']:.1e})"


def main(rows, version):
    name = sys.argv[1]
    try:
        measured, says = rows[name]()
        out = {"row": name, "version": version, "measured": measured, "says": says}
    except Exception as e:  # noqa: BLE001 - a row that can't run is a result
        traceback.print_exc(file=sys.stderr)
        out = {"row": name, "version": version, "measured": {}, "says": f"could not be run: {type(e).__name__}: {e}".splitlines()[0][:200], "failed": True}
    sys.__stdout__.write(json.dumps(out) + "\n")
    sys.__stdout__.flush()
