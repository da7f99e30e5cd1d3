package ops

// Composite ops of neural networks. Each means exactly its expansion, in that order.
// Softmax and the norms compute in f32 for f16 and bf16 operands.
//
// Derivatives recompute row statistics from the operands instead of saving them: the
// rows are fused into one sweep, and nothing but operands (or the result, for softmax)
// needs to live until the backward pass.

import (
	"fmt"
	"math"

	"reprise/ir"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

func nnOps() []*ir.OpDef {
	return []*ir.OpDef{
		softmaxRow(), logSoftmaxRow(), layerNormRow(), rmsNormRow(), batchNormRow(), batchNormInferenceRow(),
		geluRow(), reluRow(), siluRow(), ropeRow(),
	}
}

// composite fills in what composite rows share.
func composite(d *ir.OpDef) *ir.OpDef {
	d.Family = "nn"
	return d
}

func axisAttr(doc string) ir.AttrDef {
	return ir.AttrDef{Name: "axis", Kind: "int", Doc: doc}
}

func floatConstraint(label string) ir.Constraint {
	return ir.Constraint{Label: label, Text: "x is of a float type", Check: func(op *ir.Op) error { return wantFloat(op, 0) }}
}

func axisConstraint(label string) ir.Constraint {
	return ir.Constraint{Label: label, Text: "axis is a dimension of x", Check: func(op *ir.Op) error {
		if a := op.Attrs.Int("axis"); !inRange(a, op.In(0).Rank()) {
			return fmt.Errorf("axis %d of operand %v", a, op.In(0))
		}
		return nil
	}}
}

func positive(label, attr string) ir.Constraint {
	return ir.Constraint{Label: label, Text: attr + " is a number, 0 or more", Check: func(op *ir.Op) error {
		if v := op.Attrs.Float(attr); !(v >= 0) || !finite(v) {
			return fmt.Errorf("%s is %v", attr, v)
		}
		return nil
	}}
}

func sameType(op *ir.Op) ir.Type { return op.In(0) }

// rows takes values apart along axes: statistics drop the axes, spreading puts them back.
type rows struct {
	b     *ir.Builder
	shape []int64
	axes  []int64 // reduced
	keep  []int64
}

func rowsOf(b *ir.Builder, x *ir.Value, axes ...int64) rows {
	return rows{b, x.Type.Shape, axes, otherAxes(x.Type.Rank(), axes)}
}

func (r rows) sum(x *ir.Value) *ir.Value    { return reduced(r.b, "sum", x, r.axes) }
func (r rows) max(x *ir.Value) *ir.Value    { return reduced(r.b, "max", x, r.axes) }
func (r rows) spread(s *ir.Value) *ir.Value { return along(r.b, s, r.shape, r.keep) }

// count is the number of elements that one statistic joins.
func (r rows) count() float64 {
	n := 1.0
	for _, a := range r.axes {
		n *= float64(r.shape[a])
	}
	return n
}

// mean is sum(x)/n.
func (r rows) mean(x *ir.Value) *ir.Value { return over(r.b, r.sum(x), r.count()) }

// shiftedExp is d = x - max along the rows, and e = exp d.
func (r rows) shiftedExp(x *ir.Value) (d, e *ir.Value) {
	d = sub(r.b, x, r.spread(r.max(x)))
	return d, call1(r.b, "exp", d)
}

func flopsPerOperandElement(n int64) func(op *ir.Op) ir.Cost {
	return func(op *ir.Op) ir.Cost {
		c := trafficOf(op)
		c.Flops = n * op.In(0).Len()
		return c
	}
}

func softmaxRow() *ir.OpDef {
	return composite(checked(&ir.OpDef{
		Name:     "softmax",
		Doc:      "`e / sum(e)` for `e = exp(x - max(x))`, along axis; in f32 for f16 and bf16.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{axisAttr("the axis")},
		Cost:  flopsPerElement(28),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			x := f32Up(b, op.Operands[0])
			r := rowsOf(b, x, op.Attrs.Int("axis"))
			_, e := r.shiftedExp(x)
			return []*ir.Value{cast(b, div(b, e, r.spread(r.sum(e))), op.In(0).DType)}
		},
		// dx = y·(dy - Σ dy·y)
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			y, dy := f32Up(b, op.Results[0]), f32Up(b, dy)
			r := rowsOf(b, y, op.Attrs.Int("axis"))
			dx := mul(b, y, sub(b, dy, r.spread(r.sum(mul(b, dy, y)))))
			return []*ir.Value{cast(b, dx, op.In(0).DType)}
		}),
	}, []ir.Constraint{floatConstraint("C1"), axisConstraint("C2")}, sameType))
}

