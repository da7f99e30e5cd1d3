package emit

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// Body emits statements at the end of the current block.
func (f *Func) Body(stmts []kern.Stmt) {
	for _, s := range stmts {
		f.stmt(s)
	}
}

func (f *Func) stmt(s kern.Stmt) {
	switch s := s.(type) {
	case *kern.Assign:
		f.assign(s)
	case *kern.Store:
		memo := values{}
		f.store(f.ptrs[s.Param], f.Params[s.Param].DType, f.Params[s.Param].Len, s.Index, s.Value, s.Cond, memo)
	case *kern.StoreLocal:
		f.store(f.localPtr(s.Local), s.Local.DType, s.Local.Len, s.Index, s.Value, s.Cond, values{})
	case *kern.For:
		f.loop(s)
	case *kern.While:
		f.while(s)
	case *kern.If:
		f.branch(s)
	case *kern.Strip:
		if f.Device != nil {
			f.Device.Strip(f, s)
			return
		}
		f.strip(s)
	default:
		panic(fmt.Sprintf("BUG: statement %T", s))
	}
}

func (f *Func) assign(s *kern.Assign) {
	x := f.eval(s.Value, values{})
	bounds, ok := f.spanOf(s.Value)
	f.setSpan(s.Var, bounds, ok)
	if f.lane.w == 1 {
		f.setScalar(s.Var, x.s)
		return
	}
	// The slot serves reads from inside of loops and after them; on a straight line
	// the operand itself is kept, which knows whether it is uniform or affine.
	f.Block.NewStore(f.vector(x), f.slot(s.Var, true).ptr)
	f.lane.known[s.Var] = *x
}

func (f *Func) loop(s *kern.For) {
	memo := values{}
	lo, hi := f.eval(s.Lo, memo).s, f.eval(s.Hi, memo).s
	if lo == nil || hi == nil {
		panic(fmt.Sprintf("BUG: bounds of loop over %q differ between lanes", s.Var.Name))
	}
	f.forget(s.Body)
	from, ok1 := f.spanOf(s.Lo)
	to, ok2 := f.spanOf(s.Hi)
	f.setSpan(s.Var, span{from.lo, max(from.lo, to.hi-1)}, ok1 && ok2)
	f.Loop(lo, hi, s.Step, func(i value.Value) {
		f.bound[s.Var] = operand{t: dtype.I64, s: i}
		f.Body(s.Body)
	})
	delete(f.bound, s.Var)
	f.setSpan(s.Var, span{}, false)
	f.forget(s.Body)
}

// forget drops what is known of variables that body assigns.
func (f *Func) forget(body []kern.Stmt) {
	for _, s := range body {
		switch s := s.(type) {
		case *kern.Assign:
			delete(f.lane.known, s.Var)
			f.setSpan(s.Var, span{}, false)
		case *kern.For:
			f.forget(s.Body)
		case *kern.While:
			f.forget(s.Pre)
			f.forget(s.Body)
		case *kern.If:
			f.forget(s.Then)
			f.forget(s.Else)
		case *kern.Strip:
			f.forget(s.Body)
			for _, r := range s.Reds {
				f.setSpan(r.Var, span{}, false)
			}
		}
	}
}

func (f *Func) while(s *kern.While) {
	head, body, exit := f.newBlock(), f.newBlock(), f.newBlock()
	f.forget([]kern.Stmt{s})
	f.Block.NewBr(head)
	f.Block = head
	f.Body(s.Pre)
	f.Block.NewCondBr(f.eval(s.Cond, values{}).s, body, exit)
	f.Block = body
	f.Body(s.Body)
	f.Block.NewBr(head)
	f.Block = exit
	f.forget([]kern.Stmt{s})
}

func (f *Func) branch(s *kern.If) {
	then, other, exit := f.newBlock(), f.newBlock(), f.newBlock()
	f.Block.NewCondBr(f.eval(s.Cond, values{}).s, then, other)
	f.Block = then
	f.Body(s.Then)
	f.Block.NewBr(exit)
	f.forget(s.Then)
	f.Block = other
	f.Body(s.Else)
	f.Block.NewBr(exit)
	f.Block = exit
	f.forget([]kern.Stmt{s})
}

