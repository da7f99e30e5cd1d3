package ops

import (
	"fmt"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

const collectiveDoc = "`size` participants run the program together, each with tensors of its own. It runs exactly once, in the same order everywhere; nothing recomputes it. " +
	"Derivatives are those of the sum of all participants' losses. "

const notAlone = "comes with the runtime of several machines; one participant: the identity"

// alone is an error where an op has several participants.
func alone(op *ir.Op) error {
	if n := op.Attrs.Int("size"); n != 1 {
		return diag.Errorf("unsupported", "%s of %d participants needs the runtime of several machines, which this version does not have", op.Name(), n).
			WithHint("call a foreign kernel of effect comm, or compile it with size=1")
	}
	return nil
}

func sizeAttr() ir.AttrDef {
	return ir.AttrDef{Name: "size", Kind: "int", Default: int64(1), Doc: "number of participants"}
}

// collective fills in what the rows have in common: with one participant each is the identity.
func collective(d *ir.OpDef) *ir.OpDef {
	d.Family = "collective"
	d.Doc = collectiveDoc + d.Doc
	d.Operands, d.Results = []string{"x"}, []string{"y"}
	d.Attrs = append(d.Attrs, sizeAttr())
	d.Effect = func(*ir.Op) ir.Effect { return ir.EffectComm }
	d.HandScheduled = notAlone
	d.Constraints = append([]ir.Constraint{{Label: "C1", Text: "there is at least one participant", Check: func(op *ir.Op) error {
		if op.Attrs.Int("size") < 1 {
			return fmt.Errorf("size %d", op.Attrs.Int("size"))
		}
		return nil
	}}}, d.Constraints...)
	if len(d.Constraints) == 1 || d.Constraints[1].Label != "C2" {
		d.Constraints = slices.Insert(d.Constraints, 1, wantPlain("C2", 0))
	}
	d.Cost = func(op *ir.Op) ir.Cost { return ir.Cost{Bytes: ownBytes(op)} }
	if d.Kern == nil {
		d.Kern = func(op *ir.Op) ([]ir.KernelUse, error) { return copyKern(op, false) }
	}
	if d.Ref == nil {
		d.Ref = func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			if err := alone(op); err != nil {
				return nil, err
			}
			return one(in[0].Clone())
		}
	}
	return d
}

// resized multiplies or divides one dimension of operand 0's shape.
func resized(op *ir.Op, axis, times, by int64) (ir.Type, error) {
	x := op.In(0)
	if err := axisOK(axis, x.Rank()); err != nil {
		return ir.Type{}, fmt.Errorf("%v of operand %v", err, x)
	}
	if by < 1 || times < 1 {
		return x, nil // refused by C1
	}
	if x.Shape[axis]%by != 0 {
		return ir.Type{}, fmt.Errorf("dimension %d of operand %v does not divide among %d participants", axis, x, by)
	}
	shape := slices.Clone(x.Shape)
	shape[axis] = shape[axis] / by * times
	return ir.T(x.DType, shape...), nil
}

func collectiveOps() []*ir.OpDef {
	size := func(op *ir.Op) ir.Attr { return ir.A("size", op.Attrs.Int("size")) }
	axis := func(op *ir.Op) ir.Attr { return ir.A("axis", op.Attrs.Int("axis")) }
	kind := ir.AttrDef{Name: "kind", Kind: "string", Default: "sum", Doc: "sum, prod, max, min, and, or, xor"}
	kindCheck := ir.Constraint{Label: "C2", Text: "kind exists for the element type", Check: func(op *ir.Op) error {
		return reduceDTypes(op.Attrs.Str("kind"), op.In(0).DType)
	}}
	grad := func(f func(b em, op *ir.Op, dy *ir.Value) *ir.Value) func(*ir.Builder, *ir.Op, []*ir.Value) ([]*ir.Value, error) {
		return func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() {
				return []*ir.Value{nil}, nil
			}
			if k := op.Attrs.Str("kind"); k != "" && k != "sum" {
				return nil, fmt.Errorf("no gradient of kind %q", k)
			}
			return []*ir.Value{f(em{b}, op, douts[0])}, nil
		}
	}
	return []*ir.OpDef{
		collective(&ir.OpDef{
			Name: "all_reduce", Doc: "The participants' `x` joined element by element in the order of the participants; all get the result.",
			Attrs: []ir.AttrDef{kind}, Constraints: []ir.Constraint{kindCheck},
			Infer: func(op *ir.Op) ([]ir.Type, error) { return oneType(op.In(0)) },
			VJP: grad(func(b em, op *ir.Op, dy *ir.Value) *ir.Value {
				return b.op1("all_reduce", dy, size(op))
			}),
		}),
		collective(&ir.OpDef{
			Name: "all_gather", Doc: "The participants' `x` one after the other along `axis`; all get the result.",
			Attrs: []ir.AttrDef{{Name: "axis", Kind: "int", Doc: "axis along which they are put together"}},
			Infer: func(op *ir.Op) ([]ir.Type, error) {
				t, err := resized(op, op.Attrs.Int("axis"), op.Attrs.Int("size"), 1)
				return []ir.Type{t}, err
			},
			VJP: grad(func(b em, op *ir.Op, dy *ir.Value) *ir.Value {
				return b.op1("reduce_scatter", dy, axis(op), size(op))
			}),
		}),
		collective(&ir.OpDef{
			Name: "reduce_scatter", Doc: "`all_reduce`, of which participant i keeps part i of `size` along `axis`.",
			Attrs:       []ir.AttrDef{kind, {Name: "axis", Kind: "int", Doc: "axis that is shared out"}},
			Constraints: []ir.Constraint{kindCheck},
			Infer: func(op *ir.Op) ([]ir.Type, error) {
				t, err := resized(op, op.Attrs.Int("axis"), 1, op.Attrs.Int("size"))
				return []ir.Type{t}, err
			},
			VJP: grad(func(b em, op *ir.Op, dy *ir.Value) *ir.Value {
				return b.op1("all_gather", dy, axis(op), size(op))
			}),
		}),
		collective(&ir.OpDef{
			Name: "all_to_all", Doc: "Each participant cuts `x` along `split_axis` into `size` parts, sends part i to participant i, and puts what it gets, in the order of the participants, together along `concat_axis`.",
			Attrs: []ir.AttrDef{
				{Name: "split_axis", Kind: "int", Doc: "axis that is cut"},
				{Name: "concat_axis", Kind: "int", Doc: "axis along which parts are put together"},
			},
			Infer: func(op *ir.Op) ([]ir.Type, error) {
				n := op.Attrs.Int("size")
				t, err := resized(op, op.Attrs.Int("split_axis"), 1, n)
				if err != nil {
					return nil, err
				}
				if err := axisOK(op.Attrs.Int("concat_axis"), t.Rank()); err != nil {
					return nil, fmt.Errorf("%v of operand %v", err, op.In(0))
				}
				shape := slices.Clone(t.Shape)
				shape[op.Attrs.Int("concat_axis")] *= max(n, 1)
				return oneType(ir.T(t.DType, shape...))
			},
			VJP: grad(func(b em, op *ir.Op, dy *ir.Value) *ir.Value {
				return b.op1("all_to_all", dy, ir.A("split_axis", op.Attrs.Int("concat_axis")), ir.A("concat_axis", op.Attrs.Int("split_axis")), size(op))
			}),
		}),
		permuteRow(size, grad),
	}
}

