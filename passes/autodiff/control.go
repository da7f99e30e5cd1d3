package autodiff

import (
	"fmt"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
)

// straighten prepares the control flow between the xs and what is differentiated: calls
// and fused groups are inlined, short loops unrolled, long ones made to keep their
// carried values. What the gradient does not pass through stays as it is.
//
// The first outs operands of g are what is differentiated, the others the xs.
func (d *differ) straighten(b *ir.Block, g *ir.Op, outs int) error {
	for {
		prefix := b.Ops[:slices.Index(b.Ops, g)]
		active, needed := activity(prefix, g.Operands[outs:]), reaches(prefix, g.Operands[:outs])
		i := slices.IndexFunc(prefix, func(op *ir.Op) bool {
			return d.mustStraighten(op) && slices.ContainsFunc(op.Results, func(v *ir.Value) bool { return needed[v] && active[v] })
		})
		if i < 0 {
			return nil
		}
		op, tmp := prefix[i], &ir.Block{Func: d.f}
		var out []*ir.Value
		switch op.Name() {
		case "call":
			f := d.f.Module.Func(op.Attrs.Str("callee"))
			if f == nil {
				return opError(op, "no function @%s", op.Attrs.Str("callee"))
			}
			out = inline(tmp, f.Body, op.Operands, "inline")
		case "fused":
			out = inline(tmp, op.Regions[0], op.Operands, "")
		case "if", "case":
			out = d.keepDecisions(tmp, op)
		case "while":
			var err error
			if out, err = d.straightenLoop(tmp, op, active); err != nil {
				return err
			}
		}
		subst := ir.Mapping{}
		for k, v := range op.Results {
			subst[v] = out[k]
			adoptName(out[k], v)
		}
		for _, n := range tmp.Ops {
			place(b, n)
		}
		replaceUses(b, b.Ops[i+1:], subst)
		b.Ops = slices.Concat(b.Ops[:i:i], tmp.Ops, b.Ops[i+1:])
	}
}

// mustStraighten reports whether straighten has to rewrite op.
func (d *differ) mustStraighten(op *ir.Op) bool {
	switch op.Name() {
	case "call", "fused":
		return true
	case "while":
		return d.loops[op] == nil
	case "if", "case":
		return d.kept[op] == nil && slices.ContainsFunc(op.Regions, func(r *ir.Block) bool { return len(decisions(r)) > 0 })
	}
	return false
}

// decisions lists the results of a region's ops that decide something discrete, and those that the model pins.
// They are made once: what runs a region again reads them.
func decisions(region *ir.Block) []*ir.Value {
	var out []*ir.Value
	for _, op := range region.Ops {
		if op.Det() == ir.Decides && len(op.Regions) == 0 {
			out = append(out, op.Results...)
			continue
		}
		for _, v := range op.Results {
			if v.Attrs.Bool("pin") {
				out = append(out, v)
			}
		}
	}
	return out
}

// kept is a decision that a rewritten branch or loop body gives out.
type kept struct {
	value  *ir.Value // in the region
	result int       // of the op that has the region
}

// keepDecisions appends to b a copy of a branching op whose further results are the
// decisions of all its regions, zeros where another region was taken. It returns what
// stands for op's results.
func (d *differ) keepDecisions(b *ir.Block, op *ir.Op) []*ir.Value {
	keep, regions := make([][]kept, len(op.Regions)), make([]*ir.Block, len(op.Regions))
	vals := make([]ir.Mapping, len(op.Regions))
	for i, old := range op.Regions {
		r := d.f.NewRegion()
		for _, p := range old.Params {
			r.AddParam("", p.Type)
		}
		vals[i] = inlineMap(r, old, r.Params, "")
		r.Results = vals[i].All(old.Results)
		regions[i] = r
	}
	n := len(op.Results)
	for i, old := range op.Regions {
		for _, v := range decisions(old) {
			keep[i] = append(keep[i], kept{vals[i].Get(v), n})
			n++
			for k, r := range regions {
				if k == i {
					r.Results = append(r.Results, vals[i].Get(v))
				} else {
					r.Results = append(r.Results, ops.Full(ir.NewBuilder(d.t, r, op.Loc), v.Type, 0))
				}
			}
		}
	}
	c := ir.NewBuilder(d.t, b, op.Loc).Multi(op.Name(), op.Operands, regions, op.Attrs...)
	d.kept[c] = keep
	return c.Results[:len(op.Results)]
}

// readInstead makes the ops of b read other values, and drops what is then not needed.
func readInstead(b *ir.Block, subst ir.Mapping) {
	if len(subst) == 0 {
		return
	}
	replaceUses(b, b.Ops, subst)
	b.Ops = live(b.Ops, b.Results)
}

// inline appends the ops of a region to b, args standing for its parameters, and returns
// what stands for its results.
func inline(b *ir.Block, region *ir.Block, args []*ir.Value, prov string) []*ir.Value {
	return inlineMap(b, region, args, prov).All(region.Results)
}

// inlineMap is inline that tells what stands for each value. What runs forward has the model's marks; a copy that
// runs backward has not: it is no value that the model knows.
func inlineMap(b *ir.Block, region *ir.Block, args []*ir.Value, prov string) ir.Mapping {
	vals := ir.Mapping{}
	for i, p := range region.Params {
		vals[p] = args[i]
	}
	for _, op := range region.Ops {
		c := b.CloneOp(op, vals)
		if prov != "vjp" {
			for i, r := range op.Results {
				c.Results[i].Mark(r.Attrs.Str("name"), r.Attrs.Bool("pin"))
			}
		}
		if prov != "" {
			c.Loc = c.Loc.With(prov)
			for _, r := range c.Regions {
				r.Walk(func(o *ir.Op) { o.Loc = o.Loc.With(prov) })
			}
		}
	}
	return vals
}

