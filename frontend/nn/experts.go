package nn

import (
	"reprise/ir"
	"reprise/ir/dtype"
)

// Mixtures of experts. Every pair of token and expert is computed: pairs are sorted by
// expert, stably, and one grouped contraction runs over all of them, so that no capacity
// limits an expert and none of them may be without a token. Routers compute in f32
// whatever the model's element type.

// SwiGLU is (silu(x·gate) · x·up)·down for x [..., C], without biases.
func (s *Scope) SwiGLU(x *Tensor, hidden int64, opts ...Opt) *Tensor {
	opts = append([]Opt{NoBias()}, opts...)
	g := s.Mul(s.Silu(s.Linear("gate", x, hidden, opts...)), s.Linear("up", x, hidden, opts...))
	return s.Linear("down", g, x.Type.Shape[s.axis(x, -1)], opts...)
}

// routing is what a router decides for N tokens: top experts of each.
type routing struct {
	top    int64
	pairs  *Tensor // i32[N·top]: the expert of each pair
	counts *Tensor // i32[experts]: pairs of each expert
}

// route counts what top_k picked.
func (r *Scope) route(picked *Tensor, experts int64) routing {
	n, top := picked.Type.Shape[0], picked.Type.Shape[1]
	pairs := r.Reshape(picked, n*top)
	return routing{top, pairs, r.Op("histogram", []*Tensor{pairs}, ir.A("bins", experts))}
}

// logits are a router's f32 scores [N, experts] of tokens [N, C].
func (r *Scope) logits(flat *Tensor, experts int64, l layer) *Tensor {
	x := r.Cast(flat, dtype.F32)
	if l.jitter > 0 && r.g.train {
		u := r.random("uniform", []*Tensor{r.Key()}, ir.A("shape", x.Type.Shape))
		x = r.Mul(x, r.AddScalar(r.Scale(u, 2*l.jitter), 1-l.jitter))
	}
	return r.MatMul(x, r.ParamOf("w", dtype.F32, []int64{flat.Type.Shape[1], experts}, l.init))
}

// sorted are the tokens [N·top, C] in the order of their pairs' experts, and that order.
func (s *Scope) sorted(flat *Tensor, r routing) (xs, order *Tensor) {
	d := s.In("dispatch")
	order = d.Op("argsort", []*Tensor{r.pairs}, ir.A("axis", 0))
	return d.Take(flat, d.Div(order, d.Int(order.Type.DType, r.top))), order // pair i is token i / top
}

// experts runs sorted rows xs [N·top, C] through the experts that they belong to.
func (s *Scope) experts(xs *Tensor, r routing, hidden int64, init Init) *Tensor {
	E, C := r.counts.Type.Shape[0], xs.Type.Shape[1]
	weight := func(name string, in, out int64) *Tensor {
		return s.In(name).Param("w", []int64{E, in, out}, init)
	}
	grouped := func(s *Scope, a, w *Tensor) *Tensor {
		return s.Op("grouped_contract", []*Tensor{a, w, r.counts})
	}
	gate := s.In("gate").Silu(grouped(s.In("gate"), xs, weight("gate", C, hidden)))
	up := grouped(s.In("up"), xs, weight("up", C, hidden))
	return grouped(s.In("down"), s.Mul(gate, up), weight("down", hidden, C))
}

// unsorted brings rows [N·top, C] back to the order of tokens: [N, top, C].
func (s *Scope) unsorted(ys, order *Tensor, r routing) *Tensor {
	back := s.Op("argsort", []*Tensor{order}, ir.A("axis", 0))
	return s.Reshape(s.Take(ys, back), ys.Type.Shape[0]/r.top, r.top, ys.Type.Shape[1])
}

func (s *Scope) checkTop(top, experts int64) {
	if top < 1 || top > experts {
		s.fail("option", "top %d of %d experts: want 1 … %d", top, experts, experts)
	}
}

