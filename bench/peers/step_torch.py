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


if cfg["model"] == "gpt":
    model = GPT(cfg["layers"], cfg["d"], cfg["heads"], cfg["seq"], cfg["vocab"], cfg["dropout"])
elif cfg["model"] == "llama":
    model = Llama(cfg["layers"], cfg["d"], cfg["heads"], cfg["kv_heads"], cfg["hidden"], cfg["seq"], cfg["vocab"], cfg["theta"])
else:
    raise SystemExit(f"step_torch.py: no model {cfg['model']!r}")

decay = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": decay, "weight_decay": cfg["decay"]}, {"params": plain, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=cfg["lr"], betas=(cfg["beta1"], cfg["beta2"]), eps=cfg["eps"], fused=True)
forward = torch.compile(model) if mode == "compile" else model

shape = (cfg["batch"], cfg["seq"])
tokens = torch.randint(cfg["vocab"], shape)
targets = torch.randint(cfg["vocab"], shape)
done = 0


def step():
    global done
    for group in optimizer.param_groups:
        group["lr"] = schedule(cfg, done)
    optimizer.zero_grad(set_to_none=True)
    loss = forward(tokens, targets)
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
