package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/kern/elementary"
)

// exp is the exponential of docs/numerics.md on a register.
func (e *attentionFn) exp(x value.Value) value.Value {
	return elementary.Exp[value.Value, value.Value, value.Value](attentionReal{e}, x)
}

// log is the natural logarithm of docs/numerics.md on a register.
func (e *attentionFn) log(x value.Value) value.Value {
	return elementary.Log[value.Value, value.Value, value.Value](attentionReal{e}, x)
}

// attentionReal is elementary.Real on registers of f32.
type attentionReal struct{ e *attentionFn }

func (r attentionReal) Bits() int               { return 32 }
func (r attentionReal) C(x float64) value.Value { return r.e.splatF(float32(x)) }
func (r attentionReal) N(x int64) value.Value   { return r.e.splatU32(uint32(x)) }

func (r attentionReal) Neg(x value.Value) value.Value  { return r.e.b.NewFNeg(x) }
func (r attentionReal) Abs(x value.Value) value.Value  { return r.unary("fabs", x) }
func (r attentionReal) Sqrt(x value.Value) value.Value { return r.unary("sqrt", x) }
func (r attentionReal) Rint(x value.Value) value.Value { return r.unary("rint", x) }

func (r attentionReal) Add(x, y value.Value) value.Value    { return r.e.b.NewFAdd(x, y) }
func (r attentionReal) Sub(x, y value.Value) value.Value    { return r.e.b.NewFSub(x, y) }
func (r attentionReal) Mul(x, y value.Value) value.Value    { return r.e.b.NewFMul(x, y) }
func (r attentionReal) Div(x, y value.Value) value.Value    { return r.e.b.NewFDiv(x, y) }
func (r attentionReal) Fma(x, y, z value.Value) value.Value { return r.e.fma(x, y, z) }

func (r attentionReal) Min(x, y value.Value) value.Value { return r.extreme(enum.FPredOLT, x, y) }
func (r attentionReal) Max(x, y value.Value) value.Value { return r.extreme(enum.FPredOGT, x, y) }

// extreme is x where x < y (or > y) or x is NaN, else y.
func (r attentionReal) extreme(p enum.FPred, x, y value.Value) value.Value {
	b := r.e.b
	if _, ok := x.(constant.Constant); ok { // which is never NaN
		return b.NewSelect(b.NewFCmp(p, x, y), x, y)
	}
	if _, ok := y.(constant.Constant); ok { // likewise, and no zero: one instruction
		return b.NewSelect(b.NewFCmp(p, y, x), y, x)
	}
	take := b.NewOr(b.NewFCmp(p, x, y), b.NewFCmp(enum.FPredUNO, x, x))
	return b.NewSelect(take, x, y)
}

func (r attentionReal) Lt(x, y value.Value) value.Value  { return r.e.b.NewFCmp(enum.FPredOLT, x, y) }
func (r attentionReal) Eq(x, y value.Value) value.Value  { return r.e.b.NewFCmp(enum.FPredOEQ, x, y) }
func (r attentionReal) And(x, y value.Value) value.Value { return r.e.b.NewAnd(x, y) }
func (r attentionReal) Or(x, y value.Value) value.Value  { return r.e.b.NewOr(x, y) }
func (r attentionReal) Not(x value.Value) value.Value {
	return r.e.b.NewXor(x, r.e.lanesBelow(r.e.w))
}
func (r attentionReal) Select(c, x, y value.Value) value.Value { return r.e.b.NewSelect(c, x, y) }

func (r attentionReal) ToBits(x value.Value) value.Value {
	return r.e.b.NewBitCast(x, r.e.vec(types.I32))
}
func (r attentionReal) FromBits(x value.Value) value.Value {
	return r.e.b.NewBitCast(x, r.e.vec(types.Float))
}
func (r attentionReal) AddN(x, y value.Value) value.Value { return r.e.b.NewAdd(x, y) }
func (r attentionReal) SubN(x, y value.Value) value.Value { return r.e.b.NewSub(x, y) }
func (r attentionReal) AndN(x, y value.Value) value.Value { return r.e.b.NewAnd(x, y) }
func (r attentionReal) OrN(x, y value.Value) value.Value  { return r.e.b.NewOr(x, y) }
func (r attentionReal) XorN(x, y value.Value) value.Value { return r.e.b.NewXor(x, y) }
func (r attentionReal) Shl(x value.Value, n int) value.Value {
	return r.e.b.NewShl(x, r.N(int64(n)))
}
func (r attentionReal) Shr(x value.Value, n int) value.Value {
	return r.e.b.NewLShr(x, r.N(int64(n)))
}
func (r attentionReal) ToFloat(x value.Value) value.Value {
	return r.e.b.NewSIToFP(x, r.e.vec(types.Float))
}
func (r attentionReal) NonZero(x value.Value) value.Value {
	return r.e.b.NewICmp(enum.IPredNE, x, r.N(0))
}

func (r attentionReal) unary(name string, x value.Value) value.Value {
	f := r.e.intrinsic(fmt.Sprintf("llvm.%s.v%df32", name, r.e.w), x.Type(), x.Type())
	return r.e.b.NewCall(f, x)
}
