package ops

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

// wantIndex is the constraint that operand i holds integers.
func wantIndex(label string, i int) ir.Constraint {
	return ir.Constraint{Label: label, Text: "indices are integers", Check: func(op *ir.Op) error {
		if !op.In(i).DType.IsInt() {
			return fmt.Errorf("operand %d is %v", i, op.In(i))
		}
		return nil
	}}
}

// wantPlain is the constraint that operand i is no key.
func wantPlain(label string, i int) ir.Constraint {
	return ir.Constraint{Label: label, Text: "keys can't be indexed", Check: func(op *ir.Op) error {
		if op.In(i).DType == dtype.Key {
			return fmt.Errorf("operand %d is %v", i, op.In(i))
		}
		return nil
	}}
}

// wantNumbers is the constraint that operand i can be added up.
func wantNumbers(label string, i int) ir.Constraint {
	return ir.Constraint{Label: label, Text: "elements are numbers", Check: func(op *ir.Op) error {
		if d := op.In(i).DType; !d.IsFloat() && !d.IsInt() {
			return fmt.Errorf("operand %d is %v", i, op.In(i))
		}
		return nil
	}}
}

// moveCost is the cost of copying the results.
func moveCost(op *ir.Op) ir.Cost {
	c := ir.Cost{}
	for _, v := range op.Results {
		c.Bytes += 2 * v.Type.Bytes()
	}
	for _, v := range op.Operands[1:] {
		c.Bytes += v.Type.Bytes()
	}
	return c
}

// addCost is the cost of adding operand 0 up into the result.
func addCost(op *ir.Op) ir.Cost {
	return ir.Cost{Flops: op.In(0).Len(), Bytes: ownBytes(op) + op.In(0).Bytes()}
}

func indexOps() []*ir.OpDef {
	return []*ir.OpDef{takeRow(), takeGradRow(), takeAlongRow(), scatterAlongRow(), gatherRow(), scatterRow(),
		dynamicSliceRow(), dynamicUpdateSliceRow(), oneHotRow(), histogramRow()}
}

func takeRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "take", Family: "index",
		Routes: routes(1),
		Doc: "Rows of `table` along `axis`: result[p…, i…, q…] = table[p…, idx[i…], q…]. An index outside of the axis is clamped to it. " +
			"Embedding lookup is axis 0.",
		Operands: []string{"table", "idx"}, Results: []string{"rows"},
		Attrs: []ir.AttrDef{{Name: "axis", Kind: "int", Default: int64(0), Doc: "axis of the table that is indexed"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			t, idx, axis := op.In(0), op.In(1), int(op.Attrs.Int("axis"))
			if err := axisOK(int64(axis), t.Rank()); err != nil {
				return nil, fmt.Errorf("%v of table %v (indices %v)", err, t, idx)
			}
			if t.Shape[axis] == 0 && idx.Len() > 0 {
				return nil, fmt.Errorf("table %v has nothing along axis %d for indices %v", t, axis, idx)
			}
			return oneType(ir.T(t.DType, slices.Concat(t.Shape[:axis], idx.Shape, t.Shape[axis+1:])...))
		},
		Constraints: []ir.Constraint{wantIndex("C1", 1), wantPlain("C2", 0)},
		Cost:        moveCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() {
				return []*ir.Value{nil, nil}, nil
			}
			axis := op.Attrs.Int("axis")
			return []*ir.Value{em{b}.op2("take_grad", douts[0], op.Operands[1], ir.A("axis", axis), ir.A("size", op.In(0).Shape[axis])), nil}, nil
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			axis := int(op.Attrs.Int("axis"))
			mid := op.In(1).Rank()
			i := clampExpr(indexExpr(c.Arg(1, idx[axis:axis+mid]...)), op.In(0).Shape[axis]-1)
			return []*kern.Expr{c.Arg(0, splice(idx, axis, axis+mid, i)...)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			axis, t, idx := int(op.Attrs.Int("axis")), in[0], in[1]
			mid := len(idx.Shape)
			shape := slices.Concat(t.Shape[:axis], idx.Shape, t.Shape[axis+1:])
			return one(gatherElements(t, shape, func(at []int64) int64 {
				i := clampIdx(indexAt(idx, flatten(idx.Shape, at[axis:axis+mid])), t.Shape[axis]-1)
				return flatten(t.Shape, slices.Concat(at[:axis], []int64{i}, at[axis+mid:]))
			}))
		},
	}
}

func takeGradRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "take_grad", Family: "index",
		Routes: routes(1),
		Doc: "Adds rows up by destination, the derivative of `take`: result[p…, idx[i…], q…] += dy[p…, i…, q…], from +0, in the row-major order of i. " +
			"The result has `size` along `axis`; an index outside is clamped. f16 and bf16 are added in f32 and rounded once. No atomics: " +
			"a tile owns a strip of columns.",
		Operands: []string{"dy", "idx"}, Results: []string{"dtable"},
		Attrs: []ir.AttrDef{
			{Name: "axis", Kind: "int", Default: int64(0), Doc: "axis of the table that is indexed"},
			{Name: "size", Kind: "int", Doc: "size of the table along axis"},
		},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			dy, idx, axis := op.In(0), op.In(1), int(op.Attrs.Int("axis"))
			if axis < 0 || axis > dy.Rank()-idx.Rank() || !slices.Equal(dy.Shape[axis:axis+idx.Rank()], idx.Shape) {
				return nil, fmt.Errorf("dy %v does not have the dimensions of idx %v from axis %d on", dy, idx, axis)
			}
			return oneType(ir.T(dy.DType, slices.Concat(dy.Shape[:axis], []int64{op.Attrs.Int("size")}, dy.Shape[axis+idx.Rank():])...))
		},
		Constraints: []ir.Constraint{wantIndex("C1", 1), wantNumbers("C2", 0),
			{Label: "C3", Text: "size is at least 1", Check: func(op *ir.Op) error {
				if n := op.Attrs.Int("size"); n < 1 {
					return fmt.Errorf("size %d", n)
				}
				return nil
			}}},
		Cost: addCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			return []*ir.Value{em{b}.op2("take", douts[0], op.Operands[1], ir.A("axis", op.Attrs.Int("axis"))), nil}, nil
		},
		Kern: takeGradKern,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			dy, idx := in[0], in[1]
			p, n, q := takeGradDims(op)
			size := op.Attrs.Int("size")
			out := op.Out(0)
			add, zero := reducer("sum", dy.DType.Accum())
			y := newAccTensor(out, zero)
			for pi := range p {
				for i := range n {
					row := clampIdx(indexAt(idx, i), size-1)
					for qi := range q {
						at := (pi*size+row)*q + qi
						y.bits[at] = add(y.bits[at], accGet(dy, (pi*n+i)*q+qi))
					}
				}
			}
			return one(y.tensor())
		},
	}
}

// takeGradDims are the sizes of dy [p, n, q] of take_grad: dimensions before the axis, those of
// the indices, those after.
func takeGradDims(op *ir.Op) (p, n, q int64) {
	dy, axis, mid := op.In(0), int(op.Attrs.Int("axis")), op.In(1).Rank()
	return tensor.Len(dy.Shape[:axis]), tensor.Len(dy.Shape[axis : axis+mid]), tensor.Len(dy.Shape[axis+mid:])
}

// accTensor is a result that is added up in its accumulation type.
type accTensor struct {
	typ  ir.Type
	bits []uint64
}

func newAccTensor(t ir.Type, start uint64) *accTensor {
	a := &accTensor{t, make([]uint64, t.Len())}
	for i := range a.bits {
		a.bits[i] = start
	}
	return a
}

func (a *accTensor) tensor() *tensor.Tensor {
	t := tensor.New(a.typ.DType, a.typ.Shape...)
	for i, b := range a.bits {
		accSet(t, int64(i), b)
	}
	return t
}