func logSoftmaxRow() *ir.OpDef {
	return composite(checked(&ir.OpDef{
		Name:     "log_softmax",
		Doc:      "`d - log(sum(exp(d)))` for `d = x - max(x)`, along axis; in f32 for f16 and bf16.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{axisAttr("the axis")},
		Cost:  flopsPerElement(26),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			x := f32Up(b, op.Operands[0])
			r := rowsOf(b, x, op.Attrs.Int("axis"))
			d, e := r.shiftedExp(x)
			return []*ir.Value{cast(b, sub(b, d, r.spread(call1(b, "log", r.sum(e)))), op.In(0).DType)}
		},
		// dx = dy - exp(y)·Σ dy
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			y, dy := f32Up(b, op.Results[0]), f32Up(b, dy)
			r := rowsOf(b, y, op.Attrs.Int("axis"))
			dx := sub(b, dy, mul(b, call1(b, "exp", y), r.spread(r.sum(dy))))
			return []*ir.Value{cast(b, dx, op.In(0).DType)}
		}),
	}, []ir.Constraint{floatConstraint("C1"), axisConstraint("C2")}, sameType))
}

// lastAxisParams refuses operands after x that are not vectors along its last axis.
func lastAxisParams(label string) ir.Constraint {
	return ir.Constraint{Label: label, Text: "x has a last axis, and the parameters are vectors of its size, of a float type", Check: func(op *ir.Op) error {
		x := op.In(0)
		if x.Rank() == 0 {
			return fmt.Errorf("operand %s is %v", operandName(op, 0), x)
		}
		for i := 1; i < len(op.Operands); i++ {
			if err := wantFloat(op, i); err != nil {
				return err
			}
			if err := wantShape(op, i, x.Shape[x.Rank()-1:], fmt.Sprintf("the last axis of x, %v", x)); err != nil {
				return err
			}
		}
		return nil
	}}
}

// normalised is d = x - mean, its variance along the rows, and xhat = d·rsqrt(var + eps).
func (r rows) normalised(x *ir.Value, eps float64) (rstd, xhat *ir.Value) {
	b := r.b
	d := sub(b, x, r.spread(r.mean(x)))
	rstd = call1(b, "rsqrt", plus(b, r.mean(mul(b, d, d)), eps))
	return rstd, mul(b, d, r.spread(rstd))
}

// normGrad is the cotangent of x for xhat = (x - mean)·rstd and the cotangent of xhat:
// rstd·(g - mean(g) - xhat·mean(g·xhat)).
func (r rows) normGrad(rstd, xhat, g *ir.Value) *ir.Value {
	b := r.b
	mg, mgx := r.mean(g), r.mean(mul(b, g, xhat))
	t := sub(b, sub(b, g, r.spread(mg)), mul(b, xhat, r.spread(mgx)))
	return mul(b, r.spread(rstd), t)
}

func layerNormRow() *ir.OpDef {
	last := func(x *ir.Value) int64 { return int64(x.Type.Rank() - 1) }
	return composite(checked(&ir.OpDef{
		Name: "layer_norm",
		Doc: "`fma(xhat, g, b)` for `xhat = d · rsqrt(mean(d²) + eps)`, `d = x - mean(x)`, over the last axis; " +
			"means are sums divided by the count. In f32 for f16 and bf16.",
		Operands: []string{"x", "g", "b"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "eps", Kind: "float", Default: 1e-5, Doc: "added to the variance"}},
		Cost:  flopsPerElement(8),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			x, g, s := f32Up(b, op.Operands[0]), op.Operands[1], op.Operands[2]
			r := rowsOf(b, x, last(x))
			_, xhat := r.normalised(x, op.Attrs.Float("eps"))
			w := func(v *ir.Value) *ir.Value { return along(b, cast(b, v, x.Type.DType), x.Type.Shape, r.axes) }
			return []*ir.Value{cast(b, fma(b, xhat, w(g), w(s)), op.In(0).DType)}
		},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			x, g, dy := f32Up(b, op.Operands[0]), op.Operands[1], f32Up(b, dy)
			r := rowsOf(b, x, last(x))
			rstd, xhat := r.normalised(x, op.Attrs.Float("eps"))
			dxhat := mul(b, dy, along(b, cast(b, g, x.Type.DType), x.Type.Shape, r.axes))
			dx := r.normGrad(rstd, xhat, dxhat)
			dg, ds := sumTo(b, mul(b, dy, xhat), r.axes), sumTo(b, dy, r.axes)
			return []*ir.Value{cast(b, dx, op.In(0).DType), cast(b, dg, op.In(1).DType), cast(b, ds, op.In(2).DType)}
		}),
	}, []ir.Constraint{floatConstraint("C1"), lastAxisParams("C2"), positive("C3", "eps")}, sameType))
}

