"""One training step of a builtin model in PyTorch, as a person would write it there.

Modes: eager, checkpoint (torch.utils.checkpoint on every block), compile.
"""

import math

from step_common import arguments, forget_peak, schedule, serve, status

cfg = arguments()

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(cfg["threads"])
torch.manual_seed(0)
mode = cfg.get("mode", "eager")


class Block(nn.Module):
    def __init__(self, d, heads, p):
        super().__init__()
        self.heads, self.p = heads, p
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=2)
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, d)
        x = x + F.dropout(self.proj(y), self.p)
        h = self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))
        return x + F.dropout(h, self.p)


class GPT(nn.Module):
    def __init__(self, layers, d, heads, seq, vocab, p):
        super().__init__()
        self.p = p
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.blocks = nn.ModuleList(Block(d, heads, p) for _ in range(layers))
        self.ln = nn.LayerNorm(d)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)
        for block in self.blocks:
            for m in (block.proj, block.out):
                nn.init.normal_(m.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens, targets):
        x = F.dropout(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]], self.p)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if mode == "checkpoint" else block(x)
        logits = F.linear(self.ln(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Norm(nn.Module):
    """RMS normalisation, eps 1e-5."""

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, d, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv_heads, d // heads
        self.n1, self.n2 = Norm(d), Norm(d)
        self.q = nn.Linear(d, heads * self.dim, bias=False)
        self.k = nn.Linear(d, kv_heads * self.dim, bias=False)
        self.v = nn.Linear(d, kv_heads * self.dim, bias=False)
        self.o = nn.Linear(heads * self.dim, d, bias=False)
        self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        h = self.n1(x)
        q = rotate(self.q(h).view(b, t, self.heads, self.dim).transpose(1, 2), cos, sin)
        k = rotate(self.k(h).view(b, t, self.kv, self.dim).transpose(1, 2), cos, sin)
        v = self.v(h).view(b, t, self.kv, self.dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers, d, heads, kv_heads, hidden, seq, vocab, theta):
        super().__init__()
        dim = d // heads
        self.wte = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(LlamaBlock(d, heads, kv_heads, hidden) for _ in range(layers))
        self.norm, self.head = Norm(d), nn.Linear(d, vocab, bias=False)
        freq = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), freq)
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos().float())
        self.register_buffer("sin", angle.sin().float())
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        for block in self.blocks:
            if mode == "checkpoint":
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class MLP(nn.Module):
    def __init__(self, layers, n, hidden, classes, p):
        super().__init__()
        self.p = p
        self.fc = nn.ModuleList(nn.Linear(n if i == 0 else hidden, hidden) for i in range(layers))
        self.out = nn.Linear(hidden if layers else n, classes)

    def forward(self, x, y):
        for fc in self.fc:
            x = F.dropout(F.gelu(fc(x), approximate="tanh"), self.p)
        return F.cross_entropy(self.out(x), y)


class CNN(nn.Module):
    def __init__(self, size, channels, width, classes, p):
        super().__init__()
        self.p = p
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.fc = nn.Linear((size // 4) ** 2 * 2 * width, 8 * width)
        self.out = nn.Linear(8 * width, classes)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(F.relu(self.fc(x.flatten(1))), self.p)
        return F.cross_entropy(self.out(x), y)


class Residual(nn.Module):
    def __init__(self, n, width, stride, momentum):
        super().__init__()
        self.conv1 = nn.Conv2d(n, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, momentum=momentum)
        self.bn2 = nn.BatchNorm2d(width, momentum=momentum)
        self.skip = nn.Identity()
        if stride > 1:
            conv = nn.Conv2d(n, width, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(width, momentum=momentum))

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, channels, width, blocks, classes, momentum):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width, momentum=momentum)
        parts, n = [], width
        for stage in range(3):
            for i in range(blocks):
                parts.append(Residual(n, width << stage, 2 if stage > 0 and i == 0 else 1, momentum))
                n = width << stage
        self.blocks, self.out = nn.ModuleList(parts), nn.Linear(n, classes)

    def forward(self, x, y):
        x = F.relu(self.bn(self.conv(x)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if mode == "checkpoint" else block(x)
        return F.cross_entropy(self.out(x.mean((2, 3))), y)


class LSTM(nn.Module):
    def __init__(self, layers, d, hidden, vocab, p):
        super().__init__()
        self.p = p
        self.wte = nn.Embedding(vocab, d)
        self.cells = nn.ModuleList(nn.LSTM(d if i == 0 else hidden, hidden, batch_first=True) for i in range(layers))
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        for cell in self.cells:
            x, _ = cell(F.dropout(x, self.p))
        logits = self.head(F.dropout(x, self.p))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Experts(nn.Module):
    """Top-k routed SwiGLU experts: pairs sorted by expert, one slice for each expert."""

    def __init__(self, d, experts, top, hidden):
        super().__init__()
        self.top = top
        self.router = nn.Parameter(0.02 * torch.randn(d, experts))
        self.gate = nn.Parameter(0.02 * torch.randn(experts, d, hidden))
        self.up = nn.Parameter(0.02 * torch.randn(experts, d, hidden))
        self.down = nn.Parameter(0.02 * torch.randn(experts, hidden, d))
        self.register_buffer("tokens", torch.zeros(experts, dtype=torch.int32))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probs = torch.softmax(flat @ self.router, -1)
        weights, picked = probs.topk(self.top, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        pairs = picked.reshape(-1)
        counts = torch.bincount(pairs, minlength=len(self.tokens))
        self.tokens += counts.int()
        order = pairs.argsort(stable=True)
        parts = []
        for e, rows in enumerate(flat[order // self.top].split(counts.tolist())):
            parts.append((F.silu(rows @ self.gate[e]) * (rows @ self.up[e])) @ self.down[e])
        ys = torch.cat(parts)[order.argsort()].view(len(flat), self.top, -1)
        y = (ys * weights[..., None]).sum(1).view_as(x)
        balance = len(self.tokens) * (counts / len(pairs) * probs.mean(0)).sum()
        return y, balance


class MoEBlock(nn.Module):
    def __init__(self, d, heads, p, experts, top, hidden):
        super().__init__()
        self.heads, self.p = heads, p
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.experts = Experts(d, experts, top, hidden)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=2)
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, d)), self.p)
        y, balance = self.experts(self.ln2(x))
        return x + F.dropout(y, self.p), balance


class MoE(nn.Module):
    def __init__(self, layers, d, heads, seq, vocab, p, experts, top, hidden, balance):
        super().__init__()
        self.p, self.balance = p, balance
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.blocks = nn.ModuleList(MoEBlock(d, heads, p, experts, top, hidden) for _ in range(layers))
        self.ln = nn.LayerNorm(d)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, tokens, targets):
        x = F.dropout(self.wte(tokens) + self.wpe.weight, self.p)
        extra = 0.0
        for block in self.blocks:
            x, balance = block(x)
            extra = extra + self.balance * balance
        logits = F.linear(self.ln(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1)) + extra


