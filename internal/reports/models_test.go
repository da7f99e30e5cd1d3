package reports

import (
	"testing"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/dtype"
)

// The tiny models that the reports are told with.

// mlp is M-MLP: L residual layers x + dropout(gelu(rmsnorm(x)·W1), p)·W2 of d features on B rows; the loss is
// the mean of x².
func mlp(t testing.TB, L int, d, B int64, p float64) *frontend.Model {
	t.Helper()
	return trained(t, "mlp", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{B, d}, nn.Normal01)
		for i := range L {
			x = mlpLayer(s.Inf("layers.%d", i), x, p)
		}
		return meanSquare(s, x)
	})
}

func mlpLayer(s *nn.Scope, x *nn.Tensor, p float64) *nn.Tensor {
	d := x.Type.Shape[1]
	h := s.RMSNorm("norm", x)
	a := s.Linear("fc1", h, 4*d, nn.NoBias())
	u := s.In("drop").Dropout(s.In("act").Gelu(a), p)
	return s.Add(x, s.Linear("fc2", u, d, nn.NoBias()))
}

func meanSquare(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
	s = s.In("loss")
	return s.MeanAll(s.Square(x))
}

// glu is M-GLU: L residual layers x + (silu(x·Wg) · (x·Wu))·Wd.
func glu(t testing.TB, L int, d, B int64) *frontend.Model {
	t.Helper()
	return trained(t, "glu", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{B, d}, nn.Normal01)
		for i := range L {
			l := s.Inf("layers.%d", i)
			g := l.Mul(l.Silu(l.Linear("gate", x, 2*d, nn.NoBias())), l.Linear("up", x, 2*d, nn.NoBias()))
			x = l.Add(x, l.Linear("down", g, d, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
}

// attLayer is M-ATT written in its parts: softmax(q·kᵀ), dropout, ·v, projection, residual. x is [T, H·D].
func attLayer(s *nn.Scope, x *nn.Tensor, H int64, p float64) *nn.Tensor {
	T, d := x.Type.Shape[0], x.Type.Shape[1]
	part := func(name string) *nn.Tensor {
		return s.Reshape(s.Linear(name, x, d, nn.NoBias()), T, H, d/H)
	}
	q, k, v := part("q"), part("k"), part("v")
	a := s.In("attn")
	z := a.Scale(a.Contract(q, k, []int64{1}, []int64{1}, []int64{2}, []int64{2}), 0.5) // [H, T, T]
	w := a.Dropout(a.Softmax(z), p)
	o := a.Contract(w, v, []int64{0}, []int64{1}, []int64{2}, []int64{0}) // [H, T, D]
	o = a.Reshape(a.Transpose(o, 1, 0, 2), T, d)
	return s.Add(x, s.Linear("proj", o, d, nn.NoBias()))
}

func att(t testing.TB, L int, H, T, d int64, p float64) *frontend.Model {
	t.Helper()
	return trained(t, "att", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{T, d}, nn.Normal01)
		for i := range L {
			x = attLayer(s.Inf("layers.%d", i), x, H, p)
		}
		return meanSquare(s, x)
	})
}

// moeLayer is M-MOE on x [T, d]: a sigmoid router in f32, top k of E experts, tokens sorted by expert, one grouped
// contraction, and the weighted outputs added up at their tokens.
func moeLayer(s *nn.Scope, x *nn.Tensor, E, k int64) *nn.Tensor {
	y, _ := moeCounted(s, x, E, k)
	return y
}

// moeCounted is moeLayer that gives the running counts of tokens by expert as well, this layer's included.
func moeCounted(s *nn.Scope, x *nn.Tensor, E, k int64) (y, counts *nn.Tensor) {
	T, d := x.Type.Shape[0], x.Type.Shape[1]
	r := s.In("moe.router")
	w := r.Param("w", []int64{d, E}, nn.Normal(0.5))
	score := r.Sigmoid(r.MatMul(r.Cast(x, dtype.F32), w))
	top := r.Ops("top_k", []*nn.Tensor{score}, ir.A("k", k))
	v, i := r.Reshape(top[0], T*k), r.Reshape(top[1], T*k)
	c := r.Op("histogram", []*nn.Tensor{i}, ir.A("bins", E))
	counts = r.Add(s.Buffer("moe.tokens", dtype.I32, []int64{E}, nn.Zeros), c)
	s.Update("moe.tokens", counts)

	e := s.In("moe.experts")
	perm := e.Op("argsort", []*nn.Tensor{i}, ir.A("axis", 0))
	token := e.Div(perm, e.Int(perm.Type.DType, k))
	xs := e.Take(x, token)
	ys := e.Op("grouped_contract", []*nn.Tensor{xs, e.Param("w", []int64{E, d, d}, nn.Normal(0.3)), c})
	weight := e.Reshape(e.Take(v, perm), T*k, 1)
	y = e.Op("take_grad", []*nn.Tensor{e.Mul(e.Gelu(ys), weight), token}, ir.A("axis", 0), ir.A("size", T))
	return s.Add(x, y), counts
}

func moe(t testing.TB, L int, T, E, k, d int64) *frontend.Model {
	t.Helper()
	return trained(t, "moe", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{T, d}, nn.Normal01)
		for i := range L {
			x = moeLayer(s.Inf("layers.%d", i), x, E, k)
		}
		return meanSquare(s, x)
	})
}

// bn is M-BN: linear, batch norm with its running state, rectifier, linear.
func bn(t testing.TB, L int, B, C int64, momentum float64) *frontend.Model {
	t.Helper()
	return trained(t, "bn", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{B, C}, nn.Normal01)
		for i := range L {
			l := s.Inf("layers.%d", i)
			x = l.Relu(l.BatchNorm("bn", l.Linear("fc", x, C, nn.NoBias()), momentum))
		}
		return meanSquare(s, s.Linear("out", x, C, nn.NoBias()))
	})
}