func (f *Func) store(p value.Value, t dtype.Type, n int64, index, val, cond *kern.Expr, memo values) {
	if n == 0 {
		return // never executed
	}
	idx, x := f.eval(index, memo), f.eval(val, memo)
	var c *operand
	if cond != nil {
		if c = f.eval(cond, memo); c.constant && c.bits != 0 {
			c = nil
		}
	}
	size := t.Size()
	if f.lane.w == 1 {
		put := func() {
			st := f.Block.NewStore(f.toMem(t, x.s), f.elemPtr(p, t, idx.s))
			st.Align = ir.Align(size)
		}
		if c != nil {
			one := put
			put = func() { f.When(c.s, one) }
		}
		if f.Device != nil && !f.lane.thread {
			f.Device.Store(f, put)
		} else {
			put()
		}
		return
	}
	mask := f.lane.mask
	if c != nil {
		mask = f.and(mask, f.vector(c))
	}
	v := f.toMem(t, f.vector(x))
	mem := Vec(Mem(t), f.lane.w)
	if idx.s != nil && idx.stride == 1 {
		ptr := f.Block.NewBitCast(f.elemPtr(p, t, idx.s), types.NewPointer(mem))
		if mask == nil {
			f.Block.NewStore(v, ptr).Align = ir.Align(size)
			return
		}
		f.Call("llvm.masked.store."+suffix(mem), ptr.Type(), types.Void, v, ptr, I32(size), mask)
		return
	}
	if mask == nil {
		mask = Literal(dtype.Bool, f.lane.w, 1)
	}
	ptrs := f.Block.NewGetElementPtr(Mem(t), p, f.indices(index, idx))
	f.Call("llvm.masked.scatter."+suffix(mem), ptrs.Type(), types.Void, v, ptrs, I32(size), mask)
}

// body64 is a strip body ready to be emitted for some lanes.
type body64 struct {
	f       *Func
	w       int
	v       *kern.Var
	stmts   []kern.Stmt
	reds    []kern.Red
	hoisted map[*kern.Expr]operand
	random  []*kern.Expr
	words   map[*kern.Expr]*randomBlock
	aligned bool // base is a multiple of w
}

// at emits the body for lanes base … base+w-1, of which lane 0 is lane offset of its
// block of 64, and gives the values of the reductions.
func (s *body64) at(base, offset, mask value.Value) []value.Value {
	f := s.f
	f.lane = lane{w: s.w, mask: mask, known: map[*kern.Var]operand{}, hoisted: s.hoisted, random: s.words, offset: offset}
	f.bound[s.v] = operand{t: dtype.I64, s: base, stride: 1, aligned: s.aligned}
	f.Body(s.stmts)
	memo := values{}
	var out []value.Value
	for _, r := range s.reds {
		out = append(out, f.vector(f.eval(r.Value, memo)))
	}
	delete(f.bound, s.v)
	f.lane = lane{w: 1}
	return out
}

// block emits the random words of the block of 64 that starts at base.
func (s *body64) block(base value.Value) {
	f := s.f
	for _, e := range s.random {
		f.bound[s.v] = operand{t: dtype.I64, s: base}
		f.lane = lane{w: 1, hoisted: s.hoisted}
		var a [6]value.Value
		memo := values{}
		for i, x := range e.Args {
			a[i] = f.eval(x, memo).s
		}
		f.lane = lane{w: 1}
		delete(f.bound, s.v)
		words := f.RandomBlock(uint32(e.Bits), [4]value.Value(a[:4]), a[4], a[5])
		to := s.words[e].words
		for i, w := range words {
			p := f.Block.NewGetElementPtr(types.NewArray(64, types.I32), to, I64(0), I64(int64(16*i)))
			f.Block.NewStore(w, f.Block.NewBitCast(p, types.NewPointer(w.Type()))).Align = 64
		}
	}
}

// prepare analyses a strip body and emits what no lane changes.
func (f *Func) prepare(v *kern.Var, n *operand, stmts []kern.Stmt, reds []kern.Red) *body64 {
	s := &body64{f: f, w: f.Width, v: v, stmts: stmts, reds: reds, aligned: true,
		hoisted: map[*kern.Expr]operand{}, words: map[*kern.Expr]*randomBlock{}}
	a := newAnalysis(v, stmts)
	if a.serial {
		s.w = min(4*f.Width, kern.Lanes) // several chains side by side hide the latency of one
		for n.constant && s.w > f.Width && int64(n.bits) <= int64(s.w/2) {
			s.w /= 2
		}
	}
	f.dropLanes()
	memo := values{}
	a.roots(stmts, reds, func(e *kern.Expr, inLoop bool) { f.hoist(a, e, inLoop, s, memo) })
	return s
}

