package ops

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

// Dimension numbers of gather and scatter as in StableHLO, whose specification they follow
// (gather, scatter); the names are those of the attributes.
//
// A window is the piece of x (gather: that is read, scatter: that is written) that belongs to one
// index vector. Its dimensions in the other tensor (the result of gather, the updates of scatter) are
// window; the others are the batch dimensions, in the order of those of the indices without
// the index vector's.
type dimNumbers struct {
	window    []int64 // dims of the result (gather: offset_dims; scatter: update_window_dims)
	inserted  []int64 // dims of x where the window has size 1 and is dropped
	xBatch    []int64 // dims of x that go with …
	idxBatch  []int64 // … these dims of the indices
	startMap  []int64 // dim of x for each component of an index vector
	vectorDim int64   // dim of the indices that holds the vector; its rank: vectors have one component
}

func gatherDims(op *ir.Op) dimNumbers {
	a := op.Attrs
	return dimNumbers{a.Ints("offset_dims"), a.Ints("collapsed_slice_dims"), a.Ints("operand_batching_dims"),
		a.Ints("start_indices_batching_dims"), a.Ints("start_index_map"), a.Int("index_vector_dim")}
}

func scatterDims(op *ir.Op) dimNumbers {
	a := op.Attrs
	return dimNumbers{a.Ints("update_window_dims"), a.Ints("inserted_window_dims"), a.Ints("input_batching_dims"),
		a.Ints("scatter_indices_batching_dims"), a.Ints("scatter_dims_to_operand_dims"), a.Int("index_vector_dim")}
}

// gatherAttrs turns scatter's dimension numbers into those of the gather that reads the same windows.
func (d dimNumbers) gatherAttrs(sizes []int64, mode string) []ir.Attr {
	return []ir.Attr{ir.A("offset_dims", d.window), ir.A("collapsed_slice_dims", d.inserted), ir.A("operand_batching_dims", d.xBatch),
		ir.A("start_indices_batching_dims", d.idxBatch), ir.A("start_index_map", d.startMap), ir.A("index_vector_dim", d.vectorDim),
		ir.A("slice_sizes", sizes), ir.A("mode", mode)}
}

// scatterAttrs is the opposite of gatherAttrs.
func (d dimNumbers) scatterAttrs(kind, mode string) []ir.Attr {
	return []ir.Attr{ir.A("update_window_dims", d.window), ir.A("inserted_window_dims", d.inserted), ir.A("input_batching_dims", d.xBatch),
		ir.A("scatter_indices_batching_dims", d.idxBatch), ir.A("scatter_dims_to_operand_dims", d.startMap), ir.A("index_vector_dim", d.vectorDim),
		ir.A("kind", kind), ir.A("mode", mode)}
}

// windowDimsOfX are the dims of x that a window has in the result, in order.
func (d dimNumbers) windowDimsOfX(rank int) []int64 {
	return without(seq(rank), append(slices.Clone(d.inserted), d.xBatch...))
}

// batchDimsOfIdx are the dims of the indices apart from the vector's.
func (d dimNumbers) batchDimsOfIdx(rank int) []int64 { return without(seq(rank), []int64{d.vectorDim}) }