func rmsNormRow() *ir.OpDef {
	last := func(x *ir.Value) int64 { return int64(x.Type.Rank() - 1) }
	rstd := func(r rows, x *ir.Value, eps float64) *ir.Value {
		return call1(r.b, "rsqrt", plus(r.b, r.mean(mul(r.b, x, x)), eps))
	}
	return composite(checked(&ir.OpDef{
		Name: "rms_norm",
		Doc: "`(x · rsqrt(mean(x²) + eps)) · g` over the last axis; the first product in f32 for f16 and bf16, " +
			"then rounded to the type of x before it is multiplied by g (as Llama does).",
		Operands: []string{"x", "g"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "eps", Kind: "float", Default: 1e-6, Doc: "added to the mean square"}},
		Cost:  flopsPerElement(5),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			x, d := f32Up(b, op.Operands[0]), op.In(0).DType
			r := rowsOf(b, x, last(x))
			y := cast(b, mul(b, x, r.spread(rstd(r, x, op.Attrs.Float("eps")))), d)
			return []*ir.Value{mul(b, y, along(b, cast(b, op.Operands[1], d), x.Type.Shape, r.axes))}
		},
		// With xhat = x·rstd: dx = rstd·(dxhat - xhat·mean(dxhat·xhat)).
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			x, dy := f32Up(b, op.Operands[0]), f32Up(b, dy)
			r := rowsOf(b, x, last(x))
			s := r.spread(rstd(r, x, op.Attrs.Float("eps")))
			xhat := mul(b, x, s)
			dxhat := mul(b, dy, along(b, cast(b, op.Operands[1], x.Type.DType), x.Type.Shape, r.axes))
			dx := mul(b, s, sub(b, dxhat, mul(b, xhat, r.spread(r.mean(mul(b, dxhat, xhat))))))
			dg := sumTo(b, mul(b, dy, xhat), r.axes)
			return []*ir.Value{cast(b, dx, op.In(0).DType), cast(b, dg, op.In(1).DType)}
		}),
	}, []ir.Constraint{floatConstraint("C1"), lastAxisParams("C2"), positive("C3", "eps")}, sameType))
}

// channelParams refuses operands after x that are not vectors along axis.
func channelParams(label string) ir.Constraint {
	return ir.Constraint{Label: label, Text: "the other operands are vectors of the size of x along axis, of a float type", Check: func(op *ir.Op) error {
		for i := 1; i < len(op.Operands); i++ {
			if err := wantFloat(op, i); err != nil {
				return err
			}
			if err := wantShape(op, i, []int64{op.In(0).Shape[op.Attrs.Int("axis")]}, fmt.Sprintf("axis %d of x, %v", op.Attrs.Int("axis"), op.In(0))); err != nil {
				return err
			}
		}
		return nil
	}}
}