// dropLanes forgets the places of per-lane variables, which live in one strip and
// have its width.
func (f *Func) dropLanes() {
	for v, s := range f.slots {
		if s.lane {
			delete(f.slots, v)
		}
	}
}

// hoist evaluates the largest parts of e that are the same for all lanes and
// blocks. Parts that are read only inside of a loop, which may not run, are
// hoisted if they read no memory.
func (f *Func) hoist(a *analysis, e *kern.Expr, inLoop bool, s *body64, memo values) {
	at := visit{e, inLoop}
	if _, ok := s.hoisted[e]; ok || len(e.Args) == 0 || a.visited[at] {
		return
	}
	a.visited[at] = true
	quiet := !inLoop || !a.reads(e)
	if a.invariant(e) && quiet {
		s.hoisted[e] = *f.eval(e, memo)
		return
	}
	if e.Op == kern.OpRandom && a.blockwise(e) && quiet && s.words[e] == nil {
		s.words[e] = &randomBlock{words: f.Alloca(types.NewArray(64, types.I32))}
		s.random = append(s.random, e)
	}
	for _, x := range e.Args {
		f.hoist(a, x, inLoop, s, memo)
	}
}

// analysis tells what a strip body changes.
type analysis struct {
	v        *kern.Var
	assigned map[*kern.Var]bool
	params   map[int]bool
	locals   map[*kern.Local]bool
	serial   bool // holds a loop
	memo     map[*kern.Expr]bool
	readMemo map[*kern.Expr]bool
	visited  map[visit]bool
}

// visit is an expression, met inside or outside of the body's loops.
type visit struct {
	e      *kern.Expr
	inLoop bool
}

func newAnalysis(v *kern.Var, stmts []kern.Stmt) *analysis {
	a := &analysis{v: v, assigned: map[*kern.Var]bool{v: true}, params: map[int]bool{}, locals: map[*kern.Local]bool{},
		memo: map[*kern.Expr]bool{}, readMemo: map[*kern.Expr]bool{}, visited: map[visit]bool{}}
	a.scan(stmts)
	return a
}

func (a *analysis) scan(stmts []kern.Stmt) {
	for _, s := range stmts {
		switch s := s.(type) {
		case *kern.Assign:
			a.assigned[s.Var] = true
		case *kern.Store:
			a.params[s.Param] = true
		case *kern.StoreLocal:
			a.locals[s.Local] = true
		case *kern.For:
			a.serial = true
			a.assigned[s.Var] = true
			a.scan(s.Body)
		}
	}
}

// roots visits the expressions of a body in order.
func (a *analysis) roots(stmts []kern.Stmt, reds []kern.Red, see func(e *kern.Expr, inLoop bool)) {
	var walk func(stmts []kern.Stmt, inLoop bool)
	walk = func(stmts []kern.Stmt, inLoop bool) {
		for _, s := range stmts {
			switch s := s.(type) {
			case *kern.Assign:
				see(s.Value, inLoop)
			case *kern.Store:
				seeAll(see, inLoop, s.Index, s.Value, s.Cond)
			case *kern.StoreLocal:
				seeAll(see, inLoop, s.Index, s.Value, s.Cond)
			case *kern.For:
				seeAll(see, inLoop, s.Lo, s.Hi)
				walk(s.Body, true)
			}
		}
	}
	walk(stmts, false)
	for _, r := range reds {
		see(r.Value, false)
	}
}

func seeAll(see func(e *kern.Expr, inLoop bool), inLoop bool, es ...*kern.Expr) {
	for _, e := range es {
		if e != nil {
			see(e, inLoop)
		}
	}
}

// invariant tells whether e has one value for the whole strip.
func (a *analysis) invariant(e *kern.Expr) bool {
	if r, ok := a.memo[e]; ok {
		return r
	}
	r := true
	switch e.Op {
	case kern.OpVar:
		r = !a.assigned[e.Var]
	case kern.OpLoad:
		r = !a.params[e.Param]
	case kern.OpLocal:
		r = !a.locals[e.Local]
	}
	for _, x := range e.Args {
		r = r && a.invariant(x)
	}
	a.memo[e] = r
	return r
}

