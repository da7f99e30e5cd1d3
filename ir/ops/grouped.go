package ops

// Contractions whose rows choose their matrix: the matrices of a mixture of experts, after the
// tokens were sorted by expert. No capacity: any expert may get any number of rows.

import (
	"fmt"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

func groupedOps() []*ir.OpDef { return []*ir.OpDef{groupedContractRow(), groupedOuterRow()} }

const groupDoc = "Rows are sorted by group: the first counts[0] rows belong to group 0, the next counts[1] to group 1, and so on. " +
	"Negative counts are taken as 0, rows beyond the sum belong to none. "

// groupChecks are the constraints on floats x and y of one type and integer counts.
func groupChecks() []ir.Constraint {
	return []ir.Constraint{
		{Label: "C1", Text: "both operands have the same float element type", Check: func(op *ir.Op) error {
			if a, b := op.In(0), op.In(1); a.DType != b.DType || !a.DType.IsFloat() {
				return fmt.Errorf("operands %v and %v", a, b)
			}
			return nil
		}},
		{Label: "C2", Text: "counts is a list of integers", Check: func(op *ir.Op) error {
			if c := op.In(2); !c.DType.IsInt() || c.Rank() != 1 {
				return fmt.Errorf("counts %v", c)
			}
			return nil
		}},
	}
}

// groupRows are the rows lo … hi-1 of each group.
func groupRows(counts *tensor.Tensor, rows int64) (lo, hi []int64) {
	at := int64(0)
	for i := range counts.Len() {
		n := clampIdx(indexAt(counts, i), rows-at)
		lo, hi = append(lo, at), append(hi, at+n)
		at += n
	}
	return lo, hi
}

// chains computes Σ a[i + k·sa]·b[j + k·sb], k = 0 … n-1, in the order of contract.
type chains struct {
	d        dtype.Type
	a32, b32 []float32
	a64, b64 []float64
}

func newChains(a, b *tensor.Tensor) chains {
	if a.DType == dtype.F64 {
		return chains{d: a.DType, a64: a.F64(), b64: b.F64()}
	}
	return chains{d: a.DType, a32: readF32(a), b32: readF32(b)}
}

// at is one chain, as raw bits of the accumulation type.
func (c chains) at(i, sa, j, sb, n int64) uint64 {
	switch c.d {
	case dtype.F64:
		acc := 0.0
		for k := range n {
			acc = scalar.Fma64(c.a64[i+k*sa], c.b64[j+k*sb], acc)
		}
		return bits64(acc)
	case dtype.BF16:
		acc := float32(0)
		for k := int64(0); k < n; k += 2 {
			a1, b1 := float32(0), float32(0)
			if k+1 < n {
				a1, b1 = c.a32[i+(k+1)*sa], c.b32[j+(k+1)*sb]
			}
			acc = scalar.FmaFlush32(a1, b1, acc)
			acc = scalar.FmaFlush32(c.a32[i+k*sa], c.b32[j+k*sb], acc)
		}
		return bits32(acc)
	}
	acc := float32(0)
	for k := range n {
		acc = scalar.Fma32(c.a32[i+k*sa], c.b32[j+k*sb], acc)
	}
	return bits32(acc)
}

func groupedContractRow() *ir.OpDef {
	infer := func(op *ir.Op) (e, k, n int64, err error) {
		x, w, c := op.In(0), op.In(1), op.In(2)
		if x.Rank() != 2 || w.Rank() != 3 || c.Rank() != 1 || w.Shape[0] != c.Shape[0] {
			return 0, 0, 0, fmt.Errorf("want x [rows, k], w [groups, k, n] and counts [groups], not %v, %v and %v", x, w, c)
		}
		e, k, n = w.Shape[0], w.Shape[1], w.Shape[2]
		if op.Attrs.Bool("transpose") {
			k, n = n, k
		}
		if x.Shape[1] != k {
			return 0, 0, 0, fmt.Errorf("rows of x %v do not fit w %v (transpose %v)", x, w, op.Attrs.Bool("transpose"))
		}
		return e, k, n, nil
	}
	return &ir.OpDef{
		Name: "grouped_contract", Family: "contract",
		Routes: routes(2),
		Doc: "Each row of `x` [rows, k] times the matrix of its group in `w` [groups, k, n] (with transpose: [groups, n, k]), giving [rows, n]. " + groupDoc +
			"Rows of no group give +0. Per element one chain over k as in `contract`.",
		Operands: []string{"x", "w", "counts"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "transpose", Kind: "bool", Default: false, Doc: "w is [groups, n, k]"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			_, _, n, err := infer(op)
			if err != nil {
				return nil, err
			}
			return oneType(ir.T(op.In(0).DType, op.In(0).Shape[0], n))
		},
		Constraints: groupChecks(),
		Cost: func(op *ir.Op) ir.Cost {
			return ir.Cost{Flops: 2 * op.Out(0).Len() * op.In(0).Shape[1], Bytes: ownBytes(op)}
		},
		VJP: func(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			b, x, w, counts, dy := em{bb}, op.Operands[0], op.Operands[1], op.Operands[2], douts[0]
			tr := op.Attrs.Bool("transpose")
			dx := b.Op("grouped_contract", []*ir.Value{dy, w, counts}, ir.A("transpose", !tr))
			pair := []*ir.Value{x, dy, counts}
			if tr {
				pair = []*ir.Value{dy, x, counts}
			}
			return []*ir.Value{dx, b.Op("grouped_outer", pair), nil}, nil
		},
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) {
			groups, k, n, err := infer(op)
			if err != nil {
				return nil, err
			}
			return groupedContractKern(op, groups, k, n), nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, w := in[0], in[1]
			_, k, n, err := infer(op)
			if err != nil {
				return nil, err
			}
			y := tensor.New(x.DType, x.Shape[0], n)
			lo, hi := groupRows(in[2], x.Shape[0])
			sum := newChains(x, w)
			for g := range lo {
				for r := lo[g]; r < hi[g]; r++ {
					for c := range n {
						j, sb := int64(g)*k*n+c, n
						if op.Attrs.Bool("transpose") {
							j, sb = (int64(g)*n+c)*k, 1
						}
						accSet(y, r*n+c, sum.at(r*k, 1, j, sb, k))
					}
				}
			}
			return one(y)
		},
	}
}

func groupedOuterRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "grouped_outer", Family: "contract",
		Routes: routes(2),
		Doc: "For each group the sum over its rows r of x[r, k]·y[r, n], giving [groups, k, n]: the derivative of `grouped_contract` for its matrices. " + groupDoc +
			"Per element one chain over the group's rows in order, as in `contract`; a group without rows gives +0.",
		Operands: []string{"x", "y", "counts"}, Results: []string{"w"},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			x, y, c := op.In(0), op.In(1), op.In(2)
			if x.Rank() != 2 || y.Rank() != 2 || c.Rank() != 1 || x.Shape[0] != y.Shape[0] {
				return nil, fmt.Errorf("want x [rows, k], y [rows, n] and counts [groups], not %v, %v and %v", x, y, c)
			}
			return oneType(ir.T(x.DType, c.Shape[0], x.Shape[1], y.Shape[1]))
		},
		Constraints: groupChecks(),
		Cost: func(op *ir.Op) ir.Cost {
			return ir.Cost{Flops: 2 * op.In(0).Len() * op.In(1).Shape[1], Bytes: ownBytes(op)}
		},
		VJP: func(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			b, x, y, counts, dw := em{bb}, op.Operands[0], op.Operands[1], op.Operands[2], douts[0]
			return []*ir.Value{
				b.Op("grouped_contract", []*ir.Value{y, dw, counts}, ir.A("transpose", true)),
				b.Op("grouped_contract", []*ir.Value{x, dw, counts}),
				nil,
			}, nil
		},
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) { return groupedOuterKern(op), nil },
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, y := in[0], in[1]
			k, n := x.Shape[1], y.Shape[1]
			w := tensor.New(x.DType, in[2].Shape[0], k, n)
			lo, hi := groupRows(in[2], x.Shape[0])
			sum := newChains(x, y)
			for g := range lo {
				for i := range k {
					for c := range n {
						accSet(w, (int64(g)*k+i)*n+c, sum.at(lo[g]*k+i, k, lo[g]*n+c, n, hi[g]-lo[g]))
					}
				}
			}
			return one(w)
		},
	}
}

