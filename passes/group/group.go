// Package group joins ops into the units that become kernels, as `fused` ops: chains of
// elementwise ops, row programs (softmax, norms, losses), reductions with their producers,
// contractions with their epilogues. The planner's units are then what will run, at its true cost.
//
// An intermediate value with one reader is never worth saving or recomputing by itself, so it is
// joined to its reader. A full-size value with several readers stays a unit of its own, which the
// planner may save or recompute, with one exception: what can be computed again elementwise from one other
// full-size value (an activation from its input, a normalised row from the row and its statistics)
// is computed again inside each reader, which reads just as many bytes and keeps nothing. A value that the
// model has marked (ir.Value.Marked) is the result of a unit, whatever would be cheaper.
package group

import (
	"container/heap"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/passes/lower"
	"reprise/passes/pinned"
)

const (
	maxOps    = 160 // ops in one unit, so that a kernel stays small enough to compile fast
	maxLeaves = 28  // buffers that one unit reads
	// smallShare: a value of at most this share of a unit's domain (a row statistic) may be
	// an additional result of it.
	smallShare = 16
)

// Run groups the ops of every function and control-flow region.
func Run(m *ir.Module, t *ir.Table) (err error) {
	defer diag.Catch(&err)
	for _, f := range m.Funcs {
		var blocks []*ir.Block
		var collect func(b *ir.Block)
		collect = func(b *ir.Block) {
			blocks = append(blocks, b)
			for _, op := range b.Ops {
				if op.Name() != "fused" {
					for _, r := range op.Regions {
						if isControl(op) {
							collect(r)
						}
					}
				}
			}
		}
		collect(f.Body)
		for _, b := range blocks {
			newGrouper(b, t).run()
		}
		f.Renumber()
	}
	return nil
}

func isControl(op *ir.Op) bool {
	switch op.Name() {
	case "while", "if", "case":
		return true
	}
	return false
}

// unit is a group under construction.
type unit struct {
	ops    []*ir.Op // members, later ones first
	root   *ir.Op
	outs   []*ir.Value
	domain []int64 // shape of the full iteration space
	split  int     // leading dimensions that are rows, -1: no reductions
	column bool    // root is a reduction with a kernel of its own
	contr  *ir.Op
	index  bool // holds an op that reads at other indices than its own
	leaves int
}

type grouper struct {
	b     *ir.Block
	t     *ir.Table
	pos   map[*ir.Op]int
	users map[*ir.Value][]*ir.Op
	isRes map[*ir.Value]bool
	// again: the op is computed again inside each reader.
	again map[*ir.Op]bool
	src   map[*ir.Op]*ir.Value // the one full-size value that an `again` op is made of, or nil
	mem   map[*ir.Value]bool   // must be in memory: read by an op that is no program, or returned
	made  map[*ir.Op]*ir.Op    // decisions (passes/pinned): made once and read by all, so each ends its unit
	unit  map[*ir.Op]*unit
	drawn map[*ir.Op]bool // a unit has it
	// heavy is the last op that an op waits for, itself included, that is no mere part of a program: a contraction, a
	// kernel of its own. -1: none.
	heavy map[*ir.Op]int
	after map[*ir.Op]*ir.Op // the next op with an effect, of one that has one
}

func newGrouper(b *ir.Block, t *ir.Table) *grouper {
	g := &grouper{b: b, t: t, pos: map[*ir.Op]int{}, users: map[*ir.Value][]*ir.Op{}, isRes: map[*ir.Value]bool{},
		again: map[*ir.Op]bool{}, src: map[*ir.Op]*ir.Value{}, mem: map[*ir.Value]bool{}, unit: map[*ir.Op]*unit{},
		made: pinned.Decisions(b), drawn: map[*ir.Op]bool{}, heavy: map[*ir.Op]int{},
		after: map[*ir.Op]*ir.Op{}}
	var last *ir.Op // with an effect
	for i, op := range b.Ops {
		g.pos[op] = i
		if op.Effect() != ir.EffectNone {
			if last != nil {
				g.after[last] = op
			}
			last = op
		}
		g.heavy[op] = -1
		for _, v := range op.Operands {
			if h, ok := g.heavy[v.Op]; ok {
				g.heavy[op] = max(g.heavy[op], h)
			}
		}
		if op.Name() == "contract" || !fusible(op) && !lower.IsConstant(op) {
			g.heavy[op] = i
		}
		for j, v := range op.Operands {
			if !slices.Contains(op.Operands[:j], v) {
				g.users[v] = append(g.users[v], op)
			}
		}
	}
	for _, v := range b.Results {
		g.isRes[v] = true
	}
	return g
}