// check reports dimension numbers that do not fit x and the indices.
func (d dimNumbers) check(x, idx ir.Type) error {
	distinct := func(what string, dims []int64, rank int) error {
		if !distinctAxes(dims, rank) {
			return fmt.Errorf("%s %v are not distinct dimensions of rank %d (operand %v, indices %v)", what, dims, rank, x, idx)
		}
		return nil
	}
	if err := distinct("collapsed or inserted, batching dimensions", append(slices.Clone(d.inserted), d.xBatch...), x.Rank()); err != nil {
		return err
	}
	if err := distinct("index map", d.startMap, x.Rank()); err != nil {
		return err
	}
	if err := distinct("batching dimensions of the indices", d.idxBatch, idx.Rank()); err != nil {
		return err
	}
	if d.vectorDim < 0 || d.vectorDim > int64(idx.Rank()) {
		return fmt.Errorf("index_vector_dim %d of indices %v", d.vectorDim, idx)
	}
	n := int64(1)
	if d.vectorDim < int64(idx.Rank()) {
		n = idx.Shape[d.vectorDim]
	}
	if n != int64(len(d.startMap)) {
		return fmt.Errorf("index vectors of %d components (indices %v) for map %v", n, idx, d.startMap)
	}
	if len(d.xBatch) != len(d.idxBatch) {
		return fmt.Errorf("batching dimensions %v of operand %v and %v of indices %v", d.xBatch, x, d.idxBatch, idx)
	}
	for i, xd := range d.xBatch {
		id := d.idxBatch[i]
		if id == d.vectorDim || x.Shape[xd] != idx.Shape[id] {
			return fmt.Errorf("batching dimensions %d of operand %v and %d of indices %v differ", xd, x, id, idx)
		}
		if slices.Contains(d.startMap, xd) {
			return fmt.Errorf("dimension %d of operand %v is indexed and a batching dimension", xd, x)
		}
	}
	return nil
}

// resultShape is the shape of gather's result: windows of sizes in x, one for each vector.
func (d dimNumbers) resultShape(x, idx ir.Type, sizes []int64) ([]int64, error) {
	win, batch := pick(sizes, d.windowDimsOfX(x.Rank())), pick(idx.Shape, d.batchDimsOfIdx(idx.Rank()))
	rank := len(win) + len(batch)
	if len(d.window) != len(win) || axesOK(d.window, rank) != nil {
		return nil, fmt.Errorf("window dimensions %v for %d of them in a result of rank %d (operand %v, indices %v)", d.window, len(win), rank, x, idx)
	}
	shape := make([]int64, 0, rank)
	for i := range rank {
		if slices.Contains(d.window, int64(i)) {
			shape, win = append(shape, win[0]), win[1:]
		} else {
			shape, batch = append(shape, batch[0]), batch[1:]
		}
	}
	return shape, nil
}

// sizesOf are the sizes in x of the windows that updates have.
func (d dimNumbers) sizesOf(x, upd ir.Type) []int64 {
	sizes := slices.Repeat([]int64{1}, x.Rank())
	for i, xd := range d.windowDimsOfX(x.Rank()) {
		if i < len(d.window) && inRange(d.window[i], upd.Rank()) {
			sizes[xd] = upd.Shape[d.window[i]]
		}
	}
	return sizes
}

// position gives, for the element at of the result (gather) or the updates (scatter), its index in x;
// start reads component k of the vector that belongs to the batch index.
type positions[T any] struct {
	zero     T
	add      func(a, b T) T
	start    func(idx []T) T // element of the indices
	constant func(i int64) T
}

// locate is the start of the window and the offset in it, for each dim of x.
func locate[T any](p positions[T], d dimNumbers, xRank, idxRank int, at []T) (start, offset []T) {
	start, offset = make([]T, xRank), make([]T, xRank)
	for i := range start {
		start[i], offset[i] = p.zero, p.zero
	}
	var batch []T
	for i := range at {
		if !slices.Contains(d.window, int64(i)) {
			batch = append(batch, at[i])
		}
	}
	for k, xd := range d.startMap {
		vec := slices.Clone(batch)
		if d.vectorDim < int64(idxRank) {
			vec = slices.Insert(vec, int(d.vectorDim), p.constant(int64(k)))
		}
		start[xd] = p.start(vec)
	}
	dims := d.batchDimsOfIdx(idxRank)
	for i, xd := range d.xBatch {
		offset[xd] = batch[slices.Index(dims, d.idxBatch[i])]
	}
	for i, xd := range d.windowDimsOfX(xRank) {
		offset[xd] = at[d.window[i]]
	}
	return start, offset
}

