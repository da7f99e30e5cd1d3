package ops

import (
	"fmt"

	"reprise/internal/diag"
	"reprise/ir"
)

// Reverse is reverse accumulation over a straight list of ops.
//
// Order of arithmetic: ops are visited last first, and the operands of an op in their
// order; the first contribution to a value's cotangent is taken as it is, each later one
// is added to what is there, acc = add(acc, new). So contributions are joined in reverse
// program order of the value's uses.
type Reverse struct {
	B *ir.Builder
	// Active tells the values whose cotangents are wanted; others get none. nil: all.
	Active func(v *ir.Value) bool
	// Special, where not nil, may differentiate an op in place of its row.
	Special func(op *ir.Op, douts []*ir.Value) (dins []*ir.Value, done bool, err error)
	// Cot is the cotangents so far; seeds are put here before Run.
	Cot map[*ir.Value]*ir.Value
}

// Add joins a contribution to v's cotangent.
func (r *Reverse) Add(v, g *ir.Value) {
	if g == nil || !v.Type.DType.IsFloat() || r.Active != nil && !r.Active(v) {
		return
	}
	if !g.Type.Equal(v.Type) {
		panic(fmt.Sprintf("BUG: cotangent %v of a value %v", g.Type, v.Type))
	}
	if acc := r.Cot[v]; acc != nil {
		g = add(r.B, acc, g)
	}
	r.Cot[v] = g
}

// Run visits ops from the last to the first.
func (r *Reverse) Run(ops []*ir.Op) (err error) {
	defer diag.Catch(&err)
	home := r.B
	defer func() { r.B = home }()
	for i := len(ops) - 1; i >= 0; i-- {
		op := ops[i]
		douts, any := make([]*ir.Value, len(op.Results)), false
		for k, v := range op.Results {
			douts[k] = r.Cot[v]
			any = any || douts[k] != nil
		}
		if !any || !r.wanted(op) {
			continue
		}
		r.B = home.At(op.Loc.With("vjp"))
		dins, err := r.vjp(op, douts)
		if err != nil {
			return err
		}
		for k, g := range dins {
			r.Add(op.Operands[k], g)
		}
	}
	return nil
}

// wanted reports whether any operand of op has an active float.
func (r *Reverse) wanted(op *ir.Op) bool {
	for _, v := range op.Operands {
		if v.Type.DType.IsFloat() && (r.Active == nil || r.Active(v)) {
			return true
		}
	}
	return false
}

func (r *Reverse) vjp(op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	if r.Special != nil {
		if dins, done, err := r.Special(op, douts); done || err != nil {
			return dins, err
		}
	}
	switch {
	case op.Def.VJP != nil:
		return op.Def.VJP(r.B, op, douts)
	case op.Def.NoGradZero:
		return nil, nil
	case op.Def.Expand != nil:
		return r.throughExpansion(op, douts)
	}
	why := op.Def.NoGrad
	if why == "" {
		why = "its row has no derivative"
	}
	return nil, noDerivative(op, "%s", why).WithHint("put stop_gradient before it, or leave the parameters it depends on out of the gradient")
}

// noDerivative is the error for an op that stands between the loss and what it is differentiated by.
func noDerivative(op *ir.Op, why string, args ...any) *diag.Error {
	return &diag.Error{
		Code: "gradient", Op: op.Name(), Layer: op.Loc.Layer, File: op.Loc.File, Line: op.Loc.Line,
		Message: "a gradient is asked for through an op that has none: " + fmt.Sprintf(why, args...),
	}
}

// throughExpansion differentiates a composite op without a VJP of its own by writing out
// its expansion and going back over that.
func (r *Reverse) throughExpansion(op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	block := r.B.Block
	first := len(block.Ops)
	outs := op.Def.Expand(r.B, op)
	inner := Reverse{B: r.B, Special: r.Special, Cot: map[*ir.Value]*ir.Value{}}
	for i, v := range outs {
		if douts[i] != nil {
			inner.Add(v, douts[i])
		}
	}
	if err := inner.Run(append([]*ir.Op(nil), block.Ops[first:]...)); err != nil {
		return nil, err
	}
	dins := make([]*ir.Value, len(op.Operands))
	for i, v := range op.Operands {
		if first := firstIndex(op.Operands, v); first == i {
			dins[i] = inner.Cot[v]
		}
	}
	return dins, nil
}

// firstIndex is where v first stands among vs.
func firstIndex(vs []*ir.Value, v *ir.Value) int {
	for i, x := range vs {
		if x == v {
			return i
		}
	}
	return -1
}
