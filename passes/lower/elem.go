package lower

import (
	"fmt"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

// body builds the statements of one kernel. Scopes nest as the kernel's loops do; a value
// is computed once in the outermost scope in which its index is known.
type body struct {
	*indexer
	p     *program
	param map[int]kern.Buf // operand index → parameter
	b     *kern.Builder
	args  []Ref
	keys  map[int][4]*kern.Expr

	scopes []*scope
	cond   *kern.Expr // loads happen only where it holds; nil: always
	err    error
	// given are results that something else computes (the chain of a contraction, a row's
	// reduction), at a fixed index.
	given map[*ir.Value]given
	// reads notes, for each operand, the flat indices at which it was loaded.
	reads map[int][]*kern.Expr
}

type given struct {
	idx []*kern.Expr
	e   *kern.Expr
}

// scope is a list of statements under construction. vars are the variables that exist
// only inside it (a strip's index, a loop's).
type scope struct {
	stmts []kern.Stmt
	vars  map[*kern.Var]bool
	memo  map[string]*kern.Expr
}

func newBody(p *program, name string, tiles int64) *body {
	bd := &body{indexer: newIndexer(), p: p, param: map[int]kern.Buf{}, b: kern.NewBuilder(name, tiles),
		keys: map[int][4]*kern.Expr{}, given: map[*ir.Value]given{}, reads: map[int][]*kern.Expr{}}
	bd.push()
	return bd
}

func (bd *body) push(vars ...*kern.Var) *scope {
	s := &scope{vars: map[*kern.Var]bool{}, memo: map[string]*kern.Expr{}}
	for _, v := range vars {
		s.vars[v] = true
	}
	bd.scopes = append(bd.scopes, s)
	return s
}

func (bd *body) pop() []kern.Stmt {
	s := bd.scopes[len(bd.scopes)-1]
	bd.scopes = bd.scopes[:len(bd.scopes)-1]
	return s.stmts
}

func (bd *body) top() *scope { return bd.scopes[len(bd.scopes)-1] }

func (bd *body) emit(stmts ...kern.Stmt) { bd.top().stmts = append(bd.top().stmts, stmts...) }

// depth is the innermost scope on whose variables the expressions depend.
func (bd *body) depth(es []*kern.Expr) int {
	d := 0
	seen := map[*kern.Expr]bool{}
	var walk func(e *kern.Expr)
	walk = func(e *kern.Expr) {
		if seen[e] {
			return
		}
		seen[e] = true
		if e.Op == kern.OpVar {
			for i := len(bd.scopes) - 1; i > d; i-- {
				if bd.scopes[i].vars[e.Var] {
					d = i
					break
				}
			}
		}
		for _, a := range e.Args {
			walk(a)
		}
	}
	for _, e := range es {
		walk(e)
	}
	return d
}

// in runs f with the scopes beyond depth d set aside, so that what it emits goes there.
func (bd *body) in(d int, f func()) {
	inner := append([]*scope{}, bd.scopes[d+1:]...)
	bd.scopes = bd.scopes[:d+1]
	f()
	bd.scopes = append(bd.scopes, inner...)
}

// bind stores e in a variable of the current scope, unless it is one already.
func (bd *body) bind(e *kern.Expr) *kern.Expr {
	if e.Op == kern.OpVar || e.Op == kern.OpConst {
		return e
	}
	v := bd.newVar("t", e.DType)
	bd.emit(kern.Let(v, e))
	return kern.Get(v)
}

func (bd *body) newVar(name string, t dtype.Type) *kern.Var {
	v := kern.NewVar(name, t)
	bd.top().vars[v] = true
	return v
}

// carried is the type in which elements of d are computed.
func carried(d dtype.Type) dtype.Type {
	if d == dtype.F16 || d == dtype.BF16 {
		return dtype.F32
	}
	return d
}

// in adds an operand to the kernel's parameters.
func (bd *body) operand(i int) kern.Buf {
	if buf, ok := bd.param[i]; ok {
		return buf
	}
	v := bd.p.leaf[i]
	t, n := v.Type.DType, v.Type.Len()
	if t == dtype.Key {
		t, n = dtype.U32, 4*n
	}
	buf := bd.b.In(fmt.Sprintf("in%d", i), t, n)
	bd.args = append(bd.args, Ref{Operand, i})
	bd.param[i] = buf
	return buf
}

func (bd *body) result(i int, t ir.Type) kern.Buf {
	bd.args = append(bd.args, Ref{Result, i})
	return bd.b.Out(fmt.Sprintf("out%d", i), t.DType, t.Len())
}

func (bd *body) workspace(i int, t dtype.Type, n int64) kern.Buf {
	bd.args = append(bd.args, Ref{Workspace, i})
	return bd.b.Out(fmt.Sprintf("work%d", i), t, n)
}

// value is the element of v at idx.
func (bd *body) value(v *ir.Value, idx []*kern.Expr) *kern.Expr {
	if len(idx) != v.Type.Rank() {
		panic(fmt.Sprintf("BUG: %d indices for %s", len(idx), v.Type))
	}
	idx = bd.internAll(idx)
	if g, ok := bd.given[v]; ok && sameIndex(g.idx, idx) {
		return g.e
	}
	deps := idx
	if bd.cond != nil {
		deps = append(append([]*kern.Expr{}, idx...), bd.cond)
	}
	d := bd.depth(deps)
	key := bd.key(v, deps)
	if e := bd.scopes[d].memo[key]; e != nil {
		return e
	}
	var e *kern.Expr
	bd.in(d, func() {
		results := bd.compute(v, idx)
		if v.Op != nil && len(results) > 1 {
			for i, r := range v.Op.Results {
				bd.top().memo[bd.key(r, deps)] = bd.bind(results[i])
			}
			e = bd.top().memo[key]
			return
		}
		e = bd.bind(results[0])
		bd.top().memo[key] = e
	})
	return e
}

func (bd *body) key(v *ir.Value, deps []*kern.Expr) string {
	k := fmt.Sprintf("%p", v)
	for _, d := range deps {
		k += fmt.Sprintf(",%p", bd.intern(d))
	}
	return k
}

func sameIndex(a, b []*kern.Expr) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (bd *body) compute(v *ir.Value, idx []*kern.Expr) []*kern.Expr {
	if i, ok := bd.p.leaves[v]; ok {
		return []*kern.Expr{bd.load(i, idx)}
	}
	op := v.Op
	switch op.Name() {
	case "reshape":
		x := op.Operands[0]
		flat := bd.flatten(idx, v.Type.Shape)
		return []*kern.Expr{bd.value(x, bd.unflatten(flat, x.Type.Shape))}
	case "constant":
		t := op.Attrs.Tensor("value")
		bits := t.Bits(0)
		switch t.DType {
		case dtype.BF16:
			return []*kern.Expr{kern.Bits(dtype.F32, bits<<16)}
		case dtype.F16:
			return []*kern.Expr{kern.F32(scalar.FromF16(uint16(bits)))}
		}
		return []*kern.Expr{kern.Bits(t.DType, bits)}
	case "reduce":
		panic(fmt.Sprintf("BUG: reduction %%%s read at another index than its row", v.Name))
	}
	return op.Def.Elem(&elemCtx{bd, op}, op, idx)
}

func (bd *body) load(i int, idx []*kern.Expr) *kern.Expr {
	v := bd.p.leaf[i]
	flat := bd.flatten(idx, v.Type.Shape)
	bd.reads[i] = append(bd.reads[i], flat)
	buf := bd.operand(i)
	if bd.cond == nil {
		return widen(buf.At(flat))
	}
	return widen(buf.AtIf(flat, bd.cond, kern.Zero(buf.DType)))
}

func widen(e *kern.Expr) *kern.Expr {
	if e.DType == dtype.F16 || e.DType == dtype.BF16 {
		return kern.Convert(e, dtype.F32)
	}
	return e
}

// narrow is e, carried, in its type in memory.
func narrow(e *kern.Expr, t dtype.Type) *kern.Expr {
	if e.DType != t {
		return kern.Convert(e, t)
	}
	return e
}

// elemCtx is the body's side of ir.ElemCtx for one op.
type elemCtx struct {
	bd *body
	op *ir.Op
}

func (c *elemCtx) Arg(i int, idx ...*kern.Expr) *kern.Expr {
	return c.bd.value(c.op.Operands[i], idx)
}

func (c *elemCtx) ArgIf(cond *kern.Expr, i int, other *kern.Expr, idx ...*kern.Expr) *kern.Expr {
	bd := c.bd
	if b, ok := cond.IsConst(); ok {
		if b == 1 {
			return c.Arg(i, idx...)
		}
		return other
	}
	cond = bd.bind(cond)
	outer := bd.cond
	bd.cond = cond
	if outer != nil {
		bd.cond = bd.bind(kern.And(outer, cond))
	}
	x := bd.value(c.op.Operands[i], idx)
	bd.cond = outer
	return kern.Select(cond, x, other)
}

func (c *elemCtx) KeyWord(i, w int) *kern.Expr { return c.bd.keyWords(c.op.Operands[i])[w] }

func (bd *body) keyWords(v *ir.Value) [4]*kern.Expr {
	i, ok := bd.p.leaves[v]
	if !ok {
		panic("BUG: a key that is computed inside a program")
	}
	if w, ok := bd.keys[i]; ok {
		return w
	}
	var w [4]*kern.Expr
	buf := bd.operand(i)
	bd.reads[i] = append(bd.reads[i], kern.I64(0))
	bd.in(0, func() {
		for j := range w {
			w[j] = bd.bind(buf.At(kern.I64(int64(j))))
		}
	})
	bd.keys[i] = w
	return w
}

func (c *elemCtx) Loop(n int64, init []*kern.Expr, step func(i *kern.Expr, acc []*kern.Expr) []*kern.Expr) []*kern.Expr {
	bd := c.bd
	accs := make([]*kern.Var, len(init))
	get := make([]*kern.Expr, len(init))
	for i, e := range init {
		accs[i] = bd.newVar("acc", e.DType)
		bd.emit(kern.Let(accs[i], e))
		get[i] = kern.Get(accs[i])
	}
	v := kern.NewVar("k", dtype.I64)
	s := bd.push(v)
	// What reads an accumulator belongs to the loop.
	for _, a := range accs {
		s.vars[a] = true
	}
	next := step(kern.Get(v), get)
	tmp := make([]*kern.Expr, len(next))
	for i, e := range next {
		tmp[i] = e
		if len(next) > 1 {
			tmp[i] = bd.bind(e)
		}
	}
	for i := range next {
		bd.emit(kern.Let(accs[i], tmp[i]))
	}
	stmts := bd.pop()
	bd.emit(kern.Range(v, kern.I64(n), stmts...))
	return get
}

func (c *elemCtx) Random(i int, rng uint32, shape []int64, idx []*kern.Expr) *kern.Expr {
	bd := c.bd
	w := bd.keyWords(c.op.Operands[i])
	cols, col, row := int64(1), kern.I64(0), kern.I64(0)
	if n := len(shape); n > 0 {
		cols, col = shape[n-1], idx[n-1]
		row = bd.flatten(idx[:n-1], shape[:n-1])
		// Where rows are whole blocks, a flat index is a row of its own.
		if cols%kern.Lanes == 0 {
			row, col, cols = kern.I64(0), bd.flatten(idx, shape), kern.Lanes
		}
	}
	block := kern.Mul(row, kern.I64(scalar.RowBlocks(cols)))
	if base, lane := blockBase(col); base != nil {
		block, col = kern.Add(block, base), lane
	}
	k := kern.KeyWords{SeedLo: w[0], SeedHi: w[1], Step: w[2], Micro: w[3]}
	return kern.Random(k, rng, block, col)
}

// blockBase cuts a column base·64 + lane, with base uniform, into base's block and lane's
// column: the form in which a strip draws 64 words with 16 counters.
func blockBase(col *kern.Expr) (base, lane *kern.Expr) {
	if col.Op != kern.OpAdd {
		return nil, nil
	}
	for i, a := range col.Args {
		if n, ok := multiple(a); ok && n%kern.Lanes == 0 {
			return kern.Div(a, kern.I64(kern.Lanes)), col.Args[1-i]
		}
	}
	return nil, nil
}

// multiple is a constant that divides e.
func multiple(e *kern.Expr) (int64, bool) {
	if b, ok := e.IsConst(); ok {
		return int64(b), true
	}
	if e.Op == kern.OpMul {
		for _, a := range e.Args {
			if b, ok := a.IsConst(); ok {
				return int64(b), true
			}
		}
	}
	if e.Op == kern.OpAdd {
		a, okA := multiple(e.Args[0])
		b, okB := multiple(e.Args[1])
		if okA && okB {
			for b != 0 {
				a, b = b, a%b
			}
			return a, true
		}
	}
	return 0, false
}

func (c *elemCtx) Round(x *kern.Expr, d dtype.Type) *kern.Expr {
	if d == dtype.F16 || d == dtype.BF16 {
		return kern.Convert(kern.Convert(x, d), dtype.F32)
	}
	return x
}
