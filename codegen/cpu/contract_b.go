package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"
)

// contractB writes one function in structured form: loops carry their values
// explicitly (phis), so nothing needs an alloca and LLVM has little to clean up.
// That, and shared helper functions, keep a contraction's compile time small.
type contractB struct {
	m   *ir.Module
	f   *ir.Func
	cur *ir.Block
	n   int // blocks made so far, for unique names
}

// contractFunc starts function name with the given parameters.
func contractFunc(m *ir.Module, t Target, name string, params ...*ir.Param) *contractB {
	f := m.NewFunc(name, types.Void, params...)
	// no-builtins: a copying loop must not become a call of memcpy, kernels link to nothing.
	f.FuncAttrs = append(t.contractAttrs(), enum.FuncAttrNoUnwind, ir.AttrString("no-builtins"))
	return &contractB{m: m, f: f, cur: f.NewBlock("entry")}
}

func contractInt(v int64) *constant.Int { return constant.NewInt(types.I64, v) }

func (e *contractB) block(hint string) *ir.Block {
	e.n++
	return e.f.NewBlock(fmt.Sprintf("%s%d", hint, e.n))
}

// loop runs body for i = lo, lo+step … < hi, carrying values; it returns the
// carried values after the last round. Step > 0.
func (e *contractB) loop(lo, hi value.Value, step int64, init []value.Value,
	body func(i value.Value, c []value.Value) []value.Value) []value.Value {
	return e.loopStep(lo, hi, contractInt(step), init, body)
}

// loopStep is loop with a step that is a value.
func (e *contractB) loopStep(lo, hi, step value.Value, init []value.Value,
	body func(i value.Value, c []value.Value) []value.Value) []value.Value {
	pre := e.cur
	head, in, exit := e.block("head"), e.block("body"), e.block("exit")
	pre.NewBr(head)
	i := head.NewPhi(ir.NewIncoming(lo, pre))
	phis := make([]*ir.InstPhi, len(init))
	vals := make([]value.Value, len(init))
	for k, v := range init {
		phis[k] = head.NewPhi(ir.NewIncoming(v, pre))
		vals[k] = phis[k]
	}
	head.NewCondBr(head.NewICmp(enum.IPredSLT, i, hi), in, exit)
	e.cur = in
	next := body(i, vals)
	ni := e.cur.NewAdd(i, step)
	i.Incs = append(i.Incs, ir.NewIncoming(ni, e.cur))
	for k := range phis {
		phis[k].Incs = append(phis[k].Incs, ir.NewIncoming(next[k], e.cur))
	}
	e.cur.NewBr(head)
	e.cur = exit
	return vals
}

// when runs then only if cond holds.
func (e *contractB) when(cond value.Value, then func()) { e.branch(cond, then, nil) }

// branch runs then or otherwise (may be nil).
func (e *contractB) branch(cond value.Value, then, otherwise func()) {
	t, join := e.block("then"), e.block("join")
	f := join
	if otherwise != nil {
		f = e.block("else")
	}
	e.cur.NewCondBr(cond, t, f)
	e.cur = t
	then()
	e.cur.NewBr(join)
	if otherwise != nil {
		e.cur = f
		otherwise()
		e.cur.NewBr(join)
	}
	e.cur = join
}

// pick computes one value on either side of a condition.
func (e *contractB) pick(cond value.Value, then, otherwise func() []value.Value) []value.Value {
	t, f, join := e.block("then"), e.block("else"), e.block("join")
	e.cur.NewCondBr(cond, t, f)
	e.cur = t
	tv := then()
	te := e.cur
	te.NewBr(join)
	e.cur = f
	fv := otherwise()
	fe := e.cur
	fe.NewBr(join)
	e.cur = join
	out := make([]value.Value, len(tv))
	for i := range tv {
		out[i] = join.NewPhi(ir.NewIncoming(tv[i], te), ir.NewIncoming(fv[i], fe))
	}
	return out
}

func (e *contractB) ret() *ir.Func {
	e.cur.NewRet(nil)
	return e.f
}

func (e *contractB) add(a, b value.Value) value.Value { return e.cur.NewAdd(a, b) }
func (e *contractB) sub(a, b value.Value) value.Value { return e.cur.NewSub(a, b) }
func (e *contractB) mul(a, b value.Value) value.Value { return e.cur.NewMul(a, b) }

// min is the smaller of two i64.
func (e *contractB) min(a, b value.Value) value.Value {
	return e.cur.NewSelect(e.cur.NewICmp(enum.IPredSLT, a, b), a, b)
}

// gep moves p by i elements of type t.
func (e *contractB) gep(t types.Type, p value.Value, i value.Value) value.Value {
	return e.cur.NewGetElementPtr(t, p, i)
}

// cast makes p a pointer to t.
func (e *contractB) cast(p value.Value, t types.Type) value.Value {
	return e.cur.NewBitCast(p, types.NewPointer(t))
}

