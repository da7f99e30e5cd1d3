package nn

import (
	"reprise/ir"
	"reprise/ir/dtype"
)

// Optimizer turns gradients into new parameters.
type Optimizer interface {
	// Start is called once a step, for what all parameters share. step (i64[]) is the
	// number of steps before this one, lr (f32[]) the learning rate of this one. The
	// function it returns gives a weight its new value.
	Start(s *Scope, step, lr *Tensor) func(w *Weight) *Tensor
}

// decayOf is the weight decay of a weight: none for tensors of rank below two, which are
// biases and the gains of norms.
func decayOf(w *Weight, decay float64) ir.Attr {
	if w.Param.Type.Rank() < 2 {
		decay = 0
	}
	return ir.A("wd", decay)
}

// SGD is gradient descent with decoupled weight decay of matrices, and with momentum
// (operations sgd and sgd_momentum). Without momentum there is no state.
type SGD struct {
	Momentum, Decay float64
	Nesterov        bool
}

// Start implements Optimizer.
func (o SGD) Start(_ *Scope, _, lr *Tensor) func(w *Weight) *Tensor {
	return func(w *Weight) *Tensor {
		if o.Momentum == 0 {
			return w.Op("sgd", []*Tensor{w.Param, w.Grad, lr}, decayOf(w, o.Decay))
		}
		r := w.Ops("sgd_momentum", []*Tensor{w.Param, w.Grad, w.Slot("m"), lr},
			ir.A("momentum", o.Momentum), ir.A("nesterov", o.Nesterov), decayOf(w, o.Decay))
		w.SetSlot("m", r[1])
		return r[0]
	}
}

// AdamW is Adam with decoupled weight decay of matrices (Loshchilov and Hutter 2019;
// operation adamw).
type AdamW struct {
	Beta1, Beta2, Eps, Decay float64
}

// DefaultAdamW is AdamW as language models are usually trained: 0.9, 0.95, 1e-8, 0.1.
func DefaultAdamW() AdamW { return AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1} }

// Start implements Optimizer.
func (o AdamW) Start(_ *Scope, step, lr *Tensor) func(w *Weight) *Tensor {
	return func(w *Weight) *Tensor {
		r := w.Ops("adamw", []*Tensor{w.Param, w.Grad, w.Slot("m"), w.Slot("v"), lr, step},
			ir.A("b1", o.Beta1), ir.A("b2", o.Beta2), ir.A("eps", o.Eps), decayOf(w, o.Decay))
		w.SetSlot("m", r[1])
		w.SetSlot("v", r[2])
		return r[0]
	}
}

// Lion moves by the sign of an interpolated momentum (Chen et al. 2023), with decoupled
// weight decay of matrices (operation lion).
type Lion struct {
	Beta1, Beta2, Decay float64
}

// DefaultLion is Lion with the betas of its paper.
func DefaultLion() Lion { return Lion{Beta1: 0.9, Beta2: 0.99, Decay: 0.1} }

// Start implements Optimizer.
func (o Lion) Start(_ *Scope, _, lr *Tensor) func(w *Weight) *Tensor {
	return func(w *Weight) *Tensor {
		r := w.Ops("lion", []*Tensor{w.Param, w.Grad, w.Slot("m"), lr},
			ir.A("b1", o.Beta1), ir.A("b2", o.Beta2), decayOf(w, o.Decay))
		w.SetSlot("m", r[1])
		return r[0]
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