func hostPositions(idx *tensor.Tensor) positions[int64] {
	return positions[int64]{
		add:      func(a, b int64) int64 { return a + b },
		start:    func(at []int64) int64 { return indexAt(idx, flatten(idx.Shape, at)) },
		constant: func(i int64) int64 { return i },
	}
}

func kernPositions(load func(at ...*kern.Expr) *kern.Expr) positions[*kern.Expr] {
	return positions[*kern.Expr]{
		zero:     kern.I64(0),
		add:      kern.Add,
		start:    func(at []*kern.Expr) *kern.Expr { return indexExpr(load(at...)) },
		constant: kern.I64,
	}
}

const dimDocs = "Dimension numbers are those of StableHLO. "

func dimAttrs(window, inserted, xBatch, idxBatch, startMap string) []ir.AttrDef {
	none := []int64{}
	return []ir.AttrDef{
		{Name: window, Kind: "ints", Default: none, Doc: "dimensions of the windows in the tensor that holds them"},
		{Name: inserted, Kind: "ints", Default: none, Doc: "dimensions of x where windows have size 1 and which they lack"},
		{Name: xBatch, Kind: "ints", Default: none, Doc: "batching dimensions of x"},
		{Name: idxBatch, Kind: "ints", Default: none, Doc: "batching dimensions of the indices"},
		{Name: startMap, Kind: "ints", Doc: "dimension of x for each component of an index vector"},
		{Name: "index_vector_dim", Kind: "int", Doc: "dimension of the indices that holds the vectors; their rank: one component"},
	}
}

func gatherRow() *ir.OpDef {
	sizesOK := func(op *ir.Op) error {
		d, x, sizes := gatherDims(op), op.In(0), op.Attrs.Ints("slice_sizes")
		if len(sizes) != x.Rank() {
			return fmt.Errorf("slice_sizes %v for operand %v", sizes, x)
		}
		for i, n := range sizes {
			if n < 0 || n > x.Shape[i] {
				return fmt.Errorf("slice_sizes %v do not fit in operand %v", sizes, x)
			}
			if n != 1 && (slices.Contains(d.inserted, int64(i)) || slices.Contains(d.xBatch, int64(i))) {
				return fmt.Errorf("slice_sizes %v: dimension %d is collapsed or batching and must have size 1", sizes, i)
			}
		}
		return nil
	}
	return &ir.OpDef{
		Name: "gather", Family: "index",
		Routes: routes(1),
		Doc: "Windows of `x` of size `slice_sizes`, one for each index vector of `idx`. " + dimDocs +
			"With mode clamp a start is clamped so that its window lies within x; with mode fill, elements of a window that lie outside read as zero.",
		Operands: []string{"x", "idx"}, Results: []string{"y"},
		Attrs: append(dimAttrs("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map"),
			ir.AttrDef{Name: "slice_sizes", Kind: "ints", Doc: "size of a window along each dimension of x"},
			ir.AttrDef{Name: "mode", Kind: "string", Default: "clamp", Doc: "clamp or fill"}),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			d, x, idx := gatherDims(op), op.In(0), op.In(1)
			if err := d.check(x, idx); err != nil {
				return nil, err
			}
			if err := sizesOK(op); err != nil {
				return nil, err
			}
			shape, err := d.resultShape(x, idx, op.Attrs.Ints("slice_sizes"))
			if err != nil {
				return nil, err
			}
			return oneType(ir.T(x.DType, shape...))
		},
		Constraints: []ir.Constraint{wantIndex("C1", 1), wantPlain("C2", 0), modeOf("C3", "clamp", "fill")},
		Cost:        moveCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() {
				return []*ir.Value{nil, nil}, nil
			}
			mode := "clamp"
			if op.Attrs.Str("mode") == "fill" {
				mode = "drop"
			}
			dx := b.Op("scatter", []*ir.Value{em{b}.zeros(op.In(0)), op.Operands[1], douts[0]}, gatherDims(op).scatterAttrs("add", mode)...)
			return []*ir.Value{dx, nil}, nil
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, at []*kern.Expr) []*kern.Expr {
			x, sizes := op.In(0), op.Attrs.Ints("slice_sizes")
			p := kernPositions(func(at ...*kern.Expr) *kern.Expr { return c.Arg(1, at...) })
			start, offset := locate(p, gatherDims(op), x.Rank(), op.In(1).Rank(), at)
			if op.Attrs.Str("mode") == "fill" {
				inside := kern.Bool(true)
				for i := range start {
					start[i] = kern.Add(start[i], offset[i])
					inside = kern.And(inside, withinExpr(start[i], x.Shape[i]))
				}
				return []*kern.Expr{c.ArgIf(inside, 0, kern.Zero(x.DType.Accum()), start...)}
			}
			for i := range start {
				start[i] = kern.Add(clampExpr(start[i], x.Shape[i]-sizes[i]), offset[i])
			}
			return []*kern.Expr{c.Arg(0, start...)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, sizes, d := in[0], op.Attrs.Ints("slice_sizes"), gatherDims(op)
			fill := op.Attrs.Str("mode") == "fill"
			return one(gatherElements(x, op.Out(0).Shape, func(at []int64) int64 {
				start, offset := locate(hostPositions(in[1]), d, len(x.Shape), len(in[1].Shape), at)
				for i := range start {
					if !fill {
						start[i] = clampIdx(start[i], x.Shape[i]-sizes[i])
					}
					if start[i] < -x.Shape[i] || start[i] > x.Shape[i] { // far outside: no overflow below
						return -1
					}
					if start[i] += offset[i]; start[i] < 0 || start[i] >= x.Shape[i] {
						return -1
					}
				}
				return flatten(x.Shape, start)
			}))
		},
	}
}

