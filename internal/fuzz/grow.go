// Package fuzz grows random programs and checks that compilation keeps their meaning: whatever
// the budget, the threads and the instruction set, a program gives the interpreter's bits.
package fuzz

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// grower appends random ops to a block. It keeps every value made so far for later use, so that values
// fan out, die young, and live long.
type grower struct {
	r     *rand.Rand
	b     *ir.Builder
	pool  []*ir.Value
	key   *ir.Value // nil inside regions that were given none
	rng   *int64    // ids of random ops, shared with regions
	depth int       // of regions
	limit int64     // elements of a value
	work  int64     // multiplications of one contraction, window or attention
	grad  bool      // only ops that have derivatives or need none
	names int

	called *ir.Func // a function to call, or nil
}

// size is a random size of a dimension: 1, powers of two, odd ones, and now and then none at all.
func (g *grower) size() int64 {
	switch g.r.IntN(40) {
	case 0:
		return 0
	case 1, 2, 3, 4:
		return []int64{64, 65, 70, 128}[g.r.IntN(4)]
	}
	return []int64{1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33}[g.r.IntN(13)]
}

func (g *grower) shape(rank int) []int64 {
	for {
		s := make([]int64, rank)
		for i := range s {
			s[i] = g.size()
		}
		if tensor.Len(s) <= g.limit {
			return s
		}
	}
}

func (g *grower) anyShape() []int64 {
	return g.shape([]int{0, 1, 1, 2, 2, 2, 2, 3, 3, 4}[g.r.IntN(10)])
}

// dtype is a random element type: most of all f32.
func (g *grower) dtype() dtype.Type {
	return []dtype.Type{dtype.F32, dtype.F32, dtype.F32, dtype.F32, dtype.F32, dtype.F32, dtype.F64, dtype.BF16, dtype.BF16, dtype.F16,
		dtype.I32, dtype.I32, dtype.I64, dtype.U8, dtype.Bool, dtype.I8, dtype.U32}[g.r.IntN(17)]
}

func (g *grower) float() dtype.Type {
	return []dtype.Type{dtype.F32, dtype.F32, dtype.F32, dtype.F32, dtype.F32, dtype.BF16, dtype.F16, dtype.F64}[g.r.IntN(8)]
}

func (g *grower) chance(percent int) bool { return g.r.IntN(100) < percent }

// give up on the op that is being made.
type unfit struct{}

func giveUp() { panic(unfit{}) }

func (g *grower) op(name string, operands []*ir.Value, attrs ...ir.Attr) *ir.Value {
	return g.b.Op(name, operands, attrs...)
}

func (g *grower) nextRNG() ir.Attr {
	*g.rng++
	return ir.A("rng", *g.rng)
}

// pick is a value that ok likes, recent ones first.
func (g *grower) pick(ok func(v *ir.Value) bool) *ir.Value {
	n := len(g.pool)
	if g.chance(50) {
		for i := n - 1; i >= max(0, n-4); i-- {
			if ok(g.pool[i]) && g.chance(60) {
				return g.pool[i]
			}
		}
	}
	var fit []*ir.Value
	for _, v := range g.pool {
		if ok(v) {
			fit = append(fit, v)
		}
	}
	if len(fit) == 0 {
		giveUp()
	}
	return fit[g.r.IntN(len(fit))]
}

func isFloat(v *ir.Value) bool  { return v.Type.DType.IsFloat() }
func isNumber(v *ir.Value) bool { return v.Type.DType.IsFloat() || v.Type.DType.IsInt() }
func isIndex(v *ir.Value) bool  { return v.Type.DType.IsInt() }
func notKey(v *ir.Value) bool   { return v.Type.DType != dtype.Key }

func ranked(lo, hi int, ok func(v *ir.Value) bool) func(v *ir.Value) bool {
	return func(v *ir.Value) bool { r := v.Type.Rank(); return r >= lo && r <= hi && ok(v) }
}

// number is a rank-0 constant.
func (g *grower) number(d dtype.Type, x float64) *ir.Value {
	if d == dtype.Bool {
		return g.op("constant", nil, ir.A("value", tensor.Of([]bool{x > 0})))
	}
	return ops.Full(g.b, ir.T(d), x)
}

