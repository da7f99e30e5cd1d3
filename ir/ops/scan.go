package ops

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

func scanOps() []*ir.OpDef {
	return []*ir.OpDef{
		cumulative("cumsum", "sum", "sum"), cumulative("cumprod", "prod", "product"),
		cumulative("cummax", "max", "greatest"), cumulative("cummin", "min", "least"),
		cumargRow(), linearScanRow(),
	}
}

// axisInfer is the type of a one-operand op along axis: that of the operand.
func axisInfer(op *ir.Op) ([]ir.Type, error) {
	if err := axisOK(op.Attrs.Int("axis"), op.In(0).Rank()); err != nil {
		return nil, fmt.Errorf("%v of operand %v", err, op.In(0))
	}
	return oneType(op.In(0))
}

func scanAttrs() []ir.AttrDef {
	return []ir.AttrDef{
		{Name: "axis", Kind: "int", Doc: "axis along which it runs"},
		{Name: "reverse", Kind: "bool", Default: false, Doc: "run from the last element to the first"},
	}
}

// eachStep calls step for the elements of every line of shape along axis, in scan order;
// i counts from 0, flat is the element's place.
func eachStep(shape []int64, axis int64, reverse bool, step func(i, flat int64)) {
	p, n, q := linesOf(shape, axis)
	for pi := range p {
		for qi := range q {
			for i := range n {
				at := i
				if reverse {
					at = n - 1 - i
				}
				step(i, (pi*n+at)*q+qi)
			}
		}
	}
}

// scanKernel makes the kernel of a scan: one lane per line, a loop along it. body gets the step's
// number and its element's place.
func scanKernel(b *kern.Builder, op *ir.Op, init []kern.Stmt, body func(i, flat *kern.Expr) []kern.Stmt) {
	p, n, q := linesOf(op.In(0).Shape, op.Attrs.Int("axis"))
	i := kern.NewVar("i", dtype.I64)
	eachLine(b, p, q, func(pi, qi *kern.Expr) []kern.Stmt {
		at := kern.Get(i)
		if op.Attrs.Bool("reverse") {
			at = kern.Sub(kern.I64(n-1), at)
		}
		flat := kern.NewVar("at", dtype.I64)
		stmts := append([]kern.Stmt{kern.Let(flat, scaled(scaled(pi, n, at), q, qi))}, body(kern.Get(i), kern.Get(flat))...)
		return append(slices.Clone(init), kern.Range(i, kern.I64(n), stmts...))
	})
}

func cumulative(name, kind, word string) *ir.OpDef {
	attrs := scanAttrs()
	sums := kind == "sum" || kind == "prod"
	doc := fmt.Sprintf("Running %s of `x` along `axis`, one element after the other: y[i] = op(y[i-1], x[i]), the first joined with the start value of `reduce`. ", word)
	if sums {
		attrs = append(attrs, ir.AttrDef{Name: "exclusive", Kind: "bool", Default: false, Doc: "y[i] leaves x[i] out: the first is the start value"})
	} else {
		doc += "The gradient goes to the element that set the current value, the last one among equals. "
	}
	return &ir.OpDef{
		Name: name, Family: "scan",
		Doc:      doc + "f16 and bf16 run in f32, each result rounded.",
		Operands: []string{"x"}, Results: []string{"y"}, Attrs: attrs,
		Infer:       axisInfer,
		Constraints: []ir.Constraint{wantNumbers("C1", 0)},
		VJP: func(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() {
				return []*ir.Value{nil}, nil
			}
			b, x, dy := em{bb}, op.Operands[0], douts[0]
			axis, rev, excl := op.Attrs.Int("axis"), op.Attrs.Bool("reverse"), op.Attrs.Bool("exclusive")
			along := []ir.Attr{ir.A("axis", axis), ir.A("reverse", rev)}
			back := []ir.Attr{ir.A("axis", axis), ir.A("reverse", !rev)}
			switch kind {
			case "sum":
				return []*ir.Value{b.op1("cumsum", dy, append(back, ir.A("exclusive", excl))...)}, nil
			case "max", "min":
				if x.Type.Shape[axis] == 0 {
					return []*ir.Value{dy}, nil
				}
				at := b.op1("cumarg", x, append(along, ir.A("kind", kind))...)
				return []*ir.Value{b.op2("scatter_along", dy, at, ir.A("axis", axis), ir.A("size", x.Type.Shape[axis]))}, nil
			}
			// With P the product of all before i (exclusive), dx[i] = P·S[i], where S gathers what
			// comes after: inclusive S[i] = dy[i] + x[i+1]·S[i+1]; exclusive S[i] = T[i+1] with
			// T[i] = dy[i] + x[i]·T[i+1]. No division, so zeros are as good as any.
			before := b.op1("cumprod", x, append(along, ir.A("exclusive", true))...)
			var after *ir.Value
			if excl {
				after = b.shift(b.op2("linear_scan", x, dy, back...), axis, !rev)
			} else {
				after = b.op2("linear_scan", b.shift(x, axis, !rev), dy, back...)
			}
			return []*ir.Value{b.mul(before, after)}, nil
		},
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) {
			t := op.In(0)
			b := kern.NewBuilder(name, 1)
			x, y := b.In("x", t.DType, t.Len()), b.Out("y", t.DType, t.Len())
			acc := kern.NewVar("acc", t.DType.Accum())
			scanKernel(b, op, []kern.Stmt{kern.Let(acc, identityExpr(kind, acc.DType))}, func(_, at *kern.Expr) []kern.Stmt {
				join := kern.Let(acc, accExpr(kind, kern.Get(acc), wide(x, at)))
				put := y.Set(at, kern.Convert(kern.Get(acc), t.DType))
				if op.Attrs.Bool("exclusive") {
					return []kern.Stmt{put, join}
				}
				return []kern.Stmt{join, put}
			})
			return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1}}}, nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x := in[0]
			y := tensor.New(x.DType, x.Shape...)
			join, identity := reducer(kind, x.DType.Accum())
			acc := identity
			eachStep(x.Shape, op.Attrs.Int("axis"), op.Attrs.Bool("reverse"), func(i, at int64) {
				if i == 0 {
					acc = identity
				}
				next := join(acc, accGet(x, at))
				if op.Attrs.Bool("exclusive") {
					accSet(y, at, acc)
				} else {
					accSet(y, at, next)
				}
				acc = next
			})
			return one(y)
		},
	}
}

