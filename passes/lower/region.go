package lower

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// tileElems is about how many elements a tile of a map or row program covers: enough to
// hide the cost of a tile, few enough to balance two or three threads.
const tileElems = 16384

// lowerMap makes one kernel that computes every element of the results by itself.
// The shape is seen as rows by columns; columns are as many trailing dimensions as
// can be walked in one go without cutting the index up again.
func (p *program) lowerMap() (*Lowered, error) {
	shape := p.outs[0].Type.Shape
	for _, o := range p.outs {
		if o.Type.Len() != p.outs[0].Type.Len() {
			return nil, fmt.Errorf("BUG: results of different length in one map")
		}
	}
	for k := range shape {
		l, clean := p.tryMap(shape, k)
		if clean || k == len(shape)-1 {
			return l, nil
		}
	}
	l, _ := p.tryMap(shape, len(shape))
	return l, nil
}

// tryMap lowers with rows shape[:k]; clean: no index was divided per lane.
func (p *program) tryMap(shape []int64, k int) (l *Lowered, clean bool) {
	rows, cols := tensor.Len(shape[:k]), tensor.Len(shape[k:])
	colsPerTile := min(cols, int64(tileElems))
	rowsPerTile := max(1, tileElems/max(colsPerTile, 1))
	colTiles := ceilDiv(cols, max(colsPerTile, 1))
	rowTiles := ceilDiv(rows, rowsPerTile)
	tiles := rowTiles * colTiles
	bd := newBody(p, p.name, max(tiles, 1))
	tile := kern.Get(bd.b.K.Tile)
	rowTile, colTile := tile, kern.I64(0)
	if colTiles > 1 {
		rowTile, colTile = kern.Div(tile, kern.I64(colTiles)), kern.Rem(tile, kern.I64(colTiles))
		if rowTiles == 1 {
			rowTile, colTile = kern.I64(0), tile
		}
	}
	c := kern.NewVar("c", dtype.I64)
	var r *kern.Var
	row := kern.I64(0)
	if rows > 1 {
		r = kern.NewVar("r", dtype.I64)
		row = kern.Get(r)
		bd.push(r)
	}
	base := kern.Mul(colTile, kern.I64(colsPerTile))
	col := kern.Add(base, kern.Get(c))
	n := kern.I64(colsPerTile)
	if cols%max(colsPerTile, 1) != 0 {
		n = kern.Min(n, kern.Sub(kern.I64(cols), base))
	}
	bd.push(c)
	idx := append(bd.unflatten(row, shape[:k]), bd.unflatten(col, shape[k:])...)
	flat := bd.flatten(idx, shape)
	var stores []kern.Stmt
	vals := make([]*kern.Expr, len(p.outs))
	for i, o := range p.outs {
		oi := idx
		if !sameShape(o.Type.Shape, shape) {
			oi = bd.unflatten(flat, o.Type.Shape)
		}
		vals[i] = bd.value(o, oi)
	}
	for i, o := range p.outs {
		buf := bd.result(i, o.Type)
		stores = append(stores, buf.Set(flat, narrow(vals[i], o.Type.DType)))
	}
	strip := kern.Lane(c, n, append(bd.pop(), stores...)...)
	bd.emit(strip)
	if rows > 1 {
		lo := kern.Mul(rowTile, kern.I64(rowsPerTile))
		hi := kern.Min(kern.Add(lo, kern.I64(rowsPerTile)), kern.I64(rows))
		stmts := bd.pop()
		bd.emit(&kern.For{Var: r, Lo: lo, Hi: hi, Step: 1, Body: stmts})
	}
	return bd.finish(flat), bd.clean(c)
}

