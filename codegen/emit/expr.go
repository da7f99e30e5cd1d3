package emit

import (
	"fmt"
	"math"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// operand is the value of an expression. With s set it is uniform (stride 0) or,
// for integers, affine: lane l has s + l·stride. Otherwise it is the vector v.
type operand struct {
	t        dtype.Type
	s        value.Value
	stride   int64
	v        value.Value
	n        value.Value // an i64 that fits: its 32-bit lanes (narrow.go)
	aligned  bool        // s is a multiple of the strip's width
	constant bool
	bits     uint64
}

func (x *operand) uniform() bool { return x.s != nil && x.stride == 0 }

// values are the results of one statement's expressions.
type values map[*kern.Expr]*operand

// vector is x with one value per lane (at width 1, the scalar).
func (f *Func) vector(x *operand) value.Value {
	w := f.lane.w
	switch {
	case w == 1:
		return x.s
	case x.v != nil:
	case x.n != nil && x.s == nil:
		x.v = f.Block.NewSExt(x.n, Vec(types.I64, w))
	case x.constant:
		x.v = Literal(x.t, w, x.bits)
	case x.stride == 0:
		x.v = f.splat(x.s, w)
	default:
		x.v = f.Block.NewAdd(f.splat(x.s, w), Iota(Elem(x.t), w, x.stride))
	}
	return x.v
}

func constOperand(t dtype.Type, bits uint64) *operand {
	return &operand{t: t, s: Literal(t, 1, bits), constant: true, bits: bits}
}

// eval emits an expression at the end of the current block.
func (f *Func) eval(e *kern.Expr, memo values) *operand {
	if x := memo[e]; x != nil {
		return x
	}
	x := f.eval1(e, memo)
	memo[e] = x
	return x
}

func (f *Func) eval1(e *kern.Expr, memo values) *operand {
	if h, ok := f.lane.hoisted[e]; ok {
		return &h // a copy: its vector form may be made in a block that dominates nothing else
	}
	switch e.Op {
	case kern.OpConst:
		if x := f.Numbers[e]; x != nil {
			return &operand{t: e.DType, s: x}
		}
		return constOperand(e.DType, e.Bits)
	case kern.OpVar:
		return f.variable(e.Var)
	case kern.OpRandom:
		if r := f.lane.random[e]; r != nil {
			if f.lane.w == 1 {
				return &operand{t: dtype.U32, s: f.randomWords(r)}
			}
			return &operand{t: dtype.U32, v: f.randomWords(r)}
		}
	}
	args := make([]*operand, len(e.Args))
	uniform := true
	for i, a := range e.Args {
		args[i] = f.eval(a, memo)
		uniform = uniform && args[i].uniform()
	}
	switch e.Op {
	case kern.OpLoad:
		return f.load(f.ptrs[e.Param], e.DType, f.Params[e.Param].Len, e.Args[0], args)
	case kern.OpLocal:
		return f.load(f.localPtr(e.Local), e.DType, e.Local.Len, e.Args[0], args)
	}
	if f.lane.w > 1 && !uniform {
		if x := f.affine(e, args); x != nil {
			return x
		}
		if x := f.narrow32(e, args); x != nil {
			return x
		}
	}
	w := f.lane.w
	if uniform {
		w = 1
	}
	vs := make([]value.Value, len(args))
	for i, a := range args {
		if uniform || e.Op == kern.OpSelect && i == 0 && a.uniform() {
			vs[i] = a.s
		} else {
			vs[i] = f.vector(a)
		}
	}
	r := f.operation(e, args, vs, w)
	if uniform {
		return &operand{t: e.DType, s: r}
	}
	return &operand{t: e.DType, v: r}
}

func (f *Func) variable(v *kern.Var) *operand {
	if x, ok := f.lane.known[v]; ok {
		return &x
	}
	if x, ok := f.bound[v]; ok {
		return &x
	}
	s := f.slots[v]
	if s == nil {
		panic(fmt.Sprintf("BUG: variable %q is read before it is set", v.Name))
	}
	x := f.Block.NewLoad(s.typ, s.ptr)
	if s.lane {
		return &operand{t: v.DType, v: x}
	}
	return &operand{t: v.DType, s: x}
}

// affine keeps integer arithmetic on lane 0 where the lanes are evenly spaced.
func (f *Func) affine(e *kern.Expr, a []*operand) *operand {
	if x := f.even(e, a); x != nil {
		return x
	}
	if !e.DType.IsInt() || len(a) > 2 {
		return nil
	}
	for _, x := range a {
		if x.s == nil || !x.t.IsInt() {
			return nil
		}
	}
	scale := func(k int64) *operand {
		return &operand{t: e.DType, s: f.Block.NewMul(a[0].s, Literal(e.DType, 1, uint64(k))), stride: a[0].stride * k}
	}
	var x *operand
	switch e.Op {
	case kern.OpAdd:
		x = &operand{t: e.DType, s: f.Block.NewAdd(a[0].s, a[1].s), stride: a[0].stride + a[1].stride}
		x.aligned = f.alignedAt(e, a, 0) && f.alignedAt(e, a, 1)
	case kern.OpSub:
		x = &operand{t: e.DType, s: f.Block.NewSub(a[0].s, a[1].s), stride: a[0].stride - a[1].stride}
		x.aligned = f.alignedAt(e, a, 0) && f.alignedAt(e, a, 1)
	case kern.OpMul:
		if a[0].constant {
			a[0], a[1] = a[1], a[0]
		}
		if a[1].constant && fits(int64(a[1].bits)) {
			x = scale(int64(a[1].bits))
		}
	case kern.OpShl:
		if a[1].constant && a[1].bits < 32 && a[1].bits < uint64(8*e.DType.Size()) {
			x = scale(1 << a[1].bits)
		}
	case kern.OpConvert:
		switch {
		case e.DType.Size() == a[0].t.Size():
			x = &operand{t: e.DType, s: a[0].s, stride: a[0].stride}
		case e.DType.Size() < a[0].t.Size():
			x = &operand{t: e.DType, s: f.Block.NewTrunc(a[0].s, Elem(e.DType)), stride: a[0].stride}
		}
	}
	if x != nil && !fits(x.stride) {
		return nil
	}
	return x
}

// alignedAt tells whether lane 0 of operand i of e is a multiple of the width.
func (f *Func) alignedAt(e *kern.Expr, a []*operand, i int) bool {
	x := a[i]
	return x.aligned || x.constant && int64(x.bits)%int64(f.lane.w) == 0 || x.uniform() && aligned(e.Args[i])
}

// even finds i64 operations that keep the lanes of a vector together because it
// starts at a multiple of its width: a comparison with a bound that is one too is the
// same for all lanes; so is a quotient, and a remainder stays contiguous. It is what makes a
// concatenation, a rotation or a flattened row of even length read without gathers.
func (f *Func) even(e *kern.Expr, a []*operand) *operand {
	if e.Op == kern.OpSelect {
		x, y := a[1], a[2]
		if !a[0].uniform() || !e.DType.IsInt() || x.s == nil || y.s == nil || x.stride != y.stride {
			return nil
		}
		return &operand{t: e.DType, s: f.Block.NewSelect(a[0].s, x.s, y.s), stride: x.stride,
			aligned: f.alignedAt(e, a, 1) && f.alignedAt(e, a, 2)}
	}
	if len(a) != 2 || a[0].t != dtype.I64 || a[0].s == nil || a[1].s == nil {
		return nil
	}
	switch e.Op {
	case kern.OpDiv, kern.OpRem:
		c := int64(a[1].bits)
		if !a[1].constant || c <= 0 || c%int64(f.lane.w) != 0 || a[0].stride != 1 || !f.alignedAt(e, a, 0) {
			return nil
		}
		if s, ok := f.spanOf(e.Args[0]); !ok || s.lo < 0 {
			return nil
		}
		if e.Op == kern.OpDiv {
			return &operand{t: dtype.I64, s: f.Block.NewUDiv(a[0].s, a[1].s)}
		}
		return &operand{t: dtype.I64, s: f.Block.NewURem(a[0].s, a[1].s), stride: 1, aligned: true}
	case kern.OpLt, kern.OpGe, kern.OpGt, kern.OpLe:
		// x < c and x ≥ c for contiguous x, or the same written from the right.
		i, j := 0, 1
		if e.Op == kern.OpGt || e.Op == kern.OpLe {
			i, j = 1, 0
		}
		if a[i].stride == 1 && a[j].stride == 0 && f.alignedAt(e, a, i) && f.alignedAt(e, a, j) {
			return &operand{t: dtype.Bool, s: f.compare(e.Op, dtype.I64, a[0].s, a[1].s)}
		}
	}
	return nil
}

// fits keeps strides far from overflow.
func fits(stride int64) bool { return stride > -1<<40 && stride < 1<<40 }

// operation emits one operation on w lanes. args tells of constants among vs.
func (f *Func) operation(e *kern.Expr, args []*operand, vs []value.Value, w int) value.Value {
	b := f.Block
	t := args[0].t
	typ := Type(e.DType, w)
	isFloat := t.IsFloat()
	lit := func(x uint64) value.Value { return Literal(t, w, x) }
	switch e.Op {
	case kern.OpNeg:
		if isFloat {
			return b.NewFNeg(vs[0])
		}
		return b.NewSub(lit(0), vs[0])
	case kern.OpAbs:
		switch {
		case isFloat:
			return f.Call("llvm.fabs", typ, typ, vs[0])
		case t.IsSigned():
			return f.Call("llvm.abs", typ, typ, vs[0], Literal(dtype.Bool, 1, 0))
		}
		return vs[0]
	case kern.OpAdd:
		if isFloat {
			return b.NewFAdd(vs[0], vs[1])
		}
		return b.NewAdd(vs[0], vs[1])
	case kern.OpSub:
		if isFloat {
			return b.NewFSub(vs[0], vs[1])
		}
		return b.NewSub(vs[0], vs[1])
	case kern.OpMul:
		if isFloat {
			return b.NewFMul(vs[0], vs[1])
		}
		return b.NewMul(vs[0], vs[1])
	case kern.OpDiv:
		if isFloat {
			return b.NewFDiv(vs[0], vs[1])
		}
		return f.intDiv(t, w, vs[0], vs[1], args[1], false)
	case kern.OpRem:
		return f.intDiv(t, w, vs[0], vs[1], args[1], true)
	case kern.OpFma:
		return f.Call("llvm.fma", typ, typ, vs...)
	case kern.OpFmaFlush:
		if f.Device != nil {
			return f.fmaFlush(w, vs[0], vs[1], vs[2])
		}
		return f.Call("llvm.fma", typ, typ, vs...) // the kernel has set the mode
	case kern.OpSqrt:
		return f.Call("llvm.sqrt", typ, typ, vs[0])
	case kern.OpFloor:
		return f.Call("llvm.floor", typ, typ, vs[0])
	case kern.OpCeil:
		return f.Call("llvm.ceil", typ, typ, vs[0])
	case kern.OpRint:
		return f.Call("llvm.rint", typ, typ, vs[0])
	case kern.OpTrunc:
		return f.Call("llvm.trunc", typ, typ, vs[0])
	case kern.OpMin, kern.OpMax:
		return f.minMax(e.Op, t, vs[0], vs[1], args[0])
	case kern.OpAnd:
		return b.NewAnd(vs[0], vs[1])
	case kern.OpOr:
		return b.NewOr(vs[0], vs[1])
	case kern.OpXor:
		return b.NewXor(vs[0], vs[1])
	case kern.OpNot:
		return b.NewXor(vs[0], lit(math.MaxUint64))
	case kern.OpShl, kern.OpShr:
		return f.shift(e.Op, t, w, vs[0], vs[1], args[1])
	case kern.OpPopcnt:
		return f.Call("llvm.ctpop", typ, typ, vs[0])
	case kern.OpClz:
		return f.Call("llvm.ctlz", typ, typ, vs[0], Literal(dtype.Bool, 1, 0))
	case kern.OpMulHi:
		n := uint64(8 * t.Size())
		wide := types.NewInt(2 * n)
		p := b.NewMul(b.NewZExt(vs[0], Vec(wide, w)), b.NewZExt(vs[1], Vec(wide, w)))
		return b.NewTrunc(b.NewLShr(p, IntLit(wide, w, int64(n))), typ)
	case kern.OpEq, kern.OpNe, kern.OpLt, kern.OpLe, kern.OpGt, kern.OpGe:
		return f.compare(e.Op, t, vs[0], vs[1])
	case kern.OpSelect:
		return b.NewSelect(vs[0], vs[1], vs[2])
	case kern.OpConvert:
		return f.convert(t, e.DType, w, vs[0])
	case kern.OpBitcast:
		if Elem(t).Equal(Elem(e.DType)) {
			return vs[0]
		}
		return b.NewBitCast(vs[0], typ)
	case kern.OpPhilox:
		words := f.philox([4]value.Value(vs[:4]), [2]value.Value(vs[4:]), w)
		return words[e.Bits&3]
	case kern.OpRandom:
		return f.randomAnywhere(uint32(e.Bits), vs, w)
	}
	panic(fmt.Sprintf("BUG: no lowering of %v", e.Op))
}

func (f *Func) compare(op kern.Op, t dtype.Type, x, y value.Value) value.Value {
	i := op - kern.OpEq
	switch {
	case t.IsFloat():
		return f.Block.NewFCmp([...]enum.FPred{enum.FPredOEQ, enum.FPredUNE, enum.FPredOLT, enum.FPredOLE, enum.FPredOGT, enum.FPredOGE}[i], x, y)
	case t.IsSigned():
		return f.Block.NewICmp([...]enum.IPred{enum.IPredEQ, enum.IPredNE, enum.IPredSLT, enum.IPredSLE, enum.IPredSGT, enum.IPredSGE}[i], x, y)
	}
	return f.Block.NewICmp([...]enum.IPred{enum.IPredEQ, enum.IPredNE, enum.IPredULT, enum.IPredULE, enum.IPredUGT, enum.IPredUGE}[i], x, y)
}

// minMax is a where it is less (greater) than b, and where it is NaN. The first
// select is one vminps, whose own rule for NaN is "b".
func (f *Func) minMax(op kern.Op, t dtype.Type, a, b value.Value, first *operand) value.Value {
	cmp := kern.OpLt
	if op == kern.OpMax {
		cmp = kern.OpGt
	}
	r := value.Value(f.Block.NewSelect(f.compare(cmp, t, a, b), a, b))
	if t.IsFloat() && (first == nil || !first.constant) {
		r = f.Block.NewSelect(f.Block.NewFCmp(enum.FPredUNO, a, a), a, r)
	}
	return r
}

// intDiv keeps LLVM's division away from its undefined cases.
func (f *Func) intDiv(t dtype.Type, w int, x, y value.Value, by *operand, rem bool) value.Value {
	b := f.Block
	div := func(y value.Value) value.Value {
		switch {
		case rem && t.IsSigned():
			return b.NewSRem(x, y)
		case rem:
			return b.NewURem(x, y)
		case t.IsSigned():
			return b.NewSDiv(x, y)
		}
		return b.NewUDiv(x, y)
	}
	n := uint64(8 * t.Size())
	ones := uint64(math.MaxUint64) >> (64 - n)
	if by.constant && by.bits != 0 && by.bits != ones {
		return div(y)
	}
	one, zero := Literal(t, w, 1), Literal(t, w, 0)
	isZero := b.NewICmp(enum.IPredEQ, y, zero)
	unsafe := value.Value(isZero)
	if t.IsSigned() {
		least := b.NewICmp(enum.IPredEQ, x, Literal(t, w, 1<<(n-1)))
		minus := b.NewICmp(enum.IPredEQ, y, Literal(t, w, ones))
		unsafe = b.NewOr(isZero, b.NewAnd(least, minus))
	}
	r := div(b.NewSelect(unsafe, one, y))
	if rem {
		return b.NewSelect(isZero, x, r)
	}
	return b.NewSelect(isZero, Literal(t, w, ones), r)
}

func (f *Func) shift(op kern.Op, t dtype.Type, w int, x, n value.Value, by *operand) value.Value {
	b := f.Block
	width := uint64(8 * t.Size())
	if !by.constant || by.bits >= width {
		in := b.NewICmp(enum.IPredULT, n, Literal(t, w, width))
		if op == kern.OpShr && t.IsSigned() {
			return b.NewAShr(x, b.NewSelect(in, n, Literal(t, w, width-1)))
		}
		n = b.NewSelect(in, n, Literal(t, w, 0))
		x = b.NewSelect(in, x, Literal(t, w, 0))
	}
	switch {
	case op == kern.OpShl:
		return b.NewShl(x, n)
	case t.IsSigned():
		return b.NewAShr(x, n)
	}
	return b.NewLShr(x, n)
}

// convert is OpConvert.
func (f *Func) convert(from, to dtype.Type, w int, x value.Value) value.Value {
	b := f.Block
	typ := Type(to, w)
	half := from == dtype.F16 || from == dtype.BF16
	switch {
	case from == to:
		return x
	case to == dtype.Bool && half:
		x = b.NewAnd(x, Literal(from, w, 0x7fff))
		return b.NewICmp(enum.IPredNE, x, Literal(from, w, 0))
	case to == dtype.Bool && from.IsFloat():
		return b.NewFCmp(enum.FPredUNE, x, Literal(from, w, 0))
	case to == dtype.Bool:
		return b.NewICmp(enum.IPredNE, x, Literal(from, w, 0))
	case half:
		return f.convert(dtype.F32, to, w, f.widen(from, w, x))
	case from.IsFloat() && to.IsInt():
		name := "llvm.fptoui.sat"
		if to.IsSigned() {
			name = "llvm.fptosi.sat"
		}
		return f.Call(name+"."+suffix(typ), x.Type(), typ, x)
	case from == dtype.F64 && to == dtype.F32:
		return b.NewFPTrunc(x, typ)
	case from == dtype.F64:
		return f.narrow(to, w, f.roundOdd(w, x))
	case from == dtype.F32 && to == dtype.F64:
		return b.NewFPExt(x, typ)
	case from == dtype.F32:
		return f.narrow(to, w, x)
	case to == dtype.F16 || to == dtype.BF16:
		return f.narrow(to, w, f.convert(from, dtype.F32, w, x))
	case to.IsFloat() && from.IsSigned():
		return b.NewSIToFP(x, typ)
	case to.IsFloat():
		return b.NewUIToFP(x, typ)
	case from == dtype.Bool || from.Size() < to.Size():
		if from.IsSigned() {
			return b.NewSExt(x, typ)
		}
		return b.NewZExt(x, typ)
	case from.Size() > to.Size():
		return b.NewTrunc(x, typ)
	}
	return x
}

// fmaFlush is OpFmaFlush without a mode of the processor for it.
func (f *Func) fmaFlush(w int, x, y, z value.Value) value.Value {
	f32, f64, i32 := Vec(types.Float, w), Vec(types.Double, w), Vec(types.I32, w)
	signed := func(v value.Value) value.Value { // zero of v's sign
		return f.Block.NewBitCast(f.Block.NewAnd(f.Block.NewBitCast(v, i32), IntLit(types.I32, w, -1<<31)), f32)
	}
	flush := func(v value.Value) value.Value {
		b := f.Block
		small := b.NewICmp(enum.IPredEQ, b.NewAnd(b.NewBitCast(v, i32), IntLit(types.I32, w, 0x7f800000)), IntLit(types.I32, w, 0))
		return b.NewSelect(small, signed(v), v)
	}
	x, y, z = flush(x), flush(y), flush(z)
	r := f.Call("llvm.fma", f32, f32, x, y, z)
	b := f.Block
	// Exact where it is near the least normal: products of bf16 have 16 bits.
	s := f.Call("llvm.fabs", f64, f64, b.NewFAdd(b.NewFMul(b.NewFPExt(x, f64), b.NewFPExt(y, f64)), b.NewFPExt(z, f64)))
	least := Literal(dtype.F64, w, math.Float64bits(0x1p-126-0x1p-151))
	return f.Block.NewSelect(f.Block.NewFCmp(enum.FPredOLT, s, least), signed(r), r)
}

// widen is the f32 value of f16 or bf16 bits.
func (f *Func) widen(t dtype.Type, w int, x value.Value) value.Value {
	b := f.Block
	if t == dtype.F16 {
		return b.NewFPExt(b.NewBitCast(x, Vec(types.Half, w)), Vec(types.Float, w))
	}
	u := b.NewShl(b.NewZExt(x, Vec(types.I32, w)), IntLit(types.I32, w, 16))
	return b.NewBitCast(u, Vec(types.Float, w))
}

// narrow rounds f32 to the bits of f16 or bf16.
func (f *Func) narrow(t dtype.Type, w int, x value.Value) value.Value {
	b := f.Block
	i16, i32 := Vec(types.I16, w), Vec(types.I32, w)
	if t == dtype.F16 {
		return b.NewBitCast(b.NewFPTrunc(x, Vec(types.Half, w)), i16)
	}
	u := b.NewBitCast(x, i32)
	hi := b.NewLShr(u, IntLit(types.I32, w, 16))
	odd := b.NewAnd(hi, IntLit(types.I32, w, 1))
	r := b.NewLShr(b.NewAdd(b.NewAdd(u, odd), IntLit(types.I32, w, 0x7fff)), IntLit(types.I32, w, 16))
	nan := b.NewOr(hi, IntLit(types.I32, w, 0x40))
	return b.NewTrunc(b.NewSelect(b.NewFCmp(enum.FPredUNO, x, x), nan, r), i16)
}

// roundOdd is an f64 rounded to odd in f32.
func (f *Func) roundOdd(w int, x value.Value) value.Value {
	b := f.Block
	i32 := Vec(types.I32, w)
	r := b.NewFPTrunc(x, Vec(types.Float, w))
	back := b.NewFPExt(r, Vec(types.Double, w))
	inexact := b.NewFCmp(enum.FPredONE, back, x)
	u := b.NewBitCast(r, i32)
	even := b.NewICmp(enum.IPredEQ, b.NewAnd(u, IntLit(types.I32, w, 1)), IntLit(types.I32, w, 0))
	f64 := Vec(types.Double, w)
	ab, ax := f.Call("llvm.fabs", f64, f64, back), f.Call("llvm.fabs", f64, f64, x)
	b = f.Block
	step := b.NewSelect(b.NewFCmp(enum.FPredOGT, ab, ax), IntLit(types.I32, w, -1), IntLit(types.I32, w, 1))
	step2 := b.NewSelect(b.NewAnd(inexact, even), step, IntLit(types.I32, w, 0))
	return b.NewBitCast(b.NewAdd(u, step2), Vec(types.Float, w))
}

// load reads elements args[0] of n at p; args[1] and args[2], if there, say where
// and what else.
func (f *Func) load(p value.Value, t dtype.Type, n int64, index *kern.Expr, args []*operand) *operand {
	if n == 0 {
		if len(args) == 3 {
			return args[2]
		}
		return constOperand(t, 0) // never executed
	}
	idx := args[0]
	var cond, other *operand
	if len(args) == 3 && !(args[1].constant && args[1].bits != 0) {
		cond, other = args[1], args[2]
	}
	b := f.Block
	// One address: read it once. Where no lane may read it, read element 0.
	if idx.uniform() {
		i := idx.s
		if cond != nil {
			some := cond.s
			if !cond.uniform() {
				some = f.any(cond.v)
			}
			i = f.Block.NewSelect(some, i, I64(0))
		}
		x := &operand{t: t, s: f.fromMem(t, f.loadAt(Mem(t), f.elemPtr(p, t, i), t.Size()))}
		if cond == nil {
			return x
		}
		if cond.uniform() && other.uniform() {
			return &operand{t: t, s: f.Block.NewSelect(cond.s, x.s, other.s)}
		}
		c := cond.s
		if !cond.uniform() {
			c = cond.v
		}
		return &operand{t: t, v: f.Block.NewSelect(c, f.vector(x), f.vector(other))}
	}
	w := f.lane.w
	mem := Vec(Mem(t), w)
	if idx.s != nil && idx.stride == 1 {
		ptr := b.NewBitCast(f.elemPtr(p, t, idx.s), types.NewPointer(mem))
		mask := f.lane.mask
		if cond != nil {
			mask = f.and(mask, f.vector(cond))
		}
		if mask == nil {
			return &operand{t: t, v: f.fromMem(t, f.loadAt(mem, ptr, t.Size()))}
		}
		pass := Zeros(mem)
		if cond != nil {
			pass = f.toMem(t, f.vector(other))
		}
		x := f.Call("llvm.masked.load."+suffix(mem), ptr.Type(), mem, ptr, I32(t.Size()), mask, pass)
		return &operand{t: t, v: f.fromMem(t, x)}
	}
	// A gather: lanes that may not read are sent to element 0, so that targets
	// without a masked gather need no branches.
	i := f.indices(index, idx)
	mask := f.lane.mask
	if cond != nil {
		mask = f.and(mask, f.vector(cond))
	}
	if mask != nil {
		_, elem := lanes(i.Type())
		i = f.Block.NewSelect(mask, i, IntLit(elem, w, 0))
	}
	ptrs := f.Block.NewGetElementPtr(Mem(t), p, i)
	all := Literal(dtype.Bool, w, 1)
	x := f.Call("llvm.masked.gather."+suffix(mem), ptrs.Type(), mem, ptrs, I32(t.Size()), all, Poison(mem))
	v := f.fromMem(t, x)
	if cond != nil {
		v = f.Block.NewSelect(f.vector(cond), v, f.vector(other))
	}
	return &operand{t: t, v: v}
}

// and joins two masks, of which the first may be nil.
func (f *Func) and(x, y value.Value) value.Value {
	if x == nil {
		return y
	}
	return f.Block.NewAnd(x, y)
}

// any tells whether some lane of a mask that exists is set.
func (f *Func) any(m value.Value) value.Value {
	m = f.and(f.lane.mask, m)
	return f.Call("llvm.vector.reduce.or", m.Type(), types.I1, m)
}

func (f *Func) elemPtr(p value.Value, t dtype.Type, i value.Value) value.Value {
	return f.Block.NewGetElementPtr(Mem(t), p, i)
}

func (f *Func) loadAt(t types.Type, p value.Value, align int64) value.Value {
	x := f.Block.NewLoad(t, p)
	x.Align = ir.Align(align)
	return x
}