func opError(op *ir.Op, format string, args ...any) *diag.Error {
	return &diag.Error{Code: "gradient", Op: op.Name(), Layer: op.Loc.Layer, File: op.Loc.File, Line: op.Loc.Line, Message: fmt.Sprintf(format, args...)}
}

// special differentiates control flow.
func (d *differ) special(r *ops.Reverse, op *ir.Op, douts []*ir.Value) ([]*ir.Value, bool, error) {
	var dins []*ir.Value
	var err error
	switch op.Name() {
	case "if", "case":
		dins, err = d.branches(r, op, douts)
	case "while":
		dins, err = d.loopGrad(r, op, douts)
	case "gradient":
		panic("BUG: a gradient op is left before another")
	default:
		return nil, false, nil
	}
	return dins, true, err
}

// repeatable refuses a region whose ops may not run a second time.
func repeatable(owner *ir.Op, region *ir.Block) error {
	var bad *ir.Op
	region.Walk(func(op *ir.Op) {
		if bad == nil && len(op.Regions) == 0 && (op.Effect() != ir.EffectNone || op.Det() == ir.Tol || op.Det() == ir.Unknown) {
			bad = op
		}
	})
	if bad == nil {
		return nil
	}
	return opError(owner, "its gradient has to run the region again, and %s in layer %s (effect %v, determinism %v) may run only once",
		bad.Name(), bad.Loc.Layer, bad.Effect(), bad.Det()).WithHint("move that op out of the region")
}

// branches differentiates if and case: the same choice again, each branch running its
// region forward and then back.
func (d *differ) branches(r *ops.Reverse, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	var wanted []int // operands whose cotangents come out
	for i, v := range op.Operands {
		if i > 0 && v.Type.DType.IsFloat() && r.Active(v) {
			wanted = append(wanted, i)
		}
	}
	var given []int // results that have cotangents
	args := slices.Clone(op.Operands)
	for i, g := range douts {
		if g != nil {
			given = append(given, i)
			args = append(args, g)
		}
	}
	keep := d.kept[op]
	for _, ks := range keep {
		for _, k := range ks {
			args = append(args, op.Results[k.result])
		}
	}
	var regions []*ir.Block
	for i, region := range op.Regions {
		if err := repeatable(op, region); err != nil {
			return nil, err
		}
		back := d.f.NewRegion()
		var params, seeds, outs, xs []*ir.Value
		for _, p := range region.Params {
			params = append(params, back.AddParam("", p.Type))
		}
		for _, i := range given {
			seeds = append(seeds, back.AddParam("", douts[i].Type))
		}
		vals := inlineMap(back, region, params, "vjp")
		decided := ir.Mapping{}
		for r, ks := range keep {
			for _, k := range ks {
				if p := back.AddParam("", op.Out(k.result)); r == i {
					decided[vals.Get(k.value)] = p
				}
			}
		}
		for _, i := range given {
			outs = append(outs, vals.Get(region.Results[i]))
		}
		for _, i := range wanted {
			xs = append(xs, params[i-1])
		}
		grads, _, err := d.backward(back, op, outs, seeds, xs, nil)
		if err != nil {
			return nil, err
		}
		back.Results = grads
		readInstead(back, decided)
		regions = append(regions, back)
	}
	res := r.B.Multi(op.Name(), args, regions, op.Attrs...)
	dins := make([]*ir.Value, len(op.Operands))
	for k, i := range wanted {
		dins[i] = res.Results[k]
	}
	return dins, nil
}

// backward appends to b, whose ops are a forward program, the reverse program for
// cotangents seeds of the values outs, and returns the cotangents of xs, dense zeros
// where there is none; has tells where there is one. finish, where not nil, appends more and returns the values that
// are needed in place of the cotangents. Ops that nothing then needs are dropped.
func (d *differ) backward(b *ir.Block, owner *ir.Op, outs, seeds, xs []*ir.Value, finish func(bld *ir.Builder, grads []*ir.Value, has []bool) []*ir.Value) (results []*ir.Value, has []bool, err error) {
	// Straightening wants an op that stands for the gradient.
	stand := &ir.Op{Def: &ir.OpDef{Name: "gradient"}, Operands: slices.Concat(outs, xs), Loc: owner.Loc, Block: b}
	b.Ops = append(b.Ops, stand)
	if err := d.straighten(b, stand, len(outs)); err != nil {
		return nil, nil, err
	}
	b.Ops = b.Ops[:len(b.Ops)-1]
	outs, xs = stand.Operands[:len(outs)], stand.Operands[len(outs):]
	forward := slices.Clone(b.Ops)
	r := d.reverse(ir.NewBuilder(d.t, b, owner.Loc.With("vjp")), forward, xs)
	for i, v := range outs {
		r.Add(v, seeds[i])
	}
	if err := r.Run(forward); err != nil {
		return nil, nil, err
	}
	results, has = make([]*ir.Value, len(xs)), make([]bool, len(xs))
	for i, x := range xs {
		if results[i] = r.Cot[x]; results[i] != nil {
			has[i] = true
		} else {
			results[i] = ops.Full(r.B, x.Type, 0)
		}
	}
	if finish != nil {
		results = finish(r.B, results, has)
	}
	b.Ops = live(b.Ops, results)
	return results, has, nil
}