// chainStmts adds to accs the chain over k = lo … hi-1 of products of terms (a factor for each acc
// and one for all), in the order of contract for elements of type d. k is a loop variable.
func chainStmts(d dtype.Type, accs []*kern.Var, lo, hi *kern.Expr, terms func(k *kern.Expr) (each []*kern.Expr, all *kern.Expr)) []kern.Stmt {
	k := kern.NewVar("k", dtype.I64)
	step := func(fma func(x, y, z *kern.Expr) *kern.Expr, at *kern.Expr) []kern.Stmt {
		each, all := terms(at)
		shared := kern.NewVar("b", all.DType)
		stmts := []kern.Stmt{kern.Let(shared, all)}
		for i, acc := range accs {
			stmts = append(stmts, kern.Let(acc, fma(each[i], kern.Get(shared), kern.Get(acc))))
		}
		return stmts
	}
	if d != dtype.BF16 {
		return []kern.Stmt{&kern.For{Var: k, Lo: lo, Hi: hi, Step: 1, Body: step(kern.Fma, kern.Get(k))}}
	}
	n := kern.Sub(hi, lo)
	even := kern.Add(lo, kern.Sub(n, kern.Rem(n, kern.I64(2))))
	tail := kern.NewVar("tail", dtype.I64)
	pair := append(step(kern.FmaFlush, kern.Add(kern.Get(k), kern.I64(1))), step(kern.FmaFlush, kern.Get(k))...)
	var last []kern.Stmt
	for _, acc := range accs { // the missing partner: fma(0, 0, acc)
		last = append(last, kern.Let(acc, kern.FmaFlush(kern.F32(0), kern.F32(0), kern.Get(acc))))
	}
	last = append(last, step(kern.FmaFlush, kern.Get(tail))...)
	return []kern.Stmt{
		&kern.For{Var: k, Lo: lo, Hi: even, Step: 2, Body: pair},
		&kern.For{Var: tail, Lo: even, Hi: hi, Step: 1, Body: last},
	}
}

// groupBounds sets lo and hi to the rows of group g (an expression): hi of the group after
// the last is the number of rows.
func groupBounds(counts kern.Buf, g *kern.Expr, groups, rows int64) (stmts []kern.Stmt, lo, hi *kern.Expr) {
	i, vlo, vhi := kern.NewVar("i", dtype.I64), kern.NewVar("lo", dtype.I64), kern.NewVar("hi", dtype.I64)
	take := kern.Max(kern.I64(0), kern.Min(indexExpr(counts.At(kern.Get(i))), kern.Sub(kern.I64(rows), kern.Get(vhi))))
	return []kern.Stmt{
		kern.Let(vlo, kern.I64(0)), kern.Let(vhi, kern.I64(0)),
		kern.Range(i, kern.Min(kern.Add(g, kern.I64(1)), kern.I64(groups)),
			kern.Let(vlo, kern.Get(vhi)),
			kern.Let(vhi, kern.Add(kern.Get(vhi), take))),
		&kern.If{Cond: kern.Eq(g, kern.I64(groups)), Then: []kern.Stmt{
			kern.Let(vlo, kern.Get(vhi)), kern.Let(vhi, kern.I64(rows))}},
	}, kern.Get(vlo), kern.Get(vhi)
}

// blockRows is how many rows share a load of the matrix.
const blockRows = 3

// inBlocks gives the loops over r = lo … hi-1 in blocks of blockRows, then one by one.
func inBlocks(name string, lo, hi *kern.Expr, body func(r *kern.Expr, n int) []kern.Stmt) []kern.Stmt {
	r, s := kern.NewVar(name, dtype.I64), kern.NewVar(name+"1", dtype.I64)
	n := kern.Sub(hi, lo)
	whole := kern.Add(lo, kern.Sub(n, kern.Rem(n, kern.I64(blockRows))))
	return []kern.Stmt{
		&kern.For{Var: r, Lo: lo, Hi: whole, Step: blockRows, Body: body(kern.Get(r), blockRows)},
		&kern.For{Var: s, Lo: whole, Hi: hi, Step: 1, Body: body(kern.Get(s), 1)},
	}
}

// panelBytes is how much scratch memory a copy of a strip's columns may take.
const panelBytes = 1 << 19