// fusible ops may be members of a unit.
func fusible(op *ir.Op) bool {
	if op.Effect() != ir.EffectNone || len(op.Regions) > 0 || len(op.Results) != 1 || !lower.Fusible(op) {
		return false
	}
	switch op.Name() {
	case "contract", "reduce", "constant", "reshape":
		return true
	}
	return elementwise(op) || lightIndex(op)
}

// elementwise ops read each operand at the result's own index.
func elementwise(op *ir.Op) bool {
	if op.Family() != "elementwise" && op.Family() != "random" || op.Def.Elem == nil {
		return false
	}
	for _, v := range op.Operands {
		if v.Type.Rank() != 0 && !slices.Equal(v.Type.Shape, op.Out(0).Shape) {
			return false
		}
	}
	return true
}

// lightIndex ops compute each element from one element of an operand, at another index.
func lightIndex(op *ir.Op) bool {
	switch op.Name() {
	case "broadcast", "iota", "transpose", "slice", "pad", "concat", "reverse", "take", "dynamic_slice", "dynamic_update_slice", "one_hot":
		return op.Def.Elem != nil
	}
	return false
}

// cheap ops cost about as much as reading their operand.
func cheap(op *ir.Op) bool {
	switch op.Name() {
	case "add", "sub", "mul", "neg", "abs", "max", "min", "select", "compare", "and", "or", "xor", "not", "convert",
		"clamp", "sign", "floor", "ceil", "fma", "relu", "bitcast", "shl", "shr_logical", "shr_arith", "is_finite",
		"constant", "iota", "broadcast", "reshape":
		return true
	}
	return false
}

func trivial(op *ir.Op) bool {
	switch op.Name() {
	case "constant":
		return !lower.IsConstant(op)
	case "iota", "broadcast", "reshape":
		return true
	}
	return false
}

// stays: op ends its unit, because its result is a decision, or marked by the model.
func (g *grouper) stays(op *ir.Op) bool { return g.made[op] != nil || op.Results[0].Marked() }

// drawn ops make random elements of a key alone.
func drawn(op *ir.Op) bool {
	return op.Family() == "random" && len(op.Operands) == 1 && op.In(0).DType == dtype.Key
}

// classify finds the ops that are computed again in each reader.
func (g *grouper) classify() {
	for _, op := range g.b.Ops {
		if !fusible(op) || g.stays(op) {
			continue
		}
		if drawn(op) {
			// A mask is drawn again by each reader: it takes no memory beyond a moment's.
			g.again[op] = true
			continue
		}
		if trivial(op) {
			g.again[op] = true
			if len(op.Operands) > 0 {
				g.src[op] = g.source(op.Operands[0], op.Out(0).Len())
			}
			continue
		}
		if !elementwise(op) || op.Family() == "random" || op.Out(0).Len() < 1024 {
			continue
		}
		var src *ir.Value
		ok := true
		for _, v := range op.Operands {
			s := g.source(v, op.Out(0).Len())
			if s == nil {
				continue
			}
			ok = ok && (src == nil || src == s)
			src = s
		}
		switch {
		case !ok:
			continue
		case src == nil:
			// Made of small things alone, like a mask: not worth a buffer where it is cheap.
			if !cheap(op) {
				continue
			}
		case !cheap(op) && src.Op != nil && fusible(src.Op) && !g.alsoRead(src, op):
			// Keeping the result instead of its source costs no more memory and computes less.
			continue
		}
		g.again[op], g.src[op] = true, src
	}
}

// alsoRead: v is read by something other than op, directly or through ops that are computed again.
func (g *grouper) alsoRead(v *ir.Value, op *ir.Op) bool {
	for _, u := range g.users[v] {
		if u == op {
			continue
		}
		if !g.again[u] || g.isRes[u.Results[0]] || g.alsoRead(u.Results[0], op) {
			return true
		}
	}
	return false
}

