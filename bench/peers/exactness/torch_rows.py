"""PyTorch's rows: see common.py."""

import sys

import common

THREADS = common.use_cpus(2)

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

VOCAB, SEQ, BATCH, WIDTH, HEADS, LAYERS = 40, 24, 4, 32, 2, 3


class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.p = p

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, c)), self.p, True)
        return x + F.dropout(self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh")), self.p, True)


class GPT(nn.Module):
    """A few blocks, with a checkpoint around each where asked."""

    def __init__(self, p=0.0, remat=None, layers=LAYERS, **options):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.ModuleList(Block(p) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.remat, self.options = remat, options

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for b in self.blocks:
            if self.remat is None:
                x = b(x)
            else:
                x = checkpoint(b, x, use_reentrant=self.remat == "reentrant", **self.options)
        return F.cross_entropy(self.head(self.ln(x)).flatten(0, 1).float(), targets.flatten())


def tokens():
    g = torch.Generator().manual_seed(5)
    x = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=g)
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def made(make):
    torch.manual_seed(1)
    return make()


def gradients(model, *data, seed=2):
    """The gradient of every parameter by name, as (hash, array)."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    model(*data).backward()
    out = {}
    for name, p in model.named_parameters():
        g = p.grad.detach().contiguous()
        out[name.removeprefix("_orig_mod.")] = (common.digest(g.view(torch.uint8).numpy().tobytes()), g.float().numpy().copy())
    return out


def checkpointed():
    plain = gradients(made(lambda: GPT()), *tokens())
    new = common.differ(plain, gradients(made(lambda: GPT(remat="new")), *tokens()))
    old = common.differ(plain, gradients(made(lambda: GPT(remat="reentrant")), *tokens()))

    class LSTM(nn.Module):
        def __init__(self, remat):
            super().__init__()
            self.lstm, self.out = nn.LSTM(24, 24, num_layers=4, batch_first=True), nn.Linear(24, 1, bias=False)
            self.remat = remat

        def forward(self, x):
            y = checkpoint(self.run, x, use_reentrant=self.remat == "reentrant") if self.remat else self.run(x)
            return self.out(y).square().mean()

        def run(self, x):
            return self.lstm(x)[0]

    x = torch.randn(3, 12, 24, generator=torch.Generator().manual_seed(3)).requires_grad_()
    plain = gradients(made(lambda: LSTM(None)), x)
    lstm_new = common.differ(plain, gradients(made(lambda: LSTM("new")), x))
    lstm_old = common.differ(plain, gradients(made(lambda: LSTM("reentrant")), x))
    m = {"gpt": new, "gpt_reentrant": old, "lstm": lstm_new, "lstm_reentrant": lstm_old}
    return m, f"GPT {common.say(new)}, reentrant {common.say(old)}; LSTM {common.say(lstm_new)}, reentrant {common.say(lstm_old)}"


def state():
    class Net(nn.Module):
        def __init__(self, remat):
            super().__init__()
            self.conv, self.bn, self.out = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
            self.expert = nn.Linear(8, 8)
            self.register_buffer("tokens", torch.zeros(4, dtype=torch.int64))
            self.remat = remat

        def part(self, x):
            y = self.bn(self.conv(x)).relu().mean((2, 3))
            with torch.no_grad():  # what an expert's token counter does
                self.tokens += torch.bincount(self.out(y).argmax(-1), minlength=4)
            return self.expert(y).tanh()

        def forward(self, x):
            y = checkpoint(self.part, x, use_reentrant=False) if self.remat else self.part(x)
            return self.out(y).square().mean()

    x = torch.randn(128, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    nets = []
    for remat in (False, True):
        net = made(lambda: Net(remat))
        net(x).backward()
        nets.append(net)
    plain, ck = nets
    m = {
        "batches": [int(n.bn.num_batches_tracked) for n in nets],
        "tokens": [int(n.tokens.sum()) for n in nets],
        "running_mean_equal": torch.equal(plain.bn.running_mean, ck.bn.running_mean),
    }
    twice = m["batches"][1] == 2 * m["batches"][0]
    return m, (f"{'updated twice, no warning' if twice else 'updated once'}: batches counted {m['batches'][1]} instead of {m['batches'][0]}, "
               f"tokens {m['tokens'][1]} instead of {m['tokens'][0]}, running mean {'equal' if m['running_mean_equal'] else 'differs'}")


def rng():
    plain = gradients(made(lambda: GPT(0.2)), *tokens())
    kept = common.differ(plain, gradients(made(lambda: GPT(0.2, "new")), *tokens()))
    lost = common.differ(plain, gradients(made(lambda: GPT(0.2, "new", preserve_rng_state=False)), *tokens()))
    return {"preserved": kept, "not_preserved": lost}, f"preserve_rng_state=False: {common.say(lost)}, silent; True: {common.say(kept)}"


def compiled(budget, dtype=torch.float32, p=0.0):
    import torch._functorch.config as config

    torch._dynamo.reset()
    with config.patch(activation_memory_budget=budget):
        model = torch.compile(made(lambda: GPT(p, layers=2)).to(dtype))  # two: its compiler is slow
        return model, gradients(model, *tokens())


def budget_dropout():
    _, all_of_it = compiled(1.0, p=0.2)
    m = {}
    for b in (0.5, 0.0):
        m[str(b)] = common.differ(all_of_it, compiled(b, p=0.2)[1])
    return m, "; ".join(f"budget {b}: {common.say(d)}" for b, d in m.items())


def peak(model):
    """The most bytes that a step allocates at one time, as PyTorch's own profiler records them."""
    from torch.profiler import ProfilerActivity, profile

    gradients(model, *tokens())
    model.zero_grad(set_to_none=True)
    torch.manual_seed(2)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        model(*tokens()).backward()
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    now = most = 0
    for e in events:
        now += e.nbytes()
        most = max(most, now)
    return most


def budget_peak():
    m = {}
    for b in (1.0, 0.75, 0.5, 0.25, 0.0):
        m[str(b)] = peak(compiled(b)[0])
    falls = all(x >= y for x, y in zip(list(m.values()), list(m.values())[1:]))
    return m, "peak in KiB at budgets 1, .75, .5, .25, 0: " + " · ".join(f"{v / 1024:,.0f}" for v in m.values()) + ("" if falls else ": it does not fall with the budget") + "; no byte target"


def bf16():
    _, all_of_it = compiled(1.0, torch.bfloat16)
    m = {str(b): common.differ(all_of_it, compiled(b, torch.bfloat16)[1]) for b in (0.5, 0.0)}
    return m, "; ".join(f"budget {b}: {common.say(d)}" for b, d in m.items())


def threads():
    out = []
    for n in (1, 2):
        torch.set_num_threads(n)
        out.append(gradients(made(lambda: GPT()), *tokens()))
    d = common.differ(*out)
    return d, common.say(d)


def repeat():
    torch.set_num_threads(2)
    model, first = compiled(1.0)
    worst = {"differ": 0, "of": len(first), "relative": 0.0}
    for _ in range(20):
        d = common.differ(first, gradients(model, *tokens()))
        if d["differ"] >= worst["differ"]:
            worst = d
    return worst, f"compiled, 20 runs, the worst: {common.say(worst)}"


class Split(nn.Module):
    """A router whose input differs by an ULP each time: its split sizes may differ on recompute."""

    def __init__(self, remat):
        super().__init__()
        self.gate, self.up = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.remat, self.calls = remat, 0

    def part(self, x):
        self.calls += 1
        h = x * (1 + 0.5 * (self.calls - 1) * torch.linspace(-1, 1, 16))  # an order of arithmetic that is not fixed, made visible
        pick = self.gate(h).argmax(-1)
        order = pick.argsort(stable=True)
        parts = h[order].split(torch.bincount(pick, minlength=4).tolist())
        return torch.cat([f(p).tanh() for f, p in zip(self.up, parts)]).square().sum()

    def forward(self, x):
        if not self.remat:
            return self.part(x)
        return checkpoint(self.part, x, use_reentrant=self.remat == "reentrant")


def split():
    def x():
        return torch.randn(128, 16, generator=torch.Generator().manual_seed(3)).requires_grad_()

    net = made(lambda: Split(None))
    net.gate.requires_grad_(False)
    plain = gradients_of(net, x())
    net = made(lambda: Split("new"))
    net.gate.requires_grad_(False)
    try:
        gradients_of(net, x())
        message = ""
    except Exception as e:  # noqa: BLE001
        message = str(e)
    net = made(lambda: Split("reentrant"))
    net.gate.requires_grad_(False)
    old = common.differ(plain, gradients_of(net, x()))
    named = any(w in message for w in ("gate", "argmax", "bincount", "Linear"))
    first = next((line for line in message.splitlines() if "position" in line), message.splitlines()[0] if message else "")
    m = {"message": message[:2000], "names_a_layer_or_op": named, "reentrant": old}
    says = f"non-reentrant: \"{first.strip()[:90]}\"{'' if named else ', no op, no layer'}" if message else "non-reentrant: no error"
    return m, f"{says}; reentrant: no error, {common.say(old)}"


def gradients_of(net, x):
    torch.manual_seed(2)
    net(x).backward()
    return {n: (common.digest(p.grad.numpy().tobytes()), p.grad.numpy().copy()) for n, p in net.named_parameters() if p.grad is not None}


def wrapped():
    return {}, "–"


if __name__ == "__main__":
    sys.stdout = sys.stderr
    torch.set_num_threads(THREADS)
    common.main({"checkpoint": checkpointed, "state": state, "rng": rng, "budget-dropout": budget_dropout, "budget-peak": budget_peak, "bf16": bf16,
                 "threads": threads, "repeat": repeat, "split": split, "wrapped": wrapped}, f"PyTorch {torch.__version__}")
