package ops

import (
	"fmt"
	"math"

	"reprise/ir"
)

func lossOps() []*ir.OpDef { return []*ir.OpDef{crossEntropyRow(), mseRow(), gradientRow()} }

// NoIgnore is the value of cross_entropy's ignore_index that ignores nothing.
const NoIgnore = math.MinInt64

func crossEntropyRow() *ir.OpDef {
	// hot is where the class of each row is, and seen where the row counts (nil: everywhere).
	hot := func(b *ir.Builder, op *ir.Op) (hot, seen *ir.Value) {
		labels, shape := op.Operands[1], op.In(0).Shape
		last := len(shape) - 1
		classes := b.Op("iota", nil, ir.A("dim", int64(last)), ir.A("shape", shape), ir.A("dtype", labels.Type.DType))
		hot = compare(b, "eq", classes, along(b, labels, shape, seq(last)))
		if ig := op.Attrs.Int("ignore_index"); ig != NoIgnore {
			// A constant of the labels' type may not hold the number: then nothing is ignored.
			if k := numTensor(labels.Type.DType, float64(ig)); readInts(k)[0] == ig {
				seen = compare(b, "ne", labels, spread(b, b.Op("constant", nil, ir.A("value", k)), labels.Type.Shape))
			}
		}
		return hot, seen
	}
	return checked(&ir.OpDef{
		Name: "cross_entropy", Family: "loss",
		Doc: "For each row of logits the negative logarithm of the label's probability: `log(sum(exp(d))) - d[label]` for `d = x - max(x)` along the last axis, in f32 for f16 and bf16, " +
			"and 0 where the label is ignore_index. A label out of range counts as a class whose d is 0.",
		Operands: []string{"logits", "labels"}, Results: []string{"loss"},
		Attrs: []ir.AttrDef{{Name: "ignore_index", Kind: "int", Default: int64(NoIgnore), Doc: "label of rows that do not count; default: none"}},
		Cost:  flopsPerOperandElement(28),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			x := f32Up(b, op.Operands[0])
			r := rowsOf(b, x, int64(x.Type.Rank()-1))
			d, e := r.shiftedExp(x)
			h, seen := hot(b, op)
			loss := sub(b, call1(b, "log", r.sum(e)), r.sum(choose(b, h, d, full(b, d.Type, 0))))
			if seen != nil {
				loss = choose(b, seen, loss, full(b, loss.Type, 0))
			}
			return []*ir.Value{loss}
		},
		// dx = dloss·(softmax(x) - onehot)
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dloss *ir.Value) []*ir.Value {
			x := f32Up(b, op.Operands[0])
			r := rowsOf(b, x, int64(x.Type.Rank()-1))
			_, e := r.shiftedExp(x)
			h, seen := hot(b, op)
			if seen != nil {
				dloss = choose(b, seen, dloss, full(b, dloss.Type, 0))
			}
			p := div(b, e, r.spread(r.sum(e)))
			g := choose(b, h, plus(b, p, -1), p)
			return []*ir.Value{cast(b, mul(b, g, r.spread(dloss)), op.In(0).DType), nil}
		}),
	}, []ir.Constraint{
		{Label: "C1", Text: "logits are floats with a last axis of classes", Check: func(op *ir.Op) error {
			if op.In(0).Rank() == 0 {
				return fmt.Errorf("operand %s is %v", operandName(op, 0), op.In(0))
			}
			return wantFloat(op, 0)
		}},
		{Label: "C2", Text: "labels are integers of the shape of logits without the last axis", Check: func(op *ir.Op) error {
			x := op.In(0)
			if err := wantClass(op, 1, anyInt); err != nil {
				return err
			}
			return wantShape(op, 1, x.Shape[:x.Rank()-1], fmt.Sprintf("logits are %v", x))
		}},
	}, func(op *ir.Op) ir.Type {
		x := op.In(0)
		return ir.T(x.DType.Accum(), x.Shape[:x.Rank()-1]...)
	})
}

func mseRow() *ir.OpDef {
	return checked(&ir.OpDef{
		Name: "mse", Family: "loss",
		Doc:      "The mean of `(x - target)²` over all elements, in f32 for f16 and bf16.",
		Operands: []string{"x", "target"}, Results: []string{"loss"},
		Cost: flopsPerOperandElement(3),
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			d := sub(b, f32Up(b, op.Operands[0]), f32Up(b, op.Operands[1]))
			return []*ir.Value{rowsOf(b, d, seq(d.Type.Rank())...).mean(mul(b, d, d))}
		},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dloss *ir.Value) []*ir.Value {
			d := sub(b, f32Up(b, op.Operands[0]), f32Up(b, op.Operands[1]))
			scale := times(b, dloss, 2/float64(max(1, d.Type.Len())))
			dx := cast(b, mul(b, d, spread(b, scale, d.Type.Shape)), op.In(0).DType)
			return []*ir.Value{dx, neg(b, dx)}
		}),
	}, []ir.Constraint{
		{Label: "C1", Text: "operands have one float type", Check: func(op *ir.Op) error {
			if err := wantFloat(op, 0); err != nil {
				return err
			}
			return wantSame(op, 0, 1)
		}},
	}, func(op *ir.Op) ir.Type { return ir.T(op.In(0).DType.Accum()) })
}

func gradientRow() *ir.OpDef {
	check := func(op *ir.Op) error {
		for i := range op.Operands {
			if err := wantFloat(op, i); err != nil {
				return err
			}
		}
		if op.In(0).Rank() != 0 {
			return fmt.Errorf("operand %s is %v: only a scalar has a gradient", operandName(op, 0), op.In(0))
		}
		return nil
	}
	return &ir.OpDef{
		Name: "gradient", Family: "loss",
		Doc:      "The gradient of the scalar loss with respect to each x, at the values that the loss was computed from. The derivative pass replaces it by the program that computes it.",
		Operands: []string{"loss", "x…"}, Results: []string{"g…"},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := check(op); err != nil {
				return nil, err
			}
			var ts []ir.Type
			for _, x := range op.Operands[1:] {
				ts = append(ts, x.Type)
			}
			return ts, nil
		},
		Constraints:   []ir.Constraint{{Label: "C1", Text: "the loss is a float scalar, each x a float", Check: check}},
		NoGrad:        "a gradient that was not replaced yet",
		HandScheduled: "autodiff",
	}
}