// reads tells whether e reads memory.
func (a *analysis) reads(e *kern.Expr) bool {
	if r, ok := a.readMemo[e]; ok {
		return r
	}
	r := e.Op == kern.OpLoad || e.Op == kern.OpLocal
	for _, x := range e.Args {
		r = r || a.reads(x)
	}
	a.readMemo[e] = r
	return r
}

// blockwise tells whether a random op's 64 lanes are one block: its column is the
// strip's variable, plus a multiple of 64 that no lane changes.
func (a *analysis) blockwise(e *kern.Expr) bool {
	for _, x := range e.Args[:5] {
		if !a.invariant(x) {
			return false
		}
	}
	col := e.Args[5]
	isVar := func(x *kern.Expr) bool { return x.Op == kern.OpVar && x.Var == a.v }
	if isVar(col) {
		return true
	}
	if col.Op != kern.OpAdd {
		return false
	}
	x, y := col.Args[0], col.Args[1]
	return isVar(x) && a.invariant(y) && aligned(y) || isVar(y) && a.invariant(x) && aligned(x)
}

// weight is the number of operations of a body, at most limit.
func weight(stmts []kern.Stmt, reds []kern.Red, limit int) int {
	seen := map[*kern.Expr]bool{}
	n := 0
	var count func(e *kern.Expr)
	count = func(e *kern.Expr) {
		if n >= limit || seen[e] {
			return
		}
		seen[e] = true
		if len(e.Args) > 0 {
			n++
		}
		for _, x := range e.Args {
			count(x)
		}
	}
	new(analysis).roots(stmts, reds, func(e *kern.Expr, _ bool) { count(e) })
	return n
}

// Thread emits a strip's body for the one lane i, run by one of a device's threads,
// and gives the values of its reductions. words has, for BlockRandoms whose words were
// drawn before, pointers to arrays of 64 i32, of which the lane takes number at.
func (f *Func) Thread(s *kern.Strip, i value.Value, words map[*kern.Expr]value.Value, at value.Value) []value.Value {
	f.dropLanes()
	f.lane.thread = true
	f.lane.random = map[*kern.Expr]*randomBlock{}
	for e, p := range words {
		f.lane.random[e] = &randomBlock{words: p}
	}
	f.lane.offset = at
	f.bound[s.Var] = operand{t: dtype.I64, s: i}
	f.Body(s.Body)
	memo := values{}
	var out []value.Value
	for _, r := range s.Reds {
		out = append(out, f.eval(r.Value, memo).s)
	}
	delete(f.bound, s.Var)
	f.lane = lane{w: 1}
	return out
}

// Eval is the value of an expression outside of strips.
func (f *Func) Eval(e *kern.Expr) value.Value { return f.eval(e, values{}).s }

// Join is one step of a reduction, Set what gives its variable the result.
func (f *Func) Join(r kern.Red, x, y value.Value) value.Value { return f.join(r, x, y) }
func (f *Func) Set(v *kern.Var, x value.Value) {
	f.setScalar(v, x)
	f.setSpan(v, span{}, false)
}

// reduction is one reduction of a strip: 64 partials, in memory or, in the
// unrolled loop, in variables of one vector each.
type reduction struct {
	red    kern.Red
	mem    value.Value   // [64 x T]*, bools as bytes
	direct []value.Value // <w x T>*, one per vector of a block; nil where not unrolled
}

func (f *Func) partial(r *reduction, offset value.Value, w int) value.Value {
	t := Mem(r.red.Var.DType)
	p := f.Block.NewGetElementPtr(types.NewArray(kern.Lanes, t), r.mem, I64(0), offset)
	return f.Block.NewBitCast(p, types.NewPointer(Vec(t, w)))
}

// join emits one step of a reduction.
func (f *Func) join(r kern.Red, x, y value.Value) value.Value {
	w, _ := lanes(x.Type())
	v := &kern.Expr{DType: r.Var.DType}
	e := &kern.Expr{Op: r.Kind.Op(), DType: r.Var.DType, Args: []*kern.Expr{v, v}}
	o := &operand{t: r.Var.DType}
	return f.operation(e, []*operand{o, o}, []value.Value{x, y}, w)
}

