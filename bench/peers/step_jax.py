"""One training step of a builtin model in JAX with optax, jitted, state donated.

Modes: jit, checkpoint (jax.checkpoint on every block), barriers (the same, with the
XLA option that keeps its recomputation from being folded away on the CPU).
"""

import math
import os

from step_common import arguments, forget_peak, schedule, serve, status

cfg = arguments()
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax

mode = cfg.get("mode", "jit")
L, D, H, T, B, V, P = (cfg[k] for k in ("layers", "d", "heads", "seq", "batch", "vocab", "dropout"))
if cfg["model"] != "gpt":
    raise SystemExit(f"step_jax.py: no model {cfg['model']!r}")


def initial():
    rng = np.random.default_rng(0)

    def weight(*shape, std=0.02):
        return jnp.asarray(rng.normal(0, std, shape), jnp.float32)

    def norm():
        return {"g": jnp.ones(D), "b": jnp.zeros(D)}

    def linear(i, o, std=0.02):
        return {"w": weight(i, o, std=std), "b": jnp.zeros(o)}

    thin = 0.02 / math.sqrt(2 * L)
    blocks = [
        {
            "ln1": norm(),
            "qkv": linear(D, 3 * D),
            "proj": linear(D, D, thin),
            "ln2": norm(),
            "fc": linear(D, 4 * D),
            "out": linear(4 * D, D, thin),
        }
        for _ in range(L)
    ]
    return {"wte": weight(V, D), "wpe": weight(T, D), "blocks": blocks, "ln": norm()}


def layer_norm(p, x):
    m = x.mean(-1, keepdims=True)
    v = jnp.square(x - m).mean(-1, keepdims=True)
    return (x - m) * jax.lax.rsqrt(v + 1e-5) * p["g"] + p["b"]


def dense(p, x):
    return x @ p["w"] + p["b"]


def dropout(key, x):
    if P == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - P, x.shape), x / (1 - P), 0)


def block(p, x, key):
    k1, k2, k3 = jax.random.split(key, 3)
    b, t, _ = x.shape
    q, k, v = jnp.split(dense(p["qkv"], layer_norm(p["ln1"], x)), 3, axis=-1)
    q, k, v = (z.reshape(b, t, H, D // H) for z in (q, k, v))
    s = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(D // H)
    s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -jnp.inf)
    a = dropout(k1, jax.nn.softmax(s, axis=-1))
    y = jnp.einsum("bhts,bshd->bthd", a, v).reshape(b, t, D)
    x = x + dropout(k2, dense(p["proj"], y))
    h = dense(p["out"], jax.nn.gelu(dense(p["fc"], layer_norm(p["ln2"], x)), approximate=True))
    return x + dropout(k3, h)


if mode != "jit":
    block = jax.checkpoint(block)


def loss_of(params, tokens, targets, key):
    keys = jax.random.split(key, L + 1)
    x = dropout(keys[L], params["wte"][tokens] + params["wpe"][: tokens.shape[1]])
    for i in range(L):
        x = block(params["blocks"][i], x, keys[i])
    logits = layer_norm(params["ln"], x) @ params["wte"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


parts = [optax.clip_by_global_norm(cfg["clip"])] if cfg["clip"] > 0 else []
optimizer = optax.inject_hyperparams(
    lambda learning_rate: optax.chain(
        *parts,
        optax.adamw(
            learning_rate,
            b1=cfg["beta1"],
            b2=cfg["beta2"],
            eps=cfg["eps"],
            weight_decay=cfg["decay"],
            mask=lambda p: jax.tree.map(lambda w: w.ndim > 1, p),
        ),
    )
)(learning_rate=cfg["lr"])


def train(params, state, tokens, targets, key, n, lr):
    loss, grads = jax.value_and_grad(loss_of)(params, tokens, targets, jax.random.fold_in(key, n))
    state.hyperparams["learning_rate"] = lr
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


base = status("VmRSS")
params = initial()
state = optimizer.init(params)
rng = np.random.default_rng(1)
tokens = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
targets = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
key = jax.random.key(0)

lowered = jax.jit(train, donate_argnums=(0, 1)).lower(params, state, tokens, targets, key, 0, jnp.float32(0))
options = {"xla_disable_hlo_passes": "cse_barrier_expander"} if mode == "barriers" else None
compiled = lowered.compile(compiler_options=options)
stats = compiled.memory_analysis()
done = 0


def step():
    global params, state, done
    params, state, loss = compiled(params, state, tokens, targets, key, done, jnp.float32(schedule(cfg, done)))
    done += 1
    return float(loss)


forget_peak()
serve(
    f"JAX {jax.__version__} {mode}",
    step,
    base,
    params=sum(p.size for p in jax.tree.leaves(params)),
    temp_bytes=stats.temp_size_in_bytes,
    argument_bytes=stats.argument_size_in_bytes,
)