func permuteRow(size func(*ir.Op) ir.Attr, grad func(func(b em, op *ir.Op, dy *ir.Value) *ir.Value) func(*ir.Builder, *ir.Op, []*ir.Value) ([]*ir.Value, error)) *ir.OpDef {
	// kept reports whether the only participant sends to itself.
	kept := func(op *ir.Op) bool { return len(op.Attrs.Ints("pairs")) > 0 }
	return collective(&ir.OpDef{
		Name: "collective_permute", Doc: "For each pair (from, to) participant `to` gets the `x` of participant `from`; who gets none has zeros.",
		Attrs: []ir.AttrDef{{Name: "pairs", Kind: "ints", Doc: "from, to, from, to, …"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) { return oneType(op.In(0)) },
		Constraints: []ir.Constraint{{Label: "C3", Text: "each participant sends at most once and receives at most once", Check: func(op *ir.Op) error {
			pairs := op.Attrs.Ints("pairs")
			if len(pairs)%2 != 0 {
				return fmt.Errorf("pairs %v: odd number", pairs)
			}
			for side := range 2 {
				var seen []int64
				for i := side; i < len(pairs); i += 2 {
					if pairs[i] < 0 || pairs[i] >= op.Attrs.Int("size") || slices.Contains(seen, pairs[i]) {
						return fmt.Errorf("pairs %v of %d participants", pairs, op.Attrs.Int("size"))
					}
					seen = append(seen, pairs[i])
				}
			}
			return nil
		}}},
		VJP: grad(func(b em, op *ir.Op, dy *ir.Value) *ir.Value {
			back := slices.Clone(op.Attrs.Ints("pairs"))
			for i := 0; i < len(back); i += 2 {
				back[i], back[i+1] = back[i+1], back[i]
			}
			return b.op1("collective_permute", dy, ir.A("pairs", back), size(op))
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			if err := alone(op); err != nil {
				return nil, err
			}
			if !kept(op) {
				return one(tensor.New(in[0].DType, in[0].Shape...))
			}
			return one(in[0].Clone())
		},
		Kern: func(op *ir.Op) ([]ir.KernelUse, error) { return copyKern(op, !kept(op)) },
	})
}

// copyKern is the kernel for one participant: a copy, or zeros.
func copyKern(op *ir.Op, zeros bool) ([]ir.KernelUse, error) {
	if err := alone(op); err != nil {
		return nil, err
	}
	const perTile = 16384
	t := op.In(0)
	b := kern.NewBuilder(op.Name(), max(1, ceilDiv(t.Len(), perTile)))
	x, y := b.In("x", t.DType, t.Len()), b.Out("y", t.DType, t.Len())
	base, lane := kern.NewVar("base", dtype.I64), kern.NewVar("lane", dtype.I64)
	at := kern.Add(kern.Get(base), kern.Get(lane))
	v := x.At(at)
	if zeros {
		v = kern.Zero(t.DType)
	}
	b.Do(kern.Let(base, kern.Mul(b.TileIndex(), kern.I64(perTile))),
		kern.Lane(lane, sliceLen(kern.Get(base), perTile, t.Len()), y.Set(at, v)))
	return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1}}}, nil
}