// accumulate joins values to the partials at p, in memory or in a variable.
func (f *Func) accumulate(r kern.Red, p, x, mask value.Value) {
	t := p.Type().(*types.PointerType).ElemType
	bytes := !t.Equal(x.Type()) // bools in memory
	old := value.Value(f.Block.NewLoad(t, p))
	if bytes {
		old = f.fromMem(r.Var.DType, old)
	}
	now := f.join(r, old, x)
	if mask != nil {
		now = f.Block.NewSelect(mask, now, old)
	}
	if bytes {
		now = f.toMem(r.Var.DType, now)
	}
	f.Block.NewStore(now, p)
}

func (f *Func) strip(s *kern.Strip) {
	n := f.eval(s.N, values{})
	length, ok := f.spanOf(s.N)
	f.setSpan(s.Var, span{0, max(length.hi-1, 0)}, ok)
	defer f.setSpan(s.Var, span{}, false)
	var reds []*reduction
	for _, r := range s.Reds {
		x := &reduction{red: r, mem: f.Alloca(types.NewArray(kern.Lanes, Mem(r.Var.DType)))}
		t := r.Var.DType
		if t == dtype.Bool {
			t = dtype.U8
		}
		start := Literal(t, kern.Lanes, r.Kind.Start(r.Var.DType))
		f.Block.NewStore(start, f.Block.NewBitCast(x.mem, types.NewPointer(start.Type()))).Align = 64
		reds = append(reds, x)
	}
	switch {
	case !n.constant:
		f.When(f.Block.NewICmp(enum.IPredSGT, n.s, I64(0)), func() { f.lanes(s, nil, n, reds) })
	case int64(n.bits) > 0:
		f.lanes(s, nil, n, reds)
	}
	for _, r := range reds {
		f.tree(r)
	}
}

// lanes emits a strip of n ≥ 1 lanes from lo on, a multiple of 64 (nil: 0).
func (f *Func) lanes(s *kern.Strip, lo value.Value, n *operand, reds []*reduction) {
	b := f.prepare(s.Var, n, s.Body, s.Reds)
	step := int64(b.w)
	if len(reds) > 0 || len(b.random) > 0 {
		step = kern.Lanes // go by blocks of 64
	}
	from := func(x value.Value) value.Value {
		if lo == nil {
			return x
		}
		return f.Block.NewAdd(lo, x)
	}
	// Full steps, then the rest in masked vectors.
	var full value.Value
	rest := true
	if n.constant {
		full = I64(int64(n.bits) / step * step)
		rest = int64(n.bits)%step != 0
	} else {
		full = f.Block.NewAnd(n.s, I64(-step))
	}
	start, end, hi := from(I64(0)), from(full), from(n.s)
	if !n.constant || int64(n.bits) >= step {
		f.fullSteps(b, start, end, step, reds, weight(s.Body, s.Reds, 1000))
	}
	if !rest {
		return
	}
	tail := func() {
		b.block(end)
		one := func(base, offset value.Value) {
			var mask value.Value
			if !n.constant || int64(n.bits)%int64(b.w) != 0 {
				left := f.Block.NewTrunc(f.Block.NewSub(hi, base), types.I32)
				mask = f.Block.NewICmp(enum.IPredSLT, Iota(types.I32, b.w, 1), f.splat(left, b.w))
			}
			for i, x := range b.at(base, offset, mask) {
				f.accumulate(reds[i].red, f.partial(reds[i], offset, b.w), x, mask)
			}
		}
		if step == int64(b.w) {
			one(end, I64(0))
			return
		}
		f.Loop(end, hi, int64(b.w), func(base value.Value) { one(base, f.Block.NewSub(base, end)) })
	}
	if n.constant {
		tail()
	} else {
		f.When(f.Block.NewICmp(enum.IPredSLT, end, hi), tail)
	}
}