// load reads t through p (a pointer to anything) with only al bytes of alignment assumed.
func (e *contractB) load(t types.Type, p value.Value, al int64) value.Value {
	l := e.cur.NewLoad(t, e.cast(p, t))
	l.Align = ir.Align(al)
	return l
}

// store writes v through p with only al bytes of alignment assumed.
func (e *contractB) store(v, p value.Value, al int64) {
	s := e.cur.NewStore(v, e.cast(p, v.Type()))
	s.Align = ir.Align(al)
}

// intrinsic declares an external function once in the module.
func (e *contractB) intrinsic(name string, ret types.Type, params ...types.Type) *ir.Func {
	if f := contractFind(e.m, name); f != nil {
		return f
	}
	ps := make([]*ir.Param, len(params))
	for i, t := range params {
		ps[i] = ir.NewParam("", t)
	}
	return e.m.NewFunc(name, ret, ps...)
}

// contractFind looks a function up by name; nil when the module has none.
func contractFind(m *ir.Module, name string) *ir.Func {
	for _, f := range m.Funcs {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

// contractIota is the constant vector 0, 1 … n-1.
func contractIota(t *types.IntType, n int) *constant.Vector {
	xs := make([]constant.Constant, n)
	for i := range xs {
		xs[i] = constant.NewInt(t, int64(i))
	}
	return constant.NewVector(types.NewVector(uint64(n), t), xs...)
}

// splat broadcasts a scalar to n lanes.
func (e *contractB) splat(v value.Value, n int) value.Value {
	vt := types.NewVector(uint64(n), v.Type())
	one := e.cur.NewInsertElement(constant.NewPoison(vt), v, contractInt(0))
	mask := constant.NewZeroInitializer(types.NewVector(uint64(n), types.I32))
	return e.cur.NewShuffleVector(one, constant.NewPoison(vt), mask)
}

// mask is <n x i1> with lanes l < count set (count i64).
func (e *contractB) mask(count value.Value, n int) value.Value {
	c := e.cur.NewTrunc(e.min(count, contractInt(int64(n))), types.I32)
	return e.cur.NewICmp(enum.IPredSLT, contractIota(types.I32, n), e.splat(c, n))
}

// shuffle permutes the lanes of a ++ b.
func (e *contractB) shuffle(a, b value.Value, idx []int) value.Value {
	xs := make([]constant.Constant, len(idx))
	for i, x := range idx {
		xs[i] = constant.NewInt(types.I32, int64(x))
	}
	return e.cur.NewShuffleVector(a, b, constant.NewVector(types.NewVector(uint64(len(idx)), types.I32), xs...))
}

// contractVecName is the suffix by which LLVM overloads intrinsics, e.g. v16f32.
func contractVecName(t *types.VectorType) string {
	var el string
	switch x := t.ElemType.(type) {
	case *types.IntType:
		el = fmt.Sprintf("i%d", x.BitSize)
	case *types.FloatType:
		switch x.Kind {
		case types.FloatKindHalf:
			el = "f16"
		case types.FloatKindFloat:
			el = "f32"
		default:
			el = "f64"
		}
	}
	return fmt.Sprintf("v%d%s", t.Len, el)
}

// loadMasked reads the lanes of t whose mask bit is set; the others are zero and
// their memory is not touched.
func (e *contractB) loadMasked(t *types.VectorType, p, mask value.Value, al int64) value.Value {
	pt := types.NewPointer(t)
	f := e.intrinsic("llvm.masked.load."+contractVecName(t)+".p0", t, pt, types.I32, mask.Type(), t)
	return e.cur.NewCall(f, e.cast(p, t), constant.NewInt(types.I32, al), mask, constant.NewZeroInitializer(t))
}

// storeMasked writes the lanes whose mask bit is set.
func (e *contractB) storeMasked(v, p, mask value.Value, al int64) {
	t := v.Type().(*types.VectorType)
	pt := types.NewPointer(t)
	f := e.intrinsic("llvm.masked.store."+contractVecName(t)+".p0", types.Void, t, pt, types.I32, mask.Type())
	e.cur.NewCall(f, v, e.cast(p, t), constant.NewInt(types.I32, al), mask)
}

// prefetch asks for the cache line at p, into L1.
func (e *contractB) prefetch(p value.Value) { e.prefetchTo(p, 3) }

// prefetchL2 asks for it into L2.
func (e *contractB) prefetchL2(p value.Value) { e.prefetchTo(p, 2) }

func (e *contractB) prefetchTo(p value.Value, locality int64) {
	i8p := types.NewPointer(types.I8)
	f := e.intrinsic("llvm.prefetch.p0", types.Void, i8p, types.I32, types.I32, types.I32)
	c := func(x int64) value.Value { return constant.NewInt(types.I32, x) }
	e.cur.NewCall(f, e.cast(p, types.I8), c(0), c(locality), c(1))
}