func batchNormRow() *ir.OpDef {
	stats := func(op *ir.Op) rows {
		return rows{shape: op.In(0).Shape, keep: []int64{op.Attrs.Int("axis")}, axes: otherAxes(op.In(0).Rank(), []int64{op.Attrs.Int("axis")})}
	}
	d := composite(checked(&ir.OpDef{
		Name: "batch_norm",
		Doc: "Training form: `fma(xhat, g, b)` for `xhat = d · rsqrt(var + eps)`, `d = x - mean(x)`, `var = mean(d²)` over all axes but `axis`; " +
			"and the new running statistics `fma(running, 1-momentum, statistic · momentum)`, the variance's statistic being `var · n/(n-1)` where unbiased. In f32 for f16 and bf16.",
		Operands: []string{"x", "g", "b", "running_mean", "running_var"}, Results: []string{"y", "new_mean", "new_var"},
		Attrs: []ir.AttrDef{
			{Name: "eps", Kind: "float", Default: 1e-5, Doc: "added to the variance"},
			{Name: "momentum", Kind: "float", Default: 0.1, Doc: "weight of the batch's statistics"},
			axisAttr("the channel axis"),
			{Name: "unbiased", Kind: "bool", Default: true, Doc: "whether the running variance takes the unbiased estimate"},
		},
		Cost: flopsPerElement(9),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			x, r := f32Up(b, op.Operands[0]), stats(op)
			r.b = b
			d := x.Type.DType
			mean := r.mean(x)
			c := sub(b, x, r.spread(mean))
			variance := r.mean(mul(b, c, c))
			xhat := mul(b, c, r.spread(call1(b, "rsqrt", plus(b, variance, op.Attrs.Float("eps")))))
			w := func(i int) *ir.Value { return cast(b, op.Operands[i], d) }
			y := fma(b, xhat, r.spread(w(1)), r.spread(w(2)))
			est := variance
			if n := r.count(); op.Attrs.Bool("unbiased") && n > 1 {
				est = times(b, variance, n/(n-1))
			}
			mom := op.Attrs.Float("momentum")
			run := func(i int, s *ir.Value) *ir.Value {
				return cast(b, fma(b, w(i), full(b, s.Type, 1-mom), times(b, s, mom)), op.In(i).DType)
			}
			return []*ir.Value{cast(b, y, op.In(0).DType), run(3, mean), run(4, est)}
		},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			x, r := f32Up(b, op.Operands[0]), stats(op)
			r.b = b
			d := x.Type.DType
			out := make([]*ir.Value, 5)
			var dx *ir.Value
			rstd, xhat := r.normalised(x, op.Attrs.Float("eps"))
			if douts[0] != nil {
				dy := f32Up(b, douts[0])
				dx = r.normGrad(rstd, xhat, mul(b, dy, r.spread(cast(b, op.Operands[1], d))))
				out[1] = cast(b, r.sum(mul(b, dy, xhat)), op.In(1).DType)
				out[2] = cast(b, r.sum(dy), op.In(2).DType)
			}
			mom, n := op.Attrs.Float("momentum"), r.count()
			also := func(v *ir.Value) {
				if dx == nil {
					dx = v
				} else {
					dx = add(b, dx, v)
				}
			}
			if g := douts[1]; g != nil { // mean: each element has weight momentum/n
				g = f32Up(b, g)
				also(r.spread(times(b, g, mom/n)))
				out[3] = cast(b, times(b, g, 1-mom), op.In(3).DType)
			}
			if g := douts[2]; g != nil { // variance: 2·momentum/n (or n-1)·(x - mean)
				g = f32Up(b, g)
				if op.Attrs.Bool("unbiased") && n > 1 {
					n--
				}
				c := div(b, xhat, r.spread(rstd))
				also(mul(b, c, r.spread(times(b, g, 2*mom/n))))
				out[4] = cast(b, times(b, g, 1-mom), op.In(4).DType)
			}
			if dx != nil {
				out[0] = cast(b, dx, op.In(0).DType)
			}
			return out, nil
		},
	}, []ir.Constraint{floatConstraint("C1"), axisConstraint("C2"), channelParams("C3"), positive("C4", "eps"), positive("C5", "momentum")}, sameType))
	infer := d.Infer
	d.Infer = func(op *ir.Op) ([]ir.Type, error) {
		ts, err := infer(op)
		if err != nil {
			return nil, err
		}
		return append(ts, op.In(3), op.In(4)), nil
	}
	return d
}

