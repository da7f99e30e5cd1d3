// Package autodiff replaces the pseudo-op gradient by the program that computes it:
// reverse accumulation, op by op, with the rules of the op table.
//
// Order of arithmetic. The ops before a gradient are visited last first. The first
// contribution to the cotangent of a value is taken as it is, every later one is added,
// acc = add(acc, new); so contributions are joined in reverse program order of the value's
// uses (within one op: in the order of its operands). Nothing else decides the order,
// remat and scheduling least of all: it is fixed here, in the IR.
//
// What is not on a path from an x to the loss is never differentiated: frozen parameters
// cost nothing, and a cotangent that is zero is not computed.
package autodiff

import (
	"fmt"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
)

// Run replaces every gradient op of m, in place, first ones first: a gradient of a
// gradient differentiates the program of the inner one. Ids are dense afterwards, and
// names are kept; a gradient that was given a name keeps it.
func Run(m *ir.Module, t *ir.Table) (err error) {
	defer diag.Catch(&err)
	for _, f := range m.Funcs {
		d := &differ{f: f, t: t}
		if err := d.block(f.Body); err != nil {
			e := *diag.As(err)
			e.Message = "@" + f.Name + ": " + e.Message
			return &e
		}
		if d.changed {
			f.Renumber()
		}
	}
	return nil
}

// differ works on one function.
type differ struct {
	f       *ir.Func
	t       *ir.Table
	changed bool
	loops   map[*ir.Op]*loop    // loops that were rewritten to keep their carried values
	kept    map[*ir.Op][][]kept // branches that were rewritten to give out their decisions, by region
}

// block replaces the gradients of a block, those of its regions first.
func (d *differ) block(b *ir.Block) error {
	for _, op := range b.Ops {
		for _, r := range op.Regions {
			if err := d.block(r); err != nil {
				return err
			}
		}
	}
	for {
		i := slices.IndexFunc(b.Ops, func(op *ir.Op) bool { return op.Name() == "gradient" })
		if i < 0 {
			return nil
		}
		d.changed = true
		if err := d.gradient(b, b.Ops[i]); err != nil {
			return err
		}
	}
}

// gradient replaces one gradient op g of b.
func (d *differ) gradient(b *ir.Block, g *ir.Op) error {
	// What an earlier gradient rewrote is an ordinary loop or branch for this one.
	d.loops, d.kept = map[*ir.Op]*loop{}, map[*ir.Op][][]kept{}
	if err := d.straighten(b, g, 1); err != nil {
		return err
	}
	loss, xs := g.Operands[0], g.Operands[1:]
	at := slices.Index(b.Ops, g)
	prefix := b.Ops[:at:at]
	tmp := &ir.Block{Func: d.f}
	r := d.reverse(ir.NewBuilder(d.t, tmp, g.Loc.With("vjp")), prefix, xs)
	if r.Active(loss) {
		r.Cot[loss] = ops.Full(r.B, loss.Type, 1)
		if err := r.Run(prefix); err != nil {
			return err
		}
	}
	subst, roots := ir.Mapping{}, make([]*ir.Value, len(xs))
	for i, x := range xs {
		if roots[i] = r.Cot[x]; roots[i] == nil {
			roots[i] = ops.Full(r.B, x.Type, 0)
		}
		subst[g.Results[i]] = roots[i]
		adoptName(roots[i], g.Results[i])
	}
	emitted := live(tmp.Ops, roots)
	for _, op := range emitted {
		place(b, op)
	}
	replaceUses(b, b.Ops[at+1:], subst)
	b.Ops = slices.Concat(prefix, emitted, b.Ops[at+1:])
	return nil
}

// reverse is an accumulation over list for the cotangents of xs, written at b.
func (d *differ) reverse(b *ir.Builder, list []*ir.Op, xs []*ir.Value) *ops.Reverse {
	active := activity(list, xs)
	r := &ops.Reverse{B: b, Active: func(v *ir.Value) bool { return active[v] }, Cot: map[*ir.Value]*ir.Value{}}
	r.Special = func(op *ir.Op, douts []*ir.Value) ([]*ir.Value, bool, error) { return d.special(r, op, douts) }
	return r
}

// replaceUses puts other values in the place of some, in ops of a block and its results.
func replaceUses(b *ir.Block, later []*ir.Op, subst ir.Mapping) {
	for _, op := range later {
		op.Operands = subst.All(op.Operands)
	}
	b.Results = subst.All(b.Results)
}

// adoptName gives v the name that a person gave to the value it stands for, where v has
// none.
func adoptName(v, old *ir.Value) {
	if v.Name == fmt.Sprint(v.ID) && old.Name != fmt.Sprint(old.ID) && v.Op != nil {
		v.Name = old.Name
	}
}

// place makes b the home of op and its results.
func place(b *ir.Block, op *ir.Op) {
	op.Block = b
	for _, r := range op.Results {
		r.Block = b
	}
}

// live is list without the ops that nothing needs: cotangents that are not asked for.
func live(list []*ir.Op, roots []*ir.Value) []*ir.Op {
	needed := map[*ir.Value]bool{}
	for _, v := range roots {
		needed[v] = true
	}
	var out []*ir.Op
	for i := len(list) - 1; i >= 0; i-- {
		op := list[i]
		if op.Effect() == ir.EffectNone && !slices.ContainsFunc(op.Results, func(v *ir.Value) bool { return needed[v] }) {
			continue
		}
		for _, v := range op.Operands {
			needed[v] = true
		}
		out = append(out, op)
	}
	slices.Reverse(out)
	return out
}

// activity tells the values that vary with xs: the xs themselves, and float results of ops
// that read an active value and have a derivative.
func activity(list []*ir.Op, xs []*ir.Value) map[*ir.Value]bool {
	active := map[*ir.Value]bool{}
	for _, x := range xs {
		active[x] = true
	}
	for _, op := range list {
		if op.Def.VJP == nil && op.Def.NoGradZero {
			continue
		}
		if slices.ContainsFunc(op.Operands, func(v *ir.Value) bool { return active[v] && v.Type.DType.IsFloat() }) {
			for _, v := range op.Results {
				if v.Type.DType.IsFloat() {
					active[v] = true
				}
			}
		}
	}
	return active
}

// reaches tells the values of a straight list that outs are computed from.
func reaches(list []*ir.Op, outs []*ir.Value) map[*ir.Value]bool {
	needed := map[*ir.Value]bool{}
	for _, v := range outs {
		needed[v] = true
	}
	for i := len(list) - 1; i >= 0; i-- {
		if slices.ContainsFunc(list[i].Results, func(v *ir.Value) bool { return needed[v] }) {
			for _, v := range list[i].Operands {
				needed[v] = true
			}
		}
	}
	return needed
}
