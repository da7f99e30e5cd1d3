package nn

import (
	"reprise/ir"
	"reprise/ir/dtype"
)

// LossScale multiplies the loss by a number that keeps the gradients of 16-bit activations
// from vanishing, and divides the gradients by it again, in f32. It is state and adapts: a
// step with a gradient that is infinite or NaN changes neither parameters nor optimizer
// state and lowers the scale; a run of good steps raises it (Micikevicius et al. 2018).
// Buffers are updated by skipped steps as well: their forward pass was right.
//
// The number of steps that a step of the optimizer is told (Adam's correction of its
// moments) leaves out those that were skipped; the learning rate's schedule counts all.
type LossScale struct {
	First  float64 // the first scale; 0: the loss is not scaled
	Grow   float64 // factor after Every good steps in a row; 0: 2
	Shrink float64 // factor after a bad step; 0: 1/2
	Every  int64   // 0: 2000
	Most   float64 // greatest scale; 0: 2²⁴
}

// lossScale is a LossScale in the making of a step; nil: there is none.
type lossScale struct {
	LossScale
	*Scope
	scale, good, taken *state // f32[], i32[] and i64[]: the optimizer's steps
	ok                 *Tensor
}

func (o LossScale) start(s *Scope) *lossScale {
	if o.First == 0 {
		return nil
	}
	def := func(x *float64, v float64) {
		if *x == 0 {
			*x = v
		}
	}
	def(&o.Grow, 2)
	def(&o.Shrink, 0.5)
	def(&o.Most, 1<<24)
	if o.Every == 0 {
		o.Every = 2000
	}
	l := &lossScale{LossScale: o, Scope: s.In("loss_scale")}
	if !(o.First > 0 && o.Grow > 1 && o.Shrink > 0 && o.Shrink < 1 && o.Most >= o.First && o.Every > 0) {
		l.fail("option", "loss scale %+v: want a first scale above 0 and up to the greatest, growth above 1, shrinkage between 0 and 1", o)
	}
	l.scale = l.state("scale", ir.RoleOpt, dtype.F32, nil, Fill(o.First))
	l.good = l.state("good", ir.RoleOpt, dtype.I32, nil, Zeros)
	l.taken = l.state("taken", ir.RoleOpt, dtype.I64, nil, Zeros)
	return l
}

// up scales the loss that gradients are taken of.
func (l *lossScale) up(loss *Tensor) *Tensor {
	if l == nil {
		return loss
	}
	return l.Mul(loss, l.scale.param)
}

// down scales the gradients back, in f32, and sees whether all of them are finite.
func (l *lossScale) down(grads []*Tensor) {
	if l == nil {
		return
	}
	inv := l.Div(l.Const(dtype.F32, 1), l.scale.param)
	for i, g := range grads {
		grads[i] = l.Mul(l.wide(g), inv)
		ok := l.unary("is_finite", grads[i])
		if n := grads[i].Type.Rank(); n > 0 {
			axes := make([]int64, n)
			for a := range axes {
				axes[a] = int64(a)
			}
			ok = l.unary("reduce", ok, ir.A("kind", "and"), ir.A("axes", axes))
		}
		if l.ok == nil {
			l.ok = ok
		} else {
			l.ok = l.Op("and", []*Tensor{l.ok, ok})
		}
	}
}

// steps is the number of steps of the optimizer before this one.
func (l *lossScale) steps(step *Tensor) *Tensor {
	if l == nil {
		return step
	}
	return l.taken.param
}

// keep is the new value of state of the optimizer, or the old one in a step that is skipped.
func (l *lossScale) keep(s *Scope, now, old *Tensor) *Tensor {
	if l == nil {
		return now
	}
	return s.Select(l.ok, now, old)
}

// finish gives the scale itself its next value.
func (l *lossScale) finish() {
	if l == nil {
		return
	}
	scale, none := l.scale.param, l.Int(dtype.I32, 0)
	good := l.Add(l.good.param, l.Int(dtype.I32, 1))
	more := l.Less(good, l.Int(dtype.I32, l.Every))
	grown := l.Min(l.Scale(scale, l.Grow), l.Const(dtype.F32, l.Most))
	l.scale.now = l.Select(l.ok, l.Select(more, scale, grown), l.Scale(scale, l.Shrink))
	l.good.now = l.Select(l.ok, l.Select(more, good, none), none)
	l.taken.now = l.Add(l.taken.param, l.Cast(l.ok, dtype.I64))
}