// groupedContractKern: a tile is a group (or, after the last, the rows of none) and a strip of columns.
func groupedContractKern(op *ir.Op, groups, k, n int64) []ir.KernelUse {
	d, rows := op.In(0).DType, op.In(0).Shape[0]
	strips := max(1, ceilDiv(n, kern.Lanes))
	b := kern.NewBuilder("grouped_contract", (groups+1)*strips)
	b.K.Flush = d == dtype.BF16
	x, w := b.In("x", d, op.In(0).Len()), b.In("w", d, op.In(1).Len())
	counts, y := b.In("counts", op.In(2).DType, groups), b.Out("y", d, op.Out(0).Len())
	group, c0, width := kern.NewVar("group", dtype.I64), kern.NewVar("col0", dtype.I64), kern.NewVar("width", dtype.I64)
	g, lane := kern.Get(group), kern.NewVar("lane", dtype.I64)
	// Groups vary fastest: a run of tiles has its share of every group, however full.
	b.Do(kern.Let(group, kern.Rem(b.TileIndex(), kern.I64(groups+1))),
		kern.Let(c0, kern.Mul(kern.Div(b.TileIndex(), kern.I64(groups+1)), kern.I64(kern.Lanes))),
		kern.Let(width, sliceLen(kern.Get(c0), kern.Lanes, n)))
	bounds, lo, hi := groupBounds(counts, g, groups, rows)
	b.Do(bounds...)
	col := kern.Add(kern.Get(c0), kern.Get(lane))
	acct := d.Accum()
	from := func(i *kern.Expr) *kern.Expr { return wide(w, scaled(scaled(g, k, i), n, col)) }
	if op.Attrs.Bool("transpose") {
		from = func(i *kern.Expr) *kern.Expr { return wide(w, scaled(scaled(g, n, col), k, i)) }
	}
	weight := from
	var pack []kern.Stmt
	if panel := k * kern.Lanes; panel*acct.Size() <= panelBytes {
		// The strip's columns in one piece: rows of a matrix are far apart, often at distances that
		// few sets of the cache hold.
		columns, i := kern.NewLocal("columns", acct, panel), kern.NewVar("i", dtype.I64)
		weight = func(i *kern.Expr) *kern.Expr { return columns.At(scaled(i, kern.Lanes, kern.Get(lane))) }
		put := columns.Set(scaled(kern.Get(i), kern.Lanes, kern.Get(lane)), from(kern.Get(i)))
		pack = []kern.Stmt{&kern.If{Cond: kern.Gt(hi, lo), Then: []kern.Stmt{kern.Lane(lane, kern.Get(width), kern.Range(i, kern.I64(k), put))}}}
	}
	product := append(pack, inBlocks("row", lo, hi, func(r *kern.Expr, m int) []kern.Stmt {
		var stmts []kern.Stmt
		accs := make([]*kern.Var, m)
		for i := range accs {
			accs[i] = kern.NewVar(fmt.Sprintf("acc%d", i), acct)
			stmts = append(stmts, kern.Let(accs[i], kern.Zero(acct)))
		}
		stmts = append(stmts, chainStmts(d, accs, kern.I64(0), kern.I64(k), func(i *kern.Expr) ([]*kern.Expr, *kern.Expr) {
			each := make([]*kern.Expr, m)
			for j := range each {
				each[j] = wide(x, scaled(kern.Add(r, kern.I64(int64(j))), k, i))
			}
			return each, weight(i)
		})...)
		for i, acc := range accs {
			stmts = append(stmts, y.Set(scaled(kern.Add(r, kern.I64(int64(i))), n, col), kern.Convert(kern.Get(acc), d)))
		}
		return []kern.Stmt{kern.Lane(lane, kern.Get(width), stmts...)}
	})...)
	z := kern.NewVar("row", dtype.I64)
	b.Do(&kern.If{Cond: kern.Lt(g, kern.I64(groups)), Then: product, Else: []kern.Stmt{
		&kern.For{Var: z, Lo: lo, Hi: hi, Step: 1, Body: []kern.Stmt{
			kern.Lane(lane, kern.Get(width), y.Set(scaled(kern.Get(z), n, col), kern.Zero(d)))}}}})
	return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1, 2, 3}}}
}

