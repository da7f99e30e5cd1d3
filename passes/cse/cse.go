// Package cse merges equal computations: ops of the same name, attributes, regions and
// operands. It must not run once clones exist, and leaves them alone if it does.
package cse

import (
	"fmt"
	"strings"

	"reprise/ir"
)

// Run merges equal ops of every function's body. Ops with an effect, of unfixed order, and
// clones are left alone. Of two equal ops the first stays.
func Run(m *ir.Module) {
	for _, f := range m.Funcs {
		f.Body.Walk(func(op *ir.Op) {
			for _, r := range op.Regions {
				block(r)
			}
		})
		block(f.Body)
		f.Renumber()
	}
}

func block(b *ir.Block) {
	seen := map[string]*ir.Op{}
	to := ir.Mapping{}
	ops := b.Ops[:0]
	for _, op := range b.Ops {
		op.Operands = to.All(op.Operands)
		if !mergeable(op) {
			ops = append(ops, op)
			continue
		}
		key := Key(op)
		first := seen[key]
		if first == nil {
			seen[key] = op
			ops = append(ops, op)
			continue
		}
		for i, r := range op.Results {
			first.Results[i].Inherit(r)
			to[r] = first.Results[i]
		}
	}
	clear(b.Ops[len(ops):])
	b.Ops = ops
	b.Results = to.All(b.Results)
}

func mergeable(op *ir.Op) bool {
	if op.Effect() != ir.EffectNone || op.Remat != nil {
		return false
	}
	if d := op.Det(); d == ir.Tol || d == ir.Unknown {
		return false
	}
	ok := true
	for _, r := range op.Regions {
		r.Walk(func(o *ir.Op) {
			ok = ok && o.Effect() == ir.EffectNone && o.Det() != ir.Tol && o.Det() != ir.Unknown
		})
	}
	return ok
}

// Key is equal for ops that compute the same.
func Key(op *ir.Op) string {
	var b strings.Builder
	b.WriteString(op.Name())
	for _, v := range op.Operands {
		fmt.Fprintf(&b, " %d", v.ID)
	}
	b.WriteString(op.Attrs.String())
	for _, r := range op.Results {
		b.WriteString(r.Type.String())
	}
	for _, r := range op.Regions {
		local := map[*ir.Value]int{}
		region(&b, r, local)
	}
	return b.String()
}

// Structure is equal for ops that are the same computation, of whatever values: the same op on operands of the same types, of
// which the same ones are equal.
func Structure(op *ir.Op) string {
	var b strings.Builder
	b.WriteString(op.Name() + op.Attrs.String())
	n := map[*ir.Value]int{}
	for _, v := range op.Operands {
		if _, ok := n[v]; !ok {
			n[v] = len(n)
		}
		fmt.Fprintf(&b, " %d", n[v])
		b.WriteString(v.Type.String())
	}
	for _, r := range op.Results {
		b.WriteString(r.Type.String())
	}
	for _, r := range op.Regions {
		region(&b, r, n)
	}
	return b.String()
}

// region writes a region with values numbered in order, so that names don't matter.
func region(b *strings.Builder, r *ir.Block, n map[*ir.Value]int) {
	b.WriteByte('{')
	for _, p := range r.Params {
		n[p] = len(n)
		b.WriteString(p.Type.String())
	}
	for _, op := range r.Ops {
		b.WriteString(";" + op.Name() + op.Attrs.String())
		for _, v := range op.Operands {
			fmt.Fprintf(b, " %d", n[v])
		}
		for _, v := range op.Results {
			n[v] = len(n)
			b.WriteString(v.Type.String())
		}
		for _, rr := range op.Regions {
			region(b, rr, n)
		}
	}
	for _, v := range r.Results {
		fmt.Fprintf(b, " =%d", n[v])
	}
	b.WriteByte('}')
}
