package lower

import (
	"reprise/ir"
	"reprise/ir/kern"
)

// attention lowers attention and attention_grad to their family.
func attention(op *ir.Op) (*Lowered, error) {
	q, k := op.In(0).Shape, op.In(1).Shape
	a := &kern.Attention{Name: op.Name(), Batch: q[0], Heads: q[2], KVHeads: k[2], Tq: q[1], Tk: k[1], Dim: q[3],
		Causal: op.Attrs.Bool("causal"), Scale: float32(op.Attrs.Float("scale")), Dropout: float32(op.Attrs.Float("p")),
		RNG: uint32(op.Attrs.Int("rng")), Backward: op.Name() == "attention_grad"}
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
	if a.Dropout == 0 && n == keyed {
		args = args[:n-1] // the key is not used
	}
	for i := range op.Results {
		args = append(args, Ref{Result, i})
	}
	l.Launches = []Launch{{Attention: a, Args: args}}
	return l, nil
}