// takeGradKern: tile (p, strip of columns, range of destination rows) goes through all
// updates in order and adds those that fall into its range.
func takeGradKern(op *ir.Op) ([]ir.KernelUse, error) {
	p, n, q := takeGradDims(op)
	size := op.Attrs.Int("size")
	// Tiles are ranges of whole rows, which are written from end to end; each range reads all
	// indices, so there are no more than share the work out.
	width := min(q, 4096)
	strips := ceilDiv(q, max(width, 1))
	ranges := min(size, max(1, min(64, max(8, size*q/65536))/max(1, p*strips)))
	rows := ceilDiv(size, ranges)
	ranges = ceilDiv(size, rows)
	b := kern.NewBuilder("take_grad", p*strips*ranges)
	dy := b.In("dy", op.In(0).DType, op.In(0).Len())
	idx := b.In("idx", op.In(1).DType, n)
	use := ir.KernelUse{Kernel: b.K, Args: []int{0, 1}}
	a := newAccum(b, op, &use)

	tile := b.TileIndex()
	r0 := kern.Mul(kern.Rem(tile, kern.I64(ranges)), kern.I64(rows))
	rest := kern.Div(tile, kern.I64(ranges))
	q0 := kern.Mul(kern.Rem(rest, kern.I64(strips)), kern.I64(width))
	pi := kern.Div(rest, kern.I64(strips))
	vR0, vQ0, vP, vW, vR1 := kern.NewVar("row0", dtype.I64), kern.NewVar("col0", dtype.I64), kern.NewVar("p", dtype.I64), kern.NewVar("width", dtype.I64), kern.NewVar("row1", dtype.I64)
	b.Do(kern.Let(vR0, r0), kern.Let(vQ0, q0), kern.Let(vP, pi),
		kern.Let(vW, sliceLen(kern.Get(vQ0), width, q)),
		kern.Let(vR1, kern.Min(kern.Add(kern.Get(vR0), kern.I64(rows)), kern.I64(size))))
	lane, row, i, at := kern.NewVar("lane", dtype.I64), kern.NewVar("row", dtype.I64), kern.NewVar("i", dtype.I64), kern.NewVar("at", dtype.I64)
	base := func(r *kern.Expr) *kern.Expr {
		return scaled(scaled(kern.Get(vP), size, r), q, kern.Get(vQ0))
	}
	eachRow := func(body func(at *kern.Expr) kern.Stmt) kern.Stmt {
		return &kern.For{Var: row, Lo: kern.Get(vR0), Hi: kern.Get(vR1), Step: 1, Body: []kern.Stmt{
			kern.Let(at, base(kern.Get(row))),
			kern.Lane(lane, kern.Get(vW), body(kern.Add(kern.Get(at), kern.Get(lane)))),
		}}
	}
	b.Do(eachRow(func(at *kern.Expr) kern.Stmt { return a.acc.Set(at, kern.Zero(a.acc.DType)) }))
	dest := kern.NewVar("dest", dtype.I64)
	src := kern.NewVar("src", dtype.I64)
	to := kern.Add(kern.Get(at), kern.Get(lane))
	b.Do(kern.Range(i, kern.I64(n),
		kern.Let(dest, clampExpr(indexExpr(idx.At(kern.Get(i))), size-1)),
		&kern.If{Cond: kern.And(kern.Ge(kern.Get(dest), kern.Get(vR0)), kern.Lt(kern.Get(dest), kern.Get(vR1))), Then: []kern.Stmt{
			kern.Let(at, base(kern.Get(dest))),
			kern.Let(src, scaled(scaled(kern.Get(vP), n, kern.Get(i)), q, kern.Get(vQ0))),
			kern.Lane(lane, kern.Get(vW), a.acc.Set(to, kern.Add(a.acc.At(to), wide(dy, kern.Add(kern.Get(src), kern.Get(lane)))))),
		}}))
	if a.rounds() {
		b.Do(eachRow(a.finish))
	}
	return []ir.KernelUse{use}, nil
}

// alongInfer checks x and idx of equal rank and sizes apart from axis.
func alongInfer(op *ir.Op, what string) error {
	x, idx, axis := op.In(0), op.In(1), op.Attrs.Int("axis")
	if err := axisOK(axis, x.Rank()); err != nil {
		return fmt.Errorf("%v of %s %v (indices %v)", err, what, x, idx)
	}
	if x.Rank() != idx.Rank() {
		return fmt.Errorf("%s %v and indices %v have different ranks", what, x, idx)
	}
	for d := range x.Shape {
		if d != int(axis) && x.Shape[d] != idx.Shape[d] {
			return fmt.Errorf("%s %v and indices %v differ in dimension %d", what, x, idx, d)
		}
	}
	return nil
}

func takeAlongRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "take_along", Family: "index",
		Routes: routes(1),
		Doc: "Elements of `x` along `axis`, an index of its own for each result element: result[p…, i, q…] = x[p…, idx[p…, i, q…], q…]. " +
			"An index outside of the axis is clamped to it.",
		Operands: []string{"x", "idx"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "axis", Kind: "int", Doc: "axis that is indexed"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := alongInfer(op, "x"); err != nil {
				return nil, err
			}
			if x, idx := op.In(0), op.In(1); x.Shape[op.Attrs.Int("axis")] == 0 && idx.Len() > 0 {
				return nil, fmt.Errorf("x %v has nothing along axis %d for indices %v", x, op.Attrs.Int("axis"), idx)
			}
			return oneType(op.In(1).With(op.In(0).DType))
		},
		Constraints: []ir.Constraint{wantIndex("C1", 1), wantPlain("C2", 0)},
		Cost:        moveCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() {
				return []*ir.Value{nil, nil}, nil
			}
			axis := op.Attrs.Int("axis")
			return []*ir.Value{em{b}.op2("scatter_along", douts[0], op.Operands[1], ir.A("axis", axis), ir.A("size", op.In(0).Shape[axis])), nil}, nil
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			axis := int(op.Attrs.Int("axis"))
			i := clampExpr(indexExpr(c.Arg(1, idx...)), op.In(0).Shape[axis]-1)
			return []*kern.Expr{c.Arg(0, splice(idx, axis, axis+1, i)...)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			axis, x, idx := op.Attrs.Int("axis"), in[0], in[1]
			return one(gatherElements(x, idx.Shape, func(at []int64) int64 {
				from := slices.Clone(at)
				from[axis] = clampIdx(indexAt(idx, flatten(idx.Shape, at)), x.Shape[axis]-1)
				return flatten(x.Shape, from)
			}))
		},
	}
}

func scatterAlongRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "scatter_along", Family: "index",
		Routes: routes(1),
		Doc: "Adds elements up along `axis`, the derivative of `take_along`: result[p…, idx[p…, i, q…], q…] += dy[p…, i, q…], from +0, with i increasing. " +
			"The result has `size` along `axis`; an index outside is clamped. f16 and bf16 are added in f32 and rounded once.",
		Operands: []string{"dy", "idx"}, Results: []string{"dx"},
		Attrs: []ir.AttrDef{
			{Name: "axis", Kind: "int", Doc: "axis that is indexed"},
			{Name: "size", Kind: "int", Doc: "size of the result along axis"},
		},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			dy, idx := op.In(0), op.In(1)
			if err := alongInfer(op, "dy"); err != nil {
				return nil, err
			}
			if !sameShape(dy.Shape, idx.Shape) {
				return nil, fmt.Errorf("dy %v and indices %v have different shapes", dy, idx)
			}
			shape := slices.Clone(dy.Shape)
			shape[op.Attrs.Int("axis")] = op.Attrs.Int("size")
			return oneType(ir.T(dy.DType, shape...))
		},
		Constraints: []ir.Constraint{wantIndex("C1", 1), wantNumbers("C2", 0),
			{Label: "C3", Text: "size is at least 1", Check: func(op *ir.Op) error {
				if n := op.Attrs.Int("size"); n < 1 {
					return fmt.Errorf("size %d", n)
				}
				return nil
			}}},
		Cost: addCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			return []*ir.Value{em{b}.op2("take_along", douts[0], op.Operands[1], ir.A("axis", op.Attrs.Int("axis"))), nil}, nil
		},
		Kern: scatterAlongKern,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			dy, idx := in[0], in[1]
			axis, size := op.Attrs.Int("axis"), op.Attrs.Int("size")
			add, zero := reducer("sum", dy.DType.Accum())
			y := newAccTensor(op.Out(0), zero)
			// Row-major order visits the elements of each line with i increasing.
			eachIndex(dy.Shape, func(flat int64, at []int64) {
				to := slices.Clone(at)
				to[axis] = clampIdx(indexAt(idx, flat), size-1)
				t := flatten(y.typ.Shape, to)
				y.bits[t] = add(y.bits[t], accGet(dy, flat))
			})
			return one(y.tensor())
		},
	}
}

// lines are the sizes before, along and after an axis.
func linesOf(shape []int64, axis int64) (p, n, q int64) {
	return tensor.Len(shape[:axis]), shape[axis], tensor.Len(shape[axis+1:])
}