// source is the full-size value that v is made of, nil where v is small or made of nothing.
func (g *grouper) source(v *ir.Value, full int64) *ir.Value {
	if v.Op != nil && g.again[v.Op] {
		return g.src[v.Op]
	}
	if v.Type.Len()*smallShare <= full {
		return nil
	}
	return v
}

// findMem marks the values that must be in memory whatever the units.
func (g *grouper) findMem() {
	for v := range g.isRes {
		g.mem[v] = true
	}
	for _, op := range g.b.Ops {
		for _, v := range op.Results {
			if v.Marked() {
				g.mem[v] = true
			}
		}
	}
	for i := len(g.b.Ops) - 1; i >= 0; i-- {
		op := g.b.Ops[i]
		switch {
		case op.Name() == "reshape" && g.mem[op.Results[0]]:
			g.mem[op.Operands[0]] = true
		case op.Name() == "contract":
			g.mem[op.Operands[0]], g.mem[op.Operands[1]] = true, true
		case !fusible(op):
			for _, v := range op.Operands {
				g.mem[v] = true
			}
		case op.Name() == "take":
			// A table is not worth computing for the rows that are taken of it.
			g.mem[op.Operands[0]] = true
		}
	}
}

// readers are the units that read v, looking through ops that are computed again.
func (g *grouper) readers(v *ir.Value) []*unit {
	var out []*unit
	seen := map[*ir.Value]bool{}
	var visit func(v *ir.Value)
	visit = func(v *ir.Value) {
		if seen[v] {
			return
		}
		seen[v] = true
		for _, u := range g.users[v] {
			if un := g.unit[u]; un != nil && !slices.Contains(out, un) {
				out = append(out, un)
			}
			if g.again[u] {
				visit(u.Results[0])
			}
		}
	}
	visit(v)
	return out
}

func (g *grouper) run() {
	g.classify()
	g.findMem()
	var units []*unit
	for i := len(g.b.Ops) - 1; i >= 0; i-- {
		op := g.b.Ops[i]
		if !fusible(op) {
			continue
		}
		v := op.Results[0]
		if g.again[op] {
			if g.mem[v] && op.Name() != "reshape" {
				units = append(units, g.newUnit(op))
			}
			continue
		}
		readers := g.readers(v)
		if v.Marked() && op.Name() == "reshape" {
			continue // a view of what stands in memory
		}
		if len(readers) > 0 && !g.stays(op) {
			first := readers[0]
			for _, u := range readers {
				if g.pos[u.root] < g.pos[first.root] {
					first = u
				}
			}
			alone := len(readers) == 1 && (!g.mem[v] || g.onlyReturned(v))
			small := v.Type.Len()*smallShare <= lenOf(first.domain) && lenOf(first.domain) > 0
			if (alone || small && !g.reaches(v, first)) && g.canJoin(op, first, alone && !g.mem[v]) {
				g.join(op, first, !alone || g.mem[v])
				continue
			}
		}
		units = append(units, g.newUnit(op))
	}
	g.emit(g.mergeColumns(units))
}

// mergeColumns joins reductions over the same leading dimensions of which one reads no full-size value that the other does not
// read as well, such as those for scale and shift of a norm: they share a sweep, and neither
// holds anything longer for the other's sake. The order of each one's arithmetic stays.
func (g *grouper) mergeColumns(units []*unit) []*unit {
	reads := map[*ir.Value][]*unit{} // full-size value: column reductions that read it
	full := map[*unit][]*ir.Value{}
	gone := map[*unit]bool{}
	for _, u := range units {
		if !u.column || len(u.outs) != 1 || !lower.ColumnReduce(u.root) || g.stays(u.root) {
			continue
		}
		for _, v := range g.unitPiece(u).in {
			if v.Type.Len()*smallShare > lenOf(u.domain) {
				full[u] = append(full[u], v)
			}
		}
		var other *unit
		for _, v := range full[u] {
			for _, o := range reads[v] {
				if other == nil && g.sharesSweep(u, o, full) {
					other = o
				}
			}
		}
		if other == nil {
			for _, v := range full[u] {
				reads[v] = append(reads[v], u)
			}
			continue
		}
		gone[u] = true
		for _, v := range full[u] {
			if !slices.Contains(full[other], v) {
				full[other] = append(full[other], v)
				reads[v] = append(reads[v], other)
			}
		}
		for _, op := range u.ops {
			g.unit[op] = other
		}
		other.ops, other.outs, other.leaves = append(other.ops, u.ops...), append(other.outs, u.outs...), other.leaves+u.leaves
	}
	return slices.DeleteFunc(units, func(u *unit) bool { return gone[u] })
}

