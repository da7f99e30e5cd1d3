"""JAX's rows: see common.py."""

import json
import os
import subprocess
import sys

import common

os.environ["JAX_PLATFORMS"] = "cpu"
CPUS = int(os.environ.get("EXACTNESS_CPUS", "2"))
common.use_cpus(CPUS)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

VOCAB, SEQ, BATCH, WIDTH, HEADS, LAYERS = 40, 24, 4, 32, 2, 3
if os.environ.get("EXACTNESS_WIDE"):  # large enough for XLA to use its threads
    SEQ, BATCH, WIDTH = 128, 8, 256


def weights(dtype=jnp.float32):
    rng = np.random.default_rng(1)

    def w(*shape):
        return jnp.asarray(0.2 * rng.standard_normal(shape), dtype)

    blocks = [{"g1": w(WIDTH), "b1": w(WIDTH), "qkv": w(WIDTH, 3 * WIDTH), "proj": w(WIDTH, WIDTH), "g2": w(WIDTH), "b2": w(WIDTH),
               "fc": w(WIDTH, 4 * WIDTH), "out": w(4 * WIDTH, WIDTH)} for _ in range(LAYERS)]
    return {"wte": w(VOCAB, WIDTH), "wpe": w(SEQ, WIDTH), "blocks": blocks, "g": w(WIDTH), "b": w(WIDTH), "head": w(WIDTH, VOCAB)}


def norm(x, g, b):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g + b


def drop(x, key, p):
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0).astype(x.dtype) if p else x


def block(w, x, key, p):
    b, t, c = x.shape
    q, k, v = (y.reshape(b, t, HEADS, c // HEADS) for y in jnp.split(norm(x, w["g1"], w["b1"]) @ w["qkv"], 3, -1))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (c // HEADS) ** 0.5
    s = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), s.astype(jnp.float32), -jnp.inf), -1).astype(x.dtype)
    keys = jax.random.split(key, 2)
    x = x + drop(jnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(b, t, c) @ w["proj"], keys[0], p)
    return x + drop(jax.nn.gelu(norm(x, w["g2"], w["b2"]) @ w["fc"]) @ w["out"], keys[1], p)


def loss(w, tokens, key, p=0.0, remat=False):
    f = jax.checkpoint(lambda w, x, key: block(w, x, key, p)) if remat else (lambda w, x, key: block(w, x, key, p))
    x = w["wte"][tokens[:, :-1]] + w["wpe"]
    for i, bw in enumerate(w["blocks"]):
        x = f(bw, x, jax.random.fold_in(key, i))
    logits = (norm(x, w["g"], w["b"]) @ w["head"]).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()


def tokens():
    return jnp.asarray(np.random.default_rng(5).integers(0, VOCAB, (BATCH, SEQ + 1)))


def hashed(tree):
    out = {}
    for path, v in jax.tree_util.tree_flatten_with_path(tree)[0]:
        a = np.asarray(v)
        out[jax.tree_util.keystr(path)] = (common.digest(a.tobytes()), np.asarray(a, np.float32))
    return out


def gradients(p=0.0, remat=False, dtype=jnp.float32):
    f = jax.jit(jax.grad(lambda w, t, k: loss(w, t, k, p, remat)))
    return hashed(f(weights(dtype), tokens(), jax.random.key(2)))


def cnn(remat, steps):
    rng = np.random.default_rng(1)
    w = [jnp.asarray(0.3 * rng.standard_normal(s), jnp.float32) for s in ((3, 3, 3, 8), (3, 3, 8, 16), (16 * 12 * 12, 10))]
    x = jnp.asarray(rng.standard_normal((8, 12, 12, 3)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, 8))

    def layer(w, x):
        return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))

    def f(w):
        g = jax.checkpoint(layer) if remat else layer
        h = g(w[1], g(w[0], x)).reshape(8, -1)
        return -jnp.take_along_axis(jax.nn.log_softmax(h @ w[2]), y[:, None], -1).mean()

    step = jax.jit(lambda w: [a - 0.05 * g for a, g in zip(w, jax.grad(f)(w))])
    for _ in range(steps):
        w = step(w)
    return hashed(w)


def checkpointed():
    gpt = common.differ(gradients(), gradients(remat=True))
    one, five = (common.differ(cnn(False, n), cnn(True, n)) for n in (1, 5))
    return {"gpt": gpt, "cnn_1": one, "cnn_5": five}, f"GPT {common.say(gpt)}; CNN's parameters after 1 step {common.say(one)}, after 5 {common.say(five)}"


