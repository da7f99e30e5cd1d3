package ops

import (
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// Helpers of kernel bodies.

// indexExpr is an index element as i64; u64 beyond int64 saturates.
func indexExpr(x *kern.Expr) *kern.Expr {
	if x.DType == dtype.U64 {
		x = kern.Min(x, kern.U64(math.MaxInt64))
	}
	return kern.Convert(x, dtype.I64)
}

// clampExpr limits x to 0 … hi.
func clampExpr(x *kern.Expr, hi int64) *kern.Expr {
	return kern.Max(kern.I64(0), kern.Min(x, kern.I64(hi)))
}

// withinExpr is 0 ≤ x < n.
func withinExpr(x *kern.Expr, n int64) *kern.Expr {
	return kern.And(kern.Ge(x, kern.I64(0)), kern.Lt(x, kern.I64(n)))
}

// scaled is x·n + y.
func scaled(x *kern.Expr, n int64, y *kern.Expr) *kern.Expr {
	return kern.Add(kern.Mul(x, kern.I64(n)), y)
}

// splice is idx with the elements i … j-1 replaced.
func splice(idx []*kern.Expr, i, j int, with ...*kern.Expr) []*kern.Expr {
	return slices.Replace(slices.Clone(idx), i, j, with...)
}

// accExpr applies a reduction's function (sum, prod, max, min, and, or, xor, set).
func accExpr(kind string, a, b *kern.Expr) *kern.Expr {
	switch kind {
	case "sum", "add":
		return kern.Add(a, b)
	case "prod", "mul":
		return kern.Mul(a, b)
	case "max":
		return kern.Max(a, b)
	case "min":
		return kern.Min(a, b)
	case "and":
		return kern.And(a, b)
	case "or":
		return kern.Or(a, b)
	case "xor":
		return kern.Xor(a, b)
	case "set":
		return b
	}
	panic("BUG: kind " + kind)
}

// identityExpr is the start value of a reduction of kind on d (an accumulation type).
func identityExpr(kind string, d dtype.Type) *kern.Expr {
	_, id := reducer(kind, d)
	return kern.Bits(d, id)
}

// accumBuf is where an op adds up its result: the result buffer itself, or for f16 and
// bf16 an f32 workspace that is rounded into it at the end.
type accumBuf struct {
	out, acc kern.Buf
	use      *ir.KernelUse
}

// newAccum adds the result parameter (and the workspace) to a kernel whose operands are
// already parameters; use.Args follows.
func newAccum(b *kern.Builder, op *ir.Op, use *ir.KernelUse) accumBuf {
	t := op.Out(0)
	a := accumBuf{out: b.Out("y", t.DType, t.Len()), use: use}
	use.Args = append(use.Args, len(op.Operands))
	a.acc = a.out
	if t.DType.Accum() != t.DType {
		a.acc = b.Out("sum", dtype.F32, t.Len())
		use.Args = append(use.Args, len(op.Operands)+len(op.Results))
		use.Workspaces = []int64{4 * t.Len()}
	}
	return a
}

// rounds reports whether there is a workspace to be rounded.
func (a accumBuf) rounds() bool { return a.acc != a.out }

// finish rounds element i into the result.
func (a accumBuf) finish(i *kern.Expr) kern.Stmt {
	return a.out.Set(i, kern.Convert(a.acc.At(i), a.out.DType))
}

// wide loads element i of a buffer in its accumulation type.
func wide(b kern.Buf, i *kern.Expr) *kern.Expr { return kern.Convert(b.At(i), b.DType.Accum()) }

// sliceLen is min(step, n − at): the length of the piece of a range that starts at at.
func sliceLen(at *kern.Expr, step, n int64) *kern.Expr {
	return kern.Min(kern.I64(step), kern.Sub(kern.I64(n), at))
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