func (g *grower) index(n int64) *ir.Value {
	return g.op("constant", nil, ir.A("value", tensor.Of([]int32{int32(n)})))
}

// of is a value of a type: one that exists, or one made of another.
func (g *grower) of(t ir.Type) *ir.Value {
	var fit []*ir.Value
	for _, v := range g.pool {
		if v.Type.Equal(t) {
			fit = append(fit, v)
		}
	}
	if len(fit) > 0 && g.chance(75) {
		return fit[g.r.IntN(len(fit))]
	}
	if t.Len() > 4*g.limit {
		giveUp()
	}
	switch c := g.r.IntN(10); {
	case c < 2 && t.DType.IsFloat() && g.key != nil:
		return g.op([]string{"uniform", "normal"}[g.r.IntN(2)], []*ir.Value{g.key}, g.nextRNG(), ir.A("shape", t.Shape), ir.A("dtype", t.DType))
	case c < 4 && t.Len() <= 70 && t.Len() > 0: // a dense constant
		x := tensor.New(t.DType, t.Shape...)
		for i := range x.Len() {
			x.SetBits(i, g.bits(t.DType))
		}
		return g.op("constant", nil, ir.A("value", x))
	case c < 6 && t.Rank() > 0: // a broadcast of some of the dimensions
		var dims, shape []int64
		for d, n := range t.Shape {
			if g.chance(50) {
				dims = append(dims, int64(d))
				if g.chance(20) {
					n = 1
				}
				shape = append(shape, n)
			}
		}
		return g.op("broadcast", []*ir.Value{g.of(ir.T(t.DType, shape...))}, ir.A("dims", dims), ir.A("shape", t.Shape))
	case c < 8: // the elements of another value of the same length
		for _, v := range g.pool {
			if v.Type.Len() == t.Len() && v.Type.DType == t.DType && g.chance(70) {
				return g.op("reshape", []*ir.Value{v}, ir.A("shape", t.Shape))
			}
		}
	case c < 9:
		for _, v := range g.pool {
			if slices.Equal(v.Type.Shape, t.Shape) && notKey(v) && g.chance(70) {
				return g.op("convert", []*ir.Value{v}, ir.A("to", t.DType))
			}
		}
	}
	if t.DType == dtype.Bool {
		x := g.op("iota", nil, ir.A("shape", t.Shape), ir.A("dtype", dtype.I32), ir.A("dim", g.iotaDim(t)))
		return g.op("compare", []*ir.Value{x, ops.Full(g.b, x.Type, float64(g.r.IntN(5)))}, ir.A("dir", "gt"))
	}
	x := g.op("iota", nil, ir.A("shape", t.Shape), ir.A("dtype", t.DType), ir.A("dim", g.iotaDim(t)))
	if t.DType.IsFloat() {
		x = g.op("mul", []*ir.Value{x, ops.Full(g.b, t, 0.0625)})
	}
	return x
}

func (g *grower) iotaDim(t ir.Type) int64 {
	if t.Rank() == 0 {
		giveUp()
	}
	return g.r.Int64N(int64(t.Rank()))
}

// bits are those of an element of order one.
func (g *grower) bits(d dtype.Type) uint64 {
	if d == dtype.Bool {
		return uint64(g.r.IntN(2))
	}
	if d == dtype.Key {
		giveUp()
	}
	x := g.r.NormFloat64()
	if g.chance(10) {
		x = []float64{0, 1, -1, 2, 0.5}[g.r.IntN(5)]
	}
	if d.IsInt() {
		return uint64(int64(x * 4))
	}
	b := ir.NewBuilder(g.b.Table, &ir.Block{Func: g.b.Block.Func}, g.b.Loc)
	return ops.Full(b, ir.T(d), x).Op.Attrs.Tensor("value").Bits(0)
}

// tame brings a float back to order one most of the time, so that not everything ends as NaN.
func (g *grower) tame(v *ir.Value) *ir.Value {
	if !isFloat(v) || g.chance(15) {
		return v
	}
	return g.op([]string{"tanh", "sin", "logistic", "cos"}[g.r.IntN(4)], []*ir.Value{v})
}