// modeOf is the constraint on the attribute mode.
func modeOf(label string, modes ...string) ir.Constraint { return oneOf(label, "mode", modes...) }

// oneOf is the constraint that a string attribute is one of words.
func oneOf(label, attr string, words ...string) ir.Constraint {
	return ir.Constraint{Label: label, Text: fmt.Sprintf("%s is one of %v", attr, words), Check: func(op *ir.Op) error {
		if !slices.Contains(words, op.Attrs.Str(attr)) {
			return fmt.Errorf("%s %q", attr, op.Attrs.Str(attr))
		}
		return nil
	}}
}

func scatterRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "scatter", Family: "index",
		Routes: routes(1),
		Doc: "`x` with windows of `updates` joined into it, one for each index vector of `idx`. " + dimDocs +
			"kind set replaces, add, mul, min and max join the element with the update (f16 and bf16 in f32, rounded once at the end). Updates apply in the " +
			"row-major order of `updates`, so with kind set the last one wins. With mode drop, elements of a window that lie outside of x are dropped; " +
			"with mode clamp a start is clamped so that its window lies within.\n\n" +
			"Gradient of set: to the update that won; of min and max: shared evenly by x and all updates that equal the result; of mul: the product of the others, zeros included.",
		Operands: []string{"x", "idx", "updates"}, Results: []string{"y"},
		Attrs: append(dimAttrs("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims", "scatter_dims_to_operand_dims"),
			ir.AttrDef{Name: "kind", Kind: "string", Default: "set", Doc: "set, add, mul, min or max"},
			ir.AttrDef{Name: "mode", Kind: "string", Default: "drop", Doc: "drop or clamp"}),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			d, x, idx, upd := scatterDims(op), op.In(0), op.In(1), op.In(2)
			if err := d.check(x, idx); err != nil {
				return nil, err
			}
			sizes := d.sizesOf(x, upd)
			for i, n := range sizes {
				if n > x.Shape[i] {
					return nil, fmt.Errorf("windows %v of updates %v do not fit in operand %v", sizes, upd, x)
				}
			}
			shape, err := d.resultShape(x, idx, sizes)
			if err != nil {
				return nil, err
			}
			if !slices.Equal(shape, upd.Shape) || upd.DType != x.DType {
				return nil, fmt.Errorf("updates %v, want %v (operand %v, indices %v)", upd, ir.T(x.DType, shape...), x, idx)
			}
			return oneType(x)
		},
		Constraints: []ir.Constraint{wantIndex("C1", 1), modeOf("C2", "drop", "clamp"), oneOf("C3", "kind", "set", "add", "mul", "min", "max"),
			{Label: "C4", Text: "elements are numbers; bool for kind set", Check: func(op *ir.Op) error {
				if d := op.In(0).DType; !d.IsFloat() && !d.IsInt() && !(d == dtype.Bool && op.Attrs.Str("kind") == "set") {
					return fmt.Errorf("operand %v", op.In(0))
				}
				return nil
			}}},
		Cost: func(op *ir.Op) ir.Cost {
			c := ir.Cost{Bytes: ownBytes(op) + op.In(2).Bytes()}
			if op.Attrs.Str("kind") != "set" {
				c.Flops = op.In(2).Len()
			}
			return c
		},
		VJP:  scatterVJP,
		Kern: scatterKern,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, upd, d := in[0], in[2], scatterDims(op)
			sizes := d.sizesOf(op.In(0), op.In(2))
			join, _ := reducer(op.Attrs.Str("kind"), x.DType.Accum())
			y := newAccTensor(op.Out(0), 0)
			for i := range y.bits {
				y.bits[i] = accGet(x, int64(i))
			}
			eachIndex(upd.Shape, func(flat int64, at []int64) {
				start, offset := locate(hostPositions(in[1]), d, len(x.Shape), len(in[1].Shape), at)
				for i := range start {
					if op.Attrs.Str("mode") == "clamp" {
						start[i] = clampIdx(start[i], x.Shape[i]-sizes[i])
					}
					if start[i] < -x.Shape[i] || start[i] > x.Shape[i] {
						return
					}
					if start[i] += offset[i]; start[i] < 0 || start[i] >= x.Shape[i] {
						return
					}
				}
				to := flatten(x.Shape, start)
				y.bits[to] = join(y.bits[to], accGet(upd, flat))
			})
			return one(y.tensor())
		},
	}
}

