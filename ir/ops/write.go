package ops

// What VJPs and expansions are written with: short names for the builder's calls.

import (
	"fmt"
	"math"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// numTensor is a rank-0 tensor of d nearest to v.
func numTensor(d dtype.Type, v float64) *tensor.Tensor {
	switch {
	case d == dtype.F64:
		return tensor.Of([]float64{v})
	case d.IsFloat():
		return makeF32(d, nil, []float32{float32(v)})
	}
	return makeInts(d, nil, []int64{int64(v)})
}

// scalarConst is a constant of rank 0.
func scalarConst(b *ir.Builder, d dtype.Type, v float64) *ir.Value {
	return b.Op("constant", nil, ir.A("value", numTensor(d, v)))
}

// Full is a value of type t, every element v, as a constant and a broadcast.
func Full(b *ir.Builder, t ir.Type, v float64) *ir.Value { return full(b, t, v) }

// full is a value of type t, every element v.
func full(b *ir.Builder, t ir.Type, v float64) *ir.Value {
	return spread(b, scalarConst(b, t.DType, v), t.Shape)
}

// spread broadcasts a rank-0 value to a shape; no op where the shape is rank 0.
func spread(b *ir.Builder, x *ir.Value, shape []int64) *ir.Value {
	if len(shape) == 0 {
		return x
	}
	return b.Op("broadcast", []*ir.Value{x}, ir.A("dims", []int64{}), ir.A("shape", shape))
}

// along broadcasts x, whose dimension i becomes dimension dims[i], to a shape.
func along(b *ir.Builder, x *ir.Value, shape, dims []int64) *ir.Value {
	if sameShape(x.Type.Shape, shape) {
		return x
	}
	return b.Op("broadcast", []*ir.Value{x}, ir.A("dims", dims), ir.A("shape", shape))
}

func call1(b *ir.Builder, name string, x *ir.Value) *ir.Value {
	return b.Op(name, []*ir.Value{x})
}

func call2(b *ir.Builder, name string, x, y *ir.Value) *ir.Value {
	return b.Op(name, []*ir.Value{x, y})
}

func add(b *ir.Builder, x, y *ir.Value) *ir.Value { return call2(b, "add", x, y) }
func sub(b *ir.Builder, x, y *ir.Value) *ir.Value { return call2(b, "sub", x, y) }
func mul(b *ir.Builder, x, y *ir.Value) *ir.Value { return call2(b, "mul", x, y) }
func div(b *ir.Builder, x, y *ir.Value) *ir.Value { return call2(b, "div", x, y) }
func neg(b *ir.Builder, x *ir.Value) *ir.Value    { return call1(b, "neg", x) }

func fma(b *ir.Builder, x, y, z *ir.Value) *ir.Value {
	return b.Op("fma", []*ir.Value{x, y, z})
}

// times is x·c, plus is x+c, over is x/c for a number c.
func times(b *ir.Builder, x *ir.Value, c float64) *ir.Value { return mul(b, x, full(b, x.Type, c)) }
func plus(b *ir.Builder, x *ir.Value, c float64) *ir.Value  { return add(b, x, full(b, x.Type, c)) }
func over(b *ir.Builder, x *ir.Value, c float64) *ir.Value  { return div(b, x, full(b, x.Type, c)) }

// compare is the predicate x dir y.
func compare(b *ir.Builder, dir string, x, y *ir.Value) *ir.Value {
	return b.Op("compare", []*ir.Value{x, y}, ir.A("dir", dir))
}

func choose(b *ir.Builder, p, x, y *ir.Value) *ir.Value {
	return b.Op("select", []*ir.Value{p, x, y})
}

// cast converts to d; no op where x has it.
func cast(b *ir.Builder, x *ir.Value, d dtype.Type) *ir.Value {
	if x.Type.DType == d {
		return x
	}
	return b.Op("convert", []*ir.Value{x}, ir.A("to", d))
}

// reshaped gives x another shape; no op where it has it.
func reshaped(b *ir.Builder, x *ir.Value, shape []int64) *ir.Value {
	if sameShape(x.Type.Shape, shape) {
		return x
	}
	return b.Op("reshape", []*ir.Value{x}, ir.A("shape", shape))
}

// permuted transposes; no op for the identity.
func permuted(b *ir.Builder, x *ir.Value, perm []int64) *ir.Value {
	if sameShape(perm, seq(len(perm))) {
		return x
	}
	return b.Op("transpose", []*ir.Value{x}, ir.A("perm", perm))
}

// reduced is reduce{kind} over axes, which it drops; x itself where there are none.
func reduced(b *ir.Builder, kind string, x *ir.Value, axes []int64) *ir.Value {
	if len(axes) == 0 {
		return x
	}
	return b.Op("reduce", []*ir.Value{x}, ir.A("kind", kind), ir.A("axes", axes))
}

// otherAxes is the axes of a rank that are not in axes, in order.
func otherAxes(rank int, axes []int64) []int64 {
	var out []int64
	for a := range int64(rank) {
		keep := true
		for _, x := range axes {
			keep = keep && x != a
		}
		if keep {
			out = append(out, a)
		}
	}
	return out
}

// sumTo sums x over all axes but keep.
func sumTo(b *ir.Builder, x *ir.Value, keep []int64) *ir.Value {
	return reduced(b, "sum", x, otherAxes(x.Type.Rank(), keep))
}

// f32Up is x in the type that softmax, norms and losses compute in: f32 for f16 and
// bf16, else its own.
func f32Up(b *ir.Builder, x *ir.Value) *ir.Value { return cast(b, x, x.Type.DType.Accum()) }

// wantFloat refuses operand i that is not a float.
func wantFloat(op *ir.Op, i int) error {
	if !op.In(i).DType.IsFloat() {
		return fmt.Errorf("operand %s is %v: want a float type", operandName(op, i), op.In(i))
	}
	return nil
}

// operandName is the row's name of operand i.
func operandName(op *ir.Op, i int) string {
	names := op.Def.Operands
	if i < len(names)-1 || i < len(names) && len(op.Operands) <= len(names) {
		return fmt.Sprintf("%d (%s)", i, names[i])
	}
	return fmt.Sprint(i)
}

// wantSame refuses operands that have not all the type of operand first.
func wantSame(op *ir.Op, first int, rest ...int) error {
	for _, i := range rest {
		if !op.In(first).Equal(op.In(i)) {
			return fmt.Errorf("operands %s and %s are %v and %v: want equal types", operandName(op, first), operandName(op, i), op.In(first), op.In(i))
		}
	}
	return nil
}

// wantShape refuses operand i that has not the given shape, which what describes.
func wantShape(op *ir.Op, i int, shape []int64, what string) error {
	if !sameShape(op.In(i).Shape, shape) {
		return fmt.Errorf("operand %s is %v, want shape %v (%s)", operandName(op, i), op.In(i), shape, what)
	}
	return nil
}

// wantScalar refuses operand i that has not rank 0 and dtype d.
func wantScalar(op *ir.Op, i int, d dtype.Type) error {
	if t := op.In(i); t.DType != d || t.Rank() != 0 {
		return fmt.Errorf("operand %s is %v, want %v", operandName(op, i), t, ir.T(d))
	}
	return nil
}

// noNaN guards attributes that must be numbers.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
