package cpu

import (
	"fmt"
	"math"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"
)

// attentionFn writes one function of the attention and convolution families.
// Pointers are all i8* and are moved by counts of f32; vectors have w lanes.
type attentionFn struct {
	m    *ir.Module
	t    Target
	f    *ir.Func
	b    *ir.Block
	w    int64
	next int // names of blocks
}

// attentionPtr is the type of every pointer.
func attentionPtr() *types.PointerType { return types.NewPointer(types.I8) }

// attentionLanes is the number of f32 lanes of a register.
func attentionLanes(t Target) int64 {
	if t == V3 {
		return 8
	}
	return 16
}

// attentionFunc starts a function. Internal ones may be inlined by LLVM or not;
// each is emitted once for a module, however often it is asked for.
func attentionFunc(m *ir.Module, t Target, name string, internal bool, params ...*ir.Param) *attentionFn {
	f := m.NewFunc(name, types.Void, params...)
	f.FuncAttrs = append(t.contractAttrs(), enum.FuncAttrNoUnwind)
	if internal {
		f.Linkage = enum.LinkageInternal
		f.FuncAttrs = append(f.FuncAttrs, enum.FuncAttrNoInline)
	}
	e := &attentionFn{m: m, t: t, f: f, w: attentionLanes(t)}
	e.b = e.block("entry")
	return e
}

