package nn

import (
	"fmt"
	"math"
	"slices"

	"reprise/ir/dtype"
)

func join(lists ...[]Option) []Option { return slices.Concat(lists...) }

func mlpOptions() []Option {
	return join([]Option{
		intOpt("layers", 2, 0, "hidden layers"),
		intOpt("in", 64, 1, "features of the input"),
		intOpt("hidden", 256, 1, "features of a hidden layer"),
		intOpt("classes", 10, 1, "classes"),
		intOpt("batch", 64, 1, "rows a step"),
		floatOpt("dropout", 0, "drop probability after each hidden layer"),
	}, trainingOptions("adamw", "cosine", 1e-3, 0.1, 1, 10, 1000))
}

func mlp(v Values) Model {
	logits := func(s *Scope) *Tensor {
		h := s.Input("x", dtype.F32, []int64{v.Int("batch"), v.Int("in")}, Normal01)
		for i := range v.Int("layers") {
			l := s.Inf("layers.%d", i)
			h = l.Dropout(l.Gelu(l.Linear("fc", h, v.Int("hidden"))), v.Float("dropout"))
		}
		return s.Linear("out", h, v.Int("classes"))
	}
	return classifier(v, logits)
}

// classifier trains and predicts with the same logits [B, classes].
func classifier(v Values, logits func(s *Scope) *Tensor) Model {
	return Model{
		Loss: func(s *Scope) *Tensor {
			z := logits(s)
			y := s.Input("y", dtype.I32, []int64{v.Int("batch")}, Labels(v.Int("classes")))
			return s.In("loss").CrossEntropy(z, y)
		},
		Predict: func(s *Scope) { s.Output("logits", logits(s)) },
	}
}

// trunk is a language model up to its output layer.
type trunk struct {
	x     *Tensor                 // features [B, T, d]
	head  func(x *Tensor) *Tensor // logits [..., V] of features [..., d]
	extra *Tensor                 // added to the loss, or nil
}

// language trains and predicts over tokens [B, T]. With predict=next the inference step
// has an input "position" (i32[]) and gives the logits [B, V] of what follows that
// position only. With predict=step it takes one token of each sequence, [B, 1], and gives
// the logits [B, V] of what follows it: what it knows of the tokens before is state, as is
// buffer "position", which counts them and starts anew after T. build gets that position, or
// nil where it is given all tokens.
func language(v Values, build func(s *Scope, tokens, at *Tensor) trunk) Model {
	shape, vocab := []int64{v.Int("batch"), v.Int("seq")}, v.Int("vocab")
	return Model{
		DType: dtypeOf(v),
		Loss: func(s *Scope) *Tensor {
			tokens := s.Input("tokens", dtype.I32, shape, Tokens(vocab))
			targets := s.Input("targets", dtype.I32, shape, Targets(vocab))
			t := build(s, tokens, nil)
			l := s.In("loss")
			loss := l.CrossEntropy(t.head(t.x), targets)
			if t.extra != nil {
				loss = l.Add(loss, t.extra)
			}
			return loss
		},
		Predict: func(s *Scope) {
			if v.Word("predict") == "step" {
				at := s.Buffer("position", dtype.I32, nil, Zeros)
				t := build(s, s.Input("tokens", dtype.I32, []int64{shape[0], 1}, Tokens(vocab)), at)
				s.Output("logits", s.Reshape(s.wide(t.head(t.x)), shape[0], vocab))
				s.Update("position", s.Op("rem", []*Tensor{s.Add(at, s.Int(dtype.I32, 1)), s.Int(dtype.I32, shape[1])}))
				return
			}
			t := build(s, s.Input("tokens", dtype.I32, shape, Tokens(vocab)), nil)
			if v.Word("predict") == "next" {
				t.x = s.Pick(t.x, 1, s.Input("position", dtype.I32, nil, Labels(v.Int("seq"))))
			}
			s.Output("logits", s.wide(t.head(t.x)))
		},
	}
}

func predictOption(more ...string) Option {
	doc := "inference gives logits of all positions, or those after the input \"position\""
	if len(more) > 0 {
		doc += ", or takes a token a step and keeps keys and values as state"
	}
	return wordOpt("predict", "all", doc, append([]string{"all", "next"}, more...)...)
}

func dtypeOption(def string) Option {
	return wordOpt("dtype", def, "elements of parameters and activations; of 16 bits: with f32 in softmax, norms, rotation, routers, loss and optimizer", "f32", "bf16", "f16")
}

// dtypeOf is the element type that the option says; f32 where a model has no option.
func dtypeOf(v Values) dtype.Type {
	d, err := dtype.Parse(v.Word("dtype"))
	if err != nil {
		return dtype.F32
	}
	return d
}

func gptOptions() []Option {
	return join([]Option{
		intOpt("layers", 6, 1, "blocks"),
		intOpt("d", 384, 1, "features"),
		intOpt("heads", 6, 1, "attention heads"),
		intOpt("seq", 256, 1, "positions"),
		intOpt("batch", 16, 1, "sequences a step"),
		intOpt("vocab", 256, 1, "tokens; 256: bytes"),
		floatOpt("dropout", 0.2, "drop probability: embedding, attention, residuals"),
		dtypeOption("f32"),
		predictOption("step"),
	}, trainingOptions("adamw", "cosine", 1e-3, 0.1, 1, 100, 5000))
}