func batchNormInferenceRow() *ir.OpDef {
	return composite(checked(&ir.OpDef{
		Name:     "batch_norm_inference",
		Doc:      "`fma((x - mean) · rsqrt(var + eps), g, b)` with given statistics for each index along axis; in f32 for f16 and bf16.",
		Operands: []string{"x", "g", "b", "mean", "var"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "eps", Kind: "float", Default: 1e-5, Doc: "added to the variance"},
			axisAttr("the channel axis"),
		},
		Cost: flopsPerElement(5),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			x := f32Up(b, op.Operands[0])
			w := func(i int) *ir.Value { return cast(b, op.Operands[i], x.Type.DType) }
			ch := func(v *ir.Value) *ir.Value {
				return along(b, v, x.Type.Shape, []int64{op.Attrs.Int("axis")})
			}
			rstd := call1(b, "rsqrt", plus(b, w(4), op.Attrs.Float("eps")))
			xhat := mul(b, sub(b, x, ch(w(3))), ch(rstd))
			return []*ir.Value{cast(b, fma(b, xhat, ch(w(1)), ch(w(2))), op.In(0).DType)}
		},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			x, dy := f32Up(b, op.Operands[0]), f32Up(b, dy)
			axis := []int64{op.Attrs.Int("axis")}
			w := func(i int) *ir.Value { return cast(b, op.Operands[i], x.Type.DType) }
			ch := func(v *ir.Value) *ir.Value { return along(b, v, x.Type.Shape, axis) }
			rstd := call1(b, "rsqrt", plus(b, w(4), op.Attrs.Float("eps")))
			dx := mul(b, dy, ch(mul(b, w(1), rstd)))
			c := sub(b, x, ch(w(3)))
			dg := mul(b, sumTo(b, mul(b, dy, c), axis), rstd)
			dmean := neg(b, sumTo(b, dx, axis))
			// d(rstd)/d(var) = -rstd³/2
			dvar := mul(b, mul(b, dg, w(1)), times(b, mul(b, rstd, rstd), -0.5))
			out := []*ir.Value{dx, dg, sumTo(b, dy, axis), dmean, dvar}
			for i := range out {
				out[i] = cast(b, out[i], op.In(i).DType)
			}
			return out
		}),
	}, []ir.Constraint{floatConstraint("C1"), axisConstraint("C2"), channelParams("C3"), positive("C4", "eps")}, sameType))
}

// activation is the row of an elementwise composite; expand and grad get x in the type
// of computation.
func activation(name, doc string, flops int64, attrs []ir.AttrDef, cs []ir.Constraint,
	expand func(b *ir.Builder, op *ir.Op, x *ir.Value) *ir.Value,
	grad func(b *ir.Builder, op *ir.Op, x, dy *ir.Value) *ir.Value) *ir.OpDef {
	return composite(checked(&ir.OpDef{
		Name: name, Doc: doc + " In f32 for f16 and bf16.",
		Operands: []string{"x"}, Results: []string{"y"}, Attrs: attrs,
		Cost: flopsPerElement(flops),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			return []*ir.Value{cast(b, expand(b, op, f32Up(b, op.Operands[0])), op.In(0).DType)}
		},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			return []*ir.Value{cast(b, grad(b, op, f32Up(b, op.Operands[0]), f32Up(b, dy)), op.In(0).DType)}
		}),
	}, append([]ir.Constraint{floatConstraint("C1")}, cs...), sameType))
}

// geluC and geluA are the constants of the tanh form: √(2/π)·(x + 0.044715·x³).
const geluA = 0.044715

var geluC = math.Sqrt(2 / math.Pi)

