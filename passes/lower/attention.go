package lower

import (
	"reprise/ir"
	"reprise/ir/ops"
)

// attention lowers attention, attention_at and attention_grad to their family.
func attention(op *ir.Op) (*Lowered, error) {
	a := ops.AttentionOf(op)
	a.Name = op.Name()
	l := &Lowered{}
	var args []Ref
	n := len(op.Operands)
	for i := range op.Operands {
		args = append(args, Ref{Operand, i})
	}
	keyed := 4
	if a.Backward {
		keyed = 7
	}
	if a.Dropout == 0 && n == keyed && !a.Placed {
		args = args[:n-1] // the key is not used
	}
	for i := range op.Results {
		args = append(args, Ref{Result, i})
	}
	l.Launches = []Launch{{Attention: a, Args: args}}
	return l, nil
}
