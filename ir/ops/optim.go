package ops

// Optimizer steps: new parameter and state from the gradient, one sweep over them. State
// and arithmetic are f32 (f64 for f64) whatever the parameter's type.

import (
	"fmt"

	"reprise/ir"
	"reprise/ir/dtype"
)

func optimOps() []*ir.OpDef { return []*ir.OpDef{adamwRow(), sgdRow(), momentumRow(), lionRow()} }

// optimRow is the row of an optimizer step. Operands are p, g, the states, lr, and, with
// step, the number of the step from 0; results are the new p and states.
func optimRow(name, doc string, states []string, withStep bool, attrs []ir.AttrDef, flops int64,
	expand func(b *ir.Builder, o optimArgs) (p *ir.Value, states []*ir.Value)) *ir.OpDef {
	operands, results := append([]string{"p", "g"}, states...), append([]string{"new_p"}, states...)
	for i := range states {
		results[1+i] = "new_" + states[i]
	}
	operands = append(operands, "lr")
	if withStep {
		operands = append(operands, "step")
	}
	n := len(states)
	cs := []ir.Constraint{
		{Label: "C1", Text: "p and g have one float type", Check: func(op *ir.Op) error {
			if err := wantFloat(op, 0); err != nil {
				return err
			}
			if !sameShape(op.In(0).Shape, op.In(1).Shape) || !op.In(1).DType.IsFloat() {
				return fmt.Errorf("p is %v and g is %v", op.In(0), op.In(1))
			}
			return nil
		}},
		{Label: "C2", Text: "state has the shape of p, f32 (f64 for f64)", Check: func(op *ir.Op) error {
			for i := 2; i < 2+n; i++ {
				if want := op.In(0).With(op.In(0).DType.Accum()); !op.In(i).Equal(want) {
					return fmt.Errorf("operand %s is %v, want %v", operandName(op, i), op.In(i), want)
				}
			}
			return nil
		}},
		{Label: "C3", Text: "lr is a scalar of the state's type, step an i64 scalar", Check: func(op *ir.Op) error {
			if err := wantScalar(op, 2+n, op.In(0).DType.Accum()); err != nil {
				return err
			}
			if withStep {
				return wantScalar(op, 3+n, dtype.I64)
			}
			return nil
		}},
	}
	return &ir.OpDef{
		Name: name, Family: "optim", Doc: doc,
		Operands: operands, Results: results, Attrs: attrs, Constraints: cs,
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			for _, c := range cs {
				if err := c.Check(op); err != nil {
					return nil, fmt.Errorf("%v (constraint %s/%s: %s)", err, name, c.Label, c.Text)
				}
			}
			ts := []ir.Type{op.In(0)}
			for i := range n {
				ts = append(ts, op.In(2+i))
			}
			return ts, nil
		},
		Cost:   flopsPerElement(flops),
		NoGrad: "a step of the optimizer is not differentiated",
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			o := optimArgs{b: b, op: op, p: f32Up(b, op.Operands[0])}
			o.g = cast(b, op.Operands[1], o.p.Type.DType)
			o.states, o.lr = op.Operands[2:2+n], op.Operands[2+n]
			p, states := expand(b, o)
			return append([]*ir.Value{cast(b, p, op.In(0).DType)}, states...)
		},
		// Unrolled training (a gradient through an optimizer step) goes through the expansion.
	}
}

// optimArgs is what an optimizer's expansion works with, in the state's type.
type optimArgs struct {
	b      *ir.Builder
	op     *ir.Op
	p, g   *ir.Value
	states []*ir.Value
	lr     *ir.Value // scalar
}

func (o optimArgs) attr(name string) float64 { return o.op.Attrs.Float(name) }

// each spreads a scalar over the elements.
func (o optimArgs) each(s *ir.Value) *ir.Value { return spread(o.b, s, o.p.Type.Shape) }

// decayed is p·(1 - lr·wd), p itself without decay.
func (o optimArgs) decayed() *ir.Value {
	wd := o.attr("wd")
	if wd == 0 {
		return o.p
	}
	one := scalarConst(o.b, o.lr.Type.DType, 1)
	return mul(o.b, o.p, o.each(sub(o.b, one, times(o.b, o.lr, wd))))
}