func geluRow() *ir.OpDef {
	inner := func(b *ir.Builder, x *ir.Value) *ir.Value { // √(2/π)·x·(1 + a·x²)
		return mul(b, times(b, x, geluC), plus(b, times(b, mul(b, x, x), geluA), 1))
	}
	return activation("gelu", "`x/2 · (1 + erf(x/√2))`; approx tanh: `x/2 · (1 + tanh(√(2/π)·x · (1 + 0.044715·x²)))`.", 36,
		[]ir.AttrDef{{Name: "approx", Kind: "string", Default: "none", Doc: "none or tanh"}},
		[]ir.Constraint{{Label: "C2", Text: "approx is none or tanh", Check: func(op *ir.Op) error {
			if a := op.Attrs.Str("approx"); a != "none" && a != "tanh" {
				return fmt.Errorf("approx is %q", a)
			}
			return nil
		}}},
		func(b *ir.Builder, op *ir.Op, x *ir.Value) *ir.Value {
			var t *ir.Value
			if op.Attrs.Str("approx") == "tanh" {
				t = call1(b, "tanh", inner(b, x))
			} else {
				t = call1(b, "erf", times(b, x, math.Sqrt2/2))
			}
			return mul(b, times(b, x, 0.5), plus(b, t, 1))
		},
		func(b *ir.Builder, op *ir.Op, x, dy *ir.Value) *ir.Value {
			half := times(b, x, 0.5)
			if op.Attrs.Str("approx") == "tanh" {
				// y' = (1+t)/2 + x/2·(1-t²)·√(2/π)·(1 + 3a·x²)
				t := call1(b, "tanh", inner(b, x))
				du := times(b, plus(b, times(b, mul(b, x, x), 3*geluA), 1), geluC)
				dt := mul(b, sub(b, full(b, t.Type, 1), mul(b, t, t)), du)
				return mul(b, dy, fma(b, half, dt, times(b, plus(b, t, 1), 0.5)))
			}
			// y' = (1 + erf)/2 + x·exp(-x²/2)/√(2π)
			phi := times(b, plus(b, call1(b, "erf", times(b, x, math.Sqrt2/2)), 1), 0.5)
			density := times(b, call1(b, "exp", mul(b, neg(b, half), x)), 1/math.Sqrt(2*math.Pi))
			return mul(b, dy, fma(b, x, density, phi))
		})
}

func reluRow() *ir.OpDef {
	d := activation("relu", "`max(x, 0)`; its derivative at 0 is 0.", 1, nil, nil,
		func(b *ir.Builder, _ *ir.Op, x *ir.Value) *ir.Value { return call2(b, "max", x, full(b, x.Type, 0)) }, nil)
	// By the result, which what follows reads anyway, so that x need not live.
	d.VJP = floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
		y, zero := op.Results[0], full(b, dy.Type, 0)
		return []*ir.Value{choose(b, compare(b, "gt", y, zero), dy, zero)}
	})
	return d
}

func siluRow() *ir.OpDef {
	return activation("silu", "`x · logistic(x)`.", 27, nil, nil,
		func(b *ir.Builder, _ *ir.Op, x *ir.Value) *ir.Value { return mul(b, x, call1(b, "logistic", x)) },
		func(b *ir.Builder, _ *ir.Op, x, dy *ir.Value) *ir.Value {
			// y' = s + x·s·(1-s)
			s := call1(b, "logistic", x)
			return mul(b, dy, fma(b, mul(b, x, s), sub(b, full(b, s.Type, 1), s), s))
		})
}