// fullSteps emits the loop over whole steps. With reductions and a small body the
// vectors of a block are unrolled and their partials stay in registers.
func (f *Func) fullSteps(b *body64, start, end value.Value, step int64, reds []*reduction, weight int) {
	vectors := int(step) / b.w
	if vectors*weight > 240 && vectors > 1 {
		f.Loop(start, end, step, func(base value.Value) {
			b.block(base)
			f.Loop(I64(0), I64(step), int64(b.w), func(offset value.Value) {
				for i, x := range b.at(f.Block.NewAdd(base, offset), offset, nil) {
					f.accumulate(reds[i].red, f.partial(reds[i], offset, b.w), x, nil)
				}
			})
		})
		return
	}
	for _, r := range reds {
		t := Type(r.red.Var.DType, b.w)
		for range vectors {
			p := f.entry.NewAlloca(t)
			f.Block.NewStore(Literal(r.red.Var.DType, b.w, r.red.Kind.Start(r.red.Var.DType)), p)
			r.direct = append(r.direct, p)
		}
	}
	f.Loop(start, end, step, func(base value.Value) {
		b.block(base)
		for i := range vectors {
			offset := I64(int64(i * b.w))
			at := base
			if i > 0 {
				at = f.Block.NewAdd(base, offset)
			}
			for j, x := range b.at(at, offset, nil) {
				f.accumulate(reds[j].red, reds[j].direct[i], x, nil)
			}
		}
	})
	for _, r := range reds {
		for i, p := range r.direct {
			x := f.toMem(r.red.Var.DType, f.Block.NewLoad(Type(r.red.Var.DType, b.w), p))
			f.Block.NewStore(x, f.partial(r, I64(int64(i*b.w)), b.w))
		}
	}
}

// tree joins the 64 partials pairwise and sets the reduction's variable.
func (f *Func) tree(r *reduction) {
	all := Vec(Mem(r.red.Var.DType), kern.Lanes)
	x := f.fromMem(r.red.Var.DType, f.Block.NewLoad(all, f.Block.NewBitCast(r.mem, types.NewPointer(all))))
	for w := kern.Lanes / 2; w > 0; w /= 2 {
		half := func(from int) value.Value {
			if w == 1 {
				return f.Block.NewExtractElement(x, I32(int64(from)))
			}
			return f.Block.NewShuffleVector(x, Poison(x.Type()), IotaFrom(types.I32, w, int64(from), 1))
		}
		lo, hi := half(0), half(w)
		x = f.join(r.red, lo, hi)
	}
	f.setScalar(r.red.Var, x)
	f.setSpan(r.red.Var, span{}, false)
}

// Lanes emits the statements of a strip body over v for the w lanes v = n … n+w-1
// of one row, into the current block (f.Block; it may be another one after). mask
// (w bools) says which lanes exist; nil: all. Other variables get their values by
// Bind before: a scalar for uniform ones, a vector of w for per-lane ones. Random
// ops cost one Philox for each lane here; where there are any, prefer Row.
func (f *Func) Lanes(body []kern.Stmt, v *kern.Var, n value.Value, w int, mask value.Value) {
	f.dropLanes()
	b := &body64{f: f, w: w, v: v, stmts: body}
	b.at(n, I64(0), mask)
}

// Row emits the statements of a strip body over v for the lanes v = lo … hi-1 of
// one row, lo being a multiple of 64 (i64 scalars). If acc is not nil, it is set for
// each lane to element v-lo of the dense row at p (a pointer to acc's element type).
func (f *Func) Row(body []kern.Stmt, v *kern.Var, lo, hi value.Value, acc *kern.Var, p value.Value) {
	n := len(f.Params)
	if acc != nil { // the row is one more parameter
		start := kern.NewVar("lo", dtype.I64)
		f.Bind(start, lo)
		f.Params = append(f.Params[:n:n], kern.Param{Name: "acc", DType: acc.DType, Len: 1 << 40})
		f.ptrs = append(f.ptrs[:n:n], p)
		buf := kern.Buf{Param: n, DType: acc.DType}
		at := kern.Sub(kern.Get(v), kern.Get(start))
		body = append([]kern.Stmt{kern.Let(acc, buf.At(at))}, body...)
	}
	s := &kern.Strip{Var: v, Body: body}
	count := f.Block.NewSub(hi, lo)
	f.When(f.Block.NewICmp(enum.IPredSGT, count, I64(0)), func() {
		f.lanes(s, lo, &operand{t: dtype.I64, s: count}, nil)
	})
	f.Params, f.ptrs = f.Params[:n], f.ptrs[:n]
}
