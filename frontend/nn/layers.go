package nn

import (
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// Init gives a state value its first value, of type t, in @init.
type Init func(s *Scope, t ir.Type) *Tensor

// Zeros fills with 0.
func Zeros(s *Scope, t ir.Type) *Tensor { return s.Full(t, 0) }

// Ones fills with 1.
func Ones(s *Scope, t ir.Type) *Tensor { return s.Full(t, 1) }

// Fill fills with v.
func Fill(v float64) Init { return func(s *Scope, t ir.Type) *Tensor { return s.Full(t, v) } }

// Normal draws from a normal distribution of mean 0.
func Normal(std float64) Init {
	return func(s *Scope, t ir.Type) *Tensor {
		return s.Cast(s.Scale(s.random("normal", []*Tensor{s.Key()}, ir.A("shape", t.Shape)), std), t.DType)
	}
}

// Uniform draws evenly from [−limit, limit).
func Uniform(limit float64) Init {
	return func(s *Scope, t ir.Type) *Tensor {
		u := s.random("uniform", []*Tensor{s.Key()}, ir.A("shape", t.Shape))
		return s.Cast(s.AddScalar(s.Scale(u, 2*limit), -limit), t.DType)
	}
}

// Xavier is Uniform(√(6/(in+out))) (Glorot and Bengio 2010).
func Xavier(in, out int64) Init { return Uniform(math.Sqrt(6 / float64(in+out))) }

// Kaiming is Normal(√(2/in)), for layers before a rectifier (He et al. 2015).
func Kaiming(in int64) Init { return Normal(math.Sqrt(2 / float64(in))) }

// Opt changes a layer's defaults.
type Opt func(*layer)

type layer struct {
	bias   bool
	init   Init
	eps    float64
	causal bool
	drop   float64
	jitter float64
	style  string
}

func options(l layer, opts []Opt) layer {
	for _, o := range opts {
		o(&l)
	}
	return l
}

// NoBias leaves out a layer's bias.
func NoBias() Opt { return func(l *layer) { l.bias = false } }

// WithInit sets the initialiser of a layer's weight.
func WithInit(init Init) Opt { return func(l *layer) { l.init = init } }

// Eps sets what a norm adds to the variance.
func Eps(eps float64) Opt { return func(l *layer) { l.eps = eps } }

// Causal lets position i attend to positions up to i only.
func Causal() Opt { return func(l *layer) { l.causal = true } }

// Jitter multiplies what a router sees by uniform noise from [1−eps, 1+eps) in training.
func Jitter(eps float64) Opt { return func(l *layer) { l.jitter = eps } }

// Interleaved lets Rope pair elements 2i and 2i+1 of a head, instead of those of its halves.
func Interleaved() Opt { return func(l *layer) { l.style = "interleaved" } }

// DropProbs drops attention probabilities in training.
func DropProbs(p float64) Opt { return func(l *layer) { l.drop = p } }

// Linear maps the last axis of x to out features: y = x·w + b, w [in, out], b [out]. The
// default initialiser is uniform in ±1/√in.
func (s *Scope) Linear(name string, x *Tensor, out int64, opts ...Opt) *Tensor {
	s = s.In(name)
	if x.Type.Rank() == 0 {
		s.fail("shape", "linear layer of %v: want at least one axis", x.Type)
	}
	in := x.Type.Shape[x.Type.Rank()-1]
	l := options(layer{bias: true, init: Uniform(1 / math.Sqrt(float64(in)))}, opts)
	y := s.MatMul(x, s.Param("w", []int64{in, out}, l.init))
	if l.bias {
		y = s.Add(y, s.Param("b", []int64{out}, Zeros))
	}
	return y
}

// Embedding is a table of n rows of dim features; Take picks from it and MatMulT with it
// gives logits of a tied output layer.
func (s *Scope) Embedding(name string, n, dim int64, opts ...Opt) *Tensor {
	l := options(layer{init: Normal(0.02)}, opts)
	return s.In(name).Param("w", []int64{n, dim}, l.init)
}

// LayerNorm normalises the last axis to mean 0 and variance 1, then applies gain and bias.
func (s *Scope) LayerNorm(name string, x *Tensor, opts ...Opt) *Tensor {
	s = s.In(name)
	l := options(layer{eps: 1e-5}, opts)
	n := x.Type.Shape[s.axis(x, -1)]
	g, b := s.Param("g", []int64{n}, Ones), s.Param("b", []int64{n}, Zeros)
	return s.Op("layer_norm", []*Tensor{x, g, b}, ir.A("eps", l.eps))
}

// RMSNorm divides the last axis by its root mean square, then applies a gain.
func (s *Scope) RMSNorm(name string, x *Tensor, opts ...Opt) *Tensor {
	s = s.In(name)
	l := options(layer{eps: 1e-5}, opts)
	n := x.Type.Shape[s.axis(x, -1)]
	return s.Op("rms_norm", []*Tensor{x, s.Param("g", []int64{n}, Ones)}, ir.A("eps", l.eps))
}

// Project maps the last axis of x [B, T, in] to heads of dim features: it is Linear, the
// same weights and the same bits, but the weights are viewed by head, so that the result
// is [B, T, heads, dim] as it is computed.
func (s *Scope) Project(name string, x *Tensor, heads, dim int64, opts ...Opt) *Tensor {
	s = s.In(name)
	in := x.Type.Shape[s.axis(x, -1)]
	l := options(layer{bias: true, init: Uniform(1 / math.Sqrt(float64(in)))}, opts)
	y := s.MatMul(x, s.Reshape(s.Param("w", []int64{in, heads * dim}, l.init), in, heads, dim))
	if l.bias {
		y = s.Add(y, s.Reshape(s.Param("b", []int64{heads * dim}, Zeros), heads, dim))
	}
	return y
}

// Join is the way back: x [B, T, heads, dim] to out features, the weight w being
// [heads·dim, out].
func (s *Scope) Join(name string, x *Tensor, out int64, opts ...Opt) *Tensor {
	s = s.In(name)
	if x.Type.Rank() != 4 {
		s.fail("shape", "joining the heads of %v: want [batch, time, heads, dim]", x.Type)
	}
	heads, dim := x.Type.Shape[2], x.Type.Shape[3]
	l := options(layer{bias: true, init: Uniform(1 / math.Sqrt(float64(heads*dim)))}, opts)
	w := s.Reshape(s.Param("w", []int64{heads * dim, out}, l.init), heads, dim, out)
	y := s.Contract(x, w, nil, nil, []int64{2, 3}, []int64{0, 1})
	if l.bias {
		y = s.Add(y, s.Param("b", []int64{out}, Zeros))
	}
	return y
}

// Attention is scaled dot-product attention of q [B, Tq, H, D] over k and v
// [B, Tk, Hk, D], H a multiple of Hk, with scale 1/√D → [B, Tq, H, D].
func (s *Scope) Attention(q, k, v *Tensor, opts ...Opt) *Tensor {
	l := options(layer{}, opts)
	if q.Type.Rank() != 4 || k.Type.Rank() != 4 || v.Type.Rank() != 4 {
		s.fail("shape", "attention of q %v, k %v, v %v: want [batch, time, heads, dim]", q.Type, k.Type, v.Type)
	}
	t := q.Type.Shape
	attrs := []ir.Attr{ir.A("causal", l.causal), ir.A("scale", 1/math.Sqrt(float64(t[3])))}
	operands := []*Tensor{q, k, v}
	if l.drop > 0 && s.g.train {
		operands = append(operands, s.Key())
		attrs = append(attrs, ir.A("p", l.drop), ir.A("rng", s.g.rng))
		s.g.rng++
	}
	return s.Ops("attention", operands, attrs...)[0]
}

// CausalAttention is Attention of tokens over themselves and those before. Where at is not
// nil, the operands are of the one token at position at (i32[]): its key and value go into
// buffers "k" and "v" [B, T, Hk, D] of length T, and it attends to what stands there up to
// its position. Then the result has the bits that the token's has among all (later keys have
// weight 0 there, which can only show in the sign of a zero, or where they are not finite).
func (s *Scope) CausalAttention(q, k, v *Tensor, T int64, at *Tensor, drop float64) *Tensor {
	if at == nil {
		return s.Attention(q, k, v, Causal(), DropProbs(drop))
	}
	c := s.In("cache")
	return s.Ops("attention_at", []*Tensor{q, c.Cache("k", k, T, at), c.Cache("v", v, T, at), at},
		ir.A("scale", 1/math.Sqrt(float64(q.Type.Shape[3]))))[0]
}

// Cache declares a buffer of length T along axis 1 and writes x [B, n, …] into it from
// position at (i32[]) on; the result is the buffer after that.
func (s *Scope) Cache(name string, x *Tensor, T int64, at *Tensor) *Tensor {
	if x.Type.Rank() < 2 || x.Type.Shape[1] > T {
		s.fail("shape", "cache of length %d for %v: want [batch, time, …]", T, x.Type)
	}
	shape := slices.Clone(x.Type.Shape)
	shape[1] = T
	operands := []*Tensor{s.Buffer(name, x.Type.DType, shape, Zeros), x}
	for axis := range shape {
		if axis == 1 {
			operands = append(operands, at)
		} else {
			operands = append(operands, s.Int(dtype.I32, 0))
		}
	}
	now := s.Op("dynamic_update_slice", operands)
	s.Update(name, now)
	return now
}

// RopeTables is cos and sin of position times frequency, [T, dim/2] each, computed in
// f64 and rounded: frequency i is theta^(−2i/dim).
func (s *Scope) RopeTables(T, dim int64, theta float64) (cos, sin *Tensor) {
	half := dim / 2
	c, n := tensor.New(dtype.F32, T, half), tensor.New(dtype.F32, T, half)
	for t := range T {
		for i := range half {
			a := float64(t) * math.Pow(theta, -2*float64(i)/float64(dim))
			c.F32()[t*half+i] = float32(math.Cos(a))
			n.F32()[t*half+i] = float32(math.Sin(a))
		}
	}
	return s.Array(c), s.Array(n)
}

// Rope rotates pairs of elements of each head of x [B, T, H, D] by the tables' angles, in
// f32: by default element i of the head's first half with element i of its second.
func (s *Scope) Rope(x, cos, sin *Tensor, opts ...Opt) *Tensor {
	l := options(layer{}, opts)
	if l.style == "" {
		return s.Op("rope", []*Tensor{x, cos, sin})
	}
	return s.Op("rope", []*Tensor{x, cos, sin}, ir.A("style", l.style))
}

// Conv2D convolves x [N, H, W, C] with a square kernel of the given size and stride,
// padded so that stride 1 keeps the size → [N, H', W', out]. The default has a bias and
// Kaiming's initialiser.
func (s *Scope) Conv2D(name string, x *Tensor, out, size, stride int64, opts ...Opt) *Tensor {
	s = s.In(name)
	if x.Type.Rank() != 4 {
		s.fail("shape", "convolution of %v: want [batch, height, width, channels]", x.Type)
	}
	in := x.Type.Shape[3]
	l := options(layer{bias: true, init: Kaiming(in * size * size)}, opts)
	w := s.Param("w", []int64{size, size, in, out}, l.init)
	p := (size - 1) / 2
	last := []int64{0, 3, 1, 2} // batch, feature, height, width
	y := s.Op("conv", []*Tensor{x, w}, ir.A("strides", []int64{stride, stride}),
		ir.A("padding", []int64{p, size - 1 - p, p, size - 1 - p}),
		ir.A("x_dims", last), ir.A("w_dims", []int64{3, 2, 0, 1}), ir.A("y_dims", last))
	if l.bias {
		y = s.Add(y, s.Param("b", []int64{out}, Zeros))
	}
	return y
}

// MaxPool takes the greatest of each size×size window of x [N, H, W, C], windows side by
// side.
func (s *Scope) MaxPool(x *Tensor, size int64) *Tensor { return s.pool("max_pool", x, size) }

// AvgPool is the mean of each size×size window of x [N, H, W, C], windows side by side.
func (s *Scope) AvgPool(x *Tensor, size int64) *Tensor { return s.pool("avg_pool", x, size) }

func (s *Scope) pool(name string, x *Tensor, size int64) *Tensor {
	if x.Type.Rank() != 4 || x.Type.Shape[1]%size != 0 || x.Type.Shape[2]%size != 0 {
		s.fail("shape", "%s of %v by %d: want [batch, height, width, channels], sizes that are multiples of %d", name, x.Type, size, size)
	}
	window := []int64{1, size, size, 1}
	return s.unary(name, x, ir.A("window", window), ir.A("strides", window))
}

// BatchNorm normalises the last axis of x over all others. In training it uses the
// batch's statistics and moves the running ones towards them by momentum (the running
// variance is the unbiased one); otherwise it uses the running ones. Its buffers are
// mean, var and, in training, the number of batches seen.
func (s *Scope) BatchNorm(name string, x *Tensor, momentum float64, opts ...Opt) *Tensor {
	s = s.In(name)
	l := options(layer{eps: 1e-5}, opts)
	c := x.Type.Shape[s.axis(x, -1)]
	g, b := s.Param("g", []int64{c}, Ones), s.Param("b", []int64{c}, Zeros)
	mean, variance := s.Buffer("mean", dtype.F32, []int64{c}, Zeros), s.Buffer("var", dtype.F32, []int64{c}, Ones)
	operands, axis := []*Tensor{x, g, b, mean, variance}, ir.A("axis", s.axis(x, -1))
	if !s.g.train {
		return s.Op("batch_norm_inference", operands, axis, ir.A("eps", l.eps))
	}
	r := s.Ops("batch_norm", operands, axis, ir.A("eps", l.eps), ir.A("momentum", momentum))
	s.Update("mean", r[1])
	s.Update("var", r[2])
	s.Update("batches", s.Add(s.Buffer("batches", dtype.I64, nil, Zeros), s.Int(dtype.I64, 1)))
	return r[0]
}

// LSTM runs a long short-term memory over x [B, T, in] from zero state and returns the
// hidden states [B, T, hidden]. It is unrolled over time; the input's share of all gates
// is one contraction. Gates are in the order input, forget, cell, output; the forget
// gate's bias starts at 1.
func (s *Scope) LSTM(name string, x *Tensor, hidden int64) *Tensor {
	s = s.In(name)
	if x.Type.Rank() != 3 {
		s.fail("shape", "lstm of %v: want [batch, time, features]", x.Type)
	}
	B, T, in := x.Type.Shape[0], x.Type.Shape[1], x.Type.Shape[2]
	u := Uniform(1 / math.Sqrt(float64(hidden)))
	wx, wh := s.Param("wx", []int64{in, 4 * hidden}, u), s.Param("wh", []int64{hidden, 4 * hidden}, u)
	b := s.Param("b", []int64{4 * hidden}, func(s *Scope, t ir.Type) *Tensor {
		z, one := s.Full(ir.T(t.DType, hidden), 0), s.Full(ir.T(t.DType, hidden), 1)
		return s.Concat(0, z, one, z, z)
	})
	gates := s.Add(s.MatMul(x, wx), b)
	var h, c *Tensor
	var hs []*Tensor
	for t := range T {
		step := s.Inf("t%d", t)
		a := step.Reshape(step.Slice(gates, 1, t, t+1), B, 4*hidden)
		if h != nil {
			a = step.Add(a, step.MatMul(h, wh))
		}
		gate := func(i int64) *Tensor { return step.Slice(a, 1, i*hidden, (i+1)*hidden) }
		next := step.Mul(step.Sigmoid(gate(0)), step.Tanh(gate(2)))
		if c != nil {
			next = step.Add(step.Mul(step.Sigmoid(gate(1)), c), next)
		}
		c = next
		h = step.Mul(step.Sigmoid(gate(3)), step.Tanh(c))
		hs = append(hs, step.Reshape(h, B, 1, hidden))
	}
	return s.Concat(1, hs...)
}
