// Package dce removes ops that nothing needs. Ops that write or call the host are needed;
// a collective or a read of state whose result nothing uses is not. All participants run
// one program, so a collective goes for all of them.
package dce

import "reprise/ir"

// Run removes dead ops of every function and region.
func Run(m *ir.Module) {
	for _, f := range m.Funcs {
		Block(f.Body)
		f.Renumber()
	}
}

// Block removes dead ops of a block and of the regions of those that stay.
func Block(b *ir.Block) {
	live := map[*ir.Value]bool{}
	for _, v := range b.Results {
		live[v] = true
	}
	keep := make([]bool, len(b.Ops))
	for i := len(b.Ops) - 1; i >= 0; i-- {
		op := b.Ops[i]
		needed := acts(op)
		for _, r := range op.Results {
			needed = needed || live[r]
		}
		if !needed {
			continue
		}
		keep[i] = true
		for _, v := range op.Operands {
			live[v] = true
		}
		for _, r := range op.Regions {
			Block(r)
		}
	}
	ops := b.Ops[:0]
	for i, op := range b.Ops {
		if keep[i] {
			ops = append(ops, op)
		}
	}
	clear(b.Ops[len(ops):])
	b.Ops = ops
}

func acts(op *ir.Op) bool {
	e := op.Effect()
	found := e == ir.EffectWrites || e == ir.EffectHost
	for _, r := range op.Regions {
		r.Walk(func(o *ir.Op) { found = found || o.Effect() == ir.EffectWrites || o.Effect() == ir.EffectHost })
	}
	return found
}
