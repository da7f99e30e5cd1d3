package ops

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

func sortOps() []*ir.OpDef { return []*ir.OpDef{sortRow(), argsortRow(), topKRow()} }

const orderDoc = "The order is total: −0 equals +0, NaNs equal each other and are greater than all numbers. Equal elements keep their order, whichever way it goes. "

// sortKey maps raw bits of accumulation type d to a u64 whose order is the op's.
func sortKey(d dtype.Type, b uint64, descending bool) uint64 {
	var k uint64
	bits := 8 * uint(d.Size())
	sign := uint64(1) << (bits - 1)
	mask := ^uint64(0) >> (64 - bits)
	switch {
	case isNaNBits(d, b):
		k = mask
	case d.IsFloat():
		if b == sign { // −0
			b = 0
		}
		if b&sign != 0 {
			k = ^b & mask
		} else {
			k = b | sign
		}
	case d.IsSigned():
		k = b ^ sign
	default:
		k = b
	}
	if descending {
		k = ^k & mask
	}
	return k
}

// sortKeyExpr is sortKey in a kernel: an unsigned integer of x's width (u32 below 32 bits).
func sortKeyExpr(x *kern.Expr, descending bool) *kern.Expr {
	d := x.DType
	var k *kern.Expr
	switch {
	case d.IsFloat():
		u := dtype.U32
		if d == dtype.F64 {
			u = dtype.U64
		}
		b := kern.Bitcast(x, u)
		sign := kern.Bits(u, 1<<(8*uint(u.Size())-1))
		b = kern.Select(kern.Eq(b, sign), kern.Zero(u), b)
		k = kern.Select(kern.Ne(kern.And(b, sign), kern.Zero(u)), kern.Not(b), kern.Or(b, sign))
		k = kern.Select(kern.Ne(x, x), kern.Not(kern.Zero(u)), k)
	case d.Size() == 8:
		k = kern.Convert(x, dtype.U64)
		if d.IsSigned() {
			k = kern.Xor(k, kern.U64(1<<63))
		}
	case d.IsSigned():
		k = kern.Xor(kern.Convert(kern.Convert(x, dtype.I32), dtype.U32), kern.U32(1<<31))
	default:
		k = kern.Convert(x, dtype.U32)
	}
	if descending {
		k = kern.Not(k)
	}
	return k
}

// keyType is the type of sortKeyExpr for elements of type d.
func keyType(d dtype.Type) dtype.Type {
	if d.Size() == 8 {
		return dtype.U64
	}
	return dtype.U32
}

// sortedLine is the order in which the elements of a line stand: places of the smallest first.
func sortedLine(x *tensor.Tensor, base, n, stride int64, descending bool) []int64 {
	d := x.DType.Accum()
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = sortKey(d, accGet(x, base+int64(i)*stride), descending)
	}
	order := seq(int(n))
	slices.SortStableFunc(order, func(a, b int64) int {
		switch {
		case keys[a] < keys[b]:
			return -1
		case keys[a] > keys[b]:
			return 1
		}
		return 0
	})
	return order
}

func sortAttrs() []ir.AttrDef {
	return []ir.AttrDef{
		{Name: "axis", Kind: "int", Doc: "axis along which lines are sorted"},
		{Name: "descending", Kind: "bool", Default: false, Doc: "greatest first"},
	}
}

// fitsI32 is the constraint that places along the axis fit i32.
func fitsI32(label string) ir.Constraint {
	return ir.Constraint{Label: label, Text: "places along the axis fit i32", Check: func(op *ir.Op) error {
		if n := op.In(0).Shape[op.Attrs.Int("axis")]; n >= 1<<31 {
			return fmt.Errorf("operand %v has %d elements along axis %d", op.In(0), n, op.Attrs.Int("axis"))
		}
		return nil
	}}
}

func sortCost(op *ir.Op) ir.Cost {
	n := op.In(0).Shape[op.Attrs.Int("axis")]
	steps := int64(1)
	for m := n; m > 1; m /= 2 {
		steps++
	}
	return ir.Cost{Flops: steps * op.In(0).Len(), Bytes: ownBytes(op) + steps*8*op.In(0).Len()}
}

func sortRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "sort", Family: "sort",
		Doc: "The operands with the elements of each line along `axis` rearranged so that those of `key` ascend; the others follow it. " + orderDoc +
			"It decides where any result is of integers, since a payload of integers is what routing reads.",
		Operands: []string{"key", "others…"}, Results: []string{"sorted…"}, Attrs: sortAttrs(),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if _, err := axisInfer(op); err != nil {
				return nil, err
			}
			for i, v := range op.Operands {
				if !sameShape(v.Type.Shape, op.In(0).Shape) {
					return nil, fmt.Errorf("operand %d is %v, the key is %v", i, v.Type, op.In(0))
				}
			}
			return typesOf(op.Operands), nil
		},
		Constraints: []ir.Constraint{wantNumbers("C1", 0), fitsI32("C2"), {Label: "C3", Text: "keys of generators can't be sorted", Check: func(op *ir.Op) error {
			for i := range op.Operands {
				if op.In(i).DType == dtype.Key {
					return fmt.Errorf("operand %d is %v", i, op.In(i))
				}
			}
			return nil
		}}},
		Det: func(op *ir.Op) ir.Det {
			for i := range op.Operands {
				if !op.In(i).DType.IsFloat() {
					return ir.Decides
				}
			}
			return ir.Exact
		},
		Cost: sortCost,
		VJP: func(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			b, axis := em{bb}, op.Attrs.Int("axis")
			grads := make([]*ir.Value, len(op.Operands))
			size := op.In(0).Shape[axis]
			var at *ir.Value
			for i, d := range douts {
				if d == nil || !op.In(i).DType.IsFloat() {
					continue
				}
				if size == 0 {
					grads[i] = d
					continue
				}
				if at == nil {
					at = b.op1("argsort", op.Operands[0], ir.A("axis", axis), ir.A("descending", op.Attrs.Bool("descending")))
				}
				grads[i] = b.op2("scatter_along", d, at, ir.A("axis", axis), ir.A("size", size))
			}
			return grads, nil
		},
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) { return sortKern(op, false) },
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			out := make([]*tensor.Tensor, len(in))
			for i, t := range in {
				out[i] = tensor.New(t.DType, t.Shape...)
			}
			eachSorted(in[0], op, func(to, from, _ int64) {
				for k, t := range in {
					out[k].SetBits(to, t.Bits(from))
				}
			})
			return out, nil
		},
	}
}

// eachSorted calls put for each element of the result: its place, that of the element which
// comes there, and that element's index along the axis.
func eachSorted(key *tensor.Tensor, op *ir.Op, put func(to, from, i int64)) {
	p, n, q := linesOf(key.Shape, op.Attrs.Int("axis"))
	for pi := range p {
		for qi := range q {
			base := pi*n*q + qi
			for r, i := range sortedLine(key, base, n, q, op.Attrs.Bool("descending")) {
				put(base+int64(r)*q, base+i*q, i)
			}
		}
	}
}

func argsortRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "argsort", Family: "sort",
		Doc:      "Indices that would sort each line of `x` along `axis`: take_along(x, argsort(x)) = sort(x). " + orderDoc,
		Operands: []string{"x"}, Results: []string{"index"}, Attrs: sortAttrs(),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			ts, err := axisInfer(op)
			if err != nil {
				return nil, err
			}
			return oneType(ts[0].With(dtype.I32))
		},
		Constraints: []ir.Constraint{wantNumbers("C1", 0), fitsI32("C2")},
		Det:         func(*ir.Op) ir.Det { return ir.Decides },
		Cost:        sortCost,
		NoGrad:      "an index has no gradient", NoGradZero: true,
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) { return sortKern(op, true) },
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			y := tensor.New(dtype.I32, in[0].Shape...)
			eachSorted(in[0], op, func(to, _, i int64) { y.SetBits(to, uint64(i)) })
			return one(y)
		},
	}
}

// rankLimit is the longest line that is sorted by counting, for each element, those before it:
// quadratic, but 64 lanes wide.
const rankLimit = 512