// groupedOuterKern: a tile is a group and a strip of columns.
func groupedOuterKern(op *ir.Op) []ir.KernelUse {
	d, rows, groups := op.In(0).DType, op.In(0).Shape[0], op.In(2).Shape[0]
	k, n := op.In(0).Shape[1], op.In(1).Shape[1]
	strips := max(1, ceilDiv(n, kern.Lanes))
	b := kern.NewBuilder("grouped_outer", groups*strips)
	b.K.Flush = d == dtype.BF16
	x, y := b.In("x", d, op.In(0).Len()), b.In("y", d, op.In(1).Len())
	counts, w := b.In("counts", op.In(2).DType, groups), b.Out("w", d, op.Out(0).Len())
	group, c0, width := kern.NewVar("group", dtype.I64), kern.NewVar("col0", dtype.I64), kern.NewVar("width", dtype.I64)
	g, lane := kern.Get(group), kern.NewVar("lane", dtype.I64)
	b.Do(kern.Let(group, kern.Rem(b.TileIndex(), kern.I64(max(1, groups)))),
		kern.Let(c0, kern.Mul(kern.Div(b.TileIndex(), kern.I64(max(1, groups))), kern.I64(kern.Lanes))),
		kern.Let(width, sliceLen(kern.Get(c0), kern.Lanes, n)))
	bounds, lo, hi := groupBounds(counts, g, groups, rows)
	b.Do(bounds...)
	col := kern.Add(kern.Get(c0), kern.Get(lane))
	acct := d.Accum()
	// block adds rows r0 … r1-1 to the chains of m rows of the result from row i on.
	block := func(i *kern.Expr, m int, r0, r1 *kern.Expr, load func(r *kern.Expr) *kern.Expr, start func(row *kern.Expr) *kern.Expr, put func(row, v *kern.Expr) kern.Stmt) []kern.Stmt {
		var stmts []kern.Stmt
		accs := make([]*kern.Var, m)
		for j := range accs {
			accs[j] = kern.NewVar(fmt.Sprintf("acc%d", j), acct)
			stmts = append(stmts, kern.Let(accs[j], start(kern.Add(i, kern.I64(int64(j))))))
		}
		stmts = append(stmts, chainStmts(d, accs, r0, r1, func(r *kern.Expr) ([]*kern.Expr, *kern.Expr) {
			each := make([]*kern.Expr, m)
			for j := range each {
				each[j] = wide(x, scaled(r, k, kern.Add(i, kern.I64(int64(j)))))
			}
			return each, load(r)
		})...)
		for j, acc := range accs {
			stmts = append(stmts, put(kern.Add(i, kern.I64(int64(j))), kern.Get(acc)))
		}
		return []kern.Stmt{kern.Lane(lane, kern.Get(width), stmts...)}
	}
	fromY := func(r *kern.Expr) *kern.Expr { return wide(y, scaled(r, n, col)) }
	store := func(row, v *kern.Expr) kern.Stmt {
		return w.Set(scaled(scaled(g, k, row), n, col), kern.Convert(v, d))
	}
	zero := func(*kern.Expr) *kern.Expr { return kern.Zero(acct) }
	if k*kern.Lanes*acct.Size() > panelBytes {
		b.Do(inBlocks("k", kern.I64(0), kern.I64(k), func(i *kern.Expr, m int) []kern.Stmt {
			return block(i, m, lo, hi, fromY, zero, store)
		})...)
		return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1, 2, 3}}}
	}
	// A few rows at a time, which then stay in the nearest cache; unfinished chains wait in scratch memory.
	const few = 64 // even: pairs of bf16 stay together
	sums, rows64 := kern.NewLocal("sums", acct, k*kern.Lanes), kern.NewLocal("rows", acct, few*kern.Lanes)
	r0, r1, r, i := kern.NewVar("row0", dtype.I64), kern.NewVar("row1", dtype.I64), kern.NewVar("r", dtype.I64), kern.NewVar("i", dtype.I64)
	at := func(row *kern.Expr) *kern.Expr { return scaled(row, kern.Lanes, kern.Get(lane)) }
	in := func(r *kern.Expr) *kern.Expr { return at(kern.Sub(r, kern.Get(r0))) }
	b.Do(kern.Lane(lane, kern.Get(width), kern.Range(i, kern.I64(k), sums.Set(at(kern.Get(i)), kern.Zero(acct)))))
	turn := []kern.Stmt{
		kern.Let(r1, kern.Min(kern.Add(kern.Get(r0), kern.I64(few)), hi)),
		kern.Lane(lane, kern.Get(width), &kern.For{Var: r, Lo: kern.Get(r0), Hi: kern.Get(r1), Step: 1, Body: []kern.Stmt{rows64.Set(in(kern.Get(r)), fromY(kern.Get(r)))}}),
	}
	turn = append(turn, inBlocks("k", kern.I64(0), kern.I64(k), func(i *kern.Expr, m int) []kern.Stmt {
		return block(i, m, kern.Get(r0), kern.Get(r1), func(r *kern.Expr) *kern.Expr { return rows64.At(in(r)) },
			func(row *kern.Expr) *kern.Expr { return sums.At(at(row)) }, func(row, v *kern.Expr) kern.Stmt { return sums.Set(at(row), v) })
	})...)
	b.Do(&kern.For{Var: r0, Lo: lo, Hi: hi, Step: few, Body: turn})
	b.Do(kern.Lane(lane, kern.Get(width), kern.Range(i, kern.I64(k), store(kern.Get(i), sums.At(at(kern.Get(i)))))))
	return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1, 2, 3}}}
}