// eachLine cuts p·q lines into tiles of whole strips and gives the statements to put
// into a strip over them: body sees the line's position before (pi) and after (qi) the axis.
func eachLine(b *kern.Builder, p, q int64, body func(pi, qi *kern.Expr) []kern.Stmt) {
	const perTile = 4 * kern.Lanes
	b.K.Tiles = max(1, ceilDiv(p*q, perTile))
	l0, lane := kern.NewVar("line0", dtype.I64), kern.NewVar("lane", dtype.I64)
	b.Do(kern.Let(l0, kern.Mul(b.TileIndex(), kern.I64(perTile))))
	line := kern.Add(kern.Get(l0), kern.Get(lane))
	var pi, qi *kern.Expr
	switch {
	case q == 1:
		pi, qi = line, kern.I64(0)
	case p == 1:
		pi, qi = kern.I64(0), line
	default:
		pi, qi = kern.Div(line, kern.I64(q)), kern.Rem(line, kern.I64(q))
	}
	vp, vq := kern.NewVar("p", dtype.I64), kern.NewVar("q", dtype.I64)
	stmts := append([]kern.Stmt{kern.Let(vp, pi), kern.Let(vq, qi)}, body(kern.Get(vp), kern.Get(vq))...)
	b.Do(kern.Lane(lane, sliceLen(kern.Get(l0), perTile, p*q), stmts...))
}

// scatterAlongKern: one lane per line.
func scatterAlongKern(op *ir.Op) ([]ir.KernelUse, error) {
	size := op.Attrs.Int("size")
	p, n, q := linesOf(op.In(0).Shape, op.Attrs.Int("axis"))
	b := kern.NewBuilder("scatter_along", 1)
	dy := b.In("dy", op.In(0).DType, op.In(0).Len())
	idx := b.In("idx", op.In(1).DType, op.In(1).Len())
	use := ir.KernelUse{Kernel: b.K, Args: []int{0, 1}}
	a := newAccum(b, op, &use)
	i, j, k := kern.NewVar("i", dtype.I64), kern.NewVar("j", dtype.I64), kern.NewVar("k", dtype.I64)
	eachLine(b, p, q, func(pi, qi *kern.Expr) []kern.Stmt {
		to := func(r *kern.Expr) *kern.Expr { return scaled(scaled(pi, size, r), q, qi) }
		from := scaled(scaled(pi, n, kern.Get(i)), q, qi)
		dest := to(clampExpr(indexExpr(idx.At(from)), size-1))
		stmts := []kern.Stmt{
			kern.Range(j, kern.I64(size), a.acc.Set(to(kern.Get(j)), kern.Zero(a.acc.DType))),
			kern.Range(i, kern.I64(n), a.acc.Set(dest, kern.Add(a.acc.At(dest), wide(dy, from)))),
		}
		if a.rounds() {
			stmts = append(stmts, kern.Range(k, kern.I64(size), a.finish(to(kern.Get(k)))))
		}
		return stmts
	})
	return []ir.KernelUse{use}, nil
}

// startChecks are the constraints of a dynamic slice's start operands from operand first on.
func startChecks(label string, first int) ir.Constraint {
	return ir.Constraint{Label: label, Text: "one integer scalar per dimension says where it starts", Check: func(op *ir.Op) error {
		if got, want := len(op.Operands)-first, op.In(0).Rank(); got != want {
			return fmt.Errorf("%d starts for operand %v", got, op.In(0))
		}
		for i := first; i < len(op.Operands); i++ {
			if t := op.In(i); t.Rank() != 0 || !t.DType.IsInt() {
				return fmt.Errorf("start %d is %v", i-first, t)
			}
		}
		return nil
	}}
}

// startIdx reads the starts of a dynamic slice of x, clamped so that size fits.
func startIdx(x, size []int64, starts []*tensor.Tensor) []int64 {
	at := make([]int64, len(x))
	for d := range x {
		at[d] = clampIdx(indexAt(starts[d], 0), x[d]-size[d])
	}
	return at
}

// startExprs is startIdx in a kernel.
func startExprs(c ir.ElemCtx, op *ir.Op, size []int64, first int) []*kern.Expr {
	at := make([]*kern.Expr, len(size))
	for d := range size {
		at[d] = clampExpr(indexExpr(c.Arg(first+d)), op.In(0).Shape[d]-size[d])
	}
	return at
}

func dynamicSliceRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "dynamic_slice", Family: "index",
		Routes:   routesFrom(1),
		Doc:      "The part of `x` of shape `sizes` that begins at `starts` (one scalar a dimension), each clamped so that the part lies within.",
		Operands: []string{"x", "starts…"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "sizes", Kind: "ints", Doc: "shape of the result"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			x, sizes := op.In(0), op.Attrs.Ints("sizes")
			if len(sizes) != x.Rank() {
				return nil, fmt.Errorf("sizes %v for operand %v", sizes, x)
			}
			for d, n := range sizes {
				if n < 0 || n > x.Shape[d] {
					return nil, fmt.Errorf("sizes %v do not fit in operand %v", sizes, x)
				}
			}
			return oneType(ir.T(x.DType, sizes...))
		},
		Constraints: []ir.Constraint{startChecks("C1", 1), wantPlain("C2", 0)},
		Cost:        moveCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			grads := make([]*ir.Value, len(op.Operands))
			if op.In(0).DType.IsFloat() {
				grads[0] = b.Op("dynamic_update_slice", append([]*ir.Value{em{b}.zeros(op.In(0)), douts[0]}, op.Operands[1:]...))
			}
			return grads, nil
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			at := startExprs(c, op, op.Attrs.Ints("sizes"), 1)
			for d := range at {
				at[d] = kern.Add(at[d], idx[d])
			}
			return []*kern.Expr{c.Arg(0, at...)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, sizes := in[0], op.Attrs.Ints("sizes")
			start := startIdx(x.Shape, sizes, in[1:])
			return one(gatherElements(x, sizes, func(at []int64) int64 {
				from := slices.Clone(at)
				for d := range from {
					from[d] += start[d]
				}
				return flatten(x.Shape, from)
			}))
		},
	}
}

func dynamicUpdateSliceRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "dynamic_update_slice", Family: "index",
		Routes:   routesFrom(2),
		Doc:      "`x` with the part that begins at `starts` (one scalar a dimension) replaced by `u`; starts are clamped so that u lies within.",
		Operands: []string{"x", "u", "starts…"}, Results: []string{"y"},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			x, u := op.In(0), op.In(1)
			if x.Rank() != u.Rank() || x.DType != u.DType {
				return nil, fmt.Errorf("update %v does not fit in operand %v", u, x)
			}
			for d, n := range u.Shape {
				if n > x.Shape[d] {
					return nil, fmt.Errorf("update %v does not fit in operand %v", u, x)
				}
			}
			return oneType(x)
		},
		Constraints: []ir.Constraint{startChecks("C1", 2), wantPlain("C2", 0)},
		Cost:        moveCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			grads := make([]*ir.Value, len(op.Operands))
			if !op.In(0).DType.IsFloat() {
				return grads, nil
			}
			starts := op.Operands[2:]
			grads[0] = b.Op("dynamic_update_slice", append([]*ir.Value{douts[0], em{b}.zeros(op.In(1))}, starts...))
			grads[1] = b.Op("dynamic_slice", append([]*ir.Value{douts[0]}, starts...), ir.A("sizes", op.In(1).Shape))
			return grads, nil
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			size := op.In(1).Shape
			at := startExprs(c, op, size, 2)
			inside := kern.Bool(true)
			for d := range at {
				at[d] = kern.Sub(idx[d], at[d])
				inside = kern.And(inside, withinExpr(at[d], size[d]))
			}
			return []*kern.Expr{c.ArgIf(inside, 1, c.Arg(0, idx...), at...)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, u := in[0], in[1]
			start := startIdx(x.Shape, u.Shape, in[2:])
			y := x.Clone()
			w := x.DType.Size()
			eachIndex(u.Shape, func(flat int64, at []int64) {
				to := slices.Clone(at)
				for d := range to {
					to[d] += start[d]
				}
				copy(y.Data[flatten(x.Shape, to)*w:][:w], u.Data[flat*w:][:w])
			})
			return one(y)
		},
	}
}

func oneHotRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "one_hot", Family: "index",
		Routes:   routes(0),
		Doc:      "One where the position along the new axis `axis` of size `depth` equals the index, zero elsewhere; an index outside gives zeros.",
		Operands: []string{"idx"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "depth", Kind: "int", Doc: "size of the new axis"},
			{Name: "axis", Kind: "int", Default: int64(-1), Doc: "place of the new axis in the result; -1: last"},
			{Name: "dtype", Kind: "dtype", Default: dtype.F32, Doc: "element type of the result"},
		},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			idx, axis := op.In(0), oneHotAxis(op)
			if axis < 0 || axis > idx.Rank() || op.Attrs.Int("depth") < 0 {
				return nil, fmt.Errorf("axis %d, depth %d for indices %v", op.Attrs.Int("axis"), op.Attrs.Int("depth"), idx)
			}
			return oneType(ir.T(op.Attrs.DType("dtype"), slices.Insert(slices.Clone(idx.Shape), axis, op.Attrs.Int("depth"))...))
		},
		Constraints: []ir.Constraint{wantIndex("C1", 0), {Label: "C2", Text: "the result is no key", Check: func(op *ir.Op) error {
			if op.Attrs.DType("dtype") == dtype.Key {
				return fmt.Errorf("dtype key")
			}
			return nil
		}}},
		NoGrad: "an index has no gradient", NoGradZero: true,
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			axis, d := oneHotAxis(op), op.Attrs.DType("dtype").Accum()
			hit := kern.Eq(indexExpr(c.Arg(0, splice(idx, axis, axis+1)...)), idx[axis])
			return []*kern.Expr{kern.Select(hit, kern.One(d), kern.Zero(d))}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			axis, idx, d := oneHotAxis(op), in[0], op.Attrs.DType("dtype")
			y := tensor.New(d, slices.Insert(slices.Clone(idx.Shape), axis, op.Attrs.Int("depth"))...)
			eachIndex(y.Shape, func(flat int64, at []int64) {
				if indexAt(idx, flatten(idx.Shape, slices.Delete(slices.Clone(at), axis, axis+1))) == at[axis] {
					accSet(y, flat, oneBits(d.Accum()))
				}
			})
			return one(y)
		},
	}
}

func oneHotAxis(op *ir.Op) int {
	if a := op.Attrs.Int("axis"); a != -1 {
		return int(a)
	}
	return op.In(0).Rank()
}

func histogramRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "histogram", Family: "index",
		Routes:   routes(0),
		Doc:      "How often each index 0 … bins-1 occurs in `idx` (any shape), as i32[bins]; an index outside is not counted.",
		Operands: []string{"idx"}, Results: []string{"counts"},
		Attrs: []ir.AttrDef{{Name: "bins", Kind: "int", Doc: "number of bins"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if op.Attrs.Int("bins") < 0 {
				return nil, fmt.Errorf("%d bins for indices %v", op.Attrs.Int("bins"), op.In(0))
			}
			return oneType(ir.T(dtype.I32, op.Attrs.Int("bins")))
		},
		Constraints: []ir.Constraint{wantIndex("C1", 0)},
		Det:         func(*ir.Op) ir.Det { return ir.Decides },
		NoGrad:      "a count has no gradient", NoGradZero: true,
		Cost: func(op *ir.Op) ir.Cost { return ir.Cost{Flops: op.In(0).Len(), Bytes: ownBytes(op)} },
		Kern: histogramKern,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			y := tensor.New(dtype.I32, op.Attrs.Int("bins"))
			for i := range in[0].Len() {
				if v := indexAt(in[0], i); v >= 0 && v < y.Shape[0] {
					y.I32()[v]++
				}
			}
			return one(y)
		},
	}
}

// histogramKern: few bins are counted by a vector pass over the indices each, many in one
// serial pass.
func histogramKern(op *ir.Op) ([]ir.KernelUse, error) {
	bins, n := op.Attrs.Int("bins"), op.In(0).Len()
	serial := bins > 64
	tiles := bins
	if serial {
		tiles = 1
	}
	b := kern.NewBuilder("histogram", tiles)
	idx := b.In("idx", op.In(0).DType, n)
	y := b.Out("counts", dtype.I32, bins)
	i, v := kern.NewVar("i", dtype.I64), kern.NewVar("v", dtype.I64)
	if serial {
		j := kern.NewVar("j", dtype.I64)
		b.Do(kern.Lane(j, kern.I64(bins), y.Set(kern.Get(j), kern.I32(0))),
			kern.Range(i, kern.I64(n),
				kern.Let(v, indexExpr(idx.At(kern.Get(i)))),
				&kern.If{Cond: withinExpr(kern.Get(v), bins), Then: []kern.Stmt{
					y.Set(kern.Get(v), kern.Add(y.At(kern.Get(v)), kern.I32(1)))}}))
	} else {
		count := kern.NewVar("count", dtype.I32)
		hit := kern.Eq(indexExpr(idx.At(kern.Get(i))), b.TileIndex())
		b.Do(kern.Lane(i, kern.I64(n)).Reduce(kern.RedSum, count, kern.Select(hit, kern.I32(1), kern.I32(0))),
			y.Set(b.TileIndex(), kern.Get(count)))
	}
	return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1}}}, nil
}
