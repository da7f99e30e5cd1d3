// Package expand writes composite ops (softmax, norms, losses, optimizer steps) in
// primitives. It runs after autodiff, which knows the composites' own gradients, and before the second cse,
// so that a row statistic that forward and backward both need is computed once.
package expand

import (
	"reprise/internal/diag"
	"reprise/ir"
)

// Run expands every op that has an expansion, regions included, until none is left.
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
			found = found || op.Def.Expand != nil
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
		if op.Def.Expand == nil {
			b.Ops = append(b.Ops, op)
			continue
		}
		results := op.Def.Expand(ir.NewBuilder(t, b, op.Loc), op)
		for i, r := range op.Results {
			to[r] = results[i]
		}
	}
	b.Results = to.All(b.Results)
}
