package nn

import (
	"fmt"

	"reprise/ir"
)

// Decoder-only transformers of the kind that Llama began: RMSNorm before each part, rotary
// positions, grouped queries, SwiGLU, no biases unless said.

func llamaOptions() []Option {
	return join([]Option{
		intOpt("layers", 4, 1, "blocks"),
		intOpt("d", 256, 1, "features"),
		intOpt("heads", 8, 1, "query heads"),
		intOpt("kv_heads", 4, 1, "key and value heads"),
		intOpt("hidden", 0, 0, "features inside the MLP; 0: 8/3 d, rounded up to a multiple of 32"),
		intOpt("seq", 128, 1, "positions"),
		intOpt("batch", 8, 1, "sequences a step"),
		intOpt("vocab", 256, 1, "tokens; 256: bytes"),
		floatOpt("theta", 10000, "base of the rotary frequencies"),
		dtypeOption("f32"),
		predictOption("step"),
	}, trainingOptions("adamw", "cosine", 1e-3, 0.1, 1, 100, 5000))
}

func llamaCheck(v Values) error {
	switch {
	case v.Int("heads")%v.Int("kv_heads") != 0:
		return fmt.Errorf("heads=%d is no multiple of kv_heads=%d", v.Int("heads"), v.Int("kv_heads"))
	case v.Int("d")%(2*v.Int("heads")) != 0:
		return fmt.Errorf("d=%d is no multiple of twice heads=%d, which rotation needs", v.Int("d"), v.Int("heads"))
	}
	return microCheck(v)
}

// HiddenOf is the MLP's width of builtin:llama and of a benchmark's peer.
func HiddenOf(v Values) int64 {
	if h := v.Int("hidden"); h > 0 {
		return h
	}
	return (8*v.Int("d")/3 + 31) / 32 * 32
}

// decoder is what the blocks of such a model have in common.
type decoder struct {
	heads, kv, dim int64
	norm           []Opt // of RMSNorm
	qkv, out       []Opt // of the projections to heads, and of all others
	rope           []Opt
	qkNorm         bool // heads of queries and keys are normalised after the rotation, without a gain
	drop           float64
	seq            int64
}

// attention adds causal self-attention to x [B, T, C], rotated unless cos is nil; at is the position of
// a step that is given one token.
func (d decoder) attention(block *Scope, x, cos, sin, at *Tensor) *Tensor {
	a := block.In("attn")
	h := a.RMSNorm("norm", x, d.norm...)
	turned := func(name string, heads int64) *Tensor {
		y := a.Project(name, h, heads, d.dim, d.qkv...)
		if cos == nil {
			return y
		}
		y = a.Rope(y, cos, sin, d.rope...)
		if d.qkNorm {
			y = a.Op("rms_norm", []*Tensor{y, a.Full(ir.T(y.Type.DType, d.dim), 1)}, ir.A("eps", 1e-5))
		}
		return y
	}
	q := turned("q", d.heads)
	k := turned("k", d.kv)
	y := a.CausalAttention(q, k, a.Project("v", h, d.kv, d.dim, d.qkv...), d.seq, at, d.drop)
	return block.Add(x, a.Dropout(a.Join("o", y, x.Type.Shape[2], d.out...), d.drop))
}

// mlp adds a SwiGLU of the given width to x.
func (d decoder) mlp(block *Scope, x *Tensor, hidden int64) *Tensor {
	m := block.In("mlp")
	return block.Add(x, m.Dropout(m.SwiGLU(m.RMSNorm("norm", x, d.norm...), hidden, d.out...), d.drop))
}

// decoderOf reads the options that all of these models have; dropout is 0 where there is no such option.
func decoderOf(v Values, norm ...Opt) decoder {
	plain := []Opt{NoBias(), WithInit(Normal(0.02))}
	return decoder{heads: v.Int("heads"), kv: v.Int("kv_heads"), dim: v.Int("d") / v.Int("heads"), norm: norm,
		qkv: plain, out: plain, drop: v.Float("dropout"), seq: v.Int("seq")}
}

