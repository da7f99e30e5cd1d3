// Package expand writes composite ops (softmax, norms, losses, optimizer steps) in
// primitives, and calls as the ops of what they call. It runs after autodiff, which knows the composites' own gradients, and before the second cse,
// so that a row statistic that forward and backward both need is computed once. What an op
// becomes has its name as provenance, by which policies know it.
package expand

import (
	"reprise/internal/diag"
	"reprise/ir"
)

// Run expands every op that has an expansion, regions included, until none is left. Functions
// stand before their callers, so what is called is expanded already.
func Run(m *ir.Module, t *ir.Table) (err error) {
	defer diag.Catch(&err)
	for _, f := range m.Funcs {
		block(f.Body, t)
		f.Renumber()
	}
	return nil
}

func block(b *ir.Block, t *ir.Table) {
	for {
		found := false
		for _, op := range b.Ops {
			found = found || composite(op)
		}
		if !found {
			break
		}
		once(b, t)
	}
	for _, op := range b.Ops {
		for _, r := range op.Regions {
			block(r, t)
		}
	}
}

func once(b *ir.Block, t *ir.Table) {
	ops := b.Ops
	b.Ops = nil
	to := ir.Mapping{}
	for _, op := range ops {
		op.Operands = to.All(op.Operands)
		if !composite(op) {
			b.Ops = append(b.Ops, op)
			continue
		}
		var results []*ir.Value
		if op.Name() == "call" {
			results = inline(b, op)
		} else {
			results = op.Def.Expand(ir.NewBuilder(t, b, op.Loc.With(op.Name())), op)
		}
		for i, r := range op.Results {
			results[i].Inherit(r)
			to[r] = results[i]
		}
	}
	b.Results = to.All(b.Results)
}

func composite(op *ir.Op) bool { return op.Def.Expand != nil || op.Name() == "call" }

// inline appends the ops of what op calls, and gives what stands for its results.
func inline(b *ir.Block, op *ir.Op) []*ir.Value {
	callee := b.Func.Module.Func(op.Attrs.Str("callee")).Body
	vals := ir.Mapping{}
	for i, p := range callee.Params {
		vals[p] = op.Operands[i]
	}
	mark := func(o *ir.Op) { o.Loc = o.Loc.With("inline") } // copies share random op ids
	for _, o := range callee.Ops {
		c := b.CloneOp(o, vals)
		for i, r := range o.Results {
			c.Results[i].Mark(r.Attrs.Str("name"), r.Attrs.Bool("pin"))
		}
		mark(c)
		for _, r := range c.Regions {
			r.Walk(mark)
		}
	}
	return vals.All(callee.Results)
}