// mixed is fma(s, c, x·(1-c)): the moving average of x.
func (o optimArgs) mixed(s *ir.Value, c float64, x *ir.Value) *ir.Value {
	return fma(o.b, s, full(o.b, s.Type, c), times(o.b, x, 1-c))
}

func floatAttr(name string, def float64, doc string) ir.AttrDef {
	return ir.AttrDef{Name: name, Kind: "float", Default: def, Doc: doc}
}

func wdAttr() ir.AttrDef { return floatAttr("wd", 0, "decoupled weight decay") }

func adamwRow() *ir.OpDef {
	return optimRow("adamw",
		"AdamW: `m' = fma(m, b1, g·(1-b1))`, `v' = fma(v, b2, g²·(1-b2))`, and with t = step + 1, `c1 = 1 - b1^t`, `c2 = 1 - b2^t`: "+
			"`p' = p·(1 - lr·wd) - (lr/c1)·m' / fma(√v', 1/√c2, eps)`, the product and the quotient rounded before they are subtracted.",
		[]string{"m", "v"}, true,
		[]ir.AttrDef{floatAttr("b1", 0.9, "decay of the first moment"), floatAttr("b2", 0.999, "decay of the second"), floatAttr("eps", 1e-8, "added to the root"), wdAttr()}, 16,
		func(b *ir.Builder, o optimArgs) (*ir.Value, []*ir.Value) {
			m := o.mixed(o.states[0], o.attr("b1"), o.g)
			v := o.mixed(o.states[1], o.attr("b2"), mul(b, o.g, o.g))
			d := o.lr.Type.DType
			t := plus(b, cast(b, o.op.Operands[5], d), 1)
			bias := func(beta float64) *ir.Value { // 1 - beta^t
				return sub(b, scalarConst(b, d, 1), call2(b, "pow", scalarConst(b, d, beta), t))
			}
			rate := div(b, o.lr, bias(o.attr("b1")))
			root := fma(b, call1(b, "sqrt", v), o.each(call1(b, "rsqrt", bias(o.attr("b2")))), full(b, v.Type, o.attr("eps")))
			step := mul(b, o.each(rate), div(b, m, root))
			return sub(b, o.decayed(), step), []*ir.Value{m, v}
		})
}

func sgdRow() *ir.OpDef {
	return optimRow("sgd", "Gradient descent: `p' = p·(1 - lr·wd) - lr·g`.", nil, false, []ir.AttrDef{wdAttr()}, 4,
		func(b *ir.Builder, o optimArgs) (*ir.Value, []*ir.Value) {
			return sub(b, o.decayed(), mul(b, o.each(o.lr), o.g)), nil
		})
}

func momentumRow() *ir.OpDef {
	return optimRow("sgd_momentum",
		"Gradient descent with momentum: `m' = fma(m, momentum, g)`, `p' = p·(1 - lr·wd) - lr·m'`; nesterov: `lr·fma(m', momentum, g)`.",
		[]string{"m"}, false,
		[]ir.AttrDef{floatAttr("momentum", 0.9, "decay of the velocity"), {Name: "nesterov", Kind: "bool", Default: false, Doc: "look ahead"}, wdAttr()}, 6,
		func(b *ir.Builder, o optimArgs) (*ir.Value, []*ir.Value) {
			mom := full(b, o.g.Type, o.attr("momentum"))
			m := fma(b, o.states[0], mom, o.g)
			dir := m
			if o.op.Attrs.Bool("nesterov") {
				dir = fma(b, m, mom, o.g)
			}
			return sub(b, o.decayed(), mul(b, o.each(o.lr), dir)), []*ir.Value{m}
		})
}

func lionRow() *ir.OpDef {
	return optimRow("lion",
		"Lion: `p' = p·(1 - lr·wd) - lr·sign(fma(m, b1, g·(1-b1)))`, `m' = fma(m, b2, g·(1-b2))`.",
		[]string{"m"}, false,
		[]ir.AttrDef{floatAttr("b1", 0.9, "weight of the momentum in the direction"), floatAttr("b2", 0.99, "decay of the momentum"), wdAttr()}, 9,
		func(b *ir.Builder, o optimArgs) (*ir.Value, []*ir.Value) {
			dir := call1(b, "sign", o.mixed(o.states[0], o.attr("b1"), o.g))
			return sub(b, o.decayed(), mul(b, o.each(o.lr), dir)), []*ir.Value{o.mixed(o.states[0], o.attr("b2"), o.g)}
		})
}
