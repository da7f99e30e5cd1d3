package compile

import (
	"fmt"
	"slices"

	"reprise/internal/debug"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/ops"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/runtime/exe"
)

// breakProgram puts the faults of structure and of kernels into a planned program; those of running code
// come while it is emitted. It serves tests of the checks.
func breakProgram(p *planned, faults []debug.Fault) error {
	for _, f := range faults {
		if f.Kind == debug.Noise { // room for the counter
			p.arena = remat.RoundUp(p.arena) + remat.Align
			break
		}
	}
	for _, f := range faults {
		for _, op := range p.applied.Func.Body.Ops {
			r, ok := p.applied.Runs[op]
			if !ok || r.ID != f.ID || r.Clone != f.Clone {
				continue
			}
			var err error
			switch f.Kind {
			case debug.Reseed:
				if err = reseed(op); err == nil {
					p.applied.Lowered[op], err = lower.Op(op)
				}
			case debug.Reorder, debug.Variant:
				p.applied.Lowered[op], err = otherKernel(op, f.Kind)
			}
			if err != nil {
				return diag.Errorf("debug", "fault %q: %s: %v", f.Kind, remat.Name(op), err)
			}
		}
	}
	return nil
}

// reseed changes the id of the first random op in op.
func reseed(op *ir.Op) error {
	done := false
	visit := func(o *ir.Op) {
		if id, ok := o.Attrs.Get("rng").(int64); ok && !done {
			o.Attrs = o.Attrs.Set("rng", id+1000)
			done = true
		}
	}
	visit(op)
	for _, r := range op.Regions {
		r.Walk(visit)
	}
	if !done {
		return fmt.Errorf("nothing in it is random")
	}
	return nil
}

// otherKernel lowers a copy of op that computes the same in another way: its first reduction, or what makes its
// first result, with the operand's elements in another order, or with a sign that changes twice.
func otherKernel(op *ir.Op, kind debug.Kind) (l *lower.Lowered, err error) {
	defer diag.Catch(&err)
	m := ir.NewModule("variant")
	f := m.NewFunc("f")
	args := ir.Mapping{}
	var operands []*ir.Value
	for _, v := range op.Operands {
		p := f.Body.AddParam("", v.Type)
		operands = append(operands, p)
		args[v] = p
	}
	region := f.NewRegion()
	inner := ir.Mapping{}
	body := []*ir.Op{op}
	results := op.Results
	if op.Name() == "fused" {
		b := op.Regions[0]
		body, results = b.Ops, b.Results
		for _, p := range b.Params {
			inner[p] = region.AddParam("", p.Type)
		}
	} else {
		for _, v := range op.Operands {
			if inner[v] == nil {
				inner[v] = region.AddParam("", v.Type)
			}
		}
		operands = operands[:0]
		seen := map[*ir.Value]bool{}
		for _, v := range op.Operands {
			if !seen[v] {
				operands = append(operands, args[v])
			}
			seen[v] = true
		}
	}
	t := ops.Table()
	done := false
	for _, o := range body {
		b := ir.NewBuilder(t, region, o.Loc)
		if o.Name() == "reduce" && o.Attrs.Str("kind") == "sum" && kind == debug.Reorder && !done {
			x := inner.Get(o.Operands[0])
			inner[o.Operands[0]] = rotated(b, x, o.Attrs.Ints("axes"))
			region.CloneOp(o, inner)
			inner[o.Operands[0]] = x
			done = true
			continue
		}
		region.CloneOp(o, inner)
		if v := o.Results[0]; kind == debug.Variant && !done && v == results[0] && v.Type.DType.IsFloat() {
			inner[v] = b.Op("neg", []*ir.Value{b.Op("neg", []*ir.Value{inner[v]})})
			done = true
		}
	}
	if !done {
		return nil, fmt.Errorf("no sum, or no result of a floating type")
	}
	region.Results = inner.All(results)
	n := f.NewOp(t.Must("fused"), operands, typesOf(op.Results), nil, []*ir.Block{region}, op.Loc)
	f.Body.Append(n)
	f.Renumber()
	if err := ir.Verify(m); err != nil {
		return nil, err
	}
	return lower.Op(n)
}