func headsCheck(v Values) error {
	if v.Int("d")%v.Int("heads") != 0 {
		return fmt.Errorf("d=%d is no multiple of heads=%d", v.Int("d"), v.Int("heads"))
	}
	return microCheck(v)
}

func microCheck(v Values) error {
	if v.Int("batch")%v.Int("micro") != 0 {
		return fmt.Errorf("batch=%d is no multiple of micro=%d", v.Int("batch"), v.Int("micro"))
	}
	return nil
}

func gptCheck(v Values) error { return headsCheck(v) }

// positioned is the embedding of tokens plus that of their positions, and the former's table.
func (s *Scope) positioned(v Values, tokens, at *Tensor) (x, wte *Tensor) {
	wte, wpe := s.Embedding("wte", v.Int("vocab"), v.Int("d")), s.Embedding("wpe", v.Int("seq"), v.Int("d"))
	e := s.In("embed")
	if at != nil {
		wpe = e.Take(wpe, e.Reshape(at, 1))
	}
	return e.Dropout(e.Add(e.Take(wte, tokens), wpe), v.Float("dropout")), wte
}

// selfAttention adds causal self-attention with biases to x [B, T, C].
func (s *Scope) selfAttention(v Values, x, at *Tensor, out Opt) *Tensor {
	d, heads, p := v.Int("d"), v.Int("heads"), v.Float("dropout")
	a := s.In("attn")
	h := a.LayerNorm("ln", x)
	part := func(name string) *Tensor { return a.Project(name, h, heads, d/heads, WithInit(Normal(0.02))) }
	y := a.CausalAttention(part("q"), part("k"), part("v"), v.Int("seq"), at, p)
	return s.Add(x, a.Dropout(a.Join("proj", y, d, out), p))
}

func gptModel(v Values) Model {
	d, layers, p := v.Int("d"), v.Int("layers"), v.Float("dropout")
	normal := WithInit(Normal(0.02))
	// Residual projections start smaller, so that the sum over all blocks keeps its scale.
	thin := WithInit(Normal(0.02 / math.Sqrt(2*float64(layers))))
	return language(v, func(s *Scope, tokens, at *Tensor) trunk {
		x, wte := s.positioned(v, tokens, at)
		for i := range layers {
			block := s.Inf("layers.%d", i)
			x = block.selfAttention(v, x, at, thin)
			m := block.In("mlp")
			h := m.Gelu(m.Linear("fc", m.LayerNorm("ln", x), 4*d, normal))
			x = block.Add(x, m.Dropout(m.Linear("proj", h, d, thin), p))
		}
		head := func(x *Tensor) *Tensor { return s.In("head").MatMulT(x, wte) }
		return trunk{x: s.LayerNorm("ln", x), head: head}
	})
}

func moeOptions() []Option {
	return join([]Option{
		intOpt("layers", 2, 1, "blocks"),
		intOpt("d", 128, 1, "features"),
		intOpt("heads", 4, 1, "attention heads"),
		intOpt("experts", 8, 1, "experts of a block"),
		intOpt("top", 2, 1, "experts of a token"),
		intOpt("hidden", 256, 1, "features inside an expert"),
		intOpt("seq", 64, 1, "positions"),
		intOpt("batch", 8, 1, "sequences a step"),
		intOpt("vocab", 256, 1, "tokens; 256: bytes"),
		floatOpt("dropout", 0, "drop probability: embedding, attention, residuals"),
		floatOpt("balance", 0.01, "weight of the load-balancing loss"),
		floatOpt("jitter", 0, "router noise: what it sees times 1 ± jitter"),
		dtypeOption("f32"),
		predictOption("step"),
	}, trainingOptions("adamw", "cosine", 1e-3, 0.1, 1, 100, 5000))
}

func moeCheck(v Values) error {
	if v.Int("top") > v.Int("experts") {
		return fmt.Errorf("top=%d is more than experts=%d", v.Int("top"), v.Int("experts"))
	}
	return headsCheck(v)
}

func moe(v Values) Model {
	p := v.Float("dropout")
	return language(v, func(s *Scope, tokens, at *Tensor) trunk {
		x, wte := s.positioned(v, tokens, at)
		var extra *Tensor
		for i := range v.Int("layers") {
			block := s.Inf("layers.%d", i)
			x = block.selfAttention(v, x, at, WithInit(Normal(0.02)))
			y, balance := block.MoE("moe", block.LayerNorm("ln", x), v.Int("experts"), v.Int("top"), v.Int("hidden"), Jitter(v.Float("jitter")))
			x = block.Add(x, block.Dropout(y, p))
			extra = block.balanced(extra, balance, v.Float("balance"))
		}
		head := func(x *Tensor) *Tensor { return s.In("head").MatMulT(x, wte) }
		return trunk{x: s.LayerNorm("ln", x), head: head, extra: extra}
	})
}