func scatterVJP(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	if !op.In(0).DType.IsFloat() {
		return make([]*ir.Value, 3), nil
	}
	b, d, dy := em{bb}, scatterDims(op), douts[0]
	x, idx, upd, y := op.Operands[0], op.Operands[1], op.Operands[2], op.Results[0]
	mode := op.Attrs.Str("mode")
	gmode := "fill"
	if mode == "clamp" {
		gmode = "clamp"
	}
	read := func(v *ir.Value) *ir.Value { // what v has at the place of each update
		return b.op2("gather", v, idx, d.gatherAttrs(d.sizesOf(x.Type, upd.Type), gmode)...)
	}
	write := func(kind string, into, u *ir.Value) *ir.Value {
		return b.Op("scatter", []*ir.Value{into, idx, u}, d.scatterAttrs(kind, mode)...)
	}
	switch op.Attrs.Str("kind") {
	case "add":
		return []*ir.Value{dy, nil, read(dy)}, nil
	case "set":
		dx := write("set", dy, b.zeros(upd.Type))
		// The update that won is the one whose number is still there.
		n := upd.Type.With(dtype.I32)
		number := b.reshape(b.Op("iota", nil, ir.A("shape", []int64{n.Len()}), ir.A("dtype", dtype.I32)), n.Shape)
		last := write("set", b.fill(x.Type.With(dtype.I32), -1), number)
		won := b.eq(read(last), number)
		return []*ir.Value{dx, nil, b.sel(won, read(dy), b.zeros(upd.Type))}, nil
	case "min", "max":
		ft := x.Type.DType
		hitX, hitU := b.eq(x, y), b.eq(upd, read(y))
		count := write("add", b.conv(hitX, ft), b.conv(hitU, ft))
		share := b.div(dy, count)
		return []*ir.Value{b.sel(hitX, share, b.zeros(x.Type)), nil, b.sel(hitU, read(share), b.zeros(upd.Type))}, nil
	case "mul":
		ft := x.Type.DType
		dx := b.mul(dy, write("mul", b.fill(x.Type, 1), upd))
		// Product of all but the zeros, and how many zeros, at each place.
		zx, zu := b.eq(x, b.zeros(x.Type)), b.eq(upd, b.zeros(upd.Type))
		nu := b.sel(zu, b.fill(upd.Type, 1), upd)
		prod := write("mul", b.sel(zx, b.fill(x.Type, 1), x), nu)
		zeros := write("add", b.conv(zx, ft), b.conv(zu, ft))
		g := b.div(read(b.mul(dy, prod)), nu)
		others := b.sub(read(zeros), b.conv(zu, ft)) // zeros among the others
		return []*ir.Value{dx, nil, b.sel(b.eq(others, b.zeros(upd.Type)), g, b.zeros(upd.Type))}, nil
	}
	return nil, fmt.Errorf("BUG: kind %q", op.Attrs.Str("kind"))
}