// rotated moves the first element along the last of axes to the end. (To reverse would not do: sums of fewer than 64
// elements join the same pairs then.)
func rotated(b *ir.Builder, x *ir.Value, axes []int64) *ir.Value {
	axis := axes[len(axes)-1]
	cut := func(from, to int64) *ir.Value {
		start, limit := make([]int64, x.Type.Rank()), slices.Clone(x.Type.Shape)
		start[axis], limit[axis] = from, to
		return b.Op("slice", []*ir.Value{x}, ir.A("start", start), ir.A("limit", limit))
	}
	return b.Op("concat", []*ir.Value{cut(1, x.Type.Shape[axis]), cut(0, 1)}, ir.A("dim", axis))
}

func typesOf(vs []*ir.Value) []ir.Type {
	out := make([]ir.Type, len(vs))
	for i, v := range vs {
		out[i] = v.Type
	}
	return out
}

// faulty puts faults into code as it is emitted. nil does nothing.
type faulty struct {
	faults  []debug.Fault
	counter place // of calls of noisy ops
}

// newFaulty keeps the counter at the end of the arena.
func newFaulty(faults []debug.Fault, arena int64) *faulty {
	if len(faults) == 0 {
		return nil
	}
	return &faulty{faults: faults, counter: place{offset: arena - remat.Align, bytes: 4}}
}

// mine are the faults of the run of an op.
func (f *faulty) mine(op *ir.Op, t *runTable) []debug.Fault {
	if f == nil || t == nil {
		return nil
	}
	r, ok := t.who[op]
	if !ok || r.Sub != 0 {
		return nil
	}
	var out []debug.Fault
	for _, x := range f.faults {
		if x.ID == r.ID && (x.Clone == r.Clone || x.Kind == debug.Noise) {
			out = append(out, x)
		}
	}
	return out
}

// times is how often an op is to be emitted: once, but for a fault.
func (f *faulty) times(op *ir.Op, t *runTable) int {
	n := 1
	for _, x := range f.mine(op, t) {
		switch x.Kind {
		case debug.Drop:
			n = 0
		case debug.Twice:
			n = 2
		}
	}
	return n
}

// before and after emit what disturbs an op's run.
func (f *faulty) before(e *emitter, op *ir.Op, where func(*ir.Value) place) error {
	for _, x := range f.mine(op, e.runs) {
		if x.Kind == debug.Clobber {
			if err := f.write(e, x, where(op.Operands[0]), op.In(0)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *faulty) after(e *emitter, op *ir.Op, where func(*ir.Value) place) error {
	for _, x := range f.mine(op, e.runs) {
		if x.Kind == debug.FlipBit || x.Kind == debug.Noise {
			if err := f.write(e, x, where(op.Results[x.Result]), op.Out(x.Result)); err != nil {
				return err
			}
		}
	}
	return nil
}

// write emits the launch that changes a value where it lies.
func (f *faulty) write(e *emitter, x debug.Fault, at place, t ir.Type) error {
	word := map[int64]dtype.Type{1: dtype.U8, 2: dtype.U16, 4: dtype.U32, 8: dtype.U64}[t.DType.Size()]
	if at.konst || t.Len() == 0 || word == dtype.Invalid {
		return diag.Errorf("debug", "fault %q: a value %v can't be written", x.Kind, t)
	}
	b := kern.NewBuilder("fault", 1)
	v := b.Out("v", word, t.Len())
	args := []exe.Arg{at.arg(true)}
	i := kern.I64(min(x.Element, t.Len()-1))
	switch x.Kind {
	case debug.FlipBit:
		b.Do(v.Set(i, kern.Xor(v.At(i), kern.Bits(word, 1<<(x.Bit%uint(8*t.DType.Size()))))))
	case debug.Clobber:
		b.Do(v.Set(i, kern.Xor(v.At(i), kern.Bits(word, 1))))
	case debug.Noise:
		calls := b.Out("calls", dtype.U32, 1)
		n := kern.NewVar("n", dtype.U32)
		b.Do(kern.Let(n, calls.At(kern.I64(0))), calls.Set(kern.I64(0), kern.Add(kern.Get(n), kern.U32(1))))
		one, all := kern.Bits(word, 1), kern.Bits(word, ^uint64(0))
		up := kern.Select(kern.Eq(kern.And(kern.Get(n), kern.U32(1)), kern.U32(0)), one, all)
		b.Do(v.Set(i, kern.Add(v.At(i), up)))
		args = append(args, f.counter.arg(true))
	}
	ks, err := e.k.Launches(lower.Launch{Kern: b.K})
	if err != nil {
		return err
	}
	for _, k := range ks {
		e.launch(k, "fault", args)
	}
	return nil
}
