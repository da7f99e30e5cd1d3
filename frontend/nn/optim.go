package nn

import (
	"reprise/ir/dtype"
)

// Optimizer turns gradients into new parameters.
type Optimizer interface {
	// Start computes what all parameters share. done (f64[]) is the number of steps
	// before this one, lr (f32[]) the learning rate of this one. The function it returns
	// gives a weight its new value.
	Start(s *Scope, done, lr *Tensor) func(w *Weight) *Tensor
}

// SGD is gradient descent with momentum: v ← μ·v + g, p ← p − lr·v (with Nesterov:
// p − lr·(g + μ·v)). Decay adds Decay·p to the gradient of matrices. Without momentum
// there is no state.
type SGD struct {
	Momentum, Decay float64
	Nesterov        bool
}

// Start implements Optimizer.
func (o SGD) Start(s *Scope, _, lr *Tensor) func(w *Weight) *Tensor {
	return func(w *Weight) *Tensor {
		g := w.Grad
		if o.Decay > 0 && w.Param.Type.Rank() > 1 {
			g = w.Add(g, w.Scale(w.Param, o.Decay))
		}
		if o.Momentum > 0 {
			v := w.Add(w.Scale(w.Slot("momentum"), o.Momentum), g)
			w.SetSlot("momentum", v)
			if o.Nesterov {
				v = w.Add(g, w.Scale(v, o.Momentum))
			}
			g = v
		}
		return w.Sub(w.Param, w.Mul(g, lr))
	}
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter 2019). Decay does
// not touch tensors of rank below two: biases and the gains of norms.
type AdamW struct {
	Beta1, Beta2, Eps, Decay float64
}

// DefaultAdamW is AdamW as language models are usually trained: 0.9, 0.95, 1e-8, 0.1.
func DefaultAdamW() AdamW { return AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1} }

// Start implements Optimizer.
func (o AdamW) Start(s *Scope, done, lr *Tensor) func(w *Weight) *Tensor {
	// 1 − βᵗ in f64: at the first steps f32 would lose a third of the digits.
	t := s.AddScalar(done, 1)
	correction := func(beta float64) *Tensor {
		return s.Sub(s.Const(dtype.F64, 1), s.Pow(s.Const(dtype.F64, beta), t))
	}
	rate := s.Cast(s.Div(s.Cast(lr, dtype.F64), correction(o.Beta1)), dtype.F32)
	root := s.Cast(s.Sqrt(correction(o.Beta2)), dtype.F32)
	shrink := s.Sub(s.Const(dtype.F32, 1), s.Scale(lr, o.Decay))
	return func(w *Weight) *Tensor {
		g := w.Grad
		m := w.Add(w.Scale(w.Slot("m"), o.Beta1), w.Scale(g, 1-o.Beta1))
		v := w.Add(w.Scale(w.Slot("v"), o.Beta2), w.Scale(w.Square(g), 1-o.Beta2))
		w.SetSlot("m", m)
		w.SetSlot("v", v)
		p := w.Param
		if o.Decay > 0 && p.Type.Rank() > 1 {
			p = w.Mul(p, shrink)
		}
		return w.Sub(p, w.Div(w.Mul(m, rate), w.AddScalar(w.Div(w.Sqrt(v), root), o.Eps)))
	}
}

// Lion moves by the sign of an interpolated momentum (Chen et al. 2023), with decoupled
// decay that does not touch tensors of rank below two.
type Lion struct {
	Beta1, Beta2, Decay float64
}

// DefaultLion is Lion with the betas of its paper.
func DefaultLion() Lion { return Lion{Beta1: 0.9, Beta2: 0.99, Decay: 0.1} }

// Start implements Optimizer.
func (o Lion) Start(s *Scope, _, lr *Tensor) func(w *Weight) *Tensor {
	shrink := s.Sub(s.Const(dtype.F32, 1), s.Scale(lr, o.Decay))
	return func(w *Weight) *Tensor {
		g, m := w.Grad, w.Slot("m")
		c := w.Add(w.Scale(m, o.Beta1), w.Scale(g, 1-o.Beta1))
		w.SetSlot("m", w.Add(w.Scale(m, o.Beta2), w.Scale(g, 1-o.Beta2)))
		p := w.Param
		if o.Decay > 0 && p.Type.Rank() > 1 {
			p = w.Mul(p, shrink)
		}
		return w.Sub(p, w.Mul(w.Sign(c), lr))
	}
}

// Schedule gives the learning rate of a step.
type Schedule interface {
	// Rate is f64[], computed from done (f64[]), the number of steps before this one.
	Rate(s *Scope, done *Tensor) *Tensor
}

// Constant is the same rate at every step.
type Constant struct{ LR float64 }

// Rate implements Schedule.
func (c Constant) Rate(s *Scope, _ *Tensor) *Tensor { return s.Const(dtype.F64, c.LR) }

// Cosine rises linearly over Warmup steps to LR, falls along half a cosine to Min at
// step Steps, and stays there.
type Cosine struct {
	LR, Min       float64
	Warmup, Steps int64
}

// Rate implements Schedule.
func (c Cosine) Rate(s *Scope, done *Tensor) *Tensor {
	t := progress(s, done, c.Warmup, c.Steps)
	half := s.Scale(s.AddScalar(s.Cos(s.Scale(t, pi)), 1), (c.LR-c.Min)/2)
	return warmed(s, done, c.LR, c.Warmup, s.AddScalar(half, c.Min))
}

// Linear rises linearly over Warmup steps to LR, falls linearly to Min at step Steps,
// and stays there.
type Linear struct {
	LR, Min       float64
	Warmup, Steps int64
}

// Rate implements Schedule.
func (c Linear) Rate(s *Scope, done *Tensor) *Tensor {
	t := progress(s, done, c.Warmup, c.Steps)
	return warmed(s, done, c.LR, c.Warmup, s.AddScalar(s.Scale(t, c.Min-c.LR), c.LR))
}

const pi = 3.14159265358979323846

// progress runs from 0 at the end of the warm-up to 1 at the last step.
func progress(s *Scope, done *Tensor, warmup, steps int64) *Tensor {
	t := s.Div(s.AddScalar(done, -float64(warmup)), s.Const(dtype.F64, float64(max(1, steps-warmup))))
	return s.Max(s.Min(t, s.Const(dtype.F64, 1)), s.Const(dtype.F64, 0))
}

func warmed(s *Scope, done *Tensor, lr float64, warmup int64, after *Tensor) *Tensor {
	if warmup == 0 {
		return after
	}
	rise := s.Scale(s.AddScalar(done, 1), lr/float64(warmup))
	return s.Select(s.Less(done, s.Const(dtype.F64, float64(warmup))), rise, after)
}