func (g *grower) add(vs ...*ir.Value) {
	for _, v := range vs {
		if v.Type.Len() <= 4*g.limit {
			g.pool = append(g.pool, v)
		}
	}
}

// template is a way to make values.
type template struct {
	weight int
	grad   bool // has derivatives, or gives what needs none
	make   func(g *grower)
}

// step grows one op, or a few that belong together.
func (g *grower) step(ts []template) {
	total := 0
	for _, t := range ts {
		if t.grad || !g.grad {
			total += t.weight
		}
	}
	n := g.r.IntN(total)
	for _, t := range ts {
		if !t.grad && g.grad {
			continue
		}
		if n -= t.weight; n < 0 {
			g.try(t.make)
			return
		}
	}
}

// try lets f fail: what it made until then stays, as dead code.
func (g *grower) try(f func(g *grower)) {
	g.names++
	g.b.Loc.Layer = fmt.Sprintf("n%d", g.names)
	if g.depth > 0 {
		g.b.Loc.Layer = fmt.Sprintf("r%d.n%d", g.depth, g.names)
	}
	defer func() {
		switch r := recover().(type) {
		case nil, unfit, *diag.Error:
		default:
			panic(r)
		}
	}()
	f(g)
}

// region grows a region over given types that yields values of others.
func (g *grower) region(args []*ir.Value, steps int, yield func(in *grower, p []*ir.Value) []*ir.Value) *ir.Block {
	r := g.b.Block.Func.NewRegion()
	in := &grower{called: g.called, r: g.r, b: ir.NewBuilder(g.b.Table, r, g.b.Loc), rng: g.rng, depth: g.depth + 1, limit: g.limit, work: g.work / 4, grad: g.grad}
	for _, v := range args {
		p := r.AddParam("", v.Type)
		if p.Type.DType == dtype.Key {
			in.key = p
		} else {
			in.pool = append(in.pool, p)
		}
	}
	ts := templates()
	for range steps {
		in.step(ts)
	}
	r.Results = yield(in, r.Params)
	return r
}

// Grow makes the program of a seed. Equal seeds give equal programs.
func Grow(seed uint64) *ir.Module {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	m := ir.NewModule(fmt.Sprintf("fuzz%d", seed))
	rng := int64(0)
	var called *ir.Func
	if r.IntN(6) == 0 {
		called = callee(r, m, &rng)
	}
	f := m.NewFunc("step")
	g := &grower{called: called, r: r, b: ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "top"}), rng: &rng, limit: 2500, work: 60000}
	switch r.IntN(12) {
	case 0:
		g.limit = 9000
	case 1:
		g.limit = 200
	}
	g.grad = r.IntN(5) == 0
	g.params(f, m)
	old := slices.Clone(g.pool)
	ts := templates()
	for range 8 + r.IntN(32) {
		g.step(ts)
	}
	if r.IntN(12) == 0 {
		g.try((*grower).long)
	}
	if g.grad {
		g.train(f)
	} else {
		g.finish(f, old)
	}
	f.Renumber()
	return m
}

// callee grows a function for others to call.
func callee(r *rand.Rand, m *ir.Module, rng *int64) *ir.Func {
	f := m.NewFunc("called")
	g := &grower{r: r, b: ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "called"}), rng: rng, depth: 1, limit: 300, work: 5000, grad: true}
	g.key = f.Body.AddParam("", ir.T(dtype.Key))
	for range 1 + r.IntN(2) {
		g.pool = append(g.pool, f.Body.AddParam("", ir.T(dtype.F32, g.shape(1+r.IntN(2))...)))
	}
	ts := templates()
	for range 1 + r.IntN(6) {
		g.step(ts)
	}
	for i := range 1 + r.IntN(2) {
		f.Results = append(f.Results, fmt.Sprintf("r%d", i))
		f.Body.Results = append(f.Body.Results, g.pick(isFloat))
	}
	f.Renumber()
	return f
}

