package ops

import (
	"fmt"
	"math"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/ops/attnref"
	"reprise/ir/tensor"
)

func attentionOps() []*ir.OpDef {
	return []*ir.OpDef{attentionRow(), attentionAtRow(), attentionGradRow()}
}

// AttentionOf is the shape and the numbers of an op attention, attention_at or attention_grad.
func AttentionOf(op *ir.Op) *kern.Attention {
	q, k := op.In(0).Shape, op.In(1).Shape
	return &kern.Attention{
		DType: op.In(0).DType, Batch: q[0], Tq: q[1], Heads: q[2], Dim: q[3], Tk: k[1], KVHeads: k[2],
		Causal: op.Attrs.Bool("causal") || op.Name() == "attention_at", Placed: op.Name() == "attention_at", Scale: float32(op.Attrs.Float("scale")),
		Dropout: float32(op.Attrs.Float("p")), RNG: rngOf(op), Backward: op.Name() == "attention_grad",
	}
}

func attentionAttrs() []ir.AttrDef {
	return []ir.AttrDef{
		{Name: "causal", Kind: "bool", Default: false, Doc: "whether query i sees only keys j ≤ i + (Tk - Tq)"},
		{Name: "scale", Kind: "float", Default: 0.0, Doc: "factor of the scores; 0: 1/√D"},
		{Name: "p", Kind: "float", Default: 0.0, Doc: "probability of dropping a weight"},
		{Name: "rng", Kind: "int", Default: int64(0), Doc: "the random op's id, where p > 0"},
	}
}

func attentionConstraints(keyAt int) []ir.Constraint {
	return []ir.Constraint{
		{Label: "C1", Text: "q is [B,Tq,H,D], k and v are [B,Tk,Hk,D] with H a multiple of Hk, all f32, f16 or bf16", Check: func(op *ir.Op) error {
			q, k := op.In(0), op.In(1)
			for i := range 3 {
				if t := op.In(i); t.DType != q.DType || !t.DType.IsFloat() || t.DType == dtype.F64 || t.Rank() != 4 {
					return fmt.Errorf("operand %s is %v", operandName(op, i), t)
				}
			}
			if err := wantSame(op, 1, 2); err != nil {
				return err
			}
			if q.Shape[0] != k.Shape[0] || q.Shape[3] != k.Shape[3] || k.Shape[2] == 0 || q.Shape[2]%k.Shape[2] != 0 {
				return fmt.Errorf("q is %v and k is %v", q, k)
			}
			return nil
		}},
		{Label: "C2", Text: "0 ≤ p < 1; with p > 0 there is a key, and rng is a 32-bit number", Check: func(op *ir.Op) error {
			p := op.Attrs.Float("p")
			if !(p >= 0 && p < 1) {
				return fmt.Errorf("p is %v", p)
			}
			if len(op.Operands) > keyAt {
				if err := wantKey(op, keyAt); err != nil {
					return err
				}
			} else if p > 0 {
				return fmt.Errorf("p is %v and there is no key", p)
			}
			return wantRNG(op)
		}},
		{Label: "C3", Text: "each query sees a key: Tk > 0, and Tq ≤ Tk where causal", Check: func(op *ir.Op) error {
			q, k := op.In(0).Shape, op.In(1).Shape
			if k[1] == 0 || op.Attrs.Bool("causal") && q[1] > k[1] {
				return fmt.Errorf("q is %v and k is %v", op.In(0), op.In(1))
			}
			return nil
		}},
	}
}

// attentionDefaults sets the scale, and leaves p and rng alone.
func attentionDefaults(op *ir.Op) {
	if op.Attrs.Float("scale") == 0 {
		op.Attrs = op.Attrs.Set("scale", 1/math.Sqrt(float64(max(1, op.In(0).Shape[3]))))
	}
}

func attentionDet(op *ir.Op) ir.Det {
	if op.Attrs.Float("p") > 0 {
		return ir.Keyed
	}
	return ir.Exact
}