// sortKern sorts one line per tile. Results are the operands rearranged, or the indices.
func sortKern(op *ir.Op, indices bool) ([]ir.KernelUse, error) {
	t := op.In(0)
	p, n, q := linesOf(t.Shape, op.Attrs.Int("axis"))
	b := kern.NewBuilder("sort", max(1, p*q))
	use := ir.KernelUse{Kernel: b.K}
	var ins, outs []kern.Buf
	for i := range op.Operands {
		ins = append(ins, b.In(fmt.Sprintf("x%d", i), op.In(i).DType, op.In(i).Len()))
		use.Args = append(use.Args, i)
	}
	for i := range op.Results {
		outs = append(outs, b.Out(fmt.Sprintf("y%d", i), op.Out(i).DType, op.Out(i).Len()))
		use.Args = append(use.Args, len(op.Operands)+i)
	}
	if t.Len() == 0 {
		return []ir.KernelUse{use}, nil
	}
	get := kern.Get
	newVar := func(name string) *kern.Var { return kern.NewVar(name, dtype.I64) }
	base := newVar("base")
	b.Do(kern.Let(base, scaled(kern.Div(b.TileIndex(), kern.I64(q)), n*q, kern.Rem(b.TileIndex(), kern.I64(q)))))
	place := func(i *kern.Expr) *kern.Expr { return kern.Add(get(base), kern.Mul(i, kern.I64(q))) }
	// put moves element from of the line to place to.
	put := func(to, from *kern.Expr) []kern.Stmt {
		if indices {
			return []kern.Stmt{outs[0].Set(place(to), kern.Convert(from, dtype.I32))}
		}
		var s []kern.Stmt
		for i := range ins {
			s = append(s, outs[i].Set(place(to), ins[i].At(place(from))))
		}
		return s
	}
	keyOf := func(i *kern.Expr) *kern.Expr {
		return sortKeyExpr(wide(ins[0], place(i)), op.Attrs.Bool("descending"))
	}
	kt := keyType(t.DType.Accum())
	i, j := newVar("i"), newVar("j")
	if n <= rankLimit {
		keys := kern.NewLocal("keys", kt, n)
		rank, mine := newVar("rank"), kern.NewVar("mine", kt)
		other := keys.At(get(j))
		before := kern.Or(kern.Lt(other, get(mine)), kern.And(kern.Eq(other, get(mine)), kern.Lt(get(j), get(i))))
		stmts := []kern.Stmt{
			kern.Let(mine, keys.At(get(i))), kern.Let(rank, kern.I64(0)),
			kern.Range(j, kern.I64(n), kern.Let(rank, kern.Add(get(rank), kern.Select(before, kern.I64(1), kern.I64(0))))),
		}
		k := newVar("k")
		b.Do(kern.Lane(k, kern.I64(n), keys.Set(get(k), keyOf(get(k)))),
			kern.Lane(i, kern.I64(n), append(stmts, put(get(rank), get(i))...)...))
		return []ir.KernelUse{use}, nil
	}

	// Merge sort of indices, bottom up; two halves of a workspace take turns as source and target.
	lines := p * q
	order := b.Out("order", dtype.I32, 2*n*lines)
	keys := b.Out("keys", kt, n*lines)
	ws := len(op.Operands) + len(op.Results)
	use.Args = append(use.Args, ws, ws+1)
	use.Workspaces = []int64{4 * 2 * n * lines, kt.Size() * n * lines}
	src, dst, kb, tmp := newVar("src"), newVar("dst"), newVar("keys0"), newVar("tmp")
	run, lo, mid, hi, l, r, o := newVar("run"), newVar("lo"), newVar("mid"), newVar("hi"), newVar("l"), newVar("r"), newVar("o")
	pick := newVar("pick")
	left, takeLeft := kern.NewVar("take_left", dtype.Bool), kern.NewVar("left_first", dtype.Bool)
	at := func(buf, i *kern.Expr) *kern.Expr { return order.At(kern.Add(buf, i)) }
	keyAt := func(i *kern.Expr) *kern.Expr {
		return keys.At(kern.Add(get(kb), kern.Convert(at(get(src), i), dtype.I64)))
	}
	b.Do(
		kern.Let(src, kern.Mul(b.TileIndex(), kern.I64(2*n))), kern.Let(dst, kern.Add(get(src), kern.I64(n))),
		kern.Let(kb, kern.Mul(b.TileIndex(), kern.I64(n))),
		kern.Lane(i, kern.I64(n), keys.Set(kern.Add(get(kb), get(i)), keyOf(get(i))), order.Set(kern.Add(get(src), get(i)), kern.Convert(get(i), dtype.I32))),
		kern.Let(run, kern.I64(1)),
		&kern.While{Cond: kern.Lt(get(run), kern.I64(n)), Body: []kern.Stmt{
			kern.Let(lo, kern.I64(0)),
			&kern.While{Cond: kern.Lt(get(lo), kern.I64(n)), Body: []kern.Stmt{
				kern.Let(mid, kern.Min(kern.Add(get(lo), get(run)), kern.I64(n))),
				kern.Let(hi, kern.Min(kern.Add(get(mid), get(run)), kern.I64(n))),
				kern.Let(l, get(lo)), kern.Let(r, get(mid)),
				kern.Let(o, get(lo)),
				&kern.While{Cond: kern.Lt(get(o), get(hi)), Body: []kern.Stmt{
					// The left one unless it is used up, or the right one's key is less.
					kern.Let(left, kern.Lt(get(l), get(mid))),
					&kern.If{Cond: kern.And(get(left), kern.Lt(get(r), get(hi))), Then: []kern.Stmt{
						kern.Let(takeLeft, kern.Le(keyAt(get(l)), keyAt(get(r)))),
						kern.Let(left, get(takeLeft)),
					}},
					&kern.If{Cond: get(left), Then: []kern.Stmt{
						kern.Let(pick, get(l)), kern.Let(l, kern.Add(get(l), kern.I64(1))),
					}, Else: []kern.Stmt{
						kern.Let(pick, get(r)), kern.Let(r, kern.Add(get(r), kern.I64(1))),
					}},
					order.Set(kern.Add(get(dst), get(o)), at(get(src), get(pick))),
					kern.Let(o, kern.Add(get(o), kern.I64(1))),
				}},
				kern.Let(lo, get(hi)),
			}},
			kern.Let(tmp, get(src)), kern.Let(src, get(dst)), kern.Let(dst, get(tmp)),
			kern.Let(run, kern.Mul(get(run), kern.I64(2))),
		}},
		kern.Lane(j, kern.I64(n), put(get(j), kern.Convert(at(get(src), get(j)), dtype.I64))...),
	)
	return []ir.KernelUse{use}, nil
}

func topKRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "top_k", Family: "sort",
		Doc: "The k greatest elements of each line along the last axis, greatest first, and their indices (i32). Of equal elements the one with the lower index " +
			"comes first; −0 equals +0, and NaN is greater than all numbers.",
		Operands: []string{"x"}, Results: []string{"values", "indices"},
		Attrs: []ir.AttrDef{{Name: "k", Kind: "int", Doc: "how many"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			x, k := op.In(0), op.Attrs.Int("k")
			if x.Rank() == 0 || k < 0 || k > x.Shape[x.Rank()-1] {
				return nil, fmt.Errorf("k = %d of the last dimension of operand %v", k, x)
			}
			shape := append(slices.Clone(x.Shape[:x.Rank()-1]), k)
			return []ir.Type{ir.T(x.DType, shape...), ir.T(dtype.I32, shape...)}, nil
		},
		Constraints: []ir.Constraint{wantNumbers("C1", 0), {Label: "C2", Text: "indices fit i32", Check: func(op *ir.Op) error {
			if n := op.In(0).Shape[op.In(0).Rank()-1]; n >= 1<<31 {
				return fmt.Errorf("%d elements in the last dimension of %v", n, op.In(0))
			}
			return nil
		}}},
		Det: func(*ir.Op) ir.Det { return ir.Decides },
		Cost: func(op *ir.Op) ir.Cost {
			return ir.Cost{Flops: max(1, op.Attrs.Int("k")) * op.In(0).Len(), Bytes: ownBytes(op)}
		},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			x := op.In(0)
			if douts[0] == nil || !x.DType.IsFloat() {
				return []*ir.Value{nil}, nil
			}
			last := int64(x.Rank()) - 1
			if x.Shape[last] == 0 {
				return []*ir.Value{em{b}.zeros(x)}, nil
			}
			return []*ir.Value{em{b}.op2("scatter_along", douts[0], op.Results[1], ir.A("axis", last), ir.A("size", x.Shape[last]))}, nil
		},
		Kern: topKKern,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, k := in[0], op.Attrs.Int("k")
			vals, at := tensor.New(x.DType, op.Out(0).Shape...), tensor.New(dtype.I32, op.Out(0).Shape...)
			p, n, _ := linesOf(x.Shape, int64(len(x.Shape))-1)
			for pi := range p {
				for r, i := range sortedLine(x, pi*n, n, 1, true)[:k] {
					vals.SetBits(pi*k+int64(r), x.Bits(pi*n+i))
					at.SetBits(pi*k+int64(r), uint64(i))
				}
			}
			return []*tensor.Tensor{vals, at}, nil
		},
	}
}