def state():
    def part(w, count, x):
        y = jax.nn.relu(x @ w)
        return y, count + 1, y.mean(0)

    def run(remat):
        f = jax.checkpoint(part) if remat else part
        x = jnp.asarray(np.random.default_rng(3).standard_normal((32, 8)), jnp.float32)
        w = jnp.asarray(np.random.default_rng(4).standard_normal((8, 8)), jnp.float32)

        def g(w):
            y, count, mean = f(w, jnp.zeros((), jnp.int32), x)
            return (y * y).mean(), (count, mean)

        grad, (count, mean) = jax.jit(jax.grad(g, has_aux=True))(w)
        return hashed({"grad": grad, "count": count, "mean": mean}), int(count)

    (a, na), (b, nb) = run(False), run(True)
    d = common.differ(a, b)
    return {"count": [na, nb], "compared": d}, f"functional: counted {nb} for {na}, {common.say(d)}"


def rng():
    d = common.differ(gradients(0.2), gradients(0.2, True))
    return d, f"keys are arguments, no flag: {common.say(d)}"


def bf16():
    d = common.differ(gradients(dtype=jnp.bfloat16), gradients(remat=True, dtype=jnp.bfloat16))
    return d, common.say(d)


def dump():
    """The hashes of one run, for a comparison between processes."""
    g = gradients()
    sys.__stdout__.write(json.dumps({k: [h, v.tolist()] for k, (h, v) in g.items()}) + "\n")


def threads():
    out = []
    for n in ("1", "2"):
        r = subprocess.run([sys.executable, __file__, "dump"], env={**os.environ, "EXACTNESS_CPUS": n, "EXACTNESS_WIDE": "1"}, capture_output=True, text=True, check=True)
        out.append({k: (h, np.asarray(v)) for k, (h, v) in json.loads(r.stdout).items()})
    d = common.differ(*out)
    return d, common.say(d)


def repeat():
    f = jax.jit(jax.grad(lambda w, t, k: loss(w, t, k)))
    first, worst = None, {"differ": 0, "of": 0, "relative": 0.0}
    for _ in range(20):
        g = hashed(f(weights(), tokens(), jax.random.key(2)))
        first = first or g
        d = common.differ(first, g)
        if d["differ"] >= worst["differ"]:
            worst = d
    return worst, f"compiled, 20 runs, the worst: {common.say(worst)}"


def wrapped():
    """A method wrapped in place, as people do to get rematerialization without touching the model."""
    import flax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self):
            self.a, self.b = nnx.Linear(8, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 8, rngs=nnx.Rngs(1))

        def __call__(self, x):
            return self.b(jnp.tanh(self.a(x)))

    def nested(net):
        graph, params = nnx.split(net)
        text = str(jax.make_jaxpr(lambda p, x: (nnx.merge(graph, p)(x) ** 2).sum())(params, jnp.ones((2, 8))))
        return text.count("remat") + text.count("checkpoint")

    plain = Net()
    before = nested(plain)
    seen = []
    for _ in range(3):
        Net.__call__ = nnx.remat(Net.__call__)  # another user of the class asks for remat
        seen.append(nested(plain))
    g = nnx.grad(lambda net, x: (net(x) ** 2).sum())
    x = jnp.asarray(np.random.default_rng(3).standard_normal((2, 8)), jnp.float32)
    now = hashed(nnx.to_pure_dict(g(plain, x)))
    Net.__call__ = Net.__call__.__wrapped__ if hasattr(Net.__call__, "__wrapped__") else Net.__call__
    m = {"flax": flax.__version__, "before": before, "after_each_wrap": seen, "gradients": len(now)}
    leaked = seen[0] > before
    return m, (f"flax {flax.__version__}: the \"plain\" model {'is rematerialised too' if leaked else 'is untouched'}: remat stands {before} times in its gradient before, "
               f"then {', '.join(map(str, seen))} times")


def nothing():
    return {}, "–"


if __name__ == "__main__":
    sys.stdout = sys.stderr
    if sys.argv[1] == "dump":
        dump()
    else:
        common.main({"checkpoint": checkpointed, "state": state, "rng": rng, "budget-dropout": nothing, "budget-peak": nothing, "bf16": bf16,
                     "threads": threads, "repeat": repeat, "split": nothing, "wrapped": wrapped}, f"JAX {jax.__version__}")