func (s *Scope) embedded(v Values, tokens *Tensor) (x, table *Tensor) {
	table = s.Embedding("wte", v.Int("vocab"), v.Int("d"))
	return s.In("embed").Take(table, tokens), table
}

// angles are the tables for all positions, or for the one at which a step stands.
func (s *Scope) angles(v Values, at *Tensor) (cos, sin *Tensor) {
	r := s.In("rope")
	cos, sin = r.RopeTables(v.Int("seq"), v.Int("d")/v.Int("heads"), v.Float("theta"))
	if at != nil {
		row := r.Reshape(at, 1)
		cos, sin = r.Take(cos, row), r.Take(sin, row)
	}
	return cos, sin
}

func llama(v Values) Model {
	d := decoderOf(v)
	return language(v, func(s *Scope, tokens, at *Tensor) trunk {
		x, _ := s.embedded(v, tokens)
		cos, sin := s.angles(v, at)
		for i := range v.Int("layers") {
			block := s.Inf("layers.%d", i)
			x = d.mlp(block, d.attention(block, x, cos, sin, at), HiddenOf(v))
		}
		head := func(x *Tensor) *Tensor { return s.Linear("head", x, v.Int("vocab"), d.out...) }
		return trunk{x: s.RMSNorm("norm", x, d.norm...), head: head}
	})
}

// decoderOptions are those of the builtins that are made after a published model.
func decoderOptions(layers, d, heads, kv int64, theta float64, more ...Option) []Option {
	return join([]Option{
		intOpt("layers", layers, 1, "blocks"),
		intOpt("d", d, 1, "features"),
		intOpt("heads", heads, 1, "query heads"),
		intOpt("kv_heads", kv, 1, "key and value heads"),
		intOpt("seq", 64, 1, "positions"),
		intOpt("batch", 8, 1, "sequences a step"),
		intOpt("vocab", 256, 1, "tokens; 256: bytes"),
		floatOpt("theta", theta, "base of the rotary frequencies"),
		floatOpt("dropout", 0.1, "drop probability: attention, residuals"),
	}, more, []Option{dtypeOption("bf16"), predictOption("step")}, trainingOptions("adamw", "cosine", 1e-3, 0.1, 1, 100, 5000))
}

func qwenOptions() []Option {
	return decoderOptions(4, 128, 8, 2, 1e6,
		intOpt("hidden", 0, 0, "features inside the MLP; 0: 16/3 d, rounded up to a multiple of 32"),
		wordOpt("tied", "yes", "whether the output layer is the embedding", "yes", "no"))
}

// qwen is Qwen2.5: as Llama with biases at the projections to queries, keys and values.
func qwen(v Values) Model {
	d := decoderOf(v, Eps(1e-6))
	d.qkv = []Opt{WithInit(Normal(0.02))}
	hidden := v.Int("hidden")
	if hidden == 0 {
		hidden = (16*v.Int("d")/3 + 31) / 32 * 32
	}
	return language(v, func(s *Scope, tokens, at *Tensor) trunk {
		x, table := s.embedded(v, tokens)
		cos, sin := s.angles(v, at)
		for i := range v.Int("layers") {
			block := s.Inf("layers.%d", i)
			x = d.mlp(block, d.attention(block, x, cos, sin, at), hidden)
		}
		head := func(x *Tensor) *Tensor { return s.In("head").MatMulT(x, table) }
		if v.Word("tied") == "no" {
			head = func(x *Tensor) *Tensor { return s.Linear("head", x, v.Int("vocab"), d.out...) }
		}
		return trunk{x: s.RMSNorm("norm", x, d.norm...), head: head}
	})
}

func routedOptions(experts, top int64) []Option {
	return []Option{
		intOpt("experts", experts, 1, "routed experts of a block"),
		intOpt("top", top, 1, "routed experts of a token"),
		intOpt("hidden", 256, 1, "features inside an expert"),
		floatOpt("jitter", 0.01, "router noise: what it sees times 1 ± jitter"),
	}
}