// attentionCost counts products contractions of 2·D flops for each visible pair, and
// the exponential.
func attentionCost(products int64) func(op *ir.Op) ir.Cost {
	return func(op *ir.Op) ir.Cost {
		a, c := AttentionOf(op), trafficOf(op)
		pairs := a.Batch * a.Heads * a.Tq * a.Tk
		if a.Causal {
			pairs = a.Batch * a.Heads * a.Tq * (2*a.Tk - a.Tq + 1) / 2
		}
		c.Flops = pairs * (products*2*a.Dim + 30)
		return c
	}
}

func keyBytes(in []*tensor.Tensor, at int) *[16]byte {
	if len(in) <= at {
		return nil
	}
	return (*[16]byte)(in[at].Data)
}

func attentionRow() *ir.OpDef {
	d := checked(&ir.OpDef{
		Name: "attention", Family: "attention",
		Doc: "`softmax(scale · q·kᵀ) · v` for each head of q [B,Tq,H,D] over k, v [B,Tk,Hk,D], query head h reading key head h/(H/Hk); result [B,Tq,H,D] and the logarithm of each row's normaliser, lse [B,H,Tq]. " +
			"Dropout with probability p (rounded to f32) drops weights after the normaliser is summed. Online softmax over key blocks of 64, in order: see docs/numerics.md. " +
			"f16 and bf16 are widened to f32, out is rounded once, lse is f32.",
		Operands: []string{"q", "k", "v", "key?"}, Results: []string{"out", "lse"},
		Attrs: attentionAttrs(), Det: attentionDet, Cost: attentionCost(2),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			out, lse := attnref.Forward(AttentionOf(op), readF32(in[0]), readF32(in[1]), readF32(in[2]), keyBytes(in, 3))
			return []*tensor.Tensor{makeF32(in[0].DType, in[0].Shape, out), tensor.Of(lse, op.Out(1).Shape...)}, nil
		},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			out := make([]*ir.Value, len(op.Operands))
			if douts[1] != nil {
				// The kernel has no cotangent of lse: go through primitive ops.
				first := len(b.Block.Ops)
				y, lse := attentionPrimitive(b, op)
				r := Reverse{B: b, Cot: map[*ir.Value]*ir.Value{}}
				r.Add(lse, douts[1])
				r.Add(y, douts[0])
				if err := r.Run(slices.Clone(b.Block.Ops[first:])); err != nil {
					return nil, err
				}
				distinctCots(&r, op.Operands[:3], out)
				return out, nil
			}
			operands := append(slices.Clone(op.Operands[:3]), op.Results[0], op.Results[1], douts[0])
			operands = append(operands, op.Operands[3:]...)
			g := b.Multi("attention_grad", operands, nil, op.Attrs...)
			for i, v := range g.Results {
				out[i] = cast(b, v, op.In(i).DType)
			}
			return out, nil
		},
		HandScheduled: "attention",
	}, attentionConstraints(3), sameType)
	d.Infer = attentionResults(d.Infer)
	return d
}

// attentionResults adds lse to the types that infer gives.
func attentionResults(infer func(op *ir.Op) ([]ir.Type, error)) func(op *ir.Op) ([]ir.Type, error) {
	return func(op *ir.Op) ([]ir.Type, error) {
		ts, err := infer(op)
		if err != nil {
			return nil, err
		}
		attentionDefaults(op)
		q := op.In(0).Shape
		return append(ts, ir.T(dtype.F32, q[0], q[2], q[1])), nil
	}
}

