package policy

import (
	"fmt"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/remat"
)

// origin is what makes a result of a while, if or case in its regions.
type origin struct {
	value *ir.Value
	ops   []*ir.Op // that compute it
	layer string
}

func isControl(op *ir.Op) bool { return slices.Contains([]string{"while", "if", "case"}, op.Name()) }

// made lists what makes result j of a while, if or case: what its body hands on, or each branch gives, seen through
// other shapes; of a stack of a value of each turn, that value. Other ops have none.
func made(op *ir.Op, j int) []origin {
	if !isControl(op) {
		return nil
	}
	t := tracer{seen: map[*ir.Value]bool{}}
	for k, r := range op.Regions {
		if op.Name() != "while" || k == 1 {
			t.value(r.Results[j])
		}
	}
	return t.found
}

type tracer struct {
	seen  map[*ir.Value]bool
	found []origin
}

func (t *tracer) value(v *ir.Value) {
	if t.seen[v] {
		return
	}
	t.seen[v] = true
	op := v.Op
	if op == nil { // what a turn is given is what the turn before handed on
		if owner := v.Block.Owner; owner != nil && owner.Name() == "while" && owner.Regions[1] == v.Block {
			t.value(v.Block.Results[v.Index])
		}
		return
	}
	switch {
	case op.Name() == "reshape":
		t.value(op.Operands[0])
	case op.Name() == "dynamic_update_slice" && op.Operands[0].Op == nil: // a stack
		t.value(op.Operands[1])
	case isControl(op):
		for _, o := range made(op, v.Index) {
			if !t.seen[o.value] {
				t.seen[o.value] = true
				t.found = append(t.found, o)
			}
		}
	case op.Name() == "fused" && stacked(op, v.Index) != nil:
		t.value(stacked(op, v.Index))
	default:
		layer := op.Loc.Layer
		if op.Name() == "fused" {
			layer = op.Regions[0].Results[v.Index].Op.Loc.Layer
		}
		t.found = append(t.found, origin{v, computing(op, v.Index), layer})
	}
}

// stacked is the operand of a unit that its result j is a stack of, nil where it is something else.
func stacked(op *ir.Op, j int) *ir.Value {
	r := op.Regions[0].Results[j].Op
	if r == nil || r.Name() != "dynamic_update_slice" || r.Operands[0].Op != nil {
		return nil
	}
	v := r.Operands[1]
	for v.Op != nil && v.Op.Name() == "reshape" {
		v = v.Op.Operands[0]
	}
	if v.Op != nil {
		return nil
	}
	return op.Operands[v.Index]
}

// hidden explains, where a rule names an op that no policy can decide about by itself, what that op is: nil where there is
// none such. Values inside of a turn or a branch live there only; print and assert give none.
func (x *context) hidden(r *Rule) *diag.Error {
	var e *diag.Error
	look := func(top, op *ir.Op) {
		c := &candidate{v: &ir.Value{}, layer: op.Loc.Layer, ctx: x}
		c.madeBy([]*ir.Op{op})
		if op.Name() == "fused" {
			c.kinds = nil
			for j := range op.Results {
				c.madeBy(computing(op, j))
			}
		}
		for _, v := range op.Results {
			if c.v.Type.Bytes() < v.Type.Bytes() {
				c.v = v
			}
			if n := v.Attrs.Str("name"); n != "" {
				c.names(n)
			}
		}
		if e != nil || !r.matches(c) {
			return
		}
		if op == top {
			e = bad(r.Where, "rule %q: %s of layer %s gives no value that could be kept or computed again: it happens once", r.Text, remat.Kind(op), c.layer).
				WithHint("leave it out")
		} else {
			e = bad(r.Where, "rule %q: what %s of layer %s computes lives inside of one turn or branch of the %s of layer %s, which runs again, or is kept, as a whole",
				r.Text, remat.Kind(op), c.layer, top.Name(), top.Loc.Layer).
				WithHint("name the %s itself: op=%s layer=%s", top.Name(), top.Name(), top.Loc.Layer)
		}
		e.Layer, e.Op = c.layer, remat.Kind(op)
	}
	for i, op := range x.problem.Ops {
		switch {
		case !x.problem.Forward[i]:
		case isControl(op):
			for _, b := range op.Regions {
				b.Walk(func(o *ir.Op) {
					if o.Block == nil || o.Block.Owner == nil || o.Block.Owner.Name() != "fused" {
						look(op, o)
					}
				})
			}
		case len(op.Results) == 0:
			look(op, op)
		}
	}
	return e
}

// whole is a note on the values of a line that are made in a while, if or case, "" where there are none.
func (r *RuleReport) whole() string {
	if r.inside == 0 {
		return ""
	}
	return fmt.Sprintf("%d of its values are made inside of a while, if or case, which runs again, or is kept, as a whole", r.inside)
}