// params gives @step its parameters, and @init where there is state.
func (g *grower) params(f *ir.Func, m *ir.Module) {
	g.key = f.Body.AddParam("key", ir.T(dtype.Key), ir.A("role", ir.RoleKey))
	for i := range 1 + g.r.IntN(3) {
		d := g.dtype()
		feed := "normal"
		if d.IsInt() {
			feed = fmt.Sprintf("uniform_int:%d", 1+g.r.IntN(12))
		} else if d == dtype.Bool {
			feed = ""
		}
		if g.grad && i == 0 {
			d, feed = dtype.F32, "normal"
		}
		g.add(f.Body.AddParam(fmt.Sprintf("x%d", i), ir.T(d, g.anyShape()...), ir.A("role", ir.RoleInput), ir.A("feed", feed)))
	}
	if g.chance(30) {
		g.add(f.Body.AddParam("t", ir.T(dtype.I64), ir.A("role", ir.RoleStep)))
	}
	states := g.r.IntN(4)
	if g.grad {
		states = 1 + g.r.IntN(3)
	}
	if states == 0 {
		return
	}
	init := m.NewFunc("init")
	key := init.Body.AddParam("key", ir.T(dtype.Key), ir.A("role", ir.RoleKey))
	ig := &grower{r: g.r, b: ir.NewBuilder(g.b.Table, init.Body, ir.Loc{Layer: "init"}), key: key, rng: g.rng, limit: g.limit, work: g.work}
	shape := g.anyShape()
	for i := range states {
		if g.chance(50) {
			shape = g.anyShape()
		}
		d := []dtype.Type{dtype.F32, dtype.F32, dtype.F32, dtype.F32, dtype.BF16, dtype.I32, dtype.F64}[g.r.IntN(7)]
		role := []string{ir.RoleParam, ir.RoleOpt, ir.RoleBuffer}[g.r.IntN(3)]
		if g.grad {
			d, role = dtype.F32, ir.RoleParam
		}
		name := fmt.Sprintf("s%d", i)
		var v *ir.Value
		for v == nil || v.Op == nil {
			ig.try(func(ig *grower) { v = ig.of(ir.T(d, shape...)) })
			if v == nil && len(shape) == 0 {
				v = ig.number(d, 1)
			}
		}
		if g.chance(40) && len(init.Body.Results) > 0 { // read another state's initial value
			for _, w := range init.Body.Results {
				if w.Type.Equal(v.Type) && isNumber(w) {
					v = ig.op("add", []*ir.Value{v, w})
					break
				}
			}
		}
		init.Results, init.Body.Results = append(init.Results, name), append(init.Body.Results, v)
		g.add(f.Body.AddParam(name, v.Type, ir.A("role", role)))
		if g.chance(50) {
			ig.add(v)
		}
	}
	init.Renumber()
}

// finish picks results and new values of states.
func (g *grower) finish(f *ir.Func, old []*ir.Value) {
	result := func(name string, v *ir.Value) {
		f.Results, f.Body.Results = append(f.Results, name), append(f.Body.Results, v)
	}
	for _, p := range f.Body.Params {
		if !p.IsState() {
			continue
		}
		switch g.r.IntN(10) {
		case 0: // stays as it is
		case 1: // given back as it is
			result(p.Name, p)
		case 2: // any value
			g.try(func(g *grower) { result(p.Name, g.of(p.Type)) })
		case 3: // another state's old value, or a view of one
			for _, q := range f.Body.Params {
				if q != p && q.IsState() && q.Type.DType == p.Type.DType && q.Type.Len() == p.Type.Len() {
					v := q
					if !q.Type.Equal(p.Type) {
						v = g.op("reshape", []*ir.Value{q}, ir.A("shape", p.Type.Shape))
					}
					result(p.Name, v)
					break
				}
			}
		default: // an update in place
			g.try(func(g *grower) {
				v := p
				if !isNumber(p) {
					giveUp()
				}
				for range 1 + g.r.IntN(3) {
					v = g.op([]string{"add", "sub", "mul", "max"}[g.r.IntN(4)], []*ir.Value{v, g.of(p.Type)})
				}
				if g.chance(60) {
					v = g.tame(v)
				}
				if g.chance(25) { // a reader of the old value beside or after it
					g.add(v)
					g.add(g.op("sub", []*ir.Value{v, p}))
				}
				result(p.Name, v)
			})
		}
	}
	for i := range 1 + g.r.IntN(7) {
		name := fmt.Sprintf("y%d", i)
		switch {
		case g.chance(5):
			result(name, old[g.r.IntN(len(old))]) // a parameter
		case g.chance(8) && len(f.Body.Results) > 0: // once more, or another shape of it
			v := f.Body.Results[g.r.IntN(len(f.Body.Results))]
			if g.chance(50) {
				v = g.op("reshape", []*ir.Value{v}, ir.A("shape", []int64{v.Type.Len()}))
			}
			result(name, v)
		case g.chance(4): // a constant
			g.try(func(g *grower) { result(name, g.number(g.dtype(), 3)) })
		case g.chance(60): // recent
			n := len(g.pool)
			result(name, g.pool[n-1-g.r.IntN(min(n, 6))])
		default:
			result(name, g.pool[g.r.IntN(len(g.pool))])
		}
	}
	if !slices.ContainsFunc(f.Results, func(n string) bool { return n[0] == 'y' }) {
		result("y", g.pool[len(g.pool)-1])
	}
}