// sharesSweep: the column reduction u may join o, which may be several.
func (g *grouper) sharesSweep(u, o *unit, full map[*unit][]*ir.Value) bool {
	a, b := u.root, o.root
	if !slices.Equal(a.In(0).Shape, b.In(0).Shape) || !slices.Equal(a.Attrs.Ints("axes"), b.Attrs.Ints("axes")) ||
		len(u.ops)+len(o.ops) > maxOps || u.leaves+o.leaves > maxLeaves {
		return false
	}
	within := func(list, in []*ir.Value) bool {
		return !slices.ContainsFunc(list, func(v *ir.Value) bool { return !slices.Contains(in, v) })
	}
	leads := func(from, to *unit) bool {
		return slices.ContainsFunc(from.outs, func(v *ir.Value) bool { return slices.Contains(g.readers(v), to) || g.reaches(v, to) })
	}
	return (within(full[u], full[o]) || within(full[o], full[u])) && !leads(u, o) && !leads(o, u)
}

// onlyReturned: the block's results are the only need for v in memory.
func (g *grouper) onlyReturned(v *ir.Value) bool {
	if !g.isRes[v] {
		return false
	}
	for _, u := range g.users[v] {
		if !fusible(u) || u.Name() == "contract" || u.Name() == "take" || u.Name() == "reshape" && g.mem[u.Results[0]] {
			return false
		}
	}
	return true
}