func imageOptions(size, channels, width, batch int64) []Option {
	return []Option{
		intOpt("size", size, 1, "height and width of an image"),
		intOpt("channels", channels, 1, "channels of an image"),
		intOpt("width", width, 1, "channels of the first stage"),
		intOpt("classes", 10, 1, "classes"),
		intOpt("batch", batch, 1, "images a step"),
	}
}

func (s *Scope) image(v Values) *Tensor {
	return s.Input("x", dtype.F32, []int64{v.Int("batch"), v.Int("size"), v.Int("size"), v.Int("channels")}, Normal01)
}

func cnnOptions() []Option {
	return join(imageOptions(28, 1, 16, 32), []Option{
		floatOpt("dropout", 0, "drop probability before the output"),
	}, trainingOptions("adamw", "cosine", 1e-3, 0.1, 1, 10, 1000))
}

func cnnCheck(v Values) error {
	if v.Int("size")%4 != 0 {
		return fmt.Errorf("size=%d is no multiple of 4, which two poolings need", v.Int("size"))
	}
	return microCheck(v)
}

func cnn(v Values) Model {
	return classifier(v, func(s *Scope) *Tensor {
		h := s.image(v)
		for i, width := range []int64{v.Int("width"), 2 * v.Int("width")} {
			l := s.Inf("layers.%d", i)
			h = l.MaxPool(l.Relu(l.Conv2D("conv", h, width, 3, 1)), 2)
		}
		t := h.Type.Shape
		h = s.Reshape(h, t[0], t[1]*t[2]*t[3])
		f := s.In("fc")
		h = f.Dropout(f.Relu(s.Linear("fc", h, 8*v.Int("width"))), v.Float("dropout"))
		return s.Linear("out", h, v.Int("classes"))
	})
}

func resnetOptions() []Option {
	return join(imageOptions(32, 3, 16, 32), []Option{
		intOpt("blocks", 2, 1, "residual blocks of each of the three stages"),
		floatOpt("bn_momentum", 0.1, "share of the batch in the running statistics"),
	}, trainingOptions("sgd", "cosine", 0.1, 1e-4, 0, 10, 1000))
}

func resnetCheck(v Values) error {
	if v.Int("size")%4 != 0 {
		return fmt.Errorf("size=%d is no multiple of 4, which two halvings need", v.Int("size"))
	}
	return microCheck(v)
}

func resnet(v Values) Model {
	m := v.Float("bn_momentum")
	conv := func(s *Scope, name string, x *Tensor, out, size, stride int64) *Tensor {
		return s.BatchNorm(name+".bn", s.Conv2D(name, x, out, size, stride, NoBias()), m)
	}
	return classifier(v, func(s *Scope) *Tensor {
		stem := s.In("stem")
		h := stem.Relu(conv(stem, "conv", s.image(v), v.Int("width"), 3, 1))
		for stage := range int64(3) {
			for i := range v.Int("blocks") {
				b := s.Inf("stages.%d.%d", stage, i)
				width, stride, skip := v.Int("width")<<stage, int64(1), h
				if stage > 0 && i == 0 {
					stride = 2
					skip = conv(b, "skip", h, width, 1, stride)
				}
				h = b.Relu(conv(b, "conv1", h, width, 3, stride))
				h = b.Relu(b.Add(conv(b, "conv2", h, width, 3, 1), skip))
			}
		}
		return s.Linear("out", s.In("pool").Mean(h, 1, 2), v.Int("classes"))
	})
}

// unrolled is the option of a loop that is written out.
func unrolled(name string, def int64, doc string) Option {
	o := intOpt(name, def, 1, doc)
	o.Max = 4096
	return o
}

func lstmOptions() []Option {
	return join([]Option{
		intOpt("layers", 1, 1, "layers"),
		intOpt("d", 64, 1, "features of the embedding"),
		intOpt("hidden", 128, 1, "features of the state"),
		unrolled("seq", 32, "positions"),
		intOpt("batch", 16, 1, "sequences a step"),
		intOpt("vocab", 256, 1, "tokens; 256: bytes"),
		floatOpt("dropout", 0, "drop probability before each layer and the output"),
		predictOption(),
	}, trainingOptions("adamw", "cosine", 2e-3, 0.1, 1, 10, 1000))
}

func lstm(v Values) Model {
	return language(v, func(s *Scope, tokens, _ *Tensor) trunk {
		x := s.In("embed").Take(s.Embedding("wte", v.Int("vocab"), v.Int("d"), WithInit(Normal(0.1))), tokens)
		for i := range v.Int("layers") {
			l := s.Inf("layers.%d", i)
			x = l.LSTM("lstm", l.Dropout(x, v.Float("dropout")), v.Int("hidden"))
		}
		head := func(x *Tensor) *Tensor { return s.Linear("head", x, v.Int("vocab")) }
		return trunk{x: s.In("head").Dropout(x, v.Float("dropout")), head: head}
	})
}