// MoE is a mixture of SwiGLU experts over x [..., C]: a softmax router picks the top
// experts of each token, whose outputs are added up with the renormalised router weights.
// In training, buffer "tokens" (i32[experts]) counts the pairs of token and expert. The
// second result is the load-balancing loss of Switch Transformers (Fedus et al. 2021):
// experts · Σ share of pairs · mean weight.
func (s *Scope) MoE(name string, x *Tensor, experts, top, hidden int64, opts ...Opt) (y, balance *Tensor) {
	s = s.In(name)
	l := options(layer{init: Normal(0.02)}, opts)
	C := x.Type.Shape[s.axis(x, -1)]
	N := x.Type.Len() / C
	s.checkTop(top, experts)
	flat := s.Reshape(x, N, C)

	r := s.In("router")
	probs := r.Softmax(r.logits(flat, experts, l))
	picked := r.Ops("top_k", []*Tensor{probs}, ir.A("k", top))
	weights := r.Div(picked[0], r.Reshape(r.Sum(picked[0], -1), N, 1))
	to := r.route(picked[1], experts)
	if s.g.train {
		r.countAt(s, "tokens", to.counts)
	}

	xs, order := s.sorted(flat, to)
	ys := s.experts(xs, to, hidden, l.init)
	m := s.In("combine")
	ys = m.wide(m.unsorted(ys, order, to))
	y = m.Cast(m.Sum(m.Mul(ys, m.Reshape(weights, N, top, 1)), 1), x.Type.DType)

	share := r.Scale(r.Cast(to.counts, dtype.F32), 1/float64(N*top))
	balance = r.Scale(r.SumAll(r.Mul(share, r.Mean(probs, 0))), float64(experts))
	return s.Reshape(y, x.Type.Shape...), balance
}

// countAt is Count of a buffer of scope of, added up here.
func (s *Scope) countAt(of *Scope, name string, v *Tensor) {
	of.Update(name, s.Add(of.Buffer(name, v.Type.DType, v.Type.Shape, Zeros), v))
}

// SharedMoE is a mixture over x [..., C] as in Llama 4: each token goes through a shared
// SwiGLU expert and through the top of the others. Scores are the logistic function of the
// router's f32 logits, each expert's for itself; an expert's input is the token times its
// score. Which experts are the top is decided by the scores plus buffer "expert_bias"
// (f32[experts]), which has no gradient and balances the load instead of a loss (Wang et
// al. 2024): after each step, whatever its micro-batches, it moves by rate towards the
// experts that got fewer of the step's tokens than the mean. They are counted in
// buffer "tokens_per_expert" (i32[experts], of all steps).
func (s *Scope) SharedMoE(name string, x *Tensor, experts, top, hidden int64, rate float64, opts ...Opt) *Tensor {
	s = s.In(name)
	l := options(layer{init: Normal(0.02)}, opts)
	C := x.Type.Shape[s.axis(x, -1)]
	N := x.Type.Len() / C
	s.checkTop(top, experts)
	flat := s.Reshape(x, N, C)

	r := s.In("router")
	scores := r.Sigmoid(r.logits(flat, experts, l))
	bias := s.Buffer("expert_bias", dtype.F32, []int64{experts}, Zeros)
	// The bias decides and nothing else: its gradient would be that of a decision.
	picked := r.Ops("top_k", []*Tensor{r.Add(scores, bias)}, ir.A("k", top))[1]
	weights := r.Op("take_along", []*Tensor{scores, picked}, ir.A("axis", 1))
	to := r.route(picked, experts)
	if s.g.train {
		r.countAt(s, "tokens_per_expert", to.counts)
		s.After(func() { s.In("balance").moveBias(s, rate) })
	}

	xs, order := s.sorted(flat, to)
	d := s.In("dispatch")
	w := d.Take(d.Reshape(weights, N*top, 1), order)
	xs = d.Cast(d.Mul(d.wide(xs), w), x.Type.DType)
	ys := s.experts(xs, to, hidden, l.init)
	m := s.In("combine")
	y := m.wide(m.unsorted(ys, order, to))
	shared := s.In("shared").SwiGLU(flat, hidden, WithInit(l.init))
	y = m.Cast(m.Add(m.Sum(y, 1), m.wide(shared)), x.Type.DType)
	return s.Reshape(y, x.Type.Shape...)
}

// moveBias is the step's one update of the expert bias of scope of.
func (s *Scope) moveBias(of *Scope, rate float64) {
	now, before := of.Now("tokens_per_expert")
	got := s.Cast(s.Sub(now, before), dtype.F32)
	step := s.Scale(s.Sign(s.Sub(s.Mean(got, 0), got)), rate)
	bias, _ := of.Now("expert_bias")
	of.Update("expert_bias", s.Add(bias, s.Sub(step, s.Mean(step, 0))))
}