func mixtralOptions() []Option {
	return decoderOptions(2, 128, 8, 2, 1e6, join(routedOptions(8, 2), []Option{
		floatOpt("balance", 0.02, "weight of the load-balancing loss"),
	})...)
}

func routedCheck(v Values) error {
	if v.Int("top") > v.Int("experts") {
		return fmt.Errorf("top=%d is more than experts=%d", v.Int("top"), v.Int("experts"))
	}
	return llamaCheck(v)
}

// mixtral is Mixtral 8x7B: the MLP is a mixture of the top two of eight experts. The noise
// is that of the router alone.
func mixtral(v Values) Model {
	d := decoderOf(v)
	return language(v, func(s *Scope, tokens, at *Tensor) trunk {
		x, _ := s.embedded(v, tokens)
		cos, sin := s.angles(v, at)
		var extra *Tensor
		for i := range v.Int("layers") {
			block := s.Inf("layers.%d", i)
			x = d.attention(block, x, cos, sin, at)
			y, balance := block.MoE("moe", block.In("moe").RMSNorm("norm", x, d.norm...), v.Int("experts"), v.Int("top"), v.Int("hidden"), Jitter(v.Float("jitter")))
			x = block.Add(x, block.Dropout(y, d.drop))
			extra = block.balanced(extra, balance, v.Float("balance"))
		}
		head := func(x *Tensor) *Tensor { return s.Linear("head", x, v.Int("vocab"), d.out...) }
		return trunk{x: s.RMSNorm("norm", x, d.norm...), head: head, extra: extra}
	})
}

// balanced adds a block's load-balancing loss to that of the blocks before.
func (s *Scope) balanced(extra, balance *Tensor, weight float64) *Tensor {
	if weight == 0 || !s.Training() {
		return extra
	}
	balance = s.Scale(balance, weight)
	if extra == nil {
		return balance
	}
	return s.Add(extra, balance)
}

func llama4Options() []Option {
	return decoderOptions(4, 128, 8, 2, 5e5, join(routedOptions(8, 1), []Option{
		intOpt("dense_hidden", 512, 1, "features inside the MLP of a block without experts"),
		intOpt("moe_every", 1, 1, "each how many-th block has experts (Scout: 1, Maverick: 2)"),
		intOpt("nope_every", 4, 1, "each how many-th block has no rotary positions"),
		floatOpt("bias_rate", 0.001, "change of an expert's bias a step, towards equal load"),
	})...)
}

// llama4 is Llama 4: routed experts beside a shared one, blocks without rotary positions
// between those with. Chunked attention and the scaling of long contexts begin at 8,192
// positions and are not here.
func llama4(v Values) Model {
	d := decoderOf(v)
	d.rope, d.qkNorm = []Opt{Interleaved()}, true
	return language(v, func(s *Scope, tokens, at *Tensor) trunk {
		x, _ := s.embedded(v, tokens)
		cos, sin := s.angles(v, at)
		for i := range v.Int("layers") {
			block := s.Inf("layers.%d", i)
			if (i+1)%v.Int("nope_every") == 0 {
				x = d.attention(block, x, nil, nil, at)
			} else {
				x = d.attention(block, x, cos, sin, at)
			}
			if (i+1)%v.Int("moe_every") != 0 {
				x = d.mlp(block, x, v.Int("dense_hidden"))
				continue
			}
			y := block.SharedMoE("moe", block.In("moe").RMSNorm("norm", x, d.norm...), v.Int("experts"), v.Int("top"), v.Int("hidden"), v.Float("bias_rate"), Jitter(v.Float("jitter")))
			x = block.Add(x, block.Dropout(y, d.drop))
		}
		head := func(x *Tensor) *Tensor { return s.Linear("head", x, v.Int("vocab"), d.out...) }
		return trunk{x: s.RMSNorm("norm", x, d.norm...), head: head}
	})
}