// shift moves x by one along axis: y[i] = x[i+1] where up, else x[i-1]; +0 comes in.
func (e em) shift(x *ir.Value, axis int64, up bool) *ir.Value {
	n := x.Type.Shape[axis]
	if n == 0 {
		return x
	}
	edge := slices.Clone(x.Type.Shape)
	edge[axis] = 1
	zero := e.zeros(ir.T(x.Type.DType, edge...))
	start, limit := make([]int64, len(edge)), slices.Clone(x.Type.Shape)
	parts := []*ir.Value{nil, zero}
	if up {
		start[axis] = 1
	} else {
		limit[axis] = n - 1
		parts = []*ir.Value{zero, nil}
	}
	rest := e.op1("slice", x, ir.A("start", start), ir.A("limit", limit))
	parts[slices.Index(parts, nil)] = rest
	return e.Op("concat", parts, ir.A("dim", axis))
}

func cumargRow() *ir.OpDef {
	better := func(kind string, d dtype.Type, a, best uint64) bool { // ties: the later one
		if isNaNBits(d, best) {
			return false
		}
		if kind == "max" {
			return isNaNBits(d, a) || !lessBits(d, a, best)
		}
		return isNaNBits(d, a) || !lessBits(d, best, a)
	}
	return &ir.OpDef{
		Name: "cumarg", Family: "scan",
		Doc: "Index along `axis` of the element that `cummax` or `cummin` has at each place: the one met last among equals, but the first NaN. " +
			"Indices count from the axis's start, also in reverse.",
		Operands: []string{"x"}, Results: []string{"index"},
		Attrs: append(scanAttrs(), ir.AttrDef{Name: "kind", Kind: "string", Doc: "max or min"}),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			ts, err := axisInfer(op)
			if err != nil {
				return nil, err
			}
			return oneType(ts[0].With(dtype.I32))
		},
		Constraints: []ir.Constraint{wantNumbers("C1", 0), oneOf("C2", "kind", "max", "min")},
		Det:         func(*ir.Op) ir.Det { return ir.Decides },
		NoGrad:      "an index has no gradient", NoGradZero: true,
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) {
			t := op.In(0)
			b := kern.NewBuilder("cumarg", 1)
			x, y := b.In("x", t.DType, t.Len()), b.Out("index", dtype.I32, t.Len())
			acc, best, take := kern.NewVar("acc", t.DType.Accum()), kern.NewVar("best", dtype.I32), kern.NewVar("take", dtype.Bool)
			n := op.In(0).Shape[op.Attrs.Int("axis")]
			init := []kern.Stmt{kern.Let(acc, kern.Zero(acc.DType)), kern.Let(best, kern.I32(0))}
			scanKernel(b, op, init, func(i, at *kern.Expr) []kern.Stmt {
				a, c := wide(x, at), kern.Get(acc)
				won := kern.Ge(a, c)
				if op.Attrs.Str("kind") == "min" {
					won = kern.Le(a, c)
				}
				if acc.DType.IsFloat() {
					won = kern.And(kern.Eq(c, c), kern.Or(kern.Ne(a, a), won))
				}
				place := i
				if op.Attrs.Bool("reverse") {
					place = kern.Sub(kern.I64(n-1), i)
				}
				return []kern.Stmt{
					kern.Let(take, kern.Or(kern.Eq(i, kern.I64(0)), won)),
					kern.Let(acc, kern.Select(kern.Get(take), a, c)),
					kern.Let(best, kern.Select(kern.Get(take), kern.Convert(place, dtype.I32), kern.Get(best))),
					y.Set(at, kern.Get(best)),
				}
			})
			return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1}}}, nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, axis, rev := in[0], op.Attrs.Int("axis"), op.Attrs.Bool("reverse")
			y := tensor.New(dtype.I32, x.Shape...)
			var acc uint64
			var best int64
			eachStep(x.Shape, axis, rev, func(i, at int64) {
				if a := accGet(x, at); i == 0 || better(op.Attrs.Str("kind"), x.DType.Accum(), a, acc) {
					acc, best = a, i
					if rev {
						best = x.Shape[axis] - 1 - i
					}
				}
				y.SetBits(at, uint64(best))
			})
			return one(y)
		},
	}
}

func linearScanRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "linear_scan", Family: "scan",
		Doc: "The recurrence y[i] = fma(a[i], y[i-1], b[i]) along `axis`, y[0] = b[0] (a[0] is not used): gated recurrent and state-space layers, and the derivative of " +
			"cumulative products. f16 and bf16 run in f32, each result rounded.",
		Operands: []string{"a", "b"}, Results: []string{"y"}, Attrs: scanAttrs(),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if !op.In(0).Equal(op.In(1)) {
				return nil, fmt.Errorf("a %v and b %v differ", op.In(0), op.In(1))
			}
			return axisInfer(op)
		},
		Constraints: []ir.Constraint{{Label: "C1", Text: "elements are floats", Check: func(op *ir.Op) error {
			if !op.In(0).DType.IsFloat() {
				return fmt.Errorf("operand %v", op.In(0))
			}
			return nil
		}}},
		Cost: func(op *ir.Op) ir.Cost { return ir.Cost{Flops: 2 * op.In(0).Len(), Bytes: ownBytes(op)} },
		VJP: func(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			b, axis, rev := em{bb}, op.Attrs.Int("axis"), op.Attrs.Bool("reverse")
			g := b.op2("linear_scan", b.shift(op.Operands[0], axis, !rev), douts[0], ir.A("axis", axis), ir.A("reverse", !rev))
			return []*ir.Value{b.mul(g, b.shift(op.Results[0], axis, rev)), g}, nil
		},
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) {
			t := op.In(0)
			bl := kern.NewBuilder("linear_scan", 1)
			a, b, y := bl.In("a", t.DType, t.Len()), bl.In("b", t.DType, t.Len()), bl.Out("y", t.DType, t.Len())
			acc := kern.NewVar("acc", t.DType.Accum())
			scanKernel(bl, op, []kern.Stmt{kern.Let(acc, kern.Zero(acc.DType))}, func(i, at *kern.Expr) []kern.Stmt {
				next := kern.Fma(wide(a, at), kern.Get(acc), wide(b, at))
				return []kern.Stmt{
					kern.Let(acc, kern.Select(kern.Eq(i, kern.I64(0)), wide(b, at), next)),
					y.Set(at, kern.Convert(kern.Get(acc), t.DType)),
				}
			})
			return []ir.KernelUse{{Kernel: bl.K, Args: []int{0, 1, 2}}}, nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			a, b := in[0], in[1]
			y := tensor.New(b.DType, b.Shape...)
			fma := fmaBits(b.DType.Accum())
			var acc uint64
			eachStep(b.Shape, op.Attrs.Int("axis"), op.Attrs.Bool("reverse"), func(i, at int64) {
				if i == 0 {
					acc = accGet(b, at)
				} else {
					acc = fma(accGet(a, at), acc, accGet(b, at))
				}
				accSet(y, at, acc)
			})
			return one(y)
		},
	}
}

// fmaBits is x·y + z on raw bits of accumulation type d; integers wrap.
func fmaBits(d dtype.Type) func(x, y, z uint64) uint64 {
	switch d {
	case dtype.F64:
		return func(x, y, z uint64) uint64 { return bits64(scalar.Fma64(from64(x), from64(y), from64(z))) }
	case dtype.F32:
		return func(x, y, z uint64) uint64 { return bits32(scalar.Fma32(from32(x), from32(y), from32(z))) }
	}
	mul, _ := reducer("prod", d)
	add, _ := reducer("sum", d)
	return func(x, y, z uint64) uint64 { return add(mul(x, y), z) }
}