func sameShape(a, b []int64) bool {
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

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// clean reports whether no load's index divides what depends on v.
func (bd *body) clean(v *kern.Var) bool {
	for _, e := range bd.known {
		if (e.Op == kern.OpDiv || e.Op == kern.OpRem) && e.DType == dtype.I64 && dependsOn(e, v) && bd.made[e].mod > 0 {
			return false
		}
	}
	return true
}

func dependsOn(e *kern.Expr, v *kern.Var) bool {
	if e.Op == kern.OpVar && e.Var == v {
		return true
	}
	for _, a := range e.Args {
		if dependsOn(a, v) {
			return true
		}
	}
	return false
}

// finish closes the kernel. at is the flat index at which full results are written:
// operands that were read nowhere else may share memory with them.
func (bd *body) finish(at *kern.Expr) *Lowered {
	bd.b.Do(bd.pop()...)
	l := &Lowered{Launches: []Launch{{Kern: bd.b.K, Args: bd.args}}}
	bd.inPlace(l, at)
	return l
}

func (bd *body) inPlace(l *Lowered, at *kern.Expr) {
	for i, leaf := range bd.p.leaf {
		reads, ok := bd.reads[bd.p.leaves[leaf]] // of an operand that is given twice, those of the first
		if !ok {
			continue
		}
		same := true
		for _, e := range reads {
			same = same && e == bd.intern(at)
		}
		for j, o := range bd.p.outs {
			if same && o.Type.Len() == leaf.Type.Len() && o.Type.DType.Size() == leaf.Type.DType.Size() {
				l.InPlace = append(l.InPlace, [2]int{i, j})
			}
		}
	}
}

func redKind(op *ir.Op) kern.RedKind {
	switch op.Attrs.Str("kind") {
	case "prod":
		return kern.RedProd
	case "max":
		return kern.RedMax
	case "min":
		return kern.RedMin
	case "and":
		return kern.RedAnd
	case "or":
		return kern.RedOr
	case "xor":
		return kern.RedXor
	}
	return kern.RedSum
}

// levels orders reductions so that each one's operand needs only earlier levels; those
// of a level share a sweep.
func (p *program) levels(reduces []*ir.Op) [][]*ir.Op {
	level := map[*ir.Op]int{}
	for _, o := range p.ops {
		for _, v := range o.Operands {
			if v.Op == nil {
				continue
			}
			l := level[v.Op]
			if v.Op.Name() == "reduce" {
				l++
			}
			level[o] = max(level[o], l)
		}
	}
	var out [][]*ir.Op
	for _, r := range reduces {
		for len(out) <= level[r] {
			out = append(out, nil)
		}
		out[level[r]] = append(out[level[r]], r)
	}
	compact := out[:0]
	for _, l := range out {
		if len(l) > 0 {
			compact = append(compact, l)
		}
	}
	return compact
}

// lowerRows makes a row program over the shape in, of which k dimensions are the rows: all
// reductions are over the other dimensions, and a
// tile works through a block of rows, sweeping each row once for every level of
// reductions and once for the results.
func (p *program) lowerRows(in []int64, k int, reduces []*ir.Op) (*Lowered, error) {
	rowShape, colShape := in[:k], in[k:]
	for _, r := range reduces {
		if !sameShape(r.In(0).Shape, in) || r.Out(0).Rank() != k || !RowReduce(r) {
			return nil, fmt.Errorf("BUG: reductions over different rows in one program")
		}
	}
	rows, cols := tensor.Len(rowShape), tensor.Len(colShape)
	rowsPerTile := max(1, tileElems/cols)
	bd := newBody(p, p.name, max(1, ceilDiv(rows, rowsPerTile)))
	// A single row has no loop: its values, which depend on no variable, stand in order.
	r := kern.NewVar("r", dtype.I64)
	row := kern.I64(0)
	if rows > 1 {
		bd.push(r)
		row = kern.Get(r)
	}
	rowIdx := bd.internAll(bd.unflatten(row, rowShape))
	for _, level := range p.levels(reduces) {
		bd.sweep(level, rowIdx, cols, colShape)
	}
	var full, short []int
	for i, o := range p.outs {
		if o.Type.Len() == rows*cols && (cols > 1 || o.Type.Rank() > k) {
			full = append(full, i)
		} else if sameShape(o.Type.Shape, rowShape) {
			short = append(short, i)
		} else {
			return nil, fmt.Errorf("BUG: result of another shape in a row program")
		}
	}
	bufs := make([]kern.Buf, len(p.outs))
	for i, o := range p.outs {
		bufs[i] = bd.result(i, o.Type)
	}
	var at *kern.Expr
	if len(full) > 0 {
		c := kern.NewVar("c", dtype.I64)
		bd.push(c)
		idx := append(append([]*kern.Expr{}, rowIdx...), bd.unflatten(kern.Get(c), colShape)...)
		at = bd.flatten(idx, in)
		var stores []kern.Stmt
		vals := make([]*kern.Expr, len(full))
		for j, i := range full {
			oi := idx
			if s := p.outs[i].Type.Shape; !sameShape(s, in) {
				oi = bd.unflatten(at, s)
			}
			vals[j] = bd.value(p.outs[i], oi)
		}
		for j, i := range full {
			stores = append(stores, bufs[i].Set(at, narrow(vals[j], p.outs[i].Type.DType)))
		}
		bd.emit(kern.Lane(c, kern.I64(cols), append(bd.pop(), stores...)...))
	}
	for _, i := range short {
		bd.emit(bufs[i].Set(row, narrow(bd.value(p.outs[i], rowIdx), p.outs[i].Type.DType)))
	}
	if rows > 1 {
		lo := kern.Mul(kern.Get(bd.b.K.Tile), kern.I64(rowsPerTile))
		hi := kern.Min(kern.Add(lo, kern.I64(rowsPerTile)), kern.I64(rows))
		stmts := bd.pop()
		bd.emit(&kern.For{Var: r, Lo: lo, Hi: hi, Step: 1, Body: stmts})
	}
	if at == nil {
		bd.b.Do(bd.pop()...)
		return &Lowered{Launches: []Launch{{Kern: bd.b.K, Args: bd.args}}}, nil
	}
	return bd.finishRows(at, in, rowIdx, colShape, len(short) > 0), nil
}

// finishRows closes a row program. An operand may be overwritten by a full result where all its
// reads are at the row's own elements: earlier sweeps end before the last one writes.
func (bd *body) finishRows(at *kern.Expr, in []int64, rowIdx []*kern.Expr, colShape []int64, short bool) *Lowered {
	bd.b.Do(bd.pop()...)
	l := &Lowered{Launches: []Launch{{Kern: bd.b.K, Args: bd.args}}}
	if short {
		// Row results are written after the last sweep and may read again.
		return l
	}
	// Sweeps have variables of their own; compare their indices up to that variable.
	own := stripVarFree(at)
	for i, leaf := range bd.p.leaf {
		reads, ok := bd.reads[bd.p.leaves[leaf]]
		same := ok
		for _, e := range reads {
			same = same && stripVarFree(e) == own
		}
		for j, o := range bd.p.outs {
			if same && o.Type.Len() == leaf.Type.Len() && o.Type.DType.Size() == leaf.Type.DType.Size() {
				l.InPlace = append(l.InPlace, [2]int{i, j})
			}
		}
	}
	return l
}

// stripVarFree is the text of an index in which variables are known by name alone.
func stripVarFree(e *kern.Expr) string {
	if e.Op == kern.OpVar {
		return e.Var.Name
	}
	s := fmt.Sprintf("(%d %d", e.Op, e.Bits)
	for _, a := range e.Args {
		s += " " + stripVarFree(a)
	}
	return s + ")"
}

// sweep reduces the operands of a level of reductions over the columns of a row.
func (bd *body) sweep(level []*ir.Op, rowIdx []*kern.Expr, cols int64, colShape []int64) {
	results := make([]*kern.Var, len(level))
	chunk := ops.ReduceChunk(cols)
	partial := func(base, n *kern.Expr, into []*kern.Var) *kern.Strip {
		c := kern.NewVar("c", dtype.I64)
		bd.push(c)
		idx := append(append([]*kern.Expr{}, rowIdx...), bd.unflatten(kern.Add(base, kern.Get(c)), colShape)...)
		vals := make([]*kern.Expr, len(level))
		for i, red := range level {
			vals[i] = bd.bind(bd.value(red.Operands[0], idx))
		}
		strip := kern.Lane(c, n, bd.pop()...)
		for i, red := range level {
			strip.Reduce(redKind(red), into[i], vals[i])
		}
		return strip
	}
	for i, red := range level {
		results[i] = bd.newVar("red", carried(red.In(0).DType))
	}
	if cols <= chunk {
		s := partial(kern.I64(0), kern.I64(cols), results)
		bd.emit(s)
	} else {
		for i, red := range level {
			bd.emit(kern.Let(results[i], identity(redKind(red), results[i].DType)))
		}
		j := kern.NewVar("j", dtype.I64)
		bd.push(j)
		into := make([]*kern.Var, len(level))
		for i := range level {
			into[i] = bd.newVar("part", results[i].DType)
		}
		s := partial(kern.Get(j), kern.Min(kern.I64(chunk), kern.Sub(kern.I64(cols), kern.Get(j))), into)
		bd.emit(s)
		for i, red := range level {
			bd.emit(kern.Let(results[i], join(redKind(red), kern.Get(results[i]), kern.Get(into[i]))))
		}
		stmts := bd.pop()
		bd.emit(&kern.For{Var: j, Lo: kern.I64(0), Hi: kern.I64(cols), Step: chunk, Body: stmts})
	}
	for i, red := range level {
		x := (&elemCtx{bd, red}).Round(kern.Get(results[i]), red.Out(0).DType)
		bd.given[red.Results[0]] = given{rowIdx, bd.bind(x)}
	}
}

// join is the operation of a reduction kind on two values.
func join(k kern.RedKind, a, b *kern.Expr) *kern.Expr {
	switch k.Op() {
	case kern.OpMul:
		return kern.Mul(a, b)
	case kern.OpMax:
		return kern.Max(a, b)
	case kern.OpMin:
		return kern.Min(a, b)
	case kern.OpAnd:
		return kern.And(a, b)
	case kern.OpOr:
		return kern.Or(a, b)
	case kern.OpXor:
		return kern.Xor(a, b)
	}
	return kern.Add(a, b)
}

// identity is the value at which partials start.
func identity(k kern.RedKind, t dtype.Type) *kern.Expr {
	return kern.Bits(t, k.Start(t))
}

// lowerLong reduces few long rows: a tile reduces one chunk of a row, a second kernel joins
// the chunks in order.
func (p *program) lowerLong(red *ir.Op) (*Lowered, error) {
	n, rows := reducedLen(red), red.Out(0).Len()
	in := red.In(0).Shape
	k := red.Out(0).Rank()
	chunk := ops.ReduceChunk(n)
	chunks := ceilDiv(n, chunk)
	t := carried(red.In(0).DType)
	bd := newBody(p, p.name, rows*chunks)
	tile := kern.Get(bd.b.K.Tile)
	row, part := kern.I64(0), tile
	if rows > 1 {
		row, part = kern.Div(tile, kern.I64(chunks)), kern.Rem(tile, kern.I64(chunks))
	}
	rowIdx := bd.internAll(bd.unflatten(row, in[:k]))
	base := kern.Mul(part, kern.I64(chunk))
	c := kern.NewVar("c", dtype.I64)
	bd.push(c)
	idx := append(append([]*kern.Expr{}, rowIdx...), bd.unflatten(kern.Add(base, kern.Get(c)), in[k:])...)
	val := bd.bind(bd.value(red.Operands[0], idx))
	strip := kern.Lane(c, kern.Min(kern.I64(chunk), kern.Sub(kern.I64(n), base)), bd.pop()...)
	v := bd.newVar("part", t)
	bd.emit(strip.Reduce(redKind(red), v, val))
	work := bd.workspace(0, t, rows*chunks)
	bd.emit(work.Set(tile, kern.Get(v)))
	bd.b.Do(bd.pop()...)
	l := &Lowered{Launches: []Launch{{Kern: bd.b.K, Args: bd.args}}, Workspaces: []int64{rows * chunks * t.Size()}}
	l.Launches = append(l.Launches, joinChunks(red, rows, chunks, chunks, 1, 0, 0))
	return l, nil
}

// joinChunks joins, for each of n elements of result out, chunk results in order: that of element i and
// chunk j is element i·stride + j·step of workspace ws.
func joinChunks(red *ir.Op, n, chunks, stride, step int64, ws, out int) Launch {
	t := carried(red.In(0).DType)
	const perTile = 4096
	b := kern.NewBuilder("join", max(1, ceilDiv(n, perTile)))
	work := b.In("work", t, n*chunks)
	to := b.Out("out", red.Out(0).DType, n)
	base := kern.Mul(b.TileIndex(), kern.I64(perTile))
	i, j, acc := kern.NewVar("i", dtype.I64), kern.NewVar("j", dtype.I64), kern.NewVar("acc", t)
	at := kern.Add(base, kern.Get(i))
	b.Do(kern.Lane(i, kern.Min(kern.I64(perTile), kern.Sub(kern.I64(n), base)),
		kern.Let(acc, identity(redKind(red), t)),
		kern.Range(j, kern.I64(chunks), kern.Let(acc, join(redKind(red), kern.Get(acc),
			work.At(kern.Add(kern.Mul(at, kern.I64(stride)), kern.Mul(kern.Get(j), kern.I64(step))))))),
		to.Set(at, narrow(kern.Get(acc), red.Out(0).DType))))
	return Launch{Kern: b.K, Args: []Ref{{Workspace, ws}, {Result, out}}}
}

// columnBytes is what the partials of a tile of a column reduction may take: they then stay in the
// first-level cache, and in the shared memory of a GPU's block.
const columnBytes = 32 << 10

// lowerColumns reduces over dimensions that are not the trailing ones: lanes are results,
// and a tile adds one chunk of the reduced elements of a block of results into 64 partials each. Several reductions of the
// same shape over the same dimensions share the sweep, and with it what they read; each has partials of its own, so that
// the order of its arithmetic is what it is alone.
func (p *program) lowerColumns(reds []*ir.Op) (*Lowered, error) {
	red := reds[0]
	n, kept := reducedLen(red), red.Out(0).Len()
	chunk := ops.ReduceChunk(n)
	chunks := max(1, ceilDiv(n, chunk))
	var bytes int64 // of the partials of one result
	for _, r := range reds {
		if !sameShape(r.In(0).Shape, red.In(0).Shape) || !slices.Equal(r.Attrs.Ints("axes"), red.Attrs.Ints("axes")) {
			return nil, fmt.Errorf("BUG: reductions over different columns in one program")
		}
		bytes += carried(r.In(0).DType).Size()
	}
	width := max(kern.Lanes, min(columnBytes/(kern.Lanes*bytes)/kern.Lanes*kern.Lanes, ceilDiv(max(kept, 1), kern.Lanes)*kern.Lanes))
	blocks := ceilDiv(max(kept, 1), width)
	bd := newBody(p, p.name, blocks*chunks)
	tile := kern.Get(bd.b.K.Tile)
	block, part := tile, kern.I64(0)
	if chunks > 1 {
		block, part = kern.Rem(tile, kern.I64(blocks)), kern.Div(tile, kern.I64(blocks))
	}
	col0 := kern.Mul(block, kern.I64(width))
	w := kern.Min(kern.I64(width), kern.Sub(kern.I64(kept), col0))
	partials := make([]*kern.Local, len(reds))
	for k, r := range reds {
		partials[k] = kern.NewLocal("partials", carried(r.In(0).DType), kern.Lanes*width)
	}
	lane := func(body func(c *kern.Expr) []kern.Stmt) kern.Stmt {
		c := kern.NewVar("c", dtype.I64)
		bd.push(c)
		stmts := body(kern.Get(c))
		return kern.Lane(c, w, append(bd.pop(), stmts...)...)
	}
	each := func(stmt func(k int, r *ir.Op) kern.Stmt) []kern.Stmt {
		stmts := make([]kern.Stmt, len(reds))
		for k, r := range reds {
			stmts[k] = stmt(k, r)
		}
		return stmts
	}
	at := func(row *kern.Expr, c *kern.Expr) *kern.Expr {
		return kern.Add(kern.Mul(row, kern.I64(width)), c)
	}
	q := kern.NewVar("q", dtype.I64)
	bd.emit(kern.Range(q, kern.I64(kern.Lanes), lane(func(c *kern.Expr) []kern.Stmt {
		return each(func(k int, r *ir.Op) kern.Stmt {
			return partials[k].Set(at(kern.Get(q), c), identity(redKind(r), carried(r.In(0).DType)))
		})
	})))
	i := kern.NewVar("i", dtype.I64)
	base := kern.Mul(part, kern.I64(chunk))
	if n > 0 {
		bd.push(i)
		s := lane(func(c *kern.Expr) []kern.Stmt {
			outIdx := bd.unflatten(kern.Add(col0, c), red.Out(0).Shape)
			var redShape []int64
			for _, a := range red.Attrs.Ints("axes") {
				redShape = append(redShape, red.In(0).Shape[a])
			}
			redIdx := bd.unflatten(kern.Add(base, kern.Get(i)), redShape)
			slot := at(kern.And(kern.Get(i), kern.I64(kern.Lanes-1)), c)
			idx := interleave(red, outIdx, redIdx)
			xs := make([]*kern.Expr, len(reds))
			for k, r := range reds {
				xs[k] = bd.value(r.Operands[0], idx)
			}
			return each(func(k int, r *ir.Op) kern.Stmt {
				return partials[k].Set(slot, join(redKind(r), partials[k].At(slot), xs[k]))
			})
		})
		bd.emit(s)
		bd.emit(kern.Range(i, kern.Min(kern.I64(chunk), kern.Sub(kern.I64(n), base)), bd.pop()...))
	}
	for half := int64(kern.Lanes / 2); half > 0; half /= 2 {
		h := kern.NewVar("h", dtype.I64)
		bd.emit(kern.Range(h, kern.I64(half), lane(func(c *kern.Expr) []kern.Stmt {
			a, b := at(kern.Get(h), c), at(kern.Add(kern.Get(h), kern.I64(half)), c)
			return each(func(k int, r *ir.Op) kern.Stmt {
				return partials[k].Set(a, join(redKind(r), partials[k].At(a), partials[k].At(b)))
			})
		})))
	}
	l := &Lowered{}
	outs := make([]int, len(reds)) // by reduction: its result
	for k, r := range reds {
		outs[k] = slices.Index(p.outs, r.Results[0])
	}
	if chunks == 1 {
		bufs := make([]kern.Buf, len(reds))
		for k, r := range reds {
			bufs[k] = bd.result(outs[k], r.Out(0))
		}
		bd.emit(lane(func(c *kern.Expr) []kern.Stmt {
			return each(func(k int, r *ir.Op) kern.Stmt {
				return bufs[k].Set(kern.Add(col0, c), narrow(partials[k].At(c), r.Out(0).DType))
			})
		}))
	} else {
		works := make([]kern.Buf, len(reds))
		for k, r := range reds {
			t := carried(r.In(0).DType)
			works[k] = bd.workspace(k, t, kept*chunks)
			l.Workspaces = append(l.Workspaces, kept*chunks*t.Size())
		}
		bd.emit(lane(func(c *kern.Expr) []kern.Stmt {
			return each(func(k int, r *ir.Op) kern.Stmt {
				return works[k].Set(kern.Add(kern.Mul(part, kern.I64(kept)), kern.Add(col0, c)), partials[k].At(c))
			})
		}))
	}
	bd.b.Do(bd.pop()...)
	l.Launches = []Launch{{Kern: bd.b.K, Args: bd.args}}
	if chunks > 1 {
		for k, r := range reds {
			l.Launches = append(l.Launches, joinChunks(r, kept, chunks, 1, kept, k, outs[k]))
		}
	}
	return l, nil
}

// interleave puts the indices of kept and reduced dimensions in the operand's order.
func interleave(red *ir.Op, kept, reduced []*kern.Expr) []*kern.Expr {
	isRed := map[int64]bool{}
	for _, a := range red.Attrs.Ints("axes") {
		isRed[a] = true
	}
	var idx []*kern.Expr
	for d := range red.In(0).Shape {
		if isRed[int64(d)] {
			idx, reduced = append(idx, reduced[0]), reduced[1:]
		} else {
			idx, kept = append(idx, kept[0]), kept[1:]
		}
	}
	return idx
}