// ropeRow: rotary position embedding. Element d of a head is paired with another; sign is
// that of the partner's term.
func ropeRow() *ir.OpDef {
	// pair gives, for element d, the angle's index, the partner, and whether d is the first.
	pair := func(style string, d, half int64) (angle, partner int64, first bool) {
		if style == "interleaved" {
			return d / 2, d ^ 1, d&1 == 0
		}
		if d < half {
			return d, d + half, true
		}
		return d - half, d - half, false
	}
	return composite(checked(&ir.OpDef{
		Name: "rope",
		Doc: "Rotary embedding of x [B,T,H,D] by angles whose cosines and sines are [T,D/2]: the pair (x1, x2) becomes `(x1·cos - x2·sin, x2·cos + x1·sin)`, each product rounded. " +
			"Pairs are (d, d + D/2) in style halves, (2d, 2d+1) in style interleaved. In f32 for f16 and bf16.",
		Operands: []string{"x", "cos", "sin"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "style", Kind: "string", Default: "halves", Doc: "halves or interleaved"}},
		Cost:  flopsPerElement(3),
		// The inverse rotation; and for the angles dcos = Σ dy·x, dsin = Σ dy·rot(x), rot being
		// the rotation by a right angle.
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			x, cos, sin := op.Operands[0], op.Operands[1], op.Operands[2]
			style := ir.A("style", op.Attrs.Str("style"))
			rotate := func(x, cos, sin *ir.Value) *ir.Value { return b.Op("rope", []*ir.Value{x, cos, sin}, style) }
			fold := func(v *ir.Value) *ir.Value { // [B,T,H,D] to [T,D/2]
				v = sumTo(b, v, []int64{1, 3})
				t, half := v.Type.Shape[0], v.Type.Shape[1]/2
				if op.Attrs.Str("style") == "interleaved" {
					return reduced(b, "sum", reshaped(b, v, []int64{t, half, 2}), []int64{2})
				}
				return reduced(b, "sum", reshaped(b, v, []int64{t, 2, half}), []int64{1})
			}
			up := func(v *ir.Value) *ir.Value { return f32Up(b, v) }
			right := rotate(x, full(b, cos.Type, 0), full(b, sin.Type, 1))
			return []*ir.Value{
				rotate(dy, cos, neg(b, sin)),
				cast(b, fold(mul(b, up(dy), up(x))), cos.Type.DType),
				cast(b, fold(mul(b, up(dy), up(right))), sin.Type.DType),
			}
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, style := in[0], op.Attrs.Str("style")
			t, h, d := x.Shape[1], x.Shape[2], x.Shape[3]
			// where gives the element's angle and partner.
			where := func(flat int64) (angle, partner int64, first bool) {
				a, p, first := pair(style, flat%d, d/2)
				return flat/(d*h)%t*(d/2) + a, flat - flat%d + p, first
			}
			if x.DType.Size() == 8 {
				xs, cos, sin, out := x.F64(), in[1].F64(), in[2].F64(), make([]float64, x.Len())
				for i := range out {
					a, p, first := where(int64(i))
					c, s := float64(xs[i]*cos[a]), float64(xs[p]*sin[a])
					if out[i] = c + s; first {
						out[i] = c - s
					}
				}
				return one(makeF64(x.Shape, out))
			}
			xs, cos, sin, out := readF32(x), readF32(in[1]), readF32(in[2]), make([]float32, x.Len())
			for i := range out {
				a, p, first := where(int64(i))
				c, s := float32(xs[i]*cos[a]), float32(xs[p]*sin[a])
				if out[i] = c + s; first {
					out[i] = c - s
				}
			}
			return one(makeF32(x.DType, x.Shape, out))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			d, half := idx[3], kern.I64(op.In(0).Shape[3]/2)
			var angle, partner, first *kern.Expr
			if op.Attrs.Str("style") == "interleaved" {
				angle, partner = kern.Shr(d, kern.I64(1)), kern.Xor(d, kern.I64(1))
				first = kern.Eq(kern.And(d, kern.I64(1)), kern.I64(0))
			} else {
				first = kern.Lt(d, half)
				angle = kern.Select(first, d, kern.Sub(d, half))
				partner = kern.Select(first, kern.Add(d, half), angle)
			}
			x := kern.Mul(c.Arg(0, idx...), c.Arg(1, idx[1], angle))
			s := kern.Mul(c.Arg(0, idx[0], idx[1], idx[2], partner), c.Arg(2, idx[1], angle))
			y := kern.Select(first, kern.Sub(x, s), kern.Add(x, s))
			return []*kern.Expr{c.Round(y, op.In(0).DType)}
		},
	}, []ir.Constraint{
		floatConstraint("C1"),
		{Label: "C2", Text: "x is [B,T,H,D] with even D, cos and sin are [T,D/2]", Check: func(op *ir.Op) error {
			x := op.In(0)
			if x.Rank() != 4 || x.Shape[3]%2 != 0 {
				return fmt.Errorf("operand %s is %v", operandName(op, 0), x)
			}
			for i := 1; i < 3; i++ {
				if err := wantShape(op, i, []int64{x.Shape[1], x.Shape[3] / 2}, fmt.Sprintf("x is %v", x)); err != nil {
					return err
				}
			}
			return nil
		}},
		{Label: "C3", Text: "cos and sin are of x's type, or f32 for f16 and bf16", Check: func(op *ir.Op) error {
			for i := 1; i < 3; i++ {
				if d := op.In(i).DType; d != op.In(0).DType && d != op.In(0).DType.Accum() {
					return fmt.Errorf("operand %s is %v for x %v", operandName(op, i), op.In(i), op.In(0))
				}
			}
			return nil
		}},
		{Label: "C4", Text: "style is halves or interleaved", Check: func(op *ir.Op) error {
			if s := op.Attrs.Str("style"); s != "halves" && s != "interleaved" {
				return fmt.Errorf("style is %q", s)
			}
			return nil
		}},
	}, sameType))
}