func attentionAtRow() *ir.OpDef {
	shape := attentionConstraints(4)
	d := checked(&ir.OpDef{
		Name: "attention_at", Family: "attention",
		Routes:   routes(3),
		Doc:      "Causal `attention` whose first query has `first` keys before it: query i sees key j where j ≤ i + first (cut to 0 … Tk - Tq). It reads a cache that is not full yet; the arithmetic is that of `attention`.",
		Operands: []string{"q", "k", "v", "first"}, Results: []string{"out", "lse"},
		Attrs: []ir.AttrDef{{Name: "scale", Kind: "float", Default: 0.0, Doc: "factor of the scores; 0: 1/√D"}},
		Cost:  attentionCost(2),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			a := AttentionOf(op)
			out, lse := attnref.ForwardAt(a, clampIdx(indexAt(in[3], 0), a.Tk-a.Tq), readF32(in[0]), readF32(in[1]), readF32(in[2]), nil)
			return []*tensor.Tensor{makeF32(in[0].DType, in[0].Shape, out), tensor.Of(lse, op.Out(1).Shape...)}, nil
		},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			out := make([]*ir.Value, 4)
			first := len(b.Block.Ops)
			y, lse := attentionPrimitive(b, op)
			r := Reverse{B: b, Cot: map[*ir.Value]*ir.Value{}}
			if douts[1] != nil {
				r.Add(lse, douts[1])
			}
			if douts[0] != nil {
				r.Add(y, douts[0])
			}
			if err := r.Run(slices.Clone(b.Block.Ops[first:])); err != nil {
				return nil, err
			}
			distinctCots(&r, op.Operands[:3], out)
			return out, nil
		},
		HandScheduled: "attention",
	}, []ir.Constraint{shape[0], {Label: "C2", Text: "first is i32[]", Check: func(op *ir.Op) error {
		if f := op.In(3); !f.Equal(ir.T(dtype.I32)) {
			return fmt.Errorf("operand %s is %v", operandName(op, 3), f)
		}
		return nil
	}}, {Label: "C3", Text: "there is a key for each query: 0 < Tk and Tq ≤ Tk", Check: func(op *ir.Op) error {
		if q, k := op.In(0).Shape, op.In(1).Shape; k[1] == 0 || q[1] > k[1] {
			return fmt.Errorf("q is %v and k is %v", op.In(0), op.In(1))
		}
		return nil
	}}}, sameType)
	d.Infer = attentionResults(d.Infer)
	return d
}

// distinctCots reads the cotangents of values into out; of a value that stands there
// more than once the first place gets it all.
func distinctCots(r *Reverse, vs, out []*ir.Value) {
	for i, v := range vs {
		if firstIndex(vs, v) == i {
			out[i] = r.Cot[v]
		}
	}
}

func attentionGradRow() *ir.OpDef {
	d := checked(&ir.OpDef{
		Name: "attention_grad", Family: "attention",
		Doc: "The gradients of q, k and v for the gradient dout of attention's out, from its operands and results; weights are computed again from lse. " +
			"f32 also for operands of f16 and bf16. Order of arithmetic: docs/numerics.md.",
		Operands: []string{"q", "k", "v", "out", "lse", "dout", "key?"}, Results: []string{"dq", "dk", "dv"},
		Attrs: attentionAttrs(), Det: attentionDet, Cost: attentionCost(5),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			dq, dk, dv := attnref.Backward(AttentionOf(op), readF32(in[0]), readF32(in[1]), readF32(in[2]), readF32(in[3]), in[4].F32(), readF32(in[5]), keyBytes(in, 6))
			return []*tensor.Tensor{tensor.Of(dq, op.In(0).Shape...), tensor.Of(dk, op.In(1).Shape...), tensor.Of(dv, op.In(2).Shape...)}, nil
		},
		// out and lse are functions of q, k and v, so the derivative by q, k, v and dout of
		// the same gradients written in primitive ops is the whole derivative.
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) (_ []*ir.Value, err error) {
			defer diag.Catch(&err)
			first := len(b.Block.Ops)
			y, _ := attentionPrimitive(b, op)
			once := Reverse{B: b, Cot: map[*ir.Value]*ir.Value{y: op.Operands[5]}}
			if err := once.Run(slices.Clone(b.Block.Ops[first:])); err != nil {
				return nil, err
			}
			twice := Reverse{B: b, Cot: map[*ir.Value]*ir.Value{}}
			for i, v := range op.Operands[:3] {
				if firstIndex(op.Operands[:3], v) != i {
					return nil, fmt.Errorf("second derivative of attention whose operands are one value: copy it first")
				}
				if douts[i] != nil {
					twice.Add(once.Cot[v], cast(b, douts[i], v.Type.DType))
				}
			}
			if err := twice.Run(slices.Clone(b.Block.Ops[first:])); err != nil {
				return nil, err
			}
			out := make([]*ir.Value, len(op.Operands))
			for _, i := range []int{0, 1, 2, 5} {
				out[i] = twice.Cot[op.Operands[i]]
			}
			return out, nil
		},
		HandScheduled: "attention",
	}, append(attentionConstraints(6), ir.Constraint{
		Label: "C4", Text: "out and dout have the type of q, lse is f32[B,H,Tq]", Check: func(op *ir.Op) error {
			if err := wantSame(op, 0, 3, 5); err != nil {
				return err
			}
			q, lse := op.In(0).Shape, op.In(4)
			if want := ir.T(dtype.F32, q[0], q[2], q[1]); !lse.Equal(want) {
				return fmt.Errorf("operand %s is %v, want %v", operandName(op, 4), lse, want)
			}
			return nil
		}}), func(op *ir.Op) ir.Type { return ir.T(dtype.F32, op.In(0).Shape...) })
	infer := d.Infer
	d.Infer = func(op *ir.Op) ([]ir.Type, error) {
		ts, err := infer(op)
		if err != nil {
			return nil, err
		}
		attentionDefaults(op)
		for i := range 2 {
			ts = append(ts, ir.T(dtype.F32, op.In(1+i).Shape...))
		}
		return ts, nil
	}
	return d
}

