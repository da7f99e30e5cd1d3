package emit

import (
	"math"

	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// Index arithmetic is done in i64, but its values are nearly always small. Where the
// bounds of an i64 expression and of its operands are seen to fit 32 bits, vectors of it
// are computed in 32-bit lanes: half the registers, division by constants in
// vectors, gathers by 32-bit indices.

// span is an interval of i64, both ends included.
type span struct{ lo, hi int64 }

func (s span) small() bool { return s.lo >= math.MinInt32 && s.hi <= math.MaxInt32 }

// spanOf bounds the value of an i64 expression; ok is false where nothing is known
// or the value may be beyond 32 bits.
func (f *Func) spanOf(e *kern.Expr) (s span, ok bool) {
	if e.DType != dtype.I64 {
		return span{}, false
	}
	if r, done := f.spans[e]; done {
		return r.span, r.ok
	}
	s, ok = f.spanOf1(e)
	ok = ok && s.small() && s.lo <= s.hi
	f.spans[e] = spanResult{s, ok}
	return s, ok
}

type spanResult struct {
	span
	ok bool
}

// setSpan notes the bounds of a variable from here on (ok false: none are known).
func (f *Func) setSpan(v *kern.Var, s span, ok bool) {
	clear(f.spans)
	if ok {
		f.ranges[v] = s
	} else {
		delete(f.ranges, v)
	}
}

func (f *Func) spanOf1(e *kern.Expr) (span, bool) {
	switch e.Op {
	case kern.OpConst:
		x := int64(e.Bits)
		return span{x, x}, true
	case kern.OpVar:
		s, ok := f.ranges[e.Var]
		return s, ok
	case kern.OpConvert:
		switch e.Args[0].DType {
		case dtype.Bool:
			return span{0, 1}, true
		case dtype.I8, dtype.I16, dtype.I32:
			n := 8*e.Args[0].DType.Size() - 1
			return span{-1 << n, 1<<n - 1}, true
		case dtype.U8, dtype.U16:
			return span{0, 1<<(8*e.Args[0].DType.Size()) - 1}, true
		}
		return span{}, false
	case kern.OpSelect:
		a, ok1 := f.spanOf(e.Args[1])
		b, ok2 := f.spanOf(e.Args[2])
		return span{min(a.lo, b.lo), max(a.hi, b.hi)}, ok1 && ok2
	}
	if len(e.Args) != 2 || e.Args[0].DType != dtype.I64 {
		return span{}, false
	}
	a, ok1 := f.spanOf(e.Args[0])
	b, ok2 := f.spanOf(e.Args[1])
	if !ok2 {
		return span{}, false
	}
	one := b.lo == b.hi
	switch {
	case e.Op == kern.OpAnd && b.lo >= 0 && (ok1 || one):
		return span{0, b.hi}, one || a.lo >= 0
	case e.Op == kern.OpRem && one && b.lo > 0:
		s := span{1 - b.lo, b.lo - 1}
		if ok1 && a.lo >= 0 {
			s = span{0, min(a.hi, b.lo-1)}
		}
		return s, true
	}
	if !ok1 {
		return span{}, false
	}
	switch e.Op {
	case kern.OpAdd:
		return span{a.lo + b.lo, a.hi + b.hi}, true
	case kern.OpSub:
		return span{a.lo - b.hi, a.hi - b.lo}, true
	case kern.OpMul:
		p, q, r, s := a.lo*b.lo, a.lo*b.hi, a.hi*b.lo, a.hi*b.hi
		return span{min(p, q, r, s), max(p, q, r, s)}, true
	case kern.OpDiv:
		return span{a.lo / max(b.lo, 1), a.hi / max(b.lo, 1)}, one && b.lo > 0
	case kern.OpMin:
		return span{min(a.lo, b.lo), min(a.hi, b.hi)}, true
	case kern.OpMax:
		return span{max(a.lo, b.lo), max(a.hi, b.hi)}, true
	}
	return span{}, false
}

// narrowing lists what can be done in 32-bit lanes.
func narrowing(op kern.Op) bool {
	switch op {
	case kern.OpAdd, kern.OpSub, kern.OpMul, kern.OpDiv, kern.OpRem, kern.OpMin, kern.OpMax, kern.OpAnd, kern.OpSelect,
		kern.OpEq, kern.OpNe, kern.OpLt, kern.OpLe, kern.OpGt, kern.OpGe:
		return true
	}
	return false
}

// narrow32 evaluates e in 32-bit lanes if its bounds allow; else it returns nil.
func (f *Func) narrow32(e *kern.Expr, args []*operand) *operand {
	if e.Op == kern.OpConvert {
		return f.narrowConvert(e, args[0])
	}
	if !narrowing(e.Op) {
		return nil
	}
	if e.DType == dtype.I64 {
		if _, ok := f.spanOf(e); !ok {
			return nil
		}
	} else if e.DType != dtype.Bool || e.Args[0].DType != dtype.I64 {
		return nil
	}
	if (e.Op == kern.OpDiv || e.Op == kern.OpRem) && !args[1].constant {
		return nil
	}
	small := make([]*operand, len(args))
	vs := make([]value.Value, len(args))
	for i, a := range args {
		if a.t == dtype.Bool { // the condition of a select
			small[i], vs[i] = a, a.s
			if !a.uniform() {
				vs[i] = f.vector(a)
			}
			continue
		}
		if _, ok := f.spanOf(e.Args[i]); !ok {
			return nil
		}
		small[i] = &operand{t: dtype.I32, constant: a.constant, bits: a.bits & math.MaxUint32}
	}
	for i, a := range args {
		if a.t != dtype.Bool {
			vs[i] = f.lanes32(a)
		}
	}
	t := e.DType
	if t == dtype.I64 {
		t = dtype.I32
	}
	r := f.operation(&kern.Expr{Op: e.Op, DType: t, Args: e.Args}, small, vs, f.lane.w)
	if e.DType == dtype.Bool {
		return &operand{t: dtype.Bool, v: r}
	}
	return &operand{t: dtype.I64, n: r}
}

// narrowConvert converts between i64 in 32-bit lanes and other types.
func (f *Func) narrowConvert(e *kern.Expr, x *operand) *operand {
	from := e.Args[0].DType
	switch {
	case e.DType == dtype.I64:
		if _, ok := f.spanOf(e); ok {
			return &operand{t: dtype.I64, n: f.convert(from, dtype.I32, f.lane.w, f.vector(x))}
		}
	case from == dtype.I64 && e.DType != dtype.U64:
		if _, ok := f.spanOf(e.Args[0]); ok {
			return &operand{t: e.DType, v: f.convert(dtype.I32, e.DType, f.lane.w, f.lanes32(x))}
		}
	}
	return nil
}

// lanes32 is a small i64 in 32-bit lanes.
func (f *Func) lanes32(x *operand) value.Value {
	w := f.lane.w
	i32 := Vec(types.I32, w)
	switch {
	case x.n != nil:
	case x.constant:
		x.n = Literal(dtype.I32, w, x.bits)
	case x.v != nil:
		x.n = f.Block.NewTrunc(x.v, i32)
	case x.stride == 0:
		x.n = f.splat(f.Block.NewTrunc(x.s, types.I32), w)
	default:
		x.n = f.Block.NewAdd(f.splat(f.Block.NewTrunc(x.s, types.I32), w), Iota(types.I32, w, x.stride))
	}
	return x.n
}

// indices are the lanes' indices for a gather or scatter, in 32 bits where they fit.
func (f *Func) indices(e *kern.Expr, x *operand) value.Value {
	if x.n != nil {
		return x.n
	}
	if e != nil {
		if _, ok := f.spanOf(e); ok {
			return f.lanes32(x)
		}
	}
	return f.vector(x)
}
