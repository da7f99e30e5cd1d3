package ops

import (
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/tensor"
)

// Inline writes a composite op in simpler ones at b: the values that stand for its
// results.
func Inline(b *ir.Builder, op *ir.Op) (out []*ir.Value, err error) {
	defer diag.Catch(&err)
	return op.Def.Expand(b, op), nil
}

// expandRef is the reference of a composite op: its expansion, op by op.
func expandRef(t *ir.Table) func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		f := ir.NewModule("expansion").NewFunc("expansion")
		alone := *op
		alone.Operands = nil
		for i := range op.Operands {
			alone.Operands = append(alone.Operands, f.Body.AddParam("", op.In(i)))
		}
		out, err := Inline(ir.NewBuilder(t, f.Body, op.Loc), &alone)
		if err != nil {
			return nil, err
		}
		f.Body.Results = out
		return e.Block(f.Body, in)
	}
}