// attentionPrimitive writes attention of op's q, k, v (and key, the last operand, where
// p > 0) in primitive ops: the same function with another order of arithmetic. It serves
// derivatives that the kernels do not have.
func attentionPrimitive(b *ir.Builder, op *ir.Op) (out, lse *ir.Value) {
	a := AttentionOf(op)
	q, k, v := f32Up(b, op.Operands[0]), f32Up(b, op.Operands[1]), f32Up(b, op.Operands[2])
	group := a.Heads / a.KVHeads
	d := q.Type.DType
	// Scores [B,Hk,Tq,G,Tk], then heads before queries.
	q5 := reshaped(b, q, []int64{a.Batch, a.Tq, a.KVHeads, group, a.Dim})
	s := contracted(b, q5, k, []int64{0, 2}, []int64{0, 2}, []int64{4}, []int64{3}, d)
	s = reshaped(b, permuted(b, s, []int64{0, 1, 3, 2, 4}), []int64{a.Batch, a.Heads, a.Tq, a.Tk})
	s = times(b, s, op.Attrs.Float("scale"))
	if a.Causal {
		at := func(dim int64) *ir.Value {
			return b.Op("iota", nil, ir.A("dim", dim), ir.A("shape", s.Type.Shape), ir.A("dtype", dtype.I64))
		}
		before := full(b, ir.T(dtype.I64), float64(a.Tk-a.Tq))
		if a.Placed {
			before = call2(b, "min", before, call2(b, "max", cast(b, op.Operands[3], dtype.I64), full(b, ir.T(dtype.I64), 0)))
		}
		seen := compare(b, "le", at(3), add(b, at(2), spread(b, before, s.Type.Shape)))
		s = choose(b, seen, s, full(b, s.Type, math.Inf(-1)))
	}
	r := rowsOf(b, s, 3)
	m := b.Op("stop_gradient", []*ir.Value{r.max(s)}) // any shift gives the same function
	e := call1(b, "exp", sub(b, s, r.spread(m)))
	l := r.sum(e)
	lse = add(b, m, call1(b, "log", l))
	p := div(b, e, r.spread(l))
	if a.Dropout > 0 {
		key := op.Operands[len(op.Operands)-1]
		p = b.Op("dropout", []*ir.Value{p, key}, ir.A("p", float64(a.Dropout)), ir.A("rng", op.Attrs.Int("rng")))
	}
	p5 := reshaped(b, p, []int64{a.Batch, a.KVHeads, group, a.Tq, a.Tk})
	o := contracted(b, p5, v, []int64{0, 1}, []int64{0, 2}, []int64{4}, []int64{1}, d) // [B,Hk,G,Tq,D]
	return cast(b, reshaped(b, permuted(b, o, []int64{0, 3, 1, 2, 4}), q.Type.Shape), op.In(0).DType), lse
}