// train makes a loss of some values, differentiates, and updates the parameters.
func (g *grower) train(f *ir.Func) {
	var loss *ir.Value
	n := 0
	for i := len(g.pool) - 1; i >= 0 && n < 6; i-- {
		v := g.pool[i]
		if !isFloat(v) || v.Type.Len() == 0 || v.Op == nil && n > 0 {
			continue
		}
		n++
		if v.Type.DType != dtype.F32 {
			v = g.op("convert", []*ir.Value{v}, ir.A("to", dtype.F32))
		}
		s := g.op("reduce", []*ir.Value{g.op("sin", []*ir.Value{v})}, ir.A("kind", "sum"), ir.A("axes", all(v)))
		if loss == nil {
			loss = s
		} else {
			loss = g.op("add", []*ir.Value{loss, s})
		}
	}
	var xs []*ir.Value
	for _, p := range f.Body.Params {
		if p.Role() == ir.RoleParam {
			xs = append(xs, p)
		}
	}
	// Every parameter takes part.
	for _, p := range xs {
		q := g.op("mul", []*ir.Value{p, p})
		loss = g.op("add", []*ir.Value{loss, g.op("reduce", []*ir.Value{q}, ir.A("kind", "sum"), ir.A("axes", all(q)))})
	}
	grads := slices.Clone(g.b.Multi("gradient", append([]*ir.Value{loss}, xs...), nil).Results)
	clip := g.chance(30)
	if clip {
		var norm *ir.Value
		for _, d := range grads {
			q := g.op("reduce", []*ir.Value{g.op("mul", []*ir.Value{d, d})}, ir.A("kind", "sum"), ir.A("axes", all(d)))
			if norm == nil {
				norm = q
			} else {
				norm = g.op("add", []*ir.Value{norm, q})
			}
		}
		norm = g.op("rsqrt", []*ir.Value{g.op("add", []*ir.Value{norm, g.number(dtype.F32, 1)})})
		for i, d := range grads {
			grads[i] = g.op("mul", []*ir.Value{d, g.op("broadcast", []*ir.Value{norm}, ir.A("dims", []int64{}), ir.A("shape", d.Type.Shape))})
		}
	}
	lr := g.number(dtype.F32, 0.01)
	for i, p := range xs {
		f.Results = append(f.Results, p.Name)
		f.Body.Results = append(f.Body.Results, g.op("sgd", []*ir.Value{p, grads[i], lr}, ir.A("wd", 0.1)))
	}
	f.Results, f.Body.Results = append(f.Results, "loss"), append(f.Body.Results, loss)
	if g.chance(30) {
		f.Results, f.Body.Results = append(f.Results, "g0"), append(f.Body.Results, grads[0])
	}
}

func all(v *ir.Value) []int64 {
	axes := make([]int64, v.Type.Rank())
	for i := range axes {
		axes[i] = int64(i)
	}
	return axes
}
