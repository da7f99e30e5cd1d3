package cpu

import (
	"fmt"
	"math"

	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// exp is the exponential of docs/numerics.md on a register.
func (e *attentionFn) exp(x value.Value) value.Value { return e.function(kern.Exp, x) }

// log is the natural logarithm of docs/numerics.md on a register.
func (e *attentionFn) log(x value.Value) value.Value { return e.function(kern.Log, x) }

// function applies an elementary function to every lane of an f32 register.
func (e *attentionFn) function(f func(*kern.Expr) *kern.Expr, x value.Value) value.Value {
	v := kern.NewVar("x", dtype.F32)
	done := map[*kern.Expr]value.Value{}
	return e.expr(f(kern.Get(v)), v, x, done)
}

// expr evaluates a scalar expression of the one variable v on every lane. It knows
// the operations that elementary functions are made of.
func (e *attentionFn) expr(x *kern.Expr, v *kern.Var, in value.Value, done map[*kern.Expr]value.Value) value.Value {
	if r, ok := done[x]; ok {
		return r
	}
	args := make([]value.Value, len(x.Args))
	for i, a := range x.Args {
		args[i] = e.expr(a, v, in, done)
	}
	r := e.exprOp(x, args, in)
	done[x] = r
	return r
}

func (e *attentionFn) exprOp(x *kern.Expr, a []value.Value, in value.Value) value.Value {
	isFloat := x.DType.IsFloat()
	if len(x.Args) > 0 {
		isFloat = x.Args[len(x.Args)-1].DType.IsFloat()
	}
	switch x.Op {
	case kern.OpVar:
		return in
	case kern.OpConst:
		return e.constV(func(int64) constant.Constant {
			switch {
			case x.DType == dtype.Bool:
				return constant.NewBool(x.Bits != 0)
			case isFloat:
				return attentionF(math.Float32frombits(uint32(x.Bits)))
			}
			return constant.NewInt(types.I32, int64(int32(x.Bits)))
		})
	case kern.OpNeg:
		if isFloat {
			return e.b.NewFNeg(a[0])
		}
		return e.b.NewSub(constant.NewZeroInitializer(a[0].Type()), a[0])
	case kern.OpAbs:
		if isFloat {
			return e.unary("fabs", a[0])
		}
	case kern.OpAdd:
		if isFloat {
			return e.b.NewFAdd(a[0], a[1])
		}
		return e.b.NewAdd(a[0], a[1])
	case kern.OpSub:
		if isFloat {
			return e.b.NewFSub(a[0], a[1])
		}
		return e.b.NewSub(a[0], a[1])
	case kern.OpMul:
		if isFloat {
			return e.b.NewFMul(a[0], a[1])
		}
		return e.b.NewMul(a[0], a[1])
	case kern.OpDiv:
		if isFloat {
			return e.b.NewFDiv(a[0], a[1])
		}
	case kern.OpFma:
		return e.fma(a[0], a[1], a[2])
	case kern.OpSqrt:
		return e.unary("sqrt", a[0])
	case kern.OpRint:
		return e.unary("rint", a[0])
	case kern.OpFloor:
		return e.unary("floor", a[0])
	case kern.OpTrunc:
		return e.unary("trunc", a[0])
	case kern.OpMax, kern.OpMin:
		p, ip := enum.FPredOGT, enum.IPredSGT
		if x.Op == kern.OpMin {
			p, ip = enum.FPredOLT, enum.IPredSLT
		}
		if !isFloat {
			if x.DType.IsSigned() {
				return e.b.NewSelect(e.b.NewICmp(ip, a[0], a[1]), a[0], a[1])
			}
			break
		}
		take := e.b.NewOr(e.b.NewFCmp(p, a[0], a[1]), e.b.NewFCmp(enum.FPredUNO, a[0], a[0]))
		return e.b.NewSelect(take, a[0], a[1])
	case kern.OpAnd:
		return e.b.NewAnd(a[0], a[1])
	case kern.OpOr:
		return e.b.NewOr(a[0], a[1])
	case kern.OpXor:
		return e.b.NewXor(a[0], a[1])
	case kern.OpShl, kern.OpShr:
		// Shift counts of elementary functions are constants below the width.
		if x.Args[1].Op != kern.OpConst || x.Args[1].Bits >= 32 {
			break
		}
		switch {
		case x.Op == kern.OpShl:
			return e.b.NewShl(a[0], a[1])
		case x.DType.IsSigned():
			return e.b.NewAShr(a[0], a[1])
		}
		return e.b.NewLShr(a[0], a[1])
	case kern.OpEq, kern.OpNe, kern.OpLt, kern.OpLe, kern.OpGt, kern.OpGe:
		return e.compare(x, a)
	case kern.OpSelect:
		return e.b.NewSelect(a[0], a[1], a[2])
	case kern.OpBitcast:
		if a[0].Type().Equal(e.exprType(x.DType)) {
			return a[0]
		}
		return e.b.NewBitCast(a[0], e.exprType(x.DType))
	case kern.OpConvert:
		switch from := x.Args[0].DType; {
		case from == dtype.I32 && x.DType == dtype.F32:
			return e.b.NewSIToFP(a[0], e.exprType(x.DType))
		case from == dtype.F32 && x.DType == dtype.I32:
			return e.truncate(a[0])
		case from.IsInt() && x.DType.IsInt() && from.Size() == x.DType.Size():
			return a[0]
		}
	}
	panic(fmt.Sprintf("BUG: operation %v of type %v in an elementary function", x.Op, x.DType))
}

// truncate converts f32 to i32 toward zero, with saturation and NaN to 0. The
// hardware's conversion gives the least integer for whatever does not fit;
// llvm.fptosi.sat on vectors would go lane by lane.
func (e *attentionFn) truncate(x value.Value) value.Value {
	t := e.vec(types.I32)
	var r value.Value
	if e.w == 16 {
		f := e.intrinsic("llvm.x86.avx512.mask.cvttps2dq.512", t, x.Type(), t, types.I16, types.I32)
		r = e.b.NewCall(f, x, constant.NewZeroInitializer(t), constant.NewInt(types.I16, -1), constant.NewInt(types.I32, 4))
	} else {
		r = e.b.NewCall(e.intrinsic("llvm.x86.avx.cvtt.ps2dq.256", t, x.Type()), x)
	}
	big := e.b.NewFCmp(enum.FPredOGE, x, e.splatF(0x1p31))
	r = e.b.NewSelect(big, e.splatU32(math.MaxInt32), r)
	return e.b.NewSelect(e.b.NewFCmp(enum.FPredUNO, x, x), constant.NewZeroInitializer(t), r)
}

func (e *attentionFn) compare(x *kern.Expr, a []value.Value) value.Value {
	t := x.Args[0].DType
	i := x.Op - kern.OpEq
	if t.IsFloat() {
		p := [...]enum.FPred{enum.FPredOEQ, enum.FPredUNE, enum.FPredOLT, enum.FPredOLE, enum.FPredOGT, enum.FPredOGE}
		return e.b.NewFCmp(p[i], a[0], a[1])
	}
	p := [...]enum.IPred{enum.IPredEQ, enum.IPredNE, enum.IPredULT, enum.IPredULE, enum.IPredUGT, enum.IPredUGE}
	if t.IsSigned() {
		p = [...]enum.IPred{enum.IPredEQ, enum.IPredNE, enum.IPredSLT, enum.IPredSLE, enum.IPredSGT, enum.IPredSGE}
	}
	return e.b.NewICmp(p[i], a[0], a[1])
}

func (e *attentionFn) unary(name string, x value.Value) value.Value {
	f := e.intrinsic(fmt.Sprintf("llvm.%s.v%df32", name, e.w), x.Type(), x.Type())
	return e.b.NewCall(f, x)
}

// exprType is the register type of an expression's type.
func (e *attentionFn) exprType(t dtype.Type) types.Type {
	switch t {
	case dtype.F32:
		return e.vec(types.Float)
	case dtype.I32, dtype.U32:
		return e.vec(types.I32)
	case dtype.Bool:
		return e.vec(types.I1)
	}
	panic(fmt.Sprintf("BUG: type %v in an elementary function", t))
}