func lenOf(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

func (g *grouper) newUnit(op *ir.Op) *unit {
	u := &unit{root: op, ops: []*ir.Op{op}, outs: []*ir.Value{op.Results[0]}, domain: op.Out(0).Shape, split: -1}
	switch {
	case op.Name() == "reduce":
		u.domain = op.In(0).Shape
		if lower.RowReduce(op) {
			u.split = op.Out(0).Rank()
		} else {
			u.column = true
		}
	case op.Name() == "contract":
		u.contr = op
	case lightIndex(op):
		u.index = true
	}
	u.leaves = len(op.Operands)
	g.unit[op] = u
	return u
}

// reaches reports whether v leads to a unit also through others: units, ops that are in none, and the order of effects.
func (g *grouper) reaches(v *ir.Value, to *unit) bool {
	seen := map[*unit]bool{}
	seenOp := map[*ir.Op]bool{}
	var fromOp func(op *ir.Op) bool
	var fromUnit func(u *unit) bool
	fromOp = func(op *ir.Op) bool {
		if op == nil || seenOp[op] {
			return false
		}
		seenOp[op] = true
		if u := g.unit[op]; u != nil && fromUnit(u) {
			return true
		}
		if g.unit[op] == nil || g.again[op] {
			for _, r := range op.Results {
				for _, user := range g.users[r] {
					if fromOp(user) {
						return true
					}
				}
			}
		}
		return fromOp(g.after[op])
	}
	fromUnit = func(u *unit) bool {
		if u == to {
			return true
		}
		if seen[u] {
			return false
		}
		seen[u] = true
		for _, v := range u.outs {
			for _, user := range g.users[v] {
				if fromOp(user) {
					return true
				}
			}
		}
		return false
	}
	looked := map[*ir.Op]bool{} // through an op that is computed again
	var other func(v *ir.Value) bool
	other = func(v *ir.Value) bool {
		for _, op := range g.users[v] {
			u := g.unit[op]
			if u != nil && u != to && fromUnit(u) || u == nil && !g.again[op] && fromOp(op) {
				return true
			}
			if g.again[op] && !looked[op] {
				looked[op] = true
				if other(op.Results[0]) {
					return true
				}
			}
		}
		return false
	}
	return other(v)
}

// canJoin: op may become a member of u, whose members (and ops computed again for them) read it.
// sole: nothing else reads it.
func (g *grouper) canJoin(op *ir.Op, u *unit, sole bool) bool {
	out := op.Out(0)
	if len(u.ops) >= maxOps || u.leaves+len(op.Operands)-1 > maxLeaves {
		return false
	}
	if u.column && !sole || g.waits(op, u) {
		return false
	}
	full := slices.Equal(out.Shape, u.domain)
	sameLen := out.Len() == lenOf(u.domain)
	row := u.split >= 0 && slices.Equal(out.Shape, u.domain[:u.split]) || g.firstRow(op, u)
	if !sole && !full && !row && !(op.Name() == "reduce") {
		return false
	}
	switch {
	case op.Name() == "reduce":
		if !lower.RowReduce(op) || u.column || u.contr != nil || u.index {
			return false
		}
		if u.split < 0 && full && g.allFull(u) {
			// All members are row values so far: the rows are the operand's.
			return g.aligned(op.Results[0], u, out.Rank())
		}
		if !slices.Equal(op.In(0).Shape, u.domain) || u.split >= 0 && u.split != out.Rank() || u.split < 0 && !g.allFull(u) {
			return false
		}
		return g.aligned(op.Results[0], u, out.Rank())
	case op.Name() == "contract":
		return sole && full && u.contr == nil && u.split < 0 && !u.column && !u.index && g.straight(op.Results[0], u)
	case lightIndex(op):
		return sole && u.contr == nil && sameLen
	}
	if u.contr != nil && g.feedsOtherContract(op, u) {
		return false
	}
	if !sameLen && !row {
		// Small values are computed once per row, per tile, or over and over: the last is for cheap ones.
		return out.Len() == 1 && !u.column || cheap(op) && out.Len()*4 >= lenOf(u.domain)
	}
	return true
}

// waits: op is a sum of full-size values, and u needs something heavy that comes after all of them. Inside of u
// they would all be kept until then, as the parts of a gradient that is added up over many layers; by itself the sum takes
// their place.
func (g *grouper) waits(op *ir.Op, u *unit) bool {
	if op.Name() != "add" || g.heavy[op] >= g.heavy[u.root] {
		return false
	}
	a, b := g.source(op.Operands[0], op.Out(0).Len()), g.source(op.Operands[1], op.Out(0).Len())
	return a != nil && b != nil && a != b && a.Op != nil && b.Op != nil
}

// firstRow: op would be the first row value of a unit that has none: elementwise on the leading
// dimensions, and broadcast along the others by all of its readers in the unit.
func (g *grouper) firstRow(op *ir.Op, u *unit) bool {
	out := op.Out(0)
	return u.split < 0 && elementwise(op) && !u.column && u.contr == nil && !u.index && g.allFull(u) &&
		out.Rank() < len(u.domain) && slices.Equal(out.Shape, u.domain[:out.Rank()]) && out.Len() >= 2 && out.Len()*smallShare <= lenOf(u.domain) &&
		g.aligned(op.Results[0], u, out.Rank())
}

// allFull: every result of u has its domain's shape, so that a row program can write it.
func (g *grouper) allFull(u *unit) bool {
	for _, v := range u.outs {
		if v.Type.Len() != lenOf(u.domain) {
			return false
		}
	}
	return true
}

// feedsOtherContract: op reads a contraction of its own, with which it makes a better unit:
// sums of contractions are then accumulated one after the other.
func (g *grouper) feedsOtherContract(op *ir.Op, u *unit) bool {
	for _, v := range op.Operands {
		if v.Op != nil && v.Op.Name() == "contract" && v.Op != u.contr && len(g.users[v]) == 1 && !g.mem[v] {
			return true
		}
	}
	return false
}

// member: u reads op's results where op is a member of it or computed again.
func (g *grouper) member(op *ir.Op, u *unit) bool { return g.unit[op] == u || g.again[op] }

// aligned: inside u, a row value is only used at its own row: in row values, or broadcast
// along the columns.
func (g *grouper) aligned(v *ir.Value, u *unit, split int) bool {
	for _, user := range g.users[v] {
		if !g.member(user, u) {
			continue
		}
		r := user.Results[0]
		switch {
		case user.Name() == "broadcast":
			if r.Type.Len() == v.Type.Len() {
				if !g.aligned(r, u, split) {
					return false
				}
				continue
			}
			dims := user.Attrs.Ints("dims")
			if !slices.Equal(r.Type.Shape, u.domain) || len(dims) < split {
				return false
			}
			for i, d := range dims {
				if d != int64(i) {
					return false
				}
			}
			if !slices.Equal(v.Type.Shape[:split], u.domain[:split]) || !g.ownRow(r, u) {
				return false
			}
		case user.Name() == "reshape":
			// Trailing dimensions of size 1 come and go.
			s := r.Type.Shape
			if len(s) < split || !slices.Equal(s[:split], u.domain[:split]) || r.Type.Len() != v.Type.Len() {
				return false
			}
			if !g.aligned(r, u, split) {
				return false
			}
		case elementwise(user):
			if !slices.Equal(r.Type.Shape, v.Type.Shape) || !g.aligned(r, u, split) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// ownRow: inside u, no full value made of v is read in another shape, that is, in rows that are not v's. (Ops that
// read at other indices are not in a unit with reductions below them; see canJoin.)
func (g *grouper) ownRow(v *ir.Value, u *unit) bool {
	seen := map[*ir.Value]bool{}
	var own func(v *ir.Value) bool
	own = func(v *ir.Value) bool {
		if seen[v] {
			return true
		}
		seen[v] = true
		for _, user := range g.users[v] {
			r := user.Results[0]
			if !g.member(user, u) || r.Type.Len() != v.Type.Len() {
				continue
			}
			if !elementwise(user) || !slices.Equal(r.Type.Shape, v.Type.Shape) || !own(r) {
				return false
			}
		}
		return true
	}
	return own(v)
}

// straight: inside u, v is used by elementwise ops of its own shape only.
func (g *grouper) straight(v *ir.Value, u *unit) bool {
	for _, user := range g.users[v] {
		if !g.member(user, u) {
			continue
		}
		if !elementwise(user) || !slices.Equal(user.Out(0).Shape, v.Type.Shape) || !g.straight(user.Results[0], u) {
			return false
		}
	}
	return true
}

func (g *grouper) join(op *ir.Op, u *unit, out bool) {
	row := g.firstRow(op, u)
	u.ops = append(u.ops, op)
	u.leaves += len(op.Operands) - 1
	if out {
		u.outs = append(u.outs, op.Results[0])
	}
	switch {
	case op.Name() == "reduce":
		u.domain, u.split = op.In(0).Shape, op.Out(0).Rank()
	case op.Name() == "contract":
		u.contr = op
	case lightIndex(op):
		u.index = true
	case row:
		u.split = op.Out(0).Rank()
	}
	g.unit[op] = u
}

// piece is what stands in the new block: a unit, or an op of its own.
type piece struct {
	unit *unit
	op   *ir.Op
	ops  []*ir.Op // of a unit, in order, with what is computed again
	in   []*ir.Value
	out  []*ir.Value
	pos  int
	deps int
	next []*piece
}

// emit rebuilds the block from units and remaining ops in a topological order that keeps
// the given one where it can.
func (g *grouper) emit(units []*unit) {
	var pieces []*piece
	of := map[*unit]bool{}
	for _, u := range units {
		if !of[u] {
			of[u] = true
			pieces = append(pieces, g.unitPiece(u))
		}
	}
	for i, op := range g.b.Ops {
		if g.unit[op] == nil && (!g.again[op] || op.Name() == "reshape" && g.mem[op.Results[0]]) {
			pieces = append(pieces, &piece{op: op, in: op.Operands, out: op.Results, pos: i})
		}
	}
	slices.SortStableFunc(pieces, func(a, b *piece) int { return a.pos - b.pos })
	maker := map[*ir.Value]*piece{}
	for _, p := range pieces {
		for _, v := range p.out {
			maker[v] = p
		}
	}
	link := func(from, to *piece) {
		if from != nil && from != to {
			from.next = append(from.next, to)
			to.deps++
		}
	}
	var lastEffect *piece
	for _, p := range pieces {
		for _, v := range p.in {
			link(maker[v], p)
		}
		if p.op != nil && p.op.Effect() != ir.EffectNone {
			link(lastEffect, p)
			lastEffect = p
		}
	}
	ready := &byPos{}
	for _, p := range pieces {
		if p.deps == 0 {
			heap.Push(ready, p)
		}
	}
	to := ir.Mapping{}
	g.b.Ops = nil
	done := 0
	for ready.Len() > 0 {
		p := heap.Pop(ready).(*piece)
		done++
		g.place(p, to)
		for _, n := range p.next {
			if n.deps--; n.deps == 0 {
				heap.Push(ready, n)
			}
		}
	}
	if done != len(pieces) {
		panic("BUG: units depend on each other in a circle")
	}
	g.b.Results = to.All(g.b.Results)
}

type byPos []*piece

func (h byPos) Len() int           { return len(h) }
func (h byPos) Less(i, j int) bool { return h[i].pos < h[j].pos }
func (h byPos) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byPos) Push(x any)        { *h = append(*h, x.(*piece)) }
func (h *byPos) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return x
}

// unitPiece completes a unit with the ops that are computed again for it.
func (g *grouper) unitPiece(u *unit) *piece {
	in := map[*ir.Op]bool{}
	var add func(op *ir.Op)
	add = func(op *ir.Op) {
		if in[op] {
			return
		}
		in[op] = true
		for i, v := range op.Operands {
			if v.Op == nil || g.b != v.Block {
				continue
			}
			mustRead := op.Name() == "contract" || op.Name() == "take" && i == 0
			if !mustRead && g.again[v.Op] {
				add(v.Op)
			}
		}
	}
	for _, op := range u.ops {
		add(op)
	}
	p := &piece{unit: u, out: u.outs, pos: g.pos[u.root]}
	for op := range in {
		p.ops = append(p.ops, op)
	}
	slices.SortFunc(p.ops, func(a, b *ir.Op) int { return g.pos[a] - g.pos[b] })
	for _, op := range p.ops {
		for i, v := range op.Operands {
			inside := v.Op != nil && in[v.Op] && !(op.Name() == "contract" || op.Name() == "take" && i == 0)
			if !inside && !slices.Contains(p.in, v) {
				p.in = append(p.in, v)
			}
		}
	}
	slices.SortStableFunc(p.out, func(a, b *ir.Value) int { return g.pos[a.Op] - g.pos[b.Op] })
	return p
}

// marked tells copies of a random op, which share its op id, from the original.
func (g *grouper) marked(op, copy *ir.Op) {
	if drawn(op) {
		if g.drawn[op] {
			copy.Loc = copy.Loc.With("inline")
		}
		g.drawn[op] = true
	}
}

func (g *grouper) place(p *piece, to ir.Mapping) {
	f := g.b.Func
	op := p.op
	if len(p.ops) == 1 {
		op = p.ops[0]
	}
	switch {
	case op != nil && g.again[op]: // units that compute it again need it as it was
		c := g.b.CloneOp(op, to)
		g.marked(op, c)
		for i, r := range op.Results {
			c.Results[i].Inherit(r)
			to[r] = c.Results[i]
		}
		return
	case op != nil:
		op.Operands = to.All(op.Operands)
		g.b.Append(op)
		return
	}
	r := f.NewRegion()
	inner := ir.Mapping{}
	for _, v := range p.in {
		inner[v] = r.AddParam("", v.Type)
	}
	for _, op := range p.ops {
		// What a contraction or a table lookup reads from memory may also be computed inside.
		direct := ir.Mapping{}
		for i, v := range op.Operands {
			direct[v] = inner.Get(v)
			if (op.Name() == "contract" || op.Name() == "take" && i == 0) && slices.Contains(p.in, v) {
				direct[v] = r.Params[slices.Index(p.in, v)]
			}
		}
		c := r.CloneOp(op, direct)
		g.marked(op, c)
		inner[op.Results[0]] = c.Results[0]
	}
	r.Results = inner.All(p.out)
	loc := p.unit.root.Loc
	def := g.t.Must("fused")
	unit, err := f.MakeOp(def, to.All(p.in), nil, []*ir.Block{r}, loc)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	g.b.Append(unit)
	for i, v := range p.out {
		unit.Results[i].Inherit(v)
		to[v] = unit.Results[i]
	}
}