// topKKern finds the elements one after the other: each time the one with the least key (descending) among those
// that come after the last one found. Short lines go one to a lane, long ones 64 elements
// at a time.
func topKKern(op *ir.Op) ([]ir.KernelUse, error) {
	t, k := op.In(0), op.Attrs.Int("k")
	p, n, _ := linesOf(t.Shape, int64(t.Rank())-1)
	b := kern.NewBuilder("top_k", 1)
	x := b.In("x", t.DType, t.Len())
	vals, at := b.Out("values", t.DType, p*k), b.Out("indices", dtype.I32, p*k)
	use := []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1, 2}}}
	if p*k == 0 {
		return use, nil
	}
	kt := keyType(t.DType.Accum())
	get := kern.Get
	i, r := kern.NewVar("i", dtype.I64), kern.NewVar("r", dtype.I64)
	lastKey, lastIdx := kern.NewVar("last_key", kt), kern.NewVar("last_index", dtype.I64)
	bestKey, bestIdx := kern.NewVar("best_key", kt), kern.NewVar("best_index", dtype.I64)
	key := func(e *kern.Expr) *kern.Expr { return sortKeyExpr(wide(x, e), true) }
	// after: (key, i) comes after the last one found; before the first none was.
	after := func(key *kern.Expr) *kern.Expr {
		return kern.Or(kern.Eq(get(r), kern.I64(0)),
			kern.Or(kern.Gt(key, get(lastKey)), kern.And(kern.Eq(key, get(lastKey)), kern.Gt(get(i), get(lastIdx)))))
	}
	most := kern.Not(kern.Zero(kt))
	if n <= 1024 && (p >= kern.Lanes || n < kern.Lanes) {
		this, take := kern.NewVar("key", kt), kern.NewVar("take", dtype.Bool)
		eachLine(b, p, 1, func(line, _ *kern.Expr) []kern.Stmt {
			better := kern.Or(kern.Lt(get(bestIdx), kern.I64(0)), kern.Lt(get(this), get(bestKey)))
			from := scaled(line, n, get(bestIdx))
			to := scaled(line, k, get(r))
			return []kern.Stmt{
				kern.Let(lastKey, kern.Zero(kt)), kern.Let(lastIdx, kern.I64(-1)),
				kern.Range(r, kern.I64(k),
					kern.Let(bestKey, most), kern.Let(bestIdx, kern.I64(-1)),
					kern.Range(i, kern.I64(n),
						kern.Let(this, key(scaled(line, n, get(i)))),
						kern.Let(take, kern.And(after(get(this)), better)),
						kern.Let(bestKey, kern.Select(get(take), get(this), get(bestKey))),
						kern.Let(bestIdx, kern.Select(get(take), get(i), get(bestIdx)))),
					kern.Let(lastKey, get(bestKey)), kern.Let(lastIdx, get(bestIdx)),
					vals.Set(to, x.At(from)), at.Set(to, kern.Convert(get(bestIdx), dtype.I32))),
			}
		})
		return use, nil
	}
	b.K.Tiles = p
	line := b.TileIndex()
	this := key(scaled(line, n, get(i)))
	j := kern.NewVar("j", dtype.I64)
	candidate := sortKeyExpr(wide(x, scaled(line, n, get(j))), true)
	afterJ := kern.Or(kern.Eq(get(r), kern.I64(0)),
		kern.Or(kern.Gt(candidate, get(lastKey)), kern.And(kern.Eq(candidate, get(lastKey)), kern.Gt(get(j), get(lastIdx)))))
	to := scaled(line, k, get(r))
	b.Do(kern.Let(lastKey, kern.Zero(kt)), kern.Let(lastIdx, kern.I64(-1)),
		kern.Range(r, kern.I64(k),
			kern.Lane(i, kern.I64(n)).Reduce(kern.RedMin, bestKey, kern.Select(after(this), this, most)),
			kern.Lane(j, kern.I64(n)).Reduce(kern.RedMin, bestIdx,
				kern.Select(kern.And(afterJ, kern.Eq(candidate, get(bestKey))), get(j), kern.I64(n-1))),
			kern.Let(lastKey, get(bestKey)), kern.Let(lastIdx, get(bestIdx)),
			vals.Set(to, x.At(scaled(line, n, get(bestIdx)))), at.Set(to, kern.Convert(get(bestIdx), dtype.I32))))
	return use, nil
}