// attentionFind is the function of that name, nil where the module has none.
func attentionFind(m *ir.Module, name string) *ir.Func {
	for _, f := range m.Funcs {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

func (e *attentionFn) block(hint string) *ir.Block {
	e.next++
	return e.f.NewBlock(fmt.Sprintf("%s%d", hint, e.next))
}

// done ends the function.
func (e *attentionFn) done() *ir.Func {
	e.b.NewRet(nil)
	return e.f
}

func (e *attentionFn) intrinsic(name string, ret types.Type, params ...types.Type) *ir.Func {
	if f := attentionFind(e.m, name); f != nil {
		return f
	}
	ps := make([]*ir.Param, len(params))
	for i, t := range params {
		ps[i] = ir.NewParam("", t)
	}
	return e.m.NewFunc(name, ret, ps...)
}

// Scalars.

func attentionI(x int64) value.Value { return constant.NewInt(types.I64, x) }

// attentionF is an f32 constant, exact for every bit pattern.
func attentionF(x float32) constant.Constant {
	return constant.NewBitCast(constant.NewInt(types.I32, int64(int32(math.Float32bits(x)))), types.Float)
}

func (e *attentionFn) add(a, b value.Value) value.Value { return e.b.NewAdd(a, b) }
func (e *attentionFn) sub(a, b value.Value) value.Value { return e.b.NewSub(a, b) }
func (e *attentionFn) mul(a, b value.Value) value.Value { return e.b.NewMul(a, b) }
func (e *attentionFn) addI(a value.Value, x int64) value.Value {
	if x == 0 {
		return a
	}
	return e.b.NewAdd(a, attentionI(x))
}
func (e *attentionFn) mulI(a value.Value, x int64) value.Value {
	if x == 1 {
		return a
	}
	return e.b.NewMul(a, attentionI(x))
}
func (e *attentionFn) divI(a value.Value, x int64) value.Value { return e.b.NewSDiv(a, attentionI(x)) }
func (e *attentionFn) remI(a value.Value, x int64) value.Value { return e.b.NewSRem(a, attentionI(x)) }

func (e *attentionFn) less(a, b value.Value) value.Value { return e.b.NewICmp(enum.IPredSLT, a, b) }

func (e *attentionFn) min(a, b value.Value) value.Value {
	return e.b.NewSelect(e.less(a, b), a, b)
}

func (e *attentionFn) max(a, b value.Value) value.Value {
	return e.b.NewSelect(e.less(a, b), b, a)
}

// Memory.

// at moves p by i f32 elements.
func (e *attentionFn) at(p, i value.Value) value.Value {
	g := &ir.InstGetElementPtr{ElemType: types.Float, Src: p, Indices: []value.Value{i}, Typ: attentionPtr(), InBounds: true}
	e.b.Insts = append(e.b.Insts, g)
	return g
}

// atI moves p by a constant number of f32 elements.
func (e *attentionFn) atI(p value.Value, i int64) value.Value {
	if i == 0 {
		return p
	}
	return e.at(p, attentionI(i))
}

func (e *attentionFn) loadAs(t types.Type, p value.Value) value.Value {
	l := e.b.NewLoad(t, p)
	l.Align = 4
	return l
}

// load reads one f32.
func (e *attentionFn) load(p value.Value) value.Value { return e.loadAs(types.Float, p) }

// loadV reads one register.
func (e *attentionFn) loadV(p value.Value) value.Value { return e.loadAs(e.vec(types.Float), p) }

// store writes a scalar or a register.
func (e *attentionFn) store(v, p value.Value) {
	e.b.Insts = append(e.b.Insts, &ir.InstStore{Src: v, Dst: p, Align: 4})
}

// lanesBelow is the constant mask of the first n lanes.
func (e *attentionFn) lanesBelow(n int64) constant.Constant {
	return e.constV(func(l int64) constant.Constant { return constant.NewBool(l < n) })
}

// loadN reads the first n lanes of a register, zeros in the rest.
func (e *attentionFn) loadN(p value.Value, n int64) value.Value {
	if n >= e.w {
		return e.loadV(p)
	}
	return e.loadWhere(p, e.lanesBelow(n))
}

// storeN writes the first n lanes of a register.
func (e *attentionFn) storeN(v, p value.Value, n int64) {
	if n >= e.w {
		e.store(v, p)
		return
	}
	e.storeWhere(v, p, e.lanesBelow(n))
}

// loadWhere reads the lanes that mask names, zeros in the rest.
func (e *attentionFn) loadWhere(p, mask value.Value) value.Value {
	vt := e.vec(types.Float)
	f := e.intrinsic(fmt.Sprintf("llvm.masked.load.v%df32.p0", e.w), vt, attentionPtr(), types.I32, mask.Type(), vt)
	return e.b.NewCall(f, p, constant.NewInt(types.I32, 4), mask, constant.NewZeroInitializer(vt))
}

// storeWhere writes the lanes that mask names.
func (e *attentionFn) storeWhere(x, p, mask value.Value) {
	f := e.intrinsic(fmt.Sprintf("llvm.masked.store.v%df32.p0", e.w), types.Void, x.Type(), attentionPtr(), types.I32, mask.Type())
	e.b.NewCall(f, x, p, constant.NewInt(types.I32, 4), mask)
}

// Vectors.

func (e *attentionFn) vec(t types.Type) *types.VectorType { return types.NewVector(uint64(e.w), t) }

// constV is a constant register, one value per lane.
func (e *attentionFn) constV(lane func(l int64) constant.Constant) constant.Constant {
	xs := make([]constant.Constant, e.w)
	for l := range xs {
		xs[l] = lane(int64(l))
	}
	return constant.NewVector(types.NewVector(uint64(e.w), xs[0].Type()), xs...)
}

// splatF is the register with x in every lane.
func (e *attentionFn) splatF(x float32) constant.Constant {
	return e.constV(func(int64) constant.Constant { return attentionF(x) })
}

func (e *attentionFn) splatU32(x uint32) constant.Constant {
	return e.constV(func(int64) constant.Constant { return constant.NewInt(types.I32, int64(int32(x))) })
}

// splat broadcasts a scalar to n lanes.
func (e *attentionFn) splat(x value.Value, n int64) value.Value {
	vt := types.NewVector(uint64(n), x.Type())
	one := e.b.NewInsertElement(constant.NewPoison(vt), x, constant.NewInt(types.I32, 0))
	return e.b.NewShuffleVector(one, constant.NewPoison(vt), constant.NewZeroInitializer(types.NewVector(uint64(n), types.I32)))
}

func (e *attentionFn) shuffle(a, b value.Value, idx []int64) value.Value {
	xs := make([]constant.Constant, len(idx))
	for i, x := range idx {
		xs[i] = constant.NewInt(types.I32, x)
	}
	return e.b.NewShuffleVector(a, b, constant.NewVector(types.NewVector(uint64(len(idx)), types.I32), xs...))
}

func (e *attentionFn) fma(a, b, c value.Value) value.Value {
	t := a.Type()
	name := "llvm.fma.f32"
	if v, ok := t.(*types.VectorType); ok {
		name = fmt.Sprintf("llvm.fma.v%df32", v.Len)
	}
	return e.b.NewCall(e.intrinsic(name, t, t, t, t), a, b, c)
}

// maxV is the max of reductions for operands of which b may not be NaN unless the
// whole row becomes NaN by other ways: one instruction.
func (e *attentionFn) maxV(a, b value.Value) value.Value {
	return e.b.NewSelect(e.b.NewFCmp(enum.FPredOGT, a, b), a, b)
}

// fence keeps LLVM from holding in registers what was loaded before it and is loaded again after it, by
// pointers that are not noalias.
func (e *attentionFn) fence() {
	f := ir.NewInlineAsm(types.NewPointer(types.NewFunc(types.Void)), "", "~{memory}")
	f.SideEffect = true
	e.b.NewCall(f)
}

// Control.

// loop runs body for i = lo, lo+step … < hi and carries values from round to
// round; the result is what they are in the end. Step > 0.
func (e *attentionFn) loop(lo, hi value.Value, step int64, init []value.Value,
	body func(i value.Value, c []value.Value) []value.Value) []value.Value {
	pre, head, in, exit := e.b, e.block("head"), e.block("body"), e.block("exit")
	pre.NewBr(head)
	i := head.NewPhi(ir.NewIncoming(lo, pre))
	phis, vals := make([]*ir.InstPhi, len(init)), make([]value.Value, len(init))
	for k, v := range init {
		phis[k] = head.NewPhi(ir.NewIncoming(v, pre))
		vals[k] = phis[k]
	}
	head.NewCondBr(head.NewICmp(enum.IPredSLT, i, hi), in, exit)
	e.b = in
	next := body(i, vals)
	i.Incs = append(i.Incs, ir.NewIncoming(e.addI(i, step), e.b))
	for k := range phis {
		phis[k].Incs = append(phis[k].Incs, ir.NewIncoming(next[k], e.b))
	}
	e.b.NewBr(head)
	e.b = exit
	return vals
}

// each is a loop that carries nothing.
func (e *attentionFn) each(lo, hi value.Value, step int64, body func(i value.Value)) {
	e.loop(lo, hi, step, nil, func(i value.Value, _ []value.Value) []value.Value {
		body(i)
		return nil
	})
}

// eachI is each from 0 to a constant.
func (e *attentionFn) eachI(n, step int64, body func(i value.Value)) {
	e.each(attentionI(0), attentionI(n), step, body)
}

// when runs then if cond holds.
func (e *attentionFn) when(cond value.Value, then func()) {
	t, join := e.block("then"), e.block("join")
	e.b.NewCondBr(cond, t, join)
	e.b = t
	then()
	e.b.NewBr(join)
	e.b = join
}