// scatterKern: where the last dimensions of x are whole windows, a tile owns a strip of
// those columns; otherwise a range of x's elements. A tile goes through all updates in order.
func scatterKern(op *ir.Op) ([]ir.KernelUse, error) {
	d, x, idxT, upd := scatterDims(op), op.In(0), op.In(1), op.In(2)
	kind, clamp := op.Attrs.Str("kind"), op.Attrs.Str("mode") == "clamp"
	sizes := d.sizesOf(x, upd)
	winX := d.windowDimsOfX(x.Rank())
	// cols: how many of the last dims are whole windows, last in the updates too, and not indexed.
	cols := 0
	for cols < len(winX) {
		k := len(winX) - 1 - cols
		xd, ud := int(winX[k]), int(d.window[k])
		if xd != x.Rank()-1-cols || ud != upd.Rank()-1-cols || sizes[xd] != x.Shape[xd] || slices.Contains(d.startMap, int64(xd)) {
			break
		}
		cols++
	}
	width := tensor.Len(x.Shape[x.Rank()-cols:])
	outer := upd.Shape[:upd.Rank()-cols]
	b := kern.NewBuilder("scatter_"+kind, 1)
	bx, bi, bu := b.In("x", x.DType, x.Len()), b.In("idx", idxT.DType, idxT.Len()), b.In("updates", upd.DType, upd.Len())
	use := ir.KernelUse{Kernel: b.K, Args: []int{0, 1, 2}}
	a := newAccum(b, op, &use)
	n := kern.NewVar("n", dtype.I64)
	lane, row := kern.NewVar("lane", dtype.I64), kern.NewVar("row", dtype.I64)

	// place: element of the updates given by its outer index and column 0 … → flat row of x, inside?
	place := func(flat *kern.Expr) (to, inside *kern.Expr) {
		at := unflatten(outer, flat)
		for range cols {
			at = append(at, kern.I64(0))
		}
		p := kernPositions(func(at ...*kern.Expr) *kern.Expr { return bi.At(flatExpr(idxT.Shape, at)) })
		start, offset := locate(p, d, x.Rank(), idxT.Rank(), at)
		to, inside = kern.I64(0), kern.Bool(true)
		for i := range x.Rank() - cols {
			if clamp {
				start[i] = clampExpr(start[i], x.Shape[i]-sizes[i])
			}
			pos := kern.Add(start[i], offset[i])
			inside = kern.And(inside, withinExpr(pos, x.Shape[i]))
			to = scaled(to, x.Shape[i], pos)
		}
		return to, inside
	}
	to := kern.NewVar("to", dtype.I64)
	rows := tensor.Len(x.Shape[:x.Rank()-cols])
	if width >= 16 {
		w := int64(kern.Lanes) * max(1, width/kern.Lanes/16)
		b.K.Tiles = ceilDiv(width, w)
		c0, vw := kern.NewVar("col0", dtype.I64), kern.NewVar("width", dtype.I64)
		b.Do(kern.Let(c0, kern.Mul(b.TileIndex(), kern.I64(w))), kern.Let(vw, sliceLen(kern.Get(c0), w, width)))
		elem := func(r *kern.Expr) *kern.Expr { return kern.Add(scaled(r, width, kern.Get(c0)), kern.Get(lane)) }
		b.Do(kern.Range(row, kern.I64(rows), kern.Lane(lane, kern.Get(vw), a.acc.Set(elem(kern.Get(row)), wide(bx, elem(kern.Get(row)))))))
		pos, inside := place(kern.Get(n))
		dst := elem(kern.Get(to))
		b.Do(kern.Range(n, kern.I64(tensor.Len(outer)), &kern.If{Cond: inside, Then: []kern.Stmt{
			kern.Let(to, pos),
			kern.Lane(lane, kern.Get(vw), a.acc.Set(dst, accExpr(kind, a.acc.At(dst), wide(bu, elem(kern.Get(n)))))),
		}}))
		if a.rounds() {
			b.Do(kern.Range(row, kern.I64(rows), kern.Lane(lane, kern.Get(vw), a.finish(elem(kern.Get(row))))))
		}
		return []ir.KernelUse{use}, nil
	}
	// Few columns: element by element; every tile reads all index vectors.
	total := x.Len()
	tiles := min(max(1, total), 4)
	if upd.Len() < 4096 {
		tiles = 1
	}
	per := ceilDiv(max(1, total), tiles)
	b.K.Tiles = ceilDiv(max(1, total), per)
	lo, hi := kern.NewVar("lo", dtype.I64), kern.NewVar("hi", dtype.I64)
	b.Do(kern.Let(lo, kern.Mul(b.TileIndex(), kern.I64(per))), kern.Let(hi, kern.Min(kern.Add(kern.Get(lo), kern.I64(per)), kern.I64(total))))
	each := func(f func(at *kern.Expr) kern.Stmt) kern.Stmt {
		return kern.Lane(lane, kern.Sub(kern.Get(hi), kern.Get(lo)), f(kern.Add(kern.Get(lo), kern.Get(lane))))
	}
	b.Do(each(func(at *kern.Expr) kern.Stmt { return a.acc.Set(at, wide(bx, at)) }))
	pos, inside := place(kern.Get(row))
	mine := kern.And(kern.Ge(kern.Get(to), kern.Get(lo)), kern.Lt(kern.Get(to), kern.Get(hi)))
	b.Do(kern.Range(row, kern.I64(tensor.Len(outer)), &kern.If{Cond: inside, Then: []kern.Stmt{
		kern.Range(n, kern.I64(width),
			kern.Let(to, scaled(pos, width, kern.Get(n))),
			&kern.If{Cond: mine, Then: []kern.Stmt{
				a.acc.Set(kern.Get(to), accExpr(kind, a.acc.At(kern.Get(to)), wide(bu, scaled(kern.Get(row), width, kern.Get(n)))))}}),
	}}))
	if a.rounds() {
		b.Do(each(a.finish))
	}
	return []ir.KernelUse{use}, nil
}

// unflatten takes a flat position apart into an index of shape.
func unflatten(shape []int64, flat *kern.Expr) []*kern.Expr {
	return reindex(shape, []int64{tensor.Len(shape)}, []*kern.Expr{flat})
}

// flatExpr is the row-major position of an index of shape.
func flatExpr(shape []int64, at []*kern.Expr) *kern.Expr {
	flat := kern.I64(0)
	for i, n := range shape {
		flat = scaled(flat, n, at[i])
	}
	return flat
}