def take(*names):
    return [cfg[n] for n in names]


def images():
    x = torch.randn(cfg["batch"], cfg["channels"], cfg["size"], cfg["size"])
    return x.contiguous(memory_format=torch.channels_last), torch.randint(cfg["classes"], (cfg["batch"],))


def text():
    shape = (cfg["batch"], cfg["seq"])
    return torch.randint(cfg["vocab"], shape), torch.randint(cfg["vocab"], shape)


if cfg["model"] == "gpt":
    model, batch = GPT(*take("layers", "d", "heads", "seq", "vocab", "dropout")), text()
elif cfg["model"] == "llama":
    model = Llama(*take("layers", "d", "heads", "kv_heads", "hidden", "seq", "vocab", "theta"))
    batch = text()
elif cfg["model"] == "moe":
    model = MoE(*take("layers", "d", "heads", "seq", "vocab", "dropout", "experts", "top", "hidden", "balance"))
    batch = text()
elif cfg["model"] == "lstm":
    model, batch = LSTM(*take("layers", "d", "hidden", "vocab", "dropout")), text()
elif cfg["model"] == "mlp":
    model = MLP(*take("layers", "in", "hidden", "classes", "dropout"))
    batch = torch.randn(cfg["batch"], cfg["in"]), torch.randint(cfg["classes"], (cfg["batch"],))
elif cfg["model"] == "cnn":
    model = CNN(*take("size", "channels", "width", "classes", "dropout")).to(memory_format=torch.channels_last)
    batch = images()
elif cfg["model"] == "resnet":
    model = ResNet(*take("channels", "width", "blocks", "classes", "bn_momentum")).to(memory_format=torch.channels_last)
    batch = images()
else:
    raise SystemExit(f"step_torch.py: no model {cfg['model']!r}")

decay = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": decay, "weight_decay": cfg["decay"]}, {"params": plain, "weight_decay": 0.0}]
if cfg["optimizer"] == "sgd":
    optimizer = torch.optim.SGD(groups, lr=cfg["lr"], momentum=cfg["momentum"], fused=True)
else:
    betas = (cfg["beta1"], cfg["beta2"])
    optimizer = torch.optim.AdamW(groups, lr=cfg["lr"], betas=betas, eps=cfg["eps"], fused=True)
forward = torch.compile(model) if mode == "compile" else model

done = 0


def step():
    global done
    for group in optimizer.param_groups:
        group["lr"] = schedule(cfg, done)
    optimizer.zero_grad(set_to_none=True)
    loss = forward(*batch)
    loss.backward()
    if cfg["clip"] > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg["clip"])
    optimizer.step()
    done += 1
    return loss.item()


# Parameters are part of the step's memory, the library is not.
base = status("VmRSS") - sum(p.numel() * p.element_size() for p in model.parameters())
forget_peak()
serve(f"PyTorch {torch.__version__} {mode}", step, base, params=sum(p.numel() for p in model.parameters()))
